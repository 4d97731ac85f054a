"""Filters on where a host is, whether it takes VMs at all, and on server groups: together, or apart."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from outlive.placement.columns import BoolVector
from outlive.placement.request import FAILOVER_SEARCH, INTERNAL_CALLS, Destination, InstanceGroup, Intent
from outlive.placement.rules import HostFacts, unsuited_functions, unsuited_zone
from outlive.placement.steps import FactsFilter, Filter, OnError, PipelineRun, StepRefusal
from outlive.resources import FunctionNeed


class HostDemands(NamedTuple):
    """What a host must be and have."""

    available: bool
    """Highly available."""
    in_service: bool
    """In no maintenance."""
    places: tuple[str, ...] = ()
    """Storage that it must reach."""
    vm: str = ""
    """Whose virtual functions these are …"""
    functions: tuple[FunctionNeed, ...] = ()
    """… that must be free there, or this VM's."""


class StatusConditions(FactsFilter):
    """Keeps hosts whose conditions say that they work (docs/reference/placement.md#filter_status_conditions).

    A condition that is absent never refuses a host; any other status than the wanted one does.
    Hosts that do not reach a place of storage get no slots for VMs with disks there, and those without the virtual
    functions of a VM, or where another VM has them, none for that VM.
    Hosts with ``highAvailability: false`` are no targets for failover slots, hosts in maintenance none for slots of
    commitments.
    """

    name = "filter_status_conditions"
    on_error: ClassVar[OnError] = "reject"

    def find_demand(self, run: PipelineRun) -> HostDemands:
        """What the host must be and have."""
        request = run.request
        intent = request.intent
        return HostDemands(
            intent in FAILOVER_SEARCH,
            intent is Intent.RESERVE_FOR_COMMITTED_RESOURCE,
            request.places,
            request.resource_id if request.functions else "",
            request.functions,
        )

    def find_refusal(self, asked: HostDemands, facts: HostFacts) -> StepRefusal | None:
        """The first condition that is against the host."""
        available, in_service, places, vm, functions = asked
        if facts.bad_condition is not None:
            kind, status, reason = facts.bad_condition
            detail = f" ({reason})" if reason else ""
            return self.refuse("bad-condition", f"condition {kind} is {status}{detail}")
        if available and not facts.high_availability:
            return self.refuse("no-high-availability", "highAvailability is off: no slots here")
        if in_service and facts.maintenance:
            return self.refuse("in-maintenance", f"maintenance is {facts.maintenance}")
        if lost := next((place for place in places if place in facts.lost_places), None):
            return self.refuse("storage-unreached", f"it does not reach storage {lost}")
        return self.refuse_unsuited(unsuited_functions(vm, functions, facts))


class Maintenance(FactsFilter):
    """Optional: refuses hosts in manual maintenance or termination (docs/reference/placement.md#filter_maintenance)."""

    name = "filter_maintenance"

    def find_demand(self, run: PipelineRun) -> bool:
        """That it is in service."""
        return True

    def find_refusal(self, asked: bool, facts: HostFacts) -> StepRefusal | None:
        """The maintenance that the host is in."""
        return None if facts.in_service else self.refuse("in-maintenance", f"maintenance is {facts.maintenance}")


class CorrectZone(FactsFilter):
    """Keeps hosts of the requested zone; a host without the label is in none (placement.md#filter_correct_az)."""

    name = "filter_correct_az"
    on_error: ClassVar[OnError] = "reject"

    def find_demand(self, run: PipelineRun) -> str | None:
        """The zone."""
        return run.request.zone or None

    def find_refusal(self, asked: str, facts: HostFacts) -> StepRefusal | None:
        """The zone that the host is in instead."""
        return self.refuse_unsuited(unsuited_zone(asked, facts))


class HostInstructions(Filter):
    """Obeys ``ignore_hosts`` and ``force_hosts``; an empty list of forced hosts leaves nobody."""

    name = "filter_host_instructions"

    def skips(self, run: PipelineRun) -> bool:
        """Neither list was given."""
        return not run.request.ignore_hosts and run.request.force_hosts is None

    def mask(self, run: PipelineRun) -> BoolVector:
        """Forced hosts, if any were given, without the ignored ones."""
        forced = run.request.force_hosts
        mask = ~run.mask_hosts(run.request.ignore_hosts)
        return mask if forced is None else mask & run.mask_hosts(forced)

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """Which of the lists speaks against the host."""
        if host in run.request.ignore_hosts:
            return self.refuse("ignored", "the request excludes this host")
        forced = run.request.force_hosts
        if forced is not None and host not in forced:
            return self.refuse("not-forced", f"the request insists on {len(forced)} other host(s)")
        return None


class ExcludeHostsParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Names of hosts that no request gets; they need not exist."""

    excluded_hosts: tuple[str, ...] = ()


class ExcludeHosts(Filter):
    """Takes configured hosts out of all decisions."""

    name = "filter_exclude_hosts"
    params_type = ExcludeHostsParams

    def mask(self, run: PipelineRun) -> BoolVector:
        """All but the configured hosts."""
        return ~run.mask_hosts(self.params.excluded_hosts)

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """Whether the host is configured."""
        return (
            self.refuse("excluded", "the pipeline excludes this host") if host in self.params.excluded_hosts else None
        )


class RequestedDestination(Filter):
    """Keeps the requested host and hosts of the requested aggregates (placement.md#filter_requested_destination)."""

    name = "filter_requested_destination"

    def skips(self, run: PipelineRun) -> bool:
        """The call is for nobody's VM, or no destination was given."""
        wanted = run.request.destination
        return run.request.intent in INTERNAL_CALLS or wanted is None or not (wanted.host or wanted.aggregates)

    def mask(self, run: PipelineRun) -> BoolVector:
        """Hosts in one aggregate of every element, and with the requested name."""
        wanted = run.request.destination or Destination()
        mask = run.mask_hosts((wanted.host,)) if wanted.host else ~run.mask_none()
        if not wanted.aggregates:
            return mask
        inside = run.fleet.mask_accepted(
            (self.name, wanted.aggregates), lambda facts: not _missed_aggregates(wanted, facts)
        )
        return mask & run.pad(inside, keep_unknown=False)

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """The part of the destination that the host does not meet."""
        wanted = run.request.destination or Destination()
        if wanted.aggregates:
            facts = run.find_facts(host)
            if facts is None:
                return self.refuse_unknown(host)
            missed = _missed_aggregates(wanted, facts)
            if missed:
                return self.refuse("wrong-aggregate", f"the host is in none of the aggregates {missed[0]}")
        if wanted.host and host != wanted.host:
            return self.refuse("wrong-host", f"requested is host {wanted.host}")
        return None


def _missed_aggregates(wanted: Destination, facts: HostFacts) -> list[str]:
    """Elements of the destination of which the host is in no aggregate."""
    return [element for element in wanted.aggregates if facts.aggregates.isdisjoint(element.split(","))]


def _group_of(run: PipelineRun, policy: str) -> InstanceGroup | None:
    """The request's group if it has exactly this policy and the call is for somebody's VM."""
    group = run.request.group
    if group is None or group.policy != policy or run.request.intent in INTERNAL_CALLS:
        return None
    return group


class Affinity(Filter):
    """Keeps the hosts that the group is on already."""

    name = "filter_instance_group_affinity"

    def skips(self, run: PipelineRun) -> bool:
        """No such group, or it is nowhere yet."""
        group = _group_of(run, "affinity")
        return group is None or not group.hosts

    def mask(self, run: PipelineRun) -> BoolVector:
        """The group's hosts."""
        group = run.request.group
        return run.mask_hosts(group.hosts if group else ())

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """Whether the group is elsewhere."""
        group = run.request.group
        if group is None or host in group.hosts:
            return None
        return self.refuse("group-elsewhere", f"the group runs on {', '.join(sorted(group.hosts)[:3])}")


class AntiAffinity(Filter):
    """Keeps hosts with fewer members of the group than its limit (placement.md#anti-affinity).

    What the hosts report counts, not the group's own list of hosts. A host that runs the VM itself stays.
    """

    name = "filter_instance_group_anti_affinity"

    def skips(self, run: PipelineRun) -> bool:
        """No such group, or it has no members."""
        group = _group_of(run, "anti-affinity")
        return group is None or not group.members

    def mask(self, run: PipelineRun) -> BoolVector:
        """Known hosts below the limit, and the VM's own."""
        group = run.request.group or InstanceGroup()
        fleet = run.fleet
        count = np.zeros(run.size, dtype=np.int64)
        for member in dict.fromkeys(group.members):
            count[fleet.rows_of_vm(member)] += 1
        few = count < group.max_server_per_host
        few[fleet.rows_of_vm(run.request.resource_id)] = True
        return run.pad(fleet.live & few, keep_unknown=False)

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """How many members are there."""
        group, there = run.request.group or InstanceGroup(), run.fleet.instances_on(host)
        if run.find_facts(host) is None:
            return self.refuse_unknown(host)
        if run.request.resource_id in there:
            return None
        here = len(there.intersection(group.members))
        if here < group.max_server_per_host:
            return None
        return self.refuse(
            "group-here", f"{here} member(s) of the group run here, allowed are {group.max_server_per_host}"
        )
