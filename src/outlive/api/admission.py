"""What is looked at before an object is written, beyond its schema: whether a pipeline can be built at all, whether
a VM's protection is one that settings could name, whether it could ever start before itself, whether its rules can be
met beside those of others, whether its disks and interfaces are its own, and whether its definition can be read, from
which size, disks and ports are written out, and names nothing that no host may ever accept; whether networks and ports
of VMs are well-formed, and routed networks share no addresses; and before a host or its Membership is deleted, whether
it has VMs. The cluster is never deleted, and a VM that was deleted changes no more and keeps its name until it has gone
(docs/concepts/safety.md#deleting).

A step that this version does not know is a warning, never an error, so that a roll-out may name steps of a newer one
(docs/reference/placement.md). Status writes always pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from outlive.base.errors import AlreadyExists, BadInput, Conflict, Invalid, NotFound, Refused
from outlive.base.phrases import count_of, listing
from outlive.failover.protection import check_vm_protection
from outlive.network.informers import interfaces_of, networks_of
from outlive.network.own_networks import check_beside, check_beside_hosts, completed_network
from outlive.network.pool import check_network, check_port, overlapping
from outlive.network.views import is_down
from outlive.node.links.host_addresses import check_system_networks
from outlive.node.vm.requests import VmRequestCode
from outlive.node.vm.start_order import circles
from outlive.node.vm.states import deletion_of
from outlive.placement.pipelines import admit
from outlive.placement.rule_conflicts import HardGroups, contradictions
from outlive.placement.rules import HARD, demands_of
from outlive.resources import (
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
)
from outlive.resources.amounts import disk_problem, size_problems
from outlive.resources.cluster import CLUSTER
from outlive.resources.definitions import PLACE, cache_refusal, image_key, may_be_same, parse, tree
from outlive.resources.definitions import completed as completed_vm
from outlive.resources.devices import device_of
from outlive.resources.domain_elements import examine
from outlive.resources.meta import ZONE_LABEL
from outlive.resources.networks import (
    bridge_name,
    bridges_in,
    is_interface_id,
    is_made_by_hosts,
    port_object_name,
)
from outlive.resources.policies import AFFINITY_LIMIT, WEIGHT_LIMIT
from outlive.resources.reasons import Reason, render
from outlive.resources.vms import RUN_FINALIZER, START_AFTER_LIMIT
from outlive.store import Store, list_all, read

LOOKED_AT: Final = 256
"""VMs that are read to see whether some start after each other in a circle; a larger one is found when they start."""
SCREEN_REMEDY: Final = "leave it out, set it with outlive secret set NAME, and name that in spec.consoleSecret"
SHARED_PAGE: Final = "docs/operating/storage.md#shared"
OWNERS_S: Final = 60.0
"""How long a server remembers which VM has which disk. What others wrote meanwhile is seen when they start: of a disk
that not both share by their definitions, of one that neither shares by its locks (``outlive.node.vm.locks``)."""
NAMED: Final = 6
"""VMs of a circle that a message names."""


def completed(obj: Resource) -> Resource:
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


def admitted(obj: Resource) -> tuple[str, ...]:
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


def _beside_others(network: VirtualNetwork) -> tuple[object, ...]:
    """What of a network others may stand against."""
    return network.spec.type, network.spec.subnets, network.spec.vni, network.spec.domain


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


def _check_shared(vm: VirtualMachine) -> None:
    """``Invalid`` where the disks that it shares are not those that say so."""
    shared, place = set(vm.spec.shared_disks), "spec.sharedDisks"
    if gone := sorted(shared - set(vm.spec.disks)):
        raise Invalid(f"VM {vm.name} shares {gone[0]}, which is no disk of it", place=place, remedy="leave it out")
    if not vm.spec.definition:
        return
    may = {disk.id for disk in parse(vm.spec.definition).disks if disk.id and disk.shareable}
    if unsaid := sorted(may - shared):
        remedy = f"name it in spec.sharedDisks of each VM that has it, or leave <shareable/> out: see {SHARED_PAGE}"
        raise Invalid(f"disk {unsaid[0]} of VM {vm.name} is shareable", place=place, remedy=remedy)
    if alone := sorted(shared - may):
        what = f"disk {alone[0]} of VM {vm.name} is shared, and its definition does not say so"
        raise Invalid(what, place=place, remedy="write <shareable/> into its <disk>")


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
    _refuse(vm, contradictions([demands_of(vm)], {}))


def _refuse(vm: VirtualMachine, conflicts: Sequence[Reason]) -> None:
    if conflicts:
        said = [render(one) for one in conflicts[:NAMED]]
        text, remedy = "; ".join(one.text for one in said), said[0].remedy
        raise Invalid(f"the rules of VM {vm.name} cannot be met: {text}", place="spec.affinity", remedy=remedy)


def _detached_disk(vm: VirtualMachine) -> str:
    """The disk that its host has taken away from its guest by the last request; empty: none."""
    request, answer = vm.spec.request, vm.status.answered
    if request is None or request.verb != "detach" or answer is None or answer.id != request.id:
        return ""
    if answer.code != VmRequestCode.ACCEPTED:
        return ""
    with contextlib.suppress(NotFound, BadInput):
        return device_of(vm.spec.definition, request.device).disk
    return ""


def _has_another(vm: VirtualMachine, disk: str, name: str, its: str) -> Invalid:
    if disk == its:
        what, remedy = f"is one of VM {name} as well", "give each a disk of its own"
    else:
        what = f"may be the same image as {its} of VM {name}"
        remedy = "name the monitors of Ceph in both definitions or in none, and give each a disk of its own"
    return Invalid(
        f"disk {disk} of VM {vm.name} {what}",
        place="spec.disks",
        remedy=f"{remedy}, or name it in spec.sharedDisks of both: see {SHARED_PAGE}",
    )


class DiskOwners:
    """Which VMs may have which disk, or which interface id in Open vSwitch (``_interfaces``).

    As all were read at most ``OWNERS_S`` ago, and as they were checked since.
    """

    def __init__(self, store: Store, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._store = store
        self._now_s = now_s
        self._names: dict[str, dict[str, None]] | None = None
        self._read_s = 0.0
        self._reading: asyncio.Task[dict[str, dict[str, None]]] | None = None
        """The listing that runs; all who wait for it share it, and it goes on where one of them gives up."""
        self._added: list[VirtualMachine] = []
        """Counted since it began."""

    async def find_owners(self, disk: str) -> tuple[str, ...]:
        """Names of VMs that may have it, or had it, under whatever id. Errors of the store."""
        names = self._names
        if names is None or self._now_s() - self._read_s > OWNERS_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(), name="owners of disks")
                self._reading.add_done_callback(_retrieve)
            names = await asyncio.shield(self._reading)
        return tuple(names.get(image_key(disk), ()))

    async def _read(self) -> dict[str, dict[str, None]]:
        since_s, names = self._now_s(), dict[str, dict[str, None]]()
        self._added = []
        async for vm in list_all(self._store, VirtualMachine):
            _add(names, vm)
        for vm in self._added:
            _add(names, vm)
        self._names, self._read_s = names, since_s
        return names

    async def read_again(self) -> None:
        """Add what others have written since; what is about to be written stays."""
        async for vm in list_all(self._store, VirtualMachine):
            self.add(vm)

    def add(self, vm: VirtualMachine) -> None:
        """Count the VM, which is about to be written, among the owners of its disks."""
        if self._reading is not None and not self._reading.done():
            self._added.append(vm)
        if self._names is not None:
            _add(self._names, vm)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Nobody may wait any more for a listing that failed."""
    _ = task.cancelled() or task.exception()


