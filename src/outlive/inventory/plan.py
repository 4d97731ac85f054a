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
from typing import Final, Literal, cast

import msgspec

from outlive.base.hashes import stable_hash
from outlive.inventory.check import CREATOR, Existing, ImportOptions, Wanted
from outlive.inventory.power_states import VANISHED, GuestPower
from outlive.inventory.records import FlavorRecord, HostRecord, VmRecord
from outlive.placement.rule_conflicts import concerned_vm, contradictions
from outlive.placement.rules import demands_of
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
from outlive.resources.reasons import Reason, render
from outlive.resources.reasons.inventory import ImportNotice

CONFLICTS_SHOWN: Final = 20
"""Contradictions that an import reports."""
Verb = Literal["create", "update", "delete"]


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One object to write: its spec half, then its status half, as far as they differ from what is there."""

    verb: Verb
    object: Resource
    spec: bool = True
    status: bool = False
    status_first: bool = False
    """A VM loses its host: the label that shows it to the host's daemon goes after the assignment."""


class ImportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an import does, in order, and how much is already as it should be."""

    writes: tuple[Write, ...]
    unchanged: dict[str, int]

    def counts(self) -> dict[str, dict[str, int]]:
        """Kind → how many are created, updated, unchanged and deleted."""
        table: dict[str, dict[str, int]] = {
            kind.__name__: {"created": 0, "updated": 0, "unchanged": self.unchanged.get(kind.__name__, 0), "deleted": 0}
            for kind in (Hypervisor, VirtualMachine, Flavor)
        }
        for write in self.writes:
            table[write.object.kind()][f"{write.verb}d"] += 1
        return table


def plan_import(
    wanted: Wanted, existing: Existing, options: ImportOptions, *, landed: Mapping[str, str], now: datetime
) -> ImportPlan:
    """The writes, in a safe order. ``landed``: VM → host, for VMs that were placed and not found somewhere."""
    zones = _Zones(wanted, existing)
    vms = {
        name: _vm(record, existing.vms.get(name), landed, zones, existing, options.creator, now)
        for name, record in wanted.vms.items()
    }
    vms |= {name: _vanished_vm(existing.vms[name], zones, now) for name in sorted(wanted.vanished_vms)}
    staying = {name: vm for name, vm in existing.vms.items() if name not in wanted.gone_vms}
    pairs: list[tuple[Resource, Resource | None]] = []
    pairs.extend(_flavors(wanted.flavors.values(), existing, options.creator))
    pairs.extend(_hosts(wanted, existing, options, {**staying, **vms}, now))
    pairs.extend((vm, existing.vms.get(name)) for name, vm in vms.items())
    writes: list[Write] = []
    unchanged: dict[str, int] = defaultdict(int)
    for new, old in pairs:
        write = _difference(new, old)
        if write is None:
            unchanged[new.kind()] += 1
        else:
            writes.append(write)
    writes.extend(Write(verb="delete", object=existing.vms[name]) for name in sorted(wanted.gone_vms))
    writes.extend(Write(verb="delete", object=existing.hosts[name]) for name in sorted(wanted.gone_hosts))
    return ImportPlan(writes=tuple(writes), unchanged=dict(unchanged))


def _difference(new: Resource, old: Resource | None) -> Write | None:
    parts = cast("Flavor | Hypervisor | VirtualMachine", new)
    status = None if isinstance(parts, Flavor) else parts.status
    if old is None:
        return Write(verb="create", object=new, status=status is not None)
    before = cast("Flavor | Hypervisor | VirtualMachine", old)
    spec = (parts.metadata, parts.spec) != (before.metadata, before.spec)
    changed = not isinstance(before, Flavor) and status != before.status
    leaves = HOST_LABEL in before.metadata.labels and HOST_LABEL not in parts.metadata.labels
    return Write(verb="update", object=new, spec=spec, status=changed, status_first=leaves) if spec or changed else None


def _metadata(name: str, old: Resource | None, labels: Mapping[str, str | None], creator: str) -> ObjectMeta:
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


def _flavors(
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
        yield Flavor(metadata=_metadata(name, old, {}, creator), spec=spec), old


def object_name(flavor_name: str, taken: Iterable[str] = ()) -> str:
    """A DNS name for a flavor: lower case, other characters as hyphens, and a hash where that name is taken."""
    cleaned = "".join(char if char.isascii() and (char.isalnum() or char in "-.") else "-" for char in flavor_name)
    parts = [part.strip("-") for part in cleaned.lower().split(".")]
    name = ".".join(part for part in parts if part)[:200].strip("-.") or "flavor"
    return name if name not in set(taken) else f"{name}-{stable_hash(flavor_name):016x}"


class _Zones:
    """The zones of hosts, empty where one has none: before the import, and once it is done."""

    def __init__(self, wanted: Wanted, existing: Existing) -> None:
        self.before = {name: host.metadata.labels.get(ZONE_LABEL, "") for name, host in existing.hosts.items()}
        said = {name: host.zone for name, host in wanted.hosts.items() if host.zone is not None}
        self.after = {**self.before, **said}

    def is_derived(self, vm: VirtualMachine) -> bool:
        """Whether the VM's zone is that which its host had before the import: nobody else gave it one."""
        return vm.spec.zone == self.before.get(vm.host, "")

    def zone(self, record: VmRecord, old: VirtualMachine | None, host: str) -> str:
        """The VM's zone: that of its source, else that which somebody else gave it, else that of its host."""
        if record.zone:
            return record.zone
        if record.zone is None and old is not None and not self.is_derived(old):
            return old.spec.zone
        return self.after.get(host, "")


