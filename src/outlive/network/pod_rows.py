"""Rows of one VM of pods on all its networks, as one plan for one transaction. Pure.

A network whose plan fails is left as it is, with its problem; the others are planned all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from outlive.base.errors import OutliveError
from outlive.network.addresses import SubnetIndex
from outlive.network.addressing import parse_any
from outlive.network.copies import Copy, VmKey
from outlive.network.dhcp import choose_dns, needs_dhcp
from outlive.network.follow import FOLLOW, FollowInput
from outlive.network.follow_switch import FOLLOW_SWITCH, SwitchFollowInput
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
    TOPOLOGY_KEY,
    controller_name,
    port_name,
)
from outlive.network.operations import DHCP, PORTS, Op, Rows, change_rows, delete
from outlive.network.owners import external_ids, vm_keys
from outlive.network.pod_facts import NodeFacts, is_unreadable
from outlive.network.pod_networks import PodNetwork, follows_default
from outlive.network.pod_settings import PodNetworkSettings
from outlive.network.ports import OvnFeatures, Scope
from outlive.network.routes import HypervisorNetwork, ZoneMode
from outlive.runtime.decisions import Decision

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

    def around(self, copies: Iterable[Copy], addresses: Sequence[str]) -> PodZone:
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
    hypervisors = {name: one.network(settings.join_subnets) for name, one in found.items()}
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
    for network in (*given.networks, *_networks_left(given, rows)):
        if not _is_unreadable(given, network):
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


def _is_unreadable(given: VmRowsInput, network: PodNetwork) -> bool:
    """True if a copy that lives has an entry that cannot be read: what it has stays, until it can."""
    return any(
        not one.completed and is_unreadable(given.unreadable.get(one.id, ()), network.nad) for one in given.copies
    )


def _networks_left(given: VmRowsInput, rows: Rows) -> list[PodNetwork]:
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
    zone = given.zone.around(copies, [cidr for entry in entries for cidr in entry.addresses])
    serves = any(not one.completed and DEFAULT_NETWORK in one.networks for one in copies)
    return FollowInput(
        zone_mode=zone.mode,
        local_hypervisors=zone.local,
        hypervisors=zone.hypervisors,
        cluster_subnets=settings.cluster_subnets,
        dns_service_ips=_dns(given, ()) if serves else (),
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
    zone = given.zone.around(given.copies, ())
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
        dns_service_ips=_dns(given, network.dns_servers) if serves else (),
        controller=controller_name(network.network),
        mtu=network.mtu,
        fqdn=features.dhcpv6_fqdn,
        vm=given.vm,
        copies=copies,
        rows=rows,
    )


def _dns(given: VmRowsInput, own: tuple[str, ...]) -> tuple[str, ...]:
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
