from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.failover import GIB, Fault
from tests.support.loops import run
from tests.support.slot_validation import Answering, Bench, Locations, bench

from outlive.base import Conflict, OutliveError, Unavailable
from outlive.failover import Call
from outlive.failover.planner import PlacementOffer
from outlive.failover.reconciler import RemovalBudget
from outlive.placement import Intent
from outlive.resources import Amounts, Condition, ObjectMeta, Reservation, ReservationSpec, find_condition
from outlive.runtime import Requeue


def later(requeue: Requeue | None) -> bool:
    return requeue is not None and 27 * 60 <= requeue.after_s <= 33 * 60


async def test_a_valid_slot_is_acknowledged_told_and_looked_at_later():
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
    assert later(await b.look())
    failover = (await b.slot()).status.failover_reservation
    assert failover is not None
    assert failover.acknowledged_at is not None
    (event,) = b.cloud.events.of("ValidationPassed")
    assert (event.kind, event.name, event.type, event.action) == ("Reservation", "s", "Normal", "Validated")
    assert "h3" in event.note
    assert "2 members" in event.note


async def test_each_member_is_asked_about_in_order_with_its_own_size_and_host():
    b = await bench()
    b.locations.vms["b"] = msgspec.structs.replace(b.locations.vms["b"], flavor="another")
    await b.cloud.slot("s", "h3", {"b": "h2", "a": "h1"}, cpu=8000)
    await b.look()
    asked = b.cloud.ranker.requests
    assert [r.resource_id for r in asked] == ["a", "b"]
    assert [r.ignore_hosts for r in asked] == [("h1",), ("h2",)]
    assert {r.hosts for r in asked} == {("h3",)}
    assert {r.need for r in asked} == {Amounts(cpu=2000, memory=4 * GIB)}
    assert {r.intent for r in asked} == {Intent.EVACUATE}
    assert [r.request_id for r in asked] == ["a", "b"], "the request id is the VM's id"
    assert len({r.global_request_id for r in asked}) == 1
    assert asked[0].global_request_id.startswith("failover-")


async def test_of_members_that_are_alike_one_is_asked_about():
    b = await bench(Locations(a="h1", b="h2", c="h1", d="h3"))
    await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2", "c": "h1", "d": "h3"})
    await b.look()
    assert [r.resource_id for r in b.cloud.ranker.requests] == ["a", "d"], "d runs on the slot's own host"
    assert sorted((await b.slot()).status.failover_reservation.allocations) == ["a", "b", "c"]  # type: ignore[union-attr]


async def test_a_scheduler_of_somebody_else_is_asked_about_every_member():
    port = Answering(lambda call: PlacementOffer(hosts=call.request.hosts or ()))
    b = await bench(port=port)
    await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
    await b.look()
    assert [call.request.resource_id for call in port.calls] == ["a", "b"]


async def test_the_pause_is_jittered_by_a_tenth():
    b = await bench()
    await b.cloud.slot("s", "h3", None)
    pauses = [(await b.look()).after_s for _ in range(200)]  # type: ignore[union-attr]
    assert min(pauses) >= 27 * 60
    assert max(pauses) < 33 * 60
    assert max(pauses) - min(pauses) > 5 * 60


async def test_an_acknowledgement_is_not_validated_again_but_a_change_is():
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1"})
    await b.look()
    assert later(await b.look())
    assert len(b.cloud.ranker.requests) == 1
    await b.cloud.set_members("s", {"a": "h1", "b": "h2"})
    await b.look()
    assert len(b.cloud.ranker.requests) == 2, "a and b are alike"


async def test_after_the_pause_it_is_validated_again_without_a_new_acknowledgement():
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1"})
    await b.look()
    first = (await b.slot()).status.failover_reservation
    await b.cloud.clock.sleep(34 * 60)
    await b.look()
    assert len(b.cloud.ranker.requests) == 2
    assert (await b.slot()).status.failover_reservation == first
    assert len(b.cloud.events.of("ValidationPassed")) == 2


