"""Filters on server groups: together, or apart."""

from __future__ import annotations

import numpy as np

from outlive.placement.columns import BoolVector
from outlive.placement.request import INTERNAL_CALLS, InstanceGroup
from outlive.placement.steps import Filter, Reason, Run


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
