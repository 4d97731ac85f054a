"""The store's first content: hosts, VMs and policies, as an operator would have entered them before the daemons start.

Or, for an inventory, a cluster that has been running for a while when the story begins: every host is a member, every
VM runs where it is. Were it switched on instead, its hosts would report that they are empty, and thousands of starts
would come before what was asked about. The daemons begin as after an update of their software: they find their domains,
their holder entries and their own membership, and take them over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from outlive.base import SeededIds
from outlive.node import apply_overcommit
from outlive.node.membership import RememberedMembership
from outlive.node.ports import DomainState
from outlive.placement import HYPERVISOR_TYPE
from outlive.resources import (
    DOMAIN_LABEL_PREFIX,
    HOST_LABEL,
    IN_OVN,
    RUN_FINALIZER,
    ZONE_LABEL,
    Amounts,
    Assigned,
    Cluster,
    ClusterSpec,
    ClusterStatus,
    Condition,
    DomainCapabilities,
    FencingSpec,
    Flavor,
    FlavorSpec,
    Holder,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Instance,
    MemberRecord,
    Membership,
    ObjectMeta,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
    port_mode,
    port_object_name,
)
from outlive.simulation.controllers import Bmc
from outlive.simulation.hypervisors import SimDomain, domain_of
from outlive.simulation.judges.rest import IMPORTED_PHASE, is_wanted
from outlive.simulation.network.fabric import FabricPort
from outlive.simulation.spec import (
    FlavorEntry,
    HostSpec,
    NetworkEntry,
    VmSpec,
    WorldSpec,
    build_spec,
    hosts_of,
    ports_of,
    vms_of,
)

if TYPE_CHECKING:
    from outlive.simulation.world import World


def resources_of(spec: WorldSpec, bmcs: Mapping[str, Bmc], *, incarnation: str) -> Iterator[Resource]:
    """Everything that the spec says, as resources."""
    yield Cluster(
        metadata=ObjectMeta(name="default"),
        spec=build_spec(spec, ClusterSpec, fencing=spec.policy),
        status=ClusterStatus(store_incarnation=incarnation),
    )
    for entry in spec.flavors:
        size = Amounts.parse({"cpu": entry.cpu, "memory": entry.memory})
        flavor = FlavorSpec(flavor_name=entry.name, resources=size, extra_specs=_flavor_specs(entry))
        yield Flavor(metadata=ObjectMeta(name=entry.name), spec=flavor)
    vms = [vm_of(vm, spec) for vm in vms_of(spec)]
    there: dict[str, list[VirtualMachine]] = {}
    for vm in vms:
        if vm.status.assigned is not None and vm.spec.power_state == "running":
            there.setdefault(vm.status.assigned.hypervisor, []).append(vm)
    for host in hosts_of(spec):
        uuid = bmcs[host.name].owner.system_uuid
        yield hypervisor_of(host, uuid, there.get(host.name, ()), daemons=spec.daemons)
    yield from vms
    yield from (_network_of(one) for one in spec.networks)
    yield from (one for _, _, one in _port_objects(spec))


def _network_of(entry: NetworkEntry) -> VirtualNetwork:
    return VirtualNetwork(metadata=ObjectMeta(name=entry.name), spec=build_spec(entry, VirtualNetworkSpec))


def _port_objects(spec: WorldSpec) -> Iterator[tuple[VmSpec, str, VirtualMachinePort]]:
    """Each VM with the id of an interface that is on a network, and that interface's port."""
    for number, vm in enumerate(vms_of(spec)):
        for index, (network, interface) in enumerate(zip(vm.networks, ports_of(vm), strict=False)):
            mac = f"0a:{index:02x}:00:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
            port = VirtualMachinePortSpec(vm=vm.name, network=network, mac=mac, port_mode=vm.port_mode)
            yield (
                vm,
                interface,
                VirtualMachinePort(metadata=ObjectMeta(name=port_object_name(vm.name, index)), spec=port),
            )


def fabric_ports(spec: WorldSpec) -> list[FabricPort]:
    """Interfaces that are on networks of OVN."""
    networks = {one.name: _network_of(one) for one in spec.networks if one.type in IN_OVN}
    return [
        FabricPort(
            name=port.name,
            vm=vm.name,
            interface=interface,
            network=port.spec.network,
            mode=port_mode(port, networks[port.spec.network]),
            mac=port.spec.mac,
            routed=networks[port.spec.network].spec.type == "routed",
        )
        for vm, interface, port in _port_objects(spec)
        if port.spec.network in networks
    ]


