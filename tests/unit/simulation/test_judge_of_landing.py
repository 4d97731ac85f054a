"""The judge of landings: who is sent into a slot is sent into its own, and nobody else is let into that."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.loops import run
from tests.support.virtual_hosts import Bench, small_vm

from outlive.resources import (
    Assigned,
    Consumer,
    FailoverStatus,
    ObjectMeta,
    ObjectRef,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
)

_replace = msgspec.structs.replace
RIGHT = ReservationStatus(
    host="h1",
    consumer=Consumer(vm="vm-1", fence="f"),
    failover_reservation=FailoverStatus(allocations={"vm-1": "h9"}),
)


def found(status: ReservationStatus | None) -> list[str]:
    """What the judge says when the VM is sent to h1 into slot s1, of that status; ``None``: there is no such slot."""

    async def reported() -> list[str]:
        bench = Bench()
        bench.boot()
        await bench.store.create(small_vm())
        if status is not None:
            spec = ReservationSpec(type="FailoverReservation", target_host="h1")
            slot = await bench.store.create(Reservation(metadata=ObjectMeta(name="s1"), spec=spec))
            await bench.store.replace_status(_replace(slot, status=status))
        vm = await bench.store.get(VirtualMachine, "vm-1")
        where = Assigned(hypervisor="h1", slot=ObjectRef(kind="Reservation", name="s1"), fence="f")
        await bench.store.replace_status(_replace(vm, status=_replace(vm.status, assigned=where)))
        return [one.text for one in bench.judge.violations if one.invariant == "slot"]

    return run(reported())


def test_vm_that_is_sent_into_the_slot_that_it_has_claimed_is_right() -> None:
    assert found(RIGHT) == []


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, "which is not there"),
        (_replace(RIGHT, consumer=None), "is let to nobody"),
        (_replace(RIGHT, consumer=Consumer(vm="vm-2", fence="f")), "is let to vm-2"),
        (_replace(RIGHT, consumer=Consumer(vm="vm-1", fence="older")), "is let to vm-1 (fence older)"),
        (_replace(RIGHT, host="h2"), "which is on h2"),
        (_replace(RIGHT, failover_reservation=FailoverStatus(allocations={"vm-2": "h9"})), "was not promised to it"),
    ],
)
def test_vm_that_is_sent_into_any_other_slot_is_found(status: ReservationStatus | None, text: str) -> None:
    (reported,) = found(status)
    assert text in reported
