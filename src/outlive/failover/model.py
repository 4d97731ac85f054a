"""What the decisions of failover see: plain, frozen views of hosts, VMs and slots.

No decision reads a resource or a store. Whoever gathers (``vms``, ``slots``, ``observation``) makes these views
from resources, from a database or from a state file, and the same decision runs on all of them.
Amounts are whole numbers: milli-cores and bytes.
"""

from __future__ import annotations

import msgspec

from outlive.resources import AffinityRule, Amounts
from outlive.resources.policies import every_rule


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


class VmView(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A VM with its location, and who said so."""

    id: str
    name: str = ""
    host: str
    zone: str = ""
    project: str = ""
    flavor: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    also_needs: dict[str, int] = {}
    """Other resources that it needs and that no slot holds, such as ``{"gpu": 1}``."""
    host_limit: tuple[str, ...] = ()
    """The only hosts that it may run on, by name; empty: any."""
    extra_specs: dict[str, str] = {}
    os_type: str = ""
    disk_gib: int = 0
    status: str = ""
    server_group: str = ""
    group_policy: str = ""
    """The group's policy; the soft ones are preferences."""
    affinity: tuple[AffinityRule, ...] = ()
    """Further groups that it is in."""
    preferred: dict[str, int] = {}
    """Host → weight: where it is to run rather than elsewhere."""
    level: str = ""
    """Protection level that the VM itself asks for."""
    priority: int | None = None
    """Restart priority of the VM itself, larger is earlier."""
    unprotected: bool = False
    """Whether somebody has taken it out of protection: then it needs no slots …"""
    unprotected_why: str = ""
    """… and why, in the words of whoever did."""
    created_at: float = 0.0
    source: str = ""
    """Who gave the location: ``database``, ``hypervisor`` or ``resource``."""
    due: bool = False
    """Whether it is about to run on its host, so that it counts there while nobody reports it: it is being started,
    restarted or moved by our own daemons, or waits for its host to come back."""
    stopped: bool = False
    """Whether it is not meant to run: then it needs no slots, and nobody misses it where it is not reported."""
    held: tuple[str, ...] = ()
    """The hosts that may run it, or wait for it in a move, where its own document says so and its host is among them:
    what any other host reports of it is of the past."""

    @property
    def rules(self) -> tuple[AffinityRule, ...]:
        """Every group that it is in, each once."""
        return every_rule(self.server_group, self.group_policy, self.affinity)


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


def amounts_of(vm: VmView) -> Amounts:
    """Everything the VM needs."""
    return Amounts({"cpu": vm.cpu_milli, "memory": vm.memory_bytes, **vm.also_needs})
