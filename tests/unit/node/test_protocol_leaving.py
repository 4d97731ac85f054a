"""Corrections that the model checker asked for in how a host stops for good, and comes back afterwards."""

from __future__ import annotations

from outlive.node.membership import (
    CREATE,
    HOLD,
    J2,
    LEAVE,
    CreateView,
    HoldView,
    JoinOutcome,
    JoinView,
    LeaseState,
    LeaseView,
    LeaveView,
    Me,
    MemberView,
    RememberedMembership,
    is_proven_dead,
    lease_state,
)
from outlive.node.membership.steps import join
from outlive.recovery import find_losing_fence
from outlive.resources import Holder, MemberRecord

HELD = MemberRecord(machine_id="m", boot_id="b", epoch=3, seq=8, nonce="n", dead_through=1)
LATE = Holder(hypervisor="a", member_uid="u", epoch=3, run_id="late")


def _left(record: MemberRecord = HELD) -> MemberRecord:
    left = LEAVE.attempt(LeaveView(host="a", record=record, nonce="n")).record
    assert left is not None
    return left


def _join(record: MemberRecord, **changes: object) -> JoinOutcome:
    given = {"host": "a", "record": record, "uid": "u", "machine_id": "m", "boot_id": "b", "nonce": "new", **changes}
    return join(JoinView(**given))  # type: ignore[arg-type]


def test_who_leaves_says_that_its_epoch_is_dead() -> None:
    left = _left()
    assert (left.state, left.dead_through, left.seq) == ("Released", 3, 9)
    assert left.proof is not None
    assert (left.proof.kind, left.proof.epoch, left.proof.by) == ("self-cleaned", 3, "a")


def test_an_entry_that_comes_after_its_host_has_left_binds_nobody() -> None:
    left = MemberView(host="a", uid="u", record=_left())
    assert is_proven_dead(LATE, (left,))
    other = HoldView(
        vm="v", me=Me(host="b", uid="w", epoch=1), assigned="b", holders=(LATE,), members=(left,), run_id="next"
    )
    held = HOLD.attempt(other)
    assert held.refused is None
    assert [proof.kind for proof in held.proofs] == ["self-cleaned"]


def test_a_host_that_left_and_starts_again_begins_a_new_epoch_and_contradicts_nobody() -> None:
    outcome = _join(_left(), remembered=RememberedMembership(uid="u", epoch=3), gate_closed=False)
    assert (outcome.row, outcome.contradicted) == ("J4", None)
    assert outcome.record is not None
    assert (outcome.record.state, outcome.record.epoch, outcome.record.dead_through) == ("Held", 4, 3)
    assert outcome.record.distrusted == ()


def test_a_dead_epoch_is_never_held_again() -> None:
    refused = J2.attempt(JoinView(host="a", record=_left(), uid="u", machine_id="m", boot_id="b", nonce="new")).refused
    assert refused is not None
    assert refused.precondition == "own-epoch-not-dead"


def test_a_domain_that_was_there_after_its_host_had_left_contradicts_it() -> None:
    assert _join(_left(), domains=("v",), was_running=True).destroy_first
    outcome = _join(_left(), was_running=True)
    assert outcome.contradicted == "self-cleaned"


def test_a_lost_answer_to_leaving_is_not_taken_for_a_fence() -> None:
    left = _left()
    for found, case in ((left, LeaseState.MINE), (HELD, LeaseState.NOT_YET)):
        view = LeaseView(sent=left, acknowledged_seq=8, uid="u", found=found, found_uid="u")
        assert lease_state(view).state is case


def test_a_host_that_left_is_not_lost_by_a_fence() -> None:
    assert find_losing_fence(_left()) is None


def test_nothing_is_left_while_a_write_of_an_entry_is_under_way() -> None:
    refused = LEAVE.attempt(LeaveView(host="a", record=HELD, nonce="n", under_way=1)).refused
    assert refused is not None
    assert refused.precondition == "nothing-held"


def test_what_was_held_in_a_store_that_is_restored_meanwhile_is_not_created() -> None:
    me = Me(host="a", uid="u", epoch=3)

    def refused(held_in: str, incarnation: str) -> str:
        given = CreateView(vm="v", me=me, run_id="late", holders=(LATE,), held_in=held_in, incarnation=incarnation)
        why = CREATE.attempt(given).refused
        return why.precondition if why is not None else ""

    assert refused("1", "2") == "same-store"
    assert refused("1", "1") == ""
    assert refused("", "1") == ""  # nobody had said anything of restored stores yet
