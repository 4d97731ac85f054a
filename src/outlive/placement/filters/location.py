"""Filters on where a host is, and whether it takes VMs at all."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from outlive.placement.columns import BoolVector
from outlive.placement.request import FAILOVER_SEARCH, INTERNAL_CALLS, Destination
from outlive.placement.steps import Filter, OnError, Reason, Run


class StatusConditions(Filter):
    """Keeps hosts whose conditions say that they work (docs/reference/placement.md#filter_status_conditions).

    A condition that is absent never refuses a host; any other status than the wanted one does.
    Hosts with ``highAvailability: false`` are no targets for slots.
    """

    name = "filter_status_conditions"
    on_error: ClassVar[OnError] = "reject"

    def mask(self, run: Run) -> BoolVector:
        """Known hosts in working condition."""
        if self._wants_ha(run):
            return run.remembered(
                ("usable", "ha"), lambda: run.fleet.columns.flag("usable") & run.fleet.columns.flag("ha")
            )
        return run.remembered(("usable",), lambda: run.fleet.columns.flag("usable").copy())

    def check(self, run: Run, host: str) -> Reason | None:
        """The first condition that stands against the host."""
        facts = run.facts(host)
        if facts is None:
            return self.unknown(host)
        if facts.bad_condition is not None:
            kind, status, reason = facts.bad_condition
            detail = f" ({reason})" if reason else ""
            return self.no("bad-condition", f"condition {kind} is {status}{detail}")
        if self._wants_ha(run) and not facts.high_availability:
            return self.no("no-high-availability", "highAvailability is off: no slots here")
        return None

    @staticmethod
    def _wants_ha(run: Run) -> bool:
        return run.request.intent in FAILOVER_SEARCH


class Maintenance(Filter):
    """Optional: refuses hosts in manual maintenance or termination (docs/reference/placement.md#filter_maintenance)."""

    name = "filter_maintenance"

    def mask(self, run: Run) -> BoolVector:
        """Known hosts in service."""
        return run.remembered(("in_service",), lambda: run.fleet.columns.flag("in_service").copy())

    def check(self, run: Run, host: str) -> Reason | None:
        """The maintenance that the host is in."""
        facts = run.facts(host)
        if facts is None:
            return self.unknown(host)
        return None if facts.in_service else self.no("in-maintenance", f"maintenance is {facts.maintenance}")


class CorrectZone(Filter):
    """Keeps hosts of the requested zone; a host without the label is in none (placement.md#filter_correct_az)."""

    name = "filter_correct_az"
    on_error: ClassVar[OnError] = "reject"

    def skips(self, run: Run) -> bool:
        """No zone was requested."""
        return not run.request.zone

    def mask(self, run: Run) -> BoolVector:
        """Hosts of the zone."""
        zone, fleet = run.request.zone, run.fleet
        return run.remembered(("zone", zone), lambda: fleet.columns.word("zone") == fleet.columns.code("zone", zone))

    def check(self, run: Run, host: str) -> Reason | None:
        """The zone that the host is in instead."""
        facts = run.facts(host)
        if facts is None:
            return self.unknown(host)
        if facts.zone == run.request.zone:
            return None
        where = "has no zone" if facts.zone is None else f"is in zone {facts.zone}"
        return self.no("wrong-zone", f"the host {where}, requested is {run.request.zone}")


class HostInstructions(Filter):
    """Obeys ``ignore_hosts`` and ``force_hosts``; an empty list of forced hosts leaves nobody."""

    name = "filter_host_instructions"

    def skips(self, run: Run) -> bool:
        """Neither list was given."""
        return not run.request.ignore_hosts and run.request.force_hosts is None

    def mask(self, run: Run) -> BoolVector:
        """Forced hosts, if any were given, without the ignored ones."""
        forced = run.request.force_hosts
        mask = ~run.named(run.request.ignore_hosts)
        return mask if forced is None else mask & run.named(forced)

    def check(self, run: Run, host: str) -> Reason | None:
        """Which of the lists speaks against the host."""
        if host in run.request.ignore_hosts:
            return self.no("ignored", "the request excludes this host")
        forced = run.request.force_hosts
        if forced is not None and host not in forced:
            return self.no("not-forced", f"the request insists on {len(forced)} other host(s)")
        return None


class ExcludeHostsParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Names of hosts that no request gets; they need not exist."""

    excluded_hosts: tuple[str, ...] = ()


class ExcludeHosts(Filter):
    """Takes configured hosts out of all decisions."""

    name = "filter_exclude_hosts"
    params_type = ExcludeHostsParams

    def mask(self, run: Run) -> BoolVector:
        """All but the configured hosts."""
        return ~run.named(self.params.excluded_hosts)

    def check(self, run: Run, host: str) -> Reason | None:
        """Whether the host is configured."""
        return self.no("excluded", "the pipeline excludes this host") if host in self.params.excluded_hosts else None


class RequestedDestination(Filter):
    """Keeps the requested host and hosts of the requested aggregates (placement.md#filter_requested_destination)."""

    name = "filter_requested_destination"

    def skips(self, run: Run) -> bool:
        """The call is for nobody's VM, or no destination was given."""
        wanted = run.request.destination
        return run.request.intent in INTERNAL_CALLS or wanted is None or not (wanted.host or wanted.aggregates)

    def mask(self, run: Run) -> BoolVector:
        """Hosts in one aggregate of every element, and with the requested name."""
        wanted = _destination(run)
        mask = run.named((wanted.host,)) if wanted.host else ~run.nobody()
        for element in wanted.aggregates:
            rows = {row for uuid in element.split(",") for row in run.fleet.aggregates.rows(uuid)}
            mask = mask & run.pad(run.fleet.rows_mask(rows), keep_unknown=False)
        return mask

    def check(self, run: Run, host: str) -> Reason | None:
        """The part of the destination that the host does not meet."""
        wanted = _destination(run)
        if wanted.aggregates:
            facts = run.facts(host)
            if facts is None:
                return self.unknown(host)
            for element in wanted.aggregates:
                if facts.aggregates.isdisjoint(element.split(",")):
                    return self.no("wrong-aggregate", f"the host is in none of the aggregates {element}")
        if wanted.host and host != wanted.host:
            return self.no("wrong-host", f"requested is host {wanted.host}")
        return None


def _destination(run: Run) -> Destination:
    return run.request.destination or Destination()
