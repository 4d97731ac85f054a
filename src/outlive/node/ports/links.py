"""Devices, addresses and routes of this host, as its own kernel has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, Protocol

import msgspec

ANNOUNCEMENTS: Final = 2
"""Frames that announce an address when it was added …"""
ANNOUNCEMENT_PAUSE_S: Final = 0.02
"""… and the pause between them."""
LinkVerb = Literal[
    "create",
    "delete",
    "up",
    "down",
    "mtu",
    "attach",
    "detach",
    "addAddress",
    "removeAddress",
    "addRoute",
    "removeRoute",
    "addRemote",
    "removeRemote",
    "sysctl",
    "noChecksum",
    "ipv6Off",
]


class HostLink(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One device of the host."""

    name: str
    kind: str = ""
    """As the kernel calls it: ``bridge``, ``vlan``, ``vxlan``, ``veth`` …; empty: a card."""
    mtu: int = 1500
    up: bool = False
    mac: str = ""
    alias: str = ""
    """Who made it, where that was written; what Outlive makes for networks of VMs has ``outlive:<network>``."""
    bridge: str = ""
    """The bridge that it is a port of."""
    lower: str = ""
    """The device that a VLAN, or a VXLAN, lies on."""
    vni: int = 0
    """The VLAN, or the network identifier of a VXLAN."""
    port: int = 0
    """UDP port of a VXLAN."""
    local: str = ""
    """Address that a VXLAN sends from."""
    remotes: tuple[str, ...] = ()
    """Addresses that a VXLAN floods to."""
    addresses: tuple[str, ...] = ()
    """Such as ``10.0.0.1/24``; without link-local ones."""
    offload: bool = False
    """Of a bridge: whether checksums of what it sends are left to others."""


class HostRoute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A way to what is not on a link of the host."""

    gateway: str
    device: str
    to: str = ""
    """Such as ``10.0.0.0/8``; empty: to everywhere else."""


class FoundLinks(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a host has now."""

    links: tuple[HostLink, ...] = ()
    routes: tuple[HostRoute, ...] = ()
    """All of the main table that have a gateway."""
    sysctls: Mapping[str, str] = {}
    """Of those that were asked for: name → value; one that the kernel does not have is left out."""

    def named(self, name: str) -> HostLink | None:
        """The device of that name."""
        return next((one for one in self.links if one.name == name), None)


class LinkOp(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One change of a device, an address, a route or a setting of the kernel."""

    op: LinkVerb
    device: str = ""
    kind: str = ""
    """Of a device that is created."""
    alias: str = ""
    """Of a device that is created."""
    lower: str = ""
    """Of a VLAN, or a VXLAN: the device that it lies on."""
    vni: int = 0
    """Of a VLAN, or a VXLAN."""
    port: int = 0
    """UDP port of a VXLAN."""
    local: str = ""
    """Address that a VXLAN sends from."""
    value: str = ""
    """The MTU, bridge, address, gateway, remote address, or value of a setting; of a VXLAN that is created
    ``nolearning`` or nothing. ``ipv6Off`` does nothing while the device has an IPv6 address."""
    key: str = ""
    """Name of a setting, such as ``net.ipv4.ip_forward``; of a route where it leads to, empty: everywhere else."""


class LinkTraffic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a card has received and sent since the host's boot, and its state."""

    name: str
    rx_bytes: int = 0
    rx_packets: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    speed_mbps: int = 0
    """Of the cable; 0: the card does not say."""
    state: str = ""
    """``up``, ``down`` …, as the kernel says."""


class LinkPort(Protocol):
    """This host's own devices. Every call ends in time: an answer that the kernel owes is ``Unavailable`` for a read
    and ``Unknown`` for a change. ``Refused`` where the kernel says no, with its reason; ``NotFound`` for a device that
    is not there. What was changed stays when the process that did so is killed, until the host's next boot.
    """

    async def read(self, sysctls: Collection[str] = ()) -> FoundLinks:
        """All devices with their addresses, the routes, and these settings of the kernel."""
        ...

    async def carry_out(self, op: LinkOp) -> None:
        """Make one change; that it is made already is fine, and so is a removal of what is absent."""
        ...

    async def addresses(self, device: str) -> tuple[str, ...]:
        """The addresses of a device with their lengths, without link-local ones; none where there is no such device."""
        ...

    async def add_address(self, device: str, address: str) -> None:
        """Add an address, such as ``10.0.0.9/24``, and announce it: when this returns, neighbours have been sent
        ``ANNOUNCEMENTS`` frames. One that the device has already is announced too. An IPv6 address is not probed for
        duplicates first, since the host that gives it up still answers.
        """
        ...

    async def remove_address(self, device: str, address: str) -> None:
        """Remove an address; other addresses of its subnet stay. Absent, or without device, is fine."""
        ...

    async def traffic(self) -> tuple[LinkTraffic, ...]:
        """What each card has received and sent; bridges and other devices made by software are left out."""
        ...


class LinkNotes(Protocol):
    """What the daemon remembers of its links beyond its end and the host's boot."""

    async def load(self) -> bytes | None:
        """What was saved last, whole; ``None``: nothing."""
        ...

    async def save(self, notes: bytes) -> None:
        """Whole and synced to the disk when this returns; after an error what was saved before is there still."""
        ...


class NoLinks(LinkPort):
    """Somebody else makes this host's network: nothing is read or changed."""

    async def read(self, sysctls: Collection[str] = ()) -> FoundLinks:
        """Nothing."""
        return FoundLinks()

    async def carry_out(self, op: LinkOp) -> None:
        """There is nothing to change."""

    async def addresses(self, device: str) -> tuple[str, ...]:
        """None."""
        return ()

    async def add_address(self, device: str, address: str) -> None:
        """There is no device."""

    async def remove_address(self, device: str, address: str) -> None:
        """There is no device."""

    async def traffic(self) -> tuple[LinkTraffic, ...]:
        """None."""
        return ()
