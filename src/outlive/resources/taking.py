"""Whether a VM may be put onto a host now: one answer for everybody who sends VMs somewhere.

It is about VMs that need a place at this moment: recovery, moves, and hosts that are emptied ask it. Slots are kept for
later; whether a host may have any is a matter of eligibility (``Hypervisor.closed``, docs/reference/failover.md). What
it does not say: whether the host lives, which its Membership tells, or whether it has room.
"""

from __future__ import annotations

from typing import Final

from outlive.resources.hosts import Hypervisor
from outlive.resources.meta import condition

WORKING_CONDITIONS: Final = (("Ready", "True"), ("HypervisorDisabled", "False"), ("Terminating", "False"))
"""Conditions of hosts on which VMs can be brought up; an absent one never stands in the way."""


def bad_condition(host: Hypervisor) -> str:
    """The first condition by which nobody can be brought up there, ``Ready=False``; empty where all are well."""
    for kind, wanted in WORKING_CONDITIONS:
        found = condition(host.status.conditions, kind)
        if found is not None and found.status != wanted:
            return f"{kind}={found.status}"
    return ""


def unschedulable(host: Hypervisor) -> str:
    """Why no slot there can be used, to follow the host's name; empty where they can."""
    if why := host.closed():
        return why
    why = bad_condition(host)
    return f"has condition {why}" if why else ""


def is_only_emptied(host: Hypervisor) -> bool:
    """Whether it takes no VM because it is to be emptied, and for nothing else: what is bound for it still starts."""
    return bool(host.closed()) and not (host.status.lost or host.spec.maintenance or bad_condition(host))


def refuses(host: Hypervisor) -> str:
    """Why no VM may be put onto it now, to follow its name; empty where one may."""
    if host.spec.maintenance and not host.closed():
        return f"is in maintenance ({host.spec.maintenance})"
    return unschedulable(host)
