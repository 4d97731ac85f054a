"""The weigher on server groups that would rather be together, or apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outlive.placement.columns import FloatVector, Rows
from outlive.placement.request import InstanceGroup
from outlive.placement.steps import Run, Weigher

_SIGNS = {"soft-affinity": 1.0, "soft-anti-affinity": -1.0}


class SoftAffinity(Weigher):
    """Plus or minus one for each member of the group on the host (placement.md#kvm_instance_group_soft_affinity)."""

    name = "kvm_instance_group_soft_affinity"
    statistic = "affinity"

    def skips(self, run: Run) -> bool:
        """No such group, or it has no members."""
        group = run.request.group
        return group is None or group.policy not in _SIGNS or not group.members

    def weigh(self, run: Run, at: Rows) -> FloatVector:
        """Members on each host, with the sign of the policy."""
        group = run.request.group or InstanceGroup()
        count = np.zeros(run.length)
        for member in dict.fromkeys(group.members):
            for row in run.fleet.instances.rows(member):
                count[row] += 1.0
        return _SIGNS[group.policy] * count[at]

    def weigh_plain(self, run: Run, hosts: Sequence[str]) -> list[float]:
        """The same, host by host."""
        group = run.request.group or InstanceGroup()
        sign = _SIGNS[group.policy]
        found = [run.facts(host) for host in hosts]
        return [
            sign * float(len(facts.instances.intersection(group.members))) if facts else sign * 0.0 for facts in found
        ]
