"""The networks of this host: devices, addresses and routes, ports of VMs, and virtual functions of cards."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, Protocol

import msgspec

from outlive.resources import VirtualFunctionSettings, VirtualMachine

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

    def find_link(self, name: str) -> HostLink | None:
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

    async def list_addresses(self, device: str) -> tuple[str, ...]:
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

    async def read_traffic(self) -> tuple[LinkTraffic, ...]:
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

    async def list_addresses(self, device: str) -> tuple[str, ...]:
        """None."""
        return ()

    async def add_address(self, device: str, address: str) -> None:
        """There is no device."""

    async def remove_address(self, device: str, address: str) -> None:
        """There is no device."""

    async def read_traffic(self) -> tuple[LinkTraffic, ...]:
        """None."""
        return ()


# The networks of virtual machines, as far as a controller outside of the host programs them.


class NetworkPort(Protocol):
    """One host's side of networks that somebody else programs, such as OVN's.

    The host never programs a network: it plugs interfaces in, looks whether they work here, and tells guests what
    changed around them. What is to be where, the network controller reads from the virtual machine and its migration.
    """

    @property
    def prepare_limit_s(self) -> float:
        """How long a migration waits until the network is prepared; then it is aborted."""
        ...

    async def find_chassis(self) -> str | None:
        """The name of this host in OVN; empty: it runs none; ``None``: its switch does not say now."""
        ...

    async def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """The VM as this host is to create it: each interface with the id that it has on this host.

        The same VM where nobody programs its networks. ``Unavailable`` where that is not known: then it is not created.
        """
        ...

    async def prepare(self, vm: VirtualMachine, move: str) -> str:
        """Why this host cannot take over the VM's ports in that migration yet; empty: it can.

        It can once the controller has reported for each port that the target's logical port is bound and has its flows,
        and this host's own switch says so as well. Asked after the domain that listens was created, again and again.
        ``Unavailable`` where that is not known.
        """
        ...

    def announce(self, vm: str) -> None:
        """The VM runs here now: send its guests and neighbours what the controller wants announced, in the background.

        Also asked of the host that it has left, for guests there that have talked to it.
        """
        ...


class NoNetworks(NetworkPort):
    """Nobody programs networks: interfaces are as definitions say, and every host can take over every port."""

    prepare_limit_s = 0.0

    async def find_chassis(self) -> str | None:
        """None is needed."""
        return ""

    async def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """The same."""
        return vm

    async def prepare(self, vm: VirtualMachine, move: str) -> str:
        """Always."""
        return ""

    def announce(self, vm: str) -> None:
        """There is nothing to announce."""


class FoundFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual function as the kernel has it."""

    index: int
    """Its number on its card, from 0."""
    pci: str | None
    """``None``: it cannot be read."""
    device: str = ""
    """Its network device on this host; empty: it has none, such as while a guest has it."""
    occupied: bool = False
    """Whether another device of this host is on its network device, such as a guest's macvtap device."""
    mac: str = ""
    mtu: int = 0
    """0: not known."""
    settings: VirtualFunctionSettings = VirtualFunctionSettings()
    """As the card has them; what it does not say is absent."""


class FoundCard(msgspec.Struct, frozen=True, kw_only=True):
    """A physical function and its virtual functions."""

    most: int
    """Virtual functions that it can have; 0: none at all."""
    mtu: int
    functions: tuple[FoundFunction, ...] = ()
    up: bool = True
    """Whether it is up: of one that is down guests get no function."""


class FunctionPort(Protocol):
    """Makes and programs virtual functions. ``NotFound`` where this host has no such device."""

    async def prepare(self) -> str:
        """Prepare the kernel to pass functions through to guests; why it is not ready, empty: it is."""
        ...

    async def read(self, card: str) -> FoundCard:
        """The device and its functions, in their order. ``NotFound``, ``Unavailable``."""
        ...

    async def set_count(self, card: str, count: int, *, replace: bool) -> None:
        """Set the number of functions of the device.

        ``replace``: those that are there end first, as the caller has seen that none of them is used. ``Refused``
        where the device or its driver does not do that; then it has as many as before, or none.
        """
        ...

    async def bring_up(self, card: str) -> None:
        """Have the device be up. ``Refused``, ``NotFound``."""
        ...

    async def set_mtu(self, card: str, mtu: int) -> None:
        """``Refused``, ``NotFound``."""
        ...

    async def set_mac(self, card: str, index: int, mac: str) -> None:
        """Have the function have that MAC address, also in a guest. ``Refused``, ``NotFound``."""
        ...

    async def program(self, card: str, index: int, settings: VirtualFunctionSettings) -> dict[str, str]:
        """Program what is given, VLAN and priority in one; what was refused, by field, and why.

        Everything else is programmed all the same. ``NotFound``.
        """
        ...
