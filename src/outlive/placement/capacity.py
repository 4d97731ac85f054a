"""What each host has, what is taken or held, and how often a request would fit: the capacity filter as a table."""

from __future__ import annotations

import msgspec

from outlive.placement.filters.capacity import vm_amounts
from outlive.placement.fleet import NEVER, Fleet
from outlive.placement.request import PlacementRequest
from outlive.placement.reservations import Verdict, capacity_query, unused, verdict
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


class CapacityView:
    """The fleet for one request, host by host, so that a caller with many hosts can let others go on in between."""

    def __init__(self, fleet: Fleet, request: PlacementRequest) -> None:
        self._fleet = fleet
        self._query = capacity_query(request, fleet.settings)
        one = vm_amounts(msgspec.structs.replace(request, num_instances=1), fleet.settings)
        self._needed = {resource: amount for resource, amount in one.items() if amount > 0}
        self._given = fleet.ledger.unlocks(self._query)

    def host(self, name: str) -> HostCapacity | None:
        """One host as it is now; ``None`` when it is not known."""
        fleet, query = self._fleet, self._query
        record, row = fleet.host(name), fleet.row(name)
        if record is None or row is None:
            return None
        left = self._left(row)
        fits = min((left.get(resource, 0) // amount for resource, amount in self._needed.items()), default=0)
        instances = {one.id for one in record.status.instances}
        held = tuple(
            Held(
                reservation=reservation.name,
                verdict=verdict(reservation, query, instances=instances),
                amounts=unused(reservation, ignore_allocations=query.ignore_allocations),
            )
            for reservation in fleet.reservations_on(name)
        )
        return HostCapacity(
            host=name,
            capacity=record.effective_capacity(),
            allocation=record.status.allocation,
            free=Amounts(left) if left else None,
            fits=fits,
            held=held,
        )

    def _left(self, row: int) -> dict[str, int]:
        """What the request finds free, for each resource whose figure can be trusted."""
        fleet, query = self._fleet, self._query
        free = fleet.available(query)[:, row].copy()
        for bucket in self._given:
            rows, used, full = bucket.arrays(len(fleet.resources))
            free += (full if query.ignore_allocations else used)[:, rows == row].sum(axis=1)
        return {
            resource: max(0, int(free[column]))
            for resource, column in fleet.resources.items()
            if free[column] > NEVER // 2
        }


def capacity_table(fleet: Fleet, request: PlacementRequest) -> CapacityTable:
    """The table for a request. Pipelines are not consulted: a host may have room and still be refused."""
    view = CapacityView(fleet, request)
    return CapacityTable(hosts=tuple(row for name in fleet.names if (row := view.host(name)) is not None))
