"""What is looked at before an object is written, beyond its schema, of it alone (beside others: ``api.neighbours``).

Whether a pipeline can be built at all, whether a VM's protection is one that settings could name, whether its rules
contradict each other, and whether its definition can be read, from which size, disks and ports are written out; whether
networks and ports of VMs are well-formed; and before a host or its Membership is deleted, whether it has VMs. The
cluster is never deleted.

A step that this version does not know is a warning, never an error, so that a roll-out may name steps of a newer one
(docs/reference/placement.md). Status writes always pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from outlive.base import AlreadyExists, BadInput, Invalid, Refused, count_of, join_parts
from outlive.failover import check_vm_protection
from outlive.network import check_network, check_port, completed_network, networks_of
from outlive.node.links import check_system_networks
from outlive.node.vm import deletion_of
from outlive.placement import admit, demands_of, find_contradictions
from outlive.resources import (
    AFFINITY_LIMIT,
    RUN_FINALIZER,
    START_AFTER_LIMIT,
    WEIGHT_LIMIT,
    Cluster,
    Flavor,
    Hypervisor,
    Membership,
    Pipeline,
    Reservation,
    Resource,
    Secret,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    bridge_name,
    bridges_in,
    cache_refusal,
    disk_problem,
    is_made_by_hosts,
    parse,
    size_problems,
)
from outlive.resources import complete_vm as completed_vm
from outlive.resources.reasons import Reason, render
from outlive.store import Store, list_all, read

SCREEN_REMEDY: Final = "leave it out, set it with outlive secret set NAME, and name that in spec.consoleSecret"
NAMED: Final = 6
"""VMs of a circle that a message names."""


def fill_from_definition(obj: Resource) -> Resource:
    """The object with what its definition says written out, and labelled if it shares disks; ``Invalid`` where its
    definition is malformed."""
    if isinstance(obj, VirtualNetwork):
        return completed_network(obj)
    if not isinstance(obj, VirtualMachine):
        return obj
    try:
        return completed_vm(obj).marked
    except BadInput as error:
        raise Invalid(f"VM {obj.name}: {error.message}", place=error.place, remedy=error.remedy) from None


def check_admission(obj: Resource) -> tuple[str, ...]:
    """Warnings for the writer of the object; ``Invalid`` with all errors where the object is unusable."""
    if isinstance(obj, VirtualNetwork | VirtualMachinePort):
        try:
            check_network(obj.spec) if isinstance(obj, VirtualNetwork) else check_port(obj)
        except BadInput as error:
            raise Invalid(f"{obj.kind()} {obj.name}: {error.message}", place=error.place, remedy=error.remedy) from None
    if isinstance(obj, Cluster):
        try:
            check_system_networks(obj.spec.system_networks)
        except BadInput as error:
            raise Invalid(f"Cluster {obj.name}: {error.message}", place=error.place, remedy=error.remedy) from None
    if isinstance(obj, VirtualMachine | Flavor | Reservation):
        sizes = {f"resources.{name}": amount for name, amount in obj.spec.resources.items()}
        if not isinstance(obj, Reservation):
            sizes["diskGib"] = obj.spec.disk_gib
        below = next((name for name, amount in sizes.items() if amount < 0), "")
        if below:
            raise Invalid(
                f"{obj.kind()} {obj.name} has less than no {below.rpartition('.')[2]}",
                place=f"spec.{below}",
                remedy="write 0 or more",
            )
    if isinstance(obj, VirtualMachine | Flavor):
        for name, problem, remedy in size_problems(obj.spec.resources):
            raise Invalid(f"{obj.kind()} {obj.name} has {problem}", place=f"spec.resources.{name}", remedy=remedy)
        if (wrong := disk_problem(obj.spec.disk_gib)) is not None:
            raise Invalid(f"{obj.kind()} {obj.name} has {wrong[0]}", place="spec.diskGib", remedy=wrong[1])
    if isinstance(obj, VirtualMachine):
        check_vm_protection(obj.name, obj.spec.protection, obj.spec.restart_priority)
        _check_names(obj)
        _check_rules(obj)
        if why := cache_refusal(obj.spec.disk_cache):
            raise Invalid(f"VM {obj.name} would not start: {why}", place="spec.diskCache", remedy="write none")
        return definition_warnings(obj)
    if isinstance(obj, Secret) and not obj.spec.key:
        remedy = f"set it with: outlive secret set {obj.name}"
        raise Invalid(f"secret {obj.name} holds no sealed value", place="spec.sealed", remedy=remedy)
    if not isinstance(obj, Pipeline):
        return ()
    admission = admit(obj)
    if admission.errors:
        errors = "; ".join(str(error) for error in admission.errors)
        raise Invalid(f"pipeline {obj.name}: {errors}", place="spec", remedy="see docs/reference/placement.md")
    return admission.warnings


def definition_warnings(vm: VirtualMachine) -> tuple[str, ...]:
    """What to know of a VM with such a definition, which is accepted."""
    if not vm.spec.definition:
        return ()
    defined = parse(vm.spec.definition)
    warnings = [
        f"VM {vm.name}: after a restart on another host it has no {what}" for what in dict.fromkeys(defined.lost)
    ]
    if defined.password:
        warnings.append(f"VM {vm.name}: who reads its definition reads the password of its screen: {SCREEN_REMEDY}")
    return tuple(warnings)


def _check_names(vm: VirtualMachine) -> None:
    """``Invalid`` for names that nobody can start after."""
    after, place = vm.spec.start_after, "spec.startAfter"
    if len(after) > START_AFTER_LIMIT:
        remedy = f"name at most {START_AFTER_LIMIT}, and let these start after others"
        raise Invalid(f"VM {vm.name} starts after {len(after)} others", place=place, remedy=remedy)
    if vm.name in after:
        raise Invalid(f"VM {vm.name} is to start after itself", place=place, remedy="leave its own name out")
    twice = next((name for name in after if after.count(name) > 1), "")
    if not all(after) or twice:
        what = f"names {twice} twice" if twice else "has an empty name"
        raise Invalid(f"VM {vm.name} {what}", place=place, remedy="write each name once")


def _check_rules(vm: VirtualMachine) -> None:
    """``Invalid`` for rules that say nothing, or that this VM alone contradicts."""
    spec = vm.spec
    rules, weights = spec.affinity, spec.preferred_hosts.weights
    if len(rules) > AFFINITY_LIMIT:
        remedy = f"at most {AFFINITY_LIMIT}"
        raise Invalid(f"VM {vm.name} is in {len(rules)} groups", place="spec.affinity", remedy=remedy)
    if not all(rule.group for rule in rules):
        raise Invalid(f"VM {vm.name} is in a group without a name", place="spec.affinity", remedy="name each group")
    wrong = next((host for host, weight in weights.items() if not host or not 1 <= weight <= WEIGHT_LIMIT), None)
    if wrong is not None:
        what = f"VM {vm.name} gives host {wrong!r} the weight {weights[wrong]}"
        raise Invalid(what, place="spec.preferredHosts", remedy=f"give each host a weight of 1 to {WEIGHT_LIMIT}")
    if spec.preferred_hosts.strict and not weights:
        what = f"VM {vm.name} may run on its preferred hosts only, and names none"
        raise Invalid(what, place="spec.preferredHosts", remedy="give hosts a weight, or leave strict out")
    check_contradictions(vm, find_contradictions([demands_of(vm)], {}))


def check_contradictions(vm: VirtualMachine, conflicts: Sequence[Reason]) -> None:
    """``Invalid`` for rules of the VM that cannot be met."""
    if conflicts:
        said = [render(one) for one in conflicts[:NAMED]]
        text, remedy = "; ".join(one.text for one in said), said[0].remedy
        raise Invalid(f"the rules of VM {vm.name} cannot be met: {text}", place="spec.affinity", remedy=remedy)


def without_finalizer(obj: Resource) -> Resource:
    """The object without our finalizer, as users create it: a host sets the finalizer before it runs the VM."""
    if not isinstance(obj, VirtualMachine) or not obj.guarded:
        return obj
    left = tuple(one for one in obj.metadata.finalizers if one != RUN_FINALIZER)
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, finalizers=left))


def keep_finalizer(obj: Resource, current: Resource) -> Resource:
    """A whole document that names no finalizers, with that of the VM that it replaces, unless that is being deleted."""
    kept = isinstance(current, VirtualMachine) and current.guarded and not current.deleting
    if not kept or obj.metadata.finalizers:
        return obj
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, finalizers=(RUN_FINALIZER,)))


def keep_owners(obj: Resource, current: Resource | None) -> Resource:
    """The object with the owner references that it has: nobody writes them here, and no write takes them away."""
    owners = current.metadata.owner_references if current is not None else ()
    if obj.metadata.owner_references == owners:
        return obj
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, owner_references=owners))


def deletion_conflict(found: Resource | None) -> AlreadyExists | None:
    """Why no VM of that name can be created now, and what helps; ``None`` where that is not because of its deletion."""
    if not isinstance(found, VirtualMachine) or not found.deleting:
        return None
    said = deletion_of(found)
    return AlreadyExists(said.text, remedy=said.remedy)


async def check_deletion(obj: Resource, store: Store, *, force: bool = False) -> None:
    """``Refused`` for the cluster, and unless forced for a host that VMs are assigned to, held by or reported by, for
    a Membership under which VMs are held: without it nothing proves any more that they ended; and for a network that
    has ports.

    What ``Cluster`` says of its store, and that it is paused, is kept nowhere else. Errors of the store.
    """
    if isinstance(obj, Cluster):
        raise Refused(
            f"Cluster/{obj.name} says which store this is, and whether it is paused: it is not deleted",
            remedy="change its spec instead (outlive apply -f FILE, kubectl edit)",
        )
    if force or not isinstance(obj, Hypervisor | Membership | VirtualNetwork):
        return
    if isinstance(obj, VirtualNetwork):
        if named := await _ports_on(store, obj.name):
            raise Refused(
                f"network {obj.name} has {count_of(len(named), 'port')}: {join_parts(named, most=NAMED)}",
                remedy="delete them first, or force it (outlive delete --force, kubectl delete --cascade=orphan): "
                "their VMs then keep what they have in OVN for as long as they stay where they are",
            )
        if named := await _vms_attached_to(store, obj):
            raise Refused(
                f"{count_of(len(named), 'VM')} {'is' if len(named) == 1 else 'are'} attached to "
                f"{bridge_name(obj.spec.vni)} of network {obj.name}: {join_parts(named, most=NAMED)}",
                remedy="change their definitions first, or force it (outlive delete --force, kubectl delete "
                "--cascade=orphan): they then have no gateway, DHCP and names any more",
            )
        return
    if isinstance(obj, Membership):
        held = sorted([vm.name async for vm in list_all(store, VirtualMachine, whole=True) if _is_held_under(vm, obj)])
        if held:
            raise Refused(
                f"host {obj.name} may run {count_of(len(held), 'VM')} under this Membership: "
                f"{join_parts(held, most=NAMED)}",
                remedy=f"outlive fence {obj.name} --reason ... first; or force it (outlive delete --force, kubectl "
                "delete --cascade=orphan): they then wait for somebody who says that they ended",
            )
        return
    there = {instance.id for instance in obj.status.instances}
    there |= {vm.name async for vm in list_all(store, VirtualMachine, whole=True) if obj.name in vm.involved_hosts()}
    if there:
        count = count_of(len(there), "VM")
        raise Refused(
            f"host {obj.name} has {count}: {join_parts(sorted(there), most=NAMED)}",
            remedy="move or delete them first, or force it: outlive delete --force, kubectl delete --cascade=orphan; "
            "they then count as uncovered, and as its token is revoked, an armed guard ends them",
        )


async def _ports_on(store: Store, network: str) -> list[str]:
    """Names of ports that are on the network, or are to be on it. Errors of the store."""
    ports = list_all(store, VirtualMachinePort, whole=True)
    return sorted([port.name async for port in ports if network in networks_of(port)])


async def check_network_in_use(network: VirtualNetwork, store: Store) -> None:
    """``Invalid`` for another type, or VNI, of a network that has ports, or whose bridge VMs are attached to."""
    before = await read(store, VirtualNetwork, network.name)
    if before is None or (before.spec.type, before.spec.vni) == (network.spec.type, network.spec.vni):
        return
    is_type = before.spec.type != network.spec.type
    here = f"VirtualNetwork {network.name} {f'is {before.spec.type}' if is_type else f'has VNI {before.spec.vni}'}"
    place = "spec.type" if is_type else "spec.vni"
    if named := await _ports_on(store, network.name):
        raise Invalid(
            f"{here}, and has {count_of(len(named), 'port')}: {join_parts(named, most=NAMED)}",
            place=place,
            remedy="delete them first, or create another network",
        )
    if named := await _vms_attached_to(store, before):
        raise Invalid(
            f"{here}, and VMs are attached to its bridge: {join_parts(named, most=NAMED)}",
            place=place,
            remedy="change their definitions first, or create another network",
        )


async def _vms_attached_to(store: Store, network: VirtualNetwork) -> list[str]:
    """Names of VMs whose definitions name the bridge of a network that hosts make. Errors of the store."""
    if not is_made_by_hosts(network):
        return []
    bridge, vms = bridge_name(network.spec.vni), list_all(store, VirtualMachine, whole=True)
    return sorted([vm.name async for vm in vms if bridge in bridges_in(vm.spec.definition)])


def _is_held_under(vm: VirtualMachine, member: Membership) -> bool:
    return any(one.member_uid == member.metadata.uid for one in vm.status.holders)


def add_warnings(response: Response, warnings: tuple[str, ...]) -> Response:
    """The answer with each warning in a header, where kubectl shows it."""
    for text in warnings:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"').encode("latin-1", "replace").decode("latin-1")
        response.headers.append("warning", f'299 outlive "{quoted}"')
    return response
