from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.failover import GIB, Cloud, Fault
from tests.support.loops import run

from outlive.base.errors import AlreadyExists, Conflict, OutliveError, Unavailable, Unknown
from outlive.base.random import Random
from outlive.failover.eligibility.graph import DependencyGraph
from outlive.failover.model import VmView
from outlive.failover.vms import VmList
from outlive.placement.request import Intent
from outlive.resources import (
    FlavorGroup,
    FlavorGroupSpec,
    GroupFlavor,
    Hypervisor,
    Instance,
    ObjectMeta,
    Reservation,
    VirtualMachine,
    condition,
)
from outlive.store.faults import FaultRates, FaultStore

AWAY = Unavailable("the store is away")
LOST = Unknown("the answer was lost")


async def six_hosts(cloud: Cloud) -> None:
    await cloud.hosts("h1", "h2", "h3", "h4", "h5", "h6")


async def check_rules(cloud: Cloud) -> None:
    slots = list((await cloud.slots()).values())
    graph = DependencyGraph.build(slots)
    assert all(graph.holds_in(slot.name) for slot in slots)


async def slots_of(cloud: Cloud, vm: str) -> list[str]:
    return [name for name, members in (await cloud.members()).items() if vm in members]


def is_slot(obj: Any) -> bool:
    return getattr(obj, "kind", "") == "Reservation" or isinstance(obj, Reservation)


# What a cycle does


def test_an_empty_cloud_gets_a_quiet_cycle():
    async def story() -> None:
        cloud = Cloud()
        assert await cloud.cycle() == 30.0
        assert cloud.metric("failover_reconciliation_runs_total") == 1
        assert cloud.store.calls == []

    run(story())


def test_every_vm_gets_the_slots_it_needs_and_is_told_so():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        for number in range(6):
            await cloud.vm(f"vm{number}", f"h{number % 3 + 1}")
        await cloud.cycle()
        slots = await cloud.slots()
        for number in range(6):
            mine = [slot for slot in slots.values() if f"vm{number}" in slot.members]
            assert len({slot.host for slot in mine}) == 2
            status = await cloud.coverage(f"vm{number}")
            assert (status.covered, status.required, status.host) == (True, 2, f"h{number % 3 + 1}")
            assert list(status.slots) == sorted(slot.name for slot in mine)
        await check_rules(cloud)

    run(story())


def test_a_second_cycle_writes_nothing():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h2")
        await cloud.cycle()
        cloud.store.calls.clear()
        await cloud.cycle()
        assert cloud.store.calls == []

    run(story())


