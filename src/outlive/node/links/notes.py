"""What the daemon remembers of its links: how to undo a change that is under way, and what it has put where."""

from __future__ import annotations

import hashlib

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.links.wanted import PlacedAddress, PlacedPort, WantedLinks
from outlive.node.ports.links import FoundLinks, LinkNotes, LinkOp
from outlive.resources.cluster import SystemNetwork, SystemNetworkName
from outlive.resources.codec import decode_as, encode, encode_canonical

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
        link = found.named(address.bridge)
        if link is not None and address.address in link.addresses:
            addresses.append(address)
    ports = [PlacedPort(bridge=one.bridge, device=one.device) for one in wanted.bridges]
    for port in wanted.former_ports:
        link = found.named(port.device)
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
