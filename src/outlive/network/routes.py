"""Routes of a VM on a routed network: how the rest of the cloud finds it away from home, and how it gets out.

At home, where the hypervisor's subnet has the VM's address, nothing is needed. Elsewhere the zone of its hypervisor
has a route to its address by the hypervisor's port, and a way out by the hypervisor's gateway router: in ``global``
mode a policy for the address, in ``interconnect`` mode a route for the whole cluster. Every other zone has a route to
the hypervisor's transit address (docs/design/network-decisions.md#routes-and-garbage).

A route is replaced by prefix and policy, whatever its next hop: two routes to one prefix are a group whose members
share the flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from outlive.base import BadInput, Invalid
from outlive.network.addresses import SubnetIndex
from outlive.network.addressing import Subnet, parse_any, parse_subnet
from outlive.network.copies import VmKey
from outlive.network.names import LOCAL, POLICY_PRIORITY, REMOTE, ZONE_KEY, router_port
from outlive.network.operations import POLICIES, ROUTES, Columns, Rows, RowsChange, RowsDraft
from outlive.network.owners import delete_rows, is_of_vm, is_on_cluster_router, vm_keys
from outlive.runtime import Decision

ZoneMode = Literal["global", "interconnect"]
"""One database for all hypervisors, or one for each of them."""
BY_DESTINATION: Final = "dst-ip"
BY_SOURCE: Final = "src-ip"
_HOST_PREFIX: Final = {4: 24, 6: 64}
"""Prefix lengths of hypervisors where the cluster does not say."""
_INDEXES_LIMIT: Final = 1000
"""Zones, and hypervisors of other zones, whose subnets are remembered."""


class JoinAddressMissing(BadInput):
    """A hypervisor has no address of a family that packets could be sent to."""

    code = "join-address-missing"


class ClusterSubnet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A range from which hypervisors get their subnets."""

    cidr: str
    host_prefix: int | None = None
    """Prefix length of a hypervisor's subnet; not given: 24 and 64."""


