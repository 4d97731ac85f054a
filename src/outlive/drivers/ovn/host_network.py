"""A host's side of networks in OVN: ``NetworkPort``.

The controller's report lies in ``VirtualMachinePort``; that flows are here the host's own switch says. Both are needed:
the controller may look at a chassis of the past, and the switch does not know of routes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

import msgspec

from outlive.base.deadline import deadline
from outlive.base.errors import NotFound, Unavailable
from outlive.node.ports import NetworkPort
from outlive.resources import VirtualMachine, VirtualMachinePort, VirtualNetwork
from outlive.resources.definitions import with_interface_ids
from outlive.resources.networks import IN_OVN, PORTS_LIMIT, interface_id, port_mode, port_object_name
from outlive.store import Store

READ_S: Final = 5.0
"""How long the store may take to answer."""
INSTALLED_S: Final = 0.5
"""How long one look waits for flows."""


class HostSwitch(Protocol):
    """The switch of this host."""

    async def start(self) -> None:
        """Start to connect; returns at once."""
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
    """See the module. ``announce_in_background``: sends what is to be announced for a VM."""

    def __init__(
        self,
        store: Store,
        switch: HostSwitch,
        host: str,
        prepare_limit_s: float,
        announce_in_background: Callable[[str], None] = lambda _vm: None,
    ) -> None:
        self._store = store
        self._switch = switch
        self._host = host
        self._limit_s = prepare_limit_s
        self._connected = False
        self._announce = announce_in_background

    @property
    def prepare_limit_s(self) -> float:
        """``network.prepareTimeout``."""
        return self._limit_s

    async def plugged_ports(self, vm: VirtualMachine) -> list[PluggedPort]:
        """Its interfaces that the controller programs. ``Unavailable`` where that is not known."""
        found = []
        try:
            with deadline(READ_S):
                for index, defined in enumerate(vm.spec.ports[:PORTS_LIMIT]):
                    try:
                        port = await self._store.get(VirtualMachinePort, port_object_name(vm.name, index), fresh=True)
                        network = await self._store.get(VirtualNetwork, port.spec.network)
                    except NotFound:
                        continue
                    if network.spec.type in IN_OVN:
                        own = interface_id(defined, port_mode(port, network), self._host)
                        found.append(PluggedPort(port, network, index, own))
        except TimeoutError:
            raise Unavailable(f"the ports of {vm.name} were not read within {READ_S:g} s") from None
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
        if not self._connected:
            self._connected = True
            await self._switch.start()
        wanted = [one.interface for one in ports]
        missing = await self._switch.wait_installed(wanted, INSTALLED_S) if wanted else ()
        return f"interface {missing[0]} has no flows on {self._host} yet" if missing else ""

    def announce(self, vm: str) -> None:
        """As ``NetworkPort``."""
        self._announce(vm)
