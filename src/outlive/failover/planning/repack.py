"""Empty slots into others, so many memberships at a time, so that less capacity is held for the same promise.

A search looks for slots whose members others can take, if need be after these made room
(docs/reference/failover.md#repacking). What it finds is then put in an order in which every VM first joins its new slot
and only then leaves the old one: every state in between is valid, nobody's coverage drops, and what is held never
grows. What cannot be ordered so is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from outlive.base.random import Random
from outlive.failover.eligibility.counters import Counters
from outlive.failover.eligibility.rules import serves
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.actions import Offer
from outlive.failover.planning.packing.anneal import Budget
from outlive.failover.planning.packing.pack import STEPS_A_SECOND
from outlive.failover.planning.packing.problem import Ground
from outlive.failover.planning.packing.rearrange import Change, Rearranging
from outlive.failover.planning.separating import Separating
from outlive.failover.separation import groups_of
from outlive.failover.topology import Topology

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
        self._counters = Counters.build(slots, given.vms, given.required, given.topology)
        self._offered = {key: frozenset(() if one.error else one.hosts) for key, one in given.reuse.items()}
        groups = groups_of(given.vms, given.required) if given.topology.server_groups else ()
        self._separating = Separating(self._counters, groups)
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
        return bool(self._separating.among(vm, counters.admissible(counters.vm(vm)) & bit))

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