async def test_absent_foreign_and_uninitialised_objects():
    b = await bench()
    assert await b.look("nobody") is None
    await b.cloud.memory.create(
        Reservation(metadata=ObjectMeta(name="c"), spec=ReservationSpec(type="CommittedResourceReservation"))
    )
    assert await b.look("c") is None
    await b.cloud.slot("u", "h3", None)
    assert later(await b.look("u"))
    await b.cloud.slot("unlabelled", "h3", {"a": "h1"}, labelled=False)
    assert later(await b.look("unlabelled")), "the type decides here, not the label"
    assert len(b.cloud.ranker.requests) == 1


async def test_a_slot_without_members_is_valid():
    b = await bench()
    await b.cloud.slot("s", "h3", {})
    assert later(await b.look())
    assert b.cloud.ranker.requests == []


async def test_a_member_that_no_cycle_would_see_is_skipped():
    b = await bench(Locations(b="h2"))
    await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
    assert later(await b.look())
    assert [r.resource_id for r in b.cloud.ranker.requests] == ["b"]
    assert len(b.cloud.events.of("ValidationPassed")) == 1


@pytest.mark.parametrize("who", ["locator", "scheduler"])
async def test_a_scheduler_that_cannot_be_asked_changes_nothing(who: str):
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1"})
    before = await b.slot()
    error = Unavailable("away")
    if who == "locator":
        b.locations.error = error
    else:
        b.cloud.ranker.error = error
    assert later(await b.look())
    assert await b.slot() == before
    assert b.cloud.events.all == []
    assert b.cloud.metric("failover_validations_total", outcome="transient") == 1


def test_the_member_at_fault_leaves_and_the_others_stay():
    async def story() -> tuple[Bench, dict[str, Any]]:
        b = await bench()
        b.locations.vms["a"] = msgspec.structs.replace(b.locations.vms["a"], memory_bytes=500 * GIB)
        await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
        requeue = await b.look()
        assert requeue is None or requeue.after_s == 0
        return b, await b.cloud.members()

    b, members = run(story())
    assert members == {"s": {"b": "h2"}}
    (event,) = b.cloud.events.of("MemberRemoved")
    assert "VM a left: validation failed" in event.note
    assert "filter_has_enough_capacity" in event.note


async def test_a_slot_that_nobody_is_left_in_goes():
    b = await bench()
    b.locations.vms["a"] = msgspec.structs.replace(b.locations.vms["a"], memory_bytes=500 * GIB)
    await b.cloud.slot("s", "h3", {"a": "h1"})
    assert await b.look() is None
    assert await b.cloud.members() == {}
    assert len(b.cloud.events.of("SlotDeleted")) == 1


async def test_a_slot_on_an_unusable_host_goes_as_a_whole():
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
    host = await b.cloud.get_host("h3")
    await b.cloud.set_host(host, conditions=(Condition(type="Terminating", status="True"),))
    assert await b.look() is None
    assert await b.cloud.members() == {}
    assert b.cloud.ranker.requests == []
    (event,) = b.cloud.events.of("SlotDeleted")
    assert "Terminating=True" in event.note


async def test_a_slot_with_members_and_no_host_goes():
    b = await bench()
    await b.cloud.slot("s", "", {"a": "h1"})
    assert await b.look() is None
    assert await b.cloud.members() == {}


async def test_an_answer_that_is_not_trimmed_still_proves_the_host():
    def untrimmed(_: Call) -> PlacementOffer:
        return PlacementOffer(hosts=("h2", "h3", "h9"))

    b = await bench(port=Answering(untrimmed))
    await b.cloud.slot("s", "h3", {"a": "h1"})
    await b.look()
    assert await b.cloud.members() == {"s": {"a": "h1"}}


async def test_an_answer_without_the_host_is_invalid():
    b = await bench(port=Answering(lambda _: PlacementOffer(hosts=("h2",))))
    await b.cloud.slot("s", "h3", {"a": "h1"})
    await b.look()
    assert await b.cloud.members() == {}


