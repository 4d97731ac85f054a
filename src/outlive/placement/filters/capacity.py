"""The capacity filter: whether all instances of a request fit on one host (docs/reference/placement.md#capacity).

A VM without cpu or memory fails the step instead of fitting everywhere, and a host whose free amount is unknown
or negative before any reservation is refused.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from outlive.base.phrases import count_of
from outlive.placement.columns import BoolVector, IntVector
from outlive.placement.errors import StepFailed
from outlive.placement.request import PlacementRequest
from outlive.placement.reservations import AMOUNT_LIMIT, CapacityQuery, capacity_query
from outlive.placement.settings import MB, MIB, PlacementSettings
from outlive.placement.steps import Event, Filter, OnError, Reason, Run
from outlive.resources import CPU, MEMORY, Amounts, Hypervisor
from outlive.resources.reservations import FAILOVER, ReservationType

_GIB = 2**30


def figure(resource: str, amount: int) -> str:
    """The number alone, in cores, GiB or units, with at most three decimals."""
    if resource == CPU:
        return _short(amount / 1000)
    return _short(amount / _GIB) if resource == MEMORY else str(amount)


def amount_text(resource: str, amount: int) -> str:
    """The number with its unit."""
    unit = {CPU: "cores", MEMORY: "GiB"}.get(resource, resource)
    return f"{figure(resource, amount)} {unit}"


def difference_text(
    resource: str, capacity: int, running: int, held: int, holders: int, *, only_slots: bool = False
) -> str:
    """ "40 capacity - 20 running - 8.5 reserved by 3 slots"."""
    text = f"{figure(resource, capacity)} capacity - {figure(resource, running)} running"
    if not holders:
        return text
    noun = "slot" if only_slots else "reservation"
    return f"{text} - {figure(resource, held)} reserved by {count_of(holders, noun)}"


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


class CapacityParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What the step overlooks, in addition to the call's own options."""

    lock_reserved: bool = False
    ignored_reservation_types: tuple[ReservationType, ...] = ()
    ignore_allocations: bool = False


