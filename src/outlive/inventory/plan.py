"""From a checked inventory to the writes that bring the store in line with it: pure, and the same for every source.

The writes stand in an order that is safe to stop after any of them: flavors, hosts, VMs, then deletions. An
object that is already as it should be is not written, so that repeating an import completes an interrupted one
and otherwise does nothing. What the source does not know stays as it is: an operator's labels, traits and
maintenance survive every import. Where unplaced VMs land is not decided here but handed in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Final, Literal

import msgspec

from outlive.base import stable_hash
from outlive.inventory.check import CREATOR, Existing, ImportOptions, WantedInventory
from outlive.inventory.power_states import VANISHED, GuestPower
from outlive.inventory.records import FlavorRecord, HostRecord, VmRecord
from outlive.placement import concerned_vm, demands_of, find_contradictions
from outlive.resources import (
    CREATOR_LABEL,
    DOMAIN_LABEL_PREFIX,
    HOST_LABEL,
    ZONE_LABEL,
    Amounts,
    Assigned,
    Condition,
    Flavor,
    FlavorSpec,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Resource,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    with_condition,
)
from outlive.resources.reasons import ImportNotice, Reason, render

CONFLICTS_SHOWN: Final = 20
"""Contradictions that an import reports."""
Verb = Literal["create", "update", "delete"]


class PlannedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One object to write: its spec half, then its status half, as far as they differ from what is there."""

    verb: Verb
    object: Resource
    spec: bool = True
    status: bool = False
    status_first: bool = False
    """A VM loses its host: the label that shows it to the host's daemon goes after the assignment."""


class ImportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an import does, in order, and how much is already as it should be."""

    writes: tuple[PlannedWrite, ...]
    unchanged: dict[str, int]

    def count_changes(self) -> dict[str, dict[str, int]]:
        """Kind → how many are created, updated, unchanged and deleted."""
        table: dict[str, dict[str, int]] = {
            kind.__name__: {"created": 0, "updated": 0, "unchanged": self.unchanged.get(kind.__name__, 0), "deleted": 0}
            for kind in (Hypervisor, VirtualMachine, Flavor)
        }
        for write in self.writes:
            table[write.object.kind()][f"{write.verb}d"] += 1
        return table


def plan_import(
    wanted: WantedInventory, existing: Existing, options: ImportOptions, *, landed: Mapping[str, str], now: datetime
) -> ImportPlan:
    """The writes, in a safe order. ``landed``: VM → host, for VMs that were placed and not found somewhere."""
    zones = _Zones(wanted, existing)
    vms = {
        name: _build_vm(record, existing.vms.get(name), landed, zones, existing, options.creator, now)
        for name, record in wanted.vms.items()
    }
    vms |= {name: _vanished_vm(existing.vms[name], zones, now) for name in sorted(wanted.vanished_vms)}
    staying = {name: vm for name, vm in existing.vms.items() if name not in wanted.gone_vms}
    pairs: list[tuple[Flavor | Hypervisor | VirtualMachine, Flavor | Hypervisor | VirtualMachine | None]] = []
    pairs.extend(_plan_flavors(wanted.flavors.values(), existing, options.creator))
    pairs.extend(_plan_hosts(wanted, existing, options, {**staying, **vms}, now))
    pairs.extend((vm, existing.vms.get(name)) for name, vm in vms.items())
    writes: list[PlannedWrite] = []
    unchanged: dict[str, int] = defaultdict(int)
    for new, old in pairs:
        status = None if isinstance(new, Flavor) else new.status
        if old is None:
            writes.append(PlannedWrite(verb="create", object=new, status=status is not None))
            continue
        spec = (new.metadata, new.spec) != (old.metadata, old.spec)
        changed = not isinstance(old, Flavor) and status != old.status
        leaves = HOST_LABEL in old.metadata.labels and HOST_LABEL not in new.metadata.labels
        if spec or changed:
            writes.append(PlannedWrite(verb="update", object=new, spec=spec, status=changed, status_first=leaves))
        else:
            unchanged[new.kind()] += 1
    writes.extend(PlannedWrite(verb="delete", object=existing.vms[name]) for name in sorted(wanted.gone_vms))
    writes.extend(PlannedWrite(verb="delete", object=existing.hosts[name]) for name in sorted(wanted.gone_hosts))
    return ImportPlan(writes=tuple(writes), unchanged=dict(unchanged))


def _merge_metadata(name: str, old: Resource | None, labels: Mapping[str, str | None], creator: str) -> ObjectMeta:
    """The old metadata with labels set, or removed where ``None``. The creator is set on new objects, and on those of
    an import that a source keeps from now on."""
    meta = old.metadata if old is not None else ObjectMeta(name=name, labels={CREATOR_LABEL: creator})
    if meta.labels.get(CREATOR_LABEL) == CREATOR:
        meta = msgspec.structs.replace(meta, labels={**meta.labels, CREATOR_LABEL: creator})
    merged = {**meta.labels, **{key: value for key, value in labels.items() if value is not None}}
    for key, value in labels.items():
        if value is None:
            merged.pop(key, None)
    return msgspec.structs.replace(meta, labels=merged)


def _plan_flavors(
    records: Iterable[FlavorRecord], existing: Existing, creator: str
) -> Iterator[tuple[Flavor, Flavor | None]]:
    by_name = {flavor.spec.flavor_name: flavor for flavor in existing.flavors.values()}
    taken = set(existing.flavors)
    for record in records:
        old = by_name.get(record.name)
        name = old.name if old is not None else object_name(record.name, taken)
        taken.add(name)
        spec = FlavorSpec(
            flavor_name=record.name,
            resources=record.resources,
            disk_gib=record.disk_gib,
            ephemeral_gib=record.ephemeral_gib,
            extra_specs=record.extra_specs,
        )
        yield Flavor(metadata=_merge_metadata(name, old, {}, creator), spec=spec), old


def object_name(flavor_name: str, taken: Iterable[str] = ()) -> str:
    """A DNS name for a flavor: lower case, other characters as hyphens, and a hash where that name is taken."""
    cleaned = "".join(char if char.isascii() and (char.isalnum() or char in "-.") else "-" for char in flavor_name)
    parts = [part.strip("-") for part in cleaned.lower().split(".")]
    name = ".".join(part for part in parts if part)[:200].strip("-.") or "flavor"
    return name if name not in set(taken) else f"{name}-{stable_hash(flavor_name):016x}"


class _Zones:
    """The zones of hosts, empty where one has none: before the import, and once it is done."""

    def __init__(self, wanted: WantedInventory, existing: Existing) -> None:
        self.before = {name: host.metadata.labels.get(ZONE_LABEL, "") for name, host in existing.hosts.items()}
        said = {name: host.zone for name, host in wanted.hosts.items() if host.zone is not None}
        self.after = {**self.before, **said}

    def is_derived(self, vm: VirtualMachine) -> bool:
        """Whether the VM's zone is that which its host had before the import: nobody else gave it one."""
        return vm.spec.zone == self.before.get(vm.host, "")

    def find_zone(self, record: VmRecord, old: VirtualMachine | None, host: str) -> str:
        """The VM's zone: that of its source, else that which somebody else gave it, else that of its host."""
        if record.zone:
            return record.zone
        if record.zone is None and old is not None and not self.is_derived(old):
            return old.spec.zone
        return self.after.get(host, "")


def _build_vm(
    record: VmRecord,
    old: VirtualMachine | None,
    landed: Mapping[str, str],
    zones: _Zones,
    existing: Existing,
    creator: str,
    now: datetime,
) -> VirtualMachine:
    spec = old.spec if old is not None else VirtualMachineSpec()
    status = old.status if old is not None else VirtualMachineStatus()
    phase = record.phase if record.phase is not None else status.phase.replace(VANISHED, "")
    held = bool(status.holders) or status.migration is not None  # its host says itself where and how it is
    assigned, host = status.assigned, landed.get(record.id, record.host)
    # An assignment to the same host keeps its slot and fence.
    if not held and host is not None and (assigned is None or assigned.hypervisor != host):
        assigned = Assigned(hypervisor=host) if host else None
    # A host's own daemon starts and stops a VM as its user says, and no list of a source does.
    ours = held or (old is not None and existing.is_own(old.host))
    power: str | None = "stopped" if record.power is GuestPower.STOPPED else "running"
    if old is not None and (ours or (record.power is None and old.status.phase != VANISHED)):
        power = None
    known = {
        "display_name": record.name or None,
        "project": record.project,
        "flavor": record.flavor,
        "resources": record.resources,
        "disk_gib": record.disk_gib,
        "extra_specs": record.extra_specs,
        "os_type": record.os_type,
        "zone": zones.find_zone(record, old, assigned.hypervisor if assigned is not None else ""),
        "server_group": record.server_group,
        "server_group_policy": record.server_group_policy,
        "protection": record.protection,
        "restart_priority": record.restart_priority,
        "power_state": power,
    }
    spec = msgspec.structs.replace(spec, **{key: value for key, value in known.items() if value is not None})
    new = status if held else msgspec.structs.replace(status, phase=phase, assigned=assigned, source=creator)
    if new != status:
        new = msgspec.structs.replace(new, observed_at=now)
    labels = {HOST_LABEL: assigned.hypervisor if assigned is not None else None}
    return VirtualMachine(metadata=_merge_metadata(record.id, old, labels, creator), spec=spec, status=new)


