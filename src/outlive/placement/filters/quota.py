"""The quota filter, until commitments exist: it sorts requests and counts, and refuses nobody.

Which requests are checked at all, and what they must name, is decided here; with no quota known every checked
request is accepted for that reason (docs/reference/placement.md#filter_quota_enforcement).
"""

from __future__ import annotations

import msgspec

from outlive.placement.columns import BoolVector
from outlive.placement.request import FAILOVER_SEARCH, Intent
from outlive.placement.steps import Event, Filter, Reason, Run

DECISION = "quota_decision"
"""Name of the event that carries one decision, with the labels of its counter."""


class QuotaParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Whether a refusal counts, or is only counted."""

    enforce: bool = False


class QuotaEnforcement(Filter):
    """Keeps everybody and says why."""

    name = "filter_quota_enforcement"
    params_type = QuotaParams
    counts_events = True

    def skips(self, run: Run) -> bool:
        """Always: no quota is known."""
        return True

    def mask(self, run: Run) -> BoolVector:
        """Everybody."""
        return ~run.nobody()

    def check(self, run: Run, host: str) -> Reason | None:
        """Nothing against any host."""
        return None

    def events(self, run: Run) -> list[Event]:
        """The one decision of this run."""
        decision, zone, group = self._decide(run)
        labels = (
            ("mode", "enforce" if self.params.enforce else "shadow"),
            ("decision", decision),
            ("resource", ""),
            ("availability_zone", zone),
            ("flavor_group", group),
        )
        return [Event(DECISION, labels)]

    @staticmethod
    def _decide(run: Run) -> tuple[str, str, str]:
        """Decision, zone and group as far as they were known when it fell."""
        request = run.request
        if request.intent in (Intent.EVACUATE, Intent.LIVE_MIGRATION):
            return "accept_skipped_intent_migration", "", ""
        if request.intent in FAILOVER_SEARCH or request.intent is Intent.RESERVE_FOR_COMMITTED_RESOURCE:
            return "accept_skipped_intent_internal", "", ""
        if request.intent is Intent.CAPACITY_PROBE:
            return "accept_skipped", "", ""
        zone = request.zone if request.project else ""
        group = request.group_name(run.settings.flavor_group_keys) if zone else ""
        return ("accept_no_quota" if group else "accept_skipped_missing_data"), zone, group
