"""Neighbours of an EVPN fabric: which hypervisor tells it of a copy.

A hypervisor holds an entry for the MAC and each address of its guests, which the routing daemon makes known to the
fabric. While a migration runs the target only remembers; once the target is active the source withdraws and the target
tells (docs/reference/network-decisions.md#networkneighbours).
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.network.status import MigrationState, StatusView
from outlive.runtime.decisions import Decision


class NeighboursInput(msgspec.Struct, frozen=True, kw_only=True):
    """A copy, as a hypervisor sees it."""

    hypervisor: str
    completed: bool = False
    status: StatusView | None = None
    """Source and target by their hypervisors, not their copies; ``None``: the VM is in no migration."""


class NeighboursResult(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the copy's entries here; never both."""

    delete: bool
    ensure: bool


def decide_neighbours(given: NeighboursInput) -> NeighboursResult:
    """Whether the hypervisor deletes the copy's entries, or sees that they are there."""
    status = given.status
    is_ready = status is not None and status.state is MigrationState.TARGET_READY
    delete = given.completed or (is_ready and status is not None and status.source == given.hypervisor)
    ensure = status is None or (is_ready and status.target == given.hypervisor)
    return NeighboursResult(delete=delete, ensure=ensure and not delete)


NEIGHBOURS: Final = Decision(
    "network.neighbours",
    decide_neighbours,
    NeighboursInput,
    NeighboursResult,
    "Whether a hypervisor tells an EVPN fabric of a copy",
    nulls_are_absent=True,
)