def test_a_new_slot_is_labelled_named_after_its_zone_and_carries_the_request_id():
    async def story() -> None:
        cloud = Cloud({"creator": "me", "flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", zone="EU_pl--1a.x")
        await cloud.vm("a", "h1", zone="EU_pl--1a.x")
        await cloud.cycle()
        (slot,) = (await cloud.memory.list(Reservation)).items
        assert slot.name.startswith("failover-eupl--1ax-")
        assert len(slot.name) == len("failover-eupl--1ax-") + 5
        assert slot.metadata.labels == {"outlive.dev/creator": "me", "reservations.outlive.dev/type": "failover"}
        assert slot.metadata.annotations["reservations.outlive.dev/creator-request-id"].startswith("failover-")
        assert slot.spec.resources.wire() == {"cpu": "2", "memory": "4Gi"}
        assert (slot.spec.target_host, slot.status.host, slot.spec.availability_zone) == ("h2", "h2", "EU_pl--1a.x")
        assert slot.spec.failover_reservation is not None
        assert slot.spec.failover_reservation.resource_group == "std"
        ready = condition(slot.status.conditions, "Ready")
        assert ready is not None
        assert (ready.status, ready.reason) == ("True", "ReservationActive")
        failover = slot.status.failover_reservation
        assert failover is not None
        assert failover.last_changed is not None
        assert failover.acknowledged_at is None

    run(story())


def test_vms_of_two_hosts_share_a_slot():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", memory=2 * GIB)
        await cloud.host("h3")
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h2")
        await cloud.cycle()
        members = await cloud.members()
        assert list(members.values()) == [{"a": "h1", "b": "h2"}]
        assert cloud.metric("failover_reconciliation_reservations_created_total") == 1
        assert cloud.metric("failover_reconciliation_reservations_reused_total") == 1
        assert cloud.events.reasons().count("SlotReused") == 1

    run(story())


def test_the_largest_vms_go_first_and_the_limit_asks_for_a_short_pause():
    async def story() -> None:
        cloud = Cloud({"maxVMsToProcess": 1, "flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("small", "h1", memory=GIB)
        await cloud.vm("large", "h1", memory=8 * GIB)
        assert await cloud.cycle() == 0.1
        assert await cloud.covered() == {"large": True, "small": False}
        status = await cloud.coverage("small")
        assert status.reason == "waiting-for-a-cycle"
        assert await cloud.cycle() == 30.0
        assert await cloud.covered() == {"large": True, "small": True}

    run(story())


def test_one_new_slot_per_host_and_cycle():
    async def story() -> None:
        cloud = Cloud({"limitOneNewReservationPerHypervisor": True, "flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h1")
        await cloud.cycle()
        assert list((await cloud.covered()).values()).count(True) == 1
        (event,) = cloud.events.of("VMWithoutSlot")
        assert "one-new-slot-per-host" in event.note
        await cloud.cycle()
        assert await cloud.covered() == {"a": True, "b": True}

    run(story())


def test_a_vm_without_a_place_is_told_why_and_only_once():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.host("h1")
        await cloud.host("h2", memory=2 * GIB)
        await cloud.vm("a", "h1")
        await cloud.cycle()
        await cloud.cycle()
        status = await cloud.coverage("a")
        assert (status.covered, status.reason) == (False, "no-capacity")
        assert status.message
        assert status.remedy
        assert len(cloud.events.of("VMWithoutSlot")) == 1
        assert cloud.metric("failover_vms_uncovered", reason="no-capacity") == 1
        await cloud.host("h3")
        await cloud.cycle()
        assert (await cloud.coverage("a")).covered
        assert cloud.metric("failover_vms_uncovered", reason="no-capacity") == 0

    run(story())


LEVELS = {"levels": {"critical": {"slots": 1, "priority": 9}, "none": {"slots": 0}}, "default": "none"}


def test_a_limited_cycle_serves_the_highest_priority_first():
    async def story() -> None:
        cloud = Cloud({"maxVMsToProcess": 1, "vmSelectionRotationInterval": 0}, protection=LEVELS)
        for name in ("h1", "h2"):
            await cloud.host(name)
        await cloud.vm("a-large", "h1", memory=16 * GIB, protection="critical", restart_priority=1)
        await cloud.vm("small", "h1", protection="critical")
        await cloud.vm("unasked", "h1")
        await cloud.cycle()
        assert await cloud.covered() == {"a-large": False, "small": True, "unasked": True}
        await cloud.cycle()
        assert await cloud.covered() == {"a-large": True, "small": True, "unasked": True}

    run(story())


def test_levels_are_told_as_metrics_and_an_unknown_one_once_as_an_event():
    async def story() -> None:
        cloud = Cloud(protection=LEVELS)
        for name in ("h1", "h2"):
            await cloud.host(name)
        await cloud.vm("a", "h1", protection="critical", memory=4 * GIB)
        await cloud.vm("b", "h2", protection="gold")
        await cloud.cycle()
        await cloud.cycle()
        assert cloud.metric("failover_level_vms", level="critical", covered="true") == 1
        assert cloud.metric("failover_level_vms", level="critical", covered="false") == 0
        assert cloud.metric("failover_level_reserved_resources", level="critical", resource="memory") == 4 * GIB
        assert cloud.metric("failover_vms_unknown_level") == 1
        (event,) = cloud.events.of("UnknownProtectionLevel")
        assert "'gold'" in event.note

    run(story())


def test_what_a_slot_does_not_hold_is_said():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        vm = await cloud.memory.get(VirtualMachine, "a")
        resources = type(vm.spec.resources)({**vm.spec.resources, "gpu": 2})
        await cloud.memory.replace(
            msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, resources=resources))
        )
        await cloud.cycle()
        status = await cloud.coverage("a")
        assert status.covered
        assert dict(status.also_needs) == {"gpu": 2}

    run(story())


def test_a_stopped_vm_loses_its_slots_and_its_coverage():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        await cloud.cycle()
        await cloud.stop("a")
        await cloud.cycle()
        assert await cloud.members() == {}
        assert await cloud.covered() == {}
        assert {e.note.split(";")[0] for e in cloud.events.of("MemberRemoved")} == {"VM a left: vm-gone"}
        assert len(cloud.events.of("SlotDeleted")) == 2

    run(story())


def test_a_moved_vm_gets_slots_for_where_it_is_now():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        await cloud.cycle()
        there = {slot.host for slot in (await cloud.slots()).values()}
        await cloud.move("a", sorted(there)[0])
        await cloud.cycle()
        status = await cloud.coverage("a")
        assert status.covered
        assert status.host not in {slot.host for slot in (await cloud.slots()).values()}
        assert all(host == status.host for m in (await cloud.members()).values() for host in m.values())

    run(story())


def test_a_wiped_vm_source_dissolves_nothing_while_hosts_report_the_vms():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        for number in range(4):
            await cloud.vm(f"vm{number}", f"h{number + 1}")
        await cloud.cycle()
        before = await cloud.members()
        for number in range(4):
            await cloud.remove_vm(f"vm{number}", also_from_host=False)
        await cloud.cycle()
        assert await cloud.members() == before
        assert set(await cloud.covered()) == {f"vm{n}" for n in range(4)}, "nobody is forgotten either"
        assert cloud.metric("failover_location_disagreements", kind="not-in-source") == 4

    run(story())


def test_group_sizing_makes_slots_as_large_as_the_largest_flavor():
    async def story() -> None:
        cloud = Cloud({"useFlavorGroupResources": True, "flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2")
        large, std = GroupFlavor(name="large", vcpus=8, memory_mb=32768), GroupFlavor(name="std", vcpus=2)
        spec = FlavorGroupSpec(group_name="g", flavors=(large, std), largest_flavor=large, smallest_flavor=std)
        await cloud.memory.create(FlavorGroup(metadata=ObjectMeta(name="g"), spec=spec))
        await cloud.vm("a", "h1")
        await cloud.cycle()
        (slot,) = (await cloud.slots()).values()
        assert (slot.cpu_milli, slot.memory_bytes, slot.group) == (8000, 32 * GIB, "g")

    run(story())


def test_trusting_hosts_the_reporting_host_is_the_location():
    async def story() -> None:
        cloud = Cloud({"trustHypervisorLocation": True, "flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        vm = await cloud.memory.get(VirtualMachine, "a")
        assert vm.status.assigned is not None
        elsewhere = msgspec.structs.replace(vm.status.assigned, hypervisor="h3")
        status = msgspec.structs.replace(vm.status, assigned=elsewhere)
        await cloud.memory.replace_status(msgspec.structs.replace(vm, status=status))
        await cloud.cycle()
        assert list((await cloud.members()).values()) == [{"a": "h1"}]

    run(story())


def test_the_run_loop_waits_short_first_and_then_as_each_cycle_says():
    async def story() -> None:
        cloud = Cloud({"shortReconcileInterval": "1s", "reconcileInterval": "10s"})
        task = asyncio.create_task(cloud.periodic.run())
        await cloud.clock.sleep(0.9)
        assert cloud.metric("failover_reconciliation_runs_total") == 0
        await cloud.clock.sleep(0.2)
        assert cloud.metric("failover_reconciliation_runs_total") == 1
        await cloud.clock.sleep(30)
        assert cloud.metric("failover_reconciliation_runs_total") == 4
        task.cancel()

    run(story())


# The failure table


@pytest.mark.parametrize(
    ("kind", "step"), [(Hypervisor, "hypervisors"), (VirtualMachine, "vms"), (Reservation, "slots")]
)
def test_a_listing_that_fails_aborts_the_cycle_and_d14_counts_it(kind: type, step: str):
    async def story(compat: list[str]) -> Cloud:
        cloud = Cloud({"compat": compat})
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        cloud.store.faults.append(Fault("list", AWAY, lambda listed: listed is kind))
        assert await cloud.cycle() == 30.0
        assert cloud.store.calls == []
        assert cloud.metric("failover_reconciliation_runs_total") == 0
        await cloud.cycle()
        assert (await cloud.covered()) == {"a": True}
        return cloud

    assert run(story([])).metric("failover_reconciliation_aborted_total", step=step) == 1
    assert run(story(["D14"])).metric("failover_reconciliation_aborted_total", step=step) == 0


def test_a_failed_removal_is_repeated_by_the_next_cycle():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        await cloud.slot("s", "h3", {"a": "h1", "gone": "h2"})
        cloud.store.faults.append(Fault("replace_status", AWAY, is_slot))
        await cloud.cycle()
        assert (await cloud.members())["s"] == {"a": "h1", "gone": "h2"}
        assert cloud.metric("failover_reconciliation_reservations_updated_total") == 1
        assert cloud.events.of("MemberRemoved") == [], "what was not written is not told"
        await cloud.cycle()
        assert (await cloud.members())["s"] == {"a": "h1"}

    run(story())


def test_a_failed_deletion_is_treated_as_done_and_repeated():
    async def story() -> None:
        cloud = Cloud()
        await cloud.hosts("h1", "h2")
        await cloud.slot("s", "h2", {"gone": "h1"})
        cloud.store.faults.append(Fault("delete", AWAY, is_slot))
        await cloud.cycle()
        assert list(await cloud.members()) == ["s"]
        assert cloud.metric("failover_reconciliation_reservations_deleted_total") == 1
        assert cloud.metric("failover_reconciliation_total_reservations") == 0
        await cloud.cycle()
        assert await cloud.members() == {}

    run(story())


def test_without_group_data_own_sizes_are_used():
    async def story() -> None:
        cloud = Cloud({"useFlavorGroupResources": True, "flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        cloud.store.faults.append(Fault("list", AWAY, lambda listed: listed is FlavorGroup))
        await cloud.cycle()
        (slot,) = (await cloud.slots()).values()
        assert slot.cpu_milli == 2000

    run(story())


def test_a_scheduler_that_fails_in_reuse_is_still_asked_for_a_new_slot():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("b", "h2")
        await cloud.vm("a", "h1")
        await cloud.slot("s", "h3", {"b": "h2"})
        cloud.ranker.error = AWAY
        cloud.ranker.fail_when = lambda request: request.intent is Intent.REUSE_FAILOVER_RESERVATION
        await cloud.cycle()
        assert (await cloud.members())["s"] == {"b": "h2"}
        assert len(await slots_of(cloud, "a")) == 1
        assert cloud.metric("failover_reconciliation_reservations_failed_total") == 0

    run(story())


def test_a_scheduler_that_fails_in_new_leaves_the_vm_to_a_later_cycle():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        cloud.ranker.error = AWAY
        await cloud.cycle()
        assert cloud.metric("failover_reconciliation_reservations_failed_total") == 1, "once, though two were missing"
        assert (await cloud.coverage("a")).reason == "placement-unavailable"
        cloud.ranker.error = None
        await cloud.cycle()
        assert await cloud.covered() == {"a": True}

    run(story())


def test_a_failed_creation_gives_the_vm_up_until_the_next_cycle():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        cloud.store.faults.append(Fault("create", AWAY, is_slot))
        await cloud.cycle()
        assert await cloud.members() == {}
        assert cloud.metric("failover_reconciliation_reservations_failed_total") == 1
        assert cloud.metric("failover_reconciliation_reservations_created_total") == 0
        status = await cloud.coverage("a")
        assert (status.covered, status.reason) == (False, "store-failed")
        await cloud.cycle()
        assert await cloud.covered() == {"a": True}

    run(story())


def test_others_plan_anew_when_the_slot_they_were_to_share_was_not_created():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1", memory=8 * GIB)
        await cloud.vm("b", "h2")
        cloud.store.faults.append(Fault("create", AWAY, is_slot))
        await cloud.cycle()
        assert await cloud.covered() == {"a": False, "b": True}
        await cloud.cycle()
        assert await cloud.covered() == {"a": True, "b": True}
        await check_rules(cloud)

    run(story())


def test_a_failed_join_is_spent_and_its_slot_is_left_alone_in_this_cycle():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3", "h4", "h5")
        for name, host in (("a", "h1"), ("b", "h2"), ("c", "h4")):
            await cloud.vm(name, host)
        await cloud.slot("s", "h3", {"c": "h4"})
        cloud.store.faults.append(Fault("replace_status", AWAY, is_slot))
        await cloud.cycle()
        assert (await cloud.members())["s"] == {"c": "h4"}
        assert cloud.metric("failover_reconciliation_reservations_failed_total") == 1
        assert await cloud.covered() == {"a": False, "b": True, "c": True}
        await cloud.cycle()
        assert await cloud.covered() == {"a": True, "b": True, "c": True}
        await check_rules(cloud)

    run(story())


def test_a_slot_whose_status_was_not_written_counts_as_created_promises_nothing_and_goes_after_a_while():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        cloud.store.faults.append(Fault("replace_status", AWAY, is_slot))
        await cloud.cycle()
        assert cloud.metric("failover_reconciliation_reservations_created_total") == 1
        assert cloud.metric("failover_reconciliation_reservations_failed_total") == 0
        assert await cloud.covered() == {"a": False}, "it is not said to be covered by what was not written"
        (orphan,) = await cloud.slots()
        await cloud.cycle()
        assert await cloud.covered() == {"a": True}
        assert orphan in await cloud.slots()
        await cloud.clock.sleep(61)
        await cloud.cycle()
        assert orphan not in await cloud.slots()
        assert await cloud.covered() == {"a": True}

    run(story())


def test_a_malformed_pattern_is_ignored():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"[": 5, "std": 1}})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        await cloud.cycle()
        assert (await cloud.coverage("a")).required == 1

    run(story())


# Lost answers


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("call", ["create", "replace_status", "delete"])
def test_a_lost_answer_is_resolved_by_looking(call: str, applied: bool):
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        await cloud.slot("old", "h3", {"gone": "h2"})
        cloud.store.faults.append(Fault(call, LOST, is_slot, applied=applied))
        await cloud.cycle()
        if applied:
            assert await cloud.covered() == {"a": True}
            assert "old" not in await cloud.members()
            assert len(await slots_of(cloud, "a")) == 1
        await cloud.cycle()
        await cloud.clock.sleep(61)
        await cloud.cycle()
        assert await cloud.covered() == {"a": True}
        assert len(await cloud.members()) == 1, "nothing was created twice"

    run(story())


def test_a_name_that_is_taken_is_drawn_again():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        cloud.store.faults.append(Fault("create", AlreadyExists("taken"), is_slot, times=2))
        await cloud.cycle()
        assert await cloud.covered() == {"a": True}

    run(story())


# Conflicts (D8)


def meanwhile(cloud: Cloud, name: str, members: dict[str, str]) -> Fault:
    """Before the next status write somebody else changes the slot; the write then meets what is there."""
    return Fault("replace_status", OutliveError(""), is_slot, before=lambda: cloud.set_members(name, members))


def test_d8_a_removal_that_meets_another_writer_decides_again_about_that_slot():
    async def story(compat: list[str]) -> dict[str, str]:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}, "compat": compat})
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h2")
        await cloud.slot("s", "h6", {"a": "h1", "gone": "h5"})
        await cloud.slot("t", "h5", {"b": "h2"})
        cloud.store.faults.append(meanwhile(cloud, "s", {"a": "h1", "gone": "h5", "b": "h2"}))
        await cloud.cycle()
        return (await cloud.members())["s"]

    assert run(story([])) == {"a": "h1", "b": "h2"}, "the newcomer stays"
    assert run(story(["D8"])) == {"a": "h1"}, "the reference overwrites it"


def test_a_slot_that_somebody_joined_is_not_deleted():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await six_hosts(cloud)
        await cloud.vm("b", "h2")
        await cloud.slot("s", "h6", {"gone": "h5"})
        cloud.store.faults.append(
            Fault("delete", OutliveError(""), is_slot, before=lambda: cloud.set_members("s", {"b": "h2"}))
        )
        await cloud.cycle()
        assert (await cloud.members())["s"] == {"b": "h2"}

    run(story())


def test_a_join_that_meets_another_writer_joins_what_is_there_now():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await six_hosts(cloud)
        for name, host in (("a", "h1"), ("b", "h2"), ("c", "h3")):
            await cloud.vm(name, host)
        await cloud.slot("s", "h6", {"c": "h3"})
        await cloud.slot("t", "h5", {"b": "h2"})
        cloud.store.faults.append(meanwhile(cloud, "s", {"c": "h3", "b": "h2"}))
        await cloud.cycle()
        assert (await cloud.members())["s"] == {"a": "h1", "b": "h2", "c": "h3"}
        assert cloud.metric("failover_reconciliation_reservations_failed_total") == 0

    run(story())


def test_a_join_that_is_no_longer_allowed_is_decided_again():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await six_hosts(cloud)
        for name, host in (("a", "h1"), ("b", "h1"), ("c", "h3")):
            await cloud.vm(name, host)
        await cloud.slot("s", "h6", {"c": "h3"})
        await cloud.slot("t", "h5", {"b": "h1"})
        cloud.store.faults.append(meanwhile(cloud, "s", {"c": "h3", "b": "h1"}))
        await cloud.cycle()
        assert (await cloud.members())["s"] == {"c": "h3", "b": "h1"}
        assert (await cloud.covered())["a"]
        await check_rules(cloud)

    run(story())


def test_a_slot_that_vanished_is_replaced_by_another():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        await cloud.vm("c", "h3")
        slot = await cloud.slot("s", "h6", {"c": "h3"})
        cloud.store.faults.append(
            Fault("replace_status", Conflict("gone"), is_slot, before=lambda: cloud.memory.delete(slot.ref))
        )
        await cloud.cycle()
        assert (await cloud.covered())["a"]

    run(story())


# Cut off between two writes


@pytest.mark.parametrize("after", range(1, 12))
def test_a_cycle_that_is_cut_off_after_any_write_is_completed_by_the_next(after: int):
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        for number in range(3):
            await cloud.vm(f"vm{number}", f"h{number + 1}")
        await cloud.slot("old", "h6", {"vm0": "h1", "gone": "h5"})
        await cloud.slot("empty", "h5", {})
        task = asyncio.create_task(cloud.cycle())
        await asyncio.wait([task, asyncio.create_task(cloud.store.wrote(after))], return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await check_rules(cloud)
        await cloud.cycle()
        await cloud.clock.sleep(61)
        await cloud.cycle()
        assert await cloud.covered() == {"vm0": True, "vm1": True, "vm2": True}
        assert all(members for members in (await cloud.members()).values())
        await check_rules(cloud)

    run(story())


def test_a_store_that_fails_all_the_time_is_outlived():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 2}})
        await six_hosts(cloud)
        for number in range(8):
            await cloud.vm(f"vm{number}", f"h{number % 4 + 1}")
        rates = FaultRates(refuse=0.05, lose_applied=0.05, lose_dropped=0.05, lose_late=0.05, delay=0.2)
        faulty = FaultStore(cloud.memory, clock=cloud.clock, random=Random(3), rates=rates)
        cloud.store._inner = faulty  # type: ignore[assignment]
        for _ in range(12):
            await cloud.cycle()
            await cloud.clock.sleep(30)
        cloud.store._inner = cloud.memory
        await cloud.cycle()
        await cloud.clock.sleep(61)
        await cloud.cycle()
        assert set((await cloud.covered()).values()) == {True}
        await check_rules(cloud)

    run(story())


