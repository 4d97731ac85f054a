"""Empty slots into others, so many memberships at a time, so that less capacity is held for the same promise.

One slot after the other is tried to be emptied: each member joins another slot, if need be after somebody made room
there, and only then leaves (docs/design/failover.md#repacking). Every state in between is valid, nobody's
coverage drops, and what is held never grows. What cannot be done so is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from outlive.base import Random
from outlive.failover.fleet import FleetIndex
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import PlacementOffer, offered_hosts
from outlive.failover.topology import Topology
from outlive.placement import VmView

LUCK: Final = 0.5
"""How much luck there is in the choice of the next slot, from 0 to 1."""
MEMBERS_A_SECOND: Final = 4_000
"""Members that are tried in a second of effort: nominal, so that an answer does not depend on the machine."""
DISPLACED: Final = 40
"""Memberships of others that are tried to be moved out of the way of one VM."""
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
    reuse: dict[str, PlacementOffer] = {}
    """Class → hosts whose slots such VMs may join."""
    limit: int = 0
    """Memberships that may change."""
    effort_s: float = msgspec.field(default=0.5, name="effort")
    """Nominal seconds of search."""
    seed: int = 0
    """Which of the equally likely searches it is: the number of the cycle."""
    topology: Topology = Topology()


class RepackMove(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM leaves a slot; before that it joins another, unless it has slots to spare."""

    vm: str
    vm_host: str
    leaves: str
    joins: str = ""


class RepackResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to move, in order."""

    actions: tuple[RepackMove, ...] = ()


def movable_vms(slots: Iterable[SlotView]) -> list[str]:
    """The VMs that may move: members of the slots with the fewest, as many as one cycle looks at, by id."""
    found: set[str] = set()
    ready = [slot for slot in slots if slot.ready is not False and slot.members]
    for slot in sorted(ready, key=lambda slot: (len(slot.members), -slot.memory_bytes, slot.name)):
        if len(found) + len(slot.members) > VMS_CONCERNED:
            break
        found.update(slot.members)
    return sorted(found)


def apply_moves(slots: Sequence[SlotView], moves: Iterable[RepackMove]) -> tuple[SlotView, ...]:
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
    """Empty as many slots as the limit and the effort allow; nothing is moved while a rule is broken."""
    work, random = _Repacking(given), Random(given.seed)
    found = given.limit > 0 and not work.fleet.list_faulty()
    while found:
        found = False
        for slot in work.order_candidates(random):
            if work.tries <= 0 or not keep_going():
                return RepackResult(actions=tuple(work.moves))
            found |= work.empty(slot)
    return RepackResult(actions=tuple(work.moves))


class _Repacking:
    """The fleet as the moves so far leave it."""

    def __init__(self, given: RepackInput) -> None:
        self.moves: list[RepackMove] = []
        self.tries = int(given.effort_s * MEMBERS_A_SECOND)
        self._limit = given.limit
        self._vms = {vm.id: vm for vm in given.vms if vm.id in given.classes}
        self._slots = {slot.name: slot for slot in sorted(given.slots, key=lambda slot: slot.name)}
        self.fleet = fleet = FleetIndex.build(self._slots.values(), given.vms, given.required, given.topology)
        on = {
            key: fleet.slots_on(set(fleet.host_numbers(tuple(hosts))))
            for key, hosts in offered_hosts(given.reuse).items()
        }
        self._offered = {vm: on.get(given.classes[vm], 0) for vm in self._vms}
        """VM → the slots on hosts where placement offers it a place, as a bit set."""
        self._emptied = 0
        """Slots that nobody joins any more, as a bit set."""
        self._beside: dict[int, list[str]] = {}
        """Unit of failure → the VMs that run there and may move."""
        for vm, view in self._vms.items():
            self._beside.setdefault(fleet.unit_of(fleet.host_number(view.host)), []).append(vm)

    @property
    def _changes(self) -> int:
        return sum(2 if move.joins else 1 for move in self.moves)

    def order_candidates(self, random: Random) -> list[str]:
        """The slots that may be emptied: least upset for what is saved first, with some luck."""
        worth: dict[str, float] = {}
        for name, slot in self._slots.items():
            members = self.fleet.members_of(name)
            if slot.ready is not False and members and all(vm in self._vms for vm in members):
                luck = 1 - LUCK + 2 * LUCK * random.random()
                worth[name] = luck * max(1, slot.memory_bytes) / len(members) ** 2
        return sorted(worth, key=lambda name: -worth[name])

    def empty(self, slot: str) -> bool:
        """Move everybody out of the slot, each as soon as it may; or change nothing."""
        fleet, before = self.fleet, self._emptied
        self._emptied |= fleet.slot_bit(fleet.slot_number(slot))
        mark = fleet.set_savepoint()
        waiting = fleet.members_of(slot)
        while waiting:
            stuck = [vm for vm in waiting if not (self._leave(vm, slot) or self._displace(vm, slot))]
            if len(stuck) == len(waiting) or self._changes > self._limit:
                break
            waiting = stuck
        if not waiting and self._changes <= self._limit:
            fleet.release(mark)
            return True
        fleet.roll_back(mark)
        self._emptied = before
        return False

    def _leave(self, vm: str, slot: str) -> bool:
        """Leave the slot, after another was joined unless the VM has one to spare; whether that was possible."""
        fleet = self.fleet
        self.tries -= 1
        joins = ""
        mark = fleet.set_savepoint()
        fleet.leave(vm, slot)
        enough = not fleet.count_missing(vm)
        fleet.roll_back(mark)
        if not enough:
            usable = self._servable_slots(vm) & fleet.admissible_slots(fleet.vm_number(vm))
            number = fleet.find_fullest(fleet.separation.allowed_slots(vm, usable) if usable else 0)
            if number is None:
                return False
            joins = fleet.slot_names[number]
            fleet.join(vm, joins)
        fleet.leave(vm, slot)
        self.moves.append(RepackMove(vm=vm, vm_host=self._vms[vm].host, leaves=slot, joins=joins))
        fleet.add_undo(self.moves.pop)
        return True

    def _servable_slots(self, vm: str) -> int:
        """The slots that would count for the VM, on hosts where placement offers it a place."""
        fleet, view = self.fleet, self._vms[vm]
        usable = self._offered[vm] & fleet.open_slots & fleet.fitting_slots((view.cpu_milli, view.memory_bytes))
        limit = fleet.host_limit(fleet.vm_number(vm))
        if limit:
            usable &= fleet.placed_on(limit)
        return usable & ~self._emptied

    def _displace(self, vm: str, slot: str) -> bool:
        """Somebody from the same unit goes elsewhere and leaves the VM its slot."""
        fleet, tried = self.fleet, 0
        servable = self._servable_slots(vm)
        for other in self._beside[fleet.unit_of(fleet.host_number(self._vms[vm].host))]:
            for taken in fleet.slots_of(other) if other != vm else ():
                number = fleet.slot_number(taken)
                if not servable & fleet.slot_bit(number) or fleet.slot_members(number) < 2:
                    continue
                tried += 1
                if tried > DISPLACED:
                    return False
                mark = fleet.set_savepoint()
                if self._leave(other, taken) and self._leave(vm, slot):
                    fleet.release(mark)
                    return True
                fleet.roll_back(mark)
        return False
