"""VMs as decisions see them: plain, frozen views, made from rows of a database and from our own objects.

A VM source is the reference's synchronised tables or our own ``VirtualMachine`` objects. Nothing here reads
a database or a store, and nothing is dropped without being counted. Where a VM is believed to be is the source's word
alone; what hosts report is merged with it in ``outlive.failover.locations``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec

from outlive.placement.settings import MIB
from outlive.resources import (
    CPU,
    MEMORY,
    AffinityRule,
    Amounts,
    FunctionNeed,
    VirtualMachine,
    every_rule,
    is_down_for_good,
    object_name,
)

MILLI: Final = 1000
"""Milli-cores of a core."""

DUE_PHASES = frozenset({"start", "restart", "migrate", "migrate-live", "unmigrate"})
"""What our own daemons say of a VM that is to run and may be without a domain for a while."""

STOPPED_STATES = frozenset({"SHUTOFF", "STOPPED", "SUSPENDED", "PAUSED", "SHELVED", "SHELVED_OFFLOADED", "DELETED"})
"""What Nova says of a server that is not meant to run now."""


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
    disks: tuple[str, ...] = ()
    """As its document names them; none where only a database knows it."""
    functions: tuple[FunctionNeed, ...] = ()
    """Virtual functions that it needs of its host."""
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
    """Whether somebody has taken it out of protection, or deleted it: then it needs no slots …"""
    unprotected_why: str = ""
    """… and why, in that operator's words."""
    created_at: float = 0.0
    source: str = ""
    """Who gave the location: ``database``, ``nova``, ``hypervisor`` or ``resource``."""
    due: bool = False
    """Whether it is about to run on its host, so that it counts there while nobody reports it: it is being started,
    restarted or moved by our own daemons, or waits for its host to come back."""
    stopped: bool = False
    """Whether nobody is to start it (``is_down_for_good``): then it needs no slots, and nobody misses it where no host
    reports it."""
    deleting: bool = False
    """Whether somebody has deleted it, and it waits until no host may run it."""
    held: tuple[str, ...] = ()
    """The hosts that may run it, or wait for it in a move, where its own document says so and its host is among them:
    what any other host reports of it is of the past."""

    @property
    def rules(self) -> tuple[AffinityRule, ...]:
        """Every group that it is in, each once."""
        return every_rule(self.server_group, self.group_policy, self.affinity)


def amounts_of(vm: VmView) -> Amounts:
    """Everything the VM needs."""
    return Amounts({"cpu": vm.cpu_milli, "memory": vm.memory_bytes, **vm.also_needs})


class ServerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A server, as the synchronised table has it; null columns read as empty text."""

    id: str
    name: str = ""
    status: str = ""
    project_id: str = ""
    host: str = ""
    zone: str = ""
    created: str = ""
    flavor_name: str = ""
    os_type: str = ""


class FlavorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A flavor, as the synchronised table has it. ``ram_mib`` is MiB, ``extra_specs`` is JSON text."""

    name: str
    vcpus: int = 0
    ram_mib: int = 0
    disk_gib: int = 0
    extra_specs: str = ""


class VmList(msgspec.Struct, frozen=True, kw_only=True):
    """All VMs of a source, with what had to be left out."""

    vms: tuple[VmView, ...] = ()
    without_host: int = 0
    """VMs that the source places nowhere."""
    unknown_flavors: dict[str, int] = {}
    """Flavor name → VMs left out because the flavor's size is unknown."""
    malformed_extra_specs: tuple[str, ...] = ()
    """Flavors whose extra specs are no JSON object of text; they count as having none."""
    repeated: int = 0
    """Further rows of VMs that were listed already; the first row of each counts."""
    unreadable: dict[str, int] = {}
    """Table → rows left out because a column of theirs cannot be read."""


