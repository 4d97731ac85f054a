"""Networks of another node daemon: the hosts' own by its configuration, those of VMs by a dump of its tree.

A dump is an object of paths and their texts, as that daemon's backup writes it. What has no place here is reported,
network by network; leases are not taken over: guests ask anew, and are given their reservations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from outlive.base import BadInput
from outlive.network import check_beside, check_network, completed_network
from outlive.resources import (
    DhcpRange,
    DhcpReservation,
    FirewallRule,
    ObjectMeta,
    Subnet,
    SystemNetwork,
    SystemNetworkName,
    VirtualNetwork,
    VirtualNetworkSpec,
)

NETWORKS_LIMIT: Final = 100_000
SYSTEM_NETWORKS: Final[tuple[SystemNetworkName, ...]] = ("upstream", "cluster", "storage")
UNSET: Final = ("", "None")
"""Texts by which that daemon says that nothing is set."""
_PATH: Final = re.compile(r"(?:/[^/]+)?/networks/([0-9]+)(?:/(.*))?", re.ASCII)
_READ: Final = re.compile(
    r"(nettype|mtu|name_servers|domain|ip[46]_(gateway|network)|dhcp4_(flag|start|end)|dhcp6_flag)?"
    r"|firewall_rules(/(in|out)(/[^/]+(/(rule|order))?)?)?"
    r"|dhcp4_reservations(/[^/]+(/(ipaddr|hostname))?)?"
)
_NO_NAME: Final = re.compile(r"[^a-z0-9-]+")
_replace = msgspec.structs.replace


class ReadNetworks(msgspec.Struct):
    """What was read of a dump."""

    networks: list[VirtualNetwork] = []
    dropped: list[str] = []
    """What is not taken over, and why."""


def is_dump(document: Mapping[str, Any]) -> bool:
    """True for an object of paths, and not for a configuration."""
    return bool(document) and all(str(key).startswith("/") for key in document)


def read_system_networks(
    get: Callable[..., Any],
) -> tuple[dict[str, Any], dict[SystemNetworkName, SystemNetwork]]:
    """Section ``links`` of a host, and what the cluster says of system networks. ``get``: a value by its key."""
    links: dict[str, Any] = {}
    networks: dict[SystemNetworkName, SystemNetwork] = {}
    for name in SYSTEM_NETWORKS:
        key = f"cluster.networks.{name}"
        device, address = get(f"{key}.device", "", kind=str), get(f"{key}.ipv4.network_address", "", kind=str)
        if not device or not address:
            continue
        chosen = get(f"{key}.node_ip_selection", None, kind=str) or get(
            f"{key}.ipv4.node_ip_selection", "by-id", kind=str
        )
        mtu = get(f"{key}.mtu", 0, kind=int)
        links[name] = {"device": device, "address": chosen, **({"mtu": mtu} if mtu else {})}
        networks[name] = SystemNetwork(
            cidr=f"{address}/{get(f'{key}.ipv4.netmask', '', kind=(str, int))}",
            floating=get(f"{key}.ipv4.floating_address", "", kind=str).partition("/")[0],
            gateway=get(f"{key}.ipv4.gateway", "", kind=str) or "",
        )
    section: dict[str, Any] = {"systemNetworks": links} if links else {}
    if bridge := get("guest_networking.bridge_device", "", kind=str):
        mtu = get("guest_networking.bridge_mtu", 0, kind=int)
        section |= {"bridgeDevice": bridge, **({"bridgeMtu": mtu} if mtu else {})}
    return section, networks


def read_network_dump(document: Mapping[str, Any], place: str) -> ReadNetworks:
    """Every network of the dump that can be; ``BadInput`` where it has none."""
    found: dict[int, dict[str, str]] = {}
    for path, value in document.items():
        match = _PATH.fullmatch(str(path))
        if match is not None:
            found.setdefault(int(match.group(1)), {})[match.group(2) or ""] = str(value if value is not None else "")
    if not found or len(found) > NETWORKS_LIMIT:
        raise BadInput(f"has {len(found)} networks", place=place, remedy="give a dump with paths such as /networks/100")
    result, names = ReadNetworks([], []), set[str]()
    others = len(document) - sum(len(one) for one in found.values())
    if others:
        result.dropped.append(f"{others} paths of other parts: only networks are read of a dump")
    for vni, keys in sorted(found.items()):
        title = keys.get("", "")
        name = _NO_NAME.sub("-", title.lower()).strip("-")[:63].rstrip("-") or f"net{vni}"
        name = f"{name[:50]}-{vni}" if name in names else name
        leases = {key.split("/")[1] for key in keys if key.startswith("dhcp4_leases/")}
        if leases:
            result.dropped.append(f"network {name}: {len(leases)} leases: guests ask anew")
        for key in sorted(keys):
            if not _READ.fullmatch(key) and not key.startswith("dhcp4_leases"):
                result.dropped.append(f"network {name}: {key} is not known")
        try:
            spec = _build_spec(vni, keys)
            network = completed_network(VirtualNetwork(metadata=ObjectMeta(name=name), spec=spec))
            check_network(network.spec)
            for other in result.networks:
                check_beside(network, other)
        except (BadInput, ValueError) as error:
            why = f"{error.message} ({error.remedy})" if isinstance(error, BadInput) else str(error)
            result.dropped.append(f"network {name}, VNI {vni}: {why}")
            continue
        names.add(name)
        if title and title != name:
            result.dropped.append(f"network {name}: its description {title[:80]!r}, as names are written here")
        result.networks.append(network)
    return result


def _build_spec(vni: int, keys: Mapping[str, str]) -> VirtualNetworkSpec:
    def read_text(key: str) -> str:
        value = keys.get(key, "").strip()
        return "" if value in UNSET else value

    kind, mtu = read_text("nettype"), read_text("mtu")
    if kind not in ("bridged", "managed"):
        raise ValueError(f"its type {kind!r} is neither bridged nor managed")
    if mtu and not (mtu.isascii() and mtu.isdigit()):
        raise ValueError(f"its MTU {mtu[:40]!r} is no number")
    if kind == "bridged":
        return VirtualNetworkSpec(type="bridged", vni=vni, mtu=int(mtu or 0))
    subnets = []
    for family in ("4", "6"):
        if cidr := read_text(f"ip{family}_network"):
            given = (
                DhcpRange(start=read_text("dhcp4_start"), end=read_text("dhcp4_end")) if family == "4" else DhcpRange()
            )
            is_on = read_text(f"dhcp{family}_flag").lower() == "true"
            gateway = read_text(f"ip{family}_gateway")
            subnets.append(Subnet(cidr=cidr, gateway=gateway, dhcp=given if is_on else None))
    macs = sorted({key.split("/")[1] for key in keys if key.startswith("dhcp4_reservations/")})
    reservations = [
        DhcpReservation(
            mac=mac,
            address=read_text(f"dhcp4_reservations/{mac}/ipaddr"),
            hostname=read_text(f"dhcp4_reservations/{mac}/hostname"),
        )
        for mac in macs
    ]
    rules = [
        FirewallRule(
            name=name,
            direction="in" if direction == "in" else "out",
            order=int(read_text(f"firewall_rules/{direction}/{name}/order") or 0),
            rule=read_text(f"firewall_rules/{direction}/{name}/rule"),
        )
        for direction, name in sorted(
            {(key.split("/")[1], key.split("/")[2]) for key in keys if re.match(r"firewall_rules/(in|out)/", key)}
        )
    ]
    return VirtualNetworkSpec(
        type="managed",
        vni=vni,
        mtu=int(mtu or 0),
        domain=read_text("domain"),
        name_servers=tuple(one for one in re.split(r"[,\s]+", read_text("name_servers")) if one),
        subnets=tuple(subnets),
        reservations=tuple(reservations),
        rules=tuple(rules),
    )
