"""Renewing: row N, what a daemon makes of an answer it did not get, row Z, and arming.

A renewal is a compare-and-swap of ``seq + 1``. Only an acknowledged one (or one that a fresh read shows) counts, and
it counts from the moment it was *sent*. After a conflict or a lost answer the fresh record says which case it is.
Who leaves declares its own epoch dead, so that an entry which an earlier daemon of the host asked for, and which comes
late, binds nobody; the next daemon enters with a new epoch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from outlive.resources import GuardRecord, MemberRecord, Part, Proof, SilentPeer
from outlive.runtime.steps import Outcome, Precondition, ProtocolStep

_replace = msgspec.structs.replace


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


class RenewOutcome(Outcome, frozen=True, kw_only=True):
    """The record to write."""

    record: MemberRecord | None = None


def _renewed(view: RenewView) -> RenewOutcome:
    incarnation = view.incarnation or view.record.incarnation
    seq = view.record.seq + 1
    record = _replace(view.record, seq=seq, guard=view.guard, incarnation=incarnation, silent=view.silent)
    return RenewOutcome(record=record)


_MINE: Final = Precondition[RenewView](
    "my-nonce",
    lambda view: view.record.nonce == view.nonce,
    lambda view: f"another daemon holds {view.host}",
)
_IS_HELD: Final = Precondition[RenewView](
    "held", lambda view: view.record.state == "Held", lambda view: f"{view.host} is {view.record.state}"
)

RENEW: Final = ProtocolStep(
    "safety.renew", "A host says that it lives", RenewView, RenewOutcome, (_IS_HELD, _MINE), _renewed
)


class Standing(StrEnum):
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


class StandingView(Part, frozen=True, kw_only=True):
    """My last write, and a record read fresh after it."""

    sent: MemberRecord
    acknowledged_seq: int
    """The highest ``seq`` of mine that the store has acknowledged."""
    uid: str
    found: MemberRecord | None
    found_uid: str = ""


class StandingResult(Part, frozen=True, kw_only=True):
    """The case."""

    standing: Standing


def standing(view: StandingView) -> StandingResult:
    """Which case it is (docs/concepts/safety.md#renewing)."""
    return StandingResult(standing=_standing(view))


def _standing(view: StandingView) -> Standing:
    found, sent = view.found, view.sent
    if found is None or view.found_uid != view.uid:
        return Standing.GONE if found is None else Standing.ROLLED_BACK
    if found.epoch < sent.epoch or found.seq < view.acknowledged_seq:  # nobody's write lowers either
        return Standing.ROLLED_BACK
    if found.nonce != sent.nonce or found.epoch > sent.epoch:
        return Standing.FOREIGN
    if found.dead_through >= sent.epoch and found.state != "Released":  # who has left said so itself
        return Standing.DEAD
    if found.state == "Revoked":
        return Standing.REVOKED
    return Standing.MINE if found.seq >= sent.seq else Standing.NOT_YET


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


class LeaveOutcome(Outcome, frozen=True, kw_only=True):
    """The record to write."""

    record: MemberRecord | None = None


def _leave(view: LeaveView) -> LeaveOutcome:
    epoch = view.record.epoch
    evidence = f"{view.host} left in good order: nothing of epoch {epoch} runs, and nothing more is started in it"
    proof = Proof(kind="self-cleaned", evidence=evidence, epoch=epoch, by=view.host)
    record = _replace(view.record, state="Released", dead_through=epoch, proof=proof, seq=view.record.seq + 1)
    return LeaveOutcome(record=_replace(record, incarnation=view.incarnation or record.incarnation))


LEAVE: Final = ProtocolStep(
    "safety.leave",
    "A host that runs nothing stops being watched, and says that its epoch is over",
    LeaveView,
    LeaveOutcome,
    (
        Precondition[LeaveView](
            "held-by-me",
            lambda view: view.record.state == "Held" and view.record.nonce == view.nonce,
            lambda view: f"{view.host} is not held by this daemon",
        ),
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
