"""Filters on where a host is, whether it takes VMs at all, and on server groups: together, or apart."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from outlive.placement.columns import BoolVector
from outlive.placement.request import FAILOVER_SEARCH, INTERNAL_CALLS, Destination, InstanceGroup, Intent
from outlive.placement.rules import HostFacts, unsuited_functions, unsuited_zone
from outlive.placement.steps import FactsFilter, Filter, OnError, Reason, Run
from outlive.resources.functions import FunctionNeed


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

    def asked(self, run: Run) -> HostDemands:
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

    def refusal(self, asked: HostDemands, facts: HostFacts) -> Reason | None:
        """The first condition that is against the host."""
        available, in_service, places, vm, functions = asked
        if facts.bad_condition is not None:
            kind, status, reason = facts.bad_condition
            detail = f" ({reason})" if reason else ""
            return self.no("bad-condition", f"condition {kind} is {status}{detail}")
        if available and not facts.high_availability:
            return self.no("no-high-availability", "highAvailability is off: no slots here")
        if in_service and facts.maintenance:
            return self.no("in-maintenance", f"maintenance is {facts.maintenance}")
        if lost := next((place for place in places if place in facts.lost_places), None):
            return self.no("storage-unreached", f"it does not reach storage {lost}")
        return self.unsuited(unsuited_functions(vm, functions, facts))


class Maintenance(FactsFilter):
    """Optional: refuses hosts in manual maintenance or termination (docs/reference/placement.md#filter_maintenance)."""

    name = "filter_maintenance"

    def asked(self, run: Run) -> bool:
        """That it is in service."""
        return True

    def refusal(self, asked: bool, facts: HostFacts) -> Reason | None:
        """The maintenance that the host is in."""
        return None if facts.in_service else self.no("in-maintenance", f"maintenance is {facts.maintenance}")


class CorrectZone(FactsFilter):
    """Keeps hosts of the requested zone; a host without the label is in none (placement.md#filter_correct_az)."""

    name = "filter_correct_az"
    on_error: ClassVar[OnError] = "reject"

    def asked(self, run: Run) -> str | None:
        """The zone."""
        return run.request.zone or None

    def refusal(self, asked: str, facts: HostFacts) -> Reason | None:
        """The zone that the host is in instead."""
        return self.unsuited(unsuited_zone(asked, facts))


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
        if not wanted.aggregates:
            return mask
        inside = run.fleet.accepted((self.name, wanted.aggregates), lambda facts: not _missed(wanted, facts))
        return mask & run.pad(inside, keep_unknown=False)

    def check(self, run: Run, host: str) -> Reason | None:
        """The part of the destination that the host does not meet."""
        wanted = _destination(run)
        if wanted.aggregates:
            facts = run.facts(host)
            if facts is None:
                return self.unknown(host)
            missed = _missed(wanted, facts)
            if missed:
                return self.no("wrong-aggregate", f"the host is in none of the aggregates {missed[0]}")
        if wanted.host and host != wanted.host:
            return self.no("wrong-host", f"requested is host {wanted.host}")
        return None


def _missed(wanted: Destination, facts: HostFacts) -> list[str]:
    """Elements of the destination of which the host is in no aggregate."""
    return [element for element in wanted.aggregates if facts.aggregates.isdisjoint(element.split(","))]


def _destination(run: Run) -> Destination:
    return run.request.destination or Destination()


def _group(run: Run, policy: str) -> InstanceGroup | None:
    """The request's group if it has exactly this policy and the call is for somebody's VM."""
    group = run.request.group
    if group is None or group.policy != policy or run.request.intent in INTERNAL_CALLS:
        return None
    return group


class Affinity(Filter):
    """Keeps the hosts that the group is on already."""

    name = "filter_instance_group_affinity"

    def skips(self, run: Run) -> bool:
        """No such group, or it is nowhere yet."""
        group = _group(run, "affinity")
        return group is None or not group.hosts

    def mask(self, run: Run) -> BoolVector:
        """The group's hosts."""
        group = run.request.group
        return run.named(group.hosts if group else ())

    def check(self, run: Run, host: str) -> Reason | None:
        """Whether the group is elsewhere."""
        group = run.request.group
        if group is None or host in group.hosts:
            return None
        return self.no("group-elsewhere", f"the group runs on {', '.join(sorted(group.hosts)[:3])}")


class AntiAffinity(Filter):
    """Keeps hosts with fewer members of the group than its limit (placement.md#anti-affinity).

    What the hosts report counts, not the group's own list of hosts. A host that runs the VM itself stays.
    """

    name = "filter_instance_group_anti_affinity"

    def skips(self, run: Run) -> bool:
        """No such group, or it has no members."""
        group = _group(run, "anti-affinity")
        return group is None or not group.members

    def mask(self, run: Run) -> BoolVector:
        """Known hosts below the limit, and the VM's own."""
        group = run.request.group or InstanceGroup()
        fleet = run.fleet
        count = np.zeros(run.size, dtype=np.int64)
        for member in dict.fromkeys(group.members):
            count[fleet.rows_of_vm(member)] += 1
        few = count < group.max_server_per_host
        few[fleet.rows_of_vm(run.request.resource_id)] = True
        return run.pad(fleet.live & few, keep_unknown=False)

    def check(self, run: Run, host: str) -> Reason | None:
        """How many members are there."""
        group, there = run.request.group or InstanceGroup(), run.fleet.instances(host)
        if run.facts(host) is None:
            return self.unknown(host)
        if run.request.resource_id in there:
            return None
        here = len(there.intersection(group.members))
        if here < group.max_server_per_host:
            return None
        return self.no("group-here", f"{here} member(s) of the group run here, allowed are {group.max_server_per_host}")
