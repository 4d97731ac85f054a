"""What one reservation holds on its hosts (docs/reference/placement.md#capacity); the ledger adds them up."""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from outlive.placement.request import Intent, PlacementRequest
from outlive.placement.settings import PlacementSettings
from outlive.resources import COMMITTED, FAILOVER, Amounts, Reservation, condition

AMOUNT_LIMIT = 2**52
"""Larger amounts count as this: 4 PiB, or four billion cores. Keeps every sum inside 64 bits."""


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


def blocks_somebody(reservation: Reservation) -> bool:
    """Whether it holds anything from a request that it does not know; a commitment without details does not."""
    if reservation.spec.type == COMMITTED and is_ready(reservation):
        details = reservation.spec.committed_resource_reservation
        if details is None or not details.resource_group:
            return False
    return bool(blocked_hosts(reservation))
