"""Slots after a failure: those that recovery consumes, those of lost hosts, and who is protected again first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.failover import GIB
from tests.support.live_failover import LiveCloud, live, started
from tests.support.loops import run
from tests.support.plain_placement import host_free_capacity

from outlive.base.clock import SystemClock
from outlive.failover.protection import Demands, LevelSettings, ProtectionSettings
from outlive.failover.reconciler.cache import FleetCache
from outlive.failover.reconciler.informers import Informers
from outlive.failover.reconciler.reconciler import Reconciler
from outlive.failover.rules import counts
from outlive.failover.slots import slot_view
from outlive.placement.fleet import Fleet
from outlive.placement.request import Intent
from outlive.placement.reservations import CapacityQuery
from outlive.placement.vms import VmView
from outlive.resources import (
    RESERVATION_TYPE_LABEL,
    Amounts,
    Assigned,
    Consumer,
    FailoverStatus,
    Holder,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Recovery,
    Reservation,
    ReservationSpec,
    ReservationStatus,
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


def test_consumed_slot_counts_for_none_of_its_members_and_they_get_another() -> None:
    async def story() -> None:
        async with live() as cloud:
            await cloud.vm("a", "h1")
            await cloud.vm("b", "h2")
            await cloud.settle()
            (name,) = await cloud.slots()
            assert set((await cloud.slots())[name].members) == {"a", "b"}
            await consume(cloud, name, "a")
            await cloud.settle()
            assert (await cloud.coverage("b")).covered
            assert name not in (await cloud.coverage("b")).slots
            assert (await cloud.slots())[name].consumer == "a"

    run(story())


def test_slot_stays_until_its_consumer_is_among_the_vms_of_its_host_and_then_goes() -> None:
    async def story() -> None:
        async with live() as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle()
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

    run(story())


def test_slot_stays_while_its_host_lists_its_consumer_only_as_of_an_earlier_time() -> None:
    async def story() -> None:
        async with live() as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle()
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

    run(story())


def test_slot_whose_consumer_is_deleted_goes() -> None:
    async def story() -> None:
        async with live() as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle()
            (name,) = await cloud.slots()
            await consume(cloud, name, "a")
            await cloud.remove_vm("a")
            await cloud.settle()
            assert name not in await cloud.slots()

    run(story())


def test_slots_on_a_lost_host_go_at_once_and_their_members_are_protected_again_elsewhere() -> None:
    async def story() -> None:
        async with live() as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle()
            (slot,) = (await cloud.slots()).values()
            await lose(cloud, slot.host)
            await cloud.settle()
            (again,) = (await cloud.slots()).values()
            assert again.host not in ("h1", slot.host)
            assert (await cloud.coverage("a")).covered

    run(story())


def test_vm_of_a_lost_host_keeps_its_slots_until_it_runs_and_gets_no_others() -> None:
    async def story() -> None:
        async with live(config={"flavorFailoverRequirements": {"*": 2}}) as cloud:
            await cloud.vm("a", "h1")
            await cloud.settle()
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

    run(story())


def test_host_that_is_lost_or_emptied_is_given_no_slot() -> None:
    async def story() -> None:
        cloud = LiveCloud()
        async with cloud.running():
            await started(cloud, hosts=4)
            await lose(cloud, "h2")
            await cloud.set_host(await cloud.get_host("h3"), domain_state="flushed")
            await cloud.vm("a", "h1")
            await cloud.settle()
            (slot,) = (await cloud.slots()).values()
            assert slot.host == "h4"

    run(story())


# The view


def reservation(consumer: Consumer | None = None, members: dict[str, str] | None = None) -> Reservation:
    return Reservation(
        metadata=ObjectMeta(name="s", labels={RESERVATION_TYPE_LABEL: "failover"}),
        spec=ReservationSpec(type="FailoverReservation", target_host="h", resources=Amounts(cpu=2000, memory=GIB)),
        status=ReservationStatus(
            host="h",
            consumer=consumer,
            failover_reservation=FailoverStatus(allocations=members or {"a": "x", "b": "y"}),
        ),
    )


def test_view_of_a_consumed_slot_has_a_consumer_and_no_members() -> None:
    vm = VmView(id="a", host="x", cpu_milli=1, memory_bytes=1)
    assert counts(vm, slot_view(reservation()))
    consumed = slot_view(reservation(Consumer(vm="b", fence="f")))
    assert (consumed.members, consumed.ready, consumed.consumer) == ({}, False, "b")


def test_consumed_slot_gives_way_to_its_consumer_and_to_no_other_member() -> None:
    slot = reservation(Consumer(vm="a", fence="f"))
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
    return bool(fleet.ledger.blocking(CapacityQuery(intent=intent, vm=vm), row))


# The VM counts exactly once on its new host, whatever is seen in which order


def host(vms: tuple[str, ...], sizes: dict[str, tuple[int, int]]) -> Hypervisor:
    """One document: VMs and allocation change together."""
    cpu, memory = sum(sizes[vm][0] for vm in vms), sum(sizes[vm][1] for vm in vms)
    status = HypervisorStatus(
        capacity=Amounts(cpu=100_000, memory=100 * GIB),
        allocation=Amounts(cpu=cpu, memory=memory),
        instances=tuple(Instance(id=vm) for vm in vms),
    )
    return Hypervisor(metadata=ObjectMeta(name="h"), status=status)


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
        left = (
            100_000 - sum(sizes[vm][0] for vm in counted),
            100 * GIB - sum(sizes[vm][1] for vm in counted),
        )
        assert tuple(fleet.free()[0].tolist()) == left
        plain = host_free_capacity(slots.values(), host(here, sizes))
        assert plain is not None
        assert (plain.cpu_milli, plain.memory_bytes) == left


# Who is protected again first


def exposure(order: list[VmView], present: dict[str, int], k: int) -> int:
    """VMs without any slot, summed over the slots that are given one after the other."""
    exposed = sum(1 for vm in order if present[vm.id] == 0)
    total = 0
    for vm in order:
        for number in range(present[vm.id], k):
            total += exposed
            exposed -= number == 0
    return total


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 64), st.integers(0, 2)), min_size=1, max_size=30))
def test_exposure_is_never_more_than_with_the_largest_memory_first(lacking: list[tuple[int, int, int]]) -> None:
    levels = {f"p{n}": LevelSettings(slots=2, priority=n) for n in range(3)}
    cache = FleetCache(
        Informers(NOBODY, NOBODY, NOBODY, NOBODY), Demands({}, ProtectionSettings(levels=levels)), clock=SystemClock()
    )
    rank = Reconciler._rank.__get__(SimpleNamespace(_cache=cache))
    vms: list[VmView] = []
    present: dict[str, int] = {}
    for number, (has, memory, priority) in enumerate(lacking):
        vm = VmView(id=f"v{number:02}", host=f"h{number}", memory_bytes=memory * GIB, level=f"p{priority}")
        present[vm.id] = has
        vms.append(vm)
        _see(cache, vm, has)
    ours = exposure(sorted(vms, key=lambda vm: rank(vm.id)), present, 2)
    by_memory = exposure(sorted(vms, key=lambda vm: (-vm.memory_bytes, vm.id)), present, 2)
    assert ours <= by_memory
    first = sorted(vms, key=lambda vm: rank(vm.id))
    assert [present[vm.id] for vm in first] == sorted(present.values())
    smallest_exposed = min((vm.memory_bytes for vm in vms if present[vm.id] == 0), default=None)
    largest_other = max((vm.memory_bytes for vm in vms if present[vm.id] == 1), default=None)
    if smallest_exposed is not None and largest_other is not None and smallest_exposed < largest_other:
        assert ours < by_memory


NOBODY: Any = SimpleNamespace(items=list, get=lambda name: None)


def _see(cache: FleetCache, vm: VmView, has: int) -> None:
    status: Any = HypervisorStatus(instances=(Instance(id=vm.id),))
    cache.put_host(vm.host, Hypervisor(metadata=ObjectMeta(name=vm.host), status=status))
    cache.put_vm(vm.id, vm)
    if has:
        cache.put_host(f"to-{vm.host}", Hypervisor(metadata=ObjectMeta(name=f"to-{vm.host}")))
        slot = reservation(members={vm.id: vm.host})
        spec = _replace(slot.spec, resources=Amounts(cpu=0, memory=vm.memory_bytes))
        named = _replace(slot, metadata=_replace(slot.metadata, name=f"s-{vm.id}"), spec=spec)
        cache.put_slot(
            named.name,
            _replace(
                named,
                status=_replace(
                    slot.status, host=f"to-{vm.host}", failover_reservation=FailoverStatus(allocations={vm.id: vm.host})
                ),
            ),
        )
