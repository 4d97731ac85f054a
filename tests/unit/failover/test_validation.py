from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.failover import GIB, Cloud, Fault
from tests.support.live_failover import live
from tests.support.loops import run

from outlive.base.errors import Conflict, OutliveError, Unavailable
from outlive.base.random import Random
from outlive.failover.keeping.budget import RemovalBudget
from outlive.failover.keeping.calls import Call
from outlive.failover.keeping.changed import ChangedHosts, validity_facts
from outlive.failover.keeping.crowding import Crowding, too_much
from outlive.failover.keeping.validation import SlotValidation, unusable
from outlive.failover.model import VmView
from outlive.failover.planning.actions import Offer
from outlive.placement.request import Intent
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
    condition,
)
from outlive.runtime.controller import Requeue


class Locations:
    """Where VMs are, as cycles would see them."""

    def __init__(self, **hosts: str) -> None:
        self.vms = {
            name: VmView(id=name, host=host, zone="z", flavor="std", cpu_milli=2000, memory_bytes=4 * GIB)
            for name, host in hosts.items()
        }
        self.error: OutliveError | None = None

    async def locate(self, vm_id: str) -> VmView | None:
        if self.error is not None:
            raise self.error
        return self.vms.get(vm_id)


class FleetHosts:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def get(self, name: str) -> Hypervisor | None:
        return self._cloud.fleet.host(name)


class Answering:
    """A scheduler whose answers a test writes."""

    needs_candidates = False

    def __init__(self, answer: Callable[[Call], Offer]) -> None:
        self._answer = answer
        self.calls: list[Call] = []

    async def offer(self, call: Call) -> Offer:
        self.calls.append(call)
        return self._answer(call)

    def likeness(self, call: Call) -> None:
        return None


class Bench:
    """A cloud of three hosts with the validation of its slots."""

    def __init__(self, locations: Locations, *, compat: list[str] | None = None, port: Any = None) -> None:
        self.cloud = Cloud({"compat": compat or [], "revalidationInterval": "30m"}, port=port)
        cloud = self.cloud
        self.locations = locations
        self.budget = RemovalBudget(share=0.2, number=50)
        self.validation = SlotValidation(
            cloud.own,
            hosts=FleetHosts(cloud),
            locator=locations,
            placement=cloud.parts.placement,
            writer=cloud.parts.writer,
            reporter=cloud.parts.reporter,
            budget=self.budget,
            config=cloud.failover,
            profile="general",
            clock=cloud.clock,
            random=Random(4),
            ids=cloud.ids,
        )

    async def look(self, name: str = "s") -> Requeue | None:
        return await self.validation.reconcile(name)

    async def slot(self, name: str = "s") -> Reservation:
        return await self.cloud.memory.get(Reservation, name)


async def bench(locations: Locations | None = None, **how: Any) -> Bench:
    made = Bench(locations or Locations(a="h1", b="h2"), **how)
    await made.cloud.hosts("h1", "h2", "h3")
    return made


def later(requeue: Requeue | None) -> bool:
    return requeue is not None and 27 * 60 <= requeue.after_s <= 33 * 60


def test_a_valid_slot_is_acknowledged_told_and_looked_at_later():
    async def story() -> None:
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

    run(story())


def test_each_member_is_asked_about_in_order_with_its_own_size_and_host():
    async def story() -> None:
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

    run(story())


def test_of_members_that_are_alike_one_is_asked_about():
    async def story() -> None:
        b = await bench(Locations(a="h1", b="h2", c="h1", d="h3"))
        await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2", "c": "h1", "d": "h3"})
        await b.look()
        assert [r.resource_id for r in b.cloud.ranker.requests] == ["a", "d"], "d runs on the slot's own host"
        assert sorted((await b.slot()).status.failover_reservation.allocations) == ["a", "b", "c"]  # type: ignore[union-attr]

    run(story())


def test_a_scheduler_of_somebody_else_is_asked_about_every_member():
    async def story() -> None:
        port = Answering(lambda call: Offer(hosts=call.request.hosts or ()))
        b = await bench(port=port)
        await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
        await b.look()
        assert [call.request.resource_id for call in port.calls] == ["a", "b"]

    run(story())


def test_the_pause_is_jittered_by_a_tenth():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "h3", None)
        pauses = [(await b.look()).after_s for _ in range(200)]  # type: ignore[union-attr]
        assert min(pauses) >= 27 * 60
        assert max(pauses) < 33 * 60
        assert max(pauses) - min(pauses) > 5 * 60

    run(story())


