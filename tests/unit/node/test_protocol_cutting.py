"""Corrections that the model checker asked for in how a host is let in again that was cut off."""

from __future__ import annotations

from outlive.node.fencing.proving import LIFT_CUT, LiftView
from outlive.resources import Cut, MemberRecord
from outlive.simulation.disks import Disks

SCOPE = ("disk:d", "port:p")


def _lift(*, through: int, dead_through: int, epoch: int) -> MemberRecord | None:
    cut = Cut(through=through, scope=SCOPE)
    record = MemberRecord(machine_id="m", boot_id="b", epoch=epoch + 1, dead_through=dead_through, cut=cut)
    return LIFT_CUT.attempt(LiftView(host="a", record=record, observer="c", epoch=epoch)).record


def test_a_late_order_to_lift_leaves_a_newer_cut_alone() -> None:
    disks = Disks("all", lambda _: None)
    disks.cut("a", 1, SCOPE)
    disks.cut("a", 2, SCOPE)
    disks.lift("a", 1)
    assert disks.scope("a", 2) == SCOPE
    disks.lift("a", 2)
    assert disks.scope("a", 2) == ()


def test_the_record_loses_only_the_cut_that_was_lifted() -> None:
    assert _lift(through=2, dead_through=2, epoch=1) is None
    assert _lift(through=2, dead_through=1, epoch=2) is None
    lifted = _lift(through=2, dead_through=2, epoch=2)
    assert lifted is not None
    assert lifted.cut == Cut()
