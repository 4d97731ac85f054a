"""Where VMs are: pure merges of what a VM source says with what the hosts report.

A VM source (Nova's database, or our own ``VirtualMachine`` objects) knows every VM's attributes and *believes* where
it is; each host *reports* the VMs that are active on it. ``on_hypervisors`` merges the two, in one of two trust modes
(docs/reference/failover.md#vm-source). Nothing here reads a database or a store, and nothing is dropped without being
counted. A stopped VM is reported by no host as active, and so is in neither result: it has no slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from outlive.failover.model import HostView, VmView
from outlive.failover.portions import Portions, portioned, whole
from outlive.failover.sizing import MIB, MILLI
from outlive.resources import CPU, DOMAIN_LABEL_PREFIX, MEMORY, ZONE_LABEL, Hypervisor, VirtualMachine

DUE_PHASES = frozenset({"start", "restart", "migrate", "migrate-live", "unmigrate"})
"""What our own daemons say of a VM that is to run and may be without a domain for a while."""
HOSTS_OF_A_PORTION = 50
"""Hosts that are looked at together; each may report many VMs."""


class ServerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A server, as Nova's table has it; null columns read as empty text."""

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
    """A flavor, as Nova's table has it. ``ram_mib`` is MiB, whatever Nova calls it; ``extra_specs`` is JSON text."""

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


class Disagreement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that a host reports as active and that the source does not know."""

    vm: str
    name: str = ""
    hypervisor: str


class OnHypervisors(msgspec.Struct, frozen=True, kw_only=True):
    """The VMs that both sides vouch for, and why the others are not among them."""

    vms: tuple[VmView, ...] = ()
    sightings: dict[str, str] = {}
    """VM → the first host, by name, that reports it as active."""
    duplicates: tuple[Disagreement, ...] = ()
    """Further sightings of a VM that another host, earlier by name, reports as well (a live migration)."""
    not_in_source: tuple[Disagreement, ...] = ()
    nowhere_active: int = 0
    """VMs of the source that no host reports as active."""
    on_unknown_hypervisor: int = 0
    on_another_hypervisor: int = 0
    """Dropped where the source is trusted: another host than the source's reports the VM."""
    listed_nowhere: int = 0
    """Dropped where the source is trusted: its host is known, and no host reports the VM."""


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
    return VmView(
        id=server.id,
        name=server.name,
        host=server.host,
        zone=server.zone,
        project=server.project_id,
        flavor=server.flavor_name,
        cpu_milli=flavor.vcpus * MILLI,
        memory_bytes=flavor.ram_mib * MIB,
        extra_specs=extra_specs,
        os_type=server.os_type or "unknown",
        disk_gib=flavor.disk_gib,
        status=server.status,
        created_at=_instant(server.created),
        source="database",
    )


