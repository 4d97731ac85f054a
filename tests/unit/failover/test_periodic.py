"""What a cycle does in a cloud where everything works."""

from __future__ import annotations

import asyncio

import msgspec
from tests.support.cycles import Database, check_rules, cloud_of
from tests.support.failover import GIB, Cloud

from outlive.placement import VmView
from outlive.resources import (
    Fault,
    FlavorGroup,
    FlavorGroupSpec,
    GroupFlavor,
    Instance,
    ObjectMeta,
    Reservation,
    VirtualMachine,
    find_condition,
)

LEVELS = {"levels": {"critical": {"slots": 1, "priority": 9}, "none": {"slots": 0}}, "default": "none"}


async def test_an_empty_cloud_gets_a_quiet_cycle():
    cloud = Cloud()
    assert await cloud.cycle() == 30.0
    assert cloud.metric("failover_reconciliation_runs_total") == 1
    assert cloud.store.calls == []


async def test_every_vm_gets_the_slots_it_needs_and_is_told_so():
    cloud = await cloud_of()
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


async def test_a_second_cycle_writes_nothing():
    cloud = await cloud_of(vms={"a": "h1", "b": "h2"})
    await cloud.cycle()
    cloud.store.calls.clear()
    await cloud.cycle()
    assert cloud.store.calls == []


async def test_a_new_slot_is_labelled_named_after_its_zone_and_carries_the_request_id():
    cloud = Cloud({"creator": "me", "flavorFailoverRequirements": {"*": 1}})
    await cloud.hosts("h1", "h2", zone="EU_pl--1a.x")
    await cloud.vm("a", "h1", zone="EU_pl--1a.x")
    await cloud.cycle()
    (slot,) = (await cloud.memory.list(Reservation)).items
    assert slot.name.startswith("failover-eupl--1ax-")
    assert len(slot.name) == len("failover-eupl--1ax-") + 5
    assert slot.metadata.labels == {"outlive.dev/creator": "me", "reservations.outlive.dev/type": "failover"}
    assert slot.metadata.annotations["reservations.outlive.dev/creator-request-id"].startswith("failover-")
    assert slot.spec.resources.to_wire() == {"cpu": "2", "memory": "4Gi"}
    assert (slot.spec.target_host, slot.status.host, slot.spec.availability_zone) == ("h2", "h2", "EU_pl--1a.x")
    assert slot.spec.failover_reservation is not None
    assert slot.spec.failover_reservation.resource_group == "std"
    ready = find_condition(slot.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "ReservationActive")
    failover = slot.status.failover_reservation
    assert failover is not None
    assert failover.last_changed is not None
    assert failover.acknowledged_at is None


async def test_vms_of_two_hosts_share_a_slot():
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


async def test_the_largest_vms_go_first_and_the_limit_asks_for_a_short_pause():
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


async def test_one_new_slot_per_host_and_cycle():
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


async def test_a_vm_without_a_place_is_told_why_and_only_once():
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


async def test_a_limited_cycle_serves_the_highest_priority_first():
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


async def test_levels_are_told_as_metrics_and_an_unknown_one_once_as_an_event():
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


async def test_what_a_slot_does_not_hold_is_said():
    cloud = await cloud_of(need=1, vms={"a": "h1"})
    vm = await cloud.memory.get(VirtualMachine, "a")
    resources = type(vm.spec.resources)({**vm.spec.resources, "gpu": 2})
    await cloud.memory.replace(msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, resources=resources)))
    await cloud.cycle()
    status = await cloud.coverage("a")
    assert status.covered
    assert dict(status.also_needs) == {"gpu": 2}


async def test_a_stopped_vm_loses_its_slots_and_its_coverage():
    cloud = await cloud_of(vms={"a": "h1"})
    await cloud.cycle()
    await cloud.stop("a")
    await cloud.cycle()
    assert await cloud.members() == {}
    assert await cloud.covered() == {}
    assert {e.note.split(";")[0] for e in cloud.events.of("MemberRemoved")} == {"VM a left: vm-gone"}
    assert len(cloud.events.of("SlotDeleted")) == 2


async def test_a_wiped_vm_source_dissolves_nothing_while_hosts_report_the_vms():
    cloud = await cloud_of()
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


async def test_group_sizing_makes_slots_as_large_as_the_largest_flavor():
    cloud = Cloud({"useFlavorGroupResources": True, "flavorFailoverRequirements": {"*": 1}})
    await cloud.hosts("h1", "h2")
    large, std = GroupFlavor(name="large", vcpus=8, memory_mb=32768), GroupFlavor(name="std", vcpus=2)
    spec = FlavorGroupSpec(group_name="g", flavors=(large, std), largest_flavor=large, smallest_flavor=std)
    await cloud.memory.create(FlavorGroup(metadata=ObjectMeta(name="g"), spec=spec))
    await cloud.vm("a", "h1")
    await cloud.cycle()
    (slot,) = (await cloud.slots()).values()
    assert (slot.cpu_milli, slot.memory_bytes, slot.group) == (8000, 32 * GIB, "g")


