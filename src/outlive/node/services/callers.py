"""Which VM a caller of the metadata server is: by the network that it came from and its address there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import BadInput, OutliveError
from outlive.base.logging import get_logger
from outlive.node.services.dhcp import ServedLease
from outlive.node.services.metadata import MetadataAnswer, MetadataVm, answer_metadata
from outlive.node.services.served_networks import ServedNetwork
from outlive.resources import VirtualMachine, VirtualMachinePort
from outlive.resources.definitions import attached_bridges, definition_uuid
from outlive.resources.networks import present_network, vm_and_index
from outlive.resources.vms import USER_DATA
from outlive.store import Store
from outlive.store.contract import list_all

VMS_S: Final = 5.0
"""For so long the metadata server answers from one listing of VMs and ports."""

_log = get_logger("services")


class CallerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """VMs, and their ports on networks, by MAC address."""

    vms: Mapping[str, tuple[VirtualMachine, ...]] = {}
    ports: Mapping[str, tuple[VirtualMachinePort, ...]] = {}


def collect_facts(vms: Iterable[VirtualMachine], ports: Iterable[VirtualMachinePort]) -> CallerFacts:
    """Return the facts of all VMs; an interface that its definition gives another id is known by its port alone."""
    named: dict[str, VirtualMachine] = {}
    by_mac: dict[str, dict[str, VirtualMachine]] = {}
    for vm in vms:
        named[vm.name] = vm
        for one in vm.spec.ports:
            by_mac.setdefault(one.lower(), {})[vm.name] = vm
    own: dict[str, tuple[VirtualMachinePort, ...]] = {}
    for port in ports:
        mac = port.spec.mac.lower().replace("-", ":")
        own[mac] = (*own.get(mac, ()), port)
        if port.spec.vm in named:
            by_mac.setdefault(mac, {})[port.spec.vm] = named[port.spec.vm]
    return CallerFacts(vms={mac: tuple(found.values()) for mac, found in by_mac.items()}, ports=own)


def find_caller(
    network: ServedNetwork, address: str, leases: Collection[ServedLease], facts: CallerFacts
) -> VirtualMachine | None:
    """Return the VM that has this address on this network; ``None`` where that is not one VM for sure.

    The lease, or the reservation, of the address names the MAC. Another VM may have that MAC on another network, so the
    VM counts only if its interface is on this one: by its port, or by the bridge that its definition names.
    """
    mac = next((one.mac for one in leases if one.address == address), "")
    mac = mac or next((one.mac for one in network.reservations if one.address == address), "")
    mac = mac.lower().replace("-", ":")
    found = [vm for vm in facts.vms.get(mac, ()) if _is_on(vm, mac, network, facts.ports.get(mac, ()))]
    return found[0] if len(found) == 1 else None


def _is_on(vm: VirtualMachine, mac: str, network: ServedNetwork, ports: Iterable[VirtualMachinePort]) -> bool:
    own = [one for one in ports if one.spec.vm == vm.name and vm_and_index(one.name)[0] == vm.name]
    if own:
        return any(present_network(one) == network.name for one in own)
    try:
        return (mac, network.bridge) in attached_bridges(vm.spec.definition)
    except BadInput:
        return False


class MetadataCallers:
    """Answers guests, from listings of VMs and ports that are a few seconds old at most."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._facts = CallerFacts()
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def answer(
        self, network: ServedNetwork, address: str, path: str, leases: Collection[ServedLease]
    ) -> MetadataAnswer:
        """The answer to a guest of this network."""
        if path == "/":
            return answer_metadata(path, None)
        try:
            vm = find_caller(network, address, leases, await self._read_facts())
        except OutliveError as error:
            _log.warning("services.vms_not_read", why=str(error))
            return MetadataAnswer(503)
        return answer_metadata(path, _view_vm(vm) if vm is not None else None)

    async def _read_facts(self) -> CallerFacts:
        async with self._reading:
            now_s = self._clock.monotonic()
            if self._read_at is None or now_s - self._read_at >= VMS_S:
                vms = [one async for one in list_all(self._store, VirtualMachine)]
                ports = [one async for one in list_all(self._store, VirtualMachinePort)]
                self._facts, self._read_at = collect_facts(vms, ports), now_s
            return self._facts


def _view_vm(vm: VirtualMachine) -> MetadataVm:
    return MetadataVm(
        instance_id=definition_uuid(vm.spec.definition) or vm.metadata.uid,
        name=vm.name,
        profile=vm.spec.flavor,
        user_data=vm.metadata.annotations.get(USER_DATA),
    )
