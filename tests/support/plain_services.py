"""Ports of network services in memory: what is served is remembered, and a test says what guests and servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from outlive.base import Refused, Unavailable, set_within
from outlive.node.ports import AnswerCaller, ServicePorts
from outlive.node.services import (
    LeaseChange,
    MetadataAnswer,
    ServedLease,
    ServedNetwork,
    ZoneChange,
    ZoneRecord,
    ZoneState,
)


class PlainDhcp:
    """``DhcpPort``. ``spool``: what scripts have written; ``served``: networks with leases as of their start."""

    def __init__(self) -> None:
        self.spool: list[LeaseChange] = []
        self._taken = 0
        """Changes at the head of the spool that were taken last."""
        self.served: dict[str, tuple[ServedNetwork, tuple[ServedLease, ...]]] = {}
        self._told = asyncio.Event()

    def tell(self, *changes: LeaseChange) -> None:
        """As scripts do."""
        self.spool += changes
        self._told.set()

    async def serve(self, network: ServedNetwork, leases: Callable[[], Collection[ServedLease]]) -> None:
        self.served.setdefault(network.name, (network, tuple(leases())))

    async def end(self, names: Collection[str]) -> None:
        for name in names:
            self.served.pop(name, None)

    def list_failures(self) -> Mapping[str, str]:
        return {}

    async def take_changes(self) -> Sequence[LeaseChange]:
        self._taken = len(self.spool)
        return tuple(self.spool)

    async def forget_changes(self) -> None:
        del self.spool[: self._taken]
        self._taken = 0

    async def wait_changed(self, limit_s: float) -> None:
        await set_within(self._told, limit_s)
        self._told.clear()

    def close(self) -> None:
        pass


class PlainNames:
    """``NamePort``. ``told``: records that the networks' own servers transfer."""

    def __init__(self) -> None:
        self.zones: dict[str, ZoneState] = {}
        self.addresses: tuple[str, ...] = ()
        self.why = ""
        self.told: dict[str, tuple[ZoneRecord, ...]] = {}

    async def start(self, addresses: Collection[str]) -> None:
        self.addresses = tuple(addresses)

    async def stop(self) -> None:
        self.addresses = ()

    def explain_failure(self) -> str:
        return self.why

    async def transfer(self, network: ServedNetwork) -> Sequence[ZoneRecord]:
        if network.name not in self.told:
            raise Unavailable(f"no server of {network.name} answers")
        return self.told[network.name]

    async def read_zone(self, zone: str) -> ZoneState:
        return self.zones.get(zone, ZoneState())

    async def change_zone(self, change: ZoneChange) -> None:
        before = self.zones.get(change.zone, ZoneState())
        records = (before.records - set(change.remove)) | set(change.add)
        self.zones[change.zone] = ZoneState(int(change.soa.content.split()[2]), change.soa.content, records)

    async def keep_zones(self, zones: Collection[str]) -> None:
        self.zones = {name: one for name, one in self.zones.items() if name in zones}


class PlainFirewall:
    """``FirewallPort`` that takes everything but a document with ``ssssh`` in it."""

    def __init__(self) -> None:
        self.document = ""

    async def load(self, document: str) -> None:
        await self.check(document)
        self.document = document

    async def check(self, document: str) -> None:
        if "ssssh" in document:
            raise Refused("nft does not take the rules", remedy="correct the rule: man nft")

    async def has_chain(self, table: str, chain: str) -> bool:
        return f"table inet {table} {{" in self.document and f"chain {chain} {{" in self.document


class PlainMetadata:
    """``MetadataPort``: ``ask`` as a guest."""

    def __init__(self) -> None:
        self._answer: AnswerCaller | None = None
        self._bridges: frozenset[str] = frozenset()

    async def listen(self, bridges: Collection[str], answer: AnswerCaller) -> None:
        self._answer, self._bridges = answer, frozenset(bridges)

    async def stop(self) -> None:
        self._bridges = frozenset()

    def list_failures(self) -> Mapping[str, str]:
        return {}

    async def ask(self, bridge: str, address: str, path: str) -> MetadataAnswer:
        if self._answer is None or bridge not in self._bridges:
            raise ConnectionRefusedError(f"nobody listens on {bridge}")
        return await self._answer(bridge, address, path)


def plain_ports() -> ServicePorts:
    """All of them."""
    return ServicePorts(PlainDhcp(), PlainNames(), PlainFirewall(), PlainMetadata())