# Deviations that concern the cycle


def test_d6_is_what_the_configuration_says():
    async def story(compat: list[str]) -> int:
        cloud = Cloud(
            {"flavorFailoverRequirements": {"*": 1}, "compat": compat, "limitOneNewReservationPerHypervisor": None}
        )
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h1")
        await cloud.cycle()
        return len(await cloud.members())

    assert run(story([])) == 1
    assert run(story(["D6"])) == 2


def test_d7_an_uninitialised_slot_waits_for_its_grace_period_unless_switched_back():
    async def story(compat: list[str]) -> bool:
        cloud = Cloud({"compat": compat})
        await cloud.hosts("h1", "h2")
        await cloud.slot("s", "h2", None)
        await cloud.cycle()
        return "s" in await cloud.slots()

    assert run(story([])) is True
    assert run(story(["D7"])) is False


def test_d7_an_initialised_slot_without_members_goes_at_once():
    async def story() -> None:
        cloud = Cloud()
        await cloud.hosts("h1", "h2")
        await cloud.slot("s", "h2", {})
        await cloud.cycle()
        assert await cloud.slots() == {}

    run(story())


def test_d10_a_slot_that_is_not_ready_is_no_coverage_unless_switched_back():
    async def story(compat: list[str]) -> int:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}, "compat": compat})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        await cloud.slot("s", "h2", {"a": "h1"}, ready=False)
        await cloud.cycle()
        return len(await slots_of(cloud, "a"))

    assert run(story([])) == 2
    assert run(story(["D10"])) == 1