class HypervisorNetwork(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a hypervisor is in the network."""

    subnets: tuple[str, ...] = ()
    """Of its switch on the routed network."""
    gateway_router: tuple[str, ...] = ()
    """Join addresses of its gateway router."""
    transit: tuple[str, ...] = ()
    """Its addresses on the switch that joins the zones."""
    chassis: str | None = None
    """By which OVN knows it; not given: its name."""


class NetworkZone(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one northbound database programs."""

    mode: ZoneMode
    local: tuple[str, ...]
    """Hypervisors of this zone."""
    hypervisors: dict[str, HypervisorNetwork]
    """All of them, those of other zones too."""
    cluster_subnets: tuple[ClusterSubnet, ...] = ()

    def is_local(self, hypervisor: str | None) -> bool:
        """True if this database programs the hypervisor."""
        return hypervisor is not None and hypervisor in self.local

    def network_of(self, hypervisor: str) -> HypervisorNetwork:
        """Where the hypervisor is; one that is not known has nothing."""
        return self.hypervisors.get(hypervisor) or HypervisorNetwork()

    def is_home(self, hypervisor: str, addresses: Sequence[str]) -> bool:
        """True if the hypervisor's switch has one of the addresses.

        Of this zone's switches it must be the first that has one, so that subnets that overlap have one home.
        """
        names = self.local if self.is_local(hypervisor) else (hypervisor,)
        return is_home_of({name: self.network_of(name).subnets for name in names}, hypervisor, addresses)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A VM and where it runs now."""

    vm: VmKey
    hypervisor: str
    addresses: tuple[str, ...]
    """Without masks, in shortest form."""


def host_addresses(cidrs: Iterable[str]) -> tuple[str, ...]:
    """Addresses without masks, in shortest form and in their order."""
    return tuple(str(parse_any(one)) for one in cidrs)


def address_of_family(addresses: Iterable[str], version: int) -> str | None:
    """The first address of the family, without mask."""
    return next((str(one) for one in map(parse_any, addresses) if one.version == version), None)


def is_home_of(subnets: Mapping[str, tuple[str, ...]], hypervisor: str, addresses: Sequence[str]) -> bool:
    """True if the hypervisor is the first of these whose switch has one of the addresses."""
    return _build_index(tuple(subnets.items())).find(map(parse_any, addresses)) == hypervisor


@lru_cache(maxsize=_INDEXES_LIMIT)
def _build_index(subnets: tuple[tuple[str, tuple[str, ...]], ...]) -> SubnetIndex:
    """The index of these switches: one zone has the same for all its VMs."""
    return SubnetIndex(dict(subnets))


def delete_routing(draft: RowsDraft, vm: VmKey, zone: str | None = None) -> None:
    """Delete the VM's routes and policies; with ``zone``, only those that are marked so."""
    for table in (ROUTES, POLICIES):
        draft.add(*delete_rows(table, [row for row in draft.table_rows(table) if is_of_vm(row, vm, zone)]))


def plan_local(draft: RowsDraft, zone: NetworkZone, place: Place) -> str:
    """Routes for a VM on a hypervisor of this zone. Answers the rule, in words."""
    if zone.is_home(place.hypervisor, place.addresses):
        delete_routing(draft, place.vm)
        return f"{place.vm} is at home on {place.hypervisor}: it needs no routes"
    gateway = zone.network_of(place.hypervisor).gateway_router
    if zone.mode == "interconnect":
        ensure_catch_all(draft, place.hypervisor, zone.cluster_subnets, gateway)
    else:
        for address in place.addresses:
            version = parse_any(address).version
            next_hop = address_of_family(gateway, version)
            if next_hop is None:
                raise _build_missing(place.hypervisor, "join", version)
            key: Columns = {"priority": POLICY_PRIORITY, "match": f"ip{version}.src == {address}", "action": "reroute"}
            draft.replace(
                POLICIES,
                {**key, "router": None},
                {**key, "nexthops": [next_hop], "external_ids": {ZONE_KEY: LOCAL, **vm_keys(place.vm)}},
            )
    for address in place.addresses:
        _ensure_route(draft, place.vm, LOCAL, address, next_hop=address, output_port=router_port(place.hypervisor))
    return f"{place.vm} is away from home on {place.hypervisor}: routes lead to its switch"


def plan_remote(draft: RowsDraft, zone: NetworkZone, place: Place) -> str:
    """Routes for a VM on a hypervisor of another zone. Answers the rule, in words."""
    if zone.is_home(place.hypervisor, place.addresses):
        delete_routing(draft, place.vm)
        return f"{place.vm} is at home on {place.hypervisor} in another zone: it needs no routes"
    delete_routing(draft, place.vm, LOCAL)
    transit = zone.network_of(place.hypervisor).transit
    for address in place.addresses:
        version = parse_any(address).version
        next_hop = address_of_family(transit, version)
        if next_hop is None:
            raise _build_missing(place.hypervisor, "transit", version)
        _ensure_route(draft, place.vm, REMOTE, address, next_hop=next_hop, output_port=None)
    return f"{place.vm} is away from home on {place.hypervisor} in another zone: routes lead to that zone"


def _ensure_route(
    draft: RowsDraft, vm: VmKey, zone: str, address: str, *, next_hop: str, output_port: str | None
) -> None:
    draft.replace(
        ROUTES,
        {"ip_prefix": address, "policy": BY_DESTINATION, "router": None},
        {
            "ip_prefix": address,
            "nexthop": next_hop,
            "policy": BY_DESTINATION,
            "output_port": output_port,
            "external_ids": {ZONE_KEY: zone, **vm_keys(vm)},
        },
    )


def ensure_catch_all(
    draft: RowsDraft, hypervisor: str, subnets: Sequence[ClusterSubnet], gateway: Sequence[str]
) -> None:
    """Send all that comes from the cluster's addresses to the gateway router of the hypervisor.

    The routes belong to no VM and stay when VMs go. ``JoinAddressMissing`` before anything is written.
    """
    planned: list[tuple[Subnet, int, str]] = []
    for subnet in subnets:
        network = parse_subnet(subnet.cidr)
        next_hop = address_of_family(gateway, network.version)
        if next_hop is None:
            raise _build_missing(hypervisor, "join", network.version)
        length = _HOST_PREFIX[network.version] if subnet.host_prefix is None else subnet.host_prefix
        planned.append((network, length, next_hop))
    for network, length, next_hop in planned:
        found = [row for row in draft.table_rows(ROUTES) if _is_catch_all(row, network, length)]
        where = [{"ip_prefix": row["ip_prefix"], "policy": BY_SOURCE, "nexthop": row["nexthop"]} for row in found]
        row: Columns = {"ip_prefix": str(network), "nexthop": next_hop, "policy": BY_SOURCE}
        draft.replace(
            ROUTES,
            [{**one, "router": None} for one in where or [row]],
            {**row, "output_port": None, "external_ids": None},
        )


def _is_catch_all(row: Columns, subnet: Subnet, host_prefix: int) -> bool:
    """True for a route for all of the subnet or of what it was before it grew; a hypervisor's own route is none."""
    prefix = row.get("ip_prefix", "")
    if row.get("policy") != BY_SOURCE or "/" not in prefix or not is_on_cluster_router(row):
        return False
    try:
        found, next_hop = parse_subnet(prefix), parse_any(row.get("nexthop", ""))
    except Invalid:
        return False
    return (
        found.version == next_hop.version == subnet.version
        and found.network_address == subnet.network_address
        and subnet.prefixlen <= found.prefixlen < host_prefix
    )


def _build_missing(hypervisor: str, kind: str, version: int) -> JoinAddressMissing:
    return JoinAddressMissing(
        f"hypervisor {hypervisor} has no IPv{version} {kind} address",
        remedy=f"give it one, or remove the network's IPv{version} subnets",
    )


class CatchAllInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.catch_all`` gets."""

    hypervisor: str
    cluster_subnets: tuple[ClusterSubnet, ...] = ()
    gateway_router: tuple[str, ...] = ()
    rows: Rows = {}


def plan_catch_all(given: CatchAllInput) -> RowsChange:
    """The routes by which a zone's VMs get out, as ``ensure_catch_all`` makes them."""
    draft = RowsDraft(given.rows)
    ensure_catch_all(draft, given.hypervisor, given.cluster_subnets, given.gateway_router)
    return draft.change()


CATCH_ALL: Final = Decision(
    "network.catch_all",
    plan_catch_all,
    CatchAllInput,
    RowsChange,
    "The routes that lead from the cluster's addresses to a gateway router",
    nulls_are_absent=True,
)
