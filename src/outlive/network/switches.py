"""The networks of our own hosts in OVN: their switches and routers, and the subnets that hosts of a routed one have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_interface
from typing import Final

import msgspec

from outlive.base import Clock, Invalid, LimitExceeded, as_datetime
from outlive.network.addressing import parse_any, parse_subnet
from outlive.network.cleanup import PauseReader
from outlive.network.events import NetworkEvents
from outlive.network.informers import BY_NETWORK, NetworkInformers, StatusWriter, condition_of
from outlive.network.names import ROUTED, own_switch, switch_of_router_port
from outlive.network.operations import ROUTER_PORTS, Op, Rows
from outlive.network.owners import is_part_of, occupied_switches
from outlive.network.pool import SharedSubnets, find_overlaps, parts_of_subnets, share_subnets
from outlive.network.ports import NorthboundDb, OvnFeatures, Scope
from outlive.network.topology import TopologyInput, TopologyResult, Travellers, plan_topology, topology_scope
from outlive.network.views import cidrs_for, foreign_reason, is_programmed, network_problem, place_of
from outlive.resources import VirtualNetwork, VirtualNetworkStatus, with_condition
from outlive.resources.reasons import NetworkReason, Reason, make_reason
from outlive.runtime import Requeue

WAIT_S: Final = 30.0
"""When a network that could not be programmed is looked at again."""
PART: Final = 150
"""Operations of one transaction: switches, and their ports, of some 50 hosts."""
PARTS_LIMIT: Final = 200
"""Transactions of one network; the next try goes on where the last one has ended."""
NEIGHBOURS_LIMIT: Final = 256
"""Addresses of one home subnet for which the proxy of an old OVN answers."""
NAMED: Final = 20
"""Hosts that are named where they lack a part of a subnet."""
_replace = msgspec.structs.replace


class NetworkSwitches:
    """See the module."""

    def __init__(
        self,
        informers: NetworkInformers,
        writer: StatusWriter,
        northbound: NorthboundDb,
        clock: Clock,
        events: NetworkEvents,
        pause: PauseReader,
        made: Callable[[str], None],
    ) -> None:
        """``made``: called with the name of a network whose switches were made or changed."""
        self._made = made
        self._pause = pause
        self._events = events
        self._informers = informers
        self._writer = writer
        self._nb = northbound
        self._clock = clock
        self._overlaps: tuple[tuple[tuple[str, str], ...], dict[str, str]] = ((), {})
        """Versions of the networks, and what was found of them."""

    def overlap_of(self, name: str) -> str:
        """An older routed network whose subnets overlap; empty: none."""
        networks = self._informers.networks.items()
        versions = tuple((one.name, one.metadata.resource_version) for one in networks)
        if versions != self._overlaps[0]:
            self._overlaps = versions, find_overlaps(networks)
        return self._overlaps[1].get(name, "")

    async def reconcile(self, name: str) -> Requeue | None:
        """A network's switches and routers, and the subnets of its hosts."""
        network, ports = self._informers.networks.get(name), len(self._informers.ports.list_by_index(BY_NETWORK, name))
        if network is not None and not is_programmed(network):
            return None
        if (await self._pause()).paused or (network is None and ports):
            return Requeue(WAIT_S)  # VMs may run on it although it is deleted
        if network is not None and not ports:  # nobody is on it: it may become what its spec says
            network = _replace(network, status=_replace(network.status, type=None))
        problem = network_problem(network, self.overlap_of(name)) if network is not None else None
        is_made, lacking, waits = problem is None, None, False
        if network is not None and problem is None and network.spec.type == ROUTED:
            network, lacking = await self._give_subnets(network)
        if problem is None:
            problem, waits = await self._commit_topology(name, network)
        problem = problem or lacking
        self._events.report_network(name, network, problem)
        if network is None:
            return Requeue(WAIT_S) if waits else None
        now_at = as_datetime(self._clock.now())

        def change(now: VirtualNetworkStatus) -> VirtualNetworkStatus:
            if not is_programmed(network):
                return VirtualNetworkStatus()
            return _replace(
                now,
                type=network.spec.type if is_made else now.type,
                ports=ports,
                conditions=with_condition(now.conditions, condition_of("Programmed", problem, now_at)),
            )

        await self._writer.write_network(name, change)
        waits = waits or any(self._informers.hosts.get(host) is None for host in network.status.host_subnets)
        return Requeue(WAIT_S) if problem is not None or waits else None

    async def _give_subnets(self, network: VirtualNetwork) -> tuple[VirtualNetwork, Reason | None]:
        """Give each host that the network reaches its parts; and why one lacks some.

        Parts of a host that is gone are free again once no VM has a port on its switch.
        """
        spec, name, informers = network.spec, network.name, self._informers
        hosts = [
            host.name
            for host in informers.hosts.items()
            if host.spec.management == "node" and network.reaches(host.metadata.labels)
        ]
        known = network.status.host_subnets
        gone = {host for host in known if informers.hosts.get(host) is None}
        is_given = all(all(parts_of_subnets(spec, known.get(host, ()))) for host in hosts)
        in_ovn, with_vms = await self._read_parts(name) if gone or not is_given else ({}, set[str]())
        used = [one for port in informers.ports.list_by_index(BY_NETWORK, name) for one in port.status.addresses]
        shared = SharedSubnets({}, {})

        def change(now: VirtualNetworkStatus) -> VirtualNetworkStatus:
            nonlocal shared
            known = {host: in_ovn[host] for host in with_vms & in_ovn.keys() if informers.hosts.get(host) is None}
            known |= {host: parts for host, parts in now.host_subnets.items() if host not in gone - with_vms}
            shared = share_subnets(spec, known, hosts, in_ovn, used)
            return now if shared.parts == now.host_subnets else _replace(now, host_subnets=shared.parts)

        after = await self._writer.write_network(name, change)
        problem = None
        if shared.lacking:
            why = f"{next(iter(shared.lacking.values()))}: {', '.join([*shared.lacking][:NAMED])}"
            remedy = "add a subnet to the network"
            problem = make_reason(NetworkReason.NETWORK_INVALID, network=name, problem=why, remedy=remedy)
        return after if after is not None else network, problem

    async def _read_parts(self, name: str) -> tuple[dict[str, tuple[str, ...]], set[str]]:
        """Host → the parts of the network that its switch in OVN has; and hosts on whose switches VMs have ports."""
        rows = await self._nb.read_rows(Scope(networks=(name,)))
        occupied, first = occupied_switches(rows), own_switch(name, ROUTED)
        parts = {}
        for row in rows.get(ROUTER_PORTS, ()):
            switch = switch_of_router_port(row.get("name", ""))
            if switch.startswith(first) and is_part_of(row, name):
                with suppress(Invalid):  # somebody else has changed it
                    found = tuple(str(parse_subnet(one)) for one in row.get("networks", ()))
                    parts[switch.removeprefix(first)] = found
        return parts, {switch.removeprefix(first) for switch in occupied if switch.startswith(first)}

    async def _commit_topology(self, name: str, network: VirtualNetwork | None) -> tuple[Reason | None, bool]:
        """Commit what differs, in parts; why not all of it could be, and whether a switch waits for its VMs to go."""
        used: list[TopologyResult] = []

        def plan(rows: Rows, features: OvnFeatures) -> tuple[Op, ...]:
            used[:] = [plan_topology(self.topology_of(name, network, rows, features))]
            return used[0].ops[:PART]

        scope = topology_scope(self.topology_of(name, network, {}, self._nb.read_features()))
        for _ in range(PARTS_LIMIT):
            receipt = await self._nb.transact(scope, plan, comment=f"network {name}")
            if receipt.ops:
                self._made(name)
            if len(used[0].ops) <= PART:
                return next((foreign_reason(one) for one in used[0].foreign), None), bool(used[0].occupied)
        raise LimitExceeded(
            f"network {name} is not as planned after {PARTS_LIMIT} transactions", remedy="see who else writes its rows"
        )

    def topology_of(
        self, name: str, network: VirtualNetwork | None, rows: Rows, features: OvnFeatures
    ) -> TopologyInput:
        """What the plan of the network's switches gets; ``network`` is ``None`` where it is gone."""
        if network is None:
            return TopologyInput(network=name, rows=rows)
        spec = network.spec
        return TopologyInput(
            network=name,
            type=spec.type if spec.type in ("routed", "layer2", "localnet") else None,
            physical_network=spec.physical_network,
            vlan=spec.vlan,
            cluster_subnets=tuple(one.cidr for one in spec.subnets),
            host_subnets=network.status.host_subnets,
            travellers=self._find_travellers(network) if spec.type == "routed" and not features.arp_proxy_full else {},
            arp_proxy_full=features.arp_proxy_full,
            rows=rows,
        )

    def _find_travellers(self, network: VirtualNetwork) -> dict[str, Travellers]:
        """Of each host, what its guests from elsewhere believe to be on their link, but is not.

        Who has a port there answers itself, and as likely as not the proxy would instead.
        """
        homes = {cidr: host for host, parts in network.status.host_subnets.items() for cidr in parts}
        ports = self._informers.ports.list_by_index(BY_NETWORK, network.name)
        addresses: dict[str, list[str]] = {}
        away: dict[str, dict[str, None]] = {}
        present: dict[str, set[str]] = {}
        for port in ports:
            for cidr in port.status.addresses:
                home = str(parse_any(cidr)), _home_of(cidr, homes)
                addresses.setdefault(home[1], []).append(home[0])
                place = place_of(self._informers.vms.get(port.spec.vm))
                for host in (place.host, place.target):
                    present.setdefault(host, set()).add(home[0])
                    if host and home[1] and host != home[1]:
                        away.setdefault(host, {})[home[1]] = None
        return {
            host: Travellers(
                gateways=tuple(
                    gateway for home in sorted(origins) for gateway in cidrs_for(network, home).values() if gateway
                ),
                neighbours=tuple(
                    one
                    for home in sorted(origins)
                    for one in sorted(set(addresses.get(home, ())) - present[host])[:NEIGHBOURS_LIMIT]
                ),
            )
            for host, origins in away.items()
        }


def _home_of(cidr: str, homes: Mapping[str, str]) -> str:
    return homes.get(str(ip_interface(cidr).network), "")
