"""How a daemon enters, or comes back into, its host's membership: rows J1 to J4, and what follows from J3.

Each row is a step; ``join`` takes the one whose case it is. The answer is the record to write by compare-and-swap on
the record that was looked at, and whether every local domain has to be destroyed, and seen to be gone, before that.
A record that names another machine, or no record where this host remembers one, is never written over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from outlive.resources import GuardRecord, MemberRecord, Part, Proof, ProofKind, SilentPeer
from outlive.runtime import Outcome, Precondition, ProtocolStep, Refusal

_replace = msgspec.structs.replace


class RememberedMembership(Part, frozen=True, kw_only=True):
    """What the host's own disk says of its last membership; written before an epoch is first used."""

    uid: str = ""
    epoch: int = 0
    incarnation: str = ""
    """Of the store in which that membership was last registered; empty: it never was."""


class JoinView(Part, frozen=True, kw_only=True):
    """What a starting daemon sees, and what a running one sees that was revoked."""

    host: str
    record: MemberRecord | None = None
    uid: str = ""
    """Of the Membership that was read."""
    machine_id: str
    boot_id: str
    nonce: str
    """New for every daemon process."""
    remembered: RememberedMembership | None = None
    domains: tuple[str, ...] = ()
    """VMs with a domain on this host, whatever its state; creates under way count as well."""
    gate_closed: bool = False
    """Whether the guard closed the gate, and killed, at any time since the record's epoch began on this host."""
    was_running: bool = False
    """Whether a domain of the record's epoch was still there when the daemon first looked after that epoch."""
    isolated: bool = False
    """Whether storage says that it isolates the epoch that this host remembers, in a store that went back."""
    guard: GuardRecord = GuardRecord()
    trust_word: str = ""
    """What the operator has said so far to have distrusted kinds of proof trusted again."""


class RecordOutcome(Outcome, frozen=True, kw_only=True):
    """The record to write on exactly the version that was seen."""

    record: MemberRecord | None = None


class JoinOutcome(RecordOutcome, frozen=True, kw_only=True):
    """What to write, and what to do before."""

    row: str = ""
    """``J0`` (first registration) to ``J4``."""
    destroy_first: bool = False
    """Destroy every local domain, see that none is left, and look again."""
    contradicted: ProofKind | None = None
    """A kind of proof that this host shows to have been wrong."""


def _hold_record(view: JoinView, record: MemberRecord, epoch: int, **changes: object) -> MemberRecord:
    """The record as its daemon holds it from now on; the fence that may have been under way is over."""
    return _replace(
        record,
        machine_id=view.machine_id,
        boot_id=view.boot_id,
        epoch=epoch,
        seq=record.seq + 1,
        nonce=view.nonce,
        state="Held",
        guard=view.guard,
        **changes,
    )


def _build_record(view: JoinView) -> MemberRecord:
    assert view.record is not None
    return view.record


def _join_first(view: JoinView) -> JoinOutcome:
    record = MemberRecord(
        machine_id=view.machine_id, boot_id=view.boot_id, epoch=1, seq=1, nonce=view.nonce, guard=view.guard
    )
    return JoinOutcome(row="J0", record=record)


def _join_after_boot(view: JoinView) -> JoinOutcome:
    record = _build_record(view)
    last = max(record.epoch, view.remembered.epoch if view.remembered else 0)
    proof = Proof(
        kind="reboot",
        evidence=f"{view.host} runs boot {view.boot_id} now; epoch {last} was of boot {record.boot_id}",
        epoch=last,
        by=view.host,
        fence=record.fence.id,
    )
    if record.dead_through >= last:
        return JoinOutcome(row="J1", record=_hold_record(view, record, last + 1))
    return JoinOutcome(row="J1", record=_hold_record(view, record, last + 1, dead_through=last, proof=proof))


def _join_in_same_boot(view: JoinView) -> JoinOutcome:
    record = _build_record(view)
    return JoinOutcome(row="J2", record=_hold_record(view, record, record.epoch))


def _join_after_revocation(view: JoinView) -> JoinOutcome:
    record = _build_record(view)
    return JoinOutcome(row="J3", record=_hold_record(view, record, record.epoch + 1))


