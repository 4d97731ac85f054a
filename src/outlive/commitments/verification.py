"""Which VMs are in a commitment slot: those that it expects and that its host reports.

One slot at a time, from what hosts report (docs/design/commitment-rules.md#allocations). A VM that a slot had and that
no host reports is not gone yet: it may be on its way from one host to another. Its place is kept, as that of a VM that
is expected, until it turns up, or for the time that an expected VM has.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable

import msgspec

from outlive.base import as_datetime, as_instant
from outlive.commitments.slots import confirmed_allocations
from outlive.resources import COMMITTED, Amounts, CommittedSpec, CommittedStatus, Reservation, SpecAllocation


class DropReason(enum.StrEnum):
    """Why a VM is no longer in a slot."""

    NEVER_CAME = "never-came"
    """It was expected and did not come in time."""
    GONE = "gone"
    """No host reports it, and it is not moving."""
    ELSEWHERE = "elsewhere"
    """It runs on another host, to which the slot cannot follow."""


class VerificationInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One slot and what is known of its VMs. Times are seconds since 1970."""

    slot: Reservation
    reported: dict[str, tuple[str, ...]]
    """VM → all hosts that report it, running or not; VMs that no host reports may be left out."""
    roomy: tuple[str, ...] = ()
    """Hosts that could take the slot, its own place on them not counted."""
    sizes: dict[str, Amounts] = {}
    """VM → what it has, where that is known: it may have been resized since it was placed."""
    moving: tuple[str, ...] = ()
    """VMs that are being moved from host to host now."""
    missing: dict[str, float] = {}
    """VM → since when it is missing: what the last verification of this slot answered."""
    now: float
    grace_s: float


class VerificationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The slot as it is to be, and what follows from it."""

    slot: Reservation
    confirmed_first: tuple[str, ...] = ()
    """VMs that this slot has for the first time: they leave every other slot that lists them."""
    dropped: dict[str, DropReason] = {}
    missing: dict[str, float] = {}
    """For the next verification."""
    expects: bool = False
    """Whether the slot waits for a VM, so that it is looked at again soon."""


def verify_slot(given: VerificationInput) -> VerificationResult:
    """Confirm, keep, follow or drop every VM of a slot; other reservations stay as they are.

    Done twice with the same input it changes nothing the second time.
    """
    slot = given.slot
    if slot.spec.target_host and slot.status.host and slot.spec.target_host != slot.status.host:
        # as if it had not begun to follow a VM: until it is seen anew which one, it holds its size on both hosts
        slot = msgspec.structs.replace(slot, spec=msgspec.structs.replace(slot.spec, target_host=slot.status.host))
    details = slot.spec.committed_resource_reservation
    if slot.spec.type != COMMITTED or details is None or not details.allocations:
        return VerificationResult(slot=_set_vms(slot, details, {}, slot.status.host) if details else slot)
    host = _host_to_follow(given, details)
    work = _Work(given, host)
    for vm, allocation in details.allocations.items():
        work.judge(vm, allocation)
    before = confirmed_allocations(slot)
    return VerificationResult(
        slot=_set_vms(slot, _set_allocations(details, work.kept), work.confirmed, host),
        confirmed_first=tuple(sorted(work.confirmed.keys() - before.keys() - given.missing.keys())),
        dropped=dict(sorted(work.dropped.items())),
        missing=dict(sorted(work.missing.items())),
        expects=work.kept.keys() != work.confirmed.keys(),
    )


def _host_to_follow(given: VerificationInput, details: CommittedSpec) -> str:
    """Where the slot is to be: where it is, or where its only VM went, if there is room for it."""
    here = given.slot.status.host
    if len(details.allocations) != 1:
        return here
    (vm,) = details.allocations
    was_here = vm in confirmed_allocations(given.slot) or vm in given.missing
    hosts = given.reported.get(vm, ())
    if not was_here or here in hosts:
        return here
    return next((host for host in sorted(hosts) if host in given.roomy), here)


class _Work:
    """The VMs of one slot while they are judged."""

    def __init__(self, given: VerificationInput, host: str) -> None:
        self._given, self._host = given, host
        self._before = confirmed_allocations(given.slot)
        self.kept: dict[str, SpecAllocation] = {}
        self.confirmed: dict[str, str] = {}
        self.dropped: dict[str, DropReason] = {}
        self.missing: dict[str, float] = {}

    def judge(self, vm: str, allocation: SpecAllocation) -> None:
        """One VM. A new one that is not on the slot's host is left alone until its time is over."""
        given = self._given
        hosts = given.reported.get(vm, ())
        was_here = vm in self._before or vm in given.missing
        began = as_instant(allocation.creation_timestamp) if allocation.creation_timestamp is not None else 0.0
        in_time = given.now - began < given.grace_s
        if self._host and self._host in hosts:
            self.kept[vm] = msgspec.structs.replace(allocation, resources=given.sizes.get(vm, allocation.resources))
            self.confirmed[vm] = self._host
        elif not was_here:
            if in_time or vm in given.moving:
                self.kept[vm] = allocation
            else:
                self.dropped[vm] = DropReason.NEVER_CAME
        elif hosts:
            self.dropped[vm] = DropReason.ELSEWHERE
        else:  # no host reports it; its time as an expected VM begins when it is missed
            since = given.missing.get(vm, given.now)
            if given.now - since >= given.grace_s and vm not in given.moving:
                self.dropped[vm] = DropReason.GONE
            else:
                self.missing[vm] = since
                self.kept[vm] = msgspec.structs.replace(allocation, creation_timestamp=as_datetime(int(since)))


