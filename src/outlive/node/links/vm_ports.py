"""VMs on networks that this host makes: their interfaces are attached to its bridges (``NetworkPort``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from outlive.base.deadline import deadline
from outlive.base.errors import NotFound, Unavailable
from outlive.node.ports.network import NetworkPort
from outlive.resources import VirtualMachine, VirtualMachinePort, VirtualNetwork
from outlive.resources.definitions import with_bridges
from outlive.resources.networks import (
    PORTS_LIMIT,
    bridge_name,
    is_made_by_hosts,
    port_object_name,
    present_network,
)
from outlive.store import Store

READ_S: Final = 5.0
"""How long the store may take to answer."""
PREPARE_S: Final = 10.0
"""How long a migration waits for a network of this host at least."""


class BridgedPorts(NetworkPort):
    """See the module. ``made``: network → why this host has not made it; ``others``: of networks of other types."""

    def __init__(
        self, store: Store, host: str, made: Callable[[], Mapping[str, str] | None], others: NetworkPort
    ) -> None:
        self._store = store
        self._host = host
        self._made = made
        self._others = others

    @property
    def prepare_limit_s(self) -> float:
        """The longer one."""
        return max(PREPARE_S, self._others.prepare_limit_s)

    async def find_chassis(self) -> str | None:
        """As the others."""
        return await self._others.find_chassis()

    async def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """As ``NetworkPort``; ``Unavailable`` where this host has not made a network of its ports."""
        plugged, networks = await self._others.plug(vm), await self._networks_of(vm)
        for network in networks.values():
            if why := self._lack(network):
                raise Unavailable(why, remedy="see the fault networks-not-made of the host")
        if not networks or not plugged.spec.definition:
            return plugged
        bridges = {index: bridge_name(network.spec.vni) for index, network in networks.items()}
        spec = msgspec.structs.replace(plugged.spec, definition=with_bridges(plugged.spec.definition, bridges))
        return msgspec.structs.replace(plugged, spec=spec)

    async def prepare(self, vm: VirtualMachine, move: str) -> str:
        """As ``NetworkPort``."""
        for network in (await self._networks_of(vm)).values():
            if why := self._lack(network):
                return why
        return await self._others.prepare(vm, move)

    def announce(self, vm: str) -> None:
        """As the others; on these networks QEMU announces a guest itself."""
        self._others.announce(vm)

    def _lack(self, network: VirtualNetwork) -> str:
        why = (self._made() or {}).get(network.name, "its daemon has not looked yet")
        return f"{self._host} has not made network {network.name}: {why}" if why else ""

    async def _networks_of(self, vm: VirtualMachine) -> dict[int, VirtualNetwork]:
        """Number of each interface that is on such a network → the network. ``Unavailable`` where that is not known."""
        found = {}
        try:
            with deadline(READ_S):
                for index in range(len(vm.spec.ports[:PORTS_LIMIT])):
                    try:
                        port = await self._store.get(VirtualMachinePort, port_object_name(vm.name, index), fresh=True)
                        network = await self._store.get(VirtualNetwork, present_network(port))
                    except NotFound:
                        continue
                    if port.spec.vm == vm.name and is_made_by_hosts(network):
                        found[index] = network
        except TimeoutError:
            raise Unavailable(f"the ports of {vm.name} were not read within {READ_S:g} s") from None
        return found
