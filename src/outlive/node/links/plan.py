"""The changes by which a host's links become what they have to be, and those that undo them. Pure.

docs/design/node-decisions.md#linksplan
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from outlive.base import OutliveError, get_logger
from outlive.node.links.wanted import VXLAN_PORT, NetworkDevices, PlacedAddress, PlacedPort, SystemBridge, WantedLinks
from outlive.node.ports.links import FoundLinks, HostLink, HostRoute, LinkNotes, LinkOp
from outlive.resources import SystemNetwork, SystemNetworkName, decode_as, encode, encode_canonical
from outlive.runtime import Decision

# What the daemon remembers of its links: how to undo a change that is under way, and what it has put where.

_log = get_logger("links")


class LinkMemory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file."""

    undo: tuple[LinkOp, ...] = ()
    """Leads back from a change that nobody has confirmed; none: there is no such change."""
    trying: str = ""
    """Digest of what that change was to make."""
    confirmed: str = ""
    """Digest of the links with which the store answered last."""
    refused: str = ""
    """Digest of links that were undone: they are not tried again until something about them changes, or somebody starts
    the daemon anew."""
    placed: tuple[PlacedAddress, ...] = ()
    """Own addresses that the daemon has put on bridges."""
    ports: tuple[PlacedPort, ...] = ()
    """Devices that it has put into bridges."""
    system_networks: dict[SystemNetworkName, SystemNetwork] = {}
    """The cluster's, as they were read last: a host that boots needs its addresses before it reaches the store."""


def digest_of(wanted: WantedLinks) -> str:
    """By which links that the host is reached by are known, whatever networks of VMs there are."""
    system = msgspec.structs.replace(
        wanted, networks=(), remotes=(), cluster_mtu=0, former=(), former_ports=(), problems={}
    )
    return hashlib.sha256(encode_canonical(system)).hexdigest()


def placed_by(wanted: WantedLinks, found: FoundLinks) -> tuple[tuple[PlacedAddress, ...], tuple[PlacedPort, ...]]:
    """Return what the daemon has put on bridges: what is wanted, and of the former what is still there.

    A former one that cannot be replaced yet stays known, so that it goes once it can.
    """
    addresses = [
        PlacedAddress(bridge=one.bridge, address=address) for one in wanted.bridges for address in one.addresses
    ]
    for address in wanted.former:
        link = found.find_link(address.bridge)
        if link is not None and address.address in link.addresses:
            addresses.append(address)
    ports = [PlacedPort(bridge=one.bridge, device=one.device) for one in wanted.bridges]
    for port in wanted.former_ports:
        link = found.find_link(port.device)
        if link is not None and link.bridge == port.bridge:
            ports.append(port)
    return tuple(dict.fromkeys(addresses)), tuple(dict.fromkeys(ports))


class LinkMemoryKeeper:
    """Reads and writes it."""

    def __init__(self, notes: LinkNotes) -> None:
        self._notes = notes
        self.memory = LinkMemory()

    async def load(self) -> None:
        """Read it; what cannot be read is nothing, and is logged."""
        try:
            raw = await self._notes.load()
            self.memory = decode_as(LinkMemory, raw) if raw is not None else LinkMemory()
        except OutliveError as error:
            _log.warning("links.notes_not_read", why=str(error))

    async def change(self, **changes: object) -> None:
        """Write it down with these changes, if they are any; ``Unavailable``."""
        new = msgspec.structs.replace(self.memory, **changes)
        if new != self.memory:
            await self._notes.save(encode(new))
            self.memory = new


OWN: Final = "outlive:"
"""Begins the alias of each device that is made for a network of VMs."""
SYSTEM: Final = "system"
"""The step of what the host itself is reached by."""
_replace = msgspec.structs.replace


class LinkStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Changes that belong together."""

    subject: str
    """``system``, or the network of VMs."""
    ops: tuple[LinkOp, ...]


class LinkPlanInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What has to be, and what is."""

    wanted: WantedLinks
    found: FoundLinks


class LinkPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The changes, in order; nothing where all is as it has to be."""

    actions: tuple[LinkStep, ...] = ()
    problems: dict[str, str] = {}
    """System network, device or network of VMs → why it is left as it is."""


def plan_links(given: LinkPlanInput) -> LinkPlan:
    """One step for what the host is reached by, one for each network of VMs, and one for each that is gone.

    What is in the way and was made by somebody else is named among the problems and left alone; all else is served.
    """
    wanted, found = given.wanted, given.found
    problems = dict(wanted.problems)
    system: list[LinkOp] = [*_leave_ports(wanted, found)]
    for bridge in wanted.bridges:
        names = [name for name, own in wanted.bridge_of.items() if own == bridge.bridge]
        why = _bridge_problem(bridge, found)
        if why:
            problems |= dict.fromkeys(names, why)
        else:
            system += _system_ops(bridge, found)
    system += _leave_former(wanted, found)
    refused = {bridge for name, bridge in wanted.bridge_of.items() if name in problems}
    if wanted.route is not None and wanted.route not in found.routes and wanted.route.device not in refused:
        system.append(_add_route(wanted.route, wanted.route.device))
    created = [f".{op.device}." for op in system if op.op == "create"]
    system += [
        LinkOp(op="sysctl", key=key, value=value)
        for key, value in sorted(wanted.sysctls.items())
        if found.sysctls.get(key, "") != value and (key in found.sysctls or any(one in key for one in created))
    ]
    steps = [LinkStep(subject=SYSTEM, ops=tuple(system))]
    for network in wanted.networks:
        why = _network_problem(network, wanted, found)
        if why:
            problems[network.network] = why
        else:
            steps.append(LinkStep(subject=network.network, ops=tuple(_network_ops(network, wanted, found))))
    steps += _plan_removals(wanted, found, problems)
    return LinkPlan(actions=tuple(step for step in steps if step.ops), problems=problems)


def undo_ops(ops: Iterable[LinkOp], former: FoundLinks) -> tuple[LinkOp, ...]:
    """What leads back from these changes to what was found before them, however many of them were made."""
    undone: list[LinkOp] = []
    for op in reversed(tuple(ops)):
        link = former.find_link(op.device)
        match op.op:
            case "create":
                undone.append(LinkOp(op="delete", device=op.device))
            case "attach" if link is not None:
                back = LinkOp(op="attach", device=op.device, value=link.bridge)
                undone.append(back if link.bridge else LinkOp(op="detach", device=op.device))
            case "detach" if link is not None and link.bridge:
                undone.append(LinkOp(op="attach", device=op.device, value=link.bridge))
            case "mtu" if link is not None:
                undone.append(LinkOp(op="mtu", device=op.device, value=str(link.mtu)))
            case "up" if link is not None and not link.up:
                undone.append(LinkOp(op="down", device=op.device))
            case "addAddress" if link is None or op.value not in link.addresses:
                undone.append(LinkOp(op="removeAddress", device=op.device, value=op.value))
            case "removeAddress" if link is not None and op.value in link.addresses:
                undone.append(LinkOp(op="addAddress", device=op.device, value=op.value))
            case "addRoute" if HostRoute(gateway=op.value, device=op.device, to=op.key) not in former.routes:
                undone.append(LinkOp(op="removeRoute", device=op.device, value=op.value, key=op.key))
            case "sysctl" if op.key in former.sysctls:
                undone.append(LinkOp(op="sysctl", key=op.key, value=former.sysctls[op.key]))
    return (*undone, *(_add_route(one, one.device) for one in former.routes))


def _add_route(route: HostRoute, device: str) -> LinkOp:
    return LinkOp(op="addRoute", device=device, value=route.gateway, key=route.to)


def _bridge_problem(bridge: SystemBridge, found: FoundLinks) -> str:
    device, there = found.find_link(bridge.device), found.find_link(bridge.bridge)
    if device is None:
        return f"there is no device {bridge.device}"
    if device.kind == "bridge":
        return f"device {bridge.device} is a bridge itself, which no bridge takes"
    if device.bridge not in ("", bridge.bridge):
        return f"device {bridge.device} is a port of bridge {device.bridge}"
    if there is not None and there.kind != "bridge":
        return f"device {bridge.bridge} is there already, and is no bridge"
    return ""


def _system_ops(bridge: SystemBridge, found: FoundLinks) -> Iterator[LinkOp]:
    """Set the device's MTU, put it into the bridge, and have its addresses and routes on the bridge."""
    device, there = found.find_link(bridge.device), found.find_link(bridge.bridge)
    assert device is not None
    mtu = str(bridge.mtu)
    if bridge.mtu and device.mtu != bridge.mtu:
        yield LinkOp(op="mtu", device=bridge.device, value=mtu)
    if not device.up:
        yield LinkOp(op="up", device=bridge.device)
    if there is None:
        yield LinkOp(op="create", device=bridge.bridge, kind="bridge")
    if device.bridge != bridge.bridge:
        yield LinkOp(op="attach", device=bridge.device, value=bridge.bridge)
    if bridge.mtu and (there is None or there.mtu != bridge.mtu):
        yield LinkOp(op="mtu", device=bridge.bridge, value=mtu)
    if there is None or not there.up:
        yield LinkOp(op="up", device=bridge.bridge)
    yield from (LinkOp(op="removeAddress", device=bridge.device, value=one) for one in device.addresses)
    present = there.addresses if there is not None else ()
    for one in dict.fromkeys((*bridge.addresses, *device.addresses)):
        if one not in present:
            yield LinkOp(op="addAddress", device=bridge.bridge, value=one)
    for route in found.routes:
        if route.device == bridge.device:
            yield _add_route(route, bridge.bridge)


