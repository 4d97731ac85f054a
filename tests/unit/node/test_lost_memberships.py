"""An operator's word about what a lost membership ran: about exactly that, kept in one write, refused where untrue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.node.fencing import ATTEST, AttestView
from outlive.node.membership import (
    FORMER_LIMIT,
    HOLD,
    HoldView,
    JoinView,
    Me,
    MemberView,
    Reach,
    RememberedMembership,
    claim_membership,
    close_lost_membership,
    is_fenced,
    is_proven_dead,
    lift_epoch,
    proof_of,
    take_membership,
    takes_nobodys,
)
from outlive.node.membership.steps import join
from outlive.recovery import ASSIGN, AssignView
from outlive.resources import FormerMembership, Holder, MemberRecord, Proof

WORD = AttestView(
    host="a", lost={"u": 3}, named=("u",), incarnation="i", token="abc", name="eve", reason="unplugged, ticket 4711"
)
HELD = MemberRecord(machine_id="m", boot_id="b", epoch=1, seq=4, nonce="n", incarnation="i")
ENTRY = Holder(hypervisor="a", member_uid="u", epoch=3, run_id="r")

_replace = msgspec.structs.replace


def record_of(view: AttestView = WORD) -> MemberRecord:
    outcome = ATTEST.attempt(view)
    assert outcome.record is not None, outcome.refused
    return outcome.record


def refusal(view: AttestView) -> str:
    outcome = ATTEST.attempt(view)
    return outcome.refused.precondition if outcome.refused is not None else ""


def member(record: MemberRecord, uid: str = "v") -> MemberView:
    return MemberView(host="a", uid=uid, record=record)


def came_back(record: MemberRecord, **changes: Any) -> JoinView:
    given = {"host": "a", "record": record, "uid": "v", "machine_id": "m", "boot_id": "b2", "nonce": "new", **changes}
    return JoinView(**given)


def test_a_word_about_a_lost_membership_is_kept_in_one_that_is_dead_and_of_no_machine() -> None:
    made = record_of()
    assert (made.machine_id, made.state, made.epoch, made.dead_through, made.incarnation) == ("", "Revoked", 3, 3, "i")
    assert made.proof is not None
    assert (made.proof.kind, made.proof.by) == ("operator", "eve")
    assert "ticket 4711" in made.proof.evidence
    assert [(one.uid, one.dead_through) for one in made.former] == [("u", 3)]


def test_entries_are_mute_by_it_with_name_and_reason() -> None:
    members = (member(record_of()),)
    assert is_proven_dead(ENTRY, members)
    proof = proof_of(ENTRY, members, Reach())
    assert proof is not None
    assert proof.evidence == "eve: unplugged, ticket 4711"
    start = HoldView(vm="x", me=Me(host="b", uid="w", epoch=1), assigned="b", holders=(ENTRY,), run_id="new")
    assert HOLD.attempt(start).refused is not None
    assert HOLD.attempt(_replace(start, members=members)).refused is None
    assigned = ASSIGN.attempt(AssignView(vm="x", fence="f", holders=(ENTRY,), members=members, target="b"))
    assert [one.evidence for one in assigned.proofs] == ["eve: unplugged, ticket 4711"]


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from("uvw"), st.sampled_from("ab"), st.booleans())
def test_a_word_is_about_that_membership_through_that_epoch_and_nothing_else(
    through: int, epoch: int, uid: str, host: str, held: bool
) -> None:
    view = _replace(WORD, lost={"u": through}, record=HELD if held else None, uid="v" if held else "", has_figures=held)
    members = (member(record_of(view)),)
    entry = Holder(hypervisor=host, member_uid=uid, epoch=epoch, run_id="r")
    said = host == "a" and uid == "u" and epoch <= through
    own = host == "a" and uid == "v" and not held and epoch <= through
    assert is_fenced(entry, members, Reach()) == (said or own)


def test_a_word_does_not_touch_a_membership_that_is_held() -> None:
    held = record_of(_replace(WORD, record=HELD, uid="v", has_figures=True))
    assert _replace(held, former=()) == HELD


def test_a_word_about_the_present_membership_is_refused() -> None:
    assert refusal(_replace(WORD, record=HELD, uid="u", has_figures=True)) == "lost"


def test_a_word_about_what_the_host_says_that_it_runs_is_refused() -> None:
    back = _replace(WORD, record=HELD, uid="v", has_figures=True, running=("x",))
    assert refusal(back) == "not-seen-there"
    assert refusal(_replace(back, has_figures=False, running=())) == "figures-there"
    assert refusal(_replace(back, record=_replace(HELD, state="Revoked"))) == ""


def test_a_word_that_nobody_waits_for_is_refused() -> None:
    assert refusal(_replace(WORD, lost={})) == "waited-for"
    assert refusal(_replace(WORD, lost={}, missed=True)) == ""
    assert refusal(_replace(WORD, lost={}, missed=True, record=HELD, uid="v", has_figures=True)) == "waited-for"


@pytest.mark.parametrize("words", [{"name": " "}, {"reason": ""}])
def test_a_word_has_a_name_and_a_reason(words: dict[str, str]) -> None:
    assert refusal(_replace(WORD, **words)) == "named"


def test_said_again_it_stays_as_it_is_and_follows_the_store() -> None:
    made = record_of()
    again = _replace(WORD, record=made, uid="v", reason="said twice")
    assert record_of(again) == made
    assert record_of(_replace(again, incarnation="j")) == _replace(made, incarnation="j")
    assert refusal(_replace(again, lost={})) == "waited-for"
    assert record_of(_replace(again, lost={}, incarnation="j")) == _replace(made, incarnation="j")


def test_a_word_about_one_membership_says_nothing_of_the_rest_of_what_a_restored_store_does_not_know() -> None:
    one = _replace(WORD, only="u")
    assert refusal(_replace(one, missed=True)) == "not-missed"
    old = record_of(_replace(WORD, incarnation="h"))
    kept = record_of(_replace(one, record=old, uid="v", lost={"w": 2}, named=("u", "w")))
    assert [each.uid for each in kept.former] == ["u", "w"]
    assert kept.incarnation == "h"
    assert refusal(_replace(one, record=old, uid="v", lost={}, only="w")) == "waited-for"
    back = _replace(one, record=HELD, uid="v", has_figures=True)
    assert refusal(back) == ""
    assert refusal(_replace(back, incarnation="j")) == "figures-there", "of now, and not of the backup"


def test_lost_memberships_that_no_entry_names_any_more_make_room() -> None:
    proof = Proof(kind="operator", evidence="eve: off", epoch=1)
    many = tuple(FormerMembership(uid=f"u{n}", dead_through=1, proof=proof) for n in range(FORMER_LIMIT))
    full = _replace(WORD, record=_replace(HELD, former=many), uid="v", has_figures=True)
    assert [one.uid for one in record_of(full).former] == ["u"]
    still = tuple(one.uid for one in many)
    assert refusal(_replace(full, named=(*still, "u"))) == "room"


def test_a_host_that_comes_back_empties_itself_before_it_is_a_member() -> None:
    made = record_of()
    back = came_back(made, remembered=RememberedMembership(uid="u", epoch=3), domains=("x",), was_running=True)
    assert takes_nobodys(back)
    assert join(take_membership(back)).destroy_first
    outcome = join(take_membership(_replace(back, domains=())))
    assert (outcome.row, outcome.contradicted) == ("J4", "operator")
    assert outcome.record is not None
    assert (outcome.record.epoch, outcome.record.machine_id, outcome.record.state) == (4, "m", "Held")
    assert outcome.record.former == made.former


def test_a_host_that_was_off_contradicts_nobody() -> None:
    back = came_back(record_of(), remembered=RememberedMembership(uid="u", epoch=3))
    assert join(take_membership(back)).contradicted is None


def test_a_host_says_itself_that_later_epochs_of_its_lost_membership_are_over() -> None:
    late = Holder(hypervisor="a", member_uid="u", epoch=5, run_id="late")
    made = record_of()
    assert not is_proven_dead(late, (member(made),))
    remembered = RememberedMembership(uid="u", epoch=5)
    joined = join(take_membership(came_back(made, remembered=remembered))).record
    assert joined is not None
    assert joined.epoch == 6
    emptied_ = close_lost_membership(joined, remembered, "a")
    proof = proof_of(late, (member(emptied_),), Reach())
    assert proof is not None
    assert (proof.kind, proof.by) == ("self-cleaned", "a")
    assert close_lost_membership(emptied_, remembered, "a") == emptied_


def test_another_machine_may_take_the_place_of_one_that_somebody_attested() -> None:
    outcome = join(take_membership(came_back(record_of(), machine_id="m2")))
    assert outcome.record is not None
    assert outcome.record.machine_id == "m2"


def test_a_membership_that_a_machine_has_taken_is_its_own() -> None:
    assert not takes_nobodys(came_back(HELD))
    assert not takes_nobodys(came_back(record_of(), remembered=RememberedMembership(uid="v", epoch=3)))


def test_a_backup_that_is_older_than_the_return_of_its_machine_is_still_that_machines() -> None:
    again = came_back(record_of(), remembered=RememberedMembership(uid="v", epoch=4), domains=("x",))
    lifted_ = lift_epoch(claim_membership(again))
    outcome = join(lifted_)
    assert outcome.record is not None
    assert (outcome.row, outcome.record.epoch, outcome.record.machine_id) == ("J3", 5, "m")
    assert join(claim_membership(again)).destroy_first  # J1: nothing that it runs was begun after the backup
