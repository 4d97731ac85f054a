"""Hosts that hold more than they have: which commitment slot leaves, and how it is kept from coming straight back.

A host that reports more VMs than fit beside its slots has too much; VMs are never touched, so a slot has to go, one at
a time (docs/design/commitment-rules.md#oversubscription). What was left is remembered for a while, because a slot that
goes to and fro between two full hosts serves nobody.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from outlive.commitments.slots import slot_allocations
from outlive.placement import unused_amounts
from outlive.resources import COMMITTED, CPU, MEMORY, Reservation

AVOIDED_S: Final = 3600.0
"""How long a slot does not go back to a host that it left …"""
AVOIDED_DOUBLINGS: Final = 5
"""… twice as long after each further time, so often at most."""
REMEMBERED: Final = 10_000
"""Slots whose left hosts are remembered; beyond it those that left longest ago are forgotten."""


class HostWatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is remembered of one host, in seconds of one clock."""

    checked: float | None = None
    since: float | None = None
    """When it began to hold too much, or when a slot left it last."""


class CheckOutcome(enum.StrEnum):
    """What a check found."""

    TOO_SOON = "too-soon"
    UNKNOWN = "unknown"
    """The host is not ready, or its figures are not known."""
    FITS = "fits"
    WAITING = "waiting"
    """It holds too much, for less than the time that it has."""
    STUCK = "stuck"
    """It holds too much, and there is no slot that may leave or would help."""
    EVICTED = "evicted"


class HostCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One host."""

    host: str
    watch: HostWatch = HostWatch()
    known: bool = True
    """Whether the host is ready and its figures are known."""
    excess: dict[str, int] = {}
    """Resource → how much more than it has the host holds, as the one fleet says; empty: nothing."""
    slots: tuple[Reservation, ...] = ()
    """Reservations on the host; only slots of commitments that are wanted there count."""
    evicts: bool = True
    now: float
    grace_s: float
    min_interval_s: float


class HostVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What follows."""

    outcome: CheckOutcome
    watch: HostWatch
    slot: str = ""
    """The slot that leaves."""
    again_s: float = 0.0
    """When to check again; 0: when something changes."""


def check_host(given: HostCheck) -> HostVerdict:
    """Whether a slot leaves the host now. At most one does in each ``grace_s``."""
    now, watch = given.now, given.watch
    if watch.checked is not None and 0 <= now - watch.checked < given.min_interval_s:
        left = given.min_interval_s - (now - watch.checked)
        return HostVerdict(outcome=CheckOutcome.TOO_SOON, watch=watch, again_s=left)
    watch = HostWatch(checked=now, since=watch.since)
    if not given.known:
        return HostVerdict(outcome=CheckOutcome.UNKNOWN, watch=watch)
    excess = {name: amount for name, amount in given.excess.items() if amount > 0}
    if not excess:
        return HostVerdict(outcome=CheckOutcome.FITS, watch=HostWatch(checked=now))
    since = now if watch.since is None else min(watch.since, now)
    if now - since < given.grace_s:
        watch = HostWatch(checked=now, since=since)
        return HostVerdict(outcome=CheckOutcome.WAITING, watch=watch, again_s=given.grace_s - (now - since))
    again = HostWatch(checked=now, since=now)
    slot = slot_to_evict(given.host, given.slots, excess) if given.evicts else None
    if slot is None:
        return HostVerdict(outcome=CheckOutcome.STUCK, watch=again, again_s=given.grace_s)
    return HostVerdict(outcome=CheckOutcome.EVICTED, watch=again, slot=slot.name, again_s=given.grace_s)


def slot_to_evict(host: str, slots: Iterable[Reservation], excess: Mapping[str, int]) -> Reservation | None:
    """The slot that leaves a host with this excess; ``None`` where none would help.

    Only slots that are wanted on this host and hold something of what there is too much of. Those without VMs go first,
    the smallest of them; of the others that of which most is unused, in tenths of its size, then the largest.
    """
    helping = [
        slot
        for slot in slots
        if slot.spec.type == COMMITTED
        and slot.spec.target_host == host
        and any(held > 0 for name, held in unused_amounts(slot).items() if name in excess)
    ]
    empty = [slot for slot in helping if not slot_allocations(slot)]
    if empty:
        return min(empty, key=lambda one: (one.spec.resources.memory_bytes, one.spec.resources.cpu_milli, one.name))
    return min(
        helping,
        key=lambda one: (
            -_idle_tenths(one, MEMORY),
            -_idle_tenths(one, CPU),
            -one.spec.resources.memory_bytes,
            one.name,
        ),
        default=None,
    )


def _idle_tenths(slot: Reservation, resource: str) -> int:
    """How many tenths of the slot nobody uses."""
    size = slot.spec.resources.get(resource, 0)
    return unused_amounts(slot).get(resource, 0) * 10 // size if size > 0 else 0


def evict_slot(slot: Reservation) -> Reservation:
    """The slot that is wanted nowhere and expects no VM: placement finds another host for it."""
    details = slot.spec.committed_resource_reservation
    if details is not None:
        details = msgspec.structs.replace(details, allocations={})
    spec = msgspec.structs.replace(slot.spec, target_host="", committed_resource_reservation=details)
    return msgspec.structs.replace(slot, spec=spec)


# Which hosts a slot left.


class LeftHost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A host that a slot left: when, and how often."""

    at: float
    times: int = 1

    def avoided_until(self) -> float:
        """Until when the slot does not go back."""
        return self.at + AVOIDED_S * float(1 << min(self.times - 1, AVOIDED_DOUBLINGS))


class LeftHosts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Slot → host → how it was left. Each change is a new one."""

    slots: dict[str, dict[str, LeftHost]] = {}

    def avoided_hosts(self, slot: str, now: float) -> tuple[str, ...]:
        """The hosts to which the slot does not go now, by name."""
        return tuple(sorted(host for host, left in self.slots.get(slot, {}).items() if now < left.avoided_until()))

    def add_left(self, slot: str, host: str, now: float) -> LeftHosts:
        """The slot leaves the host now. What lasts no longer than it was avoided is forgotten once a day later."""
        kept = {
            name: hosts
            for name, all_hosts in self.slots.items()
            if (hosts := {one: left for one, left in all_hosts.items() if now < left.avoided_until() + _FORGOTTEN_S})
        }
        before = kept.get(slot, {}).get(host)
        left = LeftHost(at=now, times=before.times + 1 if before is not None else 1)
        kept[slot] = {**kept.get(slot, {}), host: left}
        if len(kept) > REMEMBERED:
            oldest = min(
                (name for name in kept if name != slot), key=lambda name: max(x.at for x in kept[name].values())
            )
            del kept[oldest]
        return LeftHosts(slots=kept)

    def remove_slot(self, slot: str) -> LeftHosts:
        """The slot is gone."""
        return LeftHosts(slots={name: hosts for name, hosts in self.slots.items() if name != slot})


_FORGOTTEN_S: Final = 86_400.0
"""So long after a slot may go back it counts as having left for the first time."""
