"""What the daemon remembers of its links: how to undo a change that is under way, and what it has put where."""

from __future__ import annotations

import hashlib

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.links.wanted import PlacedAddress, WantedLinks
from outlive.node.ports.links import LinkNotes, LinkOp
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
    system_networks: dict[SystemNetworkName, SystemNetwork] = {}
    """The cluster's, as they were read last: a host that boots needs its addresses before it reaches the store."""


def digest_of(wanted: WantedLinks) -> str:
    """By which links that the host is reached by are known, whatever networks of VMs there are."""
    system = msgspec.structs.replace(wanted, networks=(), remotes=(), cluster_mtu=0, former=(), problems={})
    return hashlib.sha256(encode_canonical(system)).hexdigest()


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
