"""The search itself: changes drawn as likely as they are good, ever more strictly, until nothing clashes.

Simulated annealing without waiting: at each step all changes of the VMs at one point are judged at once and one of
them is drawn with the chance that trying them one by one would give it. What a step costs depends on how much it looks
at, and the budget counts that, so that a search is the same on every machine
(docs/reference/failover-planning.md#packing).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.base.random import Random
from outlive.failover.planner.packing.board import COST_LIMIT, Board, Table

HOT: Final = 0.95
COLD: Final = 0.3
"""Temperatures at the beginning and at the end, times the logarithm of the number of slots."""
LOOKED_AT: Final = 2_000
"""Changes that are judged for the price of one step, besides the step itself."""
FOLLOWED: Final = 4_000
"""VMs and points that are followed for the price of one step."""
HOST_STEPS: Final = 10
"""Every so many steps a slot may change its host instead."""
FOCUS: Final = 0.6
"""Of the other steps so many look at a point that clashes."""
FOLLOWED_STEPS: Final = 16
"""Steps between two looks at what clashes."""
CHECKED_STEPS: Final = 256
"""Steps between two looks at the deadline."""
BEST: Final = 400
"""No change is better than this many clashes fewer."""


class Budget:
    """Steps that may be spent, and whoever may say that it is enough."""

    def __init__(self, steps: float, keep_going: Callable[[], bool]) -> None:
        self.left = steps
        self.cut_short = False
        self._keep_going = keep_going

    def goes_on(self) -> bool:
        """Whether anything is left; asks the one who may stop it."""
        if not self.cut_short and not self._keep_going():
            self.cut_short = True
        return self.left > 0 and not self.cut_short


class Annealer:
    """Anneals one board."""

    def __init__(self, board: Board, random: Random, budget: Budget) -> None:
        self._board = board
        self._random = random
        self._budget = budget
        given = board.problem
        moving = np.nonzero(given.movable.any(axis=1))[0]
        self._vms_at = {
            int(point): moving[given.vm_point[moving] == point] for point in np.unique(given.vm_point[moving])
        }
        self._points: list[int] = given.vm_point[np.nonzero(given.movable)[0]].tolist()
        self._price = 1 + (len(given.vm_names) + given.points) / FOLLOWED
        self._clashing: list[tuple[int, int, int]] = []
        self._own = np.nonzero(given.own)[0].tolist()
        self._differences = np.arange(-BEST, COST_LIMIT + 2, dtype=np.float64)

    def run(self, steps: float) -> bool:
        """Anneal for so many steps; whether nothing clashes in the end."""
        board, random, spent = self._board, self._random, 0.0
        scale = math.log(max(3, board.problem.slots))
        chances = self._chances(HOT / scale)
        turn = 0
        while board.clashes and spent < steps:
            if turn % CHECKED_STEPS == 0:
                if not self._budget.goes_on():
                    return False
                chances = self._chances(HOT * (COLD / HOT) ** (spent / steps) / scale)
            turn += 1
            if turn % HOST_STEPS == 0 and self._own:
                price = self._change_host(self._own[random.randrange(len(self._own))], chances)
            else:
                price = self._change_place(self._point(turn), chances)
            spent += price
            self._budget.left -= price
        return board.clashes == 0

    def _point(self, turn: int) -> int:
        """Where to look: where something clashes, or anywhere."""
        random = self._random
        if turn % FOLLOWED_STEPS == 1:
            self._clashing = self._board.clashing()
        if self._clashing and random.random() < FOCUS:
            vm, one, other = self._clashing[random.randrange(len(self._clashing))]
            points = self._board.common(one, other)
            if len(points) > 1:
                for point in (int(points[random.randrange(len(points))]), int(self._board.problem.vm_point[vm])):
                    if point in self._vms_at:  # a VM that must not move may clash as well
                        return point
        return self._points[random.randrange(len(self._points))]

    def _chances(self, temperature: float) -> NDArray[np.float32]:
        chances = np.exp(-np.maximum(self._differences, 0) / temperature).astype(np.float32)
        chances[self._differences >= COST_LIMIT] = 0
        return chances

    def _draw(self, costs: Table, chances: NDArray[np.float32]) -> int | None:
        """One of the changes, or none."""
        flat = costs.reshape(-1)
        total = chances.take(flat + BEST, mode="clip").cumsum()
        weight = float(total[-1])
        if self._random.random() >= 1 - math.exp(-weight):
            return None
        chosen = min(int(total.searchsorted(self._random.random() * weight, side="right")), len(flat) - 1)
        return chosen if flat[chosen] < COST_LIMIT else None

    def _change_place(self, point: int, chances: NDArray[np.float32]) -> float:
        board, width, vms = self._board, self._board.problem.width, self._vms_at[point]
        costs = board.judge_moves(point, vms)
        chosen = self._draw(costs, chances)
        if chosen is not None:
            row, column = divmod(chosen, costs.shape[1])
            board.move(int(vms[row // width]), row % width, column, int(costs[row, column]))
        return self._price + costs.size / LOOKED_AT

    def _change_host(self, slot: int, chances: NDArray[np.float32]) -> float:
        board = self._board
        if not board.closed[slot]:
            costs = board.judge_hosts(slot)
            chosen = self._draw(costs, chances)
            if chosen is not None:
                board.put(slot, chosen, int(costs[chosen]))
        return self._price + board.problem.points / LOOKED_AT
