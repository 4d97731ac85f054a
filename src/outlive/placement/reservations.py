"""What a reservation blocks on a host, as plain rules over one reservation (docs/reference/placement.md#capacity).

The ledger keeps the same facts as columns; this module is what it is checked against, and what explains a
refusal. Nothing here knows of more than one host at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable

import msgspec

from outlive.placement.request import Intent, PlacementRequest
from outlive.placement.settings import PlacementSettings
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT, Amounts, Reservation, condition

AMOUNT_LIMIT = 2**52
"""Larger amounts count as this: 4 PiB, or four billion cores. Keeps every sum inside 64 bits."""


class Verdict(enum.StrEnum):
    """What one reservation does to one request."""

    IGNORED = "ignored"
    """Its type is overlooked."""
    NOWHERE = "nowhere"
    """It is not ready and has no host, is a commitment without details, or its consumer has arrived: it blocks
    nothing."""
    UNLOCKED = "unlocked"
    """The request may use what it holds."""
    BLOCKS = "blocks"


class CapacityQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request and of a step's parameters decides which reservations block."""

    intent: Intent
    vm: str = ""
    project: str = ""
    group: str = ""
    ignore_allocations: bool = False
    ignored_types: frozenset[str] = frozenset()
    locked: bool = False


def capacity_query(
    request: PlacementRequest,
    settings: PlacementSettings,
    *,
    lock_reserved: bool = False,
    ignored_types: Iterable[str] = (),
    ignore_allocations: bool = False,
) -> CapacityQuery:
    """The query of a request under a step's parameters: options and parameters add up."""
    options = request.options
    return CapacityQuery(
        intent=request.intent,
        vm=request.resource_id,
        project=request.project,
        group=request.group_name(settings.flavor_group_keys),
        ignore_allocations=ignore_allocations or options.assume_empty_hosts,
        ignored_types=frozenset((*ignored_types, *options.ignored_reservation_types)),
        locked=lock_reserved or options.lock_reservations,
    )


def is_ready(reservation: Reservation) -> bool:
    """Whether the reservation is confirmed; a failover slot without a condition counts as such."""
    found = condition(reservation.status.conditions, "Ready")
    if found is None:
        return reservation.spec.type == FAILOVER
    return found.status == "True"


def blocked_hosts(reservation: Reservation) -> tuple[str, ...]:
    """The hosts on which it holds something: where it is wanted and where it is, each once."""
    hosts = (reservation.spec.target_host, reservation.status.host)
    return tuple(dict.fromkeys(host for host in hosts if host))


def has_landed(reservation: Reservation, instances: Container[str]) -> bool:
    """Whether the consumer of a slot is among the VMs that the slot's host reports.

    Its block has become allocation then, in one document, so that the VM counts exactly once at every moment.
    """
    consumer, host = reservation.status.consumer, reservation.status.host
    return consumer is not None and reservation.spec.target_host in ("", host) and consumer.vm in instances


def unused(reservation: Reservation, *, ignore_allocations: bool = False) -> Amounts:
    """What of the reservation is not yet inside a host's allocation.

    Failover and in-flight reservations hold their full size. A commitment slot that has arrived gives up
    what its confirmed VMs use, because those are inside the allocation; VMs that are meant for it but not
    yet seen need at least their own size.
    """
    spec, status = reservation.spec, reservation.status
    details = spec.committed_resource_reservation
    if (
        spec.type != COMMITTED
        or ignore_allocations
        or details is None
        or not details.allocations
        or spec.target_host != status.host
    ):
        return spec.resources
    seen = status.committed_resource_reservation.allocations if status.committed_resource_reservation else {}
    left: dict[str, int] = {}
    for name, size in spec.resources.items():
        confirmed = sum(a.resources.get(name, 0) for vm, a in details.allocations.items() if vm in seen)
        pending = sum(a.resources.get(name, 0) for vm, a in details.allocations.items() if vm not in seen)
        left[name] = max(max(0, size - confirmed), pending)
    return Amounts(left)


def verdict(
    reservation: Reservation,
    query: CapacityQuery,
    *,
    instances: Container[str] = (),
) -> Verdict:
    """What the reservation does to a request on a host that reports these VMs; the first rule that applies decides."""
    kind = reservation.spec.type
    if kind in query.ignored_types:
        return Verdict.IGNORED
    if has_landed(reservation, instances):
        return Verdict.NOWHERE
    if kind == IN_FLIGHT:
        details = reservation.spec.in_flight_reservation
        own = details is not None and details.vm_id != "" and details.vm_id == query.vm
        return Verdict.UNLOCKED if own else _held(reservation)
    if not is_ready(reservation):
        return _held(reservation)
    if kind == FAILOVER:
        return _failover(reservation, query)
    return _committed(reservation, query)


def _held(reservation: Reservation) -> Verdict:
    return Verdict.BLOCKS if blocked_hosts(reservation) else Verdict.NOWHERE


def _failover(reservation: Reservation, query: CapacityQuery) -> Verdict:
    consumer = reservation.status.consumer
    if consumer is not None:
        own = query.intent is Intent.EVACUATE and query.vm == consumer.vm
        return Verdict.UNLOCKED if own else _held(reservation)
    if query.intent is Intent.REUSE_FAILOVER_RESERVATION:
        return Verdict.UNLOCKED
    members = reservation.status.failover_reservation
    if query.intent is Intent.EVACUATE and members is not None and query.vm in members.allocations:
        return Verdict.UNLOCKED
    return _held(reservation)


def _committed(reservation: Reservation, query: CapacityQuery) -> Verdict:
    details = reservation.spec.committed_resource_reservation
    if details is None or not details.resource_group:
        return Verdict.NOWHERE
    if (
        query.intent is not Intent.RESERVE_FOR_COMMITTED_RESOURCE
        and not query.locked
        and details.project_id == query.project
        and details.resource_group == query.group
    ):
        return Verdict.UNLOCKED
    return _held(reservation)
