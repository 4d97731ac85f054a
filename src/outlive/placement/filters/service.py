"""Filters on whether a host takes VMs at all."""

from __future__ import annotations

from typing import ClassVar

from outlive.placement.columns import BoolVector
from outlive.placement.request import FAILOVER_SEARCH
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
