"""VMs that placement placed: which commitment slot each of them takes, and how well slots serve their customers.

Asked after each placement of a VM whose flavor is in a group (docs/design/commitment-rules.md#bookkeeping).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime

import msgspec

from outlive.commitments.slots import slot_allocations
from outlive.resources import Amounts, Reservation, SpecAllocation


class SlotOutcome(enum.StrEnum):
    """What a placement had to do with commitments; the words of the metrics."""

    NO_COMMITMENT = "no_cr"
    """The project has no active commitment of this group, or has used all of it up."""
    USED = "slot_used"
    MISSED = "slot_missed"
    """No candidate host has a slot with room."""
    EXHAUSTED = "cr_exhausted"
    """Nothing was found, and the commitments are used up."""
    BLOCKED = "slot_blocked"
    """Nothing was found, though a slot has room and its host enough beside all that is held there."""
    SLOT_EXHAUSTED = "slot_exhausted"
    """Nothing was found, and no slot would have helped."""


class PlacedVm(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The VM that was to be placed, by its flavor."""

    id: str
    memory_bytes: int
    cpu_milli: int


class BookkeepingInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One placement of a VM. Slots are the ready ones of its project and group, on any host."""

    vm: PlacedVm
    commitments: int
    """Active commitments of memory of the project and group."""
    committed_bytes: int = 0
    """What these promise together, as accepted."""
    used_bytes: int = 0
    hosts: tuple[str, ...] = ()
    """Found: the hosts that were answered, the first of them being chosen. Not found: those that were candidates."""
    found: bool
    slots: tuple[Reservation, ...] = ()
    free_bytes: dict[str, int] = {}
    """Host → memory that is free beside all that runs there and all that reservations hold, as the one fleet says.
    Only needed where nothing was found."""


class BookkeepingResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The outcome, and the slot that the VM takes; empty: none."""

    outcome: SlotOutcome
    slot: str = ""


def record(given: BookkeepingInput) -> BookkeepingResult:
    """Say which slot the VM takes, and how the placement counts."""
    exhausted = given.used_bytes >= given.committed_bytes
    if not given.commitments:
        return BookkeepingResult(outcome=SlotOutcome.NO_COMMITMENT)
    if not given.found:
        if exhausted:
            return BookkeepingResult(outcome=SlotOutcome.EXHAUSTED)
        # what is free leaves out VMs that run, also those of slots: they are not subtracted a second time
        blocked = any(
            unused_memory(slot) > 0
            and (host := slot.spec.target_host) in given.hosts
            and host in given.free_bytes
            and given.free_bytes[host] + unused_memory(slot) >= given.vm.memory_bytes
            for slot in given.slots
        )
        return BookkeepingResult(outcome=SlotOutcome.BLOCKED if blocked else SlotOutcome.SLOT_EXHAUSTED)
    if exhausted:
        return BookkeepingResult(outcome=SlotOutcome.NO_COMMITMENT)
    if not any(slot.spec.target_host in given.hosts and unused_memory(slot) > 0 for slot in given.slots):
        return BookkeepingResult(outcome=SlotOutcome.MISSED)
    chosen = given.hosts[0]
    here = [slot for slot in given.slots if slot.spec.target_host == chosen]
    if any(given.vm.id in slot_allocations(slot) for slot in here):
        return BookkeepingResult(outcome=SlotOutcome.USED)
    return BookkeepingResult(outcome=SlotOutcome.USED, slot=pick_slot(given.vm.memory_bytes, here))


def pick_slot(memory_bytes: int, slots: Iterable[Reservation]) -> str:
    """The slot that covers most of a VM of this size; of equal ones that with least left, then by name.

    A VM may be larger than what is left of its slot. Empty where no slot has anything left.
    """
    open_slots = [(slot, left) for slot in slots if (left := unused_memory(slot)) > 0]
    if not open_slots:
        return ""
    return min(open_slots, key=lambda one: (-min(one[1], memory_bytes), one[1], one[0].name))[0].name


def unused_memory(slot: Reservation) -> int:
    """Bytes of a slot that no VM is meant for."""
    meant = sum(allocation.resources.memory_bytes for allocation in slot_allocations(slot).values())
    return max(0, slot.spec.resources.memory_bytes - meant)


def add_vm(slot: Reservation, vm: PlacedVm, now: datetime) -> Reservation:
    """The slot that expects the VM from now on."""
    details = slot.spec.committed_resource_reservation
    if details is None:
        return slot
    size = Amounts(cpu=vm.cpu_milli, memory=vm.memory_bytes)
    allocations = {**details.allocations, vm.id: SpecAllocation(creation_timestamp=now, resources=size)}
    spec = msgspec.structs.replace(
        slot.spec, committed_resource_reservation=msgspec.structs.replace(details, allocations=allocations)
    )
    return msgspec.structs.replace(slot, spec=spec)
