"""A fence: its phases, which step leads from which phase to which, and the steps.

``TRANSITIONS`` is the table; a step that it does not allow is refused (preconditions ``held``, ``revoked``, ``off``).
Every step is pure and ends in one compare-and-swap of the host's Membership: condemning on exactly the version that
was seen unchanged for so long, so that a host which renewed meanwhile lives. The kinds of proof are in ``proofs``
(docs/concepts/safety.md#condemning).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from outlive.node.membership.steps import RecordOutcome
from outlive.resources import FencePhase, FenceRecord, MemberRecord, Part, Unproven
from outlive.runtime import Precondition, ProtocolStep

_replace = msgspec.structs.replace

POWER_ON_WAITS_S: Final = (0.0, 60.0, 300.0)
"""Before each try to switch a host on again, since its Membership last changed; so many tries there are."""
TAKEN: Final = "ok"
"""The result of a command to switch on that the BMC took."""


class FenceEvent(enum.StrEnum):
    """What moves a fence."""

    CONDEMN = "condemn"
    TAKE_OVER = "take-over"
    ATTEMPT = "attempt"
    UNCONFIRMED = "unconfirmed"
    PROVE = "prove"
    SWITCH_ON = "switch-on"


TRANSITIONS: Final[Mapping[FencePhase, Mapping[FenceEvent, FencePhase]]] = {
    FencePhase.NONE: {FenceEvent.CONDEMN: FencePhase.CONDEMNED},
    FencePhase.CONDEMNED: {
        FenceEvent.TAKE_OVER: FencePhase.CONDEMNED,
        FenceEvent.ATTEMPT: FencePhase.CONDEMNED,
        FenceEvent.UNCONFIRMED: FencePhase.UNCONFIRMED,
        FenceEvent.PROVE: FencePhase.PROVEN,
    },
    FencePhase.UNCONFIRMED: {
        FenceEvent.TAKE_OVER: FencePhase.CONDEMNED,
        FenceEvent.ATTEMPT: FencePhase.CONDEMNED,
        FenceEvent.UNCONFIRMED: FencePhase.UNCONFIRMED,
        FenceEvent.PROVE: FencePhase.PROVEN,
    },
    FencePhase.PROVEN: {FenceEvent.SWITCH_ON: FencePhase.PROVEN},
}
"""Phase → event → next phase. A host that joins again ends its fence, whatever phase that is in."""


def phase_of(record: MemberRecord) -> FencePhase:
    """The phase of the fence that the host is under now; none while it holds its membership, or has left it."""
    if record.state != "Revoked":
        return FencePhase.NONE
    if record.dead_through >= record.fence.epoch:
        return FencePhase.PROVEN
    unconfirmed = record.fence.phase is FencePhase.UNCONFIRMED
    return FencePhase.UNCONFIRMED if unconfirmed else FencePhase.CONDEMNED


def allows(record: MemberRecord, event: FenceEvent) -> bool:
    """Whether the fence may take this step now."""
    return event in TRANSITIONS[phase_of(record)]


def is_open(record: MemberRecord) -> bool:
    """Whether somebody still has to prove this host's condemned epoch dead."""
    return phase_of(record) in (FencePhase.CONDEMNED, FencePhase.UNCONFIRMED)


def is_off(record: MemberRecord) -> bool:
    """Whether the host is condemned and proven dead, and has not come back."""
    return phase_of(record) is FencePhase.PROVEN and record.fence.epoch > 0


def fence_id(host: str, record: MemberRecord) -> str:
    """The fence's name: of this host, this epoch, this daemon process."""
    return f"{host}.{record.epoch}.{record.nonce[:6]}"


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
    """Why it was checked less often than usual, or not; for those who ask why later."""


def _condemn(view: CondemnView) -> RecordOutcome:
    record = view.record
    silent = f"not renewed for {view.unchanged_s:.1f} s (limit {view.silence_s:g} s)"
    reason = view.reason or "; ".join(one for one in (silent, view.observers, view.looks) if one)
    fence = FenceRecord(
        id=fence_id(view.host, record),
        epoch=record.epoch,
        phase=FencePhase.CONDEMNED,
        by=view.observer,
        reason=reason,
    )
    return RecordOutcome(record=_replace(record, state="Revoked", fence=fence))


