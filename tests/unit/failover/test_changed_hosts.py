"""Hosts on which nobody can be brought up, or that have less room than their slots hold: what becomes of the slots."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.live_failover import live
from tests.support.slot_validation import bench

from outlive.failover import OverbookedHosts, choose_excess_slots
from outlive.failover.reconciler import RemovalBudget, unusable_reason, validity_facts
from outlive.resources import (
    Amounts,
    Condition,
    Consumer,
    FailoverStatus,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    find_condition,
)


def host(**status: Any) -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name="h"), status=HypervisorStatus(**status))


@pytest.mark.parametrize(
    ("kind", "word", "usable"),
    [
        ("Ready", "True", True),
        ("Ready", "False", False),
        ("Ready", "Unknown", False),
        ("HypervisorDisabled", "True", False),
        ("HypervisorDisabled", "False", True),
        ("Terminating", "True", False),
        ("Tainted", "True", True),
    ],
)
def test_which_conditions_make_a_host_unusable(kind: str, word: Any, usable: bool):
    assert (unusable_reason("h", host(conditions=(Condition(type=kind, status=word),))) == "") is usable


def test_a_host_without_conditions_is_usable_and_an_unknown_one_is_not():
    assert unusable_reason("h", host()) == ""
    assert "unknown" in unusable_reason("h", None)


async def test_slots_are_looked_at_again_only_when_their_host_changed_in_something_that_matters():
    b = await bench()
    b.slots["h"] = [slot_of(2000, "s2", "a"), slot_of(2000, "s1", "a", "b")]
    changed = b.validation
    assert changed.keys_of_host(host(), host(num_instances=3)) == []
    assert changed.keys_of_host(host(), host(allocation=Amounts(cpu=1))) == []
    assert changed.keys_of_host(host(), host(traits=("X",))) == ["s1", "s2"]
    assert changed.keys_of_host(host(), None) == ["s1", "s2"]
    assert changed.keys_of_host(None, host()) == []
    assert validity_facts(host()) == validity_facts(host(num_instances=1))


def slot_of(cpu: int, name: str, *members: str, consumer: str = "") -> Reservation:
    """A slot on h."""
    return Reservation(
        metadata=ObjectMeta(name=name),
        spec=ReservationSpec(type="FailoverReservation", resources=Amounts(cpu=cpu), target_host="h"),
        status=ReservationStatus(
            host="h",
            failover_reservation=FailoverStatus(allocations=dict.fromkeys(members, "g")),
            consumer=Consumer(vm=consumer, fence="f") if consumer else None,
        ),
    )


def test_as_many_slots_give_way_as_are_too_much_those_of_few_first_and_never_one_that_is_taken():
    slots = [
        slot_of(4000, "s1", "a", "b"),
        slot_of(2000, "s2", "a"),
        slot_of(1000, "s3", "c"),
        slot_of(8000, "s4", consumer="d"),
    ]
    assert [one.name for one in choose_excess_slots(slots, {"cpu": 1000})] == ["s2"]
    assert [one.name for one in choose_excess_slots(slots, {"cpu": 3000})] == ["s2", "s3"]
    assert [one.name for one in choose_excess_slots(slots, {"cpu": 99000})] == ["s2", "s3", "s1"]
    assert choose_excess_slots(slots, {}) == []
    assert choose_excess_slots(slots, {"memory": 5}) == []


async def test_slots_whose_room_a_vm_has_taken_go_and_their_members_get_others():
    async with live(vms={"a": "h1"}) as cloud:
        ((name, slot),) = (await cloud.slots()).items()
        there = await cloud.get_host(slot.host)
        await cloud.set_host(there, allocation=there.status.capacity)
        await cloud.settle(5)
        ((other, after),) = (await cloud.slots()).items()
        assert other != name
        assert after.host not in ("h1", slot.host)
        assert (await cloud.coverage("a")).covered


async def test_a_slot_without_room_that_may_not_be_removed_covers_nobody_until_there_is_room_again():
    async with live(settings={"brakeNumber": 0, "brakeShare": 0.0}, vms={"a": "h1"}) as cloud:
        cloud.reconciler._budget.hold(True)
        ((name, slot),) = (await cloud.slots()).items()
        there = await cloud.get_host(slot.host)
        await cloud.set_host(there, allocation=there.status.capacity)
        await cloud.settle(2.5)
        after = await cloud.slots()
        assert after[name].members == slot.members, "nothing was removed"
        (other,) = after.keys() - {name}
        assert (await cloud.coverage("a")).slots == (other,)
        ready = find_condition((await cloud.memory.get(Reservation, name)).status.conditions, "Ready")
        assert ready is not None
        assert (ready.status, ready.reason) == ("False", "NoRoom")
        assert "take" in ready.message
        await cloud.set_host(await cloud.get_host(slot.host), allocation=there.status.allocation)
        await cloud.settle(2.5)
        assert (await cloud.coverage("a")).slots == tuple(sorted((name, other)))


def test_a_slot_of_a_crowded_host_stays_if_its_room_is_there_once_others_have_gone():
    slots = [slot_of(4000, "s1", "a", "b"), slot_of(2000, "s2", "a")]
    overbooked = OverbookedHosts(lambda host: slots if host == "h" else [], lambda host: {"cpu": 2000})
    assert overbooked.explain("h", "s1") == ""
    assert "2000 cpu" in overbooked.explain("h", "s2")
    assert [one.name for one in overbooked.find_changed_slots("h")] == ["s2"]


def test_the_budget_is_what_one_cycle_would_let_pass():
    budget = RemovalBudget(share=0.2, number=5)
    budget.refill(100)
    assert budget.take(20)
    assert not budget.take(1)
    budget.refill(10)
    assert budget.take(5)
    assert not budget.take(1)
    budget.refill(10)
    budget.hold(True)
    assert not budget.take(1)
    budget.hold(False)
    assert budget.take(3)
    budget.give_back(3)
    assert budget.take(5)
    budget.refill(100)
    assert budget.take(90), "one slot may go whole, however many members it has"
    assert not budget.take(1)


async def test_slots_on_a_host_that_is_to_be_emptied_count_for_nobody_even_while_nothing_may_be_removed():
    async with live(settings={"brakeNumber": 0, "brakeShare": 0.0}) as cloud:
        for number in range(4):
            await cloud.vm(f"v{number}", f"h{number + 1}")
        await cloud.settle()
        cloud.reconciler._budget.hold(True)
        (name, slot), *_ = [(name, slot) for name, slot in (await cloud.slots()).items() if slot.members]
        host = await cloud.get_host(slot.host)
        await cloud.memory.replace(msgspec.structs.replace(host, spec=msgspec.structs.replace(host.spec, drain=True)))
        await cloud.settle()
        there = await cloud.slots()
        assert there[name].members == slot.members, "nothing was removed"
        for vm in slot.members:
            status = await cloud.coverage(vm)
            assert name not in status.slots
            assert status.covered, "it has another slot beside"
        host = await cloud.get_host(slot.host)
        await cloud.memory.replace(msgspec.structs.replace(host, spec=msgspec.structs.replace(host.spec, drain=False)))
        await cloud.settle()
        for vm in slot.members:
            assert name in (await cloud.coverage(vm)).slots
        await cloud.cycle()
        assert cloud.metric("failover_audit_differences_total") == 0
