"""The store's first content: hosts, VMs, policies, as an operator would have entered them before the daemons start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from outlive.resources import (
    DOMAIN_LABEL_PREFIX,
    HOST_LABEL,
    ZONE_LABEL,
    Amounts,
    Assigned,
    Cluster,
    Condition,
    DomainCapabilities,
    FencingSpec,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Resource,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.resources.cluster import ClusterSpec, ClusterStatus
from outlive.simulation.controllers import Bmc
from outlive.simulation.spec import HostSpec, VmSpec, WorldSpec, disks_of, hosts_of, ports_of, vms_of


def resources_of(spec: WorldSpec, bmcs: Mapping[str, Bmc], *, incarnation: str) -> Iterator[Resource]:
    """Everything that the spec says, as resources."""
    yield Cluster(
        metadata=ObjectMeta(name="default"),
        spec=ClusterSpec(fencing=spec.policy, degrading=spec.degrading),
        status=ClusterStatus(store_incarnation=incarnation),
    )
    vms = [vm_of(vm) for vm in vms_of(spec)]
    there: dict[str, list[VirtualMachine]] = {}
    for vm in vms:
        if vm.status.assigned is not None and vm.spec.power_state == "running":
            there.setdefault(vm.status.assigned.hypervisor, []).append(vm)
    for host in hosts_of(spec):
        yield hypervisor_of(host, bmcs[host.name].owner.system_uuid, there.get(host.name, ()))
    yield from vms


def hypervisor_of(host: HostSpec, system_uuid: str, vms: Sequence[VirtualMachine]) -> Hypervisor:
    """A host as it reported last, before everything was switched off: with its VMs on it."""
    labels = {ZONE_LABEL: host.zone}
    labels |= {DOMAIN_LABEL_PREFIX + name: value for name, value in host.domains.items()}
    if host.rack:
        labels[DOMAIN_LABEL_PREFIX + "rack"] = host.rack
    controlled = host.bmc != "none"
    fencing = FencingSpec(
        driver="simulated" if controlled else "",
        address=f"{host.name}.bmc" if controlled else "",
        system_uuid=system_uuid if controlled else "",
        armed=host.armed,
        profile=host.profile,
        proofs=host.proofs,
    )
    return Hypervisor(
        metadata=ObjectMeta(name=host.name, labels=labels),
        spec=HypervisorSpec(management="node", mode=host.mode, fencing=fencing),
        status=HypervisorStatus(
            capacity=Amounts.parse({"cpu": host.cpu, "memory": host.memory}),
            allocation=Amounts(
                cpu=sum(vm.spec.resources.cpu_milli for vm in vms),
                memory=sum(vm.spec.resources.memory_bytes for vm in vms),
            ),
            instances=tuple(Instance(id=vm.name, name=vm.spec.display_name) for vm in vms),
            num_instances=len(vms),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
            conditions=(Condition(type="Ready", status="True", reason="DaemonRuns"),),
            source="daemon",
            domain_state="ready",
            rehearsed="ok" if controlled and host.rehearsed else "",
            rehearsed_seq=1 if controlled and host.rehearsed else 0,
        ),
    )


def vm_of(vm: VmSpec) -> VirtualMachine:
    """A VM that is assigned and does not run yet."""
    spec = VirtualMachineSpec(
        project=vm.project,
        flavor=vm.flavor,
        zone=vm.zone,
        resources=Amounts.parse({"cpu": vm.cpu, "memory": vm.memory}),
        protection=vm.protection,
        restart_priority=vm.priority,
        recovery_time_objective_s=vm.recovery_time_objective_s,
        power_state=vm.power_state,
        disks=disks_of(vm),
        ports=ports_of(vm),
        network_policy=vm.network_policy,
        autostart=vm.autostart,
        migration_method=vm.migration_method,
        migration_downtime_ms=vm.migration_downtime_ms,
        server_group=vm.server_group,
        server_group_policy=vm.server_group_policy,
        start_after=vm.start_after,
    )
    phase = "start" if vm.power_state == "running" else "stop"
    return VirtualMachine(
        metadata=ObjectMeta(name=vm.name, labels={HOST_LABEL: vm.host}),
        spec=spec,
        status=VirtualMachineStatus(phase=phase, assigned=Assigned(hypervisor=vm.host), home=vm.host),
    )
