"""Who has quorum, as the kernel counts it: a pure function of what one replica sees.

Voters are the replicas that have a disk. A replica counts those that it is directly connected to, never those that it
reaches through others. So of two groups of nodes that do not reach each other at most one has quorum under
``majority`` and ``all``; a plain number lets two groups have it.
"""

from __future__ import annotations

from typing import Final

import msgspec

OFF: Final = "off"
"""The setting without quorum: the kernel then prints that there is one."""


class Votes(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica with a disk sees of one volume."""

    present: int
    """Voters that are connected and have their disk, this one among them."""
    outdated: int = 0
    """Absent voters that are known to be outdated: they cannot be promoted."""
    unknown: int = 0
    """Other absent voters."""
    tie_breakers: int = 0
    """Diskless nodes that are connected."""
    absent_tie_breakers: int = 0


def has_quorum(votes: Votes, setting: str, *, before: bool) -> bool:
    """Whether these votes are quorum. ``setting``: ``off``, ``majority``, ``all`` or a decimal number.

    ``before``: whether this replica had quorum until now. Exactly half of an even number of voters keep quorum, and
    never gain it, with most of the diskless nodes on their side. Absent voters that are known to be outdated do not
    count, provided that all absent ones are.
    """
    voters = votes.present + votes.unknown + (votes.outdated if votes.unknown else 0)
    match setting:
        case "off":
            return True
        case "majority":
            needed = voters // 2 + 1
        case "all":
            needed = voters
        case number:
            needed = int(number)
    if votes.present >= needed:
        return True
    tied = setting == "majority" and voters % 2 == 0 and votes.present == needed - 1
    most = (votes.tie_breakers + votes.absent_tie_breakers) // 2 + 1
    return before and tied and votes.tie_breakers >= most