def test_d10_a_slot_without_a_condition_counts():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        await cloud.slot("s", "h2", {"a": "h1"}, ready=None)
        await cloud.cycle()
        assert await slots_of(cloud, "a") == ["s"]
        assert await cloud.covered() == {"a": True}

    run(story())


async def mass_removal(compat: list[str]) -> Cloud:
    cloud = Cloud({"flavorFailoverRequirements": {"*": 1}, "compat": compat}, {"brakeNumber": 3})
    await six_hosts(cloud)
    for number in range(8):
        await cloud.vm(f"vm{number}", f"h{number % 2 + 1}")
    await cloud.cycle()
    for number in range(5):
        await cloud.stop(f"vm{number}")
    await cloud.cycle()
    return cloud


def test_d12_a_cycle_that_would_drop_too_much_drops_nothing_unless_switched_back():
    async def story(compat: list[str]) -> tuple[int, float, int]:
        cloud = await mass_removal(compat)
        memberships = sum(len(members) for members in (await cloud.members()).values())
        return memberships, cloud.metric("failover_removal_brakes_total"), len(cloud.events.of("RemovalBrake"))

    assert run(story([])) == (8, 1, 1)
    assert run(story(["D12"])) == (3, 0, 0)


def test_the_brake_lets_go_once_the_vms_are_back():
    async def story() -> None:
        cloud = await mass_removal([])
        assert cloud.metric("failover_removals_held_back") == 5
        for number in range(4):
            vm = await cloud.memory.get(VirtualMachine, f"vm{number}")
            assert vm.status.assigned is not None
            await cloud.instances(
                vm.status.assigned.hypervisor,
                lambda there: (msgspec.structs.replace(i, active=True) for i in there),
            )
        await cloud.cycle()
        assert cloud.metric("failover_removals_held_back") == 0

    run(story())


