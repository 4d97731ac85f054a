"""What would be if hosts or VMs came or went, or more slots were asked for. Nothing is ever written.

``altered`` is a cluster with changes in memory, ``restarts`` says where VMs come to, ``questions`` asks the planner
about it, and ``answers`` is the form of every answer.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.analysis.whatif.altered import Altered, empty_copies, from_snapshot, plain_host, resize_host
    from outlive.failover.analysis.whatif.answers import Short, WhatIfAnswer, WhatIfTolerance, WholeRemedy
    from outlive.failover.analysis.whatif.fit import FlavorFit, Limit, ZoneFit, count_further_vms
    from outlive.failover.analysis.whatif.questions import ClusterView, most_vms, plan_altered, require, whole_remedy
else:
    __getattr__ = load_exports(__name__)
