"""The former name of the separation part of the conflict index."""

from __future__ import annotations

from collections.abc import Iterable

from outlive.failover.conflicts import ConflictIndex
from outlive.failover.separation import SeparationIndex, ServerGroup


def Separating(  # noqa: N802 - stands in for the former class
    counters: ConflictIndex, groups: Iterable[ServerGroup] = ()
) -> SeparationIndex:
    """The separation of this index, with these groups."""
    counters.separation.take(groups)
    return counters.separation