def test_d13_a_vm_without_a_size_is_refused_and_says_so():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1", cpu=0)
        await cloud.cycle()
        assert await cloud.members() == {}
        assert (await cloud.coverage("a")).reason == "zero-size"

    run(story())


class Database:
    """A VM source that is no store."""

    def __init__(self, *vms: VmView) -> None:
        self.vms = vms

    async def list_vms(self) -> VmList:
        return VmList(vms=self.vms)

    async def get_vm(self, vm_id: str) -> VmView | None:
        return next((vm for vm in self.vms if vm.id == vm_id), None)


def test_a_database_serves_as_vm_source():
    async def story() -> None:
        view = VmView(id="a", host="h1", zone="z", flavor="std", cpu_milli=2000, memory_bytes=GIB, source="database")
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}}, source=Database(view))
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        await cloud.vm("unknown-to-the-database", "h1")
        await cloud.cycle()
        assert list((await cloud.members()).values()) == [{"a": "h1"}]
        assert await cloud.covered() == {"a": True}

    run(story())


def test_request_ids_run_through_calls_events_and_slots():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        await cloud.cycle()
        (slot,) = (await cloud.memory.list(Reservation)).items
        ids = {request.global_request_id for request in cloud.ranker.requests}
        assert ids == {slot.metadata.annotations["reservations.outlive.dev/creator-request-id"]}
        assert len({request.request_id for request in cloud.ranker.requests}) == 1
        assert {use.request for use in cloud.decisions.uses()} == ids

    run(story())