def _add(names: dict[str, dict[str, None]], vm: VirtualMachine) -> None:
    for one in (*vm.spec.disks, *_interfaces(vm)):
        names.setdefault(image_key(one), {})[vm.name] = None


def _interfaces(vm: VirtualMachine) -> tuple[str, ...]:
    """The ids of its interfaces in Open vSwitch, as ids of what a VM has."""
    return tuple(f"port:{one}" for one in interfaces_of(vm))


class Neighbours:
    """What VMs are checked beside: those of the store, and on top of them what was checked before."""

    def __init__(self, store: Store, owners: DiskOwners | None = None) -> None:
        self._store = store
        self._owners = owners or DiskOwners(store)
        self._checked: dict[tuple[type[Resource], str], Resource] = {}
        self._owners_read = owners is None
        """Whether all owners were read for this check; else they are before a VM is let in that shares a disk."""
        self._groups: HardGroups | None = None
        """Read when a VM is first checked that needs them, …"""
        self._zones: dict[str, str] = {}
        """… and the hosts as well."""

    async def check(self, obj: Resource) -> None:
        """``Invalid`` for a VM that from now on starts after itself, or contradicts others. Errors of the store.

        The check accepts what was wrong before, so that writers can mend it step by step. Two writers at once, or one
        that uses the store directly, may still make a circle or a contradiction: then one VM of the circle starts first
        and says so (docs/concepts/start-order.md), and a fault names the contradiction (docs/operating/policies.md).
        """
        if isinstance(obj, VirtualMachine):
            await self._check_deletion(obj)
            await self._check_definition(obj)
            await self._check_disks(obj)
            await self._check_own_disks(obj)
            await self._check_own_interfaces(obj)
            await self._check_plugged_interfaces(obj)
            await self._check_circle(obj)
            await self._check_rules(obj)
        if isinstance(obj, VirtualNetwork):
            await self._check_overlap(obj)
            await check_network_in_use(obj, self._store)
        self._update_rules(obj)
        self._checked[type(obj), obj.name] = obj
        if isinstance(obj, VirtualMachine):
            self._owners.add(obj)

    def _update_rules(self, obj: Resource) -> None:
        """Have later checks of rules see the object, if groups were read."""
        if self._groups is None:
            return
        if isinstance(obj, VirtualMachine):
            self._groups.put(demands_of(obj))
        elif isinstance(obj, Hypervisor):
            self._zones[obj.name] = obj.metadata.labels.get(ZONE_LABEL, "")

    async def _check_overlap(self, network: VirtualNetwork) -> None:
        """``Invalid`` for a network that comes to be one that cannot be beside another one: subnets of routed ones, and
        of managed ones, do not overlap, and a VNI or a domain belongs to one."""
        others = {one.name: one async for one in list_all(self._store, VirtualNetwork)}
        others |= {name: one for (_, name), one in self._checked.items() if isinstance(one, VirtualNetwork)}
        before = others.pop(network.name, None)
        if before is not None and _beside_others(before) == _beside_others(network):
            return
        try:
            check_beside_hosts(network, await read(self._store, Cluster, CLUSTER))
            for other in others.values():
                check_beside(network, other)
        except BadInput as error:
            what = f"VirtualNetwork {network.name}: {error.message}"
            raise Invalid(what, place=error.place, remedy=error.remedy) from None
        for other in others.values():
            if overlapping((network, other)):
                raise Invalid(
                    f"VirtualNetwork {network.name}: its subnets overlap those of {other.name}, and routed networks "
                    "share one router",
                    place="spec.subnets",
                    remedy="write other subnets",
                )

    async def _read_vm(self, name: str) -> VirtualMachine | None:
        checked = self._checked.get((VirtualMachine, name))
        return checked if isinstance(checked, VirtualMachine) else await read(self._store, VirtualMachine, name)

    async def _read_groups(self) -> HardGroups:
        if self._groups is None:
            store = self._store
            groups = HardGroups([demands_of(vm) async for vm in list_all(store, VirtualMachine)])
            self._zones = {
                one.name: one.metadata.labels.get(ZONE_LABEL, "") async for one in list_all(store, Hypervisor)
            }
            self._groups = groups
            for obj in self._checked.values():
                self._update_rules(obj)
        return self._groups

    async def _check_rules(self, vm: VirtualMachine) -> None:
        if not HARD.intersection(rule.policy for rule in vm.spec.affinity_rules):
            return
        found, now = await self._read_vm(vm.name), demands_of(vm)
        before = demands_of(found) if found is not None else None
        if before == now:
            return
        groups = await self._read_groups()
        known = contradictions(groups.concerned(before), self._zones) if before is not None else []
        _refuse(vm, [one for one in contradictions(groups.concerned(now), self._zones) if one not in known])

    async def _check_deletion(self, vm: VirtualMachine) -> None:
        """``AlreadyExists`` where it is made or changed while it is being deleted.

        ``Refused`` where it would free its name too early, ``Conflict`` where it replaces another version than the one
        that this is judged on.
        """
        found = await self._read_vm(vm.name)
        if found is None:
            return
        version, taken = vm.metadata.resource_version, deletion_conflict(found)
        if version and version != found.metadata.resource_version:
            raise Conflict(f"VirtualMachine/{vm.name} has changed since", remedy="read it again and repeat")
        if taken is not None and (not version or vm.spec != found.spec):
            raise taken
        if not version or vm.guarded or not found.guarded or not found.status.holders:
            return
        hosts = listing(sorted({one.hypervisor for one in found.status.holders}))
        raise Refused(
            f"VM {vm.name} may run on {hosts}, and the finalizer {RUN_FINALIZER} keeps its name for as long",
            place="metadata.finalizers",
            remedy=f"leave the finalizer in; outlive vm undefine {vm.name} stops and deletes it",
        )

    async def _check_disks(self, vm: VirtualMachine) -> None:
        """``Invalid`` where it loses a disk that its guest may have open, unless its host has taken that away, or comes
        to share one or to have it alone: its guest would go on as before."""
        found = await self._read_vm(vm.name)
        if found is None or not found.status.holders:
            return
        gone = set(found.spec.disks) - set(vm.spec.disks) - {_detached_disk(found)}
        if gone:
            raise Invalid(
                f"VM {vm.name} may be running, and its guest may have {listing(sorted(gone), most=NAMED)} open",
                place="spec.disks",
                remedy=f"outlive vm stop {vm.name} --wait first, or outlive vm detach {vm.name} DEVICE",
            )
        flipped = (set(found.spec.shared_disks) ^ set(vm.spec.shared_disks)) & set(found.spec.disks)
        if flipped:
            raise Invalid(
                f"VM {vm.name} may be running, and has {listing(sorted(flipped), most=NAMED)} open as it was defined",
                place="spec.sharedDisks",
                remedy=f"outlive vm stop {vm.name} --wait first",
            )

    async def _check_definition(self, vm: VirtualMachine) -> None:
        """``Invalid`` for a definition that uses more of the host than its VM may, shares disks that
        ``spec.sharedDisks`` does not name, or contains a password."""
        found = await self._read_vm(vm.name)
        text, before = vm.spec.definition, found.spec.definition if found is not None else ""
        if found is None or (text, vm.spec.shared_disks) != (before, found.spec.shared_disks):
            _check_shared(vm)
        if not text or text == before:
            return
        domain = tree(text)
        try:
            examine(domain)
        except BadInput as error:
            raise Invalid(f"VM {vm.name}: {error.message}", place=error.place, remedy=error.remedy) from None
        passwords = [one.attrib["passwd"] for one in domain.iterfind("devices/graphics[@passwd]")]
        known = tree(before).iterfind("devices/graphics[@passwd]") if before else ()
        if passwords and passwords != [one.attrib["passwd"] for one in known]:
            what = f"<graphics passwd=…> of VM {vm.name} would be read by everybody who reads its definition"
            raise Invalid(what, place=PLACE, remedy=SCREEN_REMEDY)

    async def _check_own_disks(self, vm: VirtualMachine) -> None:
        """``Invalid`` for a disk that it does not have yet, and that another VM has too, or may have under another id,
        unless both share it."""
        found = await self._read_vm(vm.name)
        known = {(disk, disk in found.spec.shared_disks) for disk in found.spec.disks} if found is not None else set()
        now = {(disk, disk in vm.spec.shared_disks) for disk in vm.spec.disks if not disk.startswith("local:")}
        if not now - known:
            return
        if not self._owners_read and any(shared for _, shared in now - known):
            await self._owners.read_again()
            self._owners_read = True
        for disk, shared in sorted(now - known):
            for name in dict.fromkeys((vm.name, *await self._owners.find_owners(disk))):
                other = await self._read_vm(name) if name != vm.name else vm
                for its in other.spec.disks if other is not None else ():
                    if not may_be_same(disk, its) or (name == vm.name and its == disk):
                        continue
                    if other is not None and not (shared and its in other.spec.shared_disks):
                        raise _has_another(vm, disk, name, its)

    async def _check_own_interfaces(self, vm: VirtualMachine) -> None:
        """``Invalid`` for an interface id that it does not have yet, and that another VM has."""
        found = await self._read_vm(vm.name)
        for interface in sorted(set(_interfaces(vm)) - set(_interfaces(found) if found is not None else ())):
            for name in await self._owners.find_owners(interface):
                other = await self._read_vm(name) if name != vm.name else None
                if other is not None and interface in _interfaces(other):
                    raise Invalid(
                        f"VM {vm.name} has the interface id {interface.removeprefix('port:')}, and so has VM {name}",
                        place="spec.ports",
                        remedy="write another interfaceid in its definition (see uuidgen)",
                    )

    async def _check_plugged_interfaces(self, vm: VirtualMachine) -> None:
        """``Invalid`` for another id of an interface that its guest has now: OVN would let go of the port that it uses,
        and a host would be isolated from another one."""
        found = await read(self._store, VirtualMachine, vm.name)
        if found is None or found.spec.ports == vm.spec.ports or is_down(found):
            return
        for number, (before, now) in enumerate(zip(found.spec.ports, vm.spec.ports, strict=False)):
            is_new = is_interface_id(before) and is_interface_id(now) and now not in found.spec.ports
            name = port_object_name(vm.name, number)
            if is_new and await read(self._store, VirtualMachinePort, name) is not None:
                raise Invalid(
                    f"VM {vm.name} runs, and its interface {number}, of port {name}, has the id {before}",
                    place="spec.ports",
                    remedy=f"leave interfaceid as it is, or stop {vm.name} first",
                )

    async def _check_circle(self, vm: VirtualMachine) -> None:
        if not vm.spec.start_after:
            return
        before = await self._read_start_after(vm.name)
        if before == vm.spec.start_after:
            return
        after = {vm.name: vm.spec.start_after}
        left = list(vm.spec.start_after)
        while left and len(after) < LOOKED_AT:
            name = left.pop(0)
            if name not in after:
                after[name] = await self._read_start_after(name) or ()
                left += after[name]
        around = circles(after, vm.name)
        if around:
            raise Invalid(
                f"these VMs would start after each other: {listing(around, most=NAMED)}",
                place="spec.startAfter",
                remedy="let one of them start after none of the others",
            )

    async def _read_start_after(self, name: str) -> tuple[str, ...] | None:
        vm = await self._read_vm(name)
        return vm.spec.start_after if vm is not None else None


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
                f"network {obj.name} has {count_of(len(named), 'port')}: {listing(named, most=NAMED)}",
                remedy="delete them first, or force it (outlive delete --force, kubectl delete --cascade=orphan): "
                "their VMs then keep what they have in OVN for as long as they stay where they are",
            )
        if named := await _vms_attached_to(store, obj):
            raise Refused(
                f"{count_of(len(named), 'VM')} {'is' if len(named) == 1 else 'are'} attached to "
                f"{bridge_name(obj.spec.vni)} of network {obj.name}: {listing(named, most=NAMED)}",
                remedy="change their definitions first, or force it (outlive delete --force, kubectl delete "
                "--cascade=orphan): they then have no gateway, DHCP and names any more",
            )
        return
    if isinstance(obj, Membership):
        held = sorted([vm.name async for vm in list_all(store, VirtualMachine, whole=True) if _is_held_under(vm, obj)])
        if held:
            raise Refused(
                f"host {obj.name} may run {count_of(len(held), 'VM')} under this Membership: "
                f"{listing(held, most=NAMED)}",
                remedy=f"outlive fence {obj.name} first; or force it (outlive delete --force, kubectl delete "
                "--cascade=orphan): they then wait for somebody who says that they ended",
            )
        return
    there = {instance.id for instance in obj.status.instances}
    there |= {vm.name async for vm in list_all(store, VirtualMachine, whole=True) if obj.name in vm.hosts()}
    if there:
        count = count_of(len(there), "VM")
        raise Refused(
            f"host {obj.name} has {count}: {listing(sorted(there), most=NAMED)}",
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
            f"{here}, and has {count_of(len(named), 'port')}: {listing(named, most=NAMED)}",
            place=place,
            remedy="delete them first, or create another network",
        )
    if named := await _vms_attached_to(store, before):
        raise Invalid(
            f"{here}, and VMs are attached to its bridge: {listing(named, most=NAMED)}",
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
