"""A host's side of networks in OVN: ``NetworkPort``.

The controller's report lies in ``VirtualMachinePort``; that flows are here the host's own switch says. Both are needed:
the controller may look at a chassis of the past, and the switch does not know of routes elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from outlive.base import Clock, NotFound, OutliveError, Unavailable, deadline, get_logger
from outlive.network import GATEWAY_SCHEDULE_MS, Announcer, parse_mac, parse_subnet, tell_neighbours
from outlive.node.ports import NetworkPort
from outlive.resources import (
    IN_OVN,
    PORTS_LIMIT,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    interface_id,
    is_interface_id,
    port_mode,
    port_object_name,
    present_network,
    present_type,
    with_interface_ids,
)
from outlive.store import Store

READ_S: Final = 5.0
"""How long the store may take to answer."""
ANNOUNCED_S: Final = 3.0
"""How long is waited for what the controller wants announced …"""
ANNOUNCED_LOOK_S: Final = 0.2
"""… and how often is looked."""
ANNOUNCING_LIMIT: Final = 64
"""VMs that are announced at once; more are not."""
PLUGGED_LIMIT: Final = 4096
"""VMs whose ports are remembered."""
CHASSIS_S: Final = 2.0
"""How long this host's own switch may take to say which chassis it is."""
SENT_LIMIT: Final = 4096
"""Ports of which is remembered what was sent last; to a guest that was forgotten it is sent again."""
INSTALLED_S: Final = 0.5
"""How long one look waits for flows."""


_log = get_logger("network")


class HostSwitch(Protocol):
    """The switch of this host."""

    async def start(self) -> None:
        """Start to connect; returns at once."""
        ...

    async def read_chassis(self) -> str:
        """The name of this chassis; empty: OVN has not been set up here. ``Unavailable``."""
        ...

    async def read_devices(self) -> dict[str, str]:
        """The device of each interface that is plugged here, by its id. ``Unavailable``."""
        ...

    async def wait_installed(self, interfaces: Collection[str], limit_s: float) -> tuple[str, ...]:
        """Wait until these interfaces have their flows here; those that have not. ``Unavailable``."""
        ...


class PluggedPort(NamedTuple):
    """One interface of a VM that the controller programs, as this host has it."""

    port: VirtualMachinePort
    network: VirtualNetwork
    number: int
    interface: str


