"""A cluster altered in memory: other hosts, other VMs, other settings, gathered again as if it were so.

Nothing is written anywhere. What is altered are the objects that failover reads, so that every answer comes from the
same gathering and planning as the real one. VMs are altered as their source lists them, whatever the source is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from outlive.base import SystemClock, SystemIds
from outlive.failover.config import FailoverSettings
from outlive.failover.snapshot import Snapshot, gather
from outlive.placement import VmList, VmView, amounts_of, placed_on
from outlive.resources import (
    DOMAIN_LABEL_PREFIX,
    NOWHERE,
    Amounts,
    FlavorGroup,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Pipeline,
    Reservation,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
)
from outlive.store import MemoryStore, Store, list_all, read

READ_BESIDES = (FlavorGroup, Pipeline)
"""Kinds that gathering reads besides hosts, reservations and VMs."""


class Altered(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster; each change is a new one."""

    hosts: dict[str, Hypervisor]
    reservations: dict[str, Reservation]
    vms: dict[str, VmView]
    """VM → as its source lists it."""
    besides: tuple[Resource, ...]
    settings: FailoverSettings
    k: int | None = None
    networks: dict[str, tuple[VirtualNetwork, ...]] = {}
    """VM that nothing but networks limits to some hosts → these networks."""

    async def gather_snapshot(self) -> Snapshot:
        """What failover would see."""
        store = MemoryStore(SystemClock(), SystemIds())
        store.load((*self.hosts.values(), *self.reservations.values(), *self.besides))

        async def list_altered() -> VmList:
            return VmList(vms=tuple(self.vms[name] for name in sorted(self.vms)))

        return await gather(store, self.settings, list_vms=list_altered, k=self.k)

    def with_hosts(self, hosts: Iterable[Hypervisor]) -> Altered:
        """With further hosts, or others of the same names. VMs may run on those that their networks reach."""
        new = {host.name: host for host in hosts}
        vms = dict(self.vms)
        for name, networks in self.networks.items():
            reached = {one for one, host in new.items() if all(net.reaches(host.metadata.labels) for net in networks)}
            vm = vms.get(name)
            if vm is not None and reached:
                limit = tuple(sorted(reached.union(vm.host_limit).difference(NOWHERE)))
                vms[name] = msgspec.structs.replace(vm, host_limit=limit)
        return msgspec.structs.replace(self, hosts={**self.hosts, **new}, vms=vms)

    def without_hosts(self, names: Iterable[str]) -> Altered:
        """Without these hosts, and without what was reserved on them. Their VMs run nowhere."""
        gone = set(names)
        return msgspec.structs.replace(
            self,
            hosts={name: host for name, host in self.hosts.items() if name not in gone},
            reservations={name: one for name, one in self.reservations.items() if placed_on(one) not in gone},
            vms={name: vm for name, vm in self.vms.items() if vm.host not in gone},
        )

    def without_slots(self, names: Iterable[str]) -> Altered:
        """Without these reservations."""
        gone = set(names)
        kept = {name: one for name, one in self.reservations.items() if name not in gone}
        return msgspec.structs.replace(self, reservations=kept)

    def without_members(self, vms: Iterable[str]) -> Altered:
        """With slots in which these VMs are no members, as after the next clean-up; empty ones are gone."""
        gone = set(vms)
        changed = dict(self.reservations)
        for name, one in self.reservations.items():
            found = one.status.failover_reservation
            if found is not None and not gone.isdisjoint(found.allocations):
                kept = {vm: host for vm, host in found.allocations.items() if vm not in gone}
                if not kept:
                    del changed[name]
                    continue
                status = msgspec.structs.replace(
                    one.status, failover_reservation=msgspec.structs.replace(found, allocations=kept)
                )
                changed[name] = msgspec.structs.replace(one, status=status)
        return msgspec.structs.replace(self, reservations=changed)

    def with_vms(self, views: Iterable[VmView]) -> Altered:
        """With further VMs, each running and counted on its host."""
        hosts, vms = dict(self.hosts), dict(self.vms)
        for vm in views:
            vms[vm.id] = vm
            hosts[vm.host] = add_running_vm(hosts[vm.host], vm)
        return msgspec.structs.replace(self, hosts=hosts, vms=vms)

    def with_settings(self, settings: FailoverSettings) -> Altered:
        """By other settings."""
        return msgspec.structs.replace(self, settings=settings)


