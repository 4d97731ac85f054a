"""Steps that prove that a condemned epoch is dead, or cut off from disks and networks.

Every kind is a step of its own with its own preconditions; all end in the same compare-and-swap, and the first that
the policy lets count wins. A proof is about one epoch: a host that came back meanwhile has another one, and the write
fails. ``deadThrough`` grows here and where a host itself joins again or leaves, nowhere else
(docs/concepts/safety.md#proofs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from outlive.node.fencing.identity import identity_problem
from outlive.node.membership.holders import NOT_PAUSED
from outlive.node.membership.steps import RecordOutcome
from outlive.resources import Cut, FencePhase, MemberRecord, Part, Proof, ProofKind
from outlive.runtime import Precondition, ProtocolStep

_replace = msgspec.structs.replace

CLOCK_ERROR: Final = 0.005
"""p: how far the rate of a machine's crystal may be off; steered clocks are not counted by."""
GUARD_SLACK_S: Final = 2.0
"""g: the guard's tick and the time that a reset takes."""
READINGS_APART_S: Final = 2.0
"""Two readings of the power state lie at least this far apart."""


class TimedReading(Part, frozen=True, kw_only=True):
    """One answer of a BMC after the command, in seconds since that was acknowledged."""

    sent_s: float
    received_s: float
    off: bool
    """It says that the host, and no other, is off."""


def find_last_off_times(readings: Sequence[TimedReading]) -> tuple[float, ...]:
    """When the last readings said off without another one between them: of these the proof is made.

    The first of them counts from when it was received, and the others from when they were sent: the least time between,
    however slow the controller is. A controller that says on in between, as one that lies or wavers, begins anew.
    """
    row: list[float] = []
    for one in readings:
        if not one.off:
            row.clear()
        else:
            row.append(one.sent_s if row else one.received_s)
    return tuple(row)


NAMED: Final = 3
"""Disks and ports that a refusal names."""


class FencedView(Part, frozen=True, kw_only=True):
    """What every proof looks at."""

    host: str
    record: MemberRecord
    observer: str
    epoch: int
    """That is to be proven dead."""
    demanded: int = 1
    """Kinds of proof that must agree."""
    incarnation: str = ""
    """The store's, read fresh; empty: nobody says."""
    paused: bool = False
    """Whether the cluster is paused, read fresh."""


class PowerView(FencedView, frozen=True, kw_only=True):
    """What the BMC said."""

    system_uuid: str = ""
    """That the controller says its system has."""
    expected_uuid: str = ""
    """That the host is known to have."""
    shared_by: tuple[str, ...] = ()
    """Other hosts that are known to have the same."""
    rehearsed: bool = False
    """A rehearsal of this controller succeeded and is in date."""
    off_after_command: tuple[float, ...] = ()
    """Seconds after the acknowledged ``off`` command at which a reading said off, with no other reading between
    (``find_last_off_times``)."""
    answers_s: tuple[float, ...] = ()
    """How long the command and each of these readings took to be answered."""


class WatchdogView(FencedView, frozen=True, kw_only=True):
    """How long nothing was renewed."""

    unchanged_s: float
    """On my monotonic clock, since I first received the version that was condemned (or, after a take-over or a
    restart, since I first saw it revoked)."""
    slack_s: float = GUARD_SLACK_S
    clock_error: float = CLOCK_ERROR


class CutView(FencedView, frozen=True, kw_only=True):
    """What a storage or network controller shuts out."""

    scope: tuple[str, ...] = ()
    """That is to be recorded as shut out."""
    written: tuple[str, ...] = ()
    """That it was ordered to shut out for this epoch, by an order that it took."""
    read_back: tuple[str, ...] = ()
    """That it said afterwards to shut out."""
    evidence: str = ""


class OperatorView(FencedView, frozen=True, kw_only=True):
    """What somebody asserts."""

    fence: str = ""
    """The fence that the assertion is about."""
    name: str = ""
    reason: str = ""


F = TypeVar("F", bound=FencedView)


def emptied_after_s(
    timeout_s: float, watchdog_s: float, slack_s: float = GUARD_SLACK_S, clock_error: float = CLOCK_ERROR
) -> float:
    """After so many seconds without a renewal an armed host is empty or reset, by the clock of any other host.

    The guard feeds for T at most. Where it dies then instead of emptying the host, the kernel closes the watchdog and
    feeds it once more: up to W after the last feed, and the reset comes W after that.
    """
    return (timeout_s + 2 * watchdog_s + slack_s) * (1 + 2 * clock_error)


def safe_after_s(record: MemberRecord, slack_s: float = GUARD_SLACK_S, clock_error: float = CLOCK_ERROR) -> float:
    """The same for the guard that a membership speaks of."""
    return emptied_after_s(record.guard.timeout_s, record.guard.watchdog_s, slack_s, clock_error)


