"""Whether a recovered VM is where it was being moved to when its host died."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from outlive.base import IllegalTransition, follow
from outlive.recovery import PHASES, ActionKind, RecoveryAction, enter_assigned, enter_recovered
from outlive.resources import Assigned, ObjectMeta, Recovery, RecoveryPhase, VirtualMachine
from outlive.resources.reasons import PlanReason, make_reason

AT = datetime(2026, 1, 1, tzinfo=UTC)
_replace = msgspec.structs.replace


def sent(vm: VirtualMachine, code: PlanReason, host: str, slot: str = "") -> VirtualMachine:
    fields = {"host": host, "slot": slot, "slots": "none"}
    action = RecoveryAction(
        vm=vm.name, kind=ActionKind.PLACE, host=host, slot=slot, fence="f", reason=make_reason(code, **fields)
    )
    record = enter_assigned(vm, action, (), AT, forgiven=False)
    return _replace(vm, status=_replace(vm.status, recovery=record, assigned=Assigned(hypervisor=host, fence="f")))


def seen_running(vm: VirtualMachine, host: str) -> Recovery:
    why = make_reason(PlanReason.RUNNING, host=host)
    return enter_recovered(vm, RecoveryAction(vm=vm.name, kind=ActionKind.DONE, host=host, fence="f", reason=why), AT)


@pytest.mark.parametrize(
    ("ways", "there"),
    [
        (((PlanReason.PROMISED, "h2", "slot"),), False),
        (((PlanReason.MOVED_THERE, "h2", ""),), True),
        (((PlanReason.MOVED_THERE, "h2", ""), (PlanReason.PROMISED, "h3", "slot")), False),
        (((PlanReason.MOVED_THERE, "h2", ""), (PlanReason.PLACED, "h3", "")), False),
    ],
)
def test_vm_is_where_it_was_moved_to_unless_it_was_sent_on(
    ways: tuple[tuple[PlanReason, str, str], ...], *, there: bool
) -> None:
    vm = VirtualMachine(metadata=ObjectMeta(name="vm"))
    for code, host, slot in ways:
        vm = sent(vm, code, host, slot)
    assert seen_running(vm, ways[-1][1]).moved_there is there


def test_recovery_that_is_over_does_not_begin_again() -> None:
    vm = sent(VirtualMachine(metadata=ObjectMeta(name="vm")), PlanReason.PROMISED, "h2", "slot")
    over = _replace(vm, status=_replace(vm.status, recovery=seen_running(vm, "h2")))
    assert over.status.recovery is not None
    assert over.status.recovery.phase is RecoveryPhase.RECOVERED
    assert sent(over, PlanReason.PLACED, "h3").status.recovery != over.status.recovery  # a new one
    with pytest.raises(IllegalTransition):
        follow(PHASES, RecoveryPhase.RECOVERED, RecoveryPhase.ASSIGNED, what="it")
