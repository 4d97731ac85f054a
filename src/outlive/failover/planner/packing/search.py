"""Less and less reserved: take slots away, settle everybody again, and go on from there.

Each stage begins with a plan that holds, evicts the members of some slots, puts them where they clash least and anneals
until nothing clashes. What succeeds is the next plan; what fails is undone, and stages get longer and take less as they
fail (docs/reference/failover-planning.md#packing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from outlive.base.random import Random
from outlive.failover.model import SlotView
from outlive.failover.planner.packing.anneal import Annealer, Budget
from outlive.failover.planner.packing.board import COST_LIMIT, Board, Ints, Saved
from outlive.failover.planner.packing.outcome import NewSlot, Outcome, outcome
from outlive.failover.planner.packing.problem import Ground, Problem, problem_of

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


class Search:
    """Improves one board; ``best`` is the least reserved that was found."""

    def __init__(self, board: Board, random: Random, budget: Budget) -> None:
        self._board = board
        self._random = random.fork("stages")
        self._budget = budget
        self._annealer = Annealer(board, random.fork("annealing"), budget)
        self.best: Saved = board.save()
        self.reserved = self._reserved()
        self.stages = 0

    def run(self) -> Saved:
        """Until the budget is spent or nothing is left to try."""
        budget = self._budget
        steps, share = max(1.0, budget.left * FIRST_SHARE), FIRST_TAKEN
        while self.stages < STAGES and budget.goes_on():
            self.stages += 1
            if not self._take_many(share):
                break
            clean = self._annealer.run(min(steps, budget.left))
            if clean and self._reserved() < self.reserved and self._has_openers():
                gained = 1 - self._reserved()[0] / max(1, self.reserved[0])
                self.best, self.reserved = self._board.save(), self._reserved()
                share = max(gained, 0.01)
            else:
                self._board.restore(self.best)
                share /= 2
            steps *= LONGER
        self._board.restore(self.best)
        return self.best

    def _reserved(self) -> tuple[int, int, int]:
        """Bytes, slots, milli-cores."""
        board = self._board
        cpu, memory = board.slot_size.sum(axis=0).tolist()
        return memory, int((~board.closed).sum()), cpu

    def _take_many(self, share: float) -> bool:
        """Take slots away that hold this share of the memory, one at least; whether any could be."""
        board, taken, tried = self._board, False, 0
        wanted = share * self._reserved()[0]
        for slot in self._by_worth():
            if wanted <= 0 or tried >= TRIED:
                break
            if not self._is_possible(slot):
                continue
            tried += 1
            before, held = board.save(), max(1, int(board.slot_size[slot, 1]))
            if self._take(slot):
                taken = True
                wanted -= held
            else:
                board.restore(before)
        return taken

    def _by_worth(self) -> list[int]:
        """Slots to take away: first what saves most for what it upsets, with some luck."""
        board, given = self._board, self._board.problem
        worth: dict[int, float] = {}
        for slot in np.nonzero(given.own & ~board.closed)[0].tolist():
            vms, places = board.members(slot)
            if given.movable[vms, places].all():
                luck = 0.7 + 0.6 * self._random.random()
                worth[slot] = luck * max(1, int(board.slot_size[slot, 1])) / (len(vms) + 1)
        return sorted(worth, key=lambda one: -worth[one])

    def _is_possible(self, slot: int) -> bool:
        """Whether each of those who have to leave may join some other slot that does not touch its point yet."""
        board, given = self._board, self._board.problem
        vms = board.members(slot)[0]
        blocked = (board.barred[given.vm_kind[vms]] > 0) | (board.touches[given.vm_point[vms]] > 0)
        return bool((~blocked).any(axis=1).all())

    def _take(self, slot: int) -> bool:
        """Evict everybody and take the slot away; whether all found another one."""
        board = self._board
        board.bar(slot)
        for vm, place in sorted(zip(*(each.tolist() for each in board.members(slot)), strict=True)):
            point = int(board.problem.vm_point[vm])
            costs = board.judge_moves(point, np.array([vm]))[place]
            to = int(costs.argmin())
            if costs[to] >= COST_LIMIT:
                return False
            board.move(vm, place, to, int(costs[to]))
        board.close(slot)
        return True

    def _has_openers(self) -> bool:
        """Whether every slot that is left has a member for which placement would open it where it is."""
        board, given = self._board, self._board.problem
        if given.kind_new.all():
            return True
        for slot in np.nonzero(given.own & ~board.closed)[0].tolist():
            kinds = np.unique(given.vm_kind[board.members(slot)[0]])
            if len(kinds) and not given.kind_new[kinds, board.slot_host[slot]].any():
                return False
        return True


STEPS_A_SECOND: Final = 8_000
"""What a second of effort is worth. Nominal, so that a plan does not depend on how fast the machine is."""
SLOTS_SEARCHED: Final = 4_000
"""Plans of more slots are not searched: the tables grow with the square of it."""
TABLE_CELLS: Final = 60_000_000
"""… nor those with more points times slots."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What a search came to."""

    outcome: Outcome | None
    """``None`` where it found nothing."""
    cut_short: bool = False


def pack(
    before: Sequence[SlotView],
    found: Sequence[SlotView],
    ground: Ground,
    *,
    effort_s: float,
    seed: int,
    keep_going: Callable[[], bool],
) -> Packed:
    """Improve the plan that leads from ``before`` to ``found``, with so many nominal seconds of search.

    ``keep_going`` may end the search earlier; that is told, because then the answer depends on when it was asked.
    """
    if len(found) > SLOTS_SEARCHED or len(found) * len(ground.hosts) > TABLE_CELLS:
        return Packed(outcome=None)
    problem = problem_of(before, found, ground)
    if not problem.own.any():
        return Packed(outcome=None)
    board = Board(problem)
    if board.clashes:
        return Packed(outcome=None)
    budget = Budget(effort_s * STEPS_A_SECOND, keep_going)
    search = Search(board, Random(seed), budget)
    saved = search.run()
    were = {slot.name for slot in before}
    members = {slot.name: _members(problem, saved, number) for number, slot in enumerate(found)}
    new = [
        NewSlot(
            host=problem.hosts[saved.slot_host[number]],
            cpu_milli=int(saved.slot_size[number, 0]),
            memory_bytes=int(saved.slot_size[number, 1]),
            vms=members[slot.name],
        )
        for number, slot in enumerate(found)
        if slot.name not in were and members[slot.name]
    ]
    return Packed(outcome=outcome(before, members, new, ground), cut_short=budget.cut_short)


def _members(problem: Problem, saved: Saved, slot: int) -> list[str]:
    """Largest first, so that the slot is as large as the member that opens it, if possible."""
    vms: Ints = np.nonzero((saved.slots_of == slot).any(axis=1))[0]
    size, names = problem.vm_size, problem.vm_names
    return [names[vm] for vm in sorted(vms.tolist(), key=lambda vm: (-int(size[vm, 1]), -int(size[vm, 0]), names[vm]))]