def demand(request: PlacementRequest, settings: PlacementSettings) -> dict[str, int]:
    """What all instances need together; ``StepFailed`` for a VM without cpu or memory."""
    for resource in (CPU, MEMORY):
        if request.need.get(resource, 0) <= 0:
            raise StepFailed(
                f"the VM needs no {resource}: flavor {request.flavor_name or '-'}",
                code="zero-size",
                remedy=f"give the flavor a positive {resource}",
            )
    needed = {name: amount * request.instances for name, amount in request.need.items() if amount > 0}
    if settings.flavor_memory_unit == "mb":
        needed[MEMORY] = -(-needed[MEMORY] * MB // MIB)
    return {name: min(amount, 2 * AMOUNT_LIMIT) for name, amount in needed.items()}


class EnoughCapacity(Filter):
    """Keeps hosts that have room for every instance beside everything that is held for others."""

    name = "filter_has_enough_capacity"
    params_type = CapacityParams
    on_error: ClassVar[OnError] = "reject"
    counts_events = True

    def events(self, run: Run) -> list[Event]:
        """Commitment slots that the request may use, by intent."""
        request, ledger = run.request, run.fleet.ledger
        bucket = ledger.open_commitments.get((request.project, request.group_name(run.settings.flavor_group_keys)))
        if bucket is None or bucket not in ledger.unlocks(self.query(run)):
            return []
        return [Event("commitment_slots_unlocked", (("intent", request.intent.value),), len(bucket.entries))]

    def query(self, run: Run) -> CapacityQuery:
        """The effective settings: parameters and options add up."""
        params: CapacityParams = self.params
        return capacity_query(
            run.request,
            run.settings,
            lock_reserved=params.lock_reserved,
            ignored_types=params.ignored_reservation_types,
            ignore_allocations=params.ignore_allocations,
        )

    def mask(self, run: Run) -> BoolVector:
        """Hosts with enough of every resource."""
        needed, query, fleet = demand(run.request, run.settings), self.query(run), run.fleet
        free = fleet.available(query)
        unlocked = fleet.ledger.unlocks(query)
        fits: BoolVector | None = None
        for resource, amount in needed.items():
            column = fleet.resources.get(resource)
            if column is None:
                return run.pad(np.zeros(run.size, np.bool_), keep_unknown=False)
            has = free[column]
            if unlocked:
                has = has.copy()
                _give_back(has, column, run, query)
            enough = has >= amount
            fits = enough if fits is None else fits & enough
        assert fits is not None
        return run.pad(fits, keep_unknown=False)

    def check(self, run: Run, host: str) -> Reason | None:
        """The first resource that does not suffice, with the figures."""
        record = run.fleet.host(host)
        if record is None:
            return self.unknown(host)
        query = self.query(run)
        for resource, amount in demand(run.request, run.settings).items():
            reason = self._check_resource(run, query, record, resource, amount)
            if reason is not None:
                return reason
        return None

    def _check_resource(
        self, run: Run, query: CapacityQuery, host: Hypervisor, resource: str, needed: int
    ) -> Reason | None:
        capacity, allocation = host.effective_capacity(), host.status.allocation
        if capacity is None or resource not in capacity:
            return self.no("capacity-unknown", f"the host's {resource} is not known")
        if allocation is None and not query.ignore_allocations:
            return self.no("allocation-unknown", f"how much {resource} runs on the host is not known")
        size = min(capacity[resource], AMOUNT_LIMIT)
        running = (
            0 if query.ignore_allocations or allocation is None else min(allocation.get(resource, 0), AMOUNT_LIMIT)
        )
        holders, held = self._held(run, query, host.name, resource)
        if size - running < 0:
            message = f"{resource} is overbooked: {difference_text(resource, size, running, 0, 0)}"
            return self.no("overbooked", message)
        free = max(0, size - running - held)
        if free >= needed:
            return None
        slots = sum(1 for kind in holders if kind == FAILOVER) == len(holders)
        sums = difference_text(resource, size, running, held, len(holders), only_slots=slots)
        each = run.request.instances
        what = amount_text(resource, needed) if each == 1 else f"{amount_text(resource, needed)} for {each} instances"
        return self.no(f"not-enough-{resource}", f"needs {what}, {amount_text(resource, free)} free: {sums}")

    @staticmethod
    def _held(run: Run, query: CapacityQuery, host: str, resource: str) -> tuple[list[str], int]:
        """Types of the reservations that block the resource on the host, and how much they block."""
        fleet = run.fleet
        row, column = fleet.row_of(host), fleet.resources.get(resource)
        if row is None or column is None:
            return [], 0
        holders: list[str] = []
        total = 0
        for entry in fleet.ledger.blocking(query, row):
            amount = (entry.full if query.ignore_allocations else entry.used).get(column, 0)
            if amount > 0:
                holders.append(entry.kind)
                total += amount
        return holders, total


def _give_back(free: IntVector, column: int, run: Run, query: CapacityQuery) -> None:
    """Add to ``free`` what this very request may use of what is held."""
    width = len(run.fleet.resources)
    for bucket in run.fleet.ledger.unlocks(query):
        rows, used, full = bucket.arrays(width)
        amounts = full if query.ignore_allocations else used
        np.add.at(free, rows, amounts[column])


def vm_amounts(request: PlacementRequest, settings: PlacementSettings) -> Amounts:
    """What the request would add to a host, for weighers: like ``demand``, but any size is fine."""
    total = {name: min(amount * request.instances, AMOUNT_LIMIT) for name, amount in request.need.items()}
    if settings.flavor_memory_unit == "mb" and MEMORY in total:
        total[MEMORY] = -(-total[MEMORY] * MB // MIB)
    return Amounts(total)
