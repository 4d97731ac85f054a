"""The state of a VM's migration, derived from its copies and never stored; and what neighbours are to know of it.

    (none) ── target created ──► InProgress ── ready time ──► TargetDomainReady ── source ends ──► TargetDomainReady
                                  │      └ source ends first ──► (none)          └ next target ──► InProgress
                                  └ target completes ──► Failed ── target deleted ──► (none)

A target keeps its ready time for the rest of its life: ``TargetDomainReady`` without a source is the normal state of a
VM that was once migrated, and whatever is done in it must be idempotent
(docs/design/network-decisions.md#networkstatus).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from outlive.base import BadInput
from outlive.network.copies import Copy, CopyQuestion, age_key, find_copies
from outlive.runtime import Decision

# Neighbours of an EVPN fabric: which hypervisor tells it of a copy.
#
# A hypervisor holds an entry for the MAC and each address of its guests, which the routing daemon makes known to the
# fabric. While a migration runs the target only remembers; once the target is active the source withdraws and the
# target tells (docs/design/network-decisions.md#networkneighbours).


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


LIVING_LIMIT: Final = 2
"""Living copies that a migration has at most."""


class AmbiguousMigration(BadInput):
    """More copies of a VM live than a migration has."""

    code = "ambiguous-migration"


class MigrationState(enum.StrEnum):
    """How far a migration has come."""

    IN_PROGRESS = "InProgress"
    TARGET_READY = "TargetDomainReady"
    FAILED = "Failed"


class MigrationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A migration as its copies show it."""

    state: MigrationState
    source: Copy | None
    """``None`` only with ``TARGET_READY``: it is gone."""
    target: Copy


def discover_migration(copies: Sequence[Copy]) -> MigrationStatus | None:
    """The migration that the copies of one VM are in; ``None``: none. ``AmbiguousMigration`` names all living ones."""
    ordered = sorted(copies, key=age_key)
    living = [copy for copy in ordered if not copy.completed]
    if len(ordered) == 1 and ordered[0].ready_at:
        return MigrationStatus(state=MigrationState.TARGET_READY, source=None, target=ordered[0])
    if len(ordered) < LIVING_LIMIT or not living:
        return None
    target = ordered[-1]
    if target.completed:
        return MigrationStatus(state=MigrationState.FAILED, source=living[0], target=target)
    if len(living) > LIVING_LIMIT:
        names = ", ".join(f"{copy.namespace}/{copy.name}" for copy in living)
        raise AmbiguousMigration(
            f"{target.vm} has {len(living)} living copies: {names}", remedy="stop those that nobody needs"
        )
    if len(living) == 1:
        ready = MigrationStatus(state=MigrationState.TARGET_READY, source=None, target=target)
        return ready if target.ready_at else None
    state = MigrationState.TARGET_READY if target.ready_at else MigrationState.IN_PROGRESS
    return MigrationStatus(state=state, source=living[0], target=target)


def has_status_changed(old: Copy | None, new: Copy | None) -> bool:
    """True if the ready time of a copy changed; an event filter."""
    return old is not None and new is not None and (old.ready_at or "") != (new.ready_at or "")


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """A migration, its copies by id."""

    state: MigrationState
    source: str | None = None
    """``None``: it is gone, which is normal long after a migration."""
    target: str


class StatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """The migration that the asked copy is in."""

    status: StatusView | None


class StatusChangeInput(msgspec.Struct, frozen=True, kw_only=True):
    """A copy before and after an event."""

    old: Copy | None = None
    new: Copy | None = None


class StatusChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the event says something of a migration."""

    changed: bool


def _decide_status(question: CopyQuestion) -> StatusResult:
    status = discover_migration(find_copies(question.find_asked().vm, question.copies))
    if status is None:
        return StatusResult(status=None)
    source = status.source.id if status.source is not None else None
    return StatusResult(status=StatusView(state=status.state, source=source, target=status.target.id))


STATUS: Final = Decision(
    "network.status",
    _decide_status,
    CopyQuestion,
    StatusResult,
    "The migration that a VM is in",
    nulls_are_absent=True,
)
STATUS_CHANGED: Final[Decision[StatusChangeInput, StatusChangeResult]] = Decision(
    "network.status_changed",
    lambda given: StatusChangeResult(changed=has_status_changed(given.old, given.new)),
    StatusChangeInput,
    StatusChangeResult,
    "Whether an event of a copy says something of its migration",
    nulls_are_absent=True,
)
