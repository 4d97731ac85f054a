"""``outlive network add|modify|remove|acl|dhcp|list``: networks that hosts make themselves."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from outlive.base import AlreadyExists, BadInput, NotFound
from outlive.cli.access import Access, WriteAccess
from outlive.cli.commands import command, make_group
from outlive.cli.network import app
from outlive.cli.output import Output, make_table, write
from outlive.network import (
    add_reservation,
    add_rule,
    change_network,
    check_beside,
    check_beside_hosts,
    check_network,
    completed_network,
    domain_of,
    ordered_rules,
    remove_reservation,
    remove_rule,
)
from outlive.resources import CLUSTER, Cluster, DhcpLease, FirewallRule, ObjectMeta, VirtualNetwork, VirtualNetworkSpec
from outlive.store import Store, compare_and_swap, list_all, read

acl = make_group("Firewall rules of managed networks.")
dhcp = make_group("DHCP reservations and leases of managed networks.")
app.add_typer(acl, name="acl")
app.add_typer(dhcp, name="dhcp")


class OwnNetworkType(enum.StrEnum):
    """Types of networks that hosts make."""

    BRIDGED = "bridged"
    MANAGED = "managed"


class RuleDirection(enum.StrEnum):
    """What a firewall rule is for."""

    IN = "in"
    OUT = "out"


NetworkName = Annotated[str, typer.Argument(metavar="NETWORK", help="Name of the network.")]
Mac = Annotated[str, typer.Argument(metavar="MAC", help="MAC address of the interface.")]
Mtu = Annotated[int | None, typer.Option("--mtu", metavar="N", help="Of its devices; 0: as much as goes.")]
Domain = Annotated[
    str | None, typer.Option("--domain", metavar="NAME", help="DNS domain of guests; else NETWORK.local.")
]
NameServers = Annotated[
    list[str] | None, typer.Option("--name-server", metavar="NAME", help="Of the domain; may be repeated.")
]
Ipv4 = Annotated[str | None, typer.Option("--ipv4", metavar="CIDR", help="Its IPv4 subnet; '' removes it.")]
Ipv6 = Annotated[str | None, typer.Option("--ipv6", metavar="CIDR", help="Its IPv6 subnet; '' removes it.")]
Gateway4 = Annotated[
    str | None, typer.Option("--gateway4", metavar="ADDRESS", help="Address that the primary has in the IPv4 subnet.")
]
Gateway6 = Annotated[
    str | None, typer.Option("--gateway6", metavar="ADDRESS", help="The same for IPv6; else the subnet's first one.")
]
Dhcp4 = Annotated[
    str | None, typer.Option("--dhcp", metavar="START-END", help="Addresses that IPv4 guests are given; or off.")
]
Dhcp6 = Annotated[
    bool | None, typer.Option("--dhcp6/--no-dhcp6", help="Whether IPv6 guests are given addresses.", show_default=False)
]


@command(app, "add")
async def add_network(
    access: WriteAccess,
    network: NetworkName,
    kind: Annotated[OwnNetworkType, typer.Option("--type", help="Of the outside world, or our own.")],
    vni: Annotated[int, typer.Option("--vni", metavar="N", help="Its VLAN, or its VXLAN network identifier.")],
    mtu: Mtu = None,
    domain: Domain = None,
    name_servers: NameServers = None,
    ipv4: Ipv4 = None,
    gateway4: Gateway4 = None,
    dhcp4: Dhcp4 = None,
    ipv6: Ipv6 = None,
    gateway6: Gateway6 = None,
    dhcp6: Dhcp6 = None,
) -> None:
    """Create a network that hosts make themselves."""
    given = _collect_changes(mtu, domain, name_servers, (ipv4, gateway4, dhcp4), (ipv6, gateway6, dhcp6))
    spec = change_network(VirtualNetworkSpec(type=kind.value, vni=vni), given)
    made = completed_network(VirtualNetwork(metadata=ObjectMeta(name=network), spec=spec))
    async with access.open(write=True) as store:
        if await read(store, VirtualNetwork, network) is not None:
            raise AlreadyExists(f"there is a network {network} already", remedy="outlive network modify changes it")
        others = [one async for one in list_all(store, VirtualNetwork) if one.name != network]
        _check_all(made, others, await read(store, Cluster, CLUSTER))
        await store.create(made)
    write(f"network {network} created: {_describe(made)}\n")


@command(app, "modify")
async def modify_network(
    access: WriteAccess,
    network: NetworkName,
    vni: Annotated[int | None, typer.Option("--vni", metavar="N", help="Its VLAN, or network identifier.")] = None,
    mtu: Mtu = None,
    domain: Domain = None,
    name_servers: NameServers = None,
    ipv4: Ipv4 = None,
    gateway4: Gateway4 = None,
    dhcp4: Dhcp4 = None,
    ipv6: Ipv6 = None,
    gateway6: Gateway6 = None,
    dhcp6: Dhcp6 = None,
) -> None:
    """Change a network; options that are not given stay."""
    given = _collect_changes(mtu, domain, name_servers, (ipv4, gateway4, dhcp4), (ipv6, gateway6, dhcp6)) | {"vni": vni}
    if all(value is None for value in given.values()):
        raise BadInput(f"nothing of network {network} is to be changed", remedy="give an option: --help shows them")
    changed = await _change(access, network, lambda spec: change_network(spec, given))
    write(f"network {network} changed: {_describe(changed)}\n")


@command(app, "remove")
async def remove_network(access: WriteAccess, network: NetworkName) -> None:
    """Delete a network; one that VMs have ports on, or are attached to, stays. Hosts take its devices away."""
    from outlive.api import check_deletion

    async with access.open(write=True) as store:
        found = await _find(store, network)
        await check_deletion(found, store)
        await store.delete(found.ref, uid=found.metadata.uid)
    write(f"network {network} deleted\n")


@command(app, "list")
async def list_networks(access: Access, output: Output) -> None:
    """Networks with their type, VNI, MTU and subnets."""
    async with access.open() as store:
        found = sorted([one async for one in list_all(store, VirtualNetwork)], key=lambda one: one.name)
    rows = [
        (
            one.name,
            one.spec.type,
            one.spec.vni or "",
            one.status.mtu or one.spec.mtu or "",
            ", ".join(each.cidr for each in one.spec.subnets),
            ", ".join(each.gateway for each in one.spec.subnets if each.gateway),
            domain_of(one) if one.spec.type == "managed" else "",
        )
        for one in found
    ]
    columns = ("Name", "Type", "VNI", "MTU", "Subnets", "Gateways", "Domain")
    output.show([one.spec for one in found], lambda: [make_table(columns, rows, numbers=("VNI", "MTU"))])


@command(acl, "add")
async def add_acl(
    access: WriteAccess,
    network: NetworkName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call the rule.")],
    rule: Annotated[str, typer.Argument(metavar="RULE", help="Such as 'tcp dport 22 accept'.")],
    direction: Annotated[RuleDirection, typer.Option("--direction", help="in: sent to the network; out: leaves it.")],
    at: Annotated[int | None, typer.Option("--at", metavar="N", help="Its place, from 0 on; else the last.")] = None,
) -> None:
    """Add a firewall rule; later rules of its direction move down."""
    new = FirewallRule(name=name, direction=direction.value, rule=rule)
    changed = await _change(access, network, lambda spec: add_rule(spec, new, at))
    order = [one.name for one in ordered_rules(changed.spec, direction.value)]
    write(f"network {network}: rule {name} is number {order.index(name)} of {len(order)} for {direction.value}\n")


@command(acl, "remove")
async def remove_acl(
    access: WriteAccess,
    network: NetworkName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the rule.")],
) -> None:
    """Remove a firewall rule."""
    await _change(access, network, lambda spec: remove_rule(spec, name))
    write(f"network {network}: rule {name} removed\n")


@command(acl, "list")
async def list_acl(access: Access, output: Output, network: NetworkName) -> None:
    """Firewall rules, in the order in which they are tried."""
    async with access.open() as store:
        found = await _find(store, network)
    rules = [one for direction in ("in", "out") for one in ordered_rules(found.spec, direction)]
    rows = [(one.direction, one.order, one.name, one.rule) for one in rules]
    output.show(rules, lambda: [make_table(("Direction", "Order", "Name", "Rule"), rows, numbers=("Order",))])


@command(dhcp, "add")
async def add_dhcp(
    access: WriteAccess,
    network: NetworkName,
    mac: Mac,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="That it is given.")],
    hostname: Annotated[str, typer.Option("--hostname", metavar="NAME", help="Its name in DNS.")] = "",
) -> None:
    """Reserve an address for an interface."""
    await _change(access, network, lambda spec: add_reservation(spec, mac, address, hostname))
    write(f"network {network}: {address} is kept for {mac}\n")


@command(dhcp, "remove")
async def remove_dhcp(access: WriteAccess, network: NetworkName, mac: Mac) -> None:
    """Remove the reservation of an address."""
    await _change(access, network, lambda spec: remove_reservation(spec, mac))
    write(f"network {network}: nothing is kept for {mac} any more\n")


@command(dhcp, "list")
async def list_dhcp(access: Access, output: Output, network: NetworkName) -> None:
    """Reservations of a network, and the leases that its guests have."""
    async with access.open() as store:
        found = await _find(store, network)
        leases = [one async for one in list_all(store, DhcpLease) if one.network == network]
    rows: list[tuple[Any, ...]] = [
        ("reserved", one.mac, one.address, one.hostname, "") for one in found.spec.reservations
    ]
    rows += [("lease", one.mac, one.address, one.hostname, one.expires_at or "") for one in leases]
    shown = {"reservations": found.spec.reservations, "leases": leases}
    output.show(shown, lambda: [make_table(("Kind", "MAC", "Address", "Hostname", "Expires"), rows)])


def _collect_changes(
    mtu: int | None,
    domain: str | None,
    name_servers: list[str] | None,
    ipv4: tuple[str | None, str | None, str | None],
    ipv6: tuple[str | None, str | None, bool | None],
) -> dict[str, Any]:
    servers = tuple(one for one in name_servers if one) if name_servers is not None else None
    given: dict[str, Any] = {"mtu": mtu, "domain": domain, "name_servers": servers}
    for number, parts in (("4", ipv4), ("6", ipv6)):
        given |= dict(zip((f"subnet{number}", f"gateway{number}", f"dhcp{number}"), parts, strict=True))
    return given


async def _change(
    access: WriteAccess, name: str, change: Callable[[VirtualNetworkSpec], VirtualNetworkSpec]
) -> VirtualNetwork:
    """Write what ``change`` makes of a network's spec, once it has been checked; the network after it."""
    from outlive.api import check_network_in_use

    async with access.open(write=True) as store:
        found = await _find(store, name)
        await check_network_in_use(msgspec.structs.replace(found, spec=change(found.spec)), store)
        cluster = await read(store, Cluster, CLUSTER)
        others = [one async for one in list_all(store, VirtualNetwork) if one.name != name]

        def apply_change(found: VirtualNetwork | None) -> VirtualNetwork:
            if found is None:
                raise _missing_network(name)
            new = completed_network(msgspec.structs.replace(found, spec=change(found.spec)))
            _check_all(new, others, cluster)
            return new

        result = await compare_and_swap(store, VirtualNetwork, name, apply_change, clock=access.clock, half="spec")
        return result if result is not None else await _find(store, name)


def _check_all(network: VirtualNetwork, others: list[VirtualNetwork], cluster: Cluster | None) -> None:
    """``BadInput`` where it cannot be; the server checks the same, and stores of files have no server."""
    check_network(network.spec)
    check_beside_hosts(network, cluster)
    for other in others:
        check_beside(network, other)


async def _find(store: Store, name: str) -> VirtualNetwork:
    found = await read(store, VirtualNetwork, name)
    if found is None:
        raise _missing_network(name)
    return found


def _missing_network(name: str) -> NotFound:
    return NotFound(f"there is no network {name!r}", remedy="outlive network list shows those that there are")


def _describe(network: VirtualNetwork) -> str:
    spec = network.spec
    subnets = "".join(f", {one.cidr}" + (f" by {one.gateway}" if one.gateway else "") for one in spec.subnets)
    return f"{spec.type}, VNI {spec.vni}{subnets}"