_THAT_EPOCH: Final = Precondition[Any](
    "that-epoch",
    lambda view: view.record.fence.epoch == view.epoch == view.record.epoch,
    lambda view: f"{view.host} is in epoch {view.record.epoch}, and the proof is about epoch {view.epoch}",
)


def _common_preconditions(kind: ProofKind) -> tuple[Precondition[Any], ...]:
    trusted = Precondition[FencedView](
        "trusted",
        lambda view: kind not in view.record.distrusted,
        lambda view: f"a {kind} proof of {view.host} was contradicted before",
    )
    return (_THAT_EPOCH, trusted)


def _record_proof(view: FencedView, kind: ProofKind, evidence: str) -> RecordOutcome:
    record = view.record
    proof = Proof(kind=kind, evidence=evidence, epoch=view.epoch, by=view.observer, fence=record.fence.id)
    others = tuple(one for one in record.fence.findings if one.kind != kind)
    findings = (*others, proof)
    unproven = tuple(one for one in record.fence.unproven if one.kind != kind)
    fence = _replace(record.fence, findings=findings, unproven=unproven)
    if len({one.kind for one in findings}) < view.demanded:
        return RecordOutcome(record=_replace(record, fence=fence))
    said = proof if view.demanded == 1 else _replace(proof, evidence="; ".join(one.evidence for one in findings))
    dead_through = max(record.dead_through, view.epoch)
    fence = _replace(fence, phase=FencePhase.PROVEN)
    joined = view.incarnation or record.incarnation  # nothing runs there that this store does not know of
    return RecordOutcome(
        record=_replace(record, dead_through=dead_through, proof=said, fence=fence, incarnation=joined)
    )


def _prove_by_power(view: PowerView) -> RecordOutcome:
    off, last_off, made = view.off_after_command[0], view.off_after_command[-1], ""
    if len(view.answers_s) >= 3:  # of what the time from sending the command to the last reading is made
        command, first, last = view.answers_s[0], view.answers_s[1], view.answers_s[-1]
        waited = f" + {off - first:.1f} s until it was off" if off - first >= 0.05 else ""
        total = command + last_off + last
        made = (
            f"; {total:.1f} s = command {command:.1f} s{waited} + reading {first:.1f} s + {last_off - off:.1f} s"
            f" + reading {last:.1f} s"
        )
    said = f"the controller of system {view.system_uuid} said off {off:.1f} s and {last_off:.1f} s after the command"
    return _record_proof(view, "power", f"{said}{made}")


def _prove_by_watchdog(view: WatchdogView) -> RecordOutcome:
    guard = view.record.guard
    need = safe_after_s(view.record, view.slack_s, view.clock_error)
    whose = "a laboratory's " if guard.laboratory else ""
    evidence = (
        f"no renewal for {view.unchanged_s:.1f} s, and its armed guard ({whose}T {guard.timeout_s:g} s, "
        f"W {guard.watchdog_s:g} s) leaves nothing after {need:.1f} s"
    )
    return _record_proof(view, "watchdog", evidence)


def _find_missing(view: CutView, found: tuple[str, ...]) -> str:
    """What of the scope is not among these."""
    left = [one for one in view.scope if one not in set(found)]
    return ", ".join(left[:NAMED]) + (f" and {len(left) - NAMED} more" if len(left) > NAMED else "") or "anything"


def _prove_by_cut(view: CutView) -> RecordOutcome:
    record = view.record
    proof = Proof(kind="cut", evidence=view.evidence, epoch=view.epoch, by=view.observer, fence=record.fence.id)
    others = tuple(one for one in record.fence.findings if one.kind != "cut")
    scope = tuple(sorted(set(view.scope)))
    cut = Cut(through=max(record.cut.through, view.epoch), scope=scope, proof=proof)
    return RecordOutcome(record=_replace(record, cut=cut, fence=_replace(record.fence, findings=(*others, proof))))


def _announce(view: FencedView) -> RecordOutcome:
    """What is isolated already, in this very epoch, stays as it was read back."""
    record = view.record
    if record.cut.through >= view.epoch:
        return RecordOutcome(record=record)
    return RecordOutcome(record=_replace(record, cut=Cut(through=view.epoch)))


ISOLATE: Final = ProtocolStep(
    "safety.isolate",
    "A host is about to be isolated from disks and networks, and stays out until it has booted",
    FencedView,
    RecordOutcome,
    (*_common_preconditions("cut"), NOT_PAUSED),
    _announce,
)
"""Written before the first order is sent: an order that nobody knows of would isolate a host that is back."""

