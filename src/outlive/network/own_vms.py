"""Rows of one VM of our own hosts: its ports, DHCP rows and routes, from where the VM is and where it moves to.

A VM has one place, and during a live migration a second one, which becomes the place in one transaction when the
target adopts the guest. On a layer2 or localnet network both places may share one logical port: it is bound by both
chassis, the target's waits, and the guest's own announcement there switches over. Else each place has a port of its
own, a twin. A host that is isolated from a port (``ISOLATED_KEY``) does not get it, whatever is planned
(docs/design/network-decisions.md#networkown_vm).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import msgspec

from outlive.network.addressing import parse_any
from outlive.network.copies import VmKey
from outlive.network.dhcp import DhcpPortInput, DhcpRouter, plan_dhcp
from outlive.network.names import (
    HOST_KEY,
    ID_KEY,
    INTERFACE_KEY,
    ISOLATED_KEY,
    LAYER2,
    LOCAL,
    LOCALNET,
    NETWORK_KEY,
    NOBODY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    ROUTED,
    TOPOLOGY_KEY,
    ZONE_KEY,
    own_switch,
    router_port,
)
from outlive.network.operations import DHCP, PORTS, ROUTES, SWITCHES, Columns, Op, Rows, RowsDraft, delete, upsert
from outlive.network.owners import (
    ForeignRow,
    belongs_to,
    external_ids,
    foreign_row,
    is_of_vm,
    is_on_cluster_router,
    is_part_of,
    vm_keys,
)
from outlive.network.ports import OvnFeatures, Scope
from outlive.network.routes import BY_DESTINATION, is_home_of
from outlive.network.scopes import without_host_mask
from outlive.network.switch_ports import address_text
from outlive.resources import PortMode, interface_id
from outlive.runtime import Decision

_REACHED_BY_NOBODY: Final[Columns] = {
    "enabled": False,
    "addresses": [],
    "options": {"requested-chassis": NOBODY, "activation-strategy": None},
}
DHCP_REFERENCES: Final = ("dhcpv4_options", "dhcpv6_options")
"""Columns of a port that name its DHCP rows."""


class OwnNetwork(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What of a network the rows of a VM depend on."""

    name: str
    type: Literal["routed", "layer2", "localnet"]
    dhcp: bool = False
    """OVN answers its guests."""
    dhcp_router: DhcpRouter = "link-local"
    dns_servers: tuple[str, ...] = ()
    mtu: int = 0
    host_subnets: dict[str, tuple[str, ...]] = {}
    """On a routed network: host → its subnets."""