def _vanished_vm(vm: VirtualMachine, zones: _Zones, now: datetime) -> VirtualMachine:
    """The VM as one that its source does not list any more: it is nowhere and needs no slot until it is seen again."""
    if vm.status.phase == VANISHED and vm.status.assigned is None:
        return vm
    spec = msgspec.structs.replace(vm.spec, power_state="stopped", zone="" if zones.is_derived(vm) else vm.spec.zone)
    status = msgspec.structs.replace(vm.status, phase=VANISHED, assigned=None, observed_at=now)
    labels = {name: value for name, value in vm.metadata.labels.items() if name != HOST_LABEL}
    metadata = msgspec.structs.replace(vm.metadata, labels=labels)
    return msgspec.structs.replace(vm, metadata=metadata, spec=spec, status=status)


class _Load(msgspec.Struct):
    """The VMs of one host, and what they need together."""

    instances: list[Instance]
    needed: Amounts


def _plan_hosts(
    wanted: WantedInventory,
    existing: Existing,
    options: ImportOptions,
    vms: Mapping[str, VirtualMachine],
    now: datetime,
) -> Iterator[tuple[Hypervisor, Hypervisor | None]]:
    """Hosts of the source, then hosts that an earlier import made and whose VMs this one changes."""
    loads: dict[str, _Load] = {}
    for name, vm in sorted(vms.items()):
        if vm.status.assigned is None:
            continue
        load = loads.setdefault(vm.status.assigned.hypervisor, _Load([], Amounts(cpu=0, memory=0)))
        load.instances.append(Instance(id=name, name=vm.spec.display_name, active=vm.spec.power_state == "running"))
        load.needed = load.needed + vm.spec.resources
    empty = _Load([], Amounts(cpu=0, memory=0))
    for position, record in enumerate(wanted.hosts.values()):
        old = existing.hosts.get(record.name)
        yield _build_host(record, position, old, loads.get(record.name, empty), options, now), old
    for name, host in existing.hosts.items():
        if (
            name in wanted.hosts
            or name in wanted.gone_hosts
            or host.metadata.labels.get(CREATOR_LABEL) not in (CREATOR, options.creator)
        ):
            continue
        conditions = host.status.conditions
        if name in wanted.vanished_hosts:
            # No slot is there until the source lists it again.
            message = "its source does not list it any more"
            gone = Condition(type="Ready", status="False", reason="Vanished", message=message, last_transition_time=now)
            conditions = with_condition(conditions, gone)
        load = loads.get(name, empty)
        changed = msgspec.structs.replace(
            host.status,
            instances=tuple(load.instances),
            num_instances=len(load.instances),
            allocation=load.needed,
            conditions=conditions,
        )
        yield msgspec.structs.replace(host, status=changed), host