def _instant(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 time (UTC unless it says otherwise); 0 where there is none."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def vm_of_resource(vm: VirtualMachine, *, now: float = 0.0) -> VmView | None:
    """Our own object as a view; ``None`` while it is assigned to no host."""
    view = view_of_resource(vm, now=now)
    return view if view.host else None


def view_of_resource(vm: VirtualMachine, *, now: float = 0.0) -> VmView:
    """Our own object as a view, with an empty host while it is assigned to none."""
    spec, observed = vm.spec, vm.status.observed_at
    created = vm.metadata.creation_timestamp
    return VmView(
        id=vm.name,
        name=spec.display_name,
        host=_place(vm),
        zone=spec.zone,
        project=spec.project,
        flavor=spec.flavor,
        cpu_milli=spec.resources.cpu_milli,
        memory_bytes=spec.resources.memory_bytes,
        also_needs={k: v for k, v in sorted(spec.resources.items()) if k not in (CPU, MEMORY) and v > 0},
        host_limit=tuple(sorted(set(spec.host_limit))),
        extra_specs=spec.extra_specs,
        os_type=spec.os_type or "unknown",
        disk_gib=spec.disk_gib,
        status=vm.status.phase,
        server_group=spec.server_group,
        group_policy=spec.server_group_policy,
        level=spec.protection,
        priority=spec.restart_priority,
        created_at=created.timestamp() if created else 0.0,
        source="resource",
        due=spec.power_state == "running" and vm.status.phase in DUE_PHASES,
        age_s=max(0.0, now - observed.timestamp()) if observed and now else 0.0,
    )


def _place(vm: VirtualMachine) -> str:
    """Where it is assigned; while it is being recovered, where it was lost: its slots are promises until it runs."""
    assigned, recovery = vm.status.assigned, vm.status.recovery
    if recovery is not None and recovery.origin and recovery.phase not in ("recovered", "dropped"):
        return recovery.origin
    return assigned.hypervisor if assigned is not None else ""


def list_resources(vms: Iterable[VirtualMachine], *, now: float = 0.0) -> VmList:
    """All our own VMs that are assigned to a host, by name."""
    views = [vm_of_resource(vm, now=now) for vm in sorted(vms, key=lambda v: v.name)]
    found = tuple(view for view in views if view is not None)
    return VmList(vms=found, without_host=len(views) - len(found))


def host_view(host: Hypervisor) -> HostView:
    """A host with the VMs that it reports as active."""
    return HostView(
        name=host.name,
        zone=host.metadata.labels.get(ZONE_LABEL, ""),
        domains=failure_domains(host),
        active=tuple(instance.id for instance in host.status.instances if instance.active),
        lost=bool(host.status.lost),
    )


def failure_domains(host: Hypervisor) -> dict[str, str]:
    """Name → value of the failure domains that the host's labels name."""
    return {
        label.removeprefix(DOMAIN_LABEL_PREFIX): value
        for label, value in sorted(host.metadata.labels.items())
        if label.startswith(DOMAIN_LABEL_PREFIX) and value
    }


def active_on(hosts: Iterable[HostView]) -> dict[str, str]:
    """VM id → the host that reports it as active; of several the first by name."""
    found: dict[str, str] = {}
    for host in sorted(hosts, key=lambda h: h.name):
        for vm in host.active:
            found.setdefault(vm, host.name)
    return found


def on_hypervisors(
    vms: Sequence[VmView], hosts: Sequence[HostView], *, trust_hosts: bool, names: Mapping[str, str] | None = None
) -> OnHypervisors:
    """The VMs of the source that run on known hosts, with their location.

    With ``trust_hosts`` the reporting host is the location (order: hosts by name, then as each reports; last those that
    nobody reports and that are due); without, the source's host is, and that very host must report the VM, unless it is
    due and nobody does (order of ``vms``).
    ``names`` (VM id → the host's own name of it) only enriches the warnings.
    """
    return whole(merging(vms, hosts, trust_hosts=trust_hosts, names=names))


def merging(
    vms: Sequence[VmView],
    hosts: Sequence[HostView],
    *,
    trust_hosts: bool,
    names: Mapping[str, str] | None = None,
    located: Callable[[VmView, str], VmView] | None = None,
) -> Portions[OnHypervisors]:
    """``on_hypervisors`` in portions. ``located`` stands in for ``located_at``, for whoever remembers its answers."""
    place = located or located_at
    ordered = sorted(hosts, key=lambda h: (h.lost, h.name))
    sightings, duplicates = yield from _sightings(ordered, names or {})
    known: dict[str, VmView] = {}
    nowhere = 0
    for portion in portioned(vms):
        known.update((vm.id, vm) for vm in portion)
        nowhere += sum(vm.id not in sightings for vm in portion)
        yield
    strangers: list[Disagreement] = []
    found: list[VmView] = []
    for seen in portioned(sightings.items()):
        for vm, host in seen:
            if vm not in known:
                strangers.append(Disagreement(vm=vm, name=(names or {}).get(vm, ""), hypervisor=host))
            elif trust_hosts:
                found.append(place(known[vm], host))
        yield
    if trust_hosts:
        for portion in portioned(vms):
            found += [vm for vm in portion if vm.id not in sightings and is_due(vm)]
            yield
    merged = OnHypervisors(
        vms=tuple(found),
        sightings=sightings,
        duplicates=duplicates,
        not_in_source=tuple(strangers),
        nowhere_active=nowhere,
    )
    if trust_hosts:
        return merged
    kept, unknown, elsewhere, unlisted = yield from _vouched(vms, ordered, sightings)
    return msgspec.structs.replace(
        merged,
        vms=kept,
        on_unknown_hypervisor=unknown,
        on_another_hypervisor=elsewhere,
        listed_nowhere=unlisted,
    )


def _sightings(
    ordered: Sequence[HostView], names: Mapping[str, str]
) -> Portions[tuple[dict[str, str], tuple[Disagreement, ...]]]:
    """VM id → first host that reports it, and the further sightings."""
    first: dict[str, str] = {}
    again: list[Disagreement] = []
    for hosts in portioned(ordered, HOSTS_OF_A_PORTION):
        for host in hosts:
            for vm in host.active:
                if first.setdefault(vm, host.name) != host.name:
                    again.append(Disagreement(vm=vm, name=names.get(vm, ""), hypervisor=host.name))
        yield
    return first, tuple(again)


def _vouched(
    vms: Sequence[VmView], ordered: Sequence[HostView], sightings: Mapping[str, str]
) -> Portions[tuple[tuple[VmView, ...], int, int, int]]:
    """The VMs that the source's own host reports, and how many fell to each of the three reasons."""
    reports: dict[str, frozenset[str]] = {}
    for hosts in portioned(ordered, HOSTS_OF_A_PORTION):
        reports.update((host.name, frozenset(host.active)) for host in hosts)
        yield
    kept: list[VmView] = []
    unknown = elsewhere = unlisted = 0
    for portion in portioned(vms):
        for vm in portion:
            if vm.id not in sightings and is_due(vm):
                kept.append(vm)
            elif vm.host not in reports:
                unknown += 1
            elif vm.id in reports[vm.host]:
                kept.append(vm)
            elif vm.id in sightings:
                elsewhere += 1
            else:
                unlisted += 1
        yield
    return tuple(kept), unknown, elsewhere, unlisted


def located_at(vm: VmView, host: str) -> VmView:
    """The VM where a host reports it."""
    return msgspec.structs.replace(vm, host=host, source="hypervisor")


def locate(vm: VmView | None, sighting: str | None, *, on_own_host: bool, trust_hosts: bool) -> VmView | None:
    """One VM as ``on_hypervisors`` would show it, or ``None`` where it would be left out.

    ``sighting`` is the first host that reports it, ``on_own_host`` whether the source's own host reports it.
    """
    if vm is None:
        return None
    if sighting is None:
        return vm if is_due(vm) else None
    if trust_hosts:
        return located_at(vm, sighting)
    return vm if on_own_host else None


def is_due(vm: VmView) -> bool:
    """Whether it counts where it is to run although nobody reports it.

    It has no domain only because it is being started, restarted or moved, for example after its host has booted. If
    that host fails now, it is recovered like any other, so its slots stay; where it goes it needs some already.
    """
    return vm.due and vm.host != ""
