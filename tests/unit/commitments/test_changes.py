"""Batches in a running cloud: all or nothing, at once in the ledger, and applied whatever happens afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.support.sales import (
    FLAVORS,
    GIB,
    SETTINGS,
    ZONE,
    Market,
    asked,
    batch,
    host,
    hosting,
    in_market,
    later,
    project,
    vm,
)

from outlive.base import LoopClock
from outlive.commitments import Batch, CommitmentRequest, give_way, slot_allocations
from outlive.resources import Flavor, Hypervisor, Maintenance, find_condition


@run_by(in_market, [host("h1"), host("h2")])
async def test_a_commitment_that_fits_is_accepted_with_slots_on_hosts(market: Market) -> None:
    await market.sell("aaaaaa", 5)
    cr = (await market.commitments())["aaaaaa"]
    assert cr.spec.amount == "40Gi"
    assert cr.status.accepted_spec == cr.spec
    assert await market.ready("aaaaaa") == "Accepted"
    slots = await market.slots("aaaaaa")
    assert sorted(one.spec.resources.memory_bytes // GIB for one in slots.values()) == [8, 32]
    for one in slots.values():
        ready = find_condition(one.status.conditions, "Ready")
        assert ready is not None
        assert ready.status == "True"
        assert one.status.host == one.spec.target_host != ""
    assert [one.phase for one in await market.changes()] == ["applied"]


@run_by(in_market, [host("h1")])
async def test_a_dry_run_answers_and_leaves_nothing(market: Market) -> None:
    assert await market.change(batch(project("p1", asked("aaaaaa", 8)), dry_run=True)) == ""
    reason = await market.change(batch(project("p1", asked("aaaaaa", 9)), dry_run=True))
    assert reason.startswith("dry run: 1 probe(s) rejected:\n- dryrun-")
    assert "insufficient capacity" in reason
    assert await market.commitments() == {}
    assert market.free("h1") == 64


def test_two_commitments_of_one_batch_do_not_cover_the_same_vms() -> None:
    mine = [vm(f"v{number}", "h1") for number in range(8)]

    async def story(market: Market) -> None:
        reason = await market.change(batch(project("p1", asked("aaaaaa", 8), asked("bbbbbb", 1))))
        assert "bbbbbb: insufficient capacity: 0/1" in reason
        assert await market.change(batch(project("p1", asked("aaaaaa", 5), asked("bbbbbb", 3)))) == ""
        await asyncio.sleep(1)
        covered = [vm for one in (await market.slots()).values() for vm in slot_allocations(one)]
        assert sorted(covered) == [one.name for one in mine]

    in_market([host("h1", vms=mine), *mine], story)


@run_by(in_market, [host("h1")])
async def test_what_needs_no_confirmation_is_answered_and_placed_once_there_is_room(market: Market) -> None:
    assert await market.change(batch(project("p1", asked("aaaaaa", 8)))) == ""
    pending = batch(project("p2", asked("bbbbbb", 8, new="pending")))
    assert await market.change(pending) == ""
    await asyncio.sleep(5)
    assert await market.ready("bbbbbb") == "Reserving"
    assert await market.change(batch(project("p1", asked("aaaaaa", 8, old="confirmed", new=None)))) == ""
    await asyncio.sleep(600)
    assert await market.ready("bbbbbb") == "Accepted"


@run_by(in_market, [host("h1")])
async def test_a_commitment_ends_at_its_time(market: Market) -> None:
    ends = batch(project("p1", asked("aaaaaa", 8, expires=later(300))))
    assert await market.change(ends) == ""
    await asyncio.sleep(299 - 5)
    assert market.free("h1") == 0
    await asyncio.sleep(10)
    assert await market.ready("aaaaaa") == "expired"
    assert await market.slots() == {}
    assert market.free("h1") == 64


@run_by(in_market, [host("h1", cpu=8)])
async def test_a_conversion_of_cores_is_accepted_though_no_core_is_free(market: Market) -> None:
    await asyncio.sleep(60)
    cores = (await market.capacity()).status.exclusively_free_capacity["cores"]

    def of_cores(*changes: CommitmentRequest) -> Batch:
        return batch(project("p1", *changes, resource="hw_version_g_cores"))

    assert await market.change(of_cores(asked("aaaaaa", cores - 2))) == ""
    assert await market.change(of_cores(asked("cccccc", 3))) != ""
    both = (asked("aaaaaa", cores - 2, old="confirmed", new="superseded"), asked("bbbbbb", cores))
    assert await market.change(of_cores(*both)) == ""
    await asyncio.sleep(1)
    assert await market.ready("bbbbbb") == "Accepted"
    apart = (asked("bbbbbb", cores - 1, old="confirmed"), asked("dddddd", 1), asked("eeeeee", 1))
    assert "eeeeee: insufficient CPU cores: 0 available, 1 requested" in await market.change(of_cores(*apart))
    assert await market.change(of_cores(*apart[:2])) == ""


@run_by(in_market, hosting("h1", *(vm(f"v{number}", "h1") for number in range(8))))
async def test_nothing_is_promised_on_what_a_lost_host_ran(market: Market) -> None:
    await market.lose("h1")
    await asyncio.sleep(1)
    assert "insufficient capacity: 0/1" in await market.change(batch(project("p1", asked("aaaaaa", 1))))


@pytest.mark.parametrize("maintenance", ["manual", "auto", "ha", "termination"])
def test_no_slot_is_made_on_a_host_in_maintenance(maintenance: Maintenance) -> None:
    async def story(market: Market) -> None:
        assert "insufficient capacity: 0/1" in await market.change(batch(project("p1", asked("aaaaaa", 1))))

    closed = host("h1")
    in_market([replace(closed, spec=replace(closed.spec, maintenance=maintenance))], story)


@run_by(in_market, [*hosting("h1", vm("v1", "h1")), host("h2")])
async def test_a_slot_that_was_on_its_way_when_its_leader_stopped_holds_one_host_only(market: Market) -> None:
    await market.sell("aaaaaa", 1)
    (slot,) = (await market.slots()).values()
    details = slot.spec.committed_resource_reservation
    assert details is not None
    emptied = replace(details, allocations={})
    left = replace(slot.spec, target_host="h2", committed_resource_reservation=emptied)
    await market.store.replace(replace(slot, spec=left))  # it followed its VM, which then was deleted
    await asyncio.sleep(5)
    (slot,) = (await market.slots()).values()
    assert slot.spec.target_host == slot.status.host == "h1"
    assert market.free("h2") == 64


@pytest.mark.slow
@pytest.mark.parametrize("closing", [{"drain": True}, {"maintenance": "manual"}], ids=["drained", "maintenance"])
def test_slots_without_vms_leave_a_host_that_takes_none_where_there_is_another_one(closing: dict[str, Any]) -> None:
    mine = vm("v1", "h1")

    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 1), asked("bbbbbb", 4)))) == ""
        await asyncio.sleep(1)
        found = await market.store.get(Hypervisor, "h1")
        await market.store.replace(replace(found, spec=replace(found.spec, **closing)))
        await asyncio.sleep(5)
        assert {one.status.host for one in (await market.slots()).values()} == {"h1"}
        assert await market.ready("bbbbbb") == "Accepted"
        await market.add(host("h2"))
        await asyncio.sleep(600)
        assert {one.status.host for one in (await market.slots("aaaaaa")).values()} == {"h1"}
        assert {one.status.host for one in (await market.slots("bbbbbb")).values()} == {"h2"}
        assert await market.ready("bbbbbb") == "Accepted"

    in_market([host("h1", vms=[mine]), mine], story)


def test_recovery_need_not_wait_until_a_large_batch_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.commitments.decision.TURN_S", 0.0)

    async def story(market: Market) -> None:
        turn = market.role.turn
        many = batch(project("p1", *(asked(f"aaaa-{one:02}", 1) for one in range(8))))

        async def recovers() -> int:
            async with turn:
                return market.free("h1")

        async with turn:
            asking = asyncio.ensure_future(market.change(many))
            await asyncio.sleep(1)
            recovering = asyncio.ensure_future(recovers())
            await asyncio.sleep(1)
        assert await asking == ""
        assert await recovering > 0, "all of the batch was decided first"
        assert not turn.locked()

    in_market([host("h1")], story)


async def test_who_gives_way_and_is_cancelled_meanwhile_has_the_turn_again() -> None:
    turn, entered = asyncio.Lock(), list[str]()

    async def decides() -> None:
        async with turn:
            await give_way(turn, LoopClock())

    async def recovers() -> None:
        async with turn:
            entered.append("begin")
            await asyncio.sleep(5)
            entered.append("end")

    deciding = asyncio.ensure_future(decides())
    recovering = asyncio.ensure_future(recovers())
    await asyncio.sleep(1)
    deciding.cancel()
    await asyncio.sleep(1)
    assert turn.locked(), "recovery has the turn"
    assert entered == ["begin"]
    await recovering
    await asyncio.wait({deciding})
    assert deciding.cancelled()
    assert not turn.locked()


@run_by(in_market, [host("h1", gib=32)])
async def test_slots_leave_a_closed_host_one_after_the_other_and_only_for_a_place_that_is_there(market: Market) -> None:
    names = [f"aaaa-{number}" for number in range(4)]
    assert await market.change(batch(project("p1", *(asked(one, 1) for one in names)))) == ""
    await market.add(host("h2", gib=8))
    found = await market.store.get(Hypervisor, "h1")
    await market.store.replace(replace(found, spec=replace(found.spec, maintenance="manual")))
    await asyncio.sleep(600)
    assert sorted(one.status.host for one in (await market.slots()).values()) == ["h1", "h1", "h1", "h2"]
    assert {await market.ready(one) for one in names} == {"Accepted"}


def test_only_new_slots_that_no_running_vm_covers_count_for_the_limit() -> None:
    mine = [vm(f"v{number}", "h1") for number in range(4)]
    settings = replace(SETTINGS, commitments=replace(SETTINGS.commitments, max_slots_per_commitment=1))

    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 3)))) == ""
        refused = await market.change(batch(project("p1", asked("bbbbbb", 4))))
        assert "commitment would create 2 new reservation slots, exceeds limit of 1" in refused, "one VM is left"
        assert await market.change(batch(project("p1", asked("cccccc", 2)))) == ""

    in_market([host("h1", vms=mine), *mine], story, settings=settings)


@pytest.mark.slow
@run_by(in_market, [host("h1")])
async def test_commitments_that_wait_and_may_not_be_refused_are_counted(market: Market) -> None:
    assert market.metrics("committed_resource_unfulfilled{") == []
    assert await market.change(batch(project("p1", asked("aaaaaa", 20, new="pending")))) == ""
    await asyncio.sleep(60)
    assert await market.ready("aaaaaa") == "Reserving"
    labels = f'availability_zone="{ZONE}",flavor_group="g",resource_type="memory"'
    assert market.metrics("committed_resource_unfulfilled{") == [f"committed_resource_unfulfilled{{{labels}}} 1.0"]
    await market.add(host("h2", gib=256, cpu=256))
    await asyncio.sleep(2000)
    assert market.metrics("committed_resource_unfulfilled{") == []


@pytest.mark.slow
@pytest.mark.parametrize("new", ["confirmed", "pending"])
def test_a_commitment_whose_flavors_cannot_be_read_waits_and_keeps_its_slots(new: str) -> None:
    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 2, new=new)))) == ""
        await asyncio.sleep(60)
        before = {name: slot.status.host for name, slot in (await market.slots()).items()}
        assert set(before.values()) == {"h1"}
        for one in FLAVORS:
            await market.store.delete((await market.store.get(Flavor, one.name)).ref)
        await asyncio.sleep(2000)
        assert await market.ready("aaaaaa") in ("Reserving", "Accepted")
        assert {name: slot.status.host for name, slot in (await market.slots()).items()} == before
        for one in FLAVORS:
            await market.store.create(one)
        await asyncio.sleep(2000)
        assert await market.ready("aaaaaa") == "Accepted"

    in_market([host("h1")], story)