def hypervisor_of(host: HostSpec, system_uuid: str, vms: Sequence[VirtualMachine], *, daemons: bool) -> Hypervisor:
    """A host as it reported last, before everything was switched off, or as it was imported: with its VMs on it."""
    labels = {ZONE_LABEL: host.zone}
    labels |= {DOMAIN_LABEL_PREFIX + name: value for name, value in host.domains.items()}
    if host.rack:
        labels[DOMAIN_LABEL_PREFIX + "rack"] = host.rack
    controlled = host.bmc != "none" and daemons
    fencing = FencingSpec(
        driver="simulated" if controlled else "",
        address=f"{host.name}.bmc" if controlled else "",
        system_uuid=system_uuid if controlled else "",
        armed=host.armed,
        profile=host.profile,
        proofs=host.proofs,
    )
    capacity = Amounts.parse({"cpu": host.cpu, "memory": host.memory})
    return Hypervisor(
        metadata=ObjectMeta(name=host.name, labels=labels),
        spec=build_spec(host, HypervisorSpec, management="node", fencing=fencing)
        if daemons
        else build_spec(host, HypervisorSpec),
        status=HypervisorStatus(
            capacity=capacity,
            effective_capacity=apply_overcommit(capacity, host.overcommit),
            allocation=Amounts(
                cpu=sum(vm.spec.resources.cpu_milli for vm in vms),
                memory=sum(vm.spec.resources.memory_bytes for vm in vms),
            ),
            instances=tuple(Instance(id=vm.name, name=vm.spec.display_name) for vm in vms),
            num_instances=len(vms),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
            conditions=(Condition(type="Ready", status="True", reason="DaemonRuns"),),
            source="daemon" if daemons else "",
            domain_state="ready" if daemons else "",
            rehearsed="ok" if controlled else "",
            rehearsed_seq=1 if controlled else 0,
        ),
    )


def _flavor_specs(entry: FlavorEntry) -> dict[str, str]:
    return {"quota:hw_version": entry.group, HYPERVISOR_TYPE: "QEMU"} if entry.group else {}


def vm_of(vm: VmSpec, world: WorldSpec) -> VirtualMachine:
    """A VM that is assigned and does not run yet, or that runs where it was imported."""
    daemons = world.daemons
    flavor = next((one for one in world.flavors if one.name == vm.flavor), None)
    size = flavor if flavor is not None else vm
    spec = build_spec(
        vm,
        VirtualMachineSpec,
        resources=Amounts.parse({"cpu": size.cpu, "memory": size.memory}),
        extra_specs={**(_flavor_specs(flavor) if flavor is not None else {}), **vm.extra_specs},
        restart_priority=vm.priority,
        disks=vm.disks if vm.disks is not None else (f"{vm.name}-root",),
        ports=ports_of(vm),
    )
    phase = ("start" if daemons else IMPORTED_PHASE) if vm.power_state == "running" else "stop"
    return VirtualMachine(
        metadata=ObjectMeta(name=vm.name, labels={HOST_LABEL: vm.host}),
        spec=spec,
        status=VirtualMachineStatus(phase=phase, assigned=Assigned(hypervisor=vm.host), home=vm.host),
    )


EPOCH = 1
"""Of every host: as if it had joined once, and never been away."""

_replace = msgspec.structs.replace


def build_running(world: World) -> None:
    """Put every host and VM of the world into that state; its machines must have booted, its daemons not begun."""
    ids = SeededIds(world.random.fork("running"))
    members: list[Membership] = []
    for name, host in world.hosts.items():
        uid, machine = ids.new_uuid(), host.machine
        machine.remembered = RememberedMembership(uid=uid, epoch=EPOCH, incarnation=world.store.incarnation)
        record = MemberRecord(
            machine_id=machine.machine_id,
            boot_id=machine.boot_id,
            epoch=EPOCH,
            seq=1,
            nonce=ids.new_uuid(),
            incarnation=world.store.incarnation,
        )
        members.append(Membership(metadata=ObjectMeta(name=name, uid=uid), record=record))
    world.store.overlay(members)
    uids = {one.name: one.metadata.uid for one in members}
    domains: list[tuple[str, SimDomain]] = []
    held: list[VirtualMachine] = []
    for vm in world.store.list_all(VirtualMachine):
        if vm.host not in uids or not is_wanted(vm, daemons=world.spec.daemons):
            continue
        run_id = ids.new_uuid()
        entry = Holder(hypervisor=vm.host, member_uid=uids[vm.host], epoch=EPOCH, run_id=run_id, seen="running")
        guarded = _replace(vm.metadata, finalizers=(RUN_FINALIZER,))
        held.append(_replace(vm, metadata=guarded, status=_replace(vm.status, phase="start", holders=(entry,))))
        domains.append((vm.host, domain_of(vm, run_id, EPOCH, DomainState.RUNNING)))
    world.store.overlay(held)
    for name, domain in domains:
        world.hosts[name].hypervisor.add_domain(domain)