class OvnNetwork(NetworkPort):
    """See the module. ``announcer``: sends frames; ``None``: nobody is told."""

    def __init__(
        self,
        store: Store,
        switch: HostSwitch,
        host: str,
        prepare_limit_s: float,
        *,
        clock: Clock,
        announcer: Announcer | None = None,
    ) -> None:
        self._store = store
        self._switch = switch
        self._host = host
        self._limit_s = prepare_limit_s
        self._connected = False
        self._clock = clock
        self._announcer = announcer
        self._plugged: OrderedDict[str, list[PluggedPort]] = OrderedDict()
        """By VM, of this process, the ports that it has, or had, here."""
        self._sent: OrderedDict[str, str] = OrderedDict()
        """By port, the announcement that was sent last."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def prepare_limit_s(self) -> float:
        """``network.prepareTimeout``."""
        return self._limit_s

    async def find_chassis(self) -> str | None:
        """As ``NetworkPort``."""
        await self._connect()
        try:
            with deadline(CHASSIS_S):
                return await self._switch.read_chassis()
        except (OutliveError, TimeoutError) as error:
            _log.warning("network.chassis_unknown", why=str(error) or f"no answer within {CHASSIS_S:g} s")
            return None

    async def plugged_ports(self, vm: VirtualMachine) -> list[PluggedPort]:
        """Its interfaces that the controller programs: none without an id. ``Unavailable`` where that is not known."""
        found = []
        try:
            with deadline(READ_S):
                for index, defined in enumerate(vm.spec.ports[:PORTS_LIMIT]):
                    if not is_interface_id(defined):
                        continue
                    try:
                        port = await self._store.get(VirtualMachinePort, port_object_name(vm.name, index), fresh=True)
                        if port.spec.vm != vm.name:
                            continue  # the controller refuses it
                        network = await self._store.get(VirtualNetwork, present_network(port))
                    except NotFound:
                        continue
                    if present_type(network) in IN_OVN:
                        own = interface_id(defined, port_mode(port, network), self._host)
                        found.append(PluggedPort(port, network, index, own))
        except TimeoutError:
            raise Unavailable(f"the ports of {vm.name} were not read within {READ_S:g} s") from None
        self._plugged[vm.name] = found
        self._plugged.move_to_end(vm.name)
        while len(self._plugged) > PLUGGED_LIMIT:
            self._plugged.popitem(last=False)
        return found

    async def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """As ``NetworkPort``."""
        ids = {
            one.number: one.interface
            for one in await self.plugged_ports(vm)
            if one.interface != vm.spec.ports[one.number]
        }
        if not ids:
            return vm
        definition = with_interface_ids(vm.spec.definition, ids) if vm.spec.definition else ""
        ports = tuple(ids.get(number, defined) for number, defined in enumerate(vm.spec.ports))
        return msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, definition=definition, ports=ports))

    async def prepare(self, vm: VirtualMachine, move: str) -> str:
        """As ``NetworkPort``."""
        ports = await self.plugged_ports(vm)
        for one in ports:
            report = one.port.status.migration
            if report is None or report.id != move:
                return f"the network controller has not answered for {one.port.name} yet"
            if not report.prepared:
                return report.message or f"{one.port.name} is not prepared yet"
        await self._connect()
        wanted = [one.interface for one in ports]
        missing = await self._switch.wait_installed(wanted, INSTALLED_S) if wanted else ()
        return f"interface {missing[0]} has no flows on {self._host} yet" if missing else ""

    async def _connect(self) -> None:
        if not self._connected:
            self._connected = True
            await self._switch.start()

    def announce(self, vm: str) -> None:
        """As ``NetworkPort``."""
        ports = [one for one in self._plugged.get(vm, ()) if one.network.spec.type == "routed"]
        if self._announcer is None or not ports or len(self._tasks) >= ANNOUNCING_LIMIT:
            return
        task = asyncio.get_running_loop().create_task(self._announce(self._announcer, vm, ports), name=f"announce {vm}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _announce(self, announcer: Announcer, vm: str, ports: list[PluggedPort]) -> None:
        """Tell guests here where the VM is, and the VM where its neighbours are. What fails is logged: caches end by
        themselves."""
        for one in ports:
            try:
                await self._connect()
                devices = await self._switch.read_devices()
                own = one.network.status.host_subnets.get(self._host, ())
                if any(str(parse_subnet(cidr)) in own for cidr in one.port.status.addresses):
                    await self._tell_neighbours(announcer, vm, one, devices)
                if (device := devices.get(one.interface)) is not None:
                    await self._tell_guest(announcer, one, device)
            except (OutliveError, TimeoutError) as error:
                _log.warning("network.not_announced", vm=vm, port=one.port.name, why=str(error))

    async def _tell_neighbours(
        self, announcer: Announcer, vm: str, one: PluggedPort, devices: Mapping[str, str]
    ) -> None:
        mac = parse_mac(one.port.spec.mac)
        frames = tell_neighbours(one.port.status.addresses, mac, is_home=one.interface in devices)
        for other, theirs in list(self._plugged.items()):
            for each in theirs:
                device = devices.get(each.interface)
                if other != vm and device is not None and each.network.name == one.network.name:
                    await announcer.send(device, frames, (0,))

    async def _tell_guest(self, announcer: Announcer, one: PluggedPort, device: str) -> None:
        """Wait for what the controller wants announced for this switch-over, and send it once."""
        end_s = self._clock.monotonic() + ANNOUNCED_S
        while self._clock.monotonic() < end_s:
            try:
                port = await self._store.get(VirtualMachinePort, one.port.name)
            except NotFound:
                return
            found = next((each for each in port.status.announcements if each.hypervisor == self._host), None)
            moved = port.status.migration.id if port.status.migration is not None else ""
            if found is not None and found.id == moved and self._sent.get(port.name) != found.id:
                self._sent[port.name] = found.id
                self._sent.move_to_end(port.name)
                while len(self._sent) > SENT_LIMIT:
                    self._sent.popitem(last=False)
                frames = [bytes.fromhex(each) for each in found.frames]
                await announcer.send(device, frames, GATEWAY_SCHEDULE_MS)
                return
            await self._clock.sleep(ANNOUNCED_LOOK_S)
