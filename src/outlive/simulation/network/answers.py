"""Which hosts answer at a VM's addresses: where a packet of a third host arrives, and from where its answer gets out.

A packet takes two hops. The sender's chassis follows the southbound database: routes and ports say which ports get it,
bindings say which chassis these are on. The receiving chassis works by the flows that it installed last, which are old
where its ovn-controller does not follow the database: then it may still let a guest answer that others have left. On a
localnet network the first hop is the physical network, where every host hears everything; elsewhere it is a tunnel,
and a chassis that has no row any more has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final, NamedTuple

from outlive.network import (
    CLUSTER_ROUTER,
    LOCALNET,
    PORTS,
    ROUTER_PORTS,
    TOPOLOGY_KEY,
    Columns,
    HypervisorNetwork,
    NetworkZone,
    Rows,
    ZoneRows,
    external_ids,
    find_arrivals,
)
from outlive.simulation.network.ovn import SimulatedOvn

ZONE: Final = "global"
ROUTER_PORT: Final = "rtos-"
"""Before the name of the switch to which the cluster router's port leads."""


class PacketDestination(NamedTuple):
    """What a packet is addressed to."""

    mac: str
    addresses: tuple[str, ...]
    """Without masks; none: the packet comes from a neighbour, and only the MAC says where to."""
    routed: bool
    """It passes the cluster router; else it comes from a neighbour on the port's switch."""


def passes_packets(ovn: SimulatedOvn, chassis: str, port: str) -> bool:
    """Whether the flows of a chassis let packets of the port pass: it is bound there, enabled, and does not wait."""
    one = ovn.chassis[chassis]
    row, binding = _find_port_row(one.flows.rows, port), one.flows.bindings.get(port)
    if row is None or binding is None or not _is_on(row):
        return False
    if binding.chassis == chassis:
        return True
    waits = chassis not in binding.activated and port not in one.activated
    return chassis in binding.additional_chassis and not waits


def is_installed(ovn: SimulatedOvn, chassis: str, port: str) -> bool:
    """Whether a chassis has flows for its interface of the port, whether or not these let packets pass."""
    binding = ovn.chassis[chassis].flows.bindings.get(port)
    is_bound = binding is not None and chassis in (binding.chassis, *binding.additional_chassis)
    return is_bound and ovn.is_plugged(port, chassis)


class Senders:
    """The first hop of packets, from any chassis that follows the southbound database."""

    def __init__(self, ovn: SimulatedOvn) -> None:
        self._ovn = ovn
        self._zone: tuple[Rows, Mapping[str, ZoneRows]] = ({}, {})

    def reached_addresses(self, chassis: str, port: str, delivery: PacketDestination) -> tuple[str, ...]:
        """Of the addresses, or the MAC where there are none, those whose packets get to the port on that chassis."""
        ovn = self._ovn
        wanted = delivery.addresses or (delivery.mac,)
        row = _find_port_row(ovn.chassis[chassis].flows.rows, port)
        if row is not None and external_ids(row).get(TOPOLOGY_KEY) == LOCALNET:
            return wanted
        binding = ovn.bindings.get(port)
        if not ovn.chassis[chassis].registered or binding is None:
            return ()
        if chassis not in (binding.chassis, *binding.additional_chassis):
            return ()
        return tuple(one for one in wanted if port in self._find_arrivals(port, one, delivery))

    def _find_arrivals(self, port: str, address: str, delivery: PacketDestination) -> set[str]:
        rows = self._ovn.southbound
        row = _find_port_row(rows, port)
        switch = row.get("switch", "") if row is not None else ""
        if not delivery.routed:
            return {
                str(one["name"])
                for one in rows.get(PORTS, ())
                if one.get("switch") == switch
                and _is_on(one)
                and any(address in text.split() for text in one.get("addresses", ()))
            }
        return {one.port for one in find_arrivals(self._read_zones(rows), ZONE, address)}

    def _read_zones(self, rows: Rows) -> Mapping[str, ZoneRows]:
        if self._zone[0] is not rows:
            self._zone = rows, {ZONE: ZoneRows(zone=zone_of(rows), rows=rows)}
        return self._zone[1]


def zone_of(rows: Rows) -> NetworkZone:
    """What the cluster router is connected to, by its ports: each switch counts as a hypervisor."""
    subnets = {
        str(row["name"]).removeprefix(ROUTER_PORT): tuple(
            str(ip_network(one, strict=False)) for one in row.get("networks", ())
        )
        for row in rows.get(ROUTER_PORTS, ())
        if (row.get("router") or CLUSTER_ROUTER) == CLUSTER_ROUTER
    }
    return NetworkZone(
        mode="global",
        local=tuple(subnets),
        hypervisors={switch: HypervisorNetwork(subnets=found) for switch, found in subnets.items()},
    )


def _find_port_row(rows: Rows, port: str) -> Columns | None:
    return next((row for row in rows.get(PORTS, ()) if row.get("name") == port), None)


def _is_on(row: Columns) -> bool:
    return row.get("enabled") is not False and bool(row.get("addresses"))
