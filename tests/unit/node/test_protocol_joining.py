"""Corrections that the model checker asked for in how a host joins, and in what a proof is about."""

from __future__ import annotations

from outlive.node.fencing import PROVE_OPERATOR, OperatorView
from outlive.node.membership import JoinView, RememberedMembership
from outlive.node.membership.steps import join
from outlive.resources import FenceRecord, MemberRecord, Proof


def _view(record: MemberRecord, **changes: object) -> JoinView:
    given = {"host": "a", "record": record, "uid": "u", "machine_id": "m", "boot_id": "b", "nonce": "n", **changes}
    return JoinView(**given)  # type: ignore[arg-type]


def _record(**changes: object) -> MemberRecord:
    return MemberRecord(**{"machine_id": "m", "boot_id": "b", "epoch": 1, "nonce": "old", **changes})  # type: ignore[arg-type]


def test_a_host_that_was_proven_dead_never_begins_an_epoch_twice_after_a_rollback() -> None:
    dead = _record(state="Revoked", dead_through=1, proof=Proof(kind="power", epoch=1))
    outcome = join(_view(dead, remembered=RememberedMembership(uid="u", epoch=4), gate_closed=True))
    assert outcome.row == "J4"
    assert outcome.record is not None
    assert outcome.record.epoch == 5


def test_a_word_of_trust_that_stood_when_a_proof_turned_out_wrong_is_used_up() -> None:
    dead = _record(state="Revoked", dead_through=1, proof=Proof(kind="power", epoch=1), trust_word="older")
    wrong = join(_view(dead, was_running=True, trust_word="since")).record
    assert wrong is not None
    assert (wrong.distrusted, wrong.trust_word) == (("power",), "since")
    right = join(_view(dead, gate_closed=True, trust_word="since")).record
    assert right is not None
    assert (right.distrusted, right.trust_word) == ((), "older")


def test_another_machine_is_told_that_it_is_another_machine() -> None:
    for state in ("Held", "Revoked", "Released"):
        refused = join(_view(_record(state=state), machine_id="other", boot_id="b2")).refused
        assert refused is not None
        assert refused.precondition == "same-machine"


def test_a_proof_is_not_written_into_the_epoch_of_a_host_that_came_back() -> None:
    back = _record(epoch=2, fence=FenceRecord(id="f", epoch=1))
    view = OperatorView(host="a", record=back, observer="c", epoch=1, fence="f", name="ann", reason="unplugged")
    refused = PROVE_OPERATOR.attempt(view).refused
    assert refused is not None
    assert refused.precondition == "that-epoch"
