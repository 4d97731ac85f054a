"""What placement reports to the account of commitments: each answer, in the turn in which it is given.

Placement does not know commitments beyond their reservations. The tracker says how an answer counts, and may put the VM
into a slot (docs/reference/placement.md#tracking).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from outlive.placement.ranking import Ranking


class TrackingOutcome(NamedTuple):
    """How an answer counts: flavor group, and label ``cr_slot`` of the metrics."""

    flavor_group: str
    cr_slot: str


class PlacementTracker(Protocol):
    """Keeps account of commitments."""

    def track(self, ranking: Ranking, hosts: Sequence[str]) -> TrackingOutcome | None:
        """How an answer counts; ``None``: not at all, its flavor names no group. It must not block.

        ``hosts``: those of the answer, the first being selected; empty: none was found. What it changes in the fleet
        counts from now on; what it has to write it writes later.
        """
        ...


UNTRACKED = "no_cr"
"""The label ``cr_slot`` while nobody keeps account."""
FAILED = TrackingOutcome("unknown", "error")
"""How an answer counts whose tracking failed, or whose flavor group nobody knows."""
