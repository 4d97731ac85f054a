"""Rows of VMs of pods and of their nodes, each as one plan for one transaction. Pure.

A network whose plan fails is left as it is, with its problem; the others are planned all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, Literal, TypeVar

from outlive.base import OutliveError
from outlive.network.addresses import SubnetIndex
from outlive.network.addressing import parse_any
from outlive.network.copies import Copy, VmKey
from outlive.network.dhcp import choose_dns, needs_dhcp
from outlive.network.follow import FOLLOW, FollowInput
from outlive.network.follow_switch import FOLLOW_SWITCH, SwitchFollowInput
from outlive.network.gateway import ROUTER_PORT, RouterPortInput
from outlive.network.names import (
    DEFAULT_CONTROLLER,
    DEFAULT_NETWORK,
    ID_KEY,
    LAYER2,
    LOCALNET,
    NAD_KEY,
    NAME_KEY,
    NETWORK_KEY,
    OWNER_KEY,
    PROXY_MAC,
    ROUTED,
    TOPOLOGY_KEY,
    controller_name,
    port_name,
    router_port,
    switch_port_to_router,
)
from outlive.network.operations import (
    DHCP,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTES,
    Columns,
    Op,
    Rows,
    change_rows,
    delete,
    needed_ops,
    upsert,
)
from outlive.network.owners import external_ids, vm_keys
from outlive.network.pod_cache import PodCache
from outlive.network.pod_facts import NodeFacts, is_unreadable
from outlive.network.pods import PodNetwork, follows_default
from outlive.network.pool import gateway_of
from outlive.network.ports import NorthboundDb, OvnFeatures, Scope
from outlive.network.routes import BY_SOURCE, HypervisorNetwork, ZoneMode
from outlive.network.scopes import match_addresses, row_vm, without_host_mask
from outlive.network.settings import PodNetworkSettings
from outlive.network.topology import Travellers
from outlive.runtime import Decision, Informer, Requeue

_NAMED: Final[Mapping[str, Literal["layer2", "localnet"]]] = {LAYER2: "layer2", LOCALNET: "localnet"}


@dataclass(frozen=True)
class PodZone:
    """One zone and the cluster around it, as plans see them. Made anew whenever a node changes."""

    mode: ZoneMode
    local: tuple[str, ...]
    """Nodes that this zone's database programs."""
    nodes: dict[str, NodeFacts]
    hypervisors: dict[str, HypervisorNetwork]
    """All of them, on the default network."""

    @property
    def chassis(self) -> dict[str, str]:
        """Hypervisor → its chassis, where that has another name."""
        return {name: one.chassis for name, one in self.hypervisors.items() if one.chassis}

    def is_local(self, copy: Copy) -> bool:
        """True if this database programs the copy's hypervisor."""
        return copy.hypervisor is not None and (self.mode == "global" or copy.hypervisor in self.local)

    def home_of(self, addresses: Iterable[str]) -> str | None:
        """The hypervisor whose subnet has one of the addresses, with or without mask; ``None``: nobody's has."""
        return self._homes.find([parse_any(one) for one in addresses])

    def restrict_to(self, copies: Iterable[Copy], addresses: Sequence[str]) -> PodZone:
        """The same zone with only those nodes that matter to a VM: where its copies are, and where its home is."""
        parsed = [parse_any(one) for one in addresses]
        names = {*(one.hypervisor for one in copies), self._homes.find(parsed), self._local_homes.find(parsed)}
        found = {name: one for name, one in self.hypervisors.items() if name in names}
        return PodZone(self.mode, tuple(one for one in self.local if one in names), {}, found)

    @cached_property
    def _local_homes(self) -> SubnetIndex:
        return SubnetIndex({name: self.hypervisors[name].subnets for name in self.local})

    @cached_property
    def _homes(self) -> SubnetIndex:
        return SubnetIndex({name: one.subnets for name, one in self.hypervisors.items()})