def _proven_dead(view: JoinView) -> JoinOutcome:
    record = _build_record(view)
    last = max(record.epoch, view.remembered.epoch if view.remembered else 0)
    wrong: ProofKind | None = None
    proof = record.proof
    # Who left cleanly said so itself, while it was up and its gate open: only a domain speaks against that.
    if proof is not None and (view.was_running or (proof.kind != "self-cleaned" and not view.gate_closed)):
        wrong = proof.kind
    distrusted = record.distrusted
    if wrong is not None and wrong not in distrusted:
        distrusted = (*distrusted, wrong)
    word = record.trust_word if wrong is None else view.trust_word
    held = _hold_record(view, record, last + 1, distrusted=distrusted, trust_word=word)
    return JoinOutcome(row="J4", record=held, contradicted=wrong)


_NO_RECORD: Final = Precondition[JoinView](
    "no-record", lambda view: view.record is None, lambda view: f"{view.host} is registered already"
)
_NOTHING_RUNS: Final = Precondition[JoinView](
    "nothing-runs",
    lambda view: not view.domains,
    lambda view: f"{view.host} still has {len(view.domains)} domains, such as {view.domains[0]}",
)
_NEVER_MEMBER: Final = Precondition[JoinView](
    "never-a-member",
    lambda view: view.remembered is None,
    lambda view: (
        f"{view.host} was a member in epoch {view.remembered.epoch if view.remembered else 0}, "
        f"and the store has forgotten it: switch it off, confirm that (outlive fence {view.host} --confirm-off "
        "--reason ...), and switch it on"
    ),
)
_RECORD: Final = Precondition[JoinView](
    "record", lambda view: view.record is not None, lambda view: f"{view.host} is not registered"
)
_SAME_MACHINE: Final = Precondition[JoinView](
    "same-machine",
    lambda view: _build_record(view).machine_id == view.machine_id,
    lambda view: (
        f"{view.host} is registered for machine {_build_record(view).machine_id}, and this is {view.machine_id}: "
        "if the old machine is off for good, delete its Membership"
    ),
)
_NEW_BOOT: Final = Precondition[JoinView](
    "new-boot",
    lambda view: _build_record(view).boot_id != view.boot_id,
    lambda view: f"{view.host} has not booted since epoch {_build_record(view).epoch}",
)
_SAME_BOOT: Final = Precondition[JoinView](
    "same-boot",
    lambda view: _build_record(view).boot_id == view.boot_id,
    lambda view: f"{view.host} has booted since epoch {_build_record(view).epoch}",
)
_NOT_FORGOTTEN: Final = Precondition[JoinView](
    "not-rolled-back",
    lambda view: (
        view.remembered is None
        or (view.remembered.uid == view.uid and view.remembered.epoch <= _build_record(view).epoch)
    ),
    lambda view: f"{view.host} was in a later epoch than the store says: the store was rolled back",
)
_HELD: Final = Precondition[JoinView](
    "not-revoked",
    lambda view: _build_record(view).state != "Revoked",
    lambda view: f"{view.host} was condemned in epoch {_build_record(view).epoch}",
)
_NOT_DEAD: Final = Precondition[JoinView](
    "own-epoch-not-dead",
    lambda view: _build_record(view).dead_through < _build_record(view).epoch,
    lambda view: f"epoch {_build_record(view).epoch} of {view.host} is proven dead: everything here has to go first",
)
_DEAD: Final = Precondition[JoinView](
    "own-epoch-dead",
    lambda view: _build_record(view).dead_through >= _build_record(view).epoch,
    lambda view: f"epoch {_build_record(view).epoch} of {view.host} is not proven dead",
)


def explain_isolation(host: str) -> str:
    """Why the host stays out."""
    return f"{host} was isolated from disks and networks in this boot: others may be using them"


_NOT_ISOLATED: Final = Precondition[JoinView](
    "not-isolated",
    lambda view: not view.isolated and _build_record(view).cut.through < _build_record(view).epoch,
    lambda view: explain_isolation(view.host),
)


def _join_step(
    row: str, doc: str, preconditions: tuple[Precondition[JoinView], ...], effect: object
) -> ProtocolStep[JoinView, JoinOutcome]:
    return ProtocolStep(f"safety.join.{row.lower()}", doc, JoinView, JoinOutcome, preconditions, effect)  # type: ignore[arg-type]