def _leave_former(wanted: WantedLinks, found: FoundLinks) -> Iterator[LinkOp]:
    """Own addresses of the past that are still there, once the one that replaces them can be."""
    now = {(one.bridge, address) for one in wanted.bridges for address in one.addresses}
    kept = {bridge for bridge, _ in now}
    for one in wanted.former:
        link = found.find_link(one.bridge)
        if one.bridge in kept and (one.bridge, one.address) not in now and link and one.address in link.addresses:
            yield LinkOp(op="removeAddress", device=one.bridge, value=one.address)


def _leave_ports(wanted: WantedLinks, found: FoundLinks) -> Iterator[LinkOp]:
    """Devices of the past that are still ports, once what replaces them can be one.

    A bridge with two ways to the other hosts would pass everything round and round, so the old one goes first.
    """
    replaced = {one.bridge for one in wanted.bridges if not _bridge_problem(one, found)}
    devices = {one.device for one in wanted.bridges}
    for port in wanted.former_ports:
        link = found.find_link(port.device)
        if port.bridge in replaced and port.device not in devices and link is not None and link.bridge == port.bridge:
            yield LinkOp(op="detach", device=port.device)


def _network_problem(network: NetworkDevices, wanted: WantedLinks, found: FoundLinks) -> str:
    """Why a network is not made: a device of somebody else's, or nothing that it could lie on."""
    for name in (network.carrier, network.bridge):
        link = found.find_link(name)
        if link is not None and link.alias != OWN + network.network:
            other = link.alias.removeprefix(OWN) if link.alias.startswith(OWN) else ""
            if other and any(one.network == other for one in wanted.networks):
                return f"device {name} belongs to network {other}"
            if not other:
                return f"device {name} is there already, and somebody else made it"
    lower, makes = found.find_link(network.lower), {one.bridge for one in wanted.bridges}
    if lower is None and network.lower not in makes:
        return f"there is no device {network.lower}"
    return ""


def _network_ops(network: NetworkDevices, wanted: WantedLinks, found: FoundLinks) -> Iterator[LinkOp]:
    alias, mtu = OWN + network.network, str(network.mtu)
    carrier, bridge = found.find_link(network.carrier), found.find_link(network.bridge)
    lower = found.find_link(network.lower)
    if network.type == "bridged" and lower is not None:
        if lower.mtu < wanted.bridge_mtu:
            yield LinkOp(op="mtu", device=lower.name, value=str(wanted.bridge_mtu))
        if not lower.up:
            yield LinkOp(op="up", device=lower.name)
    if carrier is not None and not _is_right(carrier, network):
        yield LinkOp(op="delete", device=network.carrier)
        carrier = None
    if bridge is not None and (bridge.kind != "bridge" or bridge.alias != alias):
        yield LinkOp(op="delete", device=network.bridge)
        bridge = None
    if bridge is None:
        yield LinkOp(op="create", device=network.bridge, kind="bridge", alias=alias)
    if carrier is None:
        yield _create_carrier(network, wanted, alias)
    yield from _network_settings(network, bridge, found)
    if carrier is None or carrier.mtu != network.mtu:
        yield LinkOp(op="mtu", device=network.carrier, value=mtu)
    if carrier is None or carrier.bridge != network.bridge:
        yield LinkOp(op="attach", device=network.carrier, value=network.bridge)
    if bridge is None or bridge.mtu != network.mtu:
        yield LinkOp(op="mtu", device=network.bridge, value=mtu)
    if bridge is None or bridge.offload:
        yield LinkOp(op="noChecksum", device=network.bridge)
    if network.type == "managed" and not wanted.evpn:  # else a routing daemon's entries, which look like ours
        now, then = set(carrier.remotes) if carrier is not None else set(), set(wanted.remotes)
        yield from (LinkOp(op="removeRemote", device=network.carrier, value=one) for one in sorted(now - then))
        yield from (LinkOp(op="addRemote", device=network.carrier, value=one) for one in sorted(then - now))
    for link, name in ((carrier, network.carrier), (bridge, network.bridge)):
        if link is None or not link.up:
            yield LinkOp(op="up", device=name)