def test_an_acknowledgement_is_not_validated_again_but_a_change_is():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "h3", {"a": "h1"})
        await b.look()
        assert later(await b.look())
        assert len(b.cloud.ranker.requests) == 1
        await b.cloud.set_members("s", {"a": "h1", "b": "h2"})
        await b.look()
        assert len(b.cloud.ranker.requests) == 2, "a and b are alike"

    run(story())


def test_after_the_pause_it_is_validated_again_without_a_new_acknowledgement():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "h3", {"a": "h1"})
        await b.look()
        first = (await b.slot()).status.failover_reservation
        await b.cloud.clock.sleep(34 * 60)
        await b.look()
        assert len(b.cloud.ranker.requests) == 2
        assert (await b.slot()).status.failover_reservation == first
        assert len(b.cloud.events.of("ValidationPassed")) == 2

    run(story())


def test_absent_foreign_and_uninitialised_objects():
    async def story() -> None:
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

    run(story())


def test_a_slot_without_members_is_valid():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "h3", {})
        assert later(await b.look())
        assert b.cloud.ranker.requests == []

    run(story())


def test_a_member_that_no_cycle_would_see_is_skipped():
    async def story() -> None:
        b = await bench(Locations(b="h2"))
        await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
        assert later(await b.look())
        assert [r.resource_id for r in b.cloud.ranker.requests] == ["b"]
        assert len(b.cloud.events.of("ValidationPassed")) == 1

    run(story())


@pytest.mark.parametrize("who", ["locator", "scheduler"])
def test_whoever_cannot_be_asked_changes_nothing(who: str):
    async def story() -> None:
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

    run(story())


def test_d11_the_member_at_fault_leaves_and_the_others_stay_unless_switched_back():
    async def story(compat: list[str]) -> tuple[Bench, dict[str, Any]]:
        b = await bench(compat=compat)
        b.locations.vms["a"] = msgspec.structs.replace(b.locations.vms["a"], memory_bytes=500 * GIB)
        await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
        requeue = await b.look()
        assert requeue is None or requeue.after_s == 0
        return b, await b.cloud.members()

    b, members = run(story([]))
    assert members == {"s": {"b": "h2"}}
    (event,) = b.cloud.events.of("MemberRemoved")
    assert "VM a left: validation failed" in event.note
    assert "filter_has_enough_capacity" in event.note
    _, members = run(story(["D11"]))
    assert members == {}


def test_d11_a_slot_that_nobody_is_left_in_goes():
    async def story() -> None:
        b = await bench()
        b.locations.vms["a"] = msgspec.structs.replace(b.locations.vms["a"], memory_bytes=500 * GIB)
        await b.cloud.slot("s", "h3", {"a": "h1"})
        assert await b.look() is None
        assert await b.cloud.members() == {}
        assert len(b.cloud.events.of("SlotDeleted")) == 1

    run(story())


def test_d11_a_slot_on_an_unusable_host_goes_as_a_whole():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "h3", {"a": "h1", "b": "h2"})
        host = await b.cloud.get_host("h3")
        await b.cloud.set_host(host, conditions=(Condition(type="Terminating", status="True"),))
        assert await b.look() is None
        assert await b.cloud.members() == {}
        assert b.cloud.ranker.requests == []
        (event,) = b.cloud.events.of("SlotDeleted")
        assert "Terminating=True" in event.note

    run(story())


def test_a_slot_with_members_and_no_host_goes():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "", {"a": "h1"})
        assert await b.look() is None
        assert await b.cloud.members() == {}

    run(story())


def test_d15_an_answer_that_is_not_trimmed_still_proves_the_host_unless_switched_back():
    def untrimmed(_: Call) -> Offer:
        return Offer(hosts=("h2", "h3", "h9"))

    async def story(compat: list[str]) -> dict[str, Any]:
        b = await bench(compat=compat, port=Answering(untrimmed))
        await b.cloud.slot("s", "h3", {"a": "h1"})
        await b.look()
        return await b.cloud.members()

    assert run(story([])) == {"s": {"a": "h1"}}
    assert run(story(["D15"])) == {}


