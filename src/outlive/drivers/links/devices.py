"""Devices, routes and their changes on netlink. Everything here runs in netlink's thread."""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outlive.drivers.links.addresses import (
    GONE,
    enter_address,
    find_index,
    leave_address,
    parse_address_with_length,
    read_addresses,
    require_device,
    tolerate,
)
from outlive.drivers.links.sysctls import write_sysctl
from outlive.node.ports import FoundLinks, HostLink, HostRoute, LinkOp, LinkTraffic

if TYPE_CHECKING:
    from pyroute2 import IPRoute

NO_MAC: Final = "00:00:00:00:00:00"
_UP: Final = 0x1
_LOOPBACK: Final = 0x8
_MAIN_TABLE: Final = 254
_ETHTOOL: Final = 0x8946
"""``SIOCETHTOOL`` …"""
_GET_CHECKSUM: Final = 0x16
"""… with ``ETHTOOL_GTXCSUM`` …"""
_SET_CHECKSUM: Final = 0x17
"""… or ``ETHTOOL_STXCSUM``."""
_SPEED: Final = Path("/sys/class/net")


def read_links(route: IPRoute, sysctls: Mapping[str, str]) -> FoundLinks:
    """All that there is."""
    dumped = [one for one in route.link("dump") if not one["flags"] & _LOOPBACK]
    names = {int(one["index"]): str(one.get_attr("IFLA_IFNAME")) for one in dumped}
    addresses: dict[int, list[str]] = {}
    for index, address in read_addresses(route):
        addresses.setdefault(index, []).append(address)
    remotes = _read_remotes(route) if any(_kind_of(one) == "vxlan" for one in dumped) else {}
    links = []
    for one in dumped:
        index, kind = int(one["index"]), _kind_of(one)
        data = _data_of(one)
        vni = int(data.get("IFLA_VLAN_ID") or data.get("IFLA_VXLAN_ID") or 0) if kind in ("vlan", "vxlan") else 0
        lower = data.get("IFLA_VXLAN_LINK") if kind == "vxlan" else one.get_attr("IFLA_LINK")
        links.append(
            HostLink(
                name=names[index],
                kind=kind,
                mtu=int(one.get_attr("IFLA_MTU") or 0),
                up=bool(one["flags"] & _UP),
                mac=str(one.get_attr("IFLA_ADDRESS") or ""),
                alias=str(one.get_attr("IFLA_IFALIAS") or ""),
                bridge=names.get(int(one.get_attr("IFLA_MASTER") or 0), ""),
                lower=names.get(int(lower or 0), ""),
                vni=vni,
                port=int(data.get("IFLA_VXLAN_PORT") or 0) if kind == "vxlan" else 0,
                local=str(data.get("IFLA_VXLAN_LOCAL") or data.get("IFLA_VXLAN_LOCAL6") or "") if vni else "",
                remotes=tuple(sorted(remotes.get(index, ()))),
                addresses=tuple(addresses.get(index, ())),
                offload=kind == "bridge" and _has_offload(names[index]),
            )
        )
    return FoundLinks(links=tuple(links), routes=_read_routes(route, names), sysctls=sysctls)


def _kind_of(one: Any) -> str:
    info = one.get_attr("IFLA_LINKINFO")
    return str(info.get_attr("IFLA_INFO_KIND") or "") if info is not None else ""


def _data_of(one: Any) -> dict[str, Any]:
    info = one.get_attr("IFLA_LINKINFO")
    data = info.get_attr("IFLA_INFO_DATA") if info is not None else None
    return {str(name): value for name, value, *_ in data.get("attrs", ())} if isinstance(data, dict) else {}


def _read_remotes(route: IPRoute) -> dict[int, set[str]]:
    """Number of each VXLAN → where it floods to."""
    found: dict[int, set[str]] = {}
    for one in route.fdb("dump"):
        remote = one.get_attr("NDA_DST")
        if remote and one.get_attr("NDA_LLADDR") == NO_MAC:
            found.setdefault(int(one["ifindex"]), set()).add(str(remote))
    return found


def _read_routes(route: IPRoute, names: Mapping[int, str]) -> tuple[HostRoute, ...]:
    found = []
    for one in (*route.route("dump", family=socket.AF_INET), *route.route("dump", family=socket.AF_INET6)):
        gateway, device = one.get_attr("RTA_GATEWAY"), one.get_attr("RTA_OIF")
        if gateway and device in names and one.get_attr("RTA_TABLE") == _MAIN_TABLE:
            to = f"{one.get_attr('RTA_DST')}/{one['dst_len']}" if one["dst_len"] else ""
            found.append(HostRoute(gateway=str(gateway), device=names[device], to=to))
    return tuple(found)


