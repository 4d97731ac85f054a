"""The capacity filter: whether all instances of a request fit on one host (docs/reference/placement.md#capacity).

A VM without cpu or memory fails the step instead of fitting everywhere, and a host whose free amount is unknown
or negative before any reservation is refused.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from outlive.base import count_of
from outlive.placement.columns import BoolVector
from outlive.placement.errors import StepFailed
from outlive.placement.request import PlacementRequest
from outlive.placement.reservations import AMOUNT_LIMIT, CapacityQuery, capacity_query
from outlive.placement.settings import MB, MIB, PlacementSettings
from outlive.placement.steps import Filter, OnError, PipelineRun, StepEvent, StepRefusal
from outlive.resources import CPU, FAILOVER, MEMORY, Amounts, Hypervisor, ReservationType

_GIB = 2**30


def format_figure(resource: str, amount: int) -> str:
    """The number alone, in cores, GiB or units, with at most three decimals."""
    if resource == CPU:
        return _format_short(amount / 1000)
    return _format_short(amount / _GIB) if resource == MEMORY else str(amount)


def amount_text(resource: str, amount: int) -> str:
    """The number with its unit."""
    unit = {CPU: "cores", MEMORY: "GiB"}.get(resource, resource)
    return f"{format_figure(resource, amount)} {unit}"


def difference_text(
    resource: str, capacity: int, running: int, held: int, holders: int, *, only_slots: bool = False
) -> str:
    """ "40 capacity - 20 running - 8.5 reserved by 3 slots"."""
    text = f"{format_figure(resource, capacity)} capacity - {format_figure(resource, running)} running"
    if not holders:
        return text
    noun = "slot" if only_slots else "reservation"
    return f"{text} - {format_figure(resource, held)} reserved by {count_of(holders, noun)}"


def _format_short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


class CapacityParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What the step overlooks, in addition to the call's own options."""

    lock_reserved: bool = False
    ignored_reservation_types: tuple[ReservationType, ...] = ()
    ignore_allocations: bool = False


def compute_demand(request: PlacementRequest, settings: PlacementSettings) -> dict[str, int]:
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

    def collect_events(self, run: PipelineRun) -> list[StepEvent]:
        """Commitment slots that the request may use, by intent."""
        request, ledger = run.request, run.fleet.ledger
        owner = (request.project, request.group_name(run.settings.flavor_group_keys))
        bucket = ledger.open_commitments.get(owner)
        if bucket is None or bucket not in ledger.unlocked_buckets(self.build_query(run)):
            return []
        return [StepEvent("commitment_slots_unlocked", (("intent", request.intent.value),), len(bucket.entries))]

    def build_query(self, run: PipelineRun) -> CapacityQuery:
        """The effective settings: parameters and options add up."""
        params: CapacityParams = self.params
        return capacity_query(
            run.request,
            run.settings,
            lock_reserved=params.lock_reserved,
            ignored_types=params.ignored_reservation_types,
            ignore_allocations=params.ignore_allocations,
        )

    def mask(self, run: PipelineRun) -> BoolVector:
        """Hosts with enough of every resource."""
        needed, query, fleet = compute_demand(run.request, run.settings), self.build_query(run), run.fleet
        free = fleet.available_amounts(query)
        unlocked = fleet.ledger.unlocked_buckets(query)
        fits: BoolVector | None = None
        for resource, amount in needed.items():
            column = fleet.resources.get(resource)
            if column is None:
                return run.pad(np.zeros(run.size, np.bool_), keep_unknown=False)
            has = free[column]
            if unlocked:
                # What this very request may use of what is held.
                has = has.copy()
                for bucket in unlocked:
                    rows, used, full = bucket.as_arrays(len(fleet.resources))
                    np.add.at(has, rows, (full if query.ignore_allocations else used)[column])
            enough = has >= amount
            fits = enough if fits is None else fits & enough
        assert fits is not None
        return run.pad(fits, keep_unknown=False)

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """The first resource that does not suffice, with the figures."""
        record = run.fleet.find_host(host)
        if record is None:
            return self.refuse_unknown(host)
        query = self.build_query(run)
        for resource, amount in compute_demand(run.request, run.settings).items():
            reason = self._check_resource(run, query, record, resource, amount)
            if reason is not None:
                return reason
        return None

    def _check_resource(
        self, run: PipelineRun, query: CapacityQuery, host: Hypervisor, resource: str, needed: int
    ) -> StepRefusal | None:
        capacity, allocation = host.effective_capacity(), host.status.allocation
        if capacity is None or resource not in capacity:
            return self.refuse("capacity-unknown", f"the host's {resource} is not known")
        if allocation is None and not query.ignore_allocations:
            return self.refuse("allocation-unknown", f"how much {resource} runs on the host is not known")
        size = min(capacity[resource], AMOUNT_LIMIT)
        running = (
            0 if query.ignore_allocations or allocation is None else min(allocation.get(resource, 0), AMOUNT_LIMIT)
        )
        holders, held = self._find_held(run, query, host.name, resource)
        if size - running < 0:
            message = f"{resource} is overbooked: {difference_text(resource, size, running, 0, 0)}"
            return self.refuse("overbooked", message)
        free = max(0, size - running - held)
        if free >= needed:
            return None
        slots = sum(1 for kind in holders if kind == FAILOVER) == len(holders)
        sums = difference_text(resource, size, running, held, len(holders), only_slots=slots)
        each = run.request.instances
        what = amount_text(resource, needed) if each == 1 else f"{amount_text(resource, needed)} for {each} instances"
        return self.refuse(f"not-enough-{resource}", f"needs {what}, {amount_text(resource, free)} free: {sums}")

    @staticmethod
    def _find_held(run: PipelineRun, query: CapacityQuery, host: str, resource: str) -> tuple[list[str], int]:
        """Types of the reservations that block the resource on the host, and how much they block."""
        fleet = run.fleet
        row, column = fleet.row_of(host), fleet.resources.get(resource)
        if row is None or column is None:
            return [], 0
        holders: list[str] = []
        total = 0
        for entry in fleet.ledger.blocking_entries(query, row):
            amount = (entry.full if query.ignore_allocations else entry.used).get(column, 0)
            if amount > 0:
                holders.append(entry.kind)
                total += amount
        return holders, total


def vm_amounts(request: PlacementRequest, settings: PlacementSettings) -> Amounts:
    """What the request would add to a host, for weighers: like ``compute_demand``, but any size is fine."""
    total = {name: min(amount * request.instances, AMOUNT_LIMIT) for name, amount in request.need.items()}
    if settings.flavor_memory_unit == "mb" and MEMORY in total:
        total[MEMORY] = -(-total[MEMORY] * MB // MIB)
    return Amounts(total)
