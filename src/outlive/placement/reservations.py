"""What one reservation holds, and where (docs/reference/placement.md#capacity): ``unused_amounts`` and
``blocked_hosts``, for everybody who asks. The ledger adds them up."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

import msgspec

from outlive.placement.request import Intent, PlacementRequest
from outlive.placement.settings import PlacementSettings
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT, Amounts, Reservation, find_condition

AMOUNT_LIMIT = 2**52
"""Larger amounts count as this: 4 PiB, or four billion cores. Keeps every sum inside 64 bits."""

RESIZES = frozenset({Intent.RESIZE.value, Intent.REBUILD.value})
"""Intents whose VM may stay where it is, with another size."""


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
    found = find_condition(reservation.status.conditions, "Ready")
    if found is None:
        return reservation.spec.type == FAILOVER
    return found.status == "True"


LOCKED: Final = "Decided"
"""Reason of ``Ready`` of a commitment slot that is decided and may be reverted: no VM may use it yet."""


def is_locked(reservation: Reservation) -> bool:
    """Whether the slot holds its room from everybody, its own project included."""
    found = find_condition(reservation.status.conditions, "Ready")
    return found is not None and found.reason == LOCKED


def blocked_hosts(reservation: Reservation) -> tuple[str, ...]:
    """The hosts on which it holds something: where it is wanted and where it is, each once. A commitment slot that is
    wanted nowhere was evicted: it holds nothing, though its status still names the host that it left.
    """
    hosts = (reservation.spec.target_host, reservation.status.host)
    if reservation.spec.type == COMMITTED and not reservation.spec.target_host:
        return ()
    return tuple(dict.fromkeys(host for host in hosts if host))


def placed_on(reservation: Reservation) -> str:
    """The one host to name it by: where it is, or else where it is wanted; empty: it holds nothing anywhere."""
    hosts = blocked_hosts(reservation)
    return reservation.status.host if reservation.status.host in hosts else "".join(hosts[:1])


def arrival_host(reservation: Reservation) -> str:
    """Where what holds room for one VM becomes that VM; empty where it does not: it is on two hosts, or its VM is there
    already and gets another size.
    """
    hosts = blocked_hosts(reservation)
    details = reservation.spec.in_flight_reservation
    if len(hosts) != 1 or (details is not None and (details.intent in RESIZES or details.instances != 1)):
        return ""
    return hosts[0]


def awaited_vm(reservation: Reservation) -> str:
    """The VM that it holds room for: the consumer of a slot, or the VM in flight; empty for any other reservation."""
    if reservation.status.consumer is not None:
        return reservation.status.consumer.vm
    details = reservation.spec.in_flight_reservation
    return details.vm_id if details is not None and reservation.spec.type == IN_FLIGHT else ""


def has_landed(reservation: Reservation, instances: Container[str]) -> bool:
    """Whether the VM that it holds room for is among those that ``arrival_host`` reports.

    Its block has become allocation then, in one document, so that the VM counts exactly once at every moment.
    """
    vm = awaited_vm(reservation)
    return vm != "" and arrival_host(reservation) != "" and vm in instances


def unused_amounts(
    reservation: Reservation,
    *,
    ignore_allocations: bool = False,
    arriving: Iterable[str] = (),
    running: Container[str] | None = None,
) -> Amounts:
    """What of the reservation is not yet inside a host's allocation; nothing of a commitment slot that is nowhere.

    Failover and in-flight reservations hold their full size. A commitment slot that has arrived gives up
    what its confirmed VMs use, because those are inside the allocation; VMs that are meant for it but not
    yet seen need at least their own size. ``arriving``: VMs that have room in flight on the same host; what they need
    of the slot is held there, as if they were running. ``running``: VMs that its host reports, or whose use is counted
    beside it otherwise; one that has ended is no longer among them, before the slot's status says so. ``None``: all
    that it has confirmed.
    """
    spec, status = reservation.spec, reservation.status
    details = spec.committed_resource_reservation
    if spec.type == COMMITTED and not spec.target_host:
        return Amounts()
    if (
        spec.type != COMMITTED
        or ignore_allocations
        or details is None
        or not details.allocations
        or spec.target_host != status.host
    ):
        return spec.resources
    seen = status.committed_resource_reservation.allocations if status.committed_resource_reservation else {}
    counted = {*(vm for vm in seen if running is None or vm in running), *arriving}
    left: dict[str, int] = {}
    for name, size in spec.resources.items():
        confirmed = sum(a.resources.get(name, 0) for vm, a in details.allocations.items() if vm in counted)
        pending = sum(a.resources.get(name, 0) for vm, a in details.allocations.items() if vm not in counted)
        left[name] = max(max(0, size - confirmed), pending)
    return Amounts(left)


def blocks_somebody(reservation: Reservation) -> bool:
    """Whether it holds anything from a request that it does not know; a commitment without details does not."""
    if reservation.spec.type == COMMITTED and is_ready(reservation):
        details = reservation.spec.committed_resource_reservation
        if details is None or not details.resource_group:
            return False
    return bool(blocked_hosts(reservation))
