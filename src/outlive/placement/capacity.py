"""What each host has, what is taken or held, and how often a request would fit: the capacity filter as a table."""

from __future__ import annotations

import msgspec
import numpy as np

from outlive.placement.blocking import Verdict, blocked_hosts, capacity_query, unused, verdict
from outlive.placement.fleet import NEVER, Fleet
from outlive.placement.request import PlacementRequest
from outlive.resources import Amounts


class Held(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One reservation on a host, and what it does to the request."""

    reservation: str
    verdict: Verdict
    amounts: Amounts = Amounts()


class HostCapacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One host for one request."""

    host: str
    capacity: Amounts | None = None
    allocation: Amounts | None = None
    free: Amounts | None = None
    """Free for this very request; a resource whose figure is unknown or overbooked is left out."""
    fits: int = 0
    """How many instances of the request fit."""
    held: tuple[Held, ...] = ()


class CapacityTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All known hosts, by name."""

    hosts: tuple[HostCapacity, ...]


def capacity_table(fleet: Fleet, request: PlacementRequest) -> CapacityTable:
    """The table for a request. Pipelines are not consulted: a host may have room and still be refused."""
    query = capacity_query(request, fleet.settings)
    free = fleet.available(query).copy()
    for bucket in fleet.ledger.unlocks(query):
        rows, used, full = bucket.arrays(len(fleet.resources))
        for column in range(free.shape[0]):
            np.add.at(free[column], rows, (full if query.ignore_allocations else used)[column])
    hosts: list[HostCapacity] = []
    for name in fleet.names:
        record, row = fleet.host(name), fleet.row(name)
        if record is None or row is None:
            continue
        left = {
            resource: max(0, int(free[column, row]))
            for resource, column in fleet.resources.items()
            if free[column, row] > NEVER // 2
        }
        needed = {resource: amount for resource, amount in request.need.items() if amount > 0}
        fits = min((left.get(resource, 0) // amount for resource, amount in needed.items()), default=0)
        hosts.append(
            HostCapacity(
                host=name,
                capacity=record.effective_capacity(),
                allocation=record.status.allocation,
                free=Amounts(left) if left else None,
                fits=fits,
                held=tuple(
                    Held(
                        reservation=reservation.name,
                        verdict=verdict(
                            reservation,
                            query,
                            slots_without_condition=fleet.settings.slots_ready_without_condition,
                        ),
                        amounts=unused(reservation, ignore_allocations=query.ignore_allocations),
                    )
                    for reservation in fleet.reservations_on(name)
                    if blocked_hosts(reservation)
                ),
            )
        )
    return CapacityTable(hosts=tuple(hosts))
