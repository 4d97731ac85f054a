"""Filters on whom a host is for, and the quota filter.

Until commitments exist the quota filter sorts requests and counts, and refuses nobody
(docs/reference/placement.md#filter_quota_enforcement).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from outlive.placement.columns import BoolVector
from outlive.placement.request import DOMAIN_NAME_HINT, FAILOVER_SEARCH, INTERNAL_PROBES, Intent
from outlive.placement.rules import HostFacts, unsuited_aggregate, unsuited_project
from outlive.placement.steps import Event, FactsFilter, Filter, OnError, Reason, Run

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


EXCLUSIVE_TRAIT = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"


class ExternalCustomerParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Prefixes of domain names that are external customers, and domains that are none after all."""

    domain_name_prefixes: tuple[str, ...]
    ignored_domain_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """At least one prefix."""
        if not self.domain_name_prefixes:
            raise ValueError("domainNamePrefixes is empty")


class ExternalCustomer(FactsFilter):
    """External customers get their own hosts (placement.md#filter_external_customer); others may get them too."""

    name = "filter_external_customer"
    params_type = ExternalCustomerParams
    on_error: ClassVar[OnError] = "reject"

    def asked(self, run: Run) -> str | None:
        """The domain, unless the call is for nobody's VM, or the domain is unknown, ignored or internal."""
        domain = run.request.hints.get(DOMAIN_NAME_HINT)
        external = (
            run.request.intent not in INTERNAL_PROBES
            and domain is not None
            and domain not in self.params.ignored_domain_names
            and domain.startswith(self.params.domain_name_prefixes)
        )
        return domain if external else None

    def refusal(self, asked: str, facts: HostFacts) -> Reason | None:
        """Whether the host is set aside."""
        if EXCLUSIVE_TRAIT in facts.traits:
            return None
        return self.no("not-exclusive", f"domain {asked} is external and the host is not for external customers")


class AllowedProjects(FactsFilter):
    """A host with a list of projects takes only those (placement.md#filter_allowed_projects)."""

    name = "filter_allowed_projects"
    on_error: ClassVar[OnError] = "reject"
    admits_unknown = True

    def asked(self, run: Run) -> str | None:
        """The project, unless the call is for nobody's, or names none."""
        return None if run.request.intent is Intent.CAPACITY_PROBE else run.request.project or None

    def refusal(self, asked: str, facts: HostFacts) -> Reason | None:
        """Whether the host's list leaves the project out."""
        return self.unsuited(unsuited_project(asked, facts))


class AggregateTenants(FactsFilter):
    """An aggregate can be reserved for projects; several add up (placement.md#filter_aggregate_metadata)."""

    name = "filter_aggregate_metadata"
    on_error: ClassVar[OnError] = "reject"
    admits_unknown = True

    def asked(self, run: Run) -> str | None:
        """The project, which may be none, unless the call is for nobody's."""
        return None if run.request.intent is Intent.CAPACITY_PROBE else run.request.project

    def refusal(self, asked: str, facts: HostFacts) -> Reason | None:
        """Whether the host's aggregates are for others."""
        return self.unsuited(unsuited_aggregate(asked, facts))
