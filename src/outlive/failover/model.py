"""What the decisions of failover see: plain, frozen views of hosts and slots; those of VMs are placement's (``vms``).

No decision reads a resource or a store. ``vms``, ``slots`` and ``observation`` make these views from resources, from a
database or from a state file, and the same decision runs on all of them.
Amounts are whole numbers: milli-cores and bytes.
"""

from __future__ import annotations

import msgspec

from outlive.resources import DOMAIN_LABEL_PREFIX, ZONE_LABEL, Hypervisor, unschedulable_reason


class HostView(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A host, as far as failover cares."""

    name: str
    zone: str = ""
    domains: dict[str, str] = {}
    """Failure domains by name, such as ``{"rack": "r3"}``: the labels ``outlive.dev/domain-<name>``."""
    active: tuple[str, ...] = ()
    """Ids of the VMs that it reports as active."""
    stopped: tuple[str, ...] = ()
    """Ids of the VMs that it lists and that are not active."""
    lost: bool = False
    """Proven dead: what it reported last counts only where no other host reports the VM."""
    closed: bool = False
    """Lost, being emptied, or not ready: recovery sends nobody there, so that slots there are not ready."""
    unschedulable: str = ""
    """Why it is closed, to follow its name."""


class SlotView(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A slot: one failover reservation."""

    name: str
    host: str = ""
    """``status.host``; the empty string is an ordinary host name to the rules."""
    target_host: str = ""
    zone: str = ""
    group: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    members: dict[str, str] = {}
    """VM → the host that it ran on when it was added."""
    ready: bool | None = None
    """The ``Ready`` condition; ``None`` (absent) counts as ready."""
    unready: str = ""
    """Why it is not ready, whatever its condition says: what is wrong with its host."""
    initialised: bool = True
    """Whether a failover status exists at all."""
    consumer: str = ""
    """The VM that recovery lets in. Such a slot promises nothing to anybody any more: it is shown without members and
    not ready, it only holds its space until the VM has arrived."""
    created_at: float = 0.0
    last_changed: float | None = None
    acknowledged_at: float | None = None
    uid: str = ""
    version: str = ""


def host_view(host: Hypervisor) -> HostView:
    """A host with the VMs that it reports as active."""
    why = unschedulable_reason(host)
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
