"""Upkeep answers changes at once, between cycles."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cycles import check_rules
from tests.support.failover import GIB, Fault
from tests.support.live_failover import LiveCloud, live, started
from tests.support.loops import run

from outlive.base import OutliveError, Random, Unavailable
from outlive.placement import VmList, VmView
from outlive.resources import Assigned, Condition, Coverage, Hypervisor, Instance, Reservation, VirtualMachine


async def test_a_vm_that_starts_is_covered_within_a_second_without_a_cycle():
    async with live(vms={"a": "h1"}) as cloud:
        assert await cloud.covered() == {"a": True}
        assert cloud.metric("failover_reconciliation_runs_total") == 1


async def test_a_vm_that_stops_or_goes_leaves_its_slots_within_a_second():
    async with live(vms={"a": "h1", "b": "h2"}) as cloud:
        await cloud.stop("a")
        await cloud.settle()
        assert all("a" not in members for members in (await cloud.members()).values())
        assert await cloud.covered() == {"b": True}
        await cloud.remove_vm("b")
        await cloud.settle()
        assert await cloud.members() == {}
        assert await cloud.covered() == {}


async def test_vms_of_a_host_that_has_booted_keep_their_slots_and_cost_no_removals():
    async with live(settings={"brakeNumber": 0, "brakeShare": 0.0}) as cloud:
        for name, host in (("a", "h1"), ("b", "h1"), ("c", "h2")):
            await cloud.vm(name, host)
            vm = await cloud.memory.get(VirtualMachine, name)
            status = msgspec.structs.replace(vm.status, phase="start")
            await cloud.memory.replace_status(msgspec.structs.replace(vm, status=status))
        await cloud.settle()
        before = await cloud.members()
        assert {vm for members in before.values() for vm in members} == {"a", "b", "c"}
        was = (await cloud.get_host("h1")).status.instances
        await cloud.instances("h1", lambda there: ())
        await cloud.settle()
        await cloud.cycle()
        assert await cloud.members() == before
        assert cloud.metric("failover_removal_brakes_total") == 0
        assert await cloud.covered() == {"a": True, "b": True, "c": True}
        await cloud.instances("h1", lambda there: was)
        await cloud.settle()
        assert await cloud.members() == before
        await cloud.stop("c")
        vm = await cloud.memory.get(VirtualMachine, "c")
        await cloud.memory.replace_status(
            msgspec.structs.replace(vm, status=msgspec.structs.replace(vm.status, phase="stop"))
        )
        await cloud.settle()
        assert all("c" not in members for members in (await cloud.members()).values())


async def test_a_vm_that_moves_is_covered_at_its_new_place_within_a_second():
    async with live(vms={"a": "h1"}) as cloud:
        (slot,) = (await cloud.slots()).values()
        await cloud.move("a", slot.host)
        await cloud.settle()
        status = await cloud.coverage("a")
        assert (status.covered, status.host) == (True, slot.host)
        (slot,) = (await cloud.slots()).values()
        assert slot.host != status.host
        assert slot.members == {"a": status.host}


async def test_a_move_that_breaks_a_rule_for_others_is_put_right_for_all():
    async with live() as cloud:
        for name, host in (("a", "h1"), ("b", "h2"), ("c", "h3")):
            await cloud.vm(name, host)
        await cloud.settle()
        await cloud.move("a", "h2")
        await cloud.move("c", "h2")
        await cloud.settle(2)
        assert set((await cloud.covered()).values()) == {True}
        await check_rules(cloud)


async def test_a_host_that_becomes_unusable_loses_its_slots_and_its_vms_get_others():
    async with live(vms={"a": "h1"}) as cloud:
        (slot,) = (await cloud.slots()).values()
        host = await cloud.get_host(slot.host)
        await cloud.set_host(host, conditions=(Condition(type="Ready", status="False"),))
        await cloud.settle()
        (other,) = (await cloud.slots()).values()
        assert other.host not in (slot.host, "h1")
        assert await cloud.covered() == {"a": True}
        (event,) = cloud.events.of("SlotDeleted")
        assert "Ready=False" in event.note


async def test_a_host_that_goes_takes_its_slots_with_it():
    async with live(vms={"a": "h1"}) as cloud:
        (slot,) = (await cloud.slots()).values()
        await cloud.memory.delete((await cloud.get_host(slot.host)).ref)
        await cloud.settle()
        (other,) = (await cloud.slots()).values()
        assert other.host != slot.host


async def test_a_slot_that_somebody_deletes_is_replaced_within_a_second():
    async with live(vms={"a": "h1"}) as cloud:
        (name,) = await cloud.slots()
        await cloud.memory.delete((await cloud.memory.get(Reservation, name)).ref)
        await cloud.settle()
        assert name not in await cloud.slots()
        assert await cloud.covered() == {"a": True}


async def test_what_cannot_be_given_at_once_waits_for_the_cycle_and_is_told():
    cloud = LiveCloud({"reconcileInterval": "60s"})
    async with cloud.running():
        await started(cloud, hosts=1)
        await cloud.vm("a", "h1")
        await cloud.settle()
        status = await cloud.coverage("a")
        assert (status.covered, status.required) == (False, 1)
        assert status.reason not in ("", "waiting-for-a-cycle")
        await cloud.host("h2")
        await cloud.settle(60)
        assert await cloud.covered() == {"a": True}


async def test_removals_between_cycles_are_braked_together():
    cloud = LiveCloud({}, {"brakeNumber": 3})
    async with cloud.running():
        await cloud.hosts("h1", "h2", "h3", "h4")
        for number in range(10):
            await cloud.vm(f"vm{number}", f"h{number % 2 + 1}")
        await cloud.settle(10)
        assert set((await cloud.covered()).values()) == {True}
        for number in range(10):
            await cloud.stop(f"vm{number}")
            await cloud.settle(0.2)
        left = sum(len(members) for members in (await cloud.members()).values())
        assert left == 7, "no more than the brake's number go before a cycle has looked"
        await cloud.settle(3700)
        assert sum(len(members) for members in (await cloud.members()).values()) == left
        assert cloud.metric("failover_removal_brakes_total") >= 1


async def test_whom_the_brake_leaves_beside_a_vm_that_moved_to_its_host_is_told_so_though_nothing_of_it_changed():
    cloud = LiveCloud({}, {"brakeNumber": 1, "brakeShare": 0.0})
    async with cloud.running():
        await started(cloud)
        for name, host in (("a", "h1"), ("b", "h2"), ("c", "h3")):
            await cloud.vm(name, host)
        await cloud.settle()
        (members,) = (await cloud.members()).values()
        assert set(members) == {"a", "b", "c"}
        await cloud.stop("c")
        await cloud.settle()
        await cloud.move("b", "h1")
        await cloud.settle()
        (members,) = (await cloud.members()).values()
        assert set(members) == {"a", "b"}, "the brake holds"
        assert await cloud.covered() == {"a": False, "b": False}
        assert (await cloud.coverage("a")).reason
        await cloud.move("b", "h2")
        await cloud.settle()
        assert await cloud.covered() == {"a": True, "b": True}


@pytest.mark.slow
async def test_the_kept_state_is_audited_in_every_cycle_and_a_difference_is_told_and_mended():
    async with live({"reconcileInterval": "60s"}, vms={"a": "h1"}) as cloud:
        (name,) = await cloud.slots()
        index = cloud.failover_run.cache.index
        index.leave("a", name)
        await cloud.settle(60)
        assert cloud.metric("failover_audit_differences_total") == 1
        (event,) = cloud.events.of("StateDiverged")
        assert f"slot {name}" in event.note
        assert cloud.failover_run.cache.index.slots_of("a") == [name]
        await cloud.settle(120)
        assert cloud.metric("failover_audit_differences_total") == 1


async def test_own_writes_call_for_no_reaction():
    async with live() as cloud:
        await cloud.vm("a", "h1")
        await cloud.settle(30)
        writes = len(cloud.store.calls)
        await cloud.settle(600)
        assert len(cloud.store.calls) == writes


async def test_with_reactions_off_everything_waits_for_the_cycle():
    async with live({"reconcileInterval": "60s"}, {"eventsReact": False}) as cloud:
        await cloud.vm("a", "h1")
        await cloud.settle(10)
        assert await cloud.members() == {}
        await cloud.settle(60)
        assert await cloud.covered() == {"a": True}
        (slot,) = (await cloud.slots()).values()
        assert slot.acknowledged_at is not None, "validation finds the VM all the same"


async def test_a_store_that_refuses_for_a_while_delays_but_loses_nothing():
    async with live({"reconcileInterval": "30s"}) as cloud:
        cloud.store.faults.append(Fault("create", Unavailable("away"), times=3))
        await cloud.vm("a", "h1")
        await cloud.settle(120)
        assert await cloud.covered() == {"a": True}


async def test_a_report_that_did_not_get_through_is_told_again_within_seconds():
    async with live() as cloud:
        fault = Fault("create", Unavailable("away"), where=lambda one: isinstance(one, Coverage), times=2)
        cloud.store.faults.append(fault)
        await cloud.vm("a", "h1")
        await cloud.settle(5)
        assert await cloud.covered() == {"a": True}
        assert cloud.metric("failover_reconciliation_runs_total") == 1


async def test_a_promise_that_a_restored_store_brings_back_is_taken_back_though_nothing_else_changed():
    cloud = LiveCloud()
    async with cloud.running():
        await started(cloud, hosts=1)
        await cloud.vm("a", "h1")
        await cloud.settle()
        assert await cloud.covered() == {"a": False}
        told = await cloud.memory.get(Coverage, "a")
        older = msgspec.structs.replace(told.status, covered=True, slots=("gone",), reason="")
        await cloud.memory.replace(msgspec.structs.replace(told, status=older))
        await cloud.settle(10)
        assert await cloud.covered() == {"a": True}, "nobody is asked before the store says that it went back"
        cloud.memory._observers.relist()
        await cloud.settle(3)
        assert await cloud.covered() == {"a": False}
        assert cloud.metric("failover_reconciliation_runs_total") == 1


async def test_a_promise_is_taken_back_before_another_slot_is_looked_for():
    async with live(vms={"a": "h1"}) as cloud:
        (slot,) = (await cloud.slots()).values()
        slow = Fault("create", OutliveError("slow"), where=lambda one: isinstance(one, Reservation))
        slow.before = lambda: cloud.clock.sleep(5)
        cloud.store.faults.append(slow)
        await cloud.set_host(await cloud.get_host(slot.host), conditions=(Condition(type="Ready", status="False"),))
        await cloud.settle(3)
        assert await cloud.covered() == {"a": False}
        await cloud.settle(5)
        assert await cloud.covered() == {"a": True}


async def test_a_vm_that_another_host_reports_than_is_recorded_is_not_covered_until_they_agree():
    async with live(vms={"a": "h1"}) as cloud:
        (slot,) = (await cloud.slots()).values()
        elsewhere = next(host for host in ("h2", "h3", "h4") if host != slot.host)
        vm = await cloud.memory.get(VirtualMachine, "a")
        moving = msgspec.structs.replace(vm.status, assigned=Assigned(hypervisor=elsewhere))
        await cloud.memory.replace_status(msgspec.structs.replace(vm, status=moving))
        await cloud.settle()
        assert await cloud.covered() == {"a": False}
        assert (await cloud.coverage("a")).reason == "location-disputed"
        await cloud.instances("h1", lambda there: ())
        await cloud.instances(elsewhere, lambda there: (*there, Instance(id="a")))
        await cloud.settle(3)
        assert await cloud.covered() == {"a": True}


class Database:
    """A VM source that is no store, and cannot be followed."""

    def __init__(self) -> None:
        self.vms: dict[str, VmView] = {}

    def put(self, name: str, host: str) -> None:
        self.vms[name] = VmView(
            id=name, host=host, zone="z", flavor="std", cpu_milli=1000, memory_bytes=GIB, source="database"
        )

    async def list_vms(self) -> VmList:
        return VmList(vms=tuple(self.vms.values()))

    async def get_vm(self, vm_id: str) -> VmView | None:
        return self.vms.get(vm_id)


async def test_a_vm_that_a_host_reports_is_looked_up_in_the_database_at_once():
    database = Database()
    async with live(source=database) as cloud:
        database.put("a", "h1")
        await cloud.instances("h1", lambda there: (*there, Instance(id="a")))
        await cloud.settle()
        assert await cloud.covered() == {"a": True}
        database.put("a", "h2")
        await cloud.instances("h1", lambda there: ())
        await cloud.instances("h2", lambda there: (*there, Instance(id="a")))
        await cloud.settle()
        assert (await cloud.coverage("a")).host == "h2"
        assert all(set(members.values()) == {"h2"} for members in (await cloud.members()).values())


@pytest.mark.slow
async def test_many_changes_at_random_leave_everybody_covered_and_no_difference():
    cloud = LiveCloud({"reconcileInterval": "60s", "flavorFailoverRequirements": {"*": 2}})
    random = Random(11)
    async with cloud.running():
        await cloud.hosts(*(f"h{n}" for n in range(12)))
        alive: list[str] = []
        for number in range(60):
            match random.randrange(4):
                case 0 | 1:
                    name = f"vm{number}"
                    await cloud.vm(name, f"h{random.randrange(12)}")
                    alive.append(name)
                case 2 if alive:
                    await cloud.move(random.choice(alive), f"h{random.randrange(12)}")
                case 3 if len(alive) > 5:
                    await cloud.remove_vm(alive.pop(random.randrange(len(alive))))
            await cloud.settle(random.uniform(0, 2))
        await cloud.settle(130)
        assert await cloud.covered() == dict.fromkeys(sorted(alive), True)
        assert cloud.metric("failover_audit_differences_total") == 0
        await check_rules(cloud)


async def test_a_vm_is_looked_at_again_when_its_flavor_changes():
    async with live({"flavorFailoverRequirements": {"std": 1, "ha": 2}}, vms={"a": "h1"}) as cloud:
        vm = await cloud.memory.get(VirtualMachine, "a")
        await cloud.memory.replace(msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, flavor="ha")))
        await cloud.settle()
        status = await cloud.coverage("a")
        assert (status.required, status.covered, len(status.slots)) == (2, True, 2)


async def test_hosts_are_followed_by_what_matters_only():
    async with live() as cloud:
        await cloud.vm("a", "h1")
        await cloud.settle(10)
        (slot,) = (await cloud.slots()).values()
        asked = len(cloud.ranker.requests)
        host: Hypervisor = await cloud.get_host(slot.host)
        await cloud.set_host(host, num_instances=5)
        await cloud.settle(5)
        assert len(cloud.ranker.requests) == asked
        host = await cloud.get_host(slot.host)
        await cloud.set_host(host, traits=("CUSTOM_NEW",))
        await cloud.settle(5)
        assert len(cloud.ranker.requests) == asked + 1, "validated once more"


def test_validation_believes_whom_cycles_believe():
    async def story() -> bool:
        async with live({"trustHypervisorLocation": True, "revalidationInterval": "60s"}) as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle(5)
            (slot,) = (await cloud.slots()).values()
            vm = await cloud.memory.get(VirtualMachine, "a")
            wrong = msgspec.structs.replace(vm.status, assigned=Assigned(hypervisor=slot.host))
            await cloud.memory.replace_status(msgspec.structs.replace(vm, status=wrong))
            await cloud.settle(70)
            return slot.name in await cloud.slots()

    assert run(story()) is True, "the hosts say that the VM runs on h1"
