"""Any changes in any order, each in a process that dies at some write: every batch counts whole or not at all, no slot
is lost, left over or sold twice, and the account of hosts is what the store says."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.dying import Dead, Dying
from tests.support.random_sales import UNIT, Customers, Sold
from tests.support.sales import FLAVORS, Market, host, live, vm

from outlive.base import LoopClock, OutliveError, Random, SeededIds
from outlive.commitments import Batch, slot_allocations
from outlive.placement import Fleet
from outlive.resources import Reservation
from outlive.store import MemoryStore, list_all

BATCHES = 8


async def dies(store: MemoryStore, customers: Customers, wanted: Batch) -> str | None:
    """A process that dies at a write of the batch; what it answered before."""
    dying = Dying(store)
    answers: list[str] = []

    async def asks(market: Market) -> None:
        try:
            answers.append(await market.change(wanted))
        except OutliveError as error:
            answers.append(str(error))

    async def story(market: Market) -> None:
        dying.dies_at = dying.writes + customers.draw.randint(1, 25)
        dying.arrives = customers.draw.choice([True, False])
        asking = asyncio.ensure_future(asks(market))
        await asyncio.wait({asking, asyncio.ensure_future(dying.dead.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(customers.draw.uniform(0, 3))
        asking.cancel()
        raise Dead

    with pytest.raises(Dead):
        await live(dying, story, ends=False, whole=False)
    return answers[0] if answers else None


async def check(market: Market, allowed: list[Sold]) -> Sold:
    """What is sold, which is one of these, once the next process has looked after it."""
    await asyncio.sleep(100)
    there = (await market.commitments()).values()
    sold = {
        one.spec.commitment_uuid: (one.spec.project_id, one.spec.total // UNIT)
        for one in there
        if one.spec.state == "confirmed"
    }
    assert sold in allowed
    assert {await market.ready(uuid) for uuid in sold} <= {"Accepted"}
    assert all(one.phase == "applied" for one in await market.changes())
    held: Sold = {}
    covered: list[str] = []
    for slot in (await market.slots()).values():
        details = slot.spec.committed_resource_reservation
        assert details is not None
        owner, amount = held.get(details.commitment_uuid, (details.project_id, 0))
        assert owner == details.project_id
        assert owner == "p1" or not slot_allocations(slot)
        held[details.commitment_uuid] = owner, amount + slot.spec.resources.memory_bytes // UNIT
        covered.extend(slot_allocations(slot))
    assert held == sold
    assert len(covered) == len(set(covered))
    fleet = Fleet(market.role.fleet.settings)
    for one in market.role.commitments.informers.hypervisors.items():
        fleet.upsert_host(one)
    for reservation in [one async for one in list_all(market.store, Reservation)]:
        fleet.upsert_reservation(reservation)
    assert fleet.free_amounts().tolist() == market.role.fleet.free_amounts().tolist()
    assert fleet.free_amounts().min() >= 0
    return sold


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_no_order_of_changes_and_crashes_leaves_half_a_batch(seed: int) -> None:
    running = [vm(f"v{number}", f"h{number % 4}") for number in range(6)]
    hosts = [host(f"h{number}", vms=running[number::4]) for number in range(4)]
    store = MemoryStore(LoopClock(), SeededIds(Random(seed)))
    store.load([*FLAVORS, *hosts, *running])
    customers = Customers(seed)
    sold: Sold = {}
    for _ in range(BATCHES):
        wanted, after = customers.batch(sold)
        answer = await dies(store, customers, wanted)
        allowed = [sold, after] if answer is None else [after] if answer == "" else [sold]
        found: list[Sold] = []

        async def next_life(market: Market, allowed: list[Sold] = allowed, found: list[Sold] = found) -> None:
            found.append(await check(market, allowed))

        await live(store, next_life, whole=False)
        (sold,) = found