def _build_host(
    record: HostRecord, position: int, old: Hypervisor | None, load: _Load, options: ImportOptions, now: datetime
) -> Hypervisor:
    spec = old.spec if old is not None else Hypervisor().spec
    if options.overcommit:
        spec = msgspec.structs.replace(spec, overcommit=options.overcommit)
    # Capacity times overcommit, rounded down. Always written: weighers do not fall back to plain capacity.
    ratios = {name: Fraction(str(ratio)) for name, ratio in spec.overcommit.items()}
    capacity = Amounts({name: int(amount * ratios.get(name, 1)) for name, amount in record.capacity.items()})
    allocation, used = load.needed, record.used
    if used is not None:
        names = {**allocation, **used}
        allocation = Amounts({name: max(load.needed.get(name, 0), used.get(name, 0)) for name in names})
    status = old.status if old is not None else HypervisorStatus()
    new = msgspec.structs.replace(
        status,
        source_name=record.source_name,
        capacity=record.capacity,
        effective_capacity=capacity,
        allocation=allocation,
        instances=tuple(load.instances),
        num_instances=len(load.instances),
        conditions=_host_conditions(record, status.conditions, now),
        source=options.creator,
        **_facts_of(record, status),
    )
    if new != status:
        new = msgspec.structs.replace(new, observed_at=now)
    labels: dict[str, str | None] = {}
    if record.zone is not None:
        labels[ZONE_LABEL] = record.zone or None
    for kind, size in options.domains:
        labels[DOMAIN_LABEL_PREFIX + kind] = f"{kind}-{position // size + 1:03d}"
    for kind, name in record.domains.items():
        labels[DOMAIN_LABEL_PREFIX + kind] = name or None
    metadata = _merge_metadata(record.name, old, labels, options.creator)
    return Hypervisor(metadata=metadata, spec=spec, status=new)


def _facts_of(record: HostRecord, status: HypervisorStatus) -> dict[str, object]:
    facts: dict[str, object] = {}
    if record.traits is not None:
        facts["traits"] = record.traits
    if record.aggregates is not None:
        facts["aggregates"] = record.aggregates
    if record.cpu_arch is not None:
        facts["capabilities"] = msgspec.structs.replace(status.capabilities, cpu_arch=record.cpu_arch)
    kind = record.hypervisor_type or status.domain_capabilities.hypervisor_type or "kvm"
    facts["domain_capabilities"] = msgspec.structs.replace(status.domain_capabilities, hypervisor_type=kind)
    return facts


def _host_conditions(record: HostRecord, conditions: tuple[Condition, ...], now: datetime) -> tuple[Condition, ...]:
    ready = Condition(type="Ready", status="True", reason="Imported", last_transition_time=now)
    if record.down:
        ready = Condition(type="Ready", status="False", reason="Down", last_transition_time=now)
    conditions = with_condition(conditions, ready)
    if record.disabled is not None:
        disabled = Condition(
            type="HypervisorDisabled",
            status="True" if record.disabled else "False",
            reason="Disabled" if record.disabled else "Enabled",
            message=record.disabled,
            last_transition_time=now,
        )
        conditions = with_condition(conditions, disabled)
    return conditions


# What comes of it.


def apply_plan(plan: ImportPlan, existing: Existing) -> tuple[dict[str, Hypervisor], dict[str, VirtualMachine]]:
    """Hosts and VMs as they are once the plan is carried out."""
    hosts, vms = dict(existing.hosts), dict(existing.vms)
    for write in plan.writes:
        match write.object:
            case Hypervisor() as host:
                hosts.pop(host.name, None) if write.verb == "delete" else hosts.update({host.name: host})
            case VirtualMachine() as vm:
                vms.pop(vm.name, None) if write.verb == "delete" else vms.update({vm.name: vm})
            case _:
                continue
    return hosts, vms


