"""The parts of one replicated resource: what a node knows of itself and of each of its peers.

Texts of states are those that ``drbdsetup`` prints. ``DrbdPeer`` is what a node *believes* of a peer, from the last
message that reached it; what is true stands in the peer's own ``DrbdReplica``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base import BadInput
from outlive.simulation.drbd.quorum import OFF

PRIMARY: Final = "Primary"
SECONDARY: Final = "Secondary"
CONNECTED: Final = "Connected"
CONNECTING: Final = "Connecting"
STANDALONE: Final = "StandAlone"
UP_TO_DATE: Final = "UpToDate"
CONSISTENT: Final = "Consistent"
OUTDATED: Final = "Outdated"
INCONSISTENT: Final = "Inconsistent"
DISKLESS: Final = "Diskless"
UNKNOWN_DISK: Final = "DUnknown"
WITH_DISK: Final = frozenset({UP_TO_DATE, CONSISTENT, OUTDATED, INCONSISTENT})
"""Disk states that vote."""
FIRST_GENERATION: Final = 1
BLOCK_KIB: Final = 4
"""What one write writes."""


class DrbdOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a resource; the defaults are those that are recommended for Kubernetes."""

    quorum: str = "majority"
    """``off``, ``majority``, ``all``, or a decimal number."""
    on_no_quorum: str = "suspend-io"
    """Or ``io-error``."""
    on_no_data_accessible: str = "suspend-io"
    """Or ``io-error``."""
    on_suspended_primary_outdated: str = "force-secondary"
    """Or ``disconnect``."""
    rr_conflict: str = "retry-connect"
    """Or ``disconnect``: what happens to a connection that must not be."""
    auto_promote: bool = True
    allow_two_primaries: bool = False

    def check(self) -> None:
        """``BadInput`` for a value that there is not."""
        allowed = {
            "on_no_quorum": ("suspend-io", "io-error"),
            "on_no_data_accessible": ("suspend-io", "io-error"),
            "on_suspended_primary_outdated": ("force-secondary", "disconnect"),
            "rr_conflict": ("retry-connect", "disconnect"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise BadInput(f"{name} is {getattr(self, name)!r}", remedy=f"use {' or '.join(values)}")
        if self.quorum not in (OFF, "majority", "all") and not (self.quorum.isdecimal() and int(self.quorum) > 0):
            raise BadInput(f"quorum is {self.quorum!r}", remedy="use off, majority, all or a number")

    @property
    def has_quorum(self) -> bool:
        """Whether quorum is used."""
        return self.quorum != OFF


class DrbdWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write that was acknowledged."""

    number: int
    """1 is the first of its resource."""
    node: str
    volume: int
    generation: int
    at_s: float
    """When, by the cluster's monotonic clock."""
    survives: bool = True
    """Whether it is in the data of the side with quorum."""


class DrbdVolume:
    """One volume of a replica, on its node."""

    def __init__(self, disk: str) -> None:
        self.disk = disk
        self.quorum = False
        """As printed: always true where quorum is off."""
        self.lineage: tuple[int, ...] = (FIRST_GENERATION,)
        """Generations of its data, oldest first."""
        self.through = 0
        """Number of the newest write in it."""
        self.newest: tuple[int, ...] = (FIRST_GENERATION,)
        """The longest lineage that this node has heard of; without a disk, the one that it works on."""
        self.written_kib = 0

    @property
    def votes(self) -> bool:
        """Whether it counts for quorum."""
        return self.disk in WITH_DISK

    @property
    def is_old(self) -> bool:
        """Whether there is newer data than this."""
        return len(self.lineage) < len(self.newest)

    def holds(self, write: DrbdWrite) -> bool:
        """Whether the write is in this data."""
        return write.number <= self.through and write.generation in self.lineage


class DrbdPeer:
    """A connection, as the node at one end sees it."""

    def __init__(self, node: str, node_id: int, volumes: int, *, client: bool) -> None:
        self.node = node
        self.node_id = node_id
        self.client = client
        """The peer is diskless on purpose."""
        self.state = CONNECTING
        self.established = False
        """The path."""
        self.role = "Unknown"
        self.disks = [UNKNOWN_DISK] * volumes
        self.quorums = [False] * volumes
        """Whether the peer has quorum."""
        self.replication = ["Off"] * volumes
        self.has_primary = False
        """Another node that the peer is connected to is primary."""
        self.outdated = [False] * volumes
        """The peer left cleanly, as outdated."""
        self.hidden = 0
        """Number of changes that events2 shows without saying what changed."""
        self.out_of_sync_kib = [0] * volumes
        self.sent_kib = 0
        self.received_kib = 0
        self.pinged = False
        """An answer is due within the ping timeout."""
        self.news_due = False
        """A message from the peer is on its way."""

    @property
    def is_connected(self) -> bool:
        """As this end believes."""
        return self.state == CONNECTED

    def forget(self, state: str) -> None:
        """The connection ended."""
        self.state = state
        self.role = "Unknown"
        self.has_primary = False
        for volume in range(len(self.disks)):
            self.disks[volume] = OUTDATED if self.outdated[volume] else UNKNOWN_DISK
            self.quorums[volume] = False
            self.replication[volume] = "Off"


class DrbdOpener:
    """A process that has a device open."""

    def __init__(self, node: str, resource: str, number: int) -> None:
        self.node = node
        self.resource = resource
        self.number = number
        self.ended = ""
        """Why it can write no more; empty: it can."""


class DrbdReplica:
    """A resource, on one node."""

    def __init__(self, node: str, node_id: int, minor: int, volumes: int, disk: str) -> None:
        self.node = node
        self.node_id = node_id
        self.minor = minor
        """Of its first volume."""
        self.client = disk == DISKLESS
        """Diskless on purpose."""
        self.volumes: list[DrbdVolume] = []
        self.peers: dict[str, DrbdPeer] = {}
        """By node, in the order of node ids."""
        self.openers: list[DrbdOpener] = []
        self.pending = 0
        """Writes that wait."""
        self.forget()
        self.volumes += [DrbdVolume(disk) for _ in range(volumes)]

    def forget(self) -> None:
        """The node starts: nothing is known but what is on the disks."""
        self.role = SECONDARY
        self.by_hand = False
        """Made primary by a command: it stays so when the last opener is gone."""
        self.promotion = 0
        """Number of the promotion, for the order among primaries."""
        self.suspended_user = False
        self.suspended_quorum = False
        self.suspended_no_data = False
        self.force_io_failures = False
        self.unconfirmed = False
        """A primary lost a peer, and not all others have agreed on it yet: nothing is acknowledged meanwhile."""
        self.new_generation = False
        """The next write begins a new generation, since a replica misses it."""
        self.resolving = False
        """It is being decided whether consistent data is up to date."""
        self.consistent_since = 0
        """Number of the change by which its data became consistent: the first one leads the agreement."""
        for volume in self.volumes:
            volume.quorum = False
            if volume.disk == UP_TO_DATE:
                volume.disk = CONSISTENT
            elif not volume.votes:
                volume.disk = DISKLESS
                volume.newest = (FIRST_GENERATION,)
        for peer in self.peers.values():
            peer.forget(CONNECTING)
            peer.established = peer.pinged = peer.news_due = False

    @property
    def is_primary(self) -> bool:
        """Whether it may be written here."""
        return self.role == PRIMARY

    @property
    def suspended(self) -> tuple[str, ...]:
        """Why I/O waits, as events2 names the reasons."""
        reasons = {"user": self.suspended_user, "no-data": self.suspended_no_data, "quorum": self.suspended_quorum}
        return tuple(name for name, is_so in reasons.items() if is_so)

    @property
    def has_primary_peer(self) -> bool:
        """Whether a peer is primary, as this node believes."""
        return any(peer.role == PRIMARY for peer in self.peers.values() if peer.is_connected)

    def has_data(self, volume: int) -> bool:
        """Whether up-to-date data is here or at a connected peer."""
        return self.volumes[volume].disk == UP_TO_DATE or any(
            peer.is_connected and peer.disks[volume] == UP_TO_DATE for peer in self.peers.values()
        )

    @property
    def may_promote(self) -> bool:
        """As events2 prints it: the data that a promotion needs must not be written by a primary elsewhere."""
        if self.is_primary or self.force_io_failures or self.has_primary_peer:
            return False
        return bool(self.volumes) and all(
            volume.quorum
            and (
                volume.disk == UP_TO_DATE
                or any(
                    peer.is_connected and peer.disks[number] == UP_TO_DATE and not peer.has_primary
                    for peer in self.peers.values()
                )
            )
            for number, volume in enumerate(self.volumes)
        )

    @property
    def promotion_score(self) -> int:
        """As events2 prints it."""
        if not all(volume.quorum and self.has_data(number) for number, volume in enumerate(self.volumes)):
            return 0
        usable = all(one.disk in (UP_TO_DATE, CONSISTENT, INCONSISTENT) for one in self.volumes)
        own = sum(one.disk == UP_TO_DATE for one in self.volumes)
        copies = min(
            (one.disk == UP_TO_DATE) + sum(peer.disks[number] == UP_TO_DATE for peer in self.peers.values())
            for number, one in enumerate(self.volumes)
        )
        return 10_000 * usable + 100 * min(own, 99) + min(copies, 99)