def _set_allocations(details: CommittedSpec, kept: dict[str, SpecAllocation]) -> CommittedSpec:
    return details if kept == details.allocations else msgspec.structs.replace(details, allocations=kept)


def _set_vms(slot: Reservation, details: CommittedSpec, confirmed: dict[str, str], host: str) -> Reservation:
    """The slot with these VMs on this host; the same object where nothing changes."""
    seen = slot.status.committed_resource_reservation or CommittedStatus()
    unchanged = details is slot.spec.committed_resource_reservation and confirmed == seen.allocations
    if unchanged and host == slot.status.host:
        return slot
    spec = msgspec.structs.replace(slot.spec, committed_resource_reservation=details)
    if host != slot.status.host:
        spec = msgspec.structs.replace(spec, target_host=host)
    status = msgspec.structs.replace(
        slot.status,
        host=host,
        committed_resource_reservation=msgspec.structs.replace(seen, allocations=dict(sorted(confirmed.items()))),
    )
    return msgspec.structs.replace(slot, spec=spec, status=status)


def choose_keeper(
    vm: str, slots: Iterable[Reservation], hosts: Collection[str], promised: Callable[[str], bool]
) -> Reservation:
    """Of slots that all list the VM, the one that keeps it: where it is confirmed and runs, else the first by name. One
    of a commitment that is over, or gone, comes last.

    ``hosts``: those that report the VM. ``promised``: whether the commitment of that uuid is neither.
    """

    def rank_slot(slot: Reservation) -> tuple[bool, bool, str]:
        details = slot.spec.committed_resource_reservation
        runs = vm in confirmed_allocations(slot) and slot.status.host in hosts
        return details is None or not promised(details.commitment_uuid), not runs, slot.name

    return min(slots, key=rank_slot)


def without_vms(slot: Reservation, vms: frozenset[str]) -> Reservation:
    """The slot without these VMs, which another slot has now; the same object where it lists none of them."""
    details = slot.spec.committed_resource_reservation
    seen = confirmed_allocations(slot)
    if details is None or vms.isdisjoint({*details.allocations, *seen}):
        return slot
    kept = {vm: allocation for vm, allocation in details.allocations.items() if vm not in vms}
    confirmed = {vm: host for vm, host in seen.items() if vm not in vms}
    return _set_vms(slot, _set_allocations(details, kept), confirmed, slot.status.host)