def find_notices(
    wanted: WantedInventory, existing: Existing, plan: ImportPlan, levels: Collection[str]
) -> Iterator[Reason]:
    """What an import has to say besides its counts, in a fixed order and only about what the source lists.

    ``levels``: the protection levels of the settings.
    """
    all_hosts, all_vms = apply_plan(plan, existing)
    vms = [all_vms[name] for name in wanted.vms]
    hosts = [all_hosts[name] for name in wanted.hosts]
    zones = {name: host.metadata.labels.get(ZONE_LABEL, "") for name, host in all_hosts.items()}
    zoned = [vm for vm in vms if not wanted.vms[vm.name].zone and vm.spec.zone and vm.host]
    yield from _make_notice(
        ImportNotice.VM_ZONE_FROM_HOST, "vms", [v.name for v in zoned if v.spec.zone == zones.get(v.host)]
    )
    yield from _make_notice(
        ImportNotice.VM_ZONE_KEPT, "vms", [v.name for v in zoned if v.spec.zone != zones.get(v.host)]
    )
    if any(vm.spec.zone for vm in vms):
        zoneless = [host.name for host in hosts if not host.metadata.labels.get(ZONE_LABEL)]
        yield from _make_notice(ImportNotice.HOST_ZONE_UNKNOWN, "hosts", zoneless)
    too_large = [vm.name for vm in vms if _is_too_large(vm, all_hosts.get(vm.host))]
    yield from _make_notice(ImportNotice.VM_LARGER_THAN_HOST, "vms", too_large)
    yield from _overfull_hosts(hosts)
    ruled = [demands_of(vm) for vm in all_vms.values() if vm.spec.affinity_rules or vm.spec.preferred_hosts.strict]
    for conflict in find_contradictions(ruled, zones)[:CONFLICTS_SHOWN] if ruled else ():
        said = render(conflict)
        fields = {"vm": concerned_vm(conflict), "why": said.text, "remedy": said.remedy}
        yield Reason(ImportNotice.RULES_CONTRADICT, fields)
    strangers = {vm.name: vm.spec.protection for vm in vms if vm.spec.protection not in ("", *levels)}
    named = tuple(sorted(set(strangers.values())))
    yield from _make_notice(ImportNotice.LEVEL_UNKNOWN, "vms", strangers, levels=named)
    yield from _make_notice(ImportNotice.HOST_DOWN, "hosts", [one.name for one in wanted.hosts.values() if one.down])
    yield from _make_notice(
        ImportNotice.HOST_DISABLED, "hosts", [one.name for one in wanted.hosts.values() if one.disabled]
    )
    running = [vm for vm in vms if vm.spec.power_state == "running"]
    yield from _make_notice(ImportNotice.VM_WITHOUT_HOST, "vms", [vm.name for vm in running if not vm.host])
    stopped = [vm.name for vm in vms if vm.spec.power_state != "running"]
    yield from _make_notice(ImportNotice.VM_NOT_RUNNING, "vms", stopped)
    renamed = [f"{host.status.source_name} is {host.name}" for host in hosts if host.status.source_name]
    yield from _make_notice(ImportNotice.HOST_RENAMED, "hosts", renamed)
    yield from _make_notice(ImportNotice.HOST_VANISHED, "hosts", sorted(wanted.vanished_hosts))
    yield from _make_notice(
        ImportNotice.VM_VANISHED, "vms", [_name_and_id(existing.vms[name]) for name in sorted(wanted.vanished_vms)]
    )
    yield from _make_notice(ImportNotice.HOST_KEPT, "hosts", sorted(wanted.kept_hosts))


def _name_and_id(vm: VirtualMachine) -> str:
    return f"{vm.spec.display_name} ({vm.name})" if vm.spec.display_name not in ("", vm.name) else vm.name


def _overfull_hosts(hosts: Iterable[Hypervisor]) -> Iterator[Reason]:
    """Hosts whose VMs need more than there is, and the overcommit with which all of them would fit."""
    named: list[str] = []
    ratios: dict[str, Fraction] = {}
    for host in hosts:
        capacity, needed = host.effective_capacity(), host.status.allocation
        if capacity is None or needed is None:
            continue
        short = [name for name in ("cpu", "memory") if needed.get(name, 0) > capacity.get(name, 0) > 0]
        for name in short:
            named.append(f"{host.name}: {name} {needed.to_wire()[name]} of {capacity.to_wire()[name]}")
            plain = (host.status.capacity or capacity).get(name, 0)
            ratios[name] = max(ratios.get(name, Fraction(1)), Fraction(needed.get(name, 0), plain or 1))
    if named:
        hint = ",".join(f"{name}={float(-(-ratio * 10 // 1)) / 10:g}" for name, ratio in sorted(ratios.items()))
        yield Reason(ImportNotice.HOST_OVERFULL, {"count": len(named), "hosts": tuple(named), "overcommit": hint})


def _make_notice(code: ImportNotice, what: str, names: Iterable[str], **more: tuple[str, ...]) -> Iterator[Reason]:
    listed = tuple(names)
    if listed:
        yield Reason(code, {"count": len(listed), what: listed, **more})


def _is_too_large(vm: VirtualMachine, host: Hypervisor | None) -> bool:
    capacity = host.effective_capacity() if host is not None else None
    return capacity is not None and any(need > capacity.get(name, 0) for name, need in vm.spec.resources.items())
