"""Addresses of devices on netlink, and the frames that announce them. Everything here runs in netlink's thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import TYPE_CHECKING, Any, Final

from outlive.base import BadInput
from outlive.drivers.links.sysctls import read_sysctls, write_sysctl
from outlive.network import BROADCAST, ArpFrame, NeighbourAdvertisement, encode_frame

if TYPE_CHECKING:
    from pyroute2 import IPRoute

NO_PROBE: Final = 0x02
"""``IFA_F_NODAD``: an address is used at once, without looking for another owner."""
GONE: Final = (errno.ENODEV, errno.EADDRNOTAVAIL, errno.ENXIO, errno.ESRCH, errno.ENOENT)
Address = IPv4Interface | IPv6Interface


def find_index(route: IPRoute, device: str) -> int | None:
    """The kernel's number of a device."""
    found = route.link_lookup(ifname=device)
    return int(found[0]) if found else None


def read_addresses(route: IPRoute) -> list[tuple[int, str]]:
    """Number of the device and address with its length, of all but link-local ones."""
    found = []
    for one in route.addr("dump"):
        text = one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS")
        address = ip_interface(f"{text}/{one['prefixlen']}")
        if not address.ip.is_link_local or address.version == 4:
            found.append((int(one["index"]), str(address)))
    return found


def enter_address(route: IPRoute, device: str, index: int, address: Address) -> None:
    """Add it; fine if it is there. The device has IPv6 from then on."""
    given: dict[str, Any] = {"index": index, "address": str(address.ip), "prefixlen": address.network.prefixlen}
    if address.version == 6:
        given["flags"] = NO_PROBE
        setting = f"net.ipv6.conf.{device}.disable_ipv6"
        if read_sysctls((setting,)).get(setting) == "1":
            write_sysctl(setting, "0")
    elif address.network.prefixlen < 31:
        given["broadcast"] = str(address.network.broadcast_address)
    tolerate(lambda: route.addr("add", **given), errno.EEXIST)


def leave_address(route: IPRoute, device: str, index: int, address: Address) -> None:
    """Remove it; fine if it is gone. Others of its subnet stay, though it was there before them."""
    if address.version == 4:
        write_sysctl(f"net.ipv4.conf.{device}.promote_secondaries", "1")
    given = {"index": index, "address": str(address.ip), "prefixlen": address.network.prefixlen}
    tolerate(lambda: route.addr("del", **given), *GONE)


def frame_of(address: Address, mac: str) -> bytes:
    """The frame that announces an address at a MAC: an ARP reply to everybody that nobody asked for, or a neighbour
    advertisement that overrides what is cached."""
    if address.version == 6:
        return encode_frame(NeighbourAdvertisement(address=str(address.ip), mac=mac))
    text = str(address.ip)
    return encode_frame(ArpFrame(op="reply", sender_mac=mac, sender_ip=text, target_mac=BROADCAST, target_ip=text))


def require_device(route: IPRoute, device: str) -> tuple[int, str]:
    """Number and MAC of a device; ``OSError`` where there is none."""
    index = find_index(route, device)
    if index is None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    return index, str(route.link("get", index=index)[0].get_attr("IFLA_ADDRESS"))


def tolerate(change: Callable[[], object], *codes: int) -> None:
    """Make a change; an answer with one of these codes is fine."""
    from pyroute2 import NetlinkError

    try:
        change()
    except NetlinkError as error:
        if error.code not in codes:
            raise


def parse_address_with_length(address: str) -> Address:
    """An address and its length; ``BadInput``."""
    try:
        return ip_interface(address)
    except ValueError:
        raise BadInput(
            f"{address[:80]!r} is no address", remedy="write one with its length, such as 10.0.0.9/24"
        ) from None
