"""Empty slots into others, so many memberships at a time, so that less capacity is held for the same promise.

A search looks for slots whose members others can take, if need be after these made room
(docs/reference/failover.md#repacking). What it finds is then put in an order in which every VM first joins its new slot
and only then leaves the old one: every state in between is valid, nobody's coverage drops, and what is held never
grows. What cannot be ordered so is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from outlive.base.random import Random
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView, VmView
from outlive.failover.planner.actions import Offer
from outlive.failover.planner.packing.anneal import COOL, Annealer, Budget
from outlive.failover.planner.packing.board import COST_LIMIT, Board, Ints
from outlive.failover.planner.packing.problem import Ground, problem_of
from outlive.failover.planner.packing.search import STEPS_A_SECOND
from outlive.failover.rules import serves
from outlive.failover.separation import groups_of
from outlive.failover.topology import Topology

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


IDLE_ROUNDS: Final = 4
"""Passes over all slots, one after the other, in which nothing was found, until it is enough."""
PARKED: Final = 6
"""Moves to a third slot, for one slot to be emptied, that let others pass."""
VMS_CONCERNED: Final = 2_000
"""VMs that one cycle may move: members of the smallest slots."""


class RepackInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A state in which nobody misses a slot."""

    slots: tuple[SlotView, ...]
    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs."""
    classes: dict[str, str] = {}
    """VM → key of its offers; VMs without one stay where they are."""
    reuse: dict[str, Offer] = {}
    """Class → hosts whose slots such VMs may join."""
    limit: int = 0
    """Memberships that may change."""
    effort_s: float = msgspec.field(default=0.5, name="effort")
    """Nominal seconds of search."""
    seed: int = 0
    """Which of the equally likely searches it is: the number of the cycle."""
    topology: Topology = Topology()


class Move(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM leaves a slot; before that it joins another, unless it has slots to spare."""

    vm: str
    vm_host: str
    leaves: str
    joins: str = ""


class RepackResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to move, in order."""

    actions: tuple[Move, ...] = ()


def concerned(slots: Iterable[SlotView]) -> list[str]:
    """The VMs that may move: members of the slots with the fewest, as many as one cycle looks at, by id."""
    found: set[str] = set()
    ready = [slot for slot in slots if slot.ready is not False and slot.members]
    for slot in sorted(ready, key=lambda slot: (len(slot.members), -slot.memory_bytes, slot.name)):
        if len(found) + len(slot.members) > VMS_CONCERNED:
            break
        found.update(slot.members)
    return sorted(found)


def after_moves(slots: Sequence[SlotView], moves: Iterable[Move]) -> tuple[SlotView, ...]:
    """What the moves make of the slots; those that they empty are gone."""
    members = {slot.name: dict(slot.members) for slot in slots}
    emptied: set[str] = set()
    for move in moves:
        if move.joins:
            members[move.joins][move.vm] = move.vm_host
        del members[move.leaves][move.vm]
        if not members[move.leaves]:
            emptied.add(move.leaves)
    return tuple(
        msgspec.structs.replace(slot, members=members[slot.name]) for slot in slots if slot.name not in emptied
    )


def repack(given: RepackInput, *, keep_going: Callable[[], bool] = lambda: True) -> RepackResult:
    """Empty as many slots as the limit and the effort allow."""
    slots = sorted(given.slots, key=lambda slot: slot.name)
    views = {vm.id: vm for vm in given.vms}
    work = _Order(given, slots, views)
    if given.limit <= 0 or work.at_fault:
        return RepackResult()
    random, budget = Random(given.seed), Budget(given.effort_s * STEPS_A_SECOND, keep_going)
    spare = work.spare()
    rearranging = Rearranging(slots, _ground(given, slots, views), spare, random, budget)
    if not rearranging.usable:
        return RepackResult()
    idle = 0
    while idle < IDLE_ROUNDS and budget.goes_on():
        idle += 1
        for slot, changes in rearranging.attempts():
            if work.follow(slot, changes):
                rearranging.keep()
                idle = 0
    return RepackResult(actions=tuple(work.moves))


def _ground(given: RepackInput, slots: Sequence[SlotView], views: dict[str, VmView]) -> Ground:
    groups = groups_of(given.vms, given.required) if given.topology.server_groups else ()
    return Ground(
        vms=views,
        sizes={},
        classes={vm: given.classes.get(vm, _NOWHERE) for slot in slots for vm in slot.members},
        reuse=given.reuse,
        new={},
        free={},
        hosts=tuple(sorted({slot.host for slot in slots})),
        topology=given.topology,
        held_fast=frozenset(member for group in groups for member in group.members),
    )


_NOWHERE: Final = "\0"
"""The class of VMs that stay where they are: there is no offer for it."""


class _Order:
    """The live state, and the moves that were made in it."""

    def __init__(self, given: RepackInput, slots: Sequence[SlotView], views: dict[str, VmView]) -> None:
        self.moves: list[Move] = []
        self._given = given
        self._vms = views
        self._slots = {slot.name: slot for slot in slots}
        self._counters = ConflictIndex.build(slots, given.vms, given.required, given.topology)
        self._offered = {key: frozenset(() if one.error else one.hosts) for key, one in given.reuse.items()}
        groups = groups_of(given.vms, given.required) if given.topology.server_groups else ()
        self._counters.separation.take(groups)
        self._emptied: set[str] = set()
        self._changes = 0

    @property
    def at_fault(self) -> bool:
        """Whether some rule is broken: then repacking waits for the clean-up."""
        return bool(self._counters.faulty())

    def spare(self) -> dict[str, int]:
        """VM → slots that count for it beyond those that it needs."""
        counted: dict[str, int] = {}
        for slot in self._slots.values():
            for vm in slot.members:
                if vm in self._vms and self._counts(vm, slot.name):
                    counted[vm] = counted.get(vm, 0) + 1
        return {vm: max(0, count - self._given.required.get(vm, 0)) for vm, count in counted.items()}

    def follow(self, slot: str, changes: Sequence[Change]) -> bool:
        """Make these changes one after the other, in any order that works, or none of them."""
        made: list[Move] = []
        left, parked = list(changes), 0
        emptied = self._emptied | {slot}
        while left:
            ready = next((one for one in left if self._may(one.vm, one.joins, emptied)), None)
            if ready is not None:
                left.remove(ready)
                self._make(ready, made)
                continue
            parking = self._parking(left, emptied) if parked < PARKED else None
            if parking is None:
                break
            parked += 1
            change, third = parking
            self._make(Change(change.vm, change.leaves, third), made)
            left[left.index(change)] = Change(change.vm, third, change.joins)
        cost = sum(2 if move.joins else 1 for move in made)
        if left or self._changes + cost > self._given.limit:
            self._take_back(made)
            return False
        self._changes += cost
        self.moves += made
        self._emptied = emptied
        return True

    def _may(self, vm: str, slot: str, emptied: set[str]) -> bool:
        """Whether the VM may join the slot now, in addition to all that it is in."""
        if not slot:
            return True
        if slot in emptied or not self._counts(vm, slot):
            return False
        counters, host = self._counters, self._slots[slot].host
        if host not in self._offered.get(self._given.classes.get(vm, _NOWHERE), frozenset()):
            return False
        bit = counters.slot_bit(counters.slot(slot))
        return bool(self._counters.separation.among(vm, counters.admissible(counters.vm(vm)) & bit))

    def _parking(self, left: Sequence[Change], emptied: set[str]) -> tuple[Change, str] | None:
        """Somebody who waits, and a third slot that it may join meanwhile."""
        for change in left:
            for third in self._counters.eligible_slots(change.vm):
                if third != change.joins and self._may(change.vm, third, emptied):
                    return change, third
        return None

    def _make(self, change: Change, made: list[Move]) -> None:
        if change.joins:
            self._counters.join(change.vm, change.joins)
        self._counters.leave(change.vm, change.leaves)
        host = self._vms[change.vm].host
        made.append(Move(vm=change.vm, vm_host=host, leaves=change.leaves, joins=change.joins))

    def _take_back(self, made: Sequence[Move]) -> None:
        for move in reversed(made):
            self._counters.join(move.vm, move.leaves)
            if move.joins:
                self._counters.leave(move.vm, move.joins)

    def _counts(self, vm: str, slot: str) -> bool:
        return serves(self._vms[vm], self._slots[slot])