def make_zone(
    nodes: Iterable[NodeFacts], mode: ZoneMode, local: Iterable[str], settings: PodNetworkSettings
) -> PodZone:
    """The zone with these nodes: those of ``local``, and those that say that they are in ``settings.zone``."""
    found = {one.name: one for one in nodes}
    named = frozenset(local)
    own = [
        name
        for name, one in found.items()
        if mode == "global" or name in named or (settings.zone and one.zone == settings.zone)
    ]
    hypervisors = {name: one.network_position(settings.join_subnets) for name, one in found.items()}
    return PodZone(mode, tuple(own), found, hypervisors)


@dataclass(frozen=True, slots=True)
class VmRowsInput:
    """All that the rows of one VM follow from, but the rows themselves."""

    vm: VmKey
    copies: tuple[Copy, ...]
    networks: tuple[PodNetwork, ...]
    zone: PodZone
    settings: PodNetworkSettings
    dns: tuple[str, ...] | None
    """Addresses of the DNS service; ``None``: there is none."""
    unreadable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Copy → its networks whose entries cannot be read."""


@dataclass(slots=True)
class VmRows:
    """A plan: operations, and what was decided by what."""

    ops: list[Op] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    problems: dict[str, OutliveError] = field(default_factory=dict)
    """Network → why it was left as it is."""
    uses: list[tuple[Decision[Any, Any], Any, Any]] = field(default_factory=list)
    """Decisions with what went in and what came out, of those that changed something."""
    why: list[str] = field(default_factory=list)


def plan_vm_rows(given: VmRowsInput, rows: Rows, features: OvnFeatures) -> VmRows:
    """The operations for all networks of a VM, each planned on the rows that the ones before it leave."""
    found = VmRows(rows=rows)
    if any(map(follows_default, given.copies)) or all(one.completed for one in given.copies):
        _add(found, DEFAULT_NETWORK, FOLLOW, lambda rows: _follow_input(given, rows, features))
    for network in (*given.networks, *_find_left_networks(given, rows)):
        living = [one.id for one in given.copies if not one.completed]
        # what a copy has whose entry cannot be read stays, until it can
        if not any(is_unreadable(given.unreadable.get(one, ()), network.nad) for one in living):
            _add(found, network.nad, FOLLOW_SWITCH, lambda rows, one=network: _switch_input(given, one, rows, features))
    change = change_rows(found.rows, _delete_superseded(given.vm, found.rows))
    found.ops += change.ops
    found.rows = change.rows
    return found


def _delete_superseded(vm: VmKey, rows: Rows) -> list[Op]:
    """Delete DHCP rows of addresses that the VM had before it was started anew.

    None of its ports refers to them, though some refer to others of the same owner.
    """
    used: set[str] = set()
    for port in rows.get(PORTS, ()):
        if vm_keys(vm).items() <= external_ids(port).items():
            used |= {port[name] for name in ("dhcpv4_options", "dhcpv6_options") if name in port}
    own = [external_ids(row) for row in rows.get(DHCP, ()) if external_ids(row).get(NAME_KEY) == str(vm)]
    owners = {ids.get(OWNER_KEY) for ids in own if ids.get(ID_KEY) in used}
    old = [ids for ids in own if ids.get(ID_KEY) not in used and ids.get(OWNER_KEY) in owners and ids.get(ID_KEY)]
    return [delete(DHCP, *({"external_ids": {ID_KEY: ids[ID_KEY]}} for ids in old))] if old else []


def _find_left_networks(given: VmRowsInput, rows: Rows) -> list[PodNetwork]:
    """Networks on which a VM that runs nowhere still has ports, by what these say."""
    if any(not one.completed for one in given.copies):
        return []
    found, known = {}, {one.nad for one in given.networks}
    for row in rows.get(PORTS, ()):
        ids = external_ids(row)
        nad, topology = ids.get(NAD_KEY, DEFAULT_NETWORK), _NAMED.get(ids.get(TOPOLOGY_KEY, ""))
        if topology is not None and nad not in known and vm_keys(given.vm).items() <= ids.items():
            found[nad] = PodNetwork(nad=nad, network=ids.get(NETWORK_KEY, ""), topology=topology)
    return list(found.values())


def _add(found: VmRows, network: str, decision: Decision[Any, Any], make: Any) -> None:
    try:
        asked = make(found.rows)
        result = decision.function(asked)
    except OutliveError as error:
        found.problems[network] = error
        return
    found.ops += result.ops
    found.rows = result.rows
    found.why += result.why
    if result.ops:
        found.uses.append((decision, asked, result))


def _follow_input(given: VmRowsInput, rows: Rows, features: OvnFeatures) -> FollowInput:
    settings, copies = given.settings, tuple(filter(follows_default, given.copies))
    entries = [one.networks[DEFAULT_NETWORK] for one in copies if DEFAULT_NETWORK in one.networks]
    zone = given.zone.restrict_to(copies, [cidr for entry in entries for cidr in entry.addresses])
    serves = any(not one.completed and DEFAULT_NETWORK in one.networks for one in copies)
    return FollowInput(
        zone_mode=zone.mode,
        local_hypervisors=zone.local,
        hypervisors=zone.hypervisors,
        cluster_subnets=settings.cluster_subnets,
        dns_service_ips=_choose_name_servers(given, ()) if serves else (),
        controller=DEFAULT_CONTROLLER,
        dhcp_router=settings.dhcp_router,
        mtu=settings.mtu,
        fqdn=features.dhcpv6_fqdn,
        disable_source=settings.disable_source,
        vm=given.vm,
        copies=copies,
        rows=rows,
    )


def _switch_input(given: VmRowsInput, network: PodNetwork, rows: Rows, features: OvnFeatures) -> SwitchFollowInput:
    """A copy that lives and has no addresses yet is left out: the VM does not go where no port can be."""
    copies = tuple(one for one in given.copies if one.completed or network.nad in one.networks)
    zone = given.zone.restrict_to(given.copies, ())
    serves = copies and needs_dhcp(network.topology, network.role, vm=True, migratable=False)
    return SwitchFollowInput(
        zone_mode=zone.mode,
        local_hypervisors=zone.local,
        chassis=zone.chassis,
        network=network.network,
        nad=network.nad,
        topology=network.topology,
        transport="evpn" if network.network in given.settings.evpn.networks else "overlay",
        role=network.role,
        port_security=network.port_security,
        dns_service_ips=_choose_name_servers(given, network.dns_servers) if serves else (),
        controller=controller_name(network.network),
        mtu=network.mtu,
        fqdn=features.dhcpv6_fqdn,
        vm=given.vm,
        copies=copies,
        rows=rows,
    )


def _choose_name_servers(given: VmRowsInput, own: tuple[str, ...]) -> tuple[str, ...]:
    """Name servers for guests: the network's own, else the cluster's; ``ServiceMissing``."""
    if own or not given.settings.dns_service:
        return own
    found = choose_dns(given.dns)
    return tuple(one for one in (found.ipv4, found.ipv6) if one)


def scope_of(given: VmRowsInput) -> Scope:
    """The rows that a plan for the VM reads."""
    nads = [DEFAULT_NETWORK, *(one.nad for one in given.networks)]
    entries = [one.networks[DEFAULT_NETWORK] for one in given.copies if DEFAULT_NETWORK in one.networks]
    addresses = [cidr.partition("/")[0] for entry in entries for cidr in entry.addresses]
    if given.zone.mode == "interconnect" and addresses:
        addresses += [one.cidr for one in given.settings.cluster_subnets]  # the way out is for all of them
    return Scope(
        vms=(given.vm,),
        ports=tuple(port_name(one.namespace, one.name, nad) for one in given.copies for nad in nads),
        addresses=tuple(dict.fromkeys(addresses)),
    )


# The nodes of a zone in OVN: for whom the switch of each answers on the routed default network.
#
# The switches and router ports are made by the network plugin of the cluster; of these only what lets VMs travel is
# set. An OVN whose proxy takes no subnets is given single addresses, and all router ports one MAC.

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
        await self._nb.read_rows(
            Scope(ports=tuple(map(switch_port_to_router, zone.local[:1])))
        )  # connected: northd is known
        travellers = find_travellers(zone, cache) if not self._nb.read_features().arp_proxy_full else {}
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
                    ops.append(self._proxy_op(name, travellers.get(name, Travellers()), full=features.arp_proxy_full))
                if not features.arp_proxy_full and router_port(name) in routers:
                    ops.append(upsert(ROUTER_PORTS, {"name": router_port(name)}, {"mac": PROXY_MAC}))
            return needed_ops(rows, ops)

        scope = Scope(ports=tuple(map(switch_port_to_router, names)), names=tuple(map(router_port, names)))
        await self._nb.transact(scope, plan, comment=f"proxy of {len(names)} nodes", numbered=False)
        return missing[0]

    def _proxy_op(self, name: str, travellers: Travellers, *, full: bool) -> Op:
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


# VMs whose rows are right already when a follower starts: found in one pass over all rows, and not looked at again.
#
# After a restart that is nearly all of them. A VM counts as settled only as long as nothing that its rows follow from
# has changed (``mark``).

T = TypeVar("T")


class RowsByVm:
    """All rows of a database, by what a VM's plan reads."""

    def __init__(self, rows: Rows) -> None:
        self._entries: dict[Hashable, list[tuple[str, Columns]]] = {}
        self._ways_out: list[Columns] = []
        """Routes by source: the ways out of a zone, which are nobody's own."""
        for table in (ROUTES, POLICIES, DHCP, PORTS):
            for row in rows.get(table, ()):
                for key in _list_keys(table, row):
                    self._entries.setdefault(key, []).append((table, row))
                if table == ROUTES and row.get("policy") == BY_SOURCE:
                    self._ways_out.append(row)

    def rows_for(self, given: VmRowsInput) -> Rows:
        """The rows that a plan for the VM reads."""
        scope = scope_of(given)
        keys: list[Hashable] = [str(given.vm), *(("port", one) for one in scope.ports)]
        keys += [("address", one) for one in scope.addresses]
        found = {id(row): (table, row) for key in keys for table, row in self._entries.get(key, ())}
        rows: Rows = {}
        for table, row in found.values():
            rows.setdefault(table, []).append(row)
        if given.zone.mode == "interconnect":
            known = {id(row) for row in rows.get(ROUTES, ())}
            rows.setdefault(ROUTES, []).extend(row for row in self._ways_out if id(row) not in known)
        return rows


def _list_keys(table: str, row: Columns) -> Iterable[Hashable]:
    if vm := row_vm(table, row):
        yield vm
    if table == PORTS:
        yield ("port", row.get("name"))
    elif table == ROUTES:
        yield ("address", without_host_mask(str(row.get("ip_prefix", ""))))
    elif table == POLICIES:
        yield from (("address", one) for one in match_addresses(str(row.get("match", ""))))


def is_settled(given: VmRowsInput, rows: RowsByVm, features: OvnFeatures) -> bool:
    """True if the VM's rows are as they have to be on all its networks."""
    plan = plan_vm_rows(given, rows.rows_for(given), features)
    return not plan.ops and not plan.problems


class DerivedView(Generic[T]):
    """A value that is made from all objects of an informer, and anew once these are others."""

    def __init__(self, informer: Informer[Any], make: Callable[[Sequence[Any]], T]) -> None:
        self._informer = informer
        self._make = make
        self._changes = -1
        self._value = make(())

    def get(self) -> T:
        """The value for the objects of now; the same object as long as these are the same."""
        if self._changes != self._informer.figures.changes:
            self._changes, self._value = self._informer.figures.changes, self._make(self._informer.items())
        return self._value
