"""What a cycle does where calls fail, answers are lost, or it is cut off."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.cycles import Database, check_rules, cloud_of, is_slot, slots_of
from tests.support.failover import GIB, Cloud, Fault

from outlive.base import AlreadyExists, Random, Unavailable, Unknown
from outlive.placement import Intent, VmList
from outlive.store import FaultRates, FaultStore

AWAY = Unavailable("the store is away")
LOST = Unknown("the answer was lost")


# The failure table


@pytest.mark.parametrize("step", ["hypervisors", "vms", "slots"])
async def test_a_cache_that_lost_the_store_aborts_the_cycle_and_is_counted(step: str, monkeypatch: pytest.MonkeyPatch):
    cloud = await cloud_of(vms={"a": "h1"})
    lost = getattr(cloud.informers, {"slots": "reservations"}.get(step, step))
    with monkeypatch.context() as patch:
        patch.setattr(lost, "stalled_s", lambda: 61.0)
        assert await cloud.cycle() == 30.0
    assert cloud.store.calls == []
    assert cloud.metric("failover_reconciliation_runs_total") == 0
    await cloud.cycle()
    assert (await cloud.covered()) == {"a": True}
    assert cloud.metric("failover_reconciliation_aborted_total", step=step) == 1


async def test_a_failed_removal_is_repeated_by_the_next_cycle():
    cloud = await cloud_of("h1", "h2", "h3", need=1, vms={"a": "h1"})
    await cloud.slot("s", "h3", {"a": "h1", "gone": "h2"})
    cloud.store.faults.append(Fault("replace_status", AWAY, is_slot))
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"a": "h1", "gone": "h2"}
    assert cloud.metric("failover_reconciliation_reservations_updated_total") == 1
    assert cloud.events.of("MemberRemoved") == [], "what was not written is not told"
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"a": "h1"}


async def test_a_failed_deletion_is_repeated():
    cloud = await cloud_of("h1", "h2")
    await cloud.slot("s", "h2", {"gone": "h1"})
    cloud.store.faults.append(Fault("delete", AWAY, is_slot))
    await cloud.cycle()
    assert list(await cloud.members()) == ["s"]
    assert cloud.metric("failover_reconciliation_reservations_deleted_total") == 1
    await cloud.cycle()
    assert cloud.metric("failover_reconciliation_total_reservations") == 0
    assert await cloud.members() == {}


async def test_without_group_data_own_sizes_are_used():
    cloud = Cloud({"useFlavorGroupResources": True, "flavorFailoverRequirements": {"*": 1}})
    await cloud.hosts("h1", "h2")
    await cloud.vm("a", "h1")
    await cloud.follow()
    cloud.informers.groups.stalled_s = lambda: 61.0  # type: ignore[method-assign]
    await cloud.cycle()
    (slot,) = (await cloud.slots()).values()
    assert slot.cpu_milli == 2000


async def test_a_scheduler_that_fails_in_reuse_is_still_asked_for_a_new_slot():
    cloud = await cloud_of("h1", "h2", "h3", need=1, vms={"b": "h2", "a": "h1"})
    await cloud.slot("s", "h3", {"b": "h2"})
    cloud.ranker.error = AWAY
    cloud.ranker.fail_when = lambda request: request.intent is Intent.REUSE_FAILOVER_RESERVATION
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"b": "h2"}
    assert len(await slots_of(cloud, "a")) == 1
    assert cloud.metric("failover_reconciliation_reservations_failed_total") == 0


async def test_a_scheduler_that_fails_in_new_leaves_the_vm_to_a_later_cycle():
    cloud = await cloud_of(vms={"a": "h1"})
    cloud.ranker.error = AWAY
    await cloud.cycle()
    assert cloud.metric("failover_reconciliation_reservations_failed_total") == 1, "once, though two were missing"
    assert (await cloud.coverage("a")).reason == "placement-unavailable"
    cloud.ranker.error = None
    await cloud.cycle()
    assert await cloud.covered() == {"a": True}


async def test_a_failed_creation_gives_the_vm_up_until_the_next_cycle():
    cloud = await cloud_of(vms={"a": "h1"})
    cloud.store.faults.append(Fault("create", AWAY, is_slot))
    await cloud.cycle()
    assert await cloud.members() == {}
    assert cloud.metric("failover_reconciliation_reservations_failed_total") == 1
    assert cloud.metric("failover_reconciliation_reservations_created_total") == 0
    status = await cloud.coverage("a")
    assert (status.covered, status.reason) == (False, "store-failed")
    await cloud.cycle()
    assert await cloud.covered() == {"a": True}


async def test_others_plan_anew_when_the_slot_they_were_to_share_was_not_created():
    cloud = await cloud_of("h1", "h2", "h3", need=1)
    await cloud.vm("a", "h1", memory=8 * GIB)
    await cloud.vm("b", "h2")
    cloud.store.faults.append(Fault("create", AWAY, is_slot))
    await cloud.cycle()
    assert await cloud.covered() == {"a": False, "b": True}
    await cloud.cycle()
    assert await cloud.covered() == {"a": True, "b": True}
    await check_rules(cloud)


async def test_a_failed_join_is_spent_and_its_slot_is_left_alone_in_this_cycle():
    cloud = await cloud_of("h1", "h2", "h3", "h4", "h5", need=1, vms={"a": "h1", "b": "h2", "c": "h4"})
    await cloud.slot("s", "h3", {"c": "h4"})
    cloud.store.faults.append(Fault("replace_status", AWAY, is_slot))
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"c": "h4"}
    assert cloud.metric("failover_reconciliation_reservations_failed_total") == 1
    assert await cloud.covered() == {"a": False, "b": True, "c": True}
    await cloud.cycle()
    assert await cloud.covered() == {"a": True, "b": True, "c": True}
    await check_rules(cloud)


async def test_a_slot_whose_status_was_not_written_counts_as_created_promises_nothing_and_goes_after_a_while():
    cloud = await cloud_of("h1", "h2", "h3", need=1, vms={"a": "h1"})
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


# Lost answers


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("call", ["create", "replace_status", "delete"])
async def test_a_lost_answer_is_resolved_by_looking(call: str, applied: bool):
    cloud = await cloud_of("h1", "h2", "h3", need=1, vms={"a": "h1"})
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


async def test_a_name_that_is_taken_is_drawn_again():
    cloud = await cloud_of("h1", "h2", need=1, vms={"a": "h1"})
    cloud.store.faults.append(Fault("create", AlreadyExists("taken"), is_slot, times=2))
    await cloud.cycle()
    assert await cloud.covered() == {"a": True}


# Cut off between two writes


@pytest.mark.parametrize("after", range(1, 12))
async def test_a_cycle_that_is_cut_off_after_any_write_is_completed_by_the_next(after: int):
    cloud = await cloud_of()
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


async def test_a_store_that_fails_all_the_time_is_outlived():
    cloud = await cloud_of(need=2)
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


async def test_nothing_is_told_that_only_the_cycle_supposes():
    """The removal of b could not be written: as long as the store has both, neither is told to be covered by r."""
    cloud = await cloud_of("h1", "h2", "h5", need=1, vms={"a": "h1", "b": "h1"})
    await cloud.slot("r", "h5", {"a": "h1", "b": "h2"})
    away = Fault("replace_status", Unavailable("away"), where=lambda one: getattr(one, "name", "") == "r", times=99)
    cloud.store.faults.append(away)
    await cloud.cycle()
    assert (await cloud.members())["r"] == {"a": "h1", "b": "h2"}
    reported = await cloud.coverage("a")
    assert not reported.covered or "r" not in reported.slots
    reported = await cloud.coverage("b")
    assert not reported.covered or "r" not in reported.slots


class Broken(Database):
    """A VM source with a defect."""

    async def list_vms(self) -> VmList:
        raise OverflowError("cannot convert float infinity to integer")


@pytest.mark.slow
async def test_a_source_with_a_defect_ends_the_cycle_in_order_and_is_counted():
    cloud = Cloud(source=Broken())
    await cloud.hosts("h1", "h2")
    assert await cloud.cycle() == 30.0
    assert cloud.metric("failover_reconciliation_aborted_total", step="vms") == 1
    assert await cloud.slots() == {}