def _vm(
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
    assigned = status.assigned if held else _assigned(status.assigned, landed.get(record.id, record.host))
    known = {
        "display_name": record.name or None,
        "project": record.project,
        "flavor": record.flavor,
        "resources": record.resources,
        "disk_gib": record.disk_gib,
        "extra_specs": record.extra_specs,
        "os_type": record.os_type,
        "zone": zones.zone(record, old, assigned.hypervisor if assigned is not None else ""),
        "server_group": record.server_group,
        "server_group_policy": record.server_group_policy,
        "protection": record.protection,
        "restart_priority": record.restart_priority,
        "power_state": _power(record, old, held or (old is not None and existing.is_own(old.host))),
    }
    spec = msgspec.structs.replace(spec, **{key: value for key, value in known.items() if value is not None})
    new = status if held else msgspec.structs.replace(status, phase=phase, assigned=assigned, source=creator)
    if new != status:
        new = msgspec.structs.replace(new, observed_at=now)
    labels = {HOST_LABEL: assigned.hypervisor if assigned is not None else None}
    return VirtualMachine(metadata=_metadata(record.id, old, labels, creator), spec=spec, status=new)


def _power(record: VmRecord, old: VirtualMachine | None, ours: bool) -> str | None:
    """Whether it is to run; ``None`` where that stays as it is. ``ours``: its host's daemon starts and stops it as its
    user says, and no list of a source does."""
    if old is not None and (ours or (record.power is None and old.status.phase != VANISHED)):
        return None
    return "stopped" if record.power is GuestPower.STOPPED else "running"


def _vanished_vm(vm: VirtualMachine, zones: _Zones, now: datetime) -> VirtualMachine:
    """The VM as one that its source does not list any more: it is nowhere and needs no slot until it is seen again."""
    if vm.status.phase == VANISHED and vm.status.assigned is None:
        return vm
    spec = msgspec.structs.replace(vm.spec, power_state="stopped", zone="" if zones.is_derived(vm) else vm.spec.zone)
    status = msgspec.structs.replace(vm.status, phase=VANISHED, assigned=None, observed_at=now)
    labels = {name: value for name, value in vm.metadata.labels.items() if name != HOST_LABEL}
    metadata = msgspec.structs.replace(vm.metadata, labels=labels)
    return msgspec.structs.replace(vm, metadata=metadata, spec=spec, status=status)


def _assigned(before: Assigned | None, host: str | None) -> Assigned | None:
    """Where the VM is now; an assignment to the same host keeps its slot and fence."""
    if host is None or (before is not None and before.hypervisor == host):
        return before
    return Assigned(hypervisor=host) if host else None


class _Load(msgspec.Struct):
    """The VMs of one host, and what they need together."""

    instances: list[Instance]
    needed: Amounts


def _loads(vms: Mapping[str, VirtualMachine]) -> dict[str, _Load]:
    loads: dict[str, _Load] = {}
    for name, vm in sorted(vms.items()):
        if vm.status.assigned is None:
            continue
        load = loads.setdefault(vm.status.assigned.hypervisor, _Load([], Amounts(cpu=0, memory=0)))
        load.instances.append(Instance(id=name, name=vm.spec.display_name, active=vm.spec.power_state == "running"))
        load.needed = load.needed + vm.spec.resources
    return loads


def _hosts(
    wanted: Wanted, existing: Existing, options: ImportOptions, vms: Mapping[str, VirtualMachine], now: datetime
) -> Iterator[tuple[Hypervisor, Hypervisor | None]]:
    """Hosts of the source, then hosts that an earlier import made and whose VMs this one changes."""
    loads = _loads(vms)
    empty = _Load([], Amounts(cpu=0, memory=0))
    for position, record in enumerate(wanted.hosts.values()):
        old = existing.hosts.get(record.name)
        yield _host(record, position, old, loads.get(record.name, empty), options, now), old
    for name, host in existing.hosts.items():
        if (
            name in wanted.hosts
            or name in wanted.gone_hosts
            or host.metadata.labels.get(CREATOR_LABEL) not in (CREATOR, options.creator)
        ):
            continue
        load = loads.get(name, empty)
        changed = msgspec.structs.replace(
            host.status,
            instances=tuple(load.instances),
            num_instances=len(load.instances),
            allocation=load.needed,
            conditions=_vanished(host, now) if name in wanted.vanished_hosts else host.status.conditions,
        )
        yield msgspec.structs.replace(host, status=changed), host


def _host(
    record: HostRecord, position: int, old: Hypervisor | None, load: _Load, options: ImportOptions, now: datetime
) -> Hypervisor:
    spec = old.spec if old is not None else Hypervisor().spec
    if options.overcommit:
        spec = msgspec.structs.replace(spec, overcommit=options.overcommit)
    status = old.status if old is not None else HypervisorStatus()
    new = msgspec.structs.replace(
        status,
        source_name=record.source_name,
        capacity=record.capacity,
        effective_capacity=_effective(record.capacity, spec.overcommit),
        allocation=_allocation(load.needed, record.used),
        instances=tuple(load.instances),
        num_instances=len(load.instances),
        conditions=_conditions(record, status.conditions, now),
        source=options.creator,
        **_known_facts(record, status),
    )
    if new != status:
        new = msgspec.structs.replace(new, observed_at=now)
    metadata = _metadata(record.name, old, _labels(record, position, options), options.creator)
    return Hypervisor(metadata=metadata, spec=spec, status=new)


def _labels(record: HostRecord, position: int, options: ImportOptions) -> dict[str, str | None]:
    labels: dict[str, str | None] = {}
    if record.zone is not None:
        labels[ZONE_LABEL] = record.zone or None
    for kind, size in options.domains:
        labels[DOMAIN_LABEL_PREFIX + kind] = f"{kind}-{position // size + 1:03d}"
    for kind, name in record.domains.items():
        labels[DOMAIN_LABEL_PREFIX + kind] = name or None
    return labels


def _effective(capacity: Amounts, overcommit: Mapping[str, float]) -> Amounts:
    """Capacity times overcommit, rounded down. Always written: weighers do not fall back to plain capacity."""
    ratios = {name: Fraction(str(ratio)) for name, ratio in overcommit.items()}
    return Amounts({name: int(amount * ratios.get(name, 1)) for name, amount in capacity.items()})


def _allocation(needed: Amounts, used: Amounts | None) -> Amounts:
    if used is None:
        return needed
    return Amounts({name: max(needed.get(name, 0), used.get(name, 0)) for name in {**needed, **used}})


def _known_facts(record: HostRecord, status: HypervisorStatus) -> dict[str, object]:
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


def _vanished(host: Hypervisor, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a host that its source does not list any more: no slot is there until it is seen again."""
    message = "its source does not list it any more"
    gone = Condition(type="Ready", status="False", reason="Vanished", message=message, last_transition_time=now)
    return with_condition(host.status.conditions, gone)


def _conditions(record: HostRecord, conditions: tuple[Condition, ...], now: datetime) -> tuple[Condition, ...]:
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


def after(plan: ImportPlan, existing: Existing) -> tuple[dict[str, Hypervisor], dict[str, VirtualMachine]]:
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


def notices(wanted: Wanted, existing: Existing, plan: ImportPlan, levels: Collection[str]) -> Iterator[Reason]:
    """What an import has to say besides its counts, in a fixed order and only about what the source lists.

    ``levels``: the protection levels of the settings.
    """
    all_hosts, all_vms = after(plan, existing)
    vms = [all_vms[name] for name in wanted.vms]
    hosts = [all_hosts[name] for name in wanted.hosts]
    zones = {name: host.metadata.labels.get(ZONE_LABEL, "") for name, host in all_hosts.items()}
    zoned = [vm for vm in vms if not wanted.vms[vm.name].zone and vm.spec.zone and vm.host]
    yield from _about(
        ImportNotice.VM_ZONE_FROM_HOST, "vms", [v.name for v in zoned if v.spec.zone == zones.get(v.host)]
    )
    yield from _about(ImportNotice.VM_ZONE_KEPT, "vms", [v.name for v in zoned if v.spec.zone != zones.get(v.host)])
    if any(vm.spec.zone for vm in vms):
        zoneless = [host.name for host in hosts if not host.metadata.labels.get(ZONE_LABEL)]
        yield from _about(ImportNotice.HOST_ZONE_UNKNOWN, "hosts", zoneless)
    too_large = [vm.name for vm in vms if _is_too_large(vm, all_hosts.get(vm.host))]
    yield from _about(ImportNotice.VM_LARGER_THAN_HOST, "vms", too_large)
    yield from _overfull(hosts)
    ruled = [demands_of(vm) for vm in all_vms.values() if vm.spec.affinity_rules or vm.spec.preferred_hosts.strict]
    for conflict in contradictions(ruled, zones)[:CONFLICTS_SHOWN] if ruled else ():
        said = render(conflict)
        fields = {"vm": concerned_vm(conflict), "why": said.text, "remedy": said.remedy}
        yield Reason(ImportNotice.RULES_CONTRADICT, fields)
    strangers = {vm.name: vm.spec.protection for vm in vms if vm.spec.protection not in ("", *levels)}
    named = tuple(sorted(set(strangers.values())))
    yield from _about(ImportNotice.LEVEL_UNKNOWN, "vms", strangers, levels=named)
    yield from _about(ImportNotice.HOST_DOWN, "hosts", [one.name for one in wanted.hosts.values() if one.down])
    yield from _about(ImportNotice.HOST_DISABLED, "hosts", [one.name for one in wanted.hosts.values() if one.disabled])
    running = [vm for vm in vms if vm.spec.power_state == "running"]
    yield from _about(ImportNotice.VM_WITHOUT_HOST, "vms", [vm.name for vm in running if not vm.host])
    stopped = [vm.name for vm in vms if vm.spec.power_state != "running"]
    yield from _about(ImportNotice.VM_NOT_RUNNING, "vms", stopped)
    yield from _about(ImportNotice.HOST_RENAMED, "hosts", _renamed(hosts))
    yield from _about(ImportNotice.HOST_VANISHED, "hosts", sorted(wanted.vanished_hosts))
    yield from _about(
        ImportNotice.VM_VANISHED, "vms", [_shown(existing.vms[name]) for name in sorted(wanted.vanished_vms)]
    )
    yield from _about(ImportNotice.HOST_KEPT, "hosts", sorted(wanted.kept_hosts))


def _shown(vm: VirtualMachine) -> str:
    return f"{vm.spec.display_name} ({vm.name})" if vm.spec.display_name not in ("", vm.name) else vm.name


def _renamed(hosts: Iterable[Hypervisor]) -> Iterator[str]:
    return (f"{host.status.source_name} is {host.name}" for host in hosts if host.status.source_name)


def _overfull(hosts: Iterable[Hypervisor]) -> Iterator[Reason]:
    """Hosts whose VMs need more than there is, and the overcommit with which all of them would fit."""
    named: list[str] = []
    ratios: dict[str, Fraction] = {}
    for host in hosts:
        capacity, needed = host.effective_capacity(), host.status.allocation
        if capacity is None or needed is None:
            continue
        short = [name for name in ("cpu", "memory") if needed.get(name, 0) > capacity.get(name, 0) > 0]
        for name in short:
            named.append(f"{host.name}: {name} {needed.wire()[name]} of {capacity.wire()[name]}")
            plain = (host.status.capacity or capacity).get(name, 0)
            ratios[name] = max(ratios.get(name, Fraction(1)), Fraction(needed.get(name, 0), plain or 1))
    if named:
        hint = ",".join(f"{name}={_one_decimal_up(ratio)}" for name, ratio in sorted(ratios.items()))
        yield Reason(ImportNotice.HOST_OVERFULL, {"count": len(named), "hosts": tuple(named), "overcommit": hint})


def _one_decimal_up(ratio: Fraction) -> str:
    return f"{float(-(-ratio * 10 // 1)) / 10:g}"


def _about(code: ImportNotice, what: str, names: Iterable[str], **more: tuple[str, ...]) -> Iterator[Reason]:
    listed = tuple(names)
    if listed:
        yield Reason(code, {"count": len(listed), what: listed, **more})


def _is_too_large(vm: VirtualMachine, host: Hypervisor | None) -> bool:
    capacity = host.effective_capacity() if host is not None else None
    return capacity is not None and any(need > capacity.get(name, 0) for name, need in vm.spec.resources.items())