def test_an_answer_without_the_host_is_invalid():
    async def story() -> None:
        b = await bench(port=Answering(lambda _: Offer(hosts=("h2",))))
        await b.cloud.slot("s", "h3", {"a": "h1"})
        await b.look()
        assert await b.cloud.members() == {}

    run(story())


def test_d10_illegal_resources_are_told_and_taken_back_once_legal_unless_switched_back():
    async def story(compat: list[str]) -> tuple[str, str]:
        b = await bench(compat=compat)
        await b.cloud.slot("s", "h3", {"a": "h1"}, resources=Amounts(cpu=2000, memory=4 * GIB, vcpus=2))
        assert later(await b.look())
        slot = await b.slot()
        ready = condition(slot.status.conditions, "Ready")
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
        ready = condition((await b.slot()).status.conditions, "Ready")
        assert ready is not None
        return ready.status, ready.reason

    assert run(story([])) == ("True", "ReservationActive")
    assert run(story(["D10"])) == ("False", "InvalidResources")


def test_a_slot_that_changed_meanwhile_is_looked_at_again():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "h3", {"a": "h1"})
        b.cloud.store.faults.append(
            Fault(
                "replace_status",
                OutliveError(""),
                before=lambda: b.cloud.set_members("s", {"a": "h1", "b": "h2"}),
            )
        )
        assert await b.look() == Requeue(0.0)
        failover = (await b.slot()).status.failover_reservation
        assert failover is not None
        assert failover.acknowledged_at is None, "what was validated is not what is there"
        assert later(await b.look())

    run(story())


def test_a_write_that_fails_is_raised_for_the_queue_to_retry():
    async def story() -> None:
        b = await bench()
        await b.cloud.slot("s", "h3", {"a": "h1"})
        b.cloud.store.faults.append(Fault("replace_status", Unavailable("away")))
        with pytest.raises(Unavailable):
            await b.look()
        assert later(await b.look())

    run(story())


def test_d12_validation_does_not_dissolve_the_fleet_either():
    async def story() -> None:
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

    run(story())


def test_what_a_failed_removal_did_not_remove_goes_back_to_the_budget():
    async def story() -> None:
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

    run(story())


def test_a_removal_that_the_brake_refuses_is_told():
    async def story() -> None:
        b = await bench()
        b.budget.hold(True)
        await b.cloud.slot("s", "h3", {"a": "h1"})
        host = await b.cloud.get_host("h3")
        await b.cloud.set_host(host, conditions=(Condition(type="Ready", status="False"),))
        assert later(await b.look())
        (event,) = b.cloud.events.of("RemovalBrake")
        assert "slot s" in event.note

    run(story())


def test_nothing_is_judged_on_caches_that_are_out_of_date():
    async def story() -> None:
        b = await bench()
        b.validation._doubt = lambda: "Hypervisor were last heard of 90 s ago"
        await b.cloud.slot("s", "h3", {"a": "h1"})
        host = await b.cloud.get_host("h3")
        await b.cloud.set_host(host, conditions=(Condition(type="Ready", status="False"),))
        assert later(await b.look())
        assert set(await b.cloud.members()) == {"s"}
        assert b.cloud.metric("failover_validations_total", outcome="transient") == 1

    run(story())


def test_a_slot_that_is_being_filled_is_looked_at_when_its_members_settled_or_its_host_changed():
    async def story() -> None:
        b = await bench()
        b.validation._settle_s = 5.0
        await b.cloud.clock.sleep(100)
        await b.cloud.slot("s", "h3", {"a": "h1"})
        wait = await b.look()
        assert wait is not None
        assert 0 < wait.after_s <= 5.0
        assert b.cloud.ranker.requests == []
        b.validation.due_now(["s"])
        assert later(await b.look())
        assert len(b.cloud.ranker.requests) == 1

    run(story())


# Hosts


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
    assert (unusable("h", host(conditions=(Condition(type=kind, status=word),))) == "") is usable


def test_a_host_without_conditions_is_usable_and_an_unknown_one_is_not():
    assert unusable("h", host()) == ""
    assert "unknown" in unusable("h", None)


