"""VMs on networks that this host makes (``NetworkPort``), and what the host's cards receive and send."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from outlive.base import Clock, NotFound, OutliveError, Unavailable, deadline, get_logger
from outlive.node.ports.links import LinkPort, LinkTraffic, NetworkPort
from outlive.resources import (
    PORTS_LIMIT,
    InterfaceRates,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    bridge_name,
    is_made_by_hosts,
    port_object_name,
    present_network,
    with_bridges,
)
from outlive.runtime import Periodic
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
            if why := self._explain_missing(network):
                raise Unavailable(why, remedy="see the fault networks-not-made of the host")
        if not networks or not plugged.spec.definition:
            return plugged
        bridges = {index: bridge_name(network.spec.vni) for index, network in networks.items()}
        spec = msgspec.structs.replace(plugged.spec, definition=with_bridges(plugged.spec.definition, bridges))
        return msgspec.structs.replace(plugged, spec=spec)

    async def prepare(self, vm: VirtualMachine, move: str) -> str:
        """As ``NetworkPort``."""
        for network in (await self._networks_of(vm)).values():
            if why := self._explain_missing(network):
                return why
        return await self._others.prepare(vm, move)

    def announce(self, vm: str) -> None:
        """As the others; on these networks QEMU announces a guest itself."""
        self._others.announce(vm)

    def _explain_missing(self, network: VirtualNetwork) -> str:
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


# What the host's cards receive and send: one look a second, and rates over the last interval.

LOOK_S: Final = 1.0
INTERVAL: Final = 30
"""Looks over which rates are taken."""
CARDS_LIMIT: Final = 256
_log = get_logger("links")
Sample = tuple[float, LinkTraffic]


class TrafficMeter:
    """See the module. A card that was counted once has no rates yet."""

    def __init__(self, port: LinkPort, clock: Clock, interval: int = INTERVAL) -> None:
        self._port = port
        self._clock = clock
        self._interval = interval
        self._samples: dict[str, deque[Sample]] = {}

    async def run(self) -> None:
        """Until cancelled; then nothing is known any more."""
        try:
            await Periodic(self.count_traffic, LOOK_S, clock=self._clock).run()
        finally:
            self._samples.clear()

    async def count_traffic(self) -> None:
        """Count once."""
        try:
            found = await self._port.read_traffic()
        except OutliveError as error:
            _log.warning("links.not_counted", why=str(error))
            return
        now_s, cards = self._clock.monotonic(), {one.name: one for one in found[:CARDS_LIMIT]}
        self._samples = {name: ring for name, ring in self._samples.items() if name in cards}
        for name, card in cards.items():
            self._samples.setdefault(name, deque(maxlen=self._interval + 1)).append((now_s, card))

    def list_rates(self) -> dict[str, InterfaceRates]:
        """Of each card that was counted twice."""
        return {name: rates_between(ring[0], ring[-1]) for name, ring in self._samples.items() if len(ring) > 1}


def rates_between(first: Sample, last: Sample) -> InterfaceRates:
    """What passed each second. A counter that went back began anew, and counts as nothing."""
    (began_s, old), (ended_s, new) = first, last
    passed_s = max(ended_s - began_s, 1e-9)

    def rate_per_second(before: int, after: int, size: int = 1) -> int:
        return round(max(0, after - before) * size / passed_s)

    received_bits, sent_bits = (
        rate_per_second(old.rx_bytes, new.rx_bytes, 8),
        rate_per_second(old.tx_bytes, new.tx_bytes, 8),
    )
    received_packets, sent_packets = (
        rate_per_second(old.rx_packets, new.rx_packets),
        rate_per_second(old.tx_packets, new.tx_packets),
    )
    return InterfaceRates(
        received_bits=received_bits,
        received_packets=received_packets,
        sent_bits=sent_bits,
        sent_packets=sent_packets,
        total_bits=received_bits + sent_bits,
        total_packets=received_packets + sent_packets,
        speed_mbps=new.speed_mbps,
        state=new.state,
    )
