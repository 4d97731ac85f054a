"""Corrections that the model checker asked for in what a host may hold, take over and move."""

from __future__ import annotations

import msgspec
import pytest

from outlive.node.membership import (
    ENTER,
    HOLD,
    REHOLD,
    RESUME,
    SEND,
    HoldView,
    Me,
    MemberView,
    MoveView,
    Reach,
    ReholdView,
)
from outlive.resources import Holder, MemberRecord

ME = Me(host="a", uid="u-a", epoch=2)
REACH = Reach(disks=("d",), ports=("p",))


def _holder(host: str = "a", epoch: int = 1, run: str = "r1", **changes: str) -> Holder:
    return Holder(hypervisor=host, member_uid=f"u-{host}", epoch=epoch, run_id=run, **changes)


def _member(host: str, epoch: int = 1, dead_through: int = 0) -> MemberView:
    record = MemberRecord(machine_id=f"m-{host}", boot_id="b", epoch=epoch, dead_through=dead_through)
    return MemberView(host=host, uid=f"u-{host}", record=record)


def _rehold(*holders: Holder) -> ReholdView:
    return ReholdView(vm="v", me=ME, old_epoch=1, holders=holders, run_id="r1", runs=True)


def test_a_re_hold_whose_answer_was_lost_can_be_repeated() -> None:
    first = REHOLD.attempt(_rehold(_holder()))
    again = REHOLD.attempt(_rehold(*first.holders))
    assert again.refused is None
    assert again.holders == first.holders


def test_a_run_that_is_held_no_more_is_not_held_again() -> None:
    refused = REHOLD.attempt(_rehold(_holder("b"))).refused
    assert refused is not None
    assert refused.precondition == "entry-still-mine"


def test_nothing_is_held_while_the_cluster_is_paused() -> None:
    view = HoldView(vm="v", me=ME, assigned="a", reach=REACH, run_id="r2", paused=True)
    refused = HOLD.attempt(view).refused
    assert refused is not None
    assert refused.precondition == "not-paused"


@pytest.mark.parametrize(("sent_to", "declined"), [("", ""), ("r7", ""), ("", "r7"), ("r7", "r6")])
def test_a_paused_source_runs_on_only_if_the_run_that_it_was_sent_to_never_ran(sent_to: str, declined: str) -> None:
    view = MoveView(vm="v", me=ME, id="m", source="a", target="b", holders=(_holder(epoch=2),))
    refused = RESUME.attempt(msgspec.structs.replace(view, sent_to=sent_to, declined=declined)).refused
    assert refused is not None
    assert refused.precondition == "target-never-ran"
    assert RESUME.attempt(msgspec.structs.replace(view, sent_to="r7", declined="r7")).refused is None


def test_a_target_enters_itself_again_over_an_entry_of_which_nothing_is_left() -> None:
    holders = (_holder("b"), _holder("a", epoch=2, run="r1", role="incoming"))
    view = MoveView(
        vm="v", me=ME, id="m", source="b", target="a", holders=holders, members=(_member("b"),), run_id="r2"
    )
    entered = ENTER.attempt(view)
    assert entered.refused is None
    assert [one.run_id for one in entered.holders] == ["r1", "r2"]
    assert [one.hypervisor for one in entered.holders] == ["b", "a"]


def test_a_source_may_send_what_it_has_not_yet_taken_over_into_its_new_epoch() -> None:
    holders = (_holder("a", epoch=1), _holder("b", run="r2", role="incoming"))
    view = MoveView(
        vm="v", me=ME, id="m", source="a", target="b", holders=holders, members=(_member("a", 2), _member("b"))
    )
    assert SEND.attempt(view).run_id == "r2"