def test_slots_are_looked_at_again_only_when_their_host_changed_in_something_that_matters():
    async def story() -> None:
        b = await bench()
        slots = [slot_of(2000, "s2", "a"), slot_of(2000, "s1", "a", "b")]
        changed = ChangedHosts(b.validation, lambda name: slots if name == "h" else [])
        assert changed.keys(host(), host(num_instances=3)) == []
        assert changed.keys(host(), host(allocation=Amounts(cpu=1))) == []
        assert changed.keys(host(), host(traits=("X",))) == ["s1", "s2"]
        assert changed.keys(host(), None) == ["s1", "s2"]
        assert changed.keys(None, host()) == []
        assert validity_facts(host()) == validity_facts(host(num_instances=1))

    run(story())


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
    assert [one.name for one in too_much(slots, {"cpu": 1000})] == ["s2"]
    assert [one.name for one in too_much(slots, {"cpu": 3000})] == ["s2", "s3"]
    assert [one.name for one in too_much(slots, {"cpu": 99000})] == ["s2", "s3", "s1"]
    assert too_much(slots, {}) == []
    assert too_much(slots, {"memory": 5}) == []


def test_slots_whose_room_a_vm_has_taken_go_and_their_members_get_others():
    async def story() -> None:
        async with live() as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle()
            ((name, slot),) = (await cloud.slots()).items()
            there = await cloud.get_host(slot.host)
            await cloud.set_host(there, allocation=there.status.capacity)
            await cloud.settle(5)
            ((other, after),) = (await cloud.slots()).items()
            assert other != name
            assert after.host not in ("h1", slot.host)
            assert (await cloud.coverage("a")).covered

    run(story())


def test_a_slot_without_room_that_may_not_be_removed_covers_nobody_until_there_is_room_again():
    async def story() -> None:
        async with live(settings={"brakeNumber": 0, "brakeShare": 0.0}) as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle()
            cloud.failover_run.upkeep.cycle_ended(braked=True)
            ((name, slot),) = (await cloud.slots()).items()
            there = await cloud.get_host(slot.host)
            await cloud.set_host(there, allocation=there.status.capacity)
            await cloud.settle(2.5)
            after = await cloud.slots()
            assert after[name].members == slot.members, "nothing was removed"
            (other,) = after.keys() - {name}
            assert (await cloud.coverage("a")).slots == (other,)
            ready = condition((await cloud.memory.get(Reservation, name)).status.conditions, "Ready")
            assert ready is not None
            assert (ready.status, ready.reason) == ("False", "NoRoom")
            assert "take" in ready.message
            await cloud.set_host(await cloud.get_host(slot.host), allocation=there.status.allocation)
            await cloud.settle(2.5)
            assert (await cloud.coverage("a")).slots == tuple(sorted((name, other)))

    run(story())


def test_a_slot_of_a_crowded_host_stays_if_its_room_is_there_once_others_have_gone():
    slots = [slot_of(4000, "s1", "a", "b"), slot_of(2000, "s2", "a")]
    crowding = Crowding(lambda host: slots if host == "h" else [], lambda host: {"cpu": 2000})
    assert crowding.why("h", "s1") == ""
    assert "2000 cpu" in crowding.why("h", "s2")
    assert [one.name for one in crowding.unsettled("h")] == ["s2"]


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
    assert RemovalBudget(share=0, number=0, unlimited=True).take(1000)


def test_slots_on_a_host_that_is_to_be_emptied_count_for_nobody_even_while_nothing_may_be_removed():
    async def story() -> None:
        async with live(settings={"brakeNumber": 0, "brakeShare": 0.0}) as cloud:
            for number in range(4):
                await cloud.vm(f"v{number}", f"h{number + 1}")
            await cloud.settle()
            cloud.failover_run.upkeep.cycle_ended(braked=True)
            (name, slot), *_ = [(name, slot) for name, slot in (await cloud.slots()).items() if slot.members]
            host = await cloud.get_host(slot.host)
            await cloud.memory.replace(
                msgspec.structs.replace(host, spec=msgspec.structs.replace(host.spec, drain=True))
            )
            await cloud.settle()
            there = await cloud.slots()
            assert there[name].members == slot.members, "nothing was removed"
            for vm in slot.members:
                status = await cloud.coverage(vm)
                assert name not in status.slots
                assert status.covered, "it has another slot beside"
            host = await cloud.get_host(slot.host)
            await cloud.memory.replace(
                msgspec.structs.replace(host, spec=msgspec.structs.replace(host.spec, drain=False))
            )
            await cloud.settle()
            for vm in slot.members:
                assert name in (await cloud.coverage(vm)).slots
            await cloud.cycle()
            assert cloud.metric("failover_audit_differences_total") == 0

    run(story())
