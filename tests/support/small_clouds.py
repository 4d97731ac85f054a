"""Small clouds as resources: hosts, VMs and slots that a test names, or random ones, odd in all ways that rules know.

``make_host``, ``make_vm`` and ``make_slot`` are the one way in which tests of failover, placement and sales make them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from outlive.base import LoopClock, Random, SeededIds
from outlive.failover import (
    FailoverUpkeepSettings,
    SlotView,
    Snapshot,
    gather,
    is_large_enough,
    is_vm_eligible_for_reservation,
    plan_input,
)
from outlive.failover.planner import Open, PlanInput
from outlive.failover.planner.plan import plan
from outlive.placement import VmView
from outlive.resources import (
    DOMAIN_LABEL_PREFIX,
    RESERVATION_TYPE_LABEL,
    ZONE_LABEL,
    AffinityRule,
    Amounts,
    Assigned,
    Capabilities,
    Condition,
    Consumer,
    DomainCapabilities,
    FailoverSpec,
    FailoverStatus,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.roles import RoleSettings
from outlive.store import MemoryStore
from tests.support.remedies import Resources

GIB = 2**30
TRAITS = ("CUSTOM_GOLD", "CUSTOM_SSD")


def make_vm(
    name: str,
    host: str = "",
    *,
    cpu: int = 1000,
    memory: int = 2 * GIB,
    zone: str = "z",
    status: VirtualMachineStatus | None = None,
    **spec: Any,
) -> VirtualMachine:
    """A VM on a host, or nowhere."""
    assigned = Assigned(hypervisor=host) if host else None
    return VirtualMachine(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachineSpec(**{"zone": zone, "resources": Amounts(cpu=cpu, memory=memory), **spec}),
        status=status or VirtualMachineStatus(phase="ACTIVE", assigned=assigned),
    )


def make_host(
    name: str,
    *vms: VirtualMachine | str,
    cpu: int = 64_000,
    memory: int = 256 * GIB,
    zone: str = "z",
    domains: Mapping[str, str] = MappingProxyType({}),
    spec: HypervisorSpec = HypervisorSpec(),
    **status: Any,
) -> Hypervisor:
    """A KVM host that reports these VMs, given whole or by ids alone. ``domains``: what it fails together with."""
    labels = {ZONE_LABEL: zone} if zone else {}
    whole = [vm.spec.resources for vm in vms if isinstance(vm, VirtualMachine)]
    usual = {
        "capacity": Amounts(cpu=cpu, memory=memory),
        "allocation": Amounts(cpu=sum(one.cpu_milli for one in whole), memory=sum(one.memory_bytes for one in whole)),
        "instances": tuple(Instance(id=vm if isinstance(vm, str) else vm.name) for vm in vms),
        "domain_capabilities": DomainCapabilities(hypervisor_type="kvm"),
    }
    return Hypervisor(
        metadata=ObjectMeta(
            name=name, labels=labels | {f"{DOMAIN_LABEL_PREFIX}{key}": value for key, value in domains.items()}
        ),
        spec=spec,
        status=HypervisorStatus(**{**usual, **status}),
    )


def make_slot(
    name: str,
    host: str,
    members: Mapping[str, str] | None = None,
    *,
    cpu: int = 1000,
    memory: int = 2 * GIB,
    zone: str = "",
    ready: bool | None = True,
    consumer: str = "",
) -> Reservation:
    """A failover slot. ``members``: VM → the host that it was on when it joined."""
    conditions = () if ready is None else (Condition(type="Ready", status="True" if ready else "False", reason="Test"),)
    return Reservation(
        metadata=ObjectMeta(name=name, labels={RESERVATION_TYPE_LABEL: "failover"}),
        spec=ReservationSpec(
            type="FailoverReservation",
            availability_zone=zone,
            resources=Amounts(cpu=cpu, memory=memory),
            target_host=host,
            failover_reservation=FailoverSpec(resource_group="g"),
        ),
        status=ReservationStatus(
            host=host,
            conditions=conditions,
            consumer=Consumer(vm=consumer, fence="f") if consumer else None,
            failover_reservation=FailoverStatus(allocations=dict(members or {})),
        ),
    )


@dataclass(slots=True)
class SmallCloud:
    """Resources, what VMs need, and settings."""

    resources: Resources
    settings: RoleSettings
    k: int
    runner: asyncio.Runner

    def gathered(self, resources: Resources | None = None) -> Snapshot:
        """What a command would see."""
        given = resources or self.resources

        async def look() -> Snapshot:
            clock = LoopClock()
            store = MemoryStore(clock, SeededIds(Random(1)))
            store.load([*given.hypervisors, *given.vms, *given.reservations])
            return await gather(store, self.settings, k=self.k)

        return self.runner.run(look())

    def plan_input(self, gathered: Snapshot) -> PlanInput:
        """What a plan would be made of."""
        return msgspec.structs.replace(self.runner.run(plan_input(gathered)), packing=False)


def small_cloud(random: Random, runner: asyncio.Runner) -> SmallCloud:
    """Three to ten hosts, up to a dozen VMs, some slots that a planner made and some that nobody should have made."""
    plain = random.random() < 0.4
    hosts = [_host(random, number, plain=plain) for number in range(random.randint(3, 10))]
    vms = [_vm(random, number, hosts, plain=plain) for number in range(random.randint(2, 12))]
    hosts = [_with_instances(random, host, vms) for host in hosts]
    upkeep: dict[str, Any] = {}
    if random.random() < 0.25:
        upkeep["failureUnit"] = "rack"
    if random.random() < 0.15:
        upkeep["keepApart"] = ["power"]
    settings = RoleSettings(upkeep=msgspec.convert(upkeep, FailoverUpkeepSettings))
    settings = msgspec.structs.replace(settings, failover=settings.failover.apply_defaults())
    cloud = SmallCloud(
        resources=Resources(hypervisors=tuple(hosts), vms=tuple(vms)),
        settings=settings,
        k=random.randint(1, 3),
        runner=runner,
    )
    if random.random() < 0.75:
        cloud.resources = msgspec.structs.replace(cloud.resources, reservations=_planned(random, cloud))
    if random.random() < 0.3:
        cloud.resources = _crowded(cloud.resources)
    broken = _broken(random, cloud.resources)
    cloud.resources = msgspec.structs.replace(cloud.resources, reservations=broken)
    return cloud


def tight_cloud(random: Random, runner: asyncio.Runner) -> SmallCloud:
    """Full hosts, and slots of two sizes in which small VMs are by the rules, some of them in the way of large ones."""
    hosts = [_host(random, number, plain=True) for number in range(random.randint(5, 8))]
    vms = [_vm(random, number, hosts, plain=True) for number in range(random.randint(5, 12))]
    hosts = [_with_instances(random, host, vms) for host in hosts]
    slots = [
        SlotView(name=f"s{number}", host=random.choice(hosts).name, cpu_milli=size * 1000, memory_bytes=size * 2 * GIB)
        for number in range(random.randint(3, 7))
        for size in (2 if number == 0 else 1,)
    ]
    k = random.choice((1, 1, 2))
    for vm in vms:
        if vm.spec.resources["cpu"] > 1000 or random.random() < 0.2:
            continue
        view = VmView(
            id=vm.name, host=location(vm), cpu_milli=vm.spec.resources["cpu"], memory_bytes=vm.spec.resources["memory"]
        )
        for at in sorted(range(len(slots)), key=lambda number: random.random() + 0.8 * (number > 0)):
            slot, has = slots[at], sum(view.id in one.members for one in slots)
            if (
                has < random.choice((k, 1))
                and is_large_enough(view, slot)
                and is_vm_eligible_for_reservation(view, slot, slots)
            ):
                slots[at] = msgspec.structs.replace(slot, members={**slot.members, view.id: view.host})
    reservations = tuple(
        make_slot(slot.name, slot.host, slot.members, cpu=slot.cpu_milli, memory=slot.memory_bytes) for slot in slots
    )
    settings = RoleSettings()
    return SmallCloud(
        resources=_crowded(Resources(hypervisors=tuple(hosts), vms=tuple(vms), reservations=reservations)),
        settings=msgspec.structs.replace(settings, failover=settings.failover.apply_defaults()),
        k=k,
        runner=runner,
    )


def _host(random: Random, number: int, *, plain: bool) -> Hypervisor:
    if plain:
        return make_host(f"h{number}", cpu=8000, memory=16 * GIB, zone="a", allocation=None)
    labels = {f"{DOMAIN_LABEL_PREFIX}power": random.choice(("p1", "p2", "p3"))} if random.random() < 0.8 else {}
    if random.random() < 0.9:
        labels[f"{DOMAIN_LABEL_PREFIX}rack"] = f"r{random.randint(1, 5)}"
    zone = random.choice(("a", "a", "a", "b", ""))
    if zone:
        labels[ZONE_LABEL] = zone
    size = random.choice((1, 2, 2, 4))
    conditions: tuple[Condition, ...] = ()
    if random.random() < 0.12:
        bad: tuple[str, Any] = random.choice(
            (("Ready", "False"), ("HypervisorDisabled", "True"), ("Terminating", "True"))
        )
        conditions = (Condition(type=bad[0], status=bad[1], reason="Test"),)
    return Hypervisor(
        metadata=ObjectMeta(name=f"h{number}", labels=labels),
        spec=HypervisorSpec(
            high_availability=False if random.random() < 0.06 else None,
            allowed_projects=("p1",) if random.random() < 0.08 else (),
            custom_traits=tuple(trait for trait in TRAITS if random.random() < 0.5),
        ),
        status=HypervisorStatus(
            capacity=Amounts(cpu=size * 4000, memory=size * 8 * GIB) if random.random() < 0.97 else None,
            conditions=conditions,
            capabilities=Capabilities(cpu_arch=random.choice(("x86_64", "x86_64", "x86_64", "aarch64"))),
            domain_capabilities=DomainCapabilities(hypervisor_type=random.choice(("kvm",) * 12 + ("ch", "odd"))),
        ),
    )


def _vm(random: Random, number: int, hosts: list[Hypervisor], *, plain: bool) -> VirtualMachine:
    if plain:
        size = random.choice((1, 2))
        host = random.choice(hosts).name
        return make_vm(f"v{number}", host, cpu=size * 1000, memory=size * 2 * GIB, zone="a", flavor=f"f{size}")
    specs: dict[str, str] = {}
    for trait in (*TRAITS, "CUSTOM_NOWHERE"):
        if random.random() < (0.15 if trait in TRAITS else 0.02):
            specs[f"trait:{trait}"] = random.choice(("required", "required", "forbidden"))
    if random.random() < 0.1:
        specs["capabilities:cpu_arch"] = random.choice(("x86_64", "aarch64"))
    if random.random() < 0.05:
        specs["capabilities:hypervisor_type"] = random.choice(("CH", "QEMU", "Ironic"))
    size = random.choice((1, 1, 1, 2, 2, 4, 40))
    resources = Amounts(cpu=size * 1000, memory=size * 2 * GIB)
    if random.random() < 0.03:
        resources = Amounts(cpu=0, memory=random.choice((0, GIB)))
    grouped = random.random() < 0.15
    return VirtualMachine(
        metadata=ObjectMeta(name=f"v{number}"),
        spec=VirtualMachineSpec(
            flavor=f"f{size}",
            resources=resources,
            zone=random.choice(("a", "a", "b", "")),
            project=random.choice(("p1", "p2")),
            extra_specs=specs,
            server_group="g" if grouped else "",
            server_group_policy="anti-affinity" if grouped and random.random() < 0.6 else "affinity" if grouped else "",
            affinity=_further_groups(number),
        ),
        status=VirtualMachineStatus(
            phase="ACTIVE", assigned=Assigned(hypervisor=random.choice(hosts).name, slot=None, fence="")
        ),
    )


def _further_groups(number: int) -> tuple[AffinityRule, ...]:
    """Some VMs are in more groups than one, of all policies."""
    apart = (AffinityRule(group="quorum", policy="anti-affinity"),) if number % 7 == 3 else ()
    together = (AffinityRule(group="web", policy="affinity"),) if number % 11 == 5 else ()
    soft = (AffinityRule(group="quorum", policy="soft-anti-affinity"),) if number % 5 == 1 else ()
    return (*apart, *together, *soft)


def location(vm: VirtualMachine) -> str:
    """Where the VM runs."""
    assert vm.status.assigned is not None
    return vm.status.assigned.hypervisor


def _with_instances(random: Random, host: Hypervisor, vms: list[VirtualMachine]) -> Hypervisor:
    here = [vm for vm in vms if location(vm) == host.name]
    used = {
        "cpu": sum(vm.spec.resources.get("cpu", 0) for vm in here),
        "memory": sum(vm.spec.resources.get("memory", 0) for vm in here),
    }
    capacity = host.status.capacity
    if capacity is not None and random.random() < 0.9:  # as a rule a host holds what it runs
        capacity = Amounts({name: max(amount, used[name]) for name, amount in capacity.items()})
    status = msgspec.structs.replace(
        host.status,
        capacity=capacity,
        allocation=Amounts(used) if random.random() < 0.97 else None,
        instances=tuple(Instance(id=vm.name, name=vm.name) for vm in here),
        num_instances=len(here),
    )
    return msgspec.structs.replace(host, status=status)


def _planned(random: Random, cloud: SmallCloud) -> tuple[Reservation, ...]:
    """Slots as the planner would give them to some of the VMs."""
    some = tuple(vm for vm in cloud.resources.vms if random.random() < 0.6)
    part = msgspec.structs.replace(cloud.resources, vms=some)
    result = plan(cloud.plan_input(cloud.gathered(part)))
    opened = {action.slot_key: action for action in result.actions if isinstance(action, Open)}
    return tuple(
        make_slot(slot.name, slot.host, slot.members, cpu=slot.cpu_milli, memory=slot.memory_bytes, zone=slot.zone)
        for slot in result.slots
        if slot.name in opened
    )


def _crowded(resources: Resources) -> Resources:
    """The same with nothing free on any host, so that only the slots that are there are left."""
    held: dict[str, list[int]] = {}
    for slot in resources.reservations:
        sums = held.setdefault(slot.status.host, [0, 0])
        sums[0] += slot.spec.resources["cpu"]
        sums[1] += slot.spec.resources["memory"]

    def full(host: Hypervisor) -> Hypervisor:
        status, (cpu, memory) = host.status, held.get(host.name, (0, 0))
        if status.capacity is None or status.allocation is None:
            return host
        capacity = Amounts(cpu=status.allocation["cpu"] + cpu, memory=status.allocation["memory"] + memory)
        return msgspec.structs.replace(host, status=msgspec.structs.replace(status, capacity=capacity))

    return msgspec.structs.replace(resources, hypervisors=tuple(map(full, resources.hypervisors)))


def _broken(random: Random, resources: Resources) -> tuple[Reservation, ...]:
    """The slots with a few that are not ready, small, or with members that should not be there."""
    slots = list(resources.reservations)
    names = [host.name for host in resources.hypervisors]
    for _ in range(random.choice((0, 0, 1, 2))):
        members = {vm.name: location(vm) for vm in resources.vms if random.random() < 0.15}
        if members and random.random() < 0.2:
            members[next(iter(members))] = random.choice(names)
        size = random.choice((1, 2, 4))
        slots.append(
            make_slot(
                f"odd-{len(slots)}", random.choice(names), members, cpu=size * 1000, memory=size * 2 * GIB, zone="a"
            )
        )
    return tuple(_spoilt(random, slot) for slot in slots)


def _spoilt(random: Random, slot: Reservation) -> Reservation:
    chance = random.random()
    members = slot.status.failover_reservation.allocations if slot.status.failover_reservation else {}
    cpu, memory = slot.spec.resources["cpu"], slot.spec.resources["memory"]
    if chance < 0.08:
        return make_slot(slot.name, slot.status.host, members, cpu=cpu, memory=memory, ready=False)
    if chance < 0.12:
        return make_slot(slot.name, slot.status.host, members, cpu=cpu // 2, memory=memory // 2)
    if chance < 0.15:
        return make_slot(slot.name, slot.status.host, {**members, "gone": "h0"}, cpu=cpu, memory=memory)
    return slot
