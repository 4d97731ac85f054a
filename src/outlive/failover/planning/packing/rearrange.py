"""Empty slots of a live state on paper: where everybody would have to go, and nothing about how to get there.

The same board and the same search as for plans, only colder, so that little is upset: one slot is taken away, its
members go where they clash least, and the others give way until nothing clashes. Slots keep their hosts and sizes
(docs/reference/failover.md#repacking).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from outlive.base.random import Random
from outlive.failover.model import SlotView
from outlive.failover.planning.packing.anneal import COOL, Annealer, Budget
from outlive.failover.planning.packing.board import COST_LIMIT, Board, Ints
from outlive.failover.planning.packing.problem import Ground, problem_of

STEPS_A_MEMBER: Final = 60
"""Steps of settling for each member that has to leave."""
ATTEMPT: Final = 20
"""Steps that an attempt costs besides …"""
CELLS_A_STEP: Final = 5_000
"""… one for so many cells of the tables, which have to be restored."""
LUCK: Final = 0.5
"""How much luck there is in the choice of the next slot, from 0 to 1."""


class Change(NamedTuple):
    """A membership that is elsewhere afterwards; ``joins`` is empty where the VM has slots to spare."""

    vm: str
    leaves: str
    joins: str


class Rearranging:
    """Tries to empty one slot after the other; what was found is kept or forgotten."""

    def __init__(
        self, slots: Sequence[SlotView], ground: Ground, spare: Mapping[str, int], random: Random, budget: Budget
    ) -> None:
        """``spare``: VM → slots that it could do without."""
        problem = problem_of((), slots, ground)
        self._names = problem.names
        self._board = Board(problem)
        self._spare = {number: spare.get(vm, 0) for number, vm in enumerate(problem.vm_names)}
        self._random = random
        self._annealer = Annealer(self._board, random.fork("annealing"), budget, hosts=False)
        self._budget = budget
        self._keep = False
        self.usable = self._board.clashes == 0

    def attempts(self) -> Iterator[tuple[str, list[Change]]]:
        """Slots that could be emptied, with all changes for it. What is not kept before going on is undone."""
        board = self._board
        for slot in self._candidates():
            if not self._budget.goes_on():
                return
            self._budget.left -= ATTEMPT + board.meet.size / CELLS_A_STEP
            was, spare, self._keep = board.save(), dict(self._spare), False
            if self._empty(slot):
                yield self._names[slot], self._changes(was.slots_of)
            if not self._keep:
                board.restore(was)
                self._spare = spare

    def keep(self) -> None:
        """Go on from what was found last."""
        self._keep = True

    def _candidates(self) -> list[int]:
        """Least upset for what is saved first, with some luck."""
        board = self._board
        worth: dict[int, float] = {}
        for slot in np.nonzero(board.problem.own & board.problem.joinable & ~board.closed)[0].tolist():
            vms, places = board.members(slot)
            if len(vms) and board.problem.movable[vms, places].all():
                luck = 1 - LUCK + 2 * LUCK * self._random.random()
                worth[slot] = luck * max(1, int(board.slot_size[slot, 1])) / len(vms) ** 2
        return sorted(worth, key=lambda slot: -worth[slot])

    def _empty(self, slot: int) -> bool:
        board = self._board
        vms, places = board.members(slot)
        board.bar(slot)
        for vm, place in zip(vms.tolist(), places.tolist(), strict=True):
            if self._spare[vm] > 0:
                self._spare[vm] -= 1
                board.drop(vm, place)
                continue
            if not self._settle(vm, place) and not self._displace(vm, place):
                return False
        board.close(slot)
        return self._annealer.run(STEPS_A_MEMBER * len(vms), hot=COOL)

    def _settle(self, vm: int, place: int) -> bool:
        """Put the VM where it clashes least; whether anything takes it at all."""
        board = self._board
        costs = board.judge_moves(int(board.problem.vm_point[vm]), np.array([vm]))[place]
        to = int(costs.argmin())
        if costs[to] >= COST_LIMIT:
            return False
        board.move(vm, place, to, int(costs[to]))
        return True

    def _displace(self, vm: int, place: int) -> bool:
        """Somebody from the same host goes elsewhere and leaves the VM its slot."""
        board, given = self._board, self._board.problem
        point = given.vm_point[vm]
        others = np.nonzero((given.vm_point == point) & given.movable.any(axis=1))[0]
        for other in others[others != vm].tolist():
            for at, slot in enumerate(board.slots_of[other].tolist()):
                if slot == given.slots or board.barred[given.vm_kind[vm], slot] or not given.movable[other, at]:
                    continue
                if not self._settle(other, at):
                    continue
                return self._settle(vm, place)
        return False

    def _changes(self, before: Ints) -> list[Change]:
        """Membership by membership; a VM that only changed places with itself changed nothing."""
        found: list[Change] = []
        after, problem = self._board.slots_of, self._board.problem
        names = (*self._names, "")
        for vm in np.nonzero((before != after).any(axis=1))[0].tolist():
            left = sorted(set(before[vm].tolist()) - set(after[vm].tolist()) - {problem.slots})
            joined = sorted(set(after[vm].tolist()) - set(before[vm].tolist()) - {problem.slots})
            joined += [problem.slots] * (len(left) - len(joined))
            found += [
                Change(problem.vm_names[vm], names[old], names[new]) for old, new in zip(left, joined, strict=True)
            ]
        return found
