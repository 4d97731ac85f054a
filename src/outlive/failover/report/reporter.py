"""What failover reports while it works: metrics of cycles and events on slots and VMs.

Names, labels and the moments at which each is counted: docs/reference/failover-operation.md#events-and-metrics. An
event that says the same of the same object again is one event with a count; the recorder counts.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final, Literal, Protocol

import msgspec

from outlive.base import get_logger
from outlive.failover.analysis.costs import CostResult
from outlive.failover.analysis.tolerance import ToleratedFailures
from outlive.failover.locations import Disagreement, OnHypervisors
from outlive.failover.planner.actions import Fail
from outlive.failover.planner.cleanup import Brake, Deletion
from outlive.failover.report.forecast import FullProtection, Outlook
from outlive.placement import VmList
from outlive.resources import CPU, MEMORY, ObjectRef
from outlive.resources.reasons import EVENTS, FULL_PROTECTION, FailoverEvent, Value, fill
from outlive.runtime import Metrics

SOURCE = "failover-reservation-controller"
"""The name under which failover's events are written."""
CYCLE_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ALL_ZONES = ""
"""The label value of figures over all zones."""
LEVEL_EVENTS = 50
"""Events about unknown protection levels that one cycle writes."""
VM_KIND = "VirtualMachine"
CLUSTER = ObjectRef(kind="Cluster", name="default")


class CycleStep(enum.StrEnum):
    """What a tick was doing when it could not go on: the label of the counter of aborted cycles."""

    HYPERVISORS = "hypervisors"
    VMS = "vms"
    SLOTS = "slots"
    DECIDE = "decide"


class Events(Protocol):
    """Records events; never blocks, never fails."""

    def emit(
        self, regarding: ObjectRef, reason: str, note: str, *, type: Literal["Normal", "Warning"], action: str
    ) -> None:
        """Something happened to this object."""
        ...


class CycleSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One cycle in figures."""

    total_vms: int = 0
    total_slots: int = 0
    missing: int = 0
    processed: int = 0
    needed: int = 0
    reused: int = 0
    created: int = 0
    failed: int = 0
    updated: int = 0
    deleted: int = 0
    limit_hit: bool = False
    braked: bool = False
    next_pause_s: float = 0.0


class Reporter:
    """Metrics and events of failover."""

    def __init__(self, metrics: Metrics, events: Events) -> None:
        self._events = events
        self._unknown_levels: dict[str, str] = {}
        zone = ("availability_zone",)
        name = "failover_reconciliation_"
        self._runs = metrics.add_counter(f"{name}runs_total", "Cycles that ran to their end", zone)
        self._duration = metrics.add_histogram(
            f"{name}duration_seconds", "How long cycles took", zone, buckets=CYCLE_BUCKETS_S
        )
        self._gauges = {
            "total_vms": metrics.add_gauge(f"{name}total_vms", "VMs that the last cycle saw", zone),
            "total_slots": metrics.add_gauge(f"{name}total_reservations", "Slots after the last cycle", zone),
            "missing": metrics.add_gauge(f"{name}vms_missing_failover", "VMs that missed slots before the limit", zone),
        }
        self._counters = {
            "processed": metrics.add_counter(f"{name}vms_processed_total", "VMs that cycles served", zone),
            "needed": metrics.add_counter(f"{name}reservations_needed_total", "Slots that served VMs missed", zone),
            "reused": metrics.add_counter(f"{name}reservations_reused_total", "VMs put into existing slots", zone),
            "created": metrics.add_counter(f"{name}reservations_created_total", "Slots created", zone),
            "failed": metrics.add_counter(f"{name}reservations_failed_total", "Slots that could not be given", zone),
            "updated": metrics.add_counter(f"{name}reservations_updated_total", "Slots that lost members", zone),
            "deleted": metrics.add_counter(f"{name}reservations_deleted_total", "Slots deleted", zone),
        }
        self._aborted = metrics.add_counter(
            f"{name}aborted_total", "Cycles that could not go on, by the step that failed", ("step",)
        )
        self._brakes = metrics.add_counter(
            "failover_removal_brakes_total", "Cycles that dropped nothing: it was too much"
        )
        self._braked = metrics.add_gauge("failover_removals_held_back", "Removals that the last cycle held back")
        self._disagreements = metrics.add_gauge(
            "failover_location_disagreements", "VMs on which the VM source and the hosts disagree, by how", ("kind",)
        )
        self._validations = metrics.add_counter(
            "failover_validations_total", "Validations of slots, by outcome", ("outcome",)
        )
        self._audits = metrics.add_counter("failover_audits_total", "Comparisons of the kept state with a rebuilt one")
        self._differences = metrics.add_counter("failover_audit_differences_total", "Of those, the ones that differed")
        self._reactions = metrics.add_histogram(
            "failover_reaction_seconds", "From a change to the end of the reaction to it"
        )
        self.last_uncovered = 0
        """VMs without the slots that they need, when they were counted last; 0 before."""
        self._uncovered = metrics.add_gauge(
            "failover_vms_uncovered", "VMs without all their slots, by reason", ("reason",)
        )
        self._vms = metrics.add_gauge(
            "failover_vms", "VMs that are to run: all, those that need slots, those that have them", ("state",)
        )
        self._tolerance = metrics.add_gauge(
            "failover_tolerance", "Failures that every VM which needs slots survives", zone
        )
        self._by_tolerance = metrics.add_gauge(
            "failover_vms_by_tolerance", "VMs that need slots, by the failures that they survive", ("tolerance",)
        )
        self.last_tolerated: ToleratedFailures | None = None
        """What the last cycle found; ``None`` before the first."""
        self._level_vms = metrics.add_gauge(
            "failover_level_vms",
            "VMs that need slots, by protection level and whether they have them",
            ("level", "covered"),
        )
        self._level_reserved = metrics.add_gauge(
            "failover_level_reserved_resources",
            "A protection level's share of what slots hold: cores, bytes",
            ("level", "resource"),
        )
        self._until_full = metrics.add_gauge(
            "failover_full_protection_seconds",
            "Until every VM has all its slots, by forecast: 0 when they have, +Inf when never, NaN when not known",
        )
        self._without_full = metrics.add_gauge(
            "failover_vms_without_full_protection", "VMs that miss slots, or have to be restarted first"
        )
        self._without_level = metrics.add_gauge(
            "failover_vms_unknown_level", "VMs that name a protection level that there is not"
        )
        for gauge in self._gauges.values():
            gauge.labels(ALL_ZONES)
        for counter in (*self._counters.values(), self._runs):
            counter.labels(ALL_ZONES)
        self._duration.labels(ALL_ZONES)
        for step in CycleStep:
            self._aborted.labels(step.value)

    # Cycles

    def cycle_done(self, summary: CycleSummary, duration_s: float) -> None:
        """A cycle ran to its end."""
        self._runs.labels(ALL_ZONES).inc()
        self._duration.labels(ALL_ZONES).observe(duration_s)
        for field, gauge in self._gauges.items():
            gauge.labels(ALL_ZONES).set(getattr(summary, field))
        for field, counter in self._counters.items():
            counter.labels(ALL_ZONES).inc(getattr(summary, field))

    def cycle_aborted(self, step: CycleStep) -> None:
        """A cycle could not go on; its other metrics stay as they were."""
        self._aborted.labels(step.value).inc()

    def report_agreement(self, listing: VmList, merged: OnHypervisors) -> None:
        """How far the VM source and the hosts agree."""
        for kind, count in count_disagreements(listing, merged).items():
            self._disagreements.labels(kind).set(count)
        log_disagreements(listing, merged)

    def report_uncovered(self, by_reason: dict[str, int]) -> None:
        """How many VMs miss slots, and why."""
        self._uncovered.clear()
        for reason, count in sorted(by_reason.items()):
            self._uncovered.labels(reason).set(count)

    def report_counts(self, *, known: int, protected: int, covered: int) -> None:
        """VMs that are to run, those of them that need slots, and those of these that have them."""
        self.last_uncovered = protected - covered
        for state, count in (("known", known), ("protected", protected), ("covered", covered)):
            self._vms.labels(state).set(count)

    def report_tolerance(self, found: ToleratedFailures) -> None:
        """How many failures are survived; without a VM that needs slots there is nothing to report."""
        self.last_tolerated = found
        self._tolerance.clear()
        self._by_tolerance.clear()
        if found.fleet is not None:
            self._tolerance.labels(ALL_ZONES).set(found.fleet)
        for zone, level in found.zones.items():
            if zone != ALL_ZONES:
                self._tolerance.labels(zone).set(level)
        for level, count in found.counts.items():
            self._by_tolerance.labels(str(level)).set(count)

    def watch_forecast(self, forecast: Callable[[], FullProtection | None]) -> None:
        """From now on metrics ask this, at each scrape, when everybody has all slots."""

        def read_seconds() -> float:
            found = forecast()
            if found is None:
                return math.nan
            return {Outlook.NEVER: math.inf, Outlook.UNKNOWN: math.nan}.get(found.outlook, found.eta_s or 0.0)

        def read_vms() -> float:
            found = forecast()
            return math.nan if found is None else found.vms

        self._until_full.labels().set_function(read_seconds)
        self._without_full.labels().set_function(read_vms)

    def forecast_changed(self, found: FullProtection, note: str) -> None:
        """The forecast says something else than before."""
        calm = found.outlook in (Outlook.FULL, Outlook.UNDER_WAY)
        self._events.emit(CLUSTER, FULL_PROTECTION, note, type="Normal" if calm else "Warning", action="Assign")

    def report_levels(self, found: CostResult) -> None:
        """Who is protected by level, and what that takes."""
        self._level_vms.clear()
        self._level_reserved.clear()
        for one in found.levels:
            self._level_vms.labels(one.level, "true").set(one.covered)
            self._level_vms.labels(one.level, "false").set(one.required - one.covered)
            self._level_reserved.labels(one.level, CPU).set(one.cpu_milli / 1000)
            self._level_reserved.labels(one.level, MEMORY).set(one.memory_bytes)

    def unknown_levels(self, levels: Mapping[str, str]) -> None:
        """VM → the protection level that it names and that settings do not have; reported once, a few a cycle."""
        self._without_level.set(len(levels))
        before = {vm: level for vm, level in self._unknown_levels.items() if levels.get(vm) == level}
        new = [vm for vm in sorted(levels) if vm not in before][:LEVEL_EVENTS]
        for vm in new:
            self._emit_event(FailoverEvent.UNKNOWN_LEVEL, ObjectRef(kind=VM_KIND, name=vm), level=levels[vm][:80])
        self._unknown_levels = {**before, **{vm: levels[vm] for vm in new}}

    def brake(self, brake: Brake | None) -> None:
        """The mass-removal brake held, or did not have to."""
        self._braked.set(brake.would_drop if brake else 0)
        if brake is None:
            return
        self._brakes.inc()
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(brake.causes.items()))
        self._emit_event(
            FailoverEvent.BRAKE_HELD, CLUSTER, dropped=brake.would_drop, memberships=brake.memberships, causes=causes
        )

    def report_held_back(self, what: str, members: int, memberships: int) -> None:
        """The brake refused a removal outside cycles: ``members`` allocations, of a slot or of a reaction."""
        self._brakes.inc()
        self._emit_event(FailoverEvent.REMOVAL_HELD_BACK, CLUSTER, what=what, members=members, memberships=memberships)

    # Slots and VMs

    def slot_event(self, event: FailoverEvent, slot: str, uid: str, **fields: Value) -> None:
        """Something happened to a slot."""
        self._emit_event(event, ObjectRef(kind="Reservation", name=slot, uid=uid), **fields)

    def slot_deleted(self, uid: str, deletion: Deletion) -> None:
        """A slot gave its space back."""
        self.slot_event(
            FailoverEvent.SLOT_DELETED, deletion.slot, uid, cause=deletion.cause.value, detail=deletion.detail
        )

    def vm_without_slot(self, fail: Fail) -> None:
        """A VM could not be given what it needs."""
        self._emit_event(
            FailoverEvent.WITHOUT_SLOT,
            ObjectRef(kind=VM_KIND, name=fail.vm),
            why=fail.reason,
            detail=fail.detail,
            remedy=fail.remedy,
        )

    # Validation and reactions

    def report_validation(self, outcome: str) -> None:
        """One validation ended so."""
        self._validations.labels(outcome).inc()

    def report_audit(self, differences: list[str]) -> None:
        """The state kept from changes was compared with one built from scratch."""
        self._audits.inc()
        if differences:
            self._differences.inc()
            self._emit_event(FailoverEvent.STATE_DIVERGED, CLUSTER, differences=tuple(differences))

    def report_reaction(self, seconds: float) -> None:
        """A change was followed by everything it called for."""
        self._reactions.observe(seconds)

    def _emit_event(self, event: FailoverEvent, regarding: ObjectRef, **fields: Value) -> None:
        template = EVENTS[event]
        self._events.emit(
            regarding,
            template.reason,
            fill(template.note, fields),
            type="Warning" if template.warning else "Normal",
            action=template.action,
        )


NAMED_IN_A_CYCLE: Final = 20
"""Cases of one kind that a cycle logs by name."""

_log = get_logger("failover.vms")


def count_disagreements(listing: VmList, merged: OnHypervisors) -> dict[str, int]:
    """Kind → how many VMs, reports, flavors or rows."""
    return {
        "not-in-source": len(merged.not_in_source),
        "not-active": merged.nowhere_active,
        "on-several-hosts": len(merged.duplicates),
        "on-unknown-hypervisor": merged.on_unknown_hypervisor,
        "on-another-hypervisor": merged.on_another_hypervisor,
        "listed-nowhere": merged.listed_nowhere,
        "without-host": listing.without_host,
        "unknown-flavor": sum(listing.unknown_flavors.values()),
        "malformed-extra-specs": len(listing.malformed_extra_specs),
        "repeated-row": listing.repeated,
        "unreadable-row": sum(listing.unreadable.values()),
    }


def log_disagreements(listing: VmList, merged: OnHypervisors) -> None:
    """What an operator has to look into as warnings; the rest as information, and flavors one by one for debugging."""
    _log_each("vm.not_in_source", merged.not_in_source)
    if merged.not_in_source or merged.nowhere_active:
        _log.warning("vms.disagree", not_in_source=len(merged.not_in_source), active_nowhere=merged.nowhere_active)
    _log_each("vm.on_another_host_too", merged.duplicates)
    if merged.duplicates:
        _log.warning("vms.on_several_hosts", number=len(merged.duplicates))
    dropped = (merged.on_unknown_hypervisor, merged.on_another_hypervisor, merged.listed_nowhere)
    if any(dropped):
        unknown, another, nowhere = dropped
        _log.warning("vms.not_confirmed", unknown_hypervisor=unknown, another_hypervisor=another, nowhere=nowhere)
    if listing.malformed_extra_specs:
        names = listing.malformed_extra_specs
        _log.warning("flavors.malformed_extra_specs", flavors=list(names[:NAMED_IN_A_CYCLE]), number=len(names))
    if listing.unreadable or listing.repeated:
        _log.warning("vms.rows_left_out", unreadable=listing.unreadable, repeated=listing.repeated)
    for flavor, number in islice(listing.unknown_flavors.items(), NAMED_IN_A_CYCLE):
        _log.debug("flavor.unknown", flavor=flavor, vms=number)
    if listing.unknown_flavors or listing.without_host:
        _log.info(
            "vms.left_out",
            unknown_flavor=sum(listing.unknown_flavors.values()),
            flavors=len(listing.unknown_flavors),
            without_host=listing.without_host,
        )


def _log_each(event: str, cases: Iterable[Disagreement]) -> None:
    for one in islice(cases, NAMED_IN_A_CYCLE):
        _log.warning(event, vm=one.vm, name=one.name, hypervisor=one.hypervisor)