PROVE_POWER: Final = ProtocolStep(
    "safety.prove.power",
    "The BMC says, twice, that the host is off",
    PowerView,
    RecordOutcome,
    (
        *_common_preconditions("power"),
        Precondition[PowerView](
            "identity",
            lambda view: not identity_problem(view.system_uuid, view.expected_uuid, view.shared_by),
            lambda view: f"{view.host}: {identity_problem(view.system_uuid, view.expected_uuid, view.shared_by)}",
        ),
        Precondition[PowerView](
            "rehearsed", lambda view: view.rehearsed, lambda view: f"the controller of {view.host} was not rehearsed"
        ),
        Precondition[PowerView](
            "off-twice",
            lambda view: (
                len(view.off_after_command) >= 2
                and view.off_after_command[-1] - view.off_after_command[0] >= READINGS_APART_S
            ),
            lambda view: (
                f"{len(view.off_after_command)} readings said off, and two that lie "
                f"{READINGS_APART_S:g} s apart are needed"
            ),
        ),
        Precondition[PowerView](
            "after-the-command",
            lambda view: view.off_after_command[0] > 0,
            lambda view: "a reading from before the command says nothing",
        ),
    ),
    _prove_by_power,
)

PROVE_WATCHDOG: Final = ProtocolStep(
    "safety.prove.watchdog",
    "The host's armed guard has had time to leave nothing",
    WatchdogView,
    RecordOutcome,
    (
        *_common_preconditions("watchdog"),
        Precondition[WatchdogView](
            "armed",
            lambda view: view.record.guard.armed,
            lambda view: f"the guard of {view.host} was not armed at its last renewal",
        ),
        Precondition[WatchdogView](
            "same-store",
            lambda view: view.incarnation in ("", view.record.incarnation),
            lambda view: (
                f"the store was restored from a backup, and {view.host} has not said since what its guard is armed with"
            ),
        ),
        Precondition[WatchdogView](
            "waited",
            lambda view: view.unchanged_s >= safe_after_s(view.record, view.slack_s, view.clock_error),
            lambda view: (
                f"{view.unchanged_s:.1f} s of {safe_after_s(view.record, view.slack_s, view.clock_error):.1f} s "
                "have passed"
            ),
        ),
    ),
    _prove_by_watchdog,
)

PROVE_CUT: Final = ProtocolStep(
    "safety.prove.cut",
    "The host is shut out of disks and networks",
    CutView,
    RecordOutcome,
    (
        _THAT_EPOCH,
        NOT_PAUSED,
        Precondition[CutView](
            "written",
            lambda view: len(view.scope) > 0 and set(view.scope) <= set(view.written),
            lambda view: f"nobody was ordered to shut {view.host} out of {_find_missing(view, view.written)}",
        ),
        Precondition[CutView](
            "read-back",
            lambda view: set(view.scope) <= set(view.read_back),
            lambda view: f"that {view.host} is shut out of {_find_missing(view, view.read_back)} was not read back",
        ),
    ),
    _prove_by_cut,
)

PROVE_OPERATOR: Final = ProtocolStep(
    "safety.prove.operator",
    "Somebody asserts that the host is off",
    OperatorView,
    RecordOutcome,
    (
        *_common_preconditions("operator"),
        Precondition[OperatorView](
            "this-fence",
            lambda view: view.fence == view.record.fence.id,
            lambda view: f"the assertion is about fence {view.fence}, and this is {view.record.fence.id}",
        ),
        Precondition[OperatorView](
            "named",
            lambda view: view.name.strip() != "" and view.reason.strip() != "",
            lambda view: "an assertion needs a name and a reason",
        ),
    ),
    lambda view: _record_proof(view, "operator", f"{view.name}: {view.reason}"),
)


class LiftView(FencedView, frozen=True, kw_only=True):
    """An isolation that may be in nobody's way any more; ``epoch`` is what it was made through."""


def _lift(view: LiftView) -> RecordOutcome:
    return RecordOutcome(record=_replace(view.record, cut=Cut()))


LIFT_CUT: Final = ProtocolStep(
    "safety.lift-cut",
    "What a host was isolated from may be used by it again",
    LiftView,
    RecordOutcome,
    (
        Precondition[LiftView](
            "booted-since",
            lambda view: (
                0 < view.record.cut.through == view.epoch <= view.record.dead_through and view.epoch < view.record.epoch
            ),
            lambda view: (
                f"{view.host} is isolated through epoch {view.record.cut.through}, is in epoch {view.record.epoch}, "
                f"and is proven dead through {view.record.dead_through}: it stays isolated"
            ),
        ),
        NOT_PAUSED,
    ),
    _lift,
)