def carry_out(route: IPRoute, op: LinkOp) -> None:
    """Make one change; that it is made already is fine."""
    match op.op:
        case "create":
            _create(route, op)
        case "sysctl":
            write_sysctl(op.key, op.value)
        case "delete" | "detach" | "removeAddress" | "removeRemote" | "removeRoute":
            index = find_index(route, op.device)
            if index is not None:
                _remove(route, index, op)
        case _:
            _change(route, require_device(route, op.device)[0], op)


def _create(route: IPRoute, op: LinkOp) -> None:
    given: dict[str, Any] = {"ifname": op.device, "kind": op.kind}
    if op.lower:
        given["link" if op.kind == "vlan" else "vxlan_link"] = require_device(route, op.lower)[0]
    if op.kind == "vlan":
        given["vlan_id"] = op.vni
    elif op.kind == "vxlan":
        given |= {"vxlan_id": op.vni, "vxlan_port": op.port, "vxlan_learning": op.value != "nolearning"}
        given |= {"vxlan_local" if ip_address(op.local).version == 4 else "vxlan_local6": op.local} if op.local else {}
    elif op.kind == "bridge":
        given |= {"br_stp_state": 0, "br_forward_delay": 0}
    tolerate(lambda: route.link("add", **given), errno.EEXIST)
    if op.alias:
        route.link("set", index=require_device(route, op.device)[0], IFLA_IFALIAS=op.alias)


def _change(route: IPRoute, index: int, op: LinkOp) -> None:
    match op.op:
        case "up" | "down":
            route.link("set", index=index, state=op.op)
        case "mtu":
            route.link("set", index=index, mtu=int(op.value))
        case "attach":
            route.link("set", index=index, master=require_device(route, op.value)[0])
        case "addAddress":
            enter_address(route, op.device, index, parse_address_with_length(op.value))
        case "addRoute":
            route.route("replace", **_route_arguments(op), oif=index)
        case "addRemote":
            add = {"ifindex": index, "lladdr": NO_MAC, "dst": op.value}
            tolerate(lambda: route.fdb("append", **add), errno.EEXIST)
        case "noChecksum":
            _has_offload(op.device, switch_off=True)
        case "ipv6Off":
            if not any(at == index and ":" in found for at, found in read_addresses(route)):
                write_sysctl(f"net.ipv6.conf.{op.device}.disable_ipv6", "1")


def _remove(route: IPRoute, index: int, op: LinkOp) -> None:
    match op.op:
        case "delete":
            tolerate(lambda: route.link("del", index=index), *GONE)
        case "detach":
            tolerate(lambda: route.link("set", index=index, master=0), *GONE)
        case "removeAddress":
            leave_address(route, op.device, index, parse_address_with_length(op.value))
        case "removeRemote":
            tolerate(lambda: route.fdb("del", ifindex=index, lladdr=NO_MAC, dst=op.value), *GONE)
        case "removeRoute":
            tolerate(lambda: route.route("del", **_route_arguments(op), oif=index), *GONE)


def _route_arguments(op: LinkOp) -> dict[str, Any]:
    family = socket.AF_INET if ip_address(op.value).version == 4 else socket.AF_INET6
    return {"dst": op.key or "default", "family": family, "gateway": op.value}


def _has_offload(device: str, *, switch_off: bool = False) -> bool:
    """Whether checksums of what a device sends are left to others; with ``switch_off`` they are not from now on."""
    asked = array.array("B", struct.pack("II", _SET_CHECKSUM if switch_off else _GET_CHECKSUM, 0))
    request = struct.pack("16sP", device.encode(), asked.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        try:
            fcntl.ioctl(opened, _ETHTOOL, request)
        except OSError:
            if switch_off:
                raise
            return False
    return bool(struct.unpack("II", asked.tobytes())[1])


def read_traffic(route: IPRoute) -> tuple[LinkTraffic, ...]:
    """Of each card: what has no kind, or is one end of a cable to a namespace."""
    found = []
    for one in route.link("dump"):
        if one["flags"] & _LOOPBACK or _kind_of(one) not in ("", "veth"):
            continue
        counted, name = one.get_attr("IFLA_STATS64") or {}, str(one.get_attr("IFLA_IFNAME"))
        found.append(
            LinkTraffic(
                name=name,
                rx_bytes=int(counted.get("rx_bytes", 0)),
                rx_packets=int(counted.get("rx_packets", 0)),
                tx_bytes=int(counted.get("tx_bytes", 0)),
                tx_packets=int(counted.get("tx_packets", 0)),
                speed_mbps=_read_speed(name),
                state=str(one.get_attr("IFLA_OPERSTATE") or "").lower(),
            )
        )
    return tuple(found)


def _read_speed(name: str) -> int:
    try:
        return max(0, int((_SPEED / name / "speed").read_text()))
    except (OSError, ValueError):
        return 0
