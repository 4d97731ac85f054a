"""Rows C and T: a silent host is condemned, and somebody carries the fence on if its fencer falls silent.

Silence is judged by the fencer's own monotonic clock since it last saw the document change, never by comparing the
clocks of two machines. Condemning is a compare-and-swap on exactly the version that was seen unchanged for so long: had
the host renewed meanwhile, it fails, and the host lives. The rules about storms, freshness and grace only keep healthy
hosts running when it is the fencer that is blind; safety does not need them (docs/concepts/safety.md#condemning).
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.resources import FenceRecord, MemberRecord, Part
from outlive.runtime.steps import Outcome, Precondition, ProtocolStep

_replace = msgspec.structs.replace


class CondemnView(Part, frozen=True, kw_only=True):
    """A host that looks dead."""

    host: str
    record: MemberRecord
    """As it was in the version that was seen unchanged."""
    version: str = ""
    """That version, for those who ask why later."""
    unchanged_s: float
    """On my monotonic clock, since I first received that version."""
    silence_s: float
    observer: str
    hold: str = ""
    """A rule, read fresh, that forbids to condemn anybody or this host: ``maintenance``, ``storm``, …; empty: none."""
    asked_by: str = ""
    """An operator who asks for the fence, silence or not."""
    reason: str = ""
    observers: str = ""
    """Who else saw the host silent, or why one observer sufficed; for those who ask why later."""
    looks: str = ""
    """Why it was looked at less often than usual, or not; for those who ask why later."""


class FenceOutcome(Outcome, frozen=True, kw_only=True):
    """The record to write on exactly the version that was seen."""

    record: MemberRecord | None = None


def fence_id(host: str, record: MemberRecord) -> str:
    """The fence's name: of this host, this epoch, this daemon process."""
    return f"{host}.{record.epoch}.{record.nonce[:6]}"


def _condemn(view: CondemnView) -> FenceOutcome:
    record = view.record
    silent = f"not renewed for {view.unchanged_s:.1f} s (limit {view.silence_s:g} s)"
    reason = view.reason or "; ".join(one for one in (silent, view.observers, view.looks) if one)
    fence = FenceRecord(
        id=fence_id(view.host, record), epoch=record.epoch, phase="condemned", by=view.observer, reason=reason
    )
    return FenceOutcome(record=_replace(record, state="Revoked", fence=fence))


CONDEMN: Final = ProtocolStep(
    "safety.condemn",
    "A silent host is condemned",
    CondemnView,
    FenceOutcome,
    (
        Precondition[CondemnView](
            "held", lambda view: view.record.state == "Held", lambda view: f"{view.host} is {view.record.state}"
        ),
        Precondition[CondemnView](
            "silent",
            lambda view: view.asked_by != "" or view.unchanged_s >= view.silence_s,
            lambda view: f"{view.host} renewed {view.unchanged_s:.1f} s ago",
        ),
        Precondition[CondemnView](
            "no-hold", lambda view: not view.hold, lambda view: f"nobody is condemned now: {view.hold}"
        ),
    ),
    _condemn,
)


class TakeOverView(Part, frozen=True, kw_only=True):
    """A fence that nobody seems to carry on."""

    host: str
    record: MemberRecord
    observer: str
    unchanged_s: float
    """On my monotonic clock, since I last saw the document change."""
    limit_s: float


TAKE_OVER: Final = ProtocolStep(
    "safety.take-over",
    "A fence whose fencer fell silent is carried on by another",
    TakeOverView,
    FenceOutcome,
    (
        Precondition[TakeOverView](
            "revoked",
            lambda view: view.record.state == "Revoked" and view.record.dead_through < view.record.fence.epoch,
            lambda view: f"{view.host} has no fence to carry on",
        ),
        Precondition[TakeOverView](
            "fencer-silent",
            lambda view: view.unchanged_s >= view.limit_s,
            lambda view: f"{view.record.fence.by} moved it {view.unchanged_s:.1f} s ago",
        ),
    ),
    lambda view: FenceOutcome(
        record=_replace(view.record, fence=_replace(view.record.fence, by=view.observer, phase="condemned"))
    ),
)


class AttemptView(Part, frozen=True, kw_only=True):
    """A fencer about to send a power command, or to say that nothing was proven."""

    host: str
    record: MemberRecord
    observer: str
    phase: str = "condemned"
    """``condemned`` before a command, ``unconfirmed`` after one that proved nothing."""
    reason: str = ""


def _attempt(view: AttemptView) -> FenceOutcome:
    fence = view.record.fence
    if view.phase == "unconfirmed":
        changed = _replace(fence, phase="unconfirmed", reason=view.reason or fence.reason)
    else:
        changed = _replace(fence, phase="condemned", attempt=fence.attempt + 1, reason=view.reason or fence.reason)
    return FenceOutcome(record=_replace(view.record, fence=changed))


ATTEMPT: Final = ProtocolStep(
    "safety.attempt",
    "A fencer writes down that it tries, before each power command",
    AttemptView,
    FenceOutcome,
    (
        Precondition[AttemptView](
            "revoked",
            lambda view: view.record.state == "Revoked" and view.record.dead_through < view.record.fence.epoch,
            lambda view: f"{view.host} has no fence to carry on",
        ),
        Precondition[AttemptView](
            "mine",
            lambda view: view.record.fence.by == view.observer,
            lambda view: f"{view.record.fence.by} carries this fence on",
        ),
    ),
    _attempt,
)