async def test_trusting_hosts_the_reporting_host_is_the_location():
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


async def test_the_run_loop_waits_short_first_and_then_as_each_cycle_says():
    cloud = Cloud({"shortReconcileInterval": "1s", "reconcileInterval": "10s"})
    await cloud.follow()
    task = asyncio.create_task(cloud.reconciler.run_ticks())
    await cloud.clock.sleep(0.9)
    assert cloud.metric("failover_reconciliation_runs_total") == 0
    await cloud.clock.sleep(0.2)
    assert cloud.metric("failover_reconciliation_runs_total") == 1
    await cloud.clock.sleep(30)
    assert cloud.metric("failover_reconciliation_runs_total") == 4
    task.cancel()


async def test_a_database_serves_as_vm_source():
    view = VmView(id="a", host="h1", zone="z", flavor="std", cpu_milli=2000, memory_bytes=GIB, source="database")
    cloud = Cloud({"flavorFailoverRequirements": {"*": 1}}, source=Database(view))
    await cloud.hosts("h1", "h2")
    await cloud.vm("a", "h1")
    await cloud.vm("unknown-to-the-database", "h1")
    await cloud.cycle()
    assert list((await cloud.members()).values()) == [{"a": "h1"}]
    assert await cloud.covered() == {"a": True}


async def test_request_ids_run_through_calls_events_and_slots():
    cloud = await cloud_of("h1", "h2", need=1, vms={"a": "h1"})
    await cloud.cycle()
    (slot,) = (await cloud.memory.list(Reservation)).items
    ids = {request.global_request_id for request in cloud.ranker.requests}
    assert ids == {slot.metadata.annotations["reservations.outlive.dev/creator-request-id"]}
    assert len({request.request_id for request in cloud.ranker.requests}) == 1
    assert {use.request for use in cloud.decisions.uses()} == ids


async def test_a_vm_that_only_hosts_know_is_not_told_covered_by_slots_of_another_place():
    """The guard keeps the memberships; the promise does not hold on the host of the VM's own slot."""
    cloud = await cloud_of("h1", "h2", "h3", need=1, vms={"v": "h1"})
    await cloud.cycle()
    (slot,) = (await cloud.slots()).values()
    assert (await cloud.coverage("v")).covered
    await cloud.remove_vm("v", also_from_host=False)
    await cloud.cycle()
    assert (await cloud.coverage("v")).covered, "it still runs where it was promised a place for"
    await cloud.instances("h1", lambda there: ())
    await cloud.instances(slot.host, lambda there: (*there, Instance(id="v")))
    await cloud.cycle()
    answered = await cloud.coverage("v")
    assert (answered.covered, answered.reason, answered.host) == (False, "unlisted-and-moved", slot.host)
    assert list((await cloud.members()).values()) == [{"v": "h1"}]


async def test_nobody_leaves_the_count_whose_host_is_gone_or_says_nothing_of_it():
    cloud = await cloud_of(need=1, vms={"here": "h1", "gone": "h2", "lost": "h3", "down": "h4"})
    await cloud.cycle()
    assert await cloud.covered() == {"here": True, "gone": True, "lost": True, "down": True}
    await cloud.memory.delete((await cloud.get_host("h2")).ref)
    await cloud.instances("h3", lambda there: ())
    await cloud.stop("down")
    await cloud.cycle()
    assert await cloud.covered() == {"here": True, "gone": False, "lost": False}
    assert (await cloud.coverage("gone")).reason == "host-of-vm-unknown"
    assert (await cloud.coverage("lost")).reason == "vm-not-reported"
    counts = {state: cloud.metric("failover_vms", state=state) for state in ("known", "protected", "covered")}
    assert counts == {"known": 3, "protected": 3, "covered": 1}
    assert cloud.metric("failover_vms", state="known") == 3
    assert cloud.metric("failover_tolerance") == 0
    await cloud.clock.sleep(61)
    await cloud.cycle()
    faults = {one.subject.name: one for one in (await cloud.memory.list(Fault)).items}
    assert set(faults) == {"gone", "lost"}
    assert faults["gone"].code == "vm-location-unknown"
    assert "there is no such host" in faults["gone"].message
    await cloud.instances("h3", lambda there: (*there, Instance(id="lost")))
    await cloud.cycle()
    assert (await cloud.coverage("lost")).covered
    assert [one.subject.name for one in (await cloud.memory.list(Fault)).items if not one.ended] == ["gone"]