async def from_snapshot(store: Store, gathered: Snapshot, *, k: int | None = None) -> Altered:
    """The cluster that was gathered from this store, unaltered."""
    besides = [item for kind in READ_BESIDES async for item in list_all(store, kind)]
    return Altered(
        hosts={host.name: host for host in gathered.observation.hypervisors},
        reservations={one.name: one for one in gathered.fleet.list_reservations()},
        vms={vm.id: vm for vm in gathered.observation.listing.vms},
        besides=tuple(besides),
        settings=gathered.settings,
        k=k,
        networks=await _limiting_networks(store),
    )


async def _limiting_networks(store: Store) -> dict[str, tuple[VirtualNetwork, ...]]:
    """VM without a limit of its own → its networks that do not reach every host."""
    limited = {one.name: one async for one in list_all(store, VirtualNetwork) if one.spec.host_labels}
    found: dict[str, dict[str, VirtualNetwork]] = {}
    if limited:
        async for port in list_all(store, VirtualMachinePort):
            if port.spec.network in limited:
                found.setdefault(port.spec.vm, {})[port.spec.network] = limited[port.spec.network]
    vms = {name: await read(store, VirtualMachine, name) for name in found}
    free = [name for name, vm in vms.items() if vm is not None and not vm.spec.allowed_hosts]
    return {name: tuple(found[name].values()) for name in free}


def add_running_vm(host: Hypervisor, vm: VmView) -> Hypervisor:
    """The host with one more VM on it."""
    status = host.status
    return msgspec.structs.replace(
        host,
        status=msgspec.structs.replace(
            status,
            allocation=None if status.allocation is None else status.allocation + amounts_of(vm),
            instances=(*status.instances, Instance(id=vm.id, name=vm.name)),
            num_instances=status.num_instances + 1,
        ),
    )


def empty_copies(
    host: Hypervisor, names: Iterable[str], *, labels: Mapping[str, str] | None = None, traits: Iterable[str] = ()
) -> list[Hypervisor]:
    """Hosts like this one, empty and in no maintenance; ``labels`` and ``traits`` are added."""
    status = msgspec.structs.replace(
        host.status,
        allocation=Amounts(dict.fromkeys(host.status.capacity or {}, 0)),
        instances=(),
        num_instances=0,
        evicted=False,
        traits=tuple(dict.fromkeys((*host.status.traits, *traits))),
    )
    spec = msgspec.structs.replace(host.spec, maintenance="")
    meta = {**host.metadata.labels, **(labels or {})}
    return [Hypervisor(metadata=ObjectMeta(name=name, labels=meta), spec=spec, status=status) for name in names]


def plain_host(capacity: Amounts) -> Hypervisor:
    """A host of that size about which nothing else is known."""
    status = HypervisorStatus(capacity=capacity, allocation=Amounts(dict.fromkeys(capacity, 0)))
    return Hypervisor(metadata=ObjectMeta(name="new-host"), spec=HypervisorSpec(), status=status)


def resize_host(host: Hypervisor, amounts: Amounts) -> Hypervisor:
    """The host with another capacity of these resources; overcommit stays in proportion."""
    before = host.status.capacity or Amounts()
    effective = host.status.effective_capacity
    scaled = None
    if effective is not None:
        ratio = {name: amounts[name] * effective.get(name, 0) // before[name] for name in amounts if before.get(name)}
        scaled = Amounts({**effective, **amounts, **ratio})
    status = msgspec.structs.replace(host.status, capacity=Amounts({**before, **amounts}), effective_capacity=scaled)
    return msgspec.structs.replace(host, status=status)


def without_unit(host: Hypervisor, domain: str) -> Hypervisor:
    """The host as a unit of failure of its own: without the label of the domain that the units are."""
    labels = {name: value for name, value in host.metadata.labels.items() if name != DOMAIN_LABEL_PREFIX + domain}
    return msgspec.structs.replace(host, metadata=msgspec.structs.replace(host.metadata, labels=labels))
