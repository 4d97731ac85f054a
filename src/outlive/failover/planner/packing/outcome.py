"""What packing found as a plan again: slots, and actions in an order in which every beginning is a valid plan.

Memberships of a valid plan may be added in any order, because taking some away never breaks a rule. Of each new slot
the member that placement lets open it there comes first. Packing is not trusted: each action is asked of a fleet in
which the ones before it were done, and one that the rules, separation, room or placement refuse ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlive.failover.fleet import Fleet, FreeAmounts
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Join, Offer, new_slot, opening
from outlive.failover.planner.packing.problem import Ground
from outlive.failover.rules import serves
from outlive.failover.sizing import resolve_size


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The slots after it, those that were there before first, and how to get there."""

    slots: tuple[SlotView, ...]
    actions: tuple[Action, ...]


class NewSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that is to be opened, and who is to be in it, largest first."""

    host: str
    cpu_milli: int
    memory_bytes: int
    vms: Sequence[str]


def outcome(
    before: Sequence[SlotView], more: Mapping[str, Iterable[str]], new: Iterable[NewSlot], ground: Ground
) -> Outcome | None:
    """The plan that gives present slots ``more`` members and opens ``new`` ones; ``None`` where it is none."""
    work = _Carrying(before, ground)
    for slot in before:
        if not all(work.join(vm, slot) for vm in more.get(slot.name, ()) if vm not in slot.members):
            return None
    serial = 0
    for one in new:
        serial += 1
        while f"new-{serial}" in work.members:
            serial += 1
        if not work.open(f"new-{serial}", one):
            return None
    if work.fleet.faulty():
        return None
    return Outcome(slots=work.slots(), actions=tuple(work.actions))


class _Carrying:
    """The fleet as the actions so far leave it."""

    def __init__(self, before: Sequence[SlotView], ground: Ground) -> None:
        self.actions: list[Action] = []
        self.members = {slot.name: dict(slot.members) for slot in before}
        self._slots = {slot.name: slot for slot in before}
        self._ground = ground
        self._reuse, self._new = _offered(ground.reuse), _offered(ground.new)
        self.fleet = Fleet.build(before, ground.vms.values(), topology=ground.topology)
        self.fleet.separation.take(ground.groups)
        self.fleet.set_free(FreeAmounts.of(ground.free))

    def slots(self) -> tuple[SlotView, ...]:
        """All slots with their members."""
        return tuple(msgspec.structs.replace(slot, members=self.members[name]) for name, slot in self._slots.items())

    def join(self, vm: str, slot: SlotView) -> bool:
        """Put the VM into the slot, where it may be."""
        view, fleet = self._ground.vms[vm], self.fleet
        number, place = fleet.vm(vm), fleet.slot(slot.name)
        if not self._is_offered(self._reuse, vm, slot.host) or not serves(view, slot):
            return False
        if not fleet.separation.among(vm, fleet.admissible(number) & fleet.slot_bit(place)):
            return False
        fleet.join_slot(number, place, proven=True)
        self.members[slot.name][vm] = view.host
        self.actions.append(Join(slot=slot.name, vm=vm, vm_host=view.host, host=slot.host))
        return True

    def open(self, key: str, new: NewSlot) -> bool:
        """Open the slot for the first of its members that placement lets open it there, and put the others into it."""
        opener = next((vm for vm in new.vms if self._is_offered(self._new, vm, new.host)), None)
        if opener is None or not self.fleet.fits(new.host, {"cpu": new.cpu_milli, "memory": new.memory_bytes}):
            return False
        view, fleet = self._ground.vms[opener], self.fleet
        size = self._ground.sizes.get(opener) or resolve_size(view)
        size = msgspec.structs.replace(size, cpu_milli=new.cpu_milli, memory_bytes=new.memory_bytes)
        slot = new_slot(key, new.host, view, size)
        allowed = fleet.may_open(opener, new.host) and fleet.separation.allows(opener, new.host)
        if not allowed or not serves(view, slot):
            return False
        fleet.open(slot)
        fleet.join(opener, key)
        self._slots[key], self.members[key] = slot, {opener: view.host}
        self.actions.append(opening(slot, opener, view.host))
        return all(self.join(vm, slot) for vm in new.vms if vm != opener)

    def _is_offered(self, offers: Mapping[str, frozenset[str]], vm: str, host: str) -> bool:
        return host in offers.get(self._ground.classes.get(vm, ""), ())


def _offered(offers: Mapping[str, Offer]) -> dict[str, frozenset[str]]:
    return {key: frozenset(() if offer.error else offer.hosts) for key, offer in offers.items()}
