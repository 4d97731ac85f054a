"""What an object is checked beside before it is written: whether a VM's disks and interfaces are its own, whether it
could ever start before itself, whether its rules can be met beside those of others, whether its definition names
nothing that no host may ever accept, and whether routed networks share no addresses. A VM that was deleted changes no
more and keeps its name until it has gone (docs/concepts/safety.md#deleting).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from outlive.api.admission import NAMED, SCREEN_REMEDY, check_contradictions, check_network_in_use, deletion_conflict
from outlive.base import BadInput, Conflict, Invalid, NotFound, Refused, join_parts
from outlive.network import check_beside, check_beside_hosts, find_overlaps, interfaces_of, is_down
from outlive.node.vm import VmRequestCode, find_cycle
from outlive.placement import HARD, HardGroups, demands_of, find_contradictions
from outlive.resources import (
    CLUSTER,
    PLACE,
    RUN_FINALIZER,
    ZONE_LABEL,
    Cluster,
    Hypervisor,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    device_of,
    examine,
    image_key,
    is_interface_id,
    may_be_same,
    parse,
    parse_xml,
    port_object_name,
)
from outlive.store import Store, list_all, read

LOOKED_AT: Final = 256
"""VMs that are read to see whether some start after each other in a circle; a larger one is found when they start."""
SHARED_PAGE: Final = "docs/how-to/storage.md#shared"
OWNERS_S: Final = 60.0
"""How long a server remembers which VM has which disk. What others wrote meanwhile is seen when they start: of a disk
that not both share by their definitions, of one that neither shares by its locks (``outlive.node.vm.locks``)."""


def _conflict_key(network: VirtualNetwork) -> tuple[object, ...]:
    """What of a network others may stand against."""
    return network.spec.type, network.spec.subnets, network.spec.vni, network.spec.domain


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
    """Which VMs may have which disk, or which interface id in Open vSwitch (``_interface_ids``).

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

    async def reload(self) -> None:
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
    for one in (*vm.spec.disks, *_interface_ids(vm)):
        names.setdefault(image_key(one), {})[vm.name] = None


def _interface_ids(vm: VirtualMachine) -> tuple[str, ...]:
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
        and says so (docs/concepts/start-order.md), and a fault names the contradiction (docs/how-to/policies.md).
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
        if before is not None and _conflict_key(before) == _conflict_key(network):
            return
        try:
            check_beside_hosts(network, await read(self._store, Cluster, CLUSTER))
            for other in others.values():
                check_beside(network, other)
        except BadInput as error:
            what = f"VirtualNetwork {network.name}: {error.message}"
            raise Invalid(what, place=error.place, remedy=error.remedy) from None
        for other in others.values():
            if find_overlaps((network, other)):
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
        known = find_contradictions(groups.find_tied(before), self._zones) if before is not None else []
        check_contradictions(
            vm, [one for one in find_contradictions(groups.find_tied(now), self._zones) if one not in known]
        )

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
        hosts = join_parts(sorted({one.hypervisor for one in found.status.holders}))
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
                f"VM {vm.name} may be running, and its guest may have {join_parts(sorted(gone), most=NAMED)} open",
                place="spec.disks",
                remedy=f"outlive vm stop {vm.name} --wait first, or outlive vm detach {vm.name} DEVICE",
            )
        flipped = (set(found.spec.shared_disks) ^ set(vm.spec.shared_disks)) & set(found.spec.disks)
        if flipped:
            raise Invalid(
                f"VM {vm.name} may be running, and has {join_parts(sorted(flipped), most=NAMED)} open as it was "
                "defined",
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
        domain = parse_xml(text)
        try:
            examine(domain)
        except BadInput as error:
            raise Invalid(f"VM {vm.name}: {error.message}", place=error.place, remedy=error.remedy) from None
        passwords = [one.attrib["passwd"] for one in domain.iterfind("devices/graphics[@passwd]")]
        known = parse_xml(before).iterfind("devices/graphics[@passwd]") if before else ()
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
            await self._owners.reload()
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
        for interface in sorted(set(_interface_ids(vm)) - set(_interface_ids(found) if found is not None else ())):
            for name in await self._owners.find_owners(interface):
                other = await self._read_vm(name) if name != vm.name else None
                if other is not None and interface in _interface_ids(other):
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
        around = find_cycle(after, vm.name)
        if around:
            raise Invalid(
                f"these VMs would start after each other: {join_parts(around, most=NAMED)}",
                place="spec.startAfter",
                remedy="let one of them start after none of the others",
            )

    async def _read_start_after(self, name: str) -> tuple[str, ...] | None:
        vm = await self._read_vm(name)
        return vm.spec.start_after if vm is not None else None
