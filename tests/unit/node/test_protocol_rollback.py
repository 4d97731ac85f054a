"""Entering a store that went back: what the host remembers counts, and nothing is said dead that may run."""

from __future__ import annotations

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from outlive.node.membership import SELF_CLEAN, CleanedView, JoinView, RememberedMembership, lift_epoch
from outlive.node.membership.steps import join
from outlive.resources import MemberRecord, Proof

EPOCHS = st.integers(1, 9)
STATES = st.sampled_from(("Held", "Revoked", "Released"))


def _view(record: MemberRecord, known: int, *, domains: tuple[str, ...] = (), boot_id: str = "b") -> JoinView:
    return JoinView(
        host="a",
        record=record,
        uid="u",
        machine_id="m",
        boot_id=boot_id,
        nonce="n",
        remembered=RememberedMembership(uid="u", epoch=known) if known else None,
        domains=domains,
    )


def _record(epoch: int, state: str, dead_through: int, *, boot_id: str = "b") -> MemberRecord:
    proof = Proof(kind="power", epoch=dead_through) if dead_through else None
    return MemberRecord(
        machine_id="m",
        boot_id=boot_id,
        epoch=epoch,
        nonce="old",
        state=state,  # type: ignore[arg-type]
        dead_through=dead_through,
        proof=proof,
    )


@given(EPOCHS, STATES, st.integers(0, 9), EPOCHS, st.sampled_from(("b", "before")))
def test_host_enters_with_an_epoch_that_was_never_used_and_its_own_ones_are_not_said_to_be_dead(
    epoch: int, state: str, dead_through: int, known: int, boot_id: str
) -> None:
    """Whatever the backup says; ``before``: it is older than the present boot, and domains of that are there."""
    assume(dead_through <= epoch)
    record = _record(epoch, state, dead_through, boot_id=boot_id)
    outcome = join(lift_epoch(_view(record, known, domains=("vm",))))
    if outcome.destroy_first:
        outcome = join(lift_epoch(_view(record, known)))
    assert outcome.refused is None
    assert outcome.record is not None
    assert outcome.record.epoch > max(epoch, known)
    assert outcome.record.dead_through == dead_through
    assert (outcome.record.state, outcome.record.boot_id) == ("Held", "b")


def test_host_whose_backup_is_older_than_its_boot_keeps_its_domains_to_register_them() -> None:
    outcome = join(lift_epoch(_view(_record(2, "Held", 0, boot_id="before"), 3, domains=("vm",))))
    assert (outcome.row, outcome.destroy_first) == ("J3", False)
    assert outcome.record is not None
    assert (outcome.record.epoch, outcome.record.dead_through) == (4, 0)


def test_host_that_its_backup_calls_dead_through_an_older_epoch_keeps_its_domains_as_well() -> None:
    outcome = join(lift_epoch(_view(_record(2, "Revoked", 2), 3, domains=("vm",))))
    assert (outcome.row, outcome.destroy_first) == ("J3", False)
    assert outcome.record is not None
    assert (outcome.record.epoch, outcome.record.dead_through) == (4, 2)


def test_word_of_a_clean_epoch_counts_only_right_after_that_epoch() -> None:
    """What was found clean for one entrance says nothing after another: what runs may have been registered anew."""
    view = CleanedView(host="a", record=_record(2, "Held", 0), nonce="old", old_epoch=1)
    assert SELF_CLEAN.attempt(view).refused is None
    later = msgspec.structs.replace(view, record=_record(3, "Held", 0))
    refused = SELF_CLEAN.attempt(later).refused
    assert refused is not None
    assert refused.precondition == "later-epoch"