J0: Final = _join_step(
    "J0", "A host registers for the first time", (_NO_RECORD, _NOTHING_RUNS, _NEVER_MEMBER), _join_first
)
J1: Final = _join_step(
    "J1", "A host joins after a boot", (_RECORD, _SAME_MACHINE, _NEW_BOOT, _NOTHING_RUNS), _join_after_boot
)
J2: Final = _join_step(
    "J2",
    "A daemon restarts within a boot",
    (_RECORD, _SAME_BOOT, _HELD, _NOT_DEAD, _NOT_FORGOTTEN),
    _join_in_same_boot,
)
J3: Final = _join_step(
    "J3",
    "A host comes back after it was condemned",
    (_RECORD, _SAME_BOOT, _NOT_DEAD, _NOT_FORGOTTEN, _NOT_ISOLATED),
    _join_after_revocation,
)
J4: Final = _join_step(
    "J4",
    "A host comes back although it was proven dead",
    (_RECORD, _SAME_BOOT, _DEAD, _NOT_ISOLATED, _NOTHING_RUNS),
    _proven_dead,
)

ROWS: Final = (J0, J1, J2, J3, J4)
_CASES: Final = frozenset({"no-record", "record", "new-boot", "same-boot", "not-revoked"})
"""Preconditions that say which row's case it is; ``own-epoch-*`` do so between J2 or J3 and J4."""


def join(view: JoinView) -> JoinOutcome:
    """The row whose case it is, or why the host may not join.

    ``nothing-runs`` in J1 and J4 is answered with ``destroy_first``: the daemon can bring that about itself.
    """
    refusals: list[Refusal] = []
    for row in ROWS:
        outcome = row.attempt(view)
        if outcome.refused is None:
            return outcome
        if outcome.refused.precondition == "nothing-runs" and row in (J1, J4):
            return _replace(outcome, destroy_first=True)
        if outcome.refused.precondition not in _CASES:
            refusals.append(outcome.refused)
    others = [one for one in refusals if not one.precondition.startswith("own-epoch-")]
    return JoinOutcome(refused=(others or refusals)[0])


class CleanedView(Part, frozen=True, kw_only=True):
    """What is left of an epoch after its host came back by J3."""

    host: str
    record: MemberRecord
    nonce: str
    old_epoch: int
    left: tuple[str, ...] = ()
    """VMs whose local domain, or create under way, is still of the old epoch."""
    fence: str = ""


def _record_cleaned(view: CleanedView) -> RecordOutcome:
    evidence = f"{view.host} itself found nothing of epoch {view.old_epoch} left"
    proof = Proof(kind="self-cleaned", evidence=evidence, epoch=view.old_epoch, by=view.host, fence=view.fence)
    record = _replace(view.record, dead_through=view.old_epoch, proof=proof, seq=view.record.seq + 1)
    return RecordOutcome(record=record)


_HELD_BY_ME: Final = Precondition[Any](
    "held-by-me",
    lambda view: view.record.state == "Held" and view.record.nonce == view.nonce,
    lambda view: f"{view.host} is not held by this daemon",
)


SELF_CLEAN: Final = ProtocolStep(
    "safety.self-clean",
    "A host that came back says that nothing of its old epoch is left",
    CleanedView,
    RecordOutcome,
    (
        _HELD_BY_ME,
        Precondition[CleanedView](
            "later-epoch",
            lambda view: view.record.epoch == view.old_epoch + 1 and view.old_epoch > view.record.dead_through,
            lambda view: f"epoch {view.old_epoch} is not an open one right below epoch {view.record.epoch}",
        ),
        Precondition[CleanedView](
            "nothing-left",
            lambda view: not view.left,
            lambda view: f"{len(view.left)} domains of epoch {view.old_epoch} are left, such as {view.left[0]}",
        ),
    ),
    _record_cleaned,
)


class RenewView(Part, frozen=True, kw_only=True):
    """The record as this daemon knows it."""

    host: str
    record: MemberRecord
    nonce: str
    guard: GuardRecord = GuardRecord()
    """What the guard says of itself now."""
    incarnation: str = ""
    """The store's incarnation, once all local VMs are registered under it; empty: say nothing new."""
    silent: tuple[SilentPeer, ...] = ()
    """Hosts that this one, a coordinator, sees silent now."""


def _renew_record(view: RenewView) -> RecordOutcome:
    incarnation = view.incarnation or view.record.incarnation
    seq = view.record.seq + 1
    record = _replace(view.record, seq=seq, guard=view.guard, incarnation=incarnation, silent=view.silent)
    return RecordOutcome(record=record)


