"""Who may be promoted, and which writes complete: the two questions on which one writer at a time depends."""

from __future__ import annotations

import enum

import msgspec

from outlive.simulation.drbd.replicas import (
    BLOCK_KIB,
    CONSISTENT,
    INCONSISTENT,
    OUTDATED,
    PRIMARY,
    UP_TO_DATE,
    DrbdReplica,
    DrbdVolume,
    DrbdWrite,
)
from outlive.simulation.drbd.resource import ReplicatedResource


class PromotionRefusal(msgspec.Struct, frozen=True):
    """Why a node is not promoted, as ``drbdsetup`` prints it."""

    code: int
    text: str
    passing: bool = False
    """It waits for a connection that may be lost; soon it will be known."""


class WriteState(enum.Enum):
    """What becomes of a write now."""

    COMPLETES = enum.auto()
    WAITS = enum.auto()
    FAILS = enum.auto()


def promotion_refusal(resource: ReplicatedResource, replica: DrbdReplica, *, force: bool) -> PromotionRefusal | None:
    """Why this node may not become primary now; None: it may. ``force`` takes data that may be old."""
    node = replica.node
    if stale := resource.stale_connections(node):
        for one, name in stale:
            resource.ping(one, name)
        return PromotionRefusal(-25, "Timeout in operation", passing=True)
    links = resource.linked_replicas(node)
    two = resource.options.allow_two_primaries
    if any(one is not replica and not (two and one in links) for one in resource.reachable_primaries(node)):
        return PromotionRefusal(-1, "Multiple primaries not allowed by config")
    if replica.force_io_failures:
        return PromotionRefusal(-12, "Device is held open by someone")
    if not all(volume.quorum for volume in replica.volumes):
        return PromotionRefusal(-27, "No quorum")
    if not force and not all(map(replica.has_data, range(len(replica.volumes)))):
        return PromotionRefusal(-2, "Need access to UpToDate data")
    return None


def promote(resource: ReplicatedResource, replica: DrbdReplica, *, by_hand: bool) -> None:
    """Make it primary; replicas that reach it through others only are outdated by that."""
    links = resource.linked_replicas(replica.node)
    for number, volume in enumerate(replica.volumes):
        if volume.disk in (INCONSISTENT, OUTDATED, CONSISTENT) and not replica.has_data(number):
            volume.disk, replica.new_generation = UP_TO_DATE, True
            for one in resource.reachable_replicas(replica.node):
                one.volumes[number].newest = volume.lineage
        voters = [one for one in resource.replicas.values() if not one.client and one is not replica]
        replica.new_generation |= any(one not in links or one.volumes[number].disk != UP_TO_DATE for one in voters)
    replica.role, replica.by_hand, replica.promotion = PRIMARY, by_hand, next(resource.promotions)
    for one in links:
        one.peers[replica.node].role = PRIMARY
    resource.settle()


def write_state(resource: ReplicatedResource, replica: DrbdReplica, volume: int) -> WriteState:
    """What becomes of a write at this node now. It completes when every connected replica can have it."""
    options = resource.options
    if not resource.is_up(replica.node) or replica.force_io_failures or not replica.is_primary:
        return WriteState.FAILS
    if not all(one.quorum for one in replica.volumes) and not replica.suspended_quorum:
        return WriteState.FAILS
    if not replica.has_data(volume) and options.on_no_data_accessible == "io-error":
        return WriteState.FAILS
    if replica.suspended or replica.unconfirmed or not replica.has_data(volume):
        return WriteState.WAITS
    links = resource.linked_replicas(replica.node)
    replicated = [name for name, peer in replica.peers.items() if peer.is_connected and not peer.client]
    if any(not resource.is_linked(replica.node, name) for name in replicated):
        return WriteState.WAITS
    if not any(one.volumes[volume].disk == UP_TO_DATE for one in (replica, *links)):
        return WriteState.WAITS
    if not all(resource.check_quorum(replica, number, verified=True) for number in range(len(replica.volumes))):
        return WriteState.WAITS
    earlier = [one for one in resource.reachable_primaries(replica.node) if one is not replica and one not in links]
    if any(one.promotion < replica.promotion for one in earlier):
        return WriteState.WAITS
    return WriteState.COMPLETES


def commit(resource: ReplicatedResource, replica: DrbdReplica, number: int, at_s: float) -> DrbdWrite:
    """Put a write into all data that is connected, in a new generation if a replica misses it."""
    links = [replica, *resource.linked_replicas(replica.node)]
    if replica.new_generation:
        replica.new_generation = False
        for index in range(len(replica.volumes)):
            volumes = [one.volumes[index] for one in links]
            lineage = (*volumes[0].newest, next(resource.generations))
            current = [volume for volume in volumes if _is_current(volume)]
            for volume in volumes:
                volume.newest = lineage
            for volume in current:
                volume.lineage = lineage
    current = [one.volumes[number] for one in links if _is_current(one.volumes[number])]
    write = DrbdWrite(
        number=next(resource.writes),
        node=replica.node,
        volume=number,
        generation=current[0].lineage[-1],
        at_s=at_s,
    )
    for volume in current:
        volume.through = write.number
    replica.volumes[number].written_kib += BLOCK_KIB
    for name, peer in replica.peers.items():
        if peer.is_connected and not peer.client:
            peer.sent_kib += BLOCK_KIB
            resource.replicas[name].peers[replica.node].received_kib += BLOCK_KIB
            resource.replicas[name].volumes[number].written_kib += BLOCK_KIB
    resource.history.append(write)
    return write


def _is_current(volume: DrbdVolume) -> bool:
    return volume.disk in (UP_TO_DATE, OUTDATED, CONSISTENT) and not volume.is_old