def _network_settings(network: NetworkDevices, bridge: HostLink | None, found: FoundLinks) -> Iterator[LinkOp]:
    """The host has no IPv6 on bridges of guests, but for the gateways that the primary holds; those are not probed for
    duplicates. Carriers have none at all."""
    settings = ipv6_settings(network)
    has_gateway = bridge is not None and any(":" in one for one in bridge.addresses)
    for key, value in settings.items():
        if found.sysctls.get(key) == value:
            continue
        if key.endswith("disable_ipv6") and f".{network.bridge}." in key:
            if not has_gateway:
                yield LinkOp(op="ipv6Off", device=network.bridge)
        else:
            yield LinkOp(op="sysctl", key=key, value=value)


def ipv6_settings(network: NetworkDevices) -> dict[str, str]:
    """Settings of the kernel for the devices of a network of VMs."""
    found = {f"net.ipv6.conf.{one}.disable_ipv6": "1" for one in (network.carrier, network.bridge)}
    if network.type == "managed":
        found[f"net.ipv6.conf.{network.bridge}.accept_dad"] = "0"
    return found


def _is_right(link: HostLink, network: NetworkDevices) -> bool:
    if network.type == "bridged":
        return (link.kind, link.vni, link.lower) == ("vlan", network.vni, network.lower)
    tunnel = (link.kind, link.vni, link.port, link.local, link.lower)
    return tunnel == ("vxlan", network.vni, VXLAN_PORT, network.local, network.lower)


def _create_carrier(network: NetworkDevices, wanted: WantedLinks, alias: str) -> LinkOp:
    kind = "vlan" if network.type == "bridged" else "vxlan"
    op = LinkOp(op="create", device=network.carrier, kind=kind, lower=network.lower, vni=network.vni, alias=alias)
    if kind == "vlan":
        return op
    learning = "nolearning" if wanted.evpn else ""
    return _replace(op, port=VXLAN_PORT, local=network.local, value=learning)


def _plan_removals(wanted: WantedLinks, found: FoundLinks, problems: dict[str, str]) -> Iterator[LinkStep]:
    """The devices of networks that are gone; those that VMs are still attached to stay."""
    kept = {name for one in wanted.networks for name in (one.carrier, one.bridge)}
    gone: dict[str, list[HostLink]] = {}
    for link in found.links:
        if link.alias.startswith(OWN) and link.name not in kept:
            name = link.alias.removeprefix(OWN)
            if name not in wanted.problems:
                gone.setdefault(name, []).append(link)
    for name, links in sorted(gone.items()):
        own = {link.name for link in links}
        guests = [one.name for one in found.links if one.bridge in own and one.name not in own]
        if guests:
            problems[name] = f"it is gone, and {', '.join(guests[:3])} are still attached to {', '.join(sorted(own))}"
            continue
        links.sort(key=lambda link: link.kind != "bridge")
        down = [LinkOp(op="down", device=link.name) for link in links if link.up]
        apart = [LinkOp(op="detach", device=link.name) for link in links if link.bridge]
        yield LinkStep(subject=name, ops=(*down, *apart, *(LinkOp(op="delete", device=one.name) for one in links)))


class ConfirmInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A change of what the host is reached by."""

    answered: bool
    """Whether the store has answered since the change."""
    since_s: float
    """Seconds since it was made."""
    limit_s: float
    """Seconds that the store may take."""
    restarted: bool = False
    """Whether the daemon that made it has ended meanwhile."""


class ConfirmAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What becomes of it."""

    verdict: Literal["keep", "wait", "undo"]


def confirm_change(given: ConfirmInput) -> ConfirmAnswer:
    """Keep it once the store has answered; undo it when the time is over, or nobody is there who had waited."""
    if given.answered:
        return ConfirmAnswer(verdict="keep")
    return ConfirmAnswer(verdict="undo" if given.restarted or given.since_s >= given.limit_s else "wait")


LINKS_PLAN: Final = Decision(
    "links.plan", plan_links, LinkPlanInput, LinkPlan, "The changes of a host's own network", nulls_are_absent=True
)
LINKS_CONFIRM: Final = Decision(
    "links.confirm",
    confirm_change,
    ConfirmInput,
    ConfirmAnswer,
    "Whether a change of a host's own network is kept",
    lambda answer: answer.verdict != "undo",
    nulls_are_absent=True,
)