async def test_illegal_resources_are_told_and_taken_back_once_legal():
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1"}, resources=Amounts(cpu=2000, memory=4 * GIB, vcpus=2))
    assert later(await b.look())
    slot = await b.slot()
    ready = find_condition(slot.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "InvalidResources")
    assert "vcpus" in ready.message
    assert (await b.cloud.members())["s"] == {"a": "h1"}, "it keeps its members"
    assert b.cloud.ranker.requests == []
    version = slot.metadata.resource_version
    await b.look()
    assert (await b.slot()).metadata.resource_version == version, "not written again"
    legal = msgspec.structs.replace(slot.spec, resources=Amounts(cpu=2000, memory=4 * GIB))
    b.cloud.fleet.upsert_reservation(await b.cloud.memory.replace(msgspec.structs.replace(slot, spec=legal)))
    await b.look()
    ready = find_condition((await b.slot()).status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "ReservationActive")


async def test_a_slot_that_changed_meanwhile_is_looked_at_again():
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1"})
    b.cloud.store.faults.append(
        Fault("replace_status", OutliveError(""), before=lambda: b.cloud.set_members("s", {"a": "h1", "b": "h2"}))
    )
    assert await b.look() == Requeue(0.0)
    failover = (await b.slot()).status.failover_reservation
    assert failover is not None
    assert failover.acknowledged_at is None, "what was validated is not what is there"
    assert later(await b.look())


async def test_a_write_that_fails_is_raised_for_the_queue_to_retry():
    b = await bench()
    await b.cloud.slot("s", "h3", {"a": "h1"})
    b.cloud.store.faults.append(Fault("replace_status", Unavailable("away")))
    with pytest.raises(Unavailable):
        await b.look()
    assert later(await b.look())


async def test_validation_does_not_dissolve_the_fleet_either():
    b = await bench()
    b.budget = b.validation._budget = RemovalBudget(share=0.2, number=2)
    b.budget.refill(10)
    for number in range(5):
        await b.cloud.slot(f"s{number}", "h3", {"a": "h1"})
    host = await b.cloud.get_host("h3")
    await b.cloud.set_host(host, conditions=(Condition(type="Ready", status="False"),))
    for number in range(5):
        await b.look(f"s{number}")
    assert len(await b.cloud.members()) == 3
    assert b.cloud.metric("failover_validations_total", outcome="held-back") == 3
    b.budget.refill(6)
    await b.look("s3")
    assert len(await b.cloud.members()) == 2


async def test_what_a_failed_removal_did_not_remove_goes_back_to_the_budget():
    b = await bench()
    b.budget.refill(100)
    await b.cloud.slot("s", "h3", {"a": "h1"})
    host = await b.cloud.get_host("h3")
    await b.cloud.set_host(host, conditions=(Condition(type="Ready", status="False"),))
    b.cloud.store.faults.append(Fault("delete", Conflict("changed")))
    assert await b.look() == Requeue(0.0)
    assert b.budget._spent == 0
    assert await b.look() is None
    assert await b.cloud.members() == {}


async def test_a_removal_that_the_brake_refuses_is_told():
    b = await bench()
    b.budget.hold(True)
    await b.cloud.slot("s", "h3", {"a": "h1"})
    host = await b.cloud.get_host("h3")
    await b.cloud.set_host(host, conditions=(Condition(type="Ready", status="False"),))
    assert later(await b.look())
    (event,) = b.cloud.events.of("RemovalBrake")
    assert "slot s" in event.note


async def test_nothing_is_judged_on_caches_that_are_out_of_date():
    b = await bench()
    b.validation._doubt = lambda: "Hypervisor were last heard of 90 s ago"
    await b.cloud.slot("s", "h3", {"a": "h1"})
    host = await b.cloud.get_host("h3")
    await b.cloud.set_host(host, conditions=(Condition(type="Ready", status="False"),))
    assert later(await b.look())
    assert set(await b.cloud.members()) == {"s"}
    assert b.cloud.metric("failover_validations_total", outcome="transient") == 1


async def test_a_slot_that_is_being_filled_is_looked_at_when_its_members_settled_or_its_host_changed():
    b = await bench()
    b.validation._settle_s = 5.0
    await b.cloud.clock.sleep(100)
    await b.cloud.slot("s", "h3", {"a": "h1"})
    wait = await b.look()
    assert wait is not None
    assert 0 < wait.after_s <= 5.0
    assert b.cloud.ranker.requests == []
    b.validation.make_due(["s"])
    assert later(await b.look())
    assert len(b.cloud.ranker.requests) == 1
