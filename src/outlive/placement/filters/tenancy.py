"""Filters on whom a host is for, and the filter on what a project may still use."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import msgspec

from outlive.placement.columns import BoolVector
from outlive.placement.quota import QuotaDecision, decide_quota, demand_of
from outlive.placement.request import DOMAIN_NAME_HINT, Intent
from outlive.placement.reservations import RESIZES
from outlive.placement.rules import HostFacts, unsuited_aggregate, unsuited_project
from outlive.placement.steps import FactsFilter, Filter, OnError, PipelineRun, StepEvent, StepRefusal

DECISION = "quota_decision"
"""Name of the event that carries one decision, with the labels of its counter."""


_SKIPPED: Final = {
    Intent.EVACUATE: "accept_skipped_intent_migration",
    Intent.LIVE_MIGRATION: "accept_skipped_intent_migration",
    Intent.RESERVE_FOR_FAILOVER: "accept_skipped_intent_internal",
    Intent.REUSE_FAILOVER_RESERVATION: "accept_skipped_intent_internal",
    Intent.RESERVE_FOR_COMMITTED_RESOURCE: "accept_skipped_intent_internal",
    Intent.CAPACITY_PROBE: "accept_skipped",
}
"""Intents that are not charged, and how that is counted."""


class QuotaParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Whether a refusal counts, or is only counted."""

    enforce: bool = False


class QuotaEnforcement(Filter):
    """Refuses all hosts where a project has nothing left of commitments and quota, or only counts that (shadow)."""

    name = "filter_quota_enforcement"
    params_type = QuotaParams
    counts_events = True

    def skips(self, run: PipelineRun) -> bool:
        """In shadow mode, and unless it refuses."""
        return not self.params.enforce or self._cached_finding(run).decision.decision != "reject"

    def mask(self, run: PipelineRun) -> BoolVector:
        """Nobody."""
        return run.mask_none()

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """The same against every host."""
        if self.skips(run):
            return None
        found = self._cached_finding(run)
        unit = {"ram": " GiB of RAM", "cores": " cores", "instances": " instances"}[found.decision.resource]
        needs, left = f"needs {found.decision.needed}{unit}", f"has {found.decision.headroom} left"
        where = f"project {run.request.project} in zone {found.zone}, flavor group {found.group}"
        return self.refuse("quota-exceeded", f"{where}: {needs} and {left} of its quota")

    def collect_events(self, run: PipelineRun) -> list[StepEvent]:
        """The one decision of this run."""
        found = self._cached_finding(run)
        labels = (
            ("mode", "enforce" if self.params.enforce else "shadow"),
            ("decision", found.decision.decision),
            ("resource", found.decision.resource),
            ("availability_zone", found.zone),
            ("flavor_group", found.group),
        )
        return [StepEvent(DECISION, labels)]

    def _cached_finding(self, run: PipelineRun) -> QuotaFinding:
        if self not in run.memo:
            run.memo[self] = find_quota(run)
        found: QuotaFinding = run.memo[self]
        return found


class QuotaFinding(NamedTuple):
    """A decision, and zone and flavor group as far as they were known when it fell."""

    decision: QuotaDecision
    zone: str = ""
    group: str = ""


def find_quota(run: PipelineRun) -> QuotaFinding:
    """The decision about a request. Only what creates a VM or gives it another size is charged."""
    request = run.request
    skipped = _SKIPPED.get(request.intent)
    if skipped is not None:
        return QuotaFinding(QuotaDecision(decision=skipped))
    zone = request.zone if request.project else ""
    group = request.group_name(run.settings.flavor_group_keys) if zone else ""
    if not group:
        return QuotaFinding(QuotaDecision(decision="accept_skipped_missing_data"), zone)
    quotas = run.fleet.quotas
    balance = quotas.compute_balance(request.project, zone, group, now=run.now, asking=request.resource_id)
    size = quotas.size_of(request.resource_id) if request.intent in RESIZES else None
    return QuotaFinding(decide_quota(balance, demand_of(request, size, group)), zone, group)


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

    def find_demand(self, run: PipelineRun) -> str | None:
        """The domain, unless the call is for nobody's, or the domain is unknown, ignored or internal."""
        domain = run.request.hints.get(DOMAIN_NAME_HINT)
        if domain is None or run.request.intent is Intent.CAPACITY_PROBE:
            return None
        return domain if self.is_external(domain) else None

    def is_external(self, domain: str) -> bool:
        """Whether a domain gets only hosts that are set aside."""
        params: ExternalCustomerParams = self.params
        return domain not in params.ignored_domain_names and domain.startswith(params.domain_name_prefixes)

    def find_refusal(self, asked: str, facts: HostFacts) -> StepRefusal | None:
        """Whether the host is set aside."""
        if EXCLUSIVE_TRAIT in facts.traits:
            return None
        return self.refuse("not-exclusive", f"domain {asked} is external and the host is not for external customers")


class AllowedProjects(FactsFilter):
    """A host with a list of projects takes only those (placement.md#filter_allowed_projects)."""

    name = "filter_allowed_projects"
    on_error: ClassVar[OnError] = "reject"
    admits_unknown = True

    def find_demand(self, run: PipelineRun) -> str | None:
        """The project, unless the call is for nobody's, or names none."""
        return None if run.request.intent is Intent.CAPACITY_PROBE else run.request.project or None

    def find_refusal(self, asked: str, facts: HostFacts) -> StepRefusal | None:
        """Whether the host's list leaves the project out."""
        return self.refuse_unsuited(unsuited_project(asked, facts))


class AggregateTenants(FactsFilter):
    """An aggregate can be reserved for projects; several add up (placement.md#filter_aggregate_metadata)."""

    name = "filter_aggregate_metadata"
    on_error: ClassVar[OnError] = "reject"
    admits_unknown = True

    def find_demand(self, run: PipelineRun) -> str | None:
        """The project, which may be none, unless the call is for nobody's."""
        return None if run.request.intent is Intent.CAPACITY_PROBE else run.request.project

    def find_refusal(self, asked: str, facts: HostFacts) -> StepRefusal | None:
        """Whether the host's aggregates are for others."""
        return self.refuse_unsuited(unsuited_aggregate(asked, facts))
