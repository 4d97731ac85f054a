"""One replicated resource on all its nodes: the state changes that DRBD makes, and what follows from them.

Two nodes are *linked* where both ends say ``Connected`` and packets pass both ways. A connection that one end still
believes in is *stale*: a cluster-wide change must wait until it is known to be lost, as the real two-phase commit does,
because its prepare message gets no answer. From this follows what keeps the data whole:

* a write is acknowledged when all connected replicas have it and quorum holds without stale connections;
* a primary that lost a peer acknowledges nothing before all that it reaches have agreed on it;
* a replica that reaches a primary through others only becomes ``Outdated``;
* a node is promoted only when everybody that it reaches agrees, and refused while one of them is primary.

Where the real thing may lose data the model rather waits: a replica that was being synchronised when its source died
remembers that there is newer data, so that an older replica is not taken for up to date.

Every public method leaves the resource settled: quorum, suspension and disk states follow from what happened.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from outlive.simulation.drbd.network import (
    DETACH_S,
    FORCED_END_S,
    HANDSHAKE_S,
    MESSAGE_S,
    RESET_S,
    RESOLUTION_S,
    TEARDOWN_S,
    TOUCH_S,
    DrbdNetwork,
)
from outlive.simulation.drbd.replicas import (
    BLOCK_KIB,
    CONNECTED,
    CONNECTING,
    CONSISTENT,
    DISKLESS,
    INCONSISTENT,
    OUTDATED,
    PRIMARY,
    SECONDARY,
    STANDALONE,
    UP_TO_DATE,
    DrbdOptions,
    DrbdPeer,
    DrbdReplica,
    DrbdVolume,
    DrbdWrite,
)
from outlive.simulation.drbd.topology import ResourceTopology

SETTLE_LIMIT: Final = 100
"""Rounds in which a resource must come to rest."""
HISTORY_LIMIT: Final = 100_000
"""Acknowledged writes that are remembered; older ones are forgotten."""
NO_LONGER: Final = "the device is gone"


class ReplicatedResource(ResourceTopology):
    """See the module. ``changed`` is called after each change that somebody can see."""

    def __init__(
        self,
        name: str,
        options: DrbdOptions,
        network: DrbdNetwork,
        replicas: Iterable[DrbdReplica],
        changed: Callable[[ReplicatedResource], None],
    ) -> None:
        super().__init__(name, options, network, replicas)
        self.history: deque[DrbdWrite] = deque(maxlen=HISTORY_LIMIT)
        self._changed = changed
        self._woken = asyncio.Event()
        self.generations = itertools.count(2)
        self.promotions = itertools.count(1)
        self.writes = itertools.count(1)
        self._changes = itertools.count(1)
        self._attempts: set[frozenset[str]] = set()
        """Pairs that will try to connect."""

    # --- connections

    def watch(self, node: str, peer: str, *, within_s: float) -> None:
        """Let a node find out, at the latest by its next ping, that a peer is lost."""
        self._network.call_later(within_s, self.detect, node, peer)

    def detect(self, node: str, peer: str) -> None:
        """A ping got no answer, if the peer is lost."""
        if self.is_up(node):
            self.replicas[node].peers[peer].pinged = False
            if not self.is_linked(node, peer):
                self.lose(node, peer, "NetworkFailure")

    def lose(self, node: str, name: str, state: str) -> None:
        """A connection ends at this end, and soon at the other if that can hear of it."""
        if not self.is_up(node) or not self.replicas[node].peers[name].is_connected:
            return
        replica, peer = self.replicas[node], self.replicas[node].peers[name]
        was_primary = peer.role == PRIMARY
        peer.forget(state)
        if replica.is_primary:
            replica.unconfirmed = True
            replica.new_generation |= not peer.client
        for volume in replica.volumes:
            if was_primary and not replica.is_primary and volume.disk == UP_TO_DATE:
                volume.disk = CONSISTENT
                replica.consistent_since = next(self._changes)
        if self._network.is_passing(node, name):
            self._network.call_later(RESET_S, self.lose, name, node, "BrokenPipe")
        path_s, close_s, open_s = (self._network.draw_delay_s(limits) for limits in TEARDOWN_S)
        self._network.call_later(path_s, self._tear_down, node, name, state, "path")
        self._network.call_later(path_s + close_s, self._tear_down, node, name, state, "Unconnected")
        self._network.call_later(path_s + close_s + open_s, self._tear_down, node, name, "Unconnected", CONNECTING)
        self.settle()

    def _tear_down(self, node: str, name: str, before: str, after: str) -> None:
        if not self.is_up(node):
            return
        peer = self.replicas[node].peers[name]
        if after == "path":
            peer.established = peer.is_connected
        elif peer.state == before:
            peer.state = after
        self.settle()

    def attempt(self, a: str, b: str) -> None:
        """Try to connect some time within the interval, if both ends want it."""
        pair = frozenset((a, b))
        if pair not in self._attempts and self._may_connect(a, b):
            self._attempts.add(pair)
            self._network.call_later(
                self._network.draw_delay_s((0.1, self._network.times.connect_interval_s)), self.connect, a, b
            )

    def _may_connect(self, a: str, b: str) -> bool:
        return (
            self.is_up(a)
            and self.is_up(b)
            and self._network.is_working(a, b)
            and self.replicas[a].peers[b].state == self.replicas[b].peers[a].state == CONNECTING
        )

    def connect(self, a: str, b: str) -> None:
        """Both ends begin the handshake, if they can."""
        self._attempts.discard(frozenset((a, b)))
        if not self._may_connect(a, b) or self.replicas[a].peers[b].established:
            return
        for one, other in ((a, b), (b, a)):
            self.replicas[one].peers[other].established = True
        agreed_s, connected_s = (self._network.draw_delay_s(limits) for limits in HANDSHAKE_S)
        self._network.call_later(agreed_s, self._touch, (a, b), (b, a))
        self._network.call_later(agreed_s + connected_s, self._join, a, b)
        self.settle()

    def _touch(self, *ends: tuple[str, str]) -> None:
        """A message changes nothing that is printed, and shows as a line without values."""
        for node, name in ends:
            if self.is_up(node) and self.replicas[node].peers[name].established:
                self.replicas[node].peers[name].hidden += 1
        self._changed(self)

    def _join(self, a: str, b: str) -> None:
        """The end of the handshake: connected, or one of them gives way, or they stay apart."""
        ends = [(self.replicas[one], self.replicas[one].peers[other]) for one, other in ((a, b), (b, a))]
        if not self._may_connect(a, b):
            for replica, peer in ends:
                peer.established &= not self.is_up(replica.node) or peer.is_connected
            self.settle()
            return
        refusal = connection_refusal(self, a, b)
        if isinstance(refusal, DrbdReplica):
            self.force_secondary(refusal.node)
            refusal = connection_refusal(self, a, b)
        if refusal is not None:
            for replica, peer in ends:
                peer.established = False
                if refusal is ConnectionRefusal.SPLIT_BRAIN or self.options.rr_conflict == "disconnect":
                    peer.state = STANDALONE
                if refusal is ConnectionRefusal.OUTDATED and self.is_frozen(replica) and replica.is_primary:
                    peer.state = STANDALONE
                    for volume in replica.volumes:
                        volume.disk = OUTDATED if volume.disk == UP_TO_DATE else volume.disk
            self.settle()
            return
        for replica, peer in ends:
            other = self.replicas[peer.node]
            peer.state, peer.role = CONNECTED, other.role
            peer.has_primary = any(
                one.role == PRIMARY for one in other.peers.values() if one.is_connected and one.node != replica.node
            )
            peer.disks = [volume.disk for volume in other.volumes]
            peer.quorums = [volume.quorum for volume in other.volumes]
            peer.outdated = [False for _ in other.volumes]
            peer.replication = ["Established" for _ in other.volumes]
            for number, (mine, theirs) in enumerate(zip(replica.volumes, other.volumes, strict=True)):
                if INCONSISTENT not in (mine.disk, theirs.disk) and mine.lineage == theirs.lineage:
                    peer.out_of_sync_kib[number] = 0
        self.settle()

    # --- settling

    def settle(self) -> None:
        """Let everything follow from what happened, and show it."""
        for _ in range(SETTLE_LIMIT):
            before = self._fingerprint()
            running = [replica for replica in self.replicas.values() if self.is_up(replica.node)]
            for replica in running:
                for number, volume in enumerate(replica.volumes):
                    volume.quorum = self.check_quorum(replica, number)
                waits = self.options.on_no_quorum == "suspend-io"
                replica.suspended_quorum = waits and not all(volume.quorum for volume in replica.volumes)
                waits = self.options.on_no_data_accessible == "suspend-io" and replica.is_primary
                replica.suspended_no_data = waits and not all(map(replica.has_data, range(len(replica.volumes))))
            for replica in running:
                self._judge_data(replica)
            if self._fingerprint() == before:
                break
        else:
            raise RuntimeError(f"{self.name} does not come to rest")
        for replica in self.replicas.values():
            if self.is_up(replica.node):
                self._follow(replica)
        self._changed(self)
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()

    def _fingerprint(self) -> list[object]:
        return [
            (volume.disk, volume.quorum, volume.newest, replica.suspended, replica.unconfirmed)
            for replica in self.replicas.values()
            for volume in replica.volumes
        ]

    def _judge_data(self, replica: DrbdReplica) -> None:
        """What its data is, by what it hears of all that it reaches."""
        reach, links = self.reachable_replicas(replica.node), self.linked_replicas(replica.node)
        primaries = [one for one in reach if one.is_primary and one is not replica]
        cut_off = not replica.is_primary and any(
            one not in links and not self.are_connected(replica, one) for one in primaries
        )
        for number, volume in enumerate(replica.volumes):
            volume.newest = max((one.volumes[number].newest for one in reach), key=len)
            if volume.disk in (UP_TO_DATE, CONSISTENT) and (cut_off or volume.is_old):
                volume.disk = OUTDATED
            if (
                volume.disk not in (OUTDATED, CONSISTENT)
                or volume.is_old
                or cut_off
                or self.stale_connections(replica.node)
            ):
                continue
            source = any(one.volumes[number].disk == UP_TO_DATE for one in links)
            works_on_it = any(not one.volumes[number].votes for one in primaries)
            if works_on_it or (source and (primaries or volume.disk == OUTDATED)):
                volume.disk = UP_TO_DATE
        if replica.unconfirmed and not self.stale_connections(replica.node):
            replica.unconfirmed = False

    def _follow(self, replica: DrbdReplica) -> None:
        """What takes time: resynchronisation, agreement, messages, attempts to connect."""
        node = replica.node
        undecided = [
            one
            for one in self.reachable_replicas(node)
            if any(volume.disk == CONSISTENT and volume.quorum for volume in one.volumes)
        ]
        stale = self.stale_connections(node) if replica.unconfirmed or undecided else []
        for one, name in stale:
            self.ping(one, name)
        leader = min(undecided, key=lambda one: (one.consistent_since, one.node_id), default=None)
        if leader is replica and not replica.resolving and not stale:
            replica.resolving = True
            self._network.call_later(self._network.draw_delay_s(RESOLUTION_S), self._resolve, node)
        for number, volume in enumerate(replica.volumes):
            self._resynchronise(replica, number, volume)
        for peer in replica.peers.values():
            self.attempt(node, peer.node)
            if self.is_linked(node, peer.node):
                known = (peer.role, peer.disks, peer.quorums, peer.has_primary)
                if not peer.news_due and known != self._read_state(peer.node):
                    peer.news_due = True
                    self._network.call_later(MESSAGE_S, self._deliver, node, peer.node)
            elif peer.is_connected and self._network.is_working(node, peer.node):
                self._network.call_later(RESET_S, self.detect, node, peer.node)

    def ping(self, node: str, name: str) -> None:
        """Find out whether a peer still answers."""
        peer = self.replicas[node].peers[name]
        if not peer.pinged:
            peer.pinged = True
            self.watch(node, name, within_s=self._network.times.ping_timeout_s)

    def _resynchronise(self, replica: DrbdReplica, number: int, volume: DrbdVolume) -> None:
        if volume.disk != INCONSISTENT and not (volume.disk == OUTDATED and volume.is_old):
            return
        links = self.linked_replicas(replica.node)
        if any(replica.peers[one.node].replication[number] == "SyncTarget" for one in links):
            return
        if self.misses_writes(replica):
            return
        source = next((one for one in links if one.volumes[number].disk == UP_TO_DATE), None)
        if source is None:
            return
        volume.disk = INCONSISTENT
        replica.peers[source.node].replication[number] = "SyncTarget"
        replica.peers[source.node].out_of_sync_kib[number] = self.size_kib // 2
        source.peers[replica.node].replication[number] = "SyncSource"
        source.peers[replica.node].disks[number] = INCONSISTENT
        source.peers[replica.node].out_of_sync_kib[number] = self.size_kib // 2
        self._network.call_later(self._network.times.resync_s, self._finish_resync, replica.node, source.node, number)

    def _finish_resync(self, target: str, source: str, number: int) -> None:
        if not self.is_up(target) or not self.is_linked(target, source):
            return
        replica, origin = self.replicas[target], self.replicas[source]
        if replica.peers[source].replication[number] != "SyncTarget":
            return
        for one, other in ((replica, source), (origin, target)):
            one.peers[other].replication[number] = "Established"
            one.peers[other].out_of_sync_kib[number] = 0
        volume = replica.volumes[number]
        whole = origin.volumes[number].disk == UP_TO_DATE and not self.misses_writes(replica)
        if volume.disk == INCONSISTENT and whole:
            whole_copy = origin.volumes[number]
            volume.lineage, volume.through, volume.newest = whole_copy.lineage, whole_copy.through, whole_copy.newest
            volume.disk = UP_TO_DATE
            origin.peers[target].disks[number] = UP_TO_DATE
        self.settle()

    def _resolve(self, node: str) -> None:
        """Those that are consistent agree that their data is up to date, led by the first of them."""
        replica = self.replicas[node]
        replica.resolving = False
        if not self.is_up(node):
            return
        if not self.stale_connections(node):
            for number in range(len(replica.volumes)):
                if not replica.volumes[number].quorum:
                    continue
                for one in self.reachable_replicas(node):
                    volume = one.volumes[number]
                    if volume.disk == CONSISTENT and volume.quorum and not volume.is_old:
                        volume.disk = UP_TO_DATE
                        if one is not replica and self.is_linked(node, one.node):
                            replica.peers[one.node].disks[number] = UP_TO_DATE
                            one.peers[node].news_due = True
                            self._network.call_later(TOUCH_S, self._touch, (one.node, node))
                            self._network.call_later(RESET_S, self._deliver, one.node, node)
        self.settle()

    # --- messages

    def _read_state(self, node: str) -> tuple[str, list[str], list[bool], bool]:
        one = self.replicas[node]
        disks, quorums = [volume.disk for volume in one.volumes], [volume.quorum for volume in one.volumes]
        return one.role, disks, quorums, one.has_primary_peer

    def _deliver(self, node: str, name: str) -> None:
        """A node hears of a peer's state; of its other connections first."""
        if not self.is_up(node):
            return
        peer = self.replicas[node].peers[name]
        peer.news_due = False
        if not self.is_linked(node, name):
            return
        role, disks, quorums, has_primary = self._read_state(name)
        if peer.has_primary != has_primary:
            peer.has_primary = has_primary
            peer.hidden += 1
        else:
            asks = CONSISTENT in disks and CONSISTENT not in peer.disks
            peer.role, peer.disks, peer.quorums = role, disks, quorums
            if asks:
                self._network.call_later(RESET_S, self._touch, (node, name))
        self.settle()

    # --- what is done to it

    def force_secondary(self, node: str) -> None:
        """Demote it whatever it does: what waits fails, and what is written while it stays open fails too."""
        replica = self.find_replica(node)
        if not replica.is_primary:
            return
        for peer in replica.peers.values():
            for number in range(len(replica.volumes)):
                peer.out_of_sync_kib[number] += BLOCK_KIB * replica.pending * (not peer.is_connected)
        replica.role, replica.by_hand, replica.unconfirmed = SECONDARY, False, False
        replica.force_io_failures = True
        self._network.call_later(FORCED_END_S, self.end_forced, node)
        self.settle()

    def end_forced(self, node: str) -> None:
        """I/O no longer fails, if nobody has the device open."""
        if self.is_up(node) and not self.replicas[node].openers:
            self.replicas[node].force_io_failures = False
            self.settle()

    def fail_disk(self, node: str, number: int) -> None:
        """A disk fails and is detached: the volume is used through the peers from then on."""
        replica = self.find_replica(node)
        replica.volumes[number].disk = "Failed"
        replica.new_generation |= replica.is_primary
        self._network.call_later(DETACH_S, self._detach, node, number)
        self.settle()

    def _detach(self, node: str, number: int) -> None:
        if self.is_up(node):
            self.replicas[node].volumes[number].disk = DISKLESS
            self.settle()

    def disconnect(self, node: str, name: str) -> None:
        """Leave a peer for good. If it answers and one of the two is primary, the other one is outdated by that."""
        replica, peer = self.find_replica(node), self.replicas[node].peers[name]
        if self.is_linked(node, name):
            other = self.replicas[name]
            for leaver, stayer in ((replica, other), (other, replica)):
                if self.options.has_quorum and stayer.is_primary and not leaver.is_primary:
                    self._outdate(leaver, stayer.peers[leaver.node])
            self.lose(name, node, "TearDown")
        self.lose(node, name, "Disconnecting")
        peer.forget(STANDALONE)
        peer.established = False
        self.settle()

    def _outdate(self, leaver: DrbdReplica, noted: DrbdPeer) -> None:
        for number, volume in enumerate(leaver.volumes):
            if volume.votes and volume.disk != INCONSISTENT:
                volume.disk = OUTDATED
                noted.outdated[number] = True

    def reconnect(self, node: str, name: str) -> None:
        """End what ``disconnect`` began."""
        peer = self.find_replica(node).peers[name]
        if peer.state == STANDALONE:
            peer.forget("Unconnected")
            self._network.call_later(TEARDOWN_S[2][1], self._tear_down, node, name, "Unconnected", CONNECTING)
            self.settle()

    def crash(self, node: str) -> None:
        """The node lost power: what it knew is forgotten, what is on its disks stays."""
        replica = self.replicas[node]
        self.end_openers(replica)
        replica.forget()
        self.settle()

    def end_openers(self, replica: DrbdReplica) -> None:
        """Nobody has the device open any more."""
        for opener in replica.openers:
            opener.ended = NO_LONGER
        replica.openers.clear()

    def new_current_uuid(self, node: str) -> None:
        """Declare that all connected replicas of a new resource are the same, without copying anything."""
        replica = self.find_replica(node)
        for number in range(len(replica.volumes)):
            for one in (replica, *self.linked_replicas(node)):
                if one.volumes[number].disk == INCONSISTENT:
                    one.volumes[number].disk = UP_TO_DATE
                for peer in one.peers.values():
                    peer.out_of_sync_kib[number] = 0
                if one is not replica:
                    one.peers[node].disks[number] = replica.volumes[number].disk
                    replica.peers[one.node].disks[number] = one.volumes[number].disk
        self.settle()

    async def wait(self, limit_s: float | None = None) -> None:
        """Until something changed, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._woken.wait()


class ConnectionRefusal(enum.Enum):
    """Why two nodes stay apart."""

    SPLIT_BRAIN = enum.auto()
    """Each has data that the other has not: for good."""
    OUTDATED = enum.auto()
    """A frozen primary has old data, and is not to be demoted: for good."""
    TWO_PRIMARIES = enum.auto()
    """Both reach a primary: until one of those is demoted."""


def connection_refusal(resource: ResourceTopology, a: str, b: str) -> ConnectionRefusal | DrbdReplica | None:
    """Why these two must not be connected, or the frozen primary that is to be demoted first; None: they may."""
    ends = resource.replicas[a], resource.replicas[b]
    for mine, theirs in zip(ends[0].volumes, ends[1].volumes, strict=True):
        short, long = sorted((mine.lineage, theirs.lineage), key=len)
        if mine.votes and theirs.votes and long[: len(short)] != short:
            return ConnectionRefusal.SPLIT_BRAIN
    for replica, other in (ends, ends[::-1]):
        if not replica.is_primary:
            continue
        newer = any(
            len(theirs.newest) > len(mine.lineage if mine.votes else mine.newest)
            for mine, theirs in zip(replica.volumes, other.volumes, strict=True)
        )
        rivals = [
            one
            for one in resource.reachable_primaries(other.node)
            if one not in resource.reachable_replicas(replica.node)
        ]
        if resource.options.allow_two_primaries:
            rivals = [one for one in rivals if one is not other]
        if not resource.is_frozen(replica):
            if newer or any(not resource.is_frozen(one) or one is not other for one in rivals):
                return ConnectionRefusal.TWO_PRIMARIES
            continue
        if newer or any(not resource.is_frozen(one) or one.promotion > replica.promotion for one in rivals):
            if resource.options.on_suspended_primary_outdated != "force-secondary":
                return ConnectionRefusal.OUTDATED
            return replica
        if any(one is not other for one in rivals):
            return ConnectionRefusal.TWO_PRIMARIES
    first = any(one not in resource.reachable_replicas(b) for one in resource.reachable_primaries(a))
    second = any(one not in resource.reachable_replicas(a) for one in resource.reachable_primaries(b))
    if first and second and not resource.options.allow_two_primaries:
        return ConnectionRefusal.TWO_PRIMARIES
    return None
