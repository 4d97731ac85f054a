"""What a cycle does where others change the same slots or hosts meanwhile."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.cycles import check_rules, cloud_of, is_slot
from tests.support.failover import GIB, Cloud, Fault
from tests.support.literal_rules import DependencyGraph

from outlive.base import Conflict, OutliveError, Unavailable
from outlive.failover import FreeAmounts, free_amounts
from outlive.failover.planner import Join, Leave, Open
from outlive.resources import Consumer, Instance, Reservation


def meanwhile(cloud: Cloud, name: str, members: dict[str, str]) -> Fault:
    """Before the next status write somebody else changes the slot; the write then meets what is there."""
    return Fault("replace_status", OutliveError(""), is_slot, before=lambda: cloud.set_members(name, members))


async def test_a_removal_that_meets_another_writer_decides_again_about_that_slot():
    cloud = await cloud_of(need=1, vms={"a": "h1", "b": "h2"})
    await cloud.slot("s", "h6", {"a": "h1", "gone": "h5"})
    await cloud.slot("t", "h5", {"b": "h2"})
    cloud.store.faults.append(meanwhile(cloud, "s", {"a": "h1", "gone": "h5", "b": "h2"}))
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"a": "h1", "b": "h2"}, "the newcomer stays"


async def test_a_slot_that_somebody_joined_is_not_deleted():
    cloud = await cloud_of(need=1, vms={"b": "h2"})
    await cloud.slot("s", "h6", {"gone": "h5"})
    cloud.store.faults.append(
        Fault("delete", OutliveError(""), is_slot, before=lambda: cloud.set_members("s", {"b": "h2"}))
    )
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"b": "h2"}


async def test_a_join_that_meets_another_writer_joins_what_is_there_now():
    cloud = await cloud_of(need=1, vms={"a": "h1", "b": "h2", "c": "h3"})
    await cloud.slot("s", "h6", {"c": "h3"})
    await cloud.slot("t", "h5", {"b": "h2"})
    cloud.store.faults.append(meanwhile(cloud, "s", {"c": "h3", "b": "h2"}))
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"a": "h1", "b": "h2", "c": "h3"}
    assert cloud.metric("failover_reconciliation_reservations_failed_total") == 0


async def test_a_join_that_is_no_longer_allowed_is_decided_again():
    cloud = await cloud_of(need=1, vms={"a": "h1", "b": "h1", "c": "h3"})
    await cloud.slot("s", "h6", {"c": "h3"})
    await cloud.slot("t", "h5", {"b": "h1"})
    cloud.store.faults.append(meanwhile(cloud, "s", {"c": "h3", "b": "h1"}))
    await cloud.cycle()
    assert (await cloud.members())["s"] == {"c": "h3", "b": "h1"}
    assert (await cloud.covered())["a"]
    await check_rules(cloud)


async def test_a_slot_that_vanished_is_replaced_by_another():
    cloud = await cloud_of(need=1, vms={"a": "h1", "c": "h3"})
    slot = await cloud.slot("s", "h6", {"c": "h3"})
    cloud.store.faults.append(
        Fault("replace_status", Conflict("gone"), is_slot, before=lambda: cloud.memory.delete(slot.ref))
    )
    await cloud.cycle()
    assert (await cloud.covered())["a"]


async def test_a_slot_that_moved_while_it_was_joined_takes_nobody_from_its_new_host():
    cloud = await cloud_of("h1", "h2", "h5", "h9", need=1, vms={"t1": "h1", "t2": "h2"})
    await cloud.slot("r", "h5", {"x": "h9"})
    await cloud.instances("h9", lambda there: (*there, Instance(id="x", name="x")))

    async def move() -> None:
        slot = await cloud.memory.get(Reservation, "r")
        status = msgspec.structs.replace(slot.status, host="h2")
        cloud.fleet.upsert_reservation(await cloud.memory.replace_status(msgspec.structs.replace(slot, status=status)))

    joined = Fault("replace_status", OutliveError("x"), where=lambda one: one.name == "r", before=move)
    cloud.store.faults.append(joined)
    await cloud.cycle()
    assert "t2" not in (await cloud.members())["r"]
    assert list(DependencyGraph.build(list((await cloud.slots()).values())).breaches("t2")) == []


async def test_a_host_whose_room_went_meanwhile_is_decided_about_again():
    cloud = await cloud_of("h1", "h2", "h3", need=1, vms={"a": "h1"})
    asked: list[str] = []

    def free() -> FreeAmounts:
        """When the first slot is about to be opened, somebody has taken all room."""
        asked.append("")
        full = free_amounts(cloud.fleet)
        return full if len(asked) != 1 else full._replace(amounts=full.amounts * 0)

    cloud.reconciler._changes._free = free  # type: ignore[method-assign]
    await cloud.cycle()
    assert len(asked) == 2
    assert await cloud.covered() == {"a": True}
    assert cloud.metric("failover_reconciliation_reservations_failed_total") == 0


async def test_a_vm_whose_new_slot_could_not_be_written_keeps_its_old_one():
    cloud = await cloud_of("h1", "h2", "h3", need=1, vms={"a": "h1"})
    await cloud.cycle()
    ((old, slot),) = (await cloud.slots()).items()
    (other,) = {"h2", "h3"} - {slot.host}
    new = Open(
        slot_key="n", vm="a", vm_host="h1", host=other, cpu_milli=2000, memory_bytes=4 * GIB, group="std", zone="z"
    )
    cloud.store.faults.append(Fault("create", Unavailable("down"), where=is_slot))
    changes = cloud.reconciler._changes
    outcome = await changes.switch((new, Leave(slot=old, vm="a")), {})
    assert outcome.failed == 1
    assert await cloud.members() == {old: {"a": "h1"}}
    await changes.switch((Leave(slot=old, vm="a"),), {})
    assert await cloud.members() == {old: {"a": "h1"}}, "nobody loses what nothing replaces"
    outcome = await changes.switch((new, Leave(slot=old, vm="a")), {})
    (now,) = (await cloud.slots()).values()
    assert (outcome.created, now.host, now.members) == (1, other, {"a": "h1"})


@pytest.mark.slow
async def test_nobody_joins_a_slot_that_a_vm_is_let_into_meanwhile():
    cloud = await cloud_of("h1", "h2", "h3", "h4", need=1, vms={"a": "h1"})
    await cloud.cycle()
    ((name, slot),) = (await cloud.slots()).items()
    await cloud.vm("b", next(host for host in ("h2", "h3", "h4") if host != slot.host))
    held = await cloud.store.get(Reservation, name)
    status = msgspec.structs.replace(held.status, consumer=Consumer(vm="a", fence="f1"))
    await cloud.store.replace_status(msgspec.structs.replace(held, status=status))
    await asyncio.sleep(1)
    join = Join(slot=name, vm="b", vm_host=cloud.reconciler._cache.vms["b"].host, host=slot.host)
    outcome = await cloud.reconciler._changes.switch((join,), {})
    assert outcome.reused == 0
    kept = await cloud.store.get(Reservation, name)
    assert kept.status.failover_reservation is not None
    assert kept.status.failover_reservation.allocations == {"a": "h1"}