_MINE: Final = Precondition[RenewView](
    "my-nonce",
    lambda view: view.record.nonce == view.nonce,
    lambda view: f"another daemon holds {view.host}",
)
_IS_HELD: Final = Precondition[RenewView](
    "held", lambda view: view.record.state == "Held", lambda view: f"{view.host} is {view.record.state}"
)

RENEW: Final = ProtocolStep(
    "safety.renew", "A host says that it lives", RenewView, RecordOutcome, (_IS_HELD, _MINE), _renew_record
)


class LeaseState(StrEnum):
    """What a fresh read says about a write of mine whose answer is missing, and about me."""

    MINE = "mine"
    """It was applied: it counts, from when it was sent."""
    NOT_YET = "not-yet"
    """It was not applied, and may still be on its way; I hold the membership."""
    REVOKED = "revoked"
    """I was condemned: no new starts, and J3."""
    DEAD = "dead"
    """My epoch is proven dead: J4."""
    FOREIGN = "foreign"
    """Another daemon runs as me: exit."""
    ROLLED_BACK = "rolled-back"
    """The store has an older record of mine than one it acknowledged: it was restored from a backup."""
    GONE = "gone"
    """There is no record: no new starts, a fault, and nobody re-creates it."""


class LeaseView(Part, frozen=True, kw_only=True):
    """My last write, and a record read fresh after it."""

    sent: MemberRecord
    acknowledged_seq: int
    """The highest ``seq`` of mine that the store has acknowledged."""
    uid: str
    found: MemberRecord | None
    found_uid: str = ""


class LeaseResult(Part, frozen=True, kw_only=True):
    """The case."""

    state: LeaseState


def lease_state(view: LeaseView) -> LeaseResult:
    """Which case it is (docs/concepts/safety.md#renewing)."""
    return LeaseResult(state=_lease_state(view))


def _lease_state(view: LeaseView) -> LeaseState:
    found, sent = view.found, view.sent
    if found is None or view.found_uid != view.uid:
        return LeaseState.GONE if found is None else LeaseState.ROLLED_BACK
    if found.epoch < sent.epoch or found.seq < view.acknowledged_seq:  # nobody's write lowers either
        return LeaseState.ROLLED_BACK
    if found.nonce != sent.nonce or found.epoch > sent.epoch:
        return LeaseState.FOREIGN
    if found.dead_through >= sent.epoch and found.state != "Released":  # who has left said so itself
        return LeaseState.DEAD
    if found.state == "Revoked":
        return LeaseState.REVOKED
    return LeaseState.MINE if found.seq >= sent.seq else LeaseState.NOT_YET


class LeaveView(Part, frozen=True, kw_only=True):
    """What a daemon that stops sees."""

    host: str
    record: MemberRecord
    nonce: str
    domains: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    """VMs with a holder entry of this host, read fresh."""
    under_way: int = 0
    """Writes of holder entries whose answer is not known yet."""
    incarnation: str = ""
    """The store's; a host that runs and holds nothing has nothing to register under it. Empty: nobody says."""


def _leave(view: LeaveView) -> RecordOutcome:
    epoch = view.record.epoch
    evidence = f"{view.host} left cleanly: nothing of epoch {epoch} runs, and nothing more is started in it"
    proof = Proof(kind="self-cleaned", evidence=evidence, epoch=epoch, by=view.host)
    record = _replace(view.record, state="Released", dead_through=epoch, proof=proof, seq=view.record.seq + 1)
    return RecordOutcome(record=_replace(record, incarnation=view.incarnation or record.incarnation))


LEAVE: Final = ProtocolStep(
    "safety.leave",
    "A host that runs nothing stops being watched, and says that its epoch is over",
    LeaveView,
    RecordOutcome,
    (
        _HELD_BY_ME,
        Precondition[LeaveView](
            "nothing-runs",
            lambda view: not view.domains,
            lambda view: f"{view.host} still runs {len(view.domains)} domains, such as {view.domains[0]}",
        ),
        Precondition[LeaveView](
            "nothing-held",
            lambda view: not view.holds and not view.under_way,
            lambda view: f"{view.host} still holds {len(view.holds)} VMs, and {view.under_way} writes are under way",
        ),
    ),
    _leave,
)
