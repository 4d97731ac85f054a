"""What may be recorded as cut off, and how a host is let in again: what the steps ask for by themselves."""

from __future__ import annotations

import pytest

from outlive.node.fencing import LIFT_CUT, PROVE_CUT, CutView, LiftView
from outlive.resources import Cut, FenceRecord, MemberRecord
from outlive.simulation import SimDisks

SCOPE = ("disk:d", "port:p")


def _lift(*, through: int, dead_through: int, epoch: int) -> MemberRecord | None:
    cut = Cut(through=through, scope=SCOPE)
    record = MemberRecord(machine_id="m", boot_id="b", epoch=epoch + 1, dead_through=dead_through, cut=cut)
    return LIFT_CUT.attempt(LiftView(host="a", record=record, observer="c", epoch=epoch)).record


def test_a_late_order_to_lift_leaves_a_newer_cut_alone() -> None:
    disks = SimDisks("all", lambda _: None)
    disks.cut("a", 1, SCOPE)
    disks.cut("a", 2, SCOPE)
    disks.lift("a", 1)
    assert disks.cut_scope("a", 2) == SCOPE
    disks.lift("a", 2)
    assert disks.cut_scope("a", 2) == ()


def test_the_record_loses_only_the_cut_that_was_lifted() -> None:
    assert _lift(through=2, dead_through=2, epoch=1) is None
    assert _lift(through=2, dead_through=1, epoch=2) is None
    lifted = _lift(through=2, dead_through=2, epoch=2)
    assert lifted is not None
    assert lifted.cut == Cut()


def _cut(scope: tuple[str, ...], written: tuple[str, ...], read_back: tuple[str, ...]) -> str:
    """The precondition that refuses; empty if the cut is recorded."""
    fence = FenceRecord(id="a.1.x", epoch=1, phase="condemned", by="c")
    record = MemberRecord(machine_id="m", boot_id="b", epoch=1, state="Revoked", fence=fence)
    view = CutView(
        host="a", record=record, observer="c", epoch=1, scope=scope, written=written, read_back=read_back, evidence="e"
    )
    outcome = PROVE_CUT.attempt(view)
    if outcome.refused is not None:
        assert "was not read back" in outcome.refused.why or "nobody was ordered" in outcome.refused.why
        return outcome.refused.precondition
    assert outcome.record is not None
    (proof,) = outcome.record.fence.findings
    assert outcome.record.cut == Cut(through=1, scope=scope, proof=proof)
    return ""


@pytest.mark.parametrize(
    ("scope", "written", "read_back", "refused"),
    [
        (SCOPE, SCOPE, SCOPE, ""),
        (("disk:d",), SCOPE, ("disk:d", "disk:older"), ""),
        ((), SCOPE, SCOPE, "written"),
        (SCOPE, (), SCOPE, "written"),
        (SCOPE, ("disk:d",), SCOPE, "written"),
        (SCOPE, SCOPE, (), "read-back"),
        (SCOPE, SCOPE, ("port:p",), "read-back"),
    ],
)
def test_a_cut_is_recorded_of_nothing_that_was_not_both_ordered_and_read_back(
    scope: tuple[str, ...], written: tuple[str, ...], read_back: tuple[str, ...], refused: str
) -> None:
    assert _cut(scope, written, read_back) == refused