def test_nothing_is_told_that_only_the_cycle_supposes():
    """The removal of b could not be written: as long as the store has both, neither is told to be covered by r."""

    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h5")
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h1")
        await cloud.slot("r", "h5", {"a": "h1", "b": "h2"})
        away = Fault("replace_status", Unavailable("away"), where=lambda one: getattr(one, "name", "") == "r", times=99)
        cloud.store.faults.append(away)
        await cloud.cycle()
        assert (await cloud.members())["r"] == {"a": "h1", "b": "h2"}
        told = await cloud.coverage("a")
        assert not told.covered or "r" not in told.slots
        told = await cloud.coverage("b")
        assert not told.covered or "r" not in told.slots

    run(story())


def test_a_slot_that_moved_while_it_was_joined_takes_nobody_from_its_new_host():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h5", "h9")
        await cloud.vm("t1", "h1")
        await cloud.vm("t2", "h2")
        await cloud.slot("r", "h5", {"x": "h9"})
        await cloud.instances("h9", lambda there: (*there, Instance(id="x", name="x")))

        async def move() -> None:
            slot = await cloud.memory.get(Reservation, "r")
            status = msgspec.structs.replace(slot.status, host="h2")
            cloud.fleet.upsert_reservation(
                await cloud.memory.replace_status(msgspec.structs.replace(slot, status=status))
            )

        joined = Fault("replace_status", OutliveError("x"), where=lambda one: one.name == "r", before=move)
        cloud.store.faults.append(joined)
        await cloud.cycle()
        assert "t2" not in (await cloud.members())["r"]
        assert list(DependencyGraph.build(list((await cloud.slots()).values())).breaches("t2")) == []

    run(story())


