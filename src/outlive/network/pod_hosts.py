"""The nodes of a zone in OVN: for whom the switch of each answers on the routed default network.

The switches and router ports are made by whoever runs the cluster's network; of these only what lets VMs travel is set.
An OVN whose proxy takes no subnets is given single addresses, and all router ports one MAC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outlive.network.addressing import parse_any
from outlive.network.gateway import ROUTER_PORT, RouterPortInput
from outlive.network.names import DEFAULT_NETWORK, PROXY_MAC, ROUTED, router_port, switch_port_to_router
from outlive.network.operations import PORTS, ROUTER_PORTS, Op, Rows, needed, upsert
from outlive.network.pod_cache import PodCache
from outlive.network.pod_networks import follows_default
from outlive.network.pod_rows import PodZone
from outlive.network.pod_settings import PodNetworkSettings
from outlive.network.pool import gateway_of
from outlive.network.ports import NorthboundDb, OvnFeatures, Scope
from outlive.network.topology import Travellers
from outlive.runtime.controller import Requeue

STEP: Final = 50
"""Nodes that are programmed in one transaction."""
NEIGHBOURS_LIMIT: Final = 256
"""Addresses of one home subnet for which the proxy of an old OVN answers."""
WAIT_S: Final = 10.0
"""When a node whose switch OVN does not have yet is looked at again."""


class PodHosts:
    """See the module."""

    def __init__(self, northbound: NorthboundDb, settings: PodNetworkSettings) -> None:
        self._nb = northbound
        self._settings = settings

    async def reconcile(self, zone: PodZone, cache: PodCache) -> Requeue | None:
        """Set what the switches of the zone's nodes answer for."""
        await self._nb.rows(
            Scope(ports=tuple(map(switch_port_to_router, zone.local[:1])))
        )  # connected: northd is known
        travellers = find_travellers(zone, cache) if not self._nb.features().arp_proxy_full else {}
        waits = False
        names = [name for name in zone.local if zone.nodes[name].subnets]
        for start in range(0, len(names), STEP):
            waits |= await self._program(names[start : start + STEP], travellers)
        return Requeue(WAIT_S) if waits else None

    async def _program(self, names: Sequence[str], travellers: dict[str, Travellers]) -> bool:
        """True if OVN does not have the switch of one of these nodes yet."""
        missing = [False]

        def plan(rows: Rows, features: OvnFeatures) -> Sequence[Op]:
            ops = []
            there = {row.get("name") for row in rows.get(PORTS, ())}
            routers = {row.get("name") for row in rows.get(ROUTER_PORTS, ())}
            missing[0] = not all(switch_port_to_router(name) in there for name in names)
            for name in names:
                if switch_port_to_router(name) in there:
                    ops.append(self._proxy(name, travellers.get(name, Travellers()), full=features.arp_proxy_full))
                if not features.arp_proxy_full and router_port(name) in routers:
                    ops.append(upsert(ROUTER_PORTS, {"name": router_port(name)}, {"mac": PROXY_MAC}))
            return needed(rows, ops)

        scope = Scope(ports=tuple(map(switch_port_to_router, names)), names=tuple(map(router_port, names)))
        await self._nb.transact(scope, plan, comment=f"proxy of {len(names)} nodes", numbered=False)
        return missing[0]

    def _proxy(self, name: str, travellers: Travellers, *, full: bool) -> Op:
        row = ROUTER_PORT.function(
            RouterPortInput(
                hypervisor=name,
                network=DEFAULT_NETWORK,
                topology=ROUTED,
                cluster_subnets=tuple(one.cidr for one in self._settings.cluster_subnets),
                full=full,
                gateways=travellers.gateways,
                neighbours=travellers.neighbours,
            )
        )
        return upsert(PORTS, {"name": row.name}, {"options": {"arp_proxy": row.options["arp_proxy"]}})


def find_travellers(zone: PodZone, cache: PodCache) -> dict[str, Travellers]:
    """Of each node, what its VMs from elsewhere believe to be on their link, but is not.

    Who has a port there answers itself, and as likely as not the proxy would instead.
    """
    homes: dict[str, dict[str, None]] = {}
    neighbours: dict[str, list[str]] = {}
    present: dict[str, set[str]] = {}
    for copy in cache.all_copies():
        entry = copy.networks.get(DEFAULT_NETWORK)
        if entry is None or copy.completed or copy.hypervisor is None:
            continue
        home = zone.home_of(entry.addresses)
        if home is None:
            continue
        addresses = [str(parse_any(one)) for one in entry.addresses]
        neighbours.setdefault(home, []).extend(addresses)
        present.setdefault(copy.hypervisor, set()).update(addresses)
        if follows_default(copy) and home != copy.hypervisor:
            homes.setdefault(copy.hypervisor, {})[home] = None
    return {
        name: Travellers(
            gateways=tuple(
                gateway for home in sorted(found) for cidr in zone.nodes[home].subnets if (gateway := gateway_of(cidr))
            ),
            neighbours=tuple(
                one
                for home in sorted(found)
                for one in sorted(set(neighbours.get(home, ())) - present[name])[:NEIGHBOURS_LIMIT]
            ),
        )
        for name, found in homes.items()
    }
