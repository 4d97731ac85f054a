"""Less and less reserved: take slots away, settle everybody again, and go on from there.

Each stage begins with a plan that holds, evicts the members of some slots, puts them where they clash least and anneals
until nothing clashes. What succeeds is the next plan; what fails is undone, and stages get longer and take less as they
fail (docs/design/failover.md#packing).

Annealing is without waiting: at each step all changes of the VMs at one point are judged at once and one of them is
drawn with the chance that trying them one by one would give it. What a step costs depends on how much it looks at, and
what may be spent counts that, so that a search is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base import Random
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import PlanInput
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
FIRST_SHARE: Final = 0.05
"""The first stage gets this share of the budget."""
LONGER: Final = 1.4
"""Each stage gets so many times the steps of the one before."""
FIRST_TAKEN: Final = 0.1
"""Of what is reserved the first stage tries to save this share."""
STAGES: Final = 200
"""Stages of one search."""
TRIED: Final = 200
"""Slots that one stage tries to take away at most."""
STEPS_A_SECOND: Final = 8_000
"""What a second of effort is worth. Nominal, so that a plan does not depend on how fast the machine is."""
SLOTS_SEARCHED: Final = 4_000
"""Plans of more slots are not searched: the tables grow with the square of it."""
TABLE_CELLS: Final = 60_000_000
"""… nor those with more points times slots."""


class Annealer:
    """Anneals one board."""

    def __init__(self, board: Board, random: Random, steps: float, keep_going: Callable[[], bool]) -> None:
        """``steps`` may be spent in all, and ``keep_going`` may say earlier that it is enough."""
        self._board = board
        self._random = random
        self.left = steps
        self.cut_short = False
        self._keep_going = keep_going
        moving = np.nonzero(board.movable.any(axis=1))[0]
        self._vms_at = {
            int(point): moving[board.vm_point[moving] == point] for point in np.unique(board.vm_point[moving])
        }
        self._points: list[int] = board.vm_point[np.nonzero(board.movable)[0]].tolist()
        self._price = 1 + (len(board.vms) + board.points) / FOLLOWED
        self._clashing: list[tuple[int, int, int]] = []
        self._own = np.nonzero(board.own)[0].tolist()
        self._differences = np.arange(-BEST, COST_LIMIT + 2, dtype=np.float64)

    def goes_on(self) -> bool:
        """Whether any steps are left; asks the one who may stop it."""
        if not self.cut_short and not self._keep_going():
            self.cut_short = True
        return self.left > 0 and not self.cut_short

    def run(self, steps: float) -> bool:
        """Anneal for so many steps; whether nothing clashes in the end."""
        board, random, spent = self._board, self._random, 0.0
        scale = math.log(max(3, board.slots))
        chances = self._compute_chances(HOT / scale)
        turn = 0
        while board.clashes and spent < steps:
            if turn % CHECKED_STEPS == 0:
                if not self.goes_on():
                    return False
                chances = self._compute_chances(HOT * (COLD / HOT) ** (spent / steps) / scale)
            turn += 1
            if turn % HOST_STEPS == 0 and self._own:
                slot = self._own[random.randrange(len(self._own))]
                price = self._price + board.points / LOOKED_AT
                if not board.closed[slot]:
                    costs = board.judge_hosts(slot)
                    chosen = self._draw(costs, chances)
                    if chosen is not None:
                        board.put(slot, chosen, int(costs[chosen]))
            else:
                point = self._choose_point(turn)
                vms = self._vms_at[point]
                costs = board.judge_moves(point, vms)
                price = self._price + costs.size / LOOKED_AT
                chosen = self._draw(costs, chances)
                if chosen is not None:
                    row, column = divmod(chosen, costs.shape[1])
                    board.move(int(vms[row // board.width]), row % board.width, column, int(costs[row, column]))
            spent += price
            self.left -= price
        return board.clashes == 0

    def _choose_point(self, turn: int) -> int:
        """Where to look: where something clashes, or anywhere."""
        random = self._random
        if turn % FOLLOWED_STEPS == 1:
            self._clashing = self._board.find_clashing()
        if self._clashing and random.random() < FOCUS:
            vm, one, other = self._clashing[random.randrange(len(self._clashing))]
            points = self._board.common_points(one, other)
            if len(points) > 1:
                for point in (int(points[random.randrange(len(points))]), int(self._board.vm_point[vm])):
                    if point in self._vms_at:  # a VM that must not move may clash as well
                        return point
        return self._points[random.randrange(len(self._points))]

    def _compute_chances(self, temperature: float) -> NDArray[np.float32]:
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


class PackingSearch:
    """Improves one board; ``best`` is the least reserved that was found."""

    def __init__(self, board: Board, random: Random, annealer: Annealer) -> None:
        self._board = board
        self._random = random
        self._annealer = annealer

    def run(self) -> None:
        """Until all steps are spent or nothing is left to try; the board then has the least that was found."""
        annealer, board = self._annealer, self._board
        best, least = board.save(), self._sum_reserved()
        steps, share = max(1.0, annealer.left * FIRST_SHARE), FIRST_TAKEN
        for _ in range(STAGES):
            if not annealer.goes_on() or not self._take_many(share):
                break
            clean = annealer.run(min(steps, annealer.left))
            if clean and self._sum_reserved() < least and self._has_openers():
                share = max(1 - self._sum_reserved()[0] / max(1, least[0]), 0.01)
                best, least = board.save(), self._sum_reserved()
            else:
                board.restore(best)
                share /= 2
            steps *= LONGER
        board.restore(best)

    def _sum_reserved(self) -> tuple[int, int, int]:
        """Bytes, slots, milli-cores."""
        board = self._board
        cpu, memory = board.slot_size.sum(axis=0).tolist()
        return memory, int((~board.closed).sum()), cpu

    def _take_many(self, share: float) -> bool:
        """Take slots away that hold this share of the memory, one at least; whether any could be."""
        board, taken, tried = self._board, False, 0
        wanted = share * self._sum_reserved()[0]
        # First what saves most for what it upsets, with some luck.
        worth: dict[int, float] = {}
        for slot in np.nonzero(board.own & ~board.closed)[0].tolist():
            vms, places = board.members_of(slot)
            if board.movable[vms, places].all():
                luck = 0.7 + 0.6 * self._random.random()
                worth[slot] = luck * max(1, int(board.slot_size[slot, 1])) / (len(vms) + 1)
        for slot in sorted(worth, key=lambda one: -worth[one]):
            if wanted <= 0 or tried >= TRIED:
                break
            # Each VM that has to leave may join some other slot that does not touch its point yet.
            vms = board.members_of(slot)[0]
            blocked = (board.barred[board.vm_kind[vms]] > 0) | (board.touches[board.vm_point[vms]] > 0)
            if not (~blocked).any(axis=1).all():
                continue
            tried += 1
            before, held = board.save(), max(1, int(board.slot_size[slot, 1]))
            if self._take(slot):
                taken = True
                wanted -= held
            else:
                board.restore(before)
        return taken

    def _take(self, slot: int) -> bool:
        """Evict everybody and take the slot away; whether all found another one."""
        board = self._board
        board.bar(slot)
        for vm, place in sorted(zip(*(each.tolist() for each in board.members_of(slot)), strict=True)):
            point = int(board.vm_point[vm])
            costs = board.judge_moves(point, np.array([vm]))[place]
            to = int(costs.argmin())
            if costs[to] >= COST_LIMIT:
                return False
            board.move(vm, place, to, int(costs[to]))
        board.close(slot)
        return True

    def _has_openers(self) -> bool:
        """Whether every slot that is left has a member for which placement would open it where it is."""
        board = self._board
        if board.kind_new.all():
            return True
        for slot in np.nonzero(board.own & ~board.closed)[0].tolist():
            kinds = np.unique(board.vm_kind[board.members_of(slot)[0]])
            if len(kinds) and not board.kind_new[kinds, board.slot_host[slot]].any():
                return False
        return True


def pack(
    given: PlanInput,
    before: Sequence[SlotView],
    found: Sequence[SlotView],
    *,
    still: Collection[str],
    keep_going: Callable[[], bool],
) -> tuple[list[SlotView], bool]:
    """The slots of a better plan than the one that leads from ``before`` to ``found``, with as much effort as is given.

    ``still``: VMs that stay where they are. Members are listed largest first. Nothing was found where the answer is
    empty. Whether ``keep_going`` ended the search is answered as well, because then all depends on when it was asked.
    """
    if len(found) > SLOTS_SEARCHED or len(found) * len(given.offered_hosts) > TABLE_CELLS:
        return [], False
    board = Board(given, before, found, still)
    if board.clashes or not board.own.any():
        return [], False
    random = Random(given.seed)
    stages = random.fork("stages")
    annealer = Annealer(board, random.fork("annealing"), given.effort_s * STEPS_A_SECOND, keep_going)
    PackingSearch(board, stages, annealer).run()
    return _slots_of(board, given, found), annealer.cut_short


def _slots_of(board: Board, given: PlanInput, found: Sequence[SlotView]) -> list[SlotView]:
    """What the board came to. Members are listed largest first, so that a slot is as large as the member that opens it,
    if possible; members that are unknown, which stay where they are, are left out."""
    views = {vm.id: vm for vm in given.vms}

    def rank(vm: str) -> tuple[int, int, str]:
        size = given.size_of(views[vm])
        return (-size.memory_bytes, -size.cpu_milli, vm)

    def members_in(slot: int) -> list[str]:
        vms = (board.vms[one] for one in board.members_of(slot)[0].tolist())
        return sorted((vm for vm in vms if vm in views), key=rank)

    return [
        msgspec.structs.replace(
            slot,
            host=board.hosts[board.slot_host[number]],
            cpu_milli=int(board.slot_size[number, 0]),
            memory_bytes=int(board.slot_size[number, 1]),
            members={vm: views[vm].host for vm in members_in(number)},
        )
        for number, slot in enumerate(found)
    ]
