"""The user's own cluster as a virtual one: what happens to *my* VMs when rack 3 loses power?

An imported inventory becomes the cluster of a story: its hosts, VMs, failure domains and, where there are any, its
slots. What an inventory does not say is assumed, and each assumption is printed: that hosts imported from Nova have our
daemon, that BMCs work, which three hosts coordinate, and that a controller has a machine of its own.
Nothing is assumed about room, zones, projects or traits: those are the imported ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from outlive.base import BadInput, count_of, join_parts
from outlive.node import apply_overcommit
from outlive.resources import (
    DOMAIN_LABEL_PREFIX,
    FAILOVER,
    ZONE_LABEL,
    Amounts,
    Cluster,
    ClusterSpec,
    DomainCapabilities,
    Flavor,
    Hypervisor,
    Instance,
    Reservation,
    Resource,
    VirtualMachine,
)
from outlive.simulation.judges.rest import is_wanted
from outlive.simulation.spec import HostSpec, VmSpec, WorldSpec
from outlive.simulation.timeline import Act
from outlive.simulation.world import World

_replace = msgspec.structs.replace
_KVM: Final = DomainCapabilities(hypervisor_type="kvm")
COORDINATORS: Final = 3
"""Hosts that coordinate, where there are so many."""
RACK: Final = "rack"
ZONE: Final = "zone"
NAMES_SHOWN: Final = 8
"""Names that a complaint lists."""
_PASSING: Final = frozenset(("maintenance", "maintenance_until", "disarmed"))
"""What is so for a while only, and over when the story begins."""
_CLUSTER_POLICIES: Final = tuple(
    sorted({*ClusterSpec.__struct_fields__} & {*WorldSpec.__struct_fields__} - _PASSING - {"fencing"})
)
_STOPPED: Final = frozenset(("SHUTOFF", "stop", "shutdown", "disable", "PAUSED", "SUSPENDED", "ERROR", "fail"))


class Virtual(msgspec.Struct, frozen=True, kw_only=True):
    """An inventory, ready to be played."""

    spec: WorldSpec
    objects: tuple[Resource, ...] = ()
    """As imported, to be laid over what is built of ``spec``: they know more than it."""
    failed: tuple[str, ...] = ()
    """Hosts that are to fail."""
    notes: tuple[str, ...] = ()
    """What was assumed."""

    def build_acts(self, at_s: float) -> tuple[Act, ...]:
        """The loss of power of all that is to fail."""
        if not self.failed:
            return ()
        return (Act(verb="power-off", arguments={"hosts": self.failed}, at_s=at_s, place="--fail"),)


def build_virtual(objects: Iterable[Resource], failing: Sequence[str]) -> Virtual:
    """The virtual cluster of an inventory, of which these fail: ``host=NAME``, ``zone=z1`` or ``rack=r3``.

    ``BadInput`` if there are no hosts, or nothing of that name to fail.
    """
    kept = tuple(objects)
    hosts = [one for one in kept if isinstance(one, Hypervisor)]
    if not hosts:
        raise BadInput("there are no hosts", place="--inventory", remedy="import an inventory, and dump its state")
    failed = _failed_hosts(hosts, failing)
    coordinators = _choose_coordinators(hosts, frozenset(failed))
    notes: list[str] = []
    if foreign := sum(host.spec.management != "node" for host in hosts):
        notes.append(f"{count_of(foreign, 'host')} without our daemon are treated as if they had it")
    if blind := sum(not host.spec.fencing.driver for host in hosts):
        notes.append(f"{count_of(blind, 'host')} without a known BMC are treated as if they had one")
    notes.append(f"{join_parts(coordinators)} coordinate; one controller, on a machine of its own")
    vms = _vm_specs(kept, {host.name for host in hosts}, notes)
    cluster = next((one for one in kept if isinstance(one, Cluster)), Cluster())
    spec = WorldSpec(
        hosts=tuple(
            HostSpec(  # only what is not laid over it afterwards
                name=host.name,
                zone="",
                armed=host.spec.fencing.armed,
                profile=host.spec.fencing.profile,
                proofs=host.spec.fencing.proofs,
                mode="coordinator" if host.name in coordinators else "hypervisor",
            )
            for host in hosts
        ),
        vms=vms,
        controllers=1,
        policy=cluster.spec.fencing,
        **{name: getattr(cluster.spec, name) for name in _CLUSTER_POLICIES},
    )
    laid_over = tuple(one for one in kept if isinstance(one, Hypervisor | VirtualMachine | Flavor) or _is_slot(one))
    if not any(map(_is_slot, laid_over)):
        notes.append("there are no slots yet: they are planned when the simulation begins")
    return Virtual(spec=spec, objects=laid_over, failed=failed, notes=tuple(notes))


def _is_slot(one: Resource) -> bool:
    return isinstance(one, Reservation) and one.spec.type == FAILOVER


def _failure_domains(host: Hypervisor) -> dict[str, str]:
    """Kind of failure domain → its value."""
    labels = host.metadata.labels
    return {
        name.removeprefix(DOMAIN_LABEL_PREFIX): value
        for name, value in labels.items()
        if name.startswith(DOMAIN_LABEL_PREFIX)
    }


def _failure_units(host: Hypervisor) -> dict[str, str]:
    """What the host is in that may fail as a whole: its zone and its failure domains."""
    return {ZONE: host.metadata.labels.get(ZONE_LABEL, ""), **_failure_domains(host)}


def _failed_hosts(hosts: Sequence[Hypervisor], failing: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for one in failing:
        kind, value = (part.strip() for part in one.partition("=")[::2])
        if not kind or not value:
            remedy = "write host=NAME, zone=z1 or rack=r3"
            raise BadInput(f"{one!r} names nothing that fails", place="--fail", remedy=remedy)
        units = {host.name: host.name if kind == "host" else _failure_units(host).get(kind, "") for host in hosts}
        names = [name for name, unit in units.items() if unit == value]
        if not names:
            known = list(units) if kind == "host" else sorted({*units.values()} - {""})
            few = ", ".join([*known[:NAMES_SHOWN], *(["…"] if len(known) > NAMES_SHOWN else [])])
            label = ZONE_LABEL if kind == ZONE else DOMAIN_LABEL_PREFIX + kind
            remedy = f"there are {few}" if known else f"no host has a label {label}"
            raise BadInput(f"there is no {kind} {value!r}", place="--fail", remedy=remedy)
        found |= dict.fromkeys(names)
    if len(found) == len(hosts):
        raise BadInput("every host is to fail", place="--fail", remedy="leave some of them")
    return tuple(found)


def _choose_coordinators(hosts: Sequence[Hypervisor], failed: frozenset[str]) -> tuple[str, ...]:
    """Hosts of different racks that do not fail; of the same rack only where there are not enough racks."""
    living = [host for host in hosts if host.name not in failed]
    marked = [host for host in living if host.spec.mode == "coordinator"]
    chosen: list[str] = []
    racks: set[str] = set()
    for host in [*marked, *living]:
        rack = _failure_domains(host).get(RACK, host.name)
        if len(chosen) < COORDINATORS and rack not in racks:
            chosen.append(host.name)
            racks.add(rack)
    for host in living:
        if len(chosen) < COORDINATORS and host.name not in chosen:
            chosen.append(host.name)
    return tuple(chosen)


def _vm_specs(objects: Sequence[Resource], hosts: set[str], notes: list[str]) -> tuple[VmSpec, ...]:
    found: list[VmSpec] = []
    nowhere = 0
    for vm in objects:
        if not isinstance(vm, VirtualMachine):
            continue
        if vm.status.assigned is None or vm.status.assigned.hypervisor not in hosts:
            nowhere += 1
            continue
        stopped = vm.spec.power_state == "stopped" or vm.status.phase in _STOPPED
        spec = VmSpec(  # only what is not laid over it afterwards
            name=vm.name,
            host=vm.status.assigned.hypervisor,
            disks=vm.spec.disks or None,
            ports=vm.spec.ports or None,
            power_state="stopped" if stopped else "running",
        )
        found.append(spec)
    if nowhere:
        notes.append(f"{count_of(nowhere, 'VM')} on no known host are left out")
    return tuple(found)


def complete_objects(world: World, imported: Iterable[Resource]) -> tuple[Resource, ...]:
    """What is built, with all that the inventory knows beyond it; the virtual machines get the imported capacity."""
    known = {(type(one), one.name): one for one in imported}
    found: list[Resource] = [one for one in known.values() if isinstance(one, Flavor) or _is_slot(one)]
    found += world.store.list_all(Cluster)
    there: dict[str, list[VirtualMachine]] = {}
    for vm in world.store.list_all(VirtualMachine):
        complete = known[(VirtualMachine, vm.name)]
        assert isinstance(complete, VirtualMachine)
        built = vm.spec
        labels = {**complete.metadata.labels, **vm.metadata.labels}
        whole_vm = _replace(
            vm,
            metadata=_replace(vm.metadata, labels=labels),
            spec=_replace(
                complete.spec, disks=built.disks, ports=built.ports, power_state=built.power_state, request=None
            ),
        )
        found.append(whole_vm)
        if whole_vm.status.assigned is not None and is_wanted(whole_vm):
            there.setdefault(whole_vm.status.assigned.hypervisor, []).append(whole_vm)
    for host in world.store.list_all(Hypervisor):
        whole = known[(Hypervisor, host.name)]
        assert isinstance(whole, Hypervisor)
        world.hosts[host.name].machine.capacity = whole.status.capacity or Amounts()
        found.append(_complete_host(host, whole, there.get(host.name, ())))
    return tuple(found)


def _complete_host(built: Hypervisor, imported: Hypervisor, vms: Sequence[VirtualMachine]) -> Hypervisor:
    """As its daemon reported it last: that reports what is there, and not what it was imported with."""
    controlled = built.spec.fencing
    fencing = _replace(
        imported.spec.fencing,
        driver=controlled.driver,
        address=controlled.address,
        system_uuid=controlled.system_uuid,
        maintenance=False,
        power_maintenance=False,
        operator_proof="",
        trust_again="",
        requested="",
    )
    spec = _replace(imported.spec, management="node", mode=built.spec.mode, fencing=fencing)
    was = imported.status
    status = _replace(
        built.status,
        capacity=was.capacity,
        effective_capacity=apply_overcommit(was.capacity or Amounts(), spec.overcommit),
        allocation=sum((vm.spec.resources for vm in vms), Amounts(cpu=0, memory=0)),
        instances=tuple(Instance(id=vm.name, name=vm.spec.display_name) for vm in vms),
        num_instances=len(vms),
        aggregates=was.aggregates,
        traits=was.traits,
        capabilities=was.capabilities,
        domain_capabilities=was.domain_capabilities if was.domain_capabilities.hypervisor_type else _KVM,
    )
    labels = {**built.metadata.labels, **imported.metadata.labels}
    return _replace(built, metadata=_replace(built.metadata, labels=labels), spec=spec, status=status)
