"""Slots after a failure: those that recovery consumes, those of lost hosts, and who is protected again first."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.failover import GIB
from tests.support.live_failover import LiveCloud, live, started
from tests.support.plain_placement import host_free_capacity
from tests.support.small_clouds import make_host, make_slot, make_vm

from outlive.failover import slot_counts, slot_view
from outlive.placement import CapacityQuery, Fleet, Intent, VmView
from outlive.resources import (
    Amounts,
    Assigned,
    Consumer,
    Holder,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Recovery,
    Reservation,
    ReservationSpec,
    VirtualMachine,
)

_replace = msgspec.structs.replace


async def consume(cloud: LiveCloud, slot: str, vm: str) -> None:
    """Recovery claims the slot."""
    found = await cloud.memory.get(Reservation, slot)
    status = _replace(found.status, consumer=Consumer(vm=vm, fence="f"))
    cloud.fleet.upsert_reservation(await cloud.memory.replace_status(_replace(found, status=status)))


async def lose(cloud: LiveCloud, host: str, fence: str = "f") -> None:
    """The host is proven dead."""
    await cloud.set_host(await cloud.get_host(host), lost=fence)


async def recover(cloud: LiveCloud, vm: str, phase: str, host: str = "") -> None:
    """Recovery writes its record, and where the VM goes."""
    found = await cloud.memory.get(VirtualMachine, vm)
    assert found.status.assigned is not None
    origin = found.status.recovery.origin if found.status.recovery else found.status.assigned.hypervisor
    status = _replace(
        found.status,
        assigned=Assigned(hypervisor=host or found.status.assigned.hypervisor),
        recovery=Recovery(fence="f", phase=phase, origin=origin),
    )
    await cloud.memory.replace_status(_replace(found, status=status))


async def test_consumed_slot_counts_for_none_of_its_members_and_they_get_another() -> None:
    async with live(vms={"a": "h1", "b": "h2"}) as cloud:
        (name,) = await cloud.slots()
        assert set((await cloud.slots())[name].members) == {"a", "b"}
        await consume(cloud, name, "a")
        await cloud.settle()
        assert (await cloud.coverage("b")).covered
        assert name not in (await cloud.coverage("b")).slots
        assert (await cloud.slots())[name].consumer == "a"


async def test_slot_stays_until_its_consumer_is_among_the_vms_of_its_host_and_then_goes() -> None:
    async with live(vms={"a": "h1"}) as cloud:
        ((name, slot),) = (await cloud.slots()).items()
        await lose(cloud, "h1")
        await consume(cloud, name, "a")
        await recover(cloud, "a", "assigned", slot.host)
        await cloud.settle(120)
        assert name in await cloud.slots()
        await cloud.instances(slot.host, lambda there: (*there, Instance(id="a")))
        await recover(cloud, "a", "recovered", slot.host)
        await cloud.settle()
        slots = await cloud.slots()
        assert name not in slots
        assert [one.host not in ("h1", slot.host) for one in slots.values()] == [True]
        assert (await cloud.coverage("a")).covered
        assert (await cloud.coverage("a")).host == slot.host


async def test_slot_stays_while_its_host_lists_its_consumer_only_as_of_an_earlier_time() -> None:
    async with live(vms={"a": "h1"}) as cloud:
        ((name, slot),) = (await cloud.slots()).items()
        host = await cloud.get_host(slot.host)
        await cloud.memory.replace(_replace(host, spec=_replace(host.spec, management="node")))
        await cloud.instances(slot.host, lambda there: (*there, Instance(id="a", active=False)))
        await consume(cloud, name, "a")
        await cloud.settle(120)
        assert name in await cloud.slots(), "it is not assigned there yet"
        await lose(cloud, "h1")
        await recover(cloud, "a", "assigned", slot.host)
        await cloud.settle(120)
        assert name in await cloud.slots(), "nobody has seen it run there"
        vm = await cloud.memory.get(VirtualMachine, "a")
        holder = Holder(hypervisor=slot.host, member_uid="u", epoch=1, run_id="r", seen="running")
        await cloud.memory.replace_status(_replace(vm, status=_replace(vm.status, holders=(holder,))))
        await cloud.settle()
        assert name not in await cloud.slots()


async def test_slot_whose_consumer_is_deleted_goes() -> None:
    async with live(vms={"a": "h1"}) as cloud:
        (name,) = await cloud.slots()
        await consume(cloud, name, "a")
        await cloud.remove_vm("a")
        await cloud.settle()
        assert name not in await cloud.slots()


async def test_vm_of_a_lost_host_keeps_its_slots_until_it_runs_and_gets_no_others() -> None:
    async with live(config={"flavorFailoverRequirements": {"*": 2}}, vms={"a": "h1"}) as cloud:
        first, second = (await cloud.slots()).values()
        await lose(cloud, "h1")
        await consume(cloud, first.name, "a")
        await recover(cloud, "a", "assigned", first.host)
        await cloud.settle(120)
        slots = await cloud.slots()
        assert set(slots) == {first.name, second.name}
        assert slots[second.name].members == {"a": "h1"}
        await cloud.instances(first.host, lambda there: (*there, Instance(id="a")))
        await recover(cloud, "a", "recovered", first.host)
        await cloud.settle()
        slots = await cloud.slots()
        assert len(slots) == 2
        assert all(one.members == {"a": first.host} for one in slots.values())


async def test_host_that_is_lost_or_emptied_is_given_no_slot() -> None:
    cloud = LiveCloud()
    async with cloud.running():
        await started(cloud, hosts=4)
        await lose(cloud, "h2")
        await cloud.set_host(await cloud.get_host("h3"), domain_state="flushed")
        await cloud.vm("a", "h1")
        await cloud.settle()
        (slot,) = (await cloud.slots()).values()
        assert slot.host == "h4"


# The view


def reservation(consumer: str = "", members: dict[str, str] | None = None) -> Reservation:
    return make_slot("s", "h", members or {"a": "x", "b": "y"}, cpu=2000, memory=GIB, ready=None, consumer=consumer)


def test_view_of_a_consumed_slot_has_a_consumer_and_no_members() -> None:
    vm = VmView(id="a", host="x", cpu_milli=1, memory_bytes=1)
    assert slot_counts(vm, slot_view(reservation()))
    consumed = slot_view(reservation("b"))
    assert (consumed.members, consumed.ready, consumed.consumer) == ({}, False, "b")


def test_consumed_slot_gives_way_to_its_consumer_and_to_no_other_member() -> None:
    slot = reservation("a")
    assert not blocks(slot, Intent.EVACUATE, "a")
    assert blocks(slot, Intent.EVACUATE, "b")
    assert blocks(slot, Intent.REUSE_FAILOVER_RESERVATION, "b")
    assert not blocks(slot, Intent.EVACUATE, "b", reported=("a",))


def blocks(slot: Reservation, intent: Intent, vm: str, *, reported: tuple[str, ...] = ()) -> bool:
    """Whether the slot holds something on its host, which reports these VMs, from that VM."""
    fleet = Fleet()
    instances = tuple(Instance(id=each, name=each) for each in reported)
    fleet.upsert_host(Hypervisor(metadata=ObjectMeta(name="h"), status=HypervisorStatus(instances=instances)))
    fleet.upsert_reservation(slot)
    row = fleet.row_of("h")
    assert row is not None
    return bool(fleet.ledger.blocking_entries(CapacityQuery(intent=intent, vm=vm), row))


# The VM counts exactly once on its new host, whatever is seen in which order


def host(vms: tuple[str, ...], sizes: dict[str, tuple[int, int]]) -> Hypervisor:
    """One document: VMs and allocation change together."""
    there = [make_vm(vm, cpu=sizes[vm][0], memory=sizes[vm][1]) for vm in vms]
    return make_host("h", *there, cpu=100_000, memory=100 * GIB)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_allocation_and_blocks_count_a_landing_vm_exactly_once_at_every_moment(data: st.DataObject) -> None:
    sizes = {vm: (data.draw(st.integers(1, 9)) * 1000, data.draw(st.integers(1, 9)) * GIB) for vm in ("a", "b", "c")}
    fleet = Fleet()
    here: tuple[str, ...] = ("b",)
    fleet.upsert_host(host(here, sizes))
    slot = _replace(
        reservation(members={"a": "x"}),
        spec=ReservationSpec(
            type="FailoverReservation", target_host="h", resources=Amounts(cpu=sizes["a"][0], memory=sizes["a"][1])
        ),
    )
    slots = {"s": slot}
    fleet.upsert_reservation(slot)
    for _ in range(data.draw(st.integers(1, 12))):
        claimed = slots.get("s") is not None and slots["s"].status.consumer is not None
        possible = ["other", "again"]
        if "s" in slots and not claimed:
            possible.append("claim")
        if claimed and "a" not in here:
            possible += ["land", "give-back"]
        if claimed and "a" in here:
            possible.append("delete")
        match data.draw(st.sampled_from(possible)):
            case "claim":
                slots["s"] = _replace(slot, status=_replace(slot.status, consumer=Consumer(vm="a", fence="f")))
                fleet.upsert_reservation(slots["s"])
            case "give-back":
                slots["s"] = slot
                fleet.upsert_reservation(slot)
            case "land":
                here = tuple(sorted((*here, "a")))
                fleet.upsert_host(host(here, sizes))
            case "delete":
                del slots["s"]
                fleet.remove_reservation("s")
            case "other":
                here = tuple(sorted(set(here) ^ {"c"}))
                fleet.upsert_host(host(here, sizes))
            case "again":
                fleet.upsert_host(host(here, sizes))
                for one in slots.values():
                    fleet.upsert_reservation(one)
        counted = {*here, "a"}
        left = (100_000 - sum(sizes[vm][0] for vm in counted), 100 * GIB - sum(sizes[vm][1] for vm in counted))
        assert tuple(fleet.free_amounts()[0].tolist()) == left
        plain = host_free_capacity(slots.values(), host(here, sizes))
        assert plain is not None
        assert (plain.cpu_milli, plain.memory_bytes) == left