CONDEMN: Final = ProtocolStep(
    "safety.condemn",
    "A silent host is condemned",
    CondemnView,
    RecordOutcome,
    (
        Precondition[CondemnView](
            "held",
            lambda view: view.record.state == "Held" and allows(view.record, FenceEvent.CONDEMN),
            lambda view: f"{view.host} is {view.record.state}",
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
    RecordOutcome,
    (
        Precondition[TakeOverView](
            "revoked",
            lambda view: allows(view.record, FenceEvent.TAKE_OVER),
            lambda view: f"{view.host} has no fence to carry on",
        ),
        Precondition[TakeOverView](
            "fencer-silent",
            lambda view: view.unchanged_s >= view.limit_s,
            lambda view: f"{view.record.fence.by} moved it {view.unchanged_s:.1f} s ago",
        ),
    ),
    lambda view: RecordOutcome(
        record=_replace(view.record, fence=_replace(view.record.fence, by=view.observer, phase=FencePhase.CONDEMNED))
    ),
)


class AttemptView(Part, frozen=True, kw_only=True):
    """A fencer about to send a power command, or to write down what has proven nothing."""

    host: str
    record: MemberRecord
    observer: str
    phase: str = "condemned"
    """``condemned`` before a command, ``unconfirmed`` once no kind of proof has proven anything."""
    unproven: tuple[Unproven, ...] = ()
    """Kinds that have failed; with ``condemned``: that is written and no attempt is counted."""


def _attempt(view: AttemptView) -> RecordOutcome:
    fence = view.record.fence
    if view.phase == "unconfirmed":
        changed = _replace(fence, phase=FencePhase.UNCONFIRMED)
    elif view.unproven:
        changed = fence
    else:
        changed = _replace(fence, phase=FencePhase.CONDEMNED, attempt=fence.attempt + 1)
    return RecordOutcome(
        record=_replace(view.record, fence=_replace(changed, unproven=view.unproven or changed.unproven))
    )


ATTEMPT: Final = ProtocolStep(
    "safety.attempt",
    "A fencer writes down that it tries, before each power command",
    AttemptView,
    RecordOutcome,
    (
        Precondition[AttemptView](
            "revoked",
            lambda view: allows(
                view.record, FenceEvent.UNCONFIRMED if view.phase == "unconfirmed" else FenceEvent.ATTEMPT
            ),
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


class TrustView(Part, frozen=True, kw_only=True):
    """A host whose distrusted kinds of proof an operator wants trusted again."""

    host: str
    record: MemberRecord
    word: str
    """That the operator has set (``spec.fencing.trustAgain``)."""


TRUST_AGAIN: Final = ProtocolStep(
    "safety.trust-again",
    "An operator lets distrusted kinds of proof count again",
    TrustView,
    RecordOutcome,
    (
        Precondition[TrustView](
            "asked",
            lambda view: view.word not in ("", view.record.trust_word),
            lambda view: f"nobody has asked for it since {view.record.trust_word!r}",
        ),
        Precondition[TrustView](
            "distrusted", lambda view: len(view.record.distrusted) > 0, lambda view: f"{view.host} is trusted"
        ),
    ),
    lambda view: RecordOutcome(record=_replace(view.record, distrusted=(), trust_word=view.word)),
)
"""What the operator had set when a kind was distrusted is in the Membership, so that a reader sees a change."""


class SwitchOnView(Part, frozen=True, kw_only=True):
    """A host that was proven dead."""

    host: str
    record: MemberRecord
    fence: str
    """That it was proven dead by, when its VMs were looked for."""
    holds: tuple[str, ...] = ()
    """VMs that are still held there in the epoch that is dead, or before."""
    limit: int = len(POWER_ON_WAITS_S)


class SwitchedOnView(Part, frozen=True, kw_only=True):
    """What became of a command to switch on."""

    host: str
    record: MemberRecord
    fence: str
    tries: int
    """Of the command."""
    result: str
    """``ok``, or why not."""


def _switch_on(view: SwitchOnView) -> RecordOutcome:
    fence = view.record.fence
    once_more = _replace(fence.power_on, tries=fence.power_on.tries + 1)
    return RecordOutcome(record=_replace(view.record, fence=_replace(fence, power_on=once_more)))


def _switched_on(view: SwitchedOnView) -> RecordOutcome:
    fence = view.record.fence
    noted = _replace(fence.power_on, result=view.result)
    return RecordOutcome(record=_replace(view.record, fence=_replace(fence, power_on=noted)))


SWITCH_ON: Final = ProtocolStep(
    "fence.switch-on",
    "A host that was proven dead is about to be switched on again",
    SwitchOnView,
    RecordOutcome,
    (
        Precondition[SwitchOnView](
            "off",
            lambda view: is_off(view.record) and view.record.fence.id == view.fence,
            lambda view: f"{view.host} is not proven dead by fence {view.fence}, or has come back",
        ),
        Precondition[SwitchOnView](
            "nothing-held", lambda view: not view.holds, lambda view: f"{view.holds[0]} is still held by {view.host}"
        ),
        Precondition[SwitchOnView](
            "tries-left",
            lambda view: view.record.fence.power_on.tries < view.limit and view.record.fence.power_on.result != TAKEN,
            lambda view: f"{view.host} was switched on, or that was tried {view.record.fence.power_on.tries} times",
        ),
    ),
    _switch_on,
)
SWITCHED_ON: Final = ProtocolStep(
    "fence.switched-on",
    "What became of switching a host on is written down",
    SwitchedOnView,
    RecordOutcome,
    (
        Precondition[SwitchedOnView](
            "that-try",
            lambda view: (
                is_off(view.record)
                and (view.record.fence.id, view.record.fence.power_on.tries) == (view.fence, view.tries)
            ),
            lambda view: f"{view.host} has come back, or somebody has tried again",
        ),
    ),
    _switched_on,
)
