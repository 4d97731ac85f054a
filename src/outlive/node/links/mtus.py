"""The MTU of bridged and managed networks, which the primary writes down for all hosts (decision ``net.mtu``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from outlive.base import Clock, OutliveError, get_logger
from outlive.node.links.reconciler import LinkReconciler
from outlive.node.links.wanted import mtu_of
from outlive.resources import VirtualNetwork
from outlive.runtime import Informer, Periodic
from outlive.store import Store, compare_and_swap

LOOK_S: Final = 5.0
_log = get_logger("links")
_replace = msgspec.structs.replace


class NetworkMtus:
    """Writes ``VirtualNetwork.status.mtu`` while this host is the primary: what its own devices take."""

    def __init__(
        self,
        store: Store,
        links: LinkReconciler,
        networks: Informer[VirtualNetwork],
        is_primary: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._store = store
        self._links = links
        self._networks = networks
        self._is_primary = is_primary
        self._clock = clock
        self._loop = Periodic(self._write_all, LOOK_S, clock=clock, wait_first=True, wakes=True)

    async def run(self) -> None:
        """Until cancelled."""
        end = self._networks.subscribe(lambda _old, _new: self._loop.wake())
        try:
            await self._loop.run()
        finally:
            end()

    async def _write_all(self) -> None:
        if self._is_primary():
            for network in tuple(self._networks.items()):
                await self._write(network)

    async def _write(self, network: VirtualNetwork) -> None:
        mtu = mtu_of(network, self._links.settings, self._links.wanted.cluster_mtu)
        if mtu in (0, network.status.mtu):
            return

        def change(found: VirtualNetwork | None) -> VirtualNetwork | None:
            if found is None or found.spec != network.spec or found.status.mtu == mtu:
                return None
            return _replace(found, status=_replace(found.status, mtu=mtu))

        try:
            await compare_and_swap(self._store, VirtualNetwork, network.name, change, clock=self._clock)
        except OutliveError as error:
            _log.warning("links.mtu_not_written", network=network.name, why=str(error))
