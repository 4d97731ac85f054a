"""Whether two nodes may be connected, by their data and by the primaries that they reach."""

from __future__ import annotations

import enum

from outlive.simulation.drbd.replicas import DrbdReplica
from outlive.simulation.drbd.topology import ResourceTopology


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
        rivals = [one for one in resource.primaries(other.node) if one not in resource.reach(replica.node)]
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
    first = any(one not in resource.reach(b) for one in resource.primaries(a))
    second = any(one not in resource.reach(a) for one in resource.primaries(b))
    if first and second and not resource.options.allow_two_primaries:
        return ConnectionRefusal.TWO_PRIMARIES
    return None