class OwnPort(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One interface of the VM."""

    interface: str
    """Its id in the VM's definition."""
    network: OwnNetwork
    mode: PortMode
    mac: str
    addresses: tuple[str, ...] = ()
    """With masks; none: they are not managed."""
    gateways: tuple[str, ...] = ()
    port_security: bool = True


class OwnVmInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.own_vm`` gets."""

    vm: str
    host: str | None = None
    """Where the VM is assigned, or still runs while it moves; ``None``: nowhere."""
    target: str | None = None
    """Where it is being moved to while it runs."""
    ports: tuple[OwnPort, ...] = ()
    """Of a VM that is gone: none."""
    kept: tuple[str, ...] = ()
    """Logical ports, and interfaces, that are refused now: they stay as they are, with their DHCP rows and routes."""
    portless: tuple[str, ...] = ()
    """Interfaces of a VM that may run, of which the store has no port and nobody was seen deleting one: their rows
    stay as they are, wherever they are."""
    paused: bool = False
    """The cluster is paused, or a host runs the VM and the store does not know it: rows that exist stay as they are,
    and only interfaces that have none get some …"""
    arrived: bool = False
    """… unless the VM's move has ended at its target since: then its ports follow it all the same."""
    chassis: dict[str, str] = {}
    """Host → its chassis; one that is left out has the host's name."""
    strategies: tuple[str, ...] = ()
    """By what frames OVN activates a chassis that waits; none: a port has one chassis at a time."""
    fqdn: bool = True
    """OVN knows this option of DHCPv6."""
    rows: Rows = {}


class OwnVmResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.own_vm`` answers."""

    ops: tuple[Op, ...]
    """For one transaction; only those that change something."""
    rows: Rows
    """The tables after them, all of them."""
    portless: tuple[str, ...] = ()
    """Those of the interfaces without a port that have rows, which stay."""
    foreign: dict[str, ForeignRow] = {}
    """Interface → the row of somebody else in place of one of its own: both stay as they are."""
    why: tuple[str, ...]
    """What holds for this VM, in words."""


def plan_own_vm(given: OwnVmInput) -> OwnVmResult:
    """The operations that bring the rows of one VM into agreement with its place."""
    plan = _Plan(given)
    for port in given.ports:
        plan.add(port)
    if given.arrived or not given.paused:
        plan.delete_unwanted()
    return OwnVmResult(
        ops=tuple(plan.draft.ops),
        rows=plan.draft.rows,
        portless=tuple(plan.portless),
        foreign=plan.foreign,
        why=tuple(plan.why),
    )


def isolated_hosts(row: Columns) -> dict[str, int]:
    """Host → the epoch through which it is isolated from this port."""
    found = {}
    for key, value in external_ids(row).items():
        if key.startswith(ISOLATED_KEY) and value.isdecimal():
            found[key.removeprefix(ISOLATED_KEY)] = int(value)
    return found


def requested_chassis(hosts: Sequence[str], isolated: Collection[str], chassis: Mapping[str, str]) -> list[str]:
    """The chassis that may bind a shared port, the present one first; one that does not exist where none may."""
    return [chassis.get(host, host) for host in hosts if host not in isolated] or [NOBODY]


def own_vm_scope(given: OwnVmInput) -> Scope:
    """The rows that the plan of this VM reads."""
    hosts = [one for one in (given.host, given.target) if one]
    return Scope(
        vms=(VmKey(OWN_NAMESPACE, given.vm),),
        ports=tuple(
            dict.fromkeys(interface_id(one.interface, one.mode, host) for one in given.ports for host in hosts)
        ),
        addresses=tuple(address.partition("/")[0] for one in given.ports for address in one.addresses),
        names=tuple(dict.fromkeys(switch_on(one.network, host) for one in given.ports for host in hosts)),
    )


def set_rows(given: OwnVmInput, rows: Rows, features: OvnFeatures) -> OwnVmInput:
    """The same VM with rows of the database, and what its OVN can do."""
    strategies = features.strategies if features.chassis_list else ()
    return msgspec.structs.replace(given, strategies=strategies, fqdn=features.dhcpv6_fqdn, rows=rows)


class _Plan:
    """Rows while they are planned, and what the VM is to have."""

    def __init__(self, given: OwnVmInput) -> None:
        self.given = given
        self.vm = VmKey(OWN_NAMESPACE, given.vm)
        self.draft = RowsDraft(given.rows)
        self.why: list[str] = []
        self.portless: list[str] = []
        self.foreign: dict[str, ForeignRow] = {}
        places = (given.host, given.target if given.target != given.host else None)
        self.places = [place for place in places if place]
        self._ports: set[str] = set()
        self._dhcp: set[str] = set()
        self._prefixes: set[str] = set()

    def add(self, port: OwnPort) -> None:
        """Plan one interface on its network; one that meets a row of somebody else keeps what it has."""
        if (foreign := self._find_foreign(port)) is not None:
            self.foreign[port.interface] = foreign
            self.why.append(f"port {port.interface} stays as it is: {foreign.row} belongs to {foreign.owner}")
            return
        if self.given.paused and not self.given.arrived and self._has_rows(port):
            self.why.append(f"port {port.interface} stays as it is: the cluster is paused")
            return
        network, text = port.network, address_text(port.mac, port.addresses)
        for place in self.places if port.mode == "twin" else self.places[:1]:
            name = interface_id(port.interface, port.mode, place)
            row: Columns = {
                "name": name,
                "switch": switch_on(network, place),
                "type": None,
                "port_security": [text] if port.port_security else [],
                "external_ids": {
                    "namespace": OWN_NAMESPACE,
                    NETWORK_KEY: network.name,
                    TOPOLOGY_KEY: network.type,
                    OWNER_KEY: OWN_CONTROLLER,
                    INTERFACE_KEY: port.interface,
                    **({HOST_KEY: place} if port.mode == "twin" else {}),
                    **vm_keys(self.vm),
                },
            }
            known = next(iter(self.draft.find(PORTS, {"name": name})), {})
            row |= (
                self._shared_port_row(port, known, text)
                if port.mode == "shared"
                else self._twin_port_row(port, known, text, place)
            )
            marks = {key: value for key, value in external_ids(known).items() if key.startswith(ISOLATED_KEY)}
            row["external_ids"] |= marks
            # options that others have set stay; the two that say where the port is bound are ours
            others = {key: value for key, value in known.get("options", {}).items() if key not in row["options"]}
            row["options"] = {**others, **row["options"]}
            self.draft.replace(PORTS, {"name": name}, row)
            self._ports.add(name)
            if network.dhcp and port.addresses:
                self._add_dhcp(port, name)
        if network.type == ROUTED and self.places:
            self._add_routes(port)

    def _has_rows(self, port: OwnPort) -> bool:
        """True if OVN has a port of this interface for any host, or a route to one of its addresses."""
        prefixes = {str(parse_any(cidr)) for cidr in port.addresses}
        return any(
            external_ids(row).get(INTERFACE_KEY) == port.interface or row.get("ip_prefix") in prefixes
            for table in (PORTS, ROUTES)
            for row in self.draft.table_rows(table)
            if belongs_to(row, self.vm)
        )

    def _find_foreign(self, port: OwnPort) -> ForeignRow | None:
        """A row of somebody else where the port is to have one now, or when the target has the guest."""
        for place in self.places:
            for row in self.draft.find(PORTS, {"name": interface_id(port.interface, port.mode, place)}):
                if not belongs_to(row, self.vm):
                    return foreign_row(PORTS, row)
            for row in self.draft.find(SWITCHES, {"name": switch_on(port.network, place)}):
                if not is_part_of(row, port.network.name):
                    return foreign_row(SWITCHES, row)
        is_away = port.network.type == ROUTED and not all(
            is_home_of(port.network.host_subnets, place, port.addresses) for place in self.places
        )
        prefixes = {str(parse_any(cidr)) for cidr in port.addresses} if is_away else set()
        for row in self.draft.table_rows(ROUTES):
            is_one = without_host_mask(row.get("ip_prefix", "")) in prefixes and is_on_cluster_router(row)
            if is_one and row.get("policy", BY_DESTINATION) == BY_DESTINATION and not belongs_to(row, self.vm):
                return foreign_row(ROUTES, row)
        return None

    def _shared_port_row(self, port: OwnPort, known: Columns, text: str) -> Columns:
        isolated = isolated_hosts(known)
        places = self.places if self.given.strategies else self.places[:1]
        chassis = requested_chassis(places, isolated, self.given.chassis)
        waits = len(chassis) > 1
        self.why.append(f"port {port.interface} is bound by {' and '.join(chassis)}")
        return {
            "enabled": None,
            "addresses": _addresses_of(port, text),
            "options": {
                "requested-chassis": ",".join(chassis),
                "activation-strategy": ",".join(self.given.strategies) if waits else None,
            },
        }

    def _twin_port_row(self, port: OwnPort, known: Columns, text: str, place: str) -> Columns:
        """The port of one place. On one switch for all, that of the target waits, disabled and without addresses."""
        isolated = place in isolated_hosts(known)
        waits = place != self.places[0] and port.network.type != ROUTED
        off = isolated or waits
        self.why.append(f"port {port.interface} on {place} " + ("is disabled" if off else "is enabled"))
        chassis = NOBODY if isolated else self.given.chassis.get(place, place)
        return {
            "enabled": False if off else None,
            "addresses": [] if off else _addresses_of(port, text),
            "options": {"requested-chassis": chassis, "activation-strategy": None},
        }

    def _add_dhcp(self, port: OwnPort, name: str) -> None:
        network = port.network
        plan = plan_dhcp(
            DhcpPortInput(
                controller=OWN_CONTROLLER,
                topology=ROUTED if network.type == ROUTED else LAYER2,
                namespace=OWN_NAMESPACE,
                vm=self.given.vm,
                port=name,
                addresses=port.addresses,
                gateways=port.gateways,
                dns_service_ips=network.dns_servers,
                mtu=network.mtu,
                dhcp_router=network.dhcp_router,
                fqdn=self.given.fqdn,
                rows=self.draft.rows,
            )
        )
        self.draft.add(*plan.ops)
        self._dhcp |= {one for one in (plan.port.dhcpv4_options, plan.port.dhcpv6_options) if one is not None}

    def _add_routes(self, port: OwnPort) -> None:
        """At home none is needed; elsewhere the router sends what is for the VM to the switch of its place."""
        place, network = self.places[0], port.network
        if is_home_of(network.host_subnets, place, port.addresses):
            self.why.append(f"{self.given.vm} is at home on {place}: it needs no routes on {network.name}")
            return
        for cidr in port.addresses:
            address = str(parse_any(cidr))
            self._prefixes.add(address)
            self.draft.replace(
                ROUTES,
                {"ip_prefix": address, "policy": BY_DESTINATION, "router": None},
                {
                    "ip_prefix": address,
                    "nexthop": address,
                    "policy": BY_DESTINATION,
                    "output_port": router_port(switch_on(network, place)),
                    "external_ids": {ZONE_KEY: LOCAL, OWNER_KEY: OWN_CONTROLLER, **vm_keys(self.vm)},
                },
            )
        self.why.append(f"{self.given.vm} is away from home on {place}: routes lead to its switch")

    def delete_unwanted(self) -> None:
        """Delete rows of the VM that it is not to have; those of interfaces that are refused, or lack a port, stay.

        A port that a host is isolated from stays until that ends, and is reached by nobody. Conditions name keys of
        ``external_ids`` so that a mark which is set meanwhile has the transaction planned again.
        """
        own = [row for row in self.draft.table_rows(PORTS) if row.get("name") and belongs_to(row, self.vm)]
        portless = {one.lower() for one in self.given.portless}
        interfaces = {row["name"]: external_ids(row).get(INTERFACE_KEY, "") for row in own}
        without_port = {name: one for name, one in interfaces.items() if one.lower() in portless}
        self.portless = sorted(set(without_port.values()))
        self.why += [f"port {one} stays as it is: the store has no port of it" for one in self.portless]
        stay, planned = {*self.given.kept, *self.foreign, *without_port}, {one.interface for one in self.given.ports}
        kept = [
            row
            for row in own
            for interface in (interfaces[row["name"]],)
            if row["name"] in stay or interface in stay or (self.given.paused and interface not in planned)
        ]
        ours = {OWNER_KEY: OWN_CONTROLLER, **vm_keys(self.vm)}
        names = {*self._ports, *(row["name"] for row in kept)}
        gone = []
        for row in own:
            where = {"name": row["name"], "external_ids": ours}
            if row["name"] not in names and isolated_hosts(row):
                self.draft.add(upsert(PORTS, where, _REACHED_BY_NOBODY))
                self.why.append(f"port {row['name']} stays, disabled, until no host is isolated from it")
            elif row["name"] not in names:
                gone.append(where)
        if gone:
            self.draft.add(delete(PORTS, *gone))
            self.why.append(f"ports {', '.join(where['name'] for where in gone)} are deleted")
        prefixes = self._prefixes | {word for row in kept for word in _port_addresses(row)}
        for row in self.draft.table_rows(ROUTES):
            if belongs_to(row, self.vm) and is_of_vm(row, self.vm) and row.get("ip_prefix") not in prefixes:
                where = {"ip_prefix": row.get("ip_prefix"), "policy": row.get("policy"), "router": None}
                self.draft.add(delete(ROUTES, {**where, "external_ids": ours}))
        served = self._dhcp | {row[family] for row in kept for family in DHCP_REFERENCES if family in row}
        for row in self.draft.table_rows(DHCP):
            if belongs_to(row, self.vm) and external_ids(row).get(ID_KEY) not in served:
                self.draft.add(delete(DHCP, {"external_ids": dict(external_ids(row))}))


def switch_on(network: OwnNetwork, host: str) -> str:
    """The logical switch of the network that a port on this host is on."""
    return own_switch(network.name, network.type, host)


def _addresses_of(port: OwnPort, text: str) -> list[str]:
    """A port that may use any MAC, on a switch that floods, also gets what is for MACs that nobody has."""
    floods = port.network.type in (LAYER2, LOCALNET) and not port.port_security
    return [text, "unknown"] if floods else [text]


def _port_addresses(row: Columns) -> set[str]:
    """The addresses of a port, also of one that is disabled and only allows them."""
    return {word for column in ("addresses", "port_security") for text in row.get(column, ()) for word in text.split()}


OWN_VM: Final = Decision(
    "network.own_vm",
    plan_own_vm,
    OwnVmInput,
    OwnVmResult,
    "The rows of a VM of our own hosts, by where it is and where it moves to",
    nulls_are_absent=True,
)
