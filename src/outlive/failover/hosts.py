"""Hosts as the decisions of failover see them."""

from __future__ import annotations

from outlive.failover.model import HostView
from outlive.resources import DOMAIN_LABEL_PREFIX, ZONE_LABEL, Hypervisor
from outlive.resources.hosts import unschedulable


def host_view(host: Hypervisor) -> HostView:
    """A host with the VMs that it reports as active."""
    why = unschedulable(host)
    return HostView(
        name=host.name,
        zone=host.metadata.labels.get(ZONE_LABEL, ""),
        domains=failure_domains(host),
        active=tuple(instance.id for instance in host.status.instances if instance.active),
        stopped=tuple(instance.id for instance in host.status.instances if not instance.active),
        lost=bool(host.status.lost),
        closed=bool(why),
        unschedulable=why,
    )


def names_on(host: Hypervisor) -> dict[str, str]:
    """Active VM → what its host calls it."""
    return {one.id: one.name for one in host.status.instances if one.active and one.name}


def failure_domains(host: Hypervisor) -> dict[str, str]:
    """Name → value of the failure domains that the host's labels name."""
    return {
        label.removeprefix(DOMAIN_LABEL_PREFIX): value
        for label, value in sorted(host.metadata.labels.items())
        if label.startswith(DOMAIN_LABEL_PREFIX) and value
    }