class VMSource(Protocol):
    """Who knows all VMs, and believes where they are."""

    async def list_vms(self) -> VmList:
        """Every VM with a host and a known size, in an order that repeats. Nothing at all or everything."""
        ...

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One VM, or ``None`` where it is unknown, without a host or without a size."""
        ...


def join_rows(servers: Iterable[ServerRow], flavors: Iterable[FlavorRow]) -> VmList:
    """All servers with a host and a known flavor, in the order of ``servers``.

    Of equal flavor names the last counts, of equal ids the first, whatever is wrong with it. The server's status plays
    no role: SHUTOFF, ERROR and BUILD are listed like ACTIVE.
    """
    by_name = {flavor.name: flavor for flavor in flavors}
    specs: dict[str, dict[str, str]] = {}
    malformed: list[str] = []
    vms: list[VmView] = []
    without_host = repeated = 0
    unknown: dict[str, int] = {}
    listed: set[str] = set()
    for server in servers:
        if server.id in listed:
            repeated += 1
            continue
        listed.add(server.id)
        if not server.host:
            without_host += 1
            continue
        flavor = by_name.get(server.flavor_name)
        if flavor is None:
            unknown[server.flavor_name] = unknown.get(server.flavor_name, 0) + 1
            continue
        if flavor.name not in specs:
            parsed = parse_extra_specs(flavor.extra_specs)
            specs[flavor.name] = parsed or {}
            if parsed is None:
                malformed.append(flavor.name)
        vms.append(vm_of_row(server, flavor, specs[flavor.name]))
    return VmList(
        vms=tuple(vms),
        without_host=without_host,
        unknown_flavors=dict(sorted(unknown.items())),
        malformed_extra_specs=tuple(malformed),
        repeated=repeated,
    )


def join_row(server: ServerRow | None, flavor: FlavorRow | None) -> VmView | None:
    """One VM; ``None`` where the server is unknown, has no host, or its flavor is unknown."""
    if server is None or flavor is None or not server.host:
        return None
    return vm_of_row(server, flavor, parse_extra_specs(flavor.extra_specs) or {})


def parse_extra_specs(text: str) -> dict[str, str] | None:
    """The map in the JSON text, a null in it being empty text; empty text is an empty map.

    Anything but an object of text is ``None``.
    """
    if not text or text.strip() in ("", "null"):
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, str | None])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return {key: value or "" for key, value in found.items()}


def vm_of_row(server: ServerRow, flavor: FlavorRow, extra_specs: dict[str, str]) -> VmView:
    """A server with its flavor, also where it has no host."""
    try:
        moment = datetime.fromisoformat(server.created)
        created_at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        created_at = 0.0
    return VmView(
        id=server.id,
        name=server.name,
        host=object_name(server.host, "host") if server.host else "",
        zone=server.zone,
        project=server.project_id,
        flavor=server.flavor_name,
        cpu_milli=flavor.vcpus * MILLI,
        memory_bytes=flavor.ram_mib * MIB,
        extra_specs=extra_specs,
        os_type=server.os_type or "unknown",
        disk_gib=flavor.disk_gib,
        status=server.status,
        created_at=created_at,
        source="database",
        stopped=server.status in STOPPED_STATES,
    )


def vm_of_resource(vm: VirtualMachine) -> VmView | None:
    """Our own object as a view; ``None`` while it is assigned to no host."""
    view = view_of_resource(vm)
    return view if view.host else None


def view_of_resource(vm: VirtualMachine) -> VmView:
    """Our own object as a view, with an empty host while it is assigned to none."""
    spec, host = vm.spec, _place_of(vm)
    created = vm.metadata.creation_timestamp
    unprotected_why = spec.recovery.reason if spec.recovery.mode == "ignore" else ""
    preferred = spec.preferred_hosts.weights
    if spec.failback == "auto":  # hosts that it goes back to by itself are to be free of its slots
        own = preferred.get(host, 0)
        preferred = {name: weight if weight <= own else -1 for name, weight in preferred.items()}
    return VmView(
        id=vm.name,
        name=spec.display_name,
        host=host,
        zone=spec.zone,
        project=spec.project,
        flavor=spec.flavor,
        cpu_milli=spec.resources.cpu_milli,
        memory_bytes=spec.resources.memory_bytes,
        also_needs={k: v for k, v in sorted(spec.resources.items()) if k not in (CPU, MEMORY) and v > 0},
        host_limit=vm.allowed_hosts,
        extra_specs=spec.extra_specs,
        os_type=spec.os_type or "unknown",
        disk_gib=spec.disk_gib,
        disks=spec.disks,
        functions=spec.functions,
        status=vm.status.phase,
        server_group=spec.server_group,
        group_policy=spec.server_group_policy,
        affinity=spec.affinity,
        preferred=preferred,
        level=spec.protection,
        priority=spec.restart_priority,
        unprotected=vm.deleting or spec.recovery.mode == "ignore",
        unprotected_why="it is being deleted" if vm.deleting else unprotected_why,
        created_at=created.timestamp() if created else 0.0,
        source="resource",
        due=spec.power_state == "running" and not vm.deleting and vm.status.phase in DUE_PHASES,
        stopped=is_down_for_good(vm),
        deleting=vm.deleting,
        held=_holding_hosts(vm, host),
    )


def _place_of(vm: VirtualMachine) -> str:
    """Where it is assigned; while it is being recovered, where it was lost, until it is seen running where it is
    assigned: its slots are promises until then. A move may have brought it there before its source was lost.
    """
    recovery = vm.status.recovery
    if recovery is None or not recovery.origin or not recovery.unfinished:
        return vm.host
    runs = any(one.hypervisor == vm.host and one.role == "" and one.seen == "running" for one in vm.status.holders)
    return vm.host if runs else recovery.origin


def _holding_hosts(vm: VirtualMachine, place: str) -> tuple[str, ...]:
    """Who may run it, or waits for it in a move, once the host where it counts is among them.

    Where nobody has an entry, its host alone may begin to run it, unless it is down for good.
    """
    hosts = {one.hypervisor for one in vm.status.holders}
    if not hosts and vm.host:
        return () if is_down_for_good(vm) else (vm.host,)
    return tuple(sorted(hosts)) if place in hosts else ()


def list_resources(vms: Iterable[VirtualMachine]) -> VmList:
    """All our own VMs that are assigned to a host, by name."""
    views = [vm_of_resource(vm) for vm in sorted(vms, key=lambda v: v.name)]
    found = tuple(view for view in views if view is not None)
    return VmList(vms=found, without_host=len(views) - len(found))
