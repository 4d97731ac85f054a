"""A model of one DRBD 9 cluster: what happens to its nodes and links, who may write, and what ``drbdsetup`` prints.

All time is the event loop's: virtual in the simulation, real where the model stands in for ``drbdsetup``. What is
drawn is drawn from the generator that is handed in, so that a seed repeats a run. Nothing here promises the exact times
of the kernel; the order of states, and who has quorum, are what recorded transcripts show.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Final

import msgspec

from outlive.base import SHORTEST_SLEEP_S, AlreadyExists, BadInput, Clock, NotFound, Random, Refused, as_datetime
from outlive.simulation.drbd.access import WriteState, commit, promote, promotion_refusal, write_state
from outlive.simulation.drbd.network import WRITE_S, DrbdNetwork, DrbdTimes
from outlive.simulation.drbd.replicas import (
    CONNECTED,
    CONSISTENT,
    DISKLESS,
    INCONSISTENT,
    SECONDARY,
    UP_TO_DATE,
    DrbdOpener,
    DrbdOptions,
    DrbdPeer,
    DrbdReplica,
    DrbdVolume,
    DrbdWrite,
)
from outlive.simulation.drbd.resource import ReplicatedResource
from outlive.simulation.drbd.text import (
    DUMP_END,
    DrbdObject,
    ObjectKey,
    change_lines,
    dump_lines,
    event_objects,
    show_text,
    status_text,
)

AUTO_PROMOTE_S: Final = 2.0
"""An open waits so long for the promotion."""
PROMOTION_S: Final = 30.0
"""A promotion by command waits so long for connections that may be lost."""
LINES_LIMIT: Final = 100_000
"""Lines of events2 that a reader may be behind; one that is further behind is ended."""
FIRST_MINOR: Final = 1000


def storage_address(number: int) -> str:
    """Of the node with this index, 0 for the first, on the storage network."""
    return f"10.72.{number // 240}.{number % 240 + 11}"


class WriteFailed(OSError):
    """A write ended with an I/O error."""


class DrbdCluster:
    """See the module. ``newer_tools``: print what newer drbd-utils add."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        nodes: Iterable[str],
        *,
        ping_interval_s: float = 10.0,
        ping_timeout_s: float = 0.5,
        connect_interval_s: float = 10.0,
        resync_s: float = 2.0,
        newer_tools: bool = False,
    ) -> None:
        self.clock = clock
        self.times = DrbdTimes(
            ping_interval_s=ping_interval_s,
            ping_timeout_s=ping_timeout_s,
            connect_interval_s=connect_interval_s,
            resync_s=resync_s,
        )
        self.network = DrbdNetwork(clock, random, nodes, self.times)
        self.resources: dict[str, ReplicatedResource] = {}
        self.addresses = {node: storage_address(number) for number, node in enumerate(self.network.nodes)}
        """Of the nodes, on the storage network."""
        self._newer = newer_tools
        self._minors = FIRST_MINOR
        self._openers = 0
        self._readers: dict[str, list[asyncio.Queue[tuple[str, str] | None]]] = {
            node: [] for node in self.network.nodes
        }
        self._shown: dict[tuple[str, str], dict[ObjectKey, DrbdObject]] = {}
        """What the readers of a node know of a resource."""

    # --- resources

    def create(
        self,
        name: str,
        disks: Sequence[str],
        diskless: Sequence[str] = (),
        quorum: str = "majority",
        *,
        volumes: int = 1,
        connected: bool = True,
        backing_device: str = "/dev/vg0/{name}_{volume:05d}",
        **options: Any,
    ) -> None:
        """A resource with a replica on each node of ``disks``, and clients without one on those of ``diskless``.

        ``options`` are those of ``DrbdOptions``. It is connected and in sync; with ``connected`` false it is as after
        its first configuration: all replicas ``Inconsistent``, not connected yet, and ``new_current_uuid`` is needed.
        """
        if name in self.resources:
            raise AlreadyExists(f"resource {name} exists", remedy="delete it")
        nodes = [*disks, *diskless]
        for node in nodes:
            self.network.check_node(node)
        if len(set(nodes)) != len(nodes) or not disks or volumes < 1:
            raise BadInput(f"resource {name} on {nodes}", remedy="name at least one disk, and each node once")
        chosen = DrbdOptions(quorum=quorum, **options)
        chosen.check()
        state = UP_TO_DATE if connected else INCONSISTENT
        made = [
            DrbdReplica(node, number, self._minors, volumes, state if node in disks else DISKLESS)
            for number, node in enumerate(nodes)
        ]
        self._minors += volumes
        for one in made:
            for other in made:
                if one is not other and not (one.client and other.client):
                    peer = DrbdPeer(other.node, other.node_id, volumes, client=other.client)
                    one.peers[other.node] = peer
        resource = ReplicatedResource(name, chosen, self.network, made, self._show)
        resource.port += len(self.resources)
        resource.backing_device = backing_device
        resource.addresses = self.addresses
        self.resources[name] = resource
        for one in made:
            for peer in one.peers.values():
                both = connected and self.network.is_working(one.node, peer.node)
                if both:
                    other = resource.replicas[peer.node]
                    peer.state, peer.established, peer.role = CONNECTED, True, SECONDARY
                    peer.disks = [volume.disk for volume in other.volumes]
                    peer.quorums = [True] * volumes
                    peer.replication = ["Established"] * volumes
                if not connected:
                    peer.out_of_sync_kib = [resource.size_kib] * volumes
        resource.settle()

    def delete(self, name: str) -> None:
        """Remove it from all nodes; processes that have it open get I/O errors."""
        resource = self._find_resource(name)
        for replica in resource.replicas.values():
            resource.end_openers(replica)
        resource.deleted = True
        del self.resources[name]
        resource.settle()

    def find_replica(self, node: str, resource: str) -> DrbdReplica:
        """What a node that is up has of it, else ``NotFound``."""
        return self._find_resource(resource).find_replica(node)

    def _find_resource(self, name: str) -> ReplicatedResource:
        found = self.resources.get(name)
        if found is None:
            raise NotFound(f"resource {name} does not exist", remedy="create it")
        return found

    # --- nodes and links

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing passes between two nodes (``one_way``: from ``a`` to ``b``); each finds out by its next ping."""
        self.network.check_node(a)
        self.network.check_node(b)
        self.network.cut(a, b, one_way=one_way)
        self._await_pings(((a, b), (b, a)))

    def heal(self, a: str, b: str) -> None:
        """Everything passes between two nodes again."""
        self.network.heal(a, b)
        self._settle()

    def crash(self, node: str) -> None:
        """A node loses power; its peers find out by their next ping. Nothing happens to one that is down."""
        self.network.check_node(node)
        if node in self.network.down:
            return
        self.network.down.add(node)
        for resource in self.resources.values():
            if node in resource.replicas:
                resource.crash(node)
        for queue in self._readers[node]:
            queue.put_nowait(None)
        self._readers[node].clear()
        for key in [key for key in self._shown if key[0] == node]:
            del self._shown[key]
        self._await_pings((other, node) for other in self.network.nodes if other != node)

    def boot(self, node: str) -> None:
        """A node is on again, and all its resources are configured."""
        self.network.check_node(node)
        self.network.down.discard(node)
        self._settle()

    def detect(self, node: str, peer: str) -> None:
        """Let a node find out now that a peer is lost, if it is."""
        for resource in list(self.resources.values()):
            if node in resource.replicas and peer in resource.replicas[node].peers:
                resource.detect(node, peer)

    def reconnect(self, a: str, b: str) -> None:
        """Let two nodes try to connect now, where they want it."""
        for resource in list(self.resources.values()):
            if a in resource.replicas and b in resource.replicas[a].peers:
                resource.connect(a, b)

    def _await_pings(self, pairs: Iterable[tuple[str, str]]) -> None:
        for node, peer in pairs:
            for resource in self.resources.values():
                if resource.is_up(node) and peer in resource.replicas[node].peers:
                    within_s = self.network.draw_delay_s((0.0, self.times.ping_interval_s)) + self.times.ping_timeout_s
                    resource.watch(node, peer, within_s=within_s)
        self._settle()

    def _settle(self) -> None:
        for resource in list(self.resources.values()):
            resource.settle()

    # --- commands

    async def promote(self, node: str, resource: str, *, force: bool = False) -> None:
        """``drbdsetup primary``: it stays primary without openers. ``Refused`` with the kernel's words."""
        await self._promote(self._find_resource(resource), node, force=force, by_hand=True, limit_s=PROMOTION_S)

    async def demote(self, node: str, resource: str) -> None:
        """``drbdsetup secondary``: refused while it is open, and without an end while its I/O is suspended."""
        found = self._find_resource(resource)
        replica = found.find_replica(node)
        while replica.is_primary and replica.suspended:
            await found.wait()
        if replica.openers:
            raise Refused(f"{resource}: State change failed: (-12) Device is held open by someone")
        self._demote(found, replica)

    def force_secondary(self, node: str, resource: str) -> None:
        """``drbdsetup secondary --force``: at once, with I/O errors for processes that have it open."""
        self._find_resource(resource).force_secondary(node)

    def suspend(self, node: str, resource: str) -> None:
        """``drbdsetup suspend-io``."""
        self.find_replica(node, resource).suspended_user = True
        self._find_resource(resource).settle()

    def resume(self, node: str, resource: str) -> None:
        """``drbdsetup resume-io``."""
        self.find_replica(node, resource).suspended_user = False
        self._find_resource(resource).settle()

    def disconnect(self, node: str, resource: str, peer: str) -> None:
        """``drbdsetup disconnect``: the connection is ``StandAlone`` until ``connect``."""
        self._check_peer(node, resource, peer)
        self._find_resource(resource).disconnect(node, peer)

    def connect(self, node: str, resource: str, peer: str) -> None:
        """``drbdsetup connect``."""
        self._check_peer(node, resource, peer)
        self._find_resource(resource).reconnect(node, peer)

    def _check_peer(self, node: str, resource: str, peer: str) -> None:
        if peer not in self.find_replica(node, resource).peers:
            raise NotFound(f"{node} has no connection to {peer} for {resource}")

    def new_current_uuid(self, node: str, resource: str) -> None:
        """``drbdsetup new-current-uuid --clear-bitmap``: the first data of a new resource."""
        self._find_resource(resource).new_current_uuid(node)

    def fail_disk(self, node: str, resource: str, volume: int = 0) -> None:
        """A disk fails for good."""
        self._find_resource(resource).fail_disk(node, volume)

    # --- reads and writes

    async def open(self, node: str, resource: str) -> DrbdOpener:
        """Open a device for writing; the node becomes primary by that. ``Refused`` with the kernel's words."""
        found = self._find_resource(resource)
        replica = found.find_replica(node)
        if not replica.is_primary and not found.options.auto_promote:
            raise Refused(f"{resource} is Secondary on {node}, and auto-promote is off")
        if not replica.is_primary:
            await self._promote(found, node, force=False, by_hand=False, limit_s=AUTO_PROMOTE_S)
        self._openers += 1
        opener = DrbdOpener(node, resource, self._openers)
        replica.openers.append(opener)
        found.settle()
        return opener

    async def write(self, opener: DrbdOpener, volume: int = 0) -> DrbdWrite:
        """Write one block and return once it is acknowledged; ``WriteFailed`` on an I/O error. Frozen I/O waits."""
        resource = self.resources.get(opener.resource)
        replica = None if resource is None else resource.replicas[opener.node]
        if resource is None or replica is None or opener.ended:
            raise WriteFailed(errno.EIO, opener.ended or "the device is gone")
        replica.pending += 1
        try:
            await self.clock.sleep(WRITE_S)
            while True:
                if opener.ended:
                    raise WriteFailed(errno.EIO, opener.ended)
                match write_state(resource, replica, volume):
                    case WriteState.COMPLETES:
                        return commit(resource, replica, volume, self.clock.monotonic())
                    case WriteState.FAILS:
                        raise WriteFailed(errno.EIO, f"I/O error on {opener.resource}, volume {volume}")
                    case WriteState.WAITS:
                        await resource.wait()
        finally:
            replica.pending -= 1

    def close(self, opener: DrbdOpener) -> None:
        """Close a device; with the last opener the node is secondary again, unless a command made it primary."""
        resource = self.resources.get(opener.resource)
        opener.ended = opener.ended or "the device was closed"
        if resource is None or opener not in resource.replicas[opener.node].openers:
            return
        replica = resource.replicas[opener.node]
        replica.openers.remove(opener)
        if not replica.openers and replica.is_primary and not replica.by_hand:
            self._demote(resource, replica)
        resource.end_forced(opener.node)
        resource.settle()

    def _demote(self, resource: ReplicatedResource, replica: DrbdReplica) -> None:
        replica.role, replica.by_hand, replica.unconfirmed = SECONDARY, False, False
        resource.settle()

    async def _promote(
        self, resource: ReplicatedResource, node: str, *, force: bool, by_hand: bool, limit_s: float
    ) -> None:
        replica = resource.find_replica(node)
        until = self.clock.monotonic() + limit_s
        while not replica.is_primary:
            refusal = promotion_refusal(resource, replica, force=force)
            if refusal is None:
                promote(resource, replica, by_hand=by_hand)
                return
            rest_s = until - self.clock.monotonic()
            if rest_s <= 0 or (by_hand and not refusal.passing):
                text = f"{resource.name}: State change failed: ({refusal.code}) {refusal.text}"
                raise Refused(text, remedy=f"see drbdadm status {resource.name} on {node}")
            await resource.wait(max(rest_s, SHORTEST_SLEEP_S))
            replica = resource.find_replica(node)
        replica.by_hand |= by_hand

    # --- for judges

    def find_writers(self, resource: str) -> list[str]:
        """Nodes whose writes can complete now."""
        found = self._find_resource(resource)
        return [
            node
            for node, replica in found.replicas.items()
            if all(
                write_state(found, replica, number) is WriteState.COMPLETES for number in range(len(replica.volumes))
            )
        ]

    def find_quorate(self, resource: str) -> list[str]:
        """Nodes that have quorum, not counting peers that they are about to lose."""
        found = self._find_resource(resource)
        return [
            node
            for node, replica in found.replicas.items()
            if found.is_up(node)
            and all(found.check_quorum(replica, number, verified=True) for number in range(len(replica.volumes)))
        ]

    def newest_generation(self, resource: str, volume: int = 0) -> int:
        """Of the data of the side with quorum; without one, of the newest data that is on any disk."""
        return self._find_survivor(self._find_resource(resource), volume).lineage[-1]

    def list_writes(self, resource: str) -> list[DrbdWrite]:
        """Acknowledged writes, oldest first, with what became of them: whether the same data holds them."""
        found = self._find_resource(resource)
        return [
            msgspec.structs.replace(write, survives=self._find_survivor(found, write.volume).holds(write))
            for write in found.history
        ]

    def _find_survivor(self, resource: ReplicatedResource, volume: int) -> DrbdVolume:
        """Data that is up to date with quorum; else the newest that is whole."""

        def rank(replica: DrbdReplica) -> tuple[bool, bool, bool, int]:
            one = replica.volumes[volume]
            up = resource.is_up(replica.node)
            whole = one.disk in (UP_TO_DATE, CONSISTENT, "Outdated")
            current = up and one.disk == UP_TO_DATE and resource.check_quorum(replica, volume, verified=True)
            return whole, current, replica.is_primary and current, len(one.lineage)

        return max(resource.replicas.values(), key=rank).volumes[volume]

    # --- what is printed

    def resource_names(self, node: str) -> list[str]:
        """Resources that a node has configured, sorted."""
        return sorted(name for name, resource in self.resources.items() if resource.is_up(node))

    def _configured_replicas(self, node: str, resource: str | None) -> list[tuple[ReplicatedResource, DrbdReplica]]:
        self.network.check_node(node)
        names = self.resource_names(node) if resource is None else [resource]
        return [(self._find_resource(name), self.find_replica(node, name)) for name in names]

    def status_text(self, node: str, resource: str | None = None) -> str:
        """``drbdsetup status --json``; ``NotFound`` for a resource that the node has not."""
        return status_text(self._configured_replicas(node, resource), self._newer)

    def show_text(self, node: str, resource: str | None = None) -> str:
        """``drbdsetup show --json``, likewise."""
        return show_text(self._configured_replicas(node, resource), self.times)

    def events_text(self, node: str, resource: str | None = None, *, timestamps: bool = False) -> str:
        """``drbdsetup events2 --now``, likewise."""
        stamp = f"{self._format_now()} " if timestamps else ""
        return "".join(f"{stamp}{line}\n" for line in self._dump(node, resource))

    async def follow_events(
        self, node: str, resource: str | None = None, *, timestamps: bool = False
    ) -> AsyncGenerator[str, None]:
        """``drbdsetup events2``: what there is, then every change; it ends when the node goes down."""
        self.network.check_node(node)
        queue: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue(LINES_LIMIT)
        if not self._readers[node]:
            for name in self.resource_names(node):
                self._shown[node, name] = self._event_objects(node, name)
        dump = [(self._format_now(), line) for line in self._dump(node, resource)]
        if node in self.network.down:
            return
        self._readers[node].append(queue)
        try:
            for stamp, line in dump:
                yield f"{stamp} {line}" if timestamps else line
            while (change := await queue.get()) is not None:
                stamp, line = change
                if resource is None or f" name:{resource} " in f"{line} ":
                    yield f"{stamp} {line}" if timestamps else line
        finally:
            if queue in self._readers[node]:
                self._readers[node].remove(queue)

    def _event_objects(self, node: str, name: str) -> dict[ObjectKey, DrbdObject]:
        resource = self.resources[name]
        return event_objects(resource, resource.replicas[node], self._newer)

    def _dump(self, node: str, resource: str | None) -> list[str]:
        if resource is not None:
            self.find_replica(node, resource)
        names = self.resource_names(node) if resource is None else [resource]
        return [*(line for name in names for line in dump_lines(self._event_objects(node, name))), DUMP_END]

    def _format_now(self) -> str:
        now = self.clock.now()
        return f"{as_datetime(now):%Y-%m-%dT%H:%M:%S}.{int(now % 1 * 1_000_000):06d}+00:00"

    def _show(self, resource: ReplicatedResource) -> None:
        """Tell the readers of all nodes what changed."""
        for node in resource.replicas:
            if not self._readers[node] or node in self.network.down:
                continue
            before = self._shown.get((node, resource.name), {})
            after = {} if resource.deleted else self._event_objects(node, resource.name)
            self._shown[node, resource.name] = after
            stamp = self._format_now()
            for line in change_lines(before, after):
                for queue in list(self._readers[node]):
                    if queue.qsize() >= LINES_LIMIT - 1:
                        self._readers[node].remove(queue)
                        queue.put_nowait(None)
                    else:
                        queue.put_nowait((stamp, line))
