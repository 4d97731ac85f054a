"""Which VM a caller of the metadata server is: by the network that it came from and its address there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from outlive.base import BadInput, Clock, OutliveError, get_logger
from outlive.node.services.dhcp import ServedLease
from outlive.node.services.served_networks import ServedNetwork
from outlive.resources import (
    USER_DATA,
    VirtualMachine,
    VirtualMachinePort,
    attached_bridges,
    definition_uuid,
    present_network,
    vm_and_index,
)
from outlive.store import Store, list_all

# What the metadata server answers a guest, and which VM a caller is.
#
# A caller is known by the bridge that it came from and by its address: the lease of that address on that network
# names the interface, and the interface the VM. Guests of two networks may have the same address.

METADATA_ADDRESS: Final = "169.254.169.254"
METADATA_PORT: Final = 80
BANNER: Final = "Outlive metadata\n"
ITEMS: Final = ("instance-id", "name", "profile")
PATH_CHARACTERS: Final = 200


class MetadataVm(msgspec.Struct, frozen=True, kw_only=True):
    """A VM as its guest may know it."""

    instance_id: str
    name: str
    profile: str = ""
    """Its flavor."""
    user_data: str | None = None


class MetadataAnswer(msgspec.Struct, frozen=True):
    """Status and text of an answer."""

    status: int
    text: str = ""


def answer_metadata(path: str, vm: MetadataVm | None) -> MetadataAnswer:
    """Return the answer to ``GET path``; ``vm`` is the caller, ``None`` if nobody knows it."""
    if path == "/":
        return MetadataAnswer(200, BANNER)
    words = path[:PATH_CHARACTERS].strip("/").split("/")
    if vm is None or len(words) < 2 or not words[0]:
        return MetadataAnswer(404)
    match words[1:]:
        case ["meta-data"]:
            return MetadataAnswer(200, "".join(f"{one}\n" for one in ITEMS))
        case ["meta-data", "instance-id"]:
            return MetadataAnswer(200, vm.instance_id)
        case ["meta-data", "name"]:
            return MetadataAnswer(200, vm.name)
        case ["meta-data", "profile"]:
            return MetadataAnswer(200, vm.profile)
        case ["user-data"] if vm.user_data is not None:
            return MetadataAnswer(200, vm.user_data)
    return MetadataAnswer(404)


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
        if vm is None:
            return answer_metadata(path, None)
        view = MetadataVm(
            instance_id=definition_uuid(vm.spec.definition) or vm.metadata.uid,
            name=vm.name,
            profile=vm.spec.flavor,
            user_data=vm.metadata.annotations.get(USER_DATA),
        )
        return answer_metadata(path, view)

    async def _read_facts(self) -> CallerFacts:
        async with self._reading:
            now_s = self._clock.monotonic()
            if self._read_at is None or now_s - self._read_at >= VMS_S:
                vms = [one async for one in list_all(self._store, VirtualMachine)]
                ports = [one async for one in list_all(self._store, VirtualMachinePort)]
                self._facts, self._read_at = collect_facts(vms, ports), now_s
            return self._facts
