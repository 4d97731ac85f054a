"""The faults of fencing follow from the Memberships and from what holds the fencer back, and from nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlive.node.fencing import HOLD_S, TRANSITIONS, FenceEvent, Holds, allows, fencing_faults, phase_of
from outlive.resources import FencePhase, FenceRecord, MemberRecord, PowerOn, Proof, Unproven
from outlive.resources.reasons import FaultCode

UNPROVEN = tuple(Unproven(kind=kind, why="no") for kind in ("power", "watchdog", "cut"))


def member(state: Any = "Revoked", dead: int = 0, fence: dict[str, Any] | None = None, **more: Any) -> MemberRecord:
    phase = FencePhase.PROVEN if dead else FencePhase.CONDEMNED
    record = FenceRecord(id="d.1.x", epoch=1, by="a", phase=phase)
    return MemberRecord(
        machine_id="m",
        boot_id="b",
        state=state,
        dead_through=dead,
        fence=msgspec.structs.replace(record, **(fence or {})),
        **more,
    )


def codes(record: MemberRecord, holds: Holds | None = None, now: float = 0.0) -> set[FaultCode]:
    found = list(fencing_faults("a", [("d", record)], holds or Holds(), now))
    assert all(one.message.text for one in found)
    return {one.code for one in found}


DEAD = Proof(kind="power", evidence="off twice")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (member("Held"), set()),
        (member("Held", fence={"unproven": UNPROVEN}), set()),
        (member(), set()),
        (member(fence={"unproven": UNPROVEN[:1]}), {FaultCode.POWER_UNREACHABLE}),
        (member(fence={"unproven": UNPROVEN}), {FaultCode.FENCE_UNCONFIRMED, FaultCode.POWER_UNREACHABLE}),
        (member(fence={"unproven": UNPROVEN}, distrusted=("power",)), {"fence-unconfirmed", "proof-contradicted"}),
        (member(fence={"unproven": (Unproven(kind="cut", why="no", failing=True),)}), {FaultCode.CUT_FAILING}),
        (member(dead=1, proof=DEAD), {FaultCode.HOST_DEAD}),
        (member(dead=1, proof=DEAD, fence={"unproven": UNPROVEN}), {"host-dead", "power-unreachable"}),
        (member(dead=1, proof=DEAD, fence={"power_on": PowerOn(tries=2, result="no route")}), {FaultCode.HOST_DEAD}),
        (
            member(dead=1, proof=DEAD, fence={"power_on": PowerOn(tries=3, result="no route")}),
            {FaultCode.HOST_DEAD, FaultCode.POWER_UNREACHABLE},
        ),
        (member("Held", distrusted=("operator",)), {FaultCode.PROOF_CONTRADICTED}),
        (member("Released", dead=1), set()),
    ],
)
def test_faults_of_a_host_follow_from_its_membership(record: MemberRecord, expected: set[FaultCode]) -> None:
    assert codes(record) == expected


def test_hold_that_is_not_found_again_is_over() -> None:
    holds = Holds()
    holds.note_hold(FaultCode.STORM_HOLD, 10.0)
    assert codes(member("Held"), holds, 10.0) == {FaultCode.STORM_HOLD}
    holds.extend_holds(12.0)
    assert codes(member("Held"), holds, 10.0 + HOLD_S) == {FaultCode.STORM_HOLD}
    assert codes(member("Held"), holds, 12.0 + HOLD_S) == set()
    holds.note_hold(FaultCode.RATE_HOLD, 20.0, {"host": "d", "limit": 2, "window_s": 600.0})
    holds.waits = True
    expected = {FaultCode.RATE_HOLD, FaultCode.FENCE_WAITS}
    assert codes(member("Held"), holds, 20.0) == expected


@pytest.mark.parametrize(
    ("record", "phase"),
    [
        (member("Held"), FencePhase.NONE),
        (member("Released", dead=1), FencePhase.NONE),
        (member(), FencePhase.CONDEMNED),
        (member(fence={"phase": FencePhase.UNCONFIRMED}), FencePhase.UNCONFIRMED),
        (member(dead=1), FencePhase.PROVEN),
    ],
)
def test_each_phase_allows_exactly_the_steps_of_the_table(record: MemberRecord, phase: FencePhase) -> None:
    assert phase_of(record) is phase
    assert {event for event in FenceEvent if allows(record, event)} == set(TRANSITIONS[phase])