class Broken(Database):
    """A VM source with a defect."""

    async def list_vms(self) -> VmList:
        raise OverflowError("cannot convert float infinity to integer")


def test_a_source_with_a_defect_ends_the_cycle_in_order_and_is_counted():
    async def story() -> None:
        cloud = Cloud(source=Broken())
        await cloud.hosts("h1", "h2")
        assert await cloud.cycle() == 30.0
        assert cloud.metric("failover_reconciliation_aborted_total", step="vms") == 1
        assert await cloud.slots() == {}

    run(story())


def test_a_vm_that_only_hosts_know_is_not_told_covered_by_slots_of_another_place():
    """The guard keeps the memberships; the promise does not hold on the host of the VM's own slot."""

    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("v", "h1")
        await cloud.cycle()
        (slot,) = (await cloud.slots()).values()
        assert (await cloud.coverage("v")).covered
        await cloud.remove_vm("v", also_from_host=False)
        await cloud.cycle()
        assert (await cloud.coverage("v")).covered, "it still runs where it was promised a place for"
        await cloud.instances("h1", lambda there: ())
        await cloud.instances(slot.host, lambda there: (*there, Instance(id="v")))
        await cloud.cycle()
        told = await cloud.coverage("v")
        assert (told.covered, told.reason, told.host) == (False, "unlisted-and-moved", slot.host)
        assert list((await cloud.members()).values()) == [{"v": "h1"}]

    run(story())


def test_a_host_whose_room_went_meanwhile_is_decided_about_again():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        asked: list[str] = []

        def has_room(host: str, cpu_milli: int, memory_bytes: int) -> bool:
            asked.append(host)
            return len(asked) > 1

        cloud.periodic._turn.has_room = has_room  # type: ignore[method-assign]
        await cloud.cycle()
        assert len(asked) == 2
        assert await cloud.covered() == {"a": True}
        assert cloud.metric("failover_reconciliation_reservations_failed_total") == 0

    run(story())
