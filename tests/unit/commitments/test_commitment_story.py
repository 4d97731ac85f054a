"""The controller of commitments in a running cloud: what wakes it, what it rests on, and what it leaves alone."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from msgspec.structs import replace
from tests.support.commitments import make_spec
from tests.support.loops import run_by
from tests.support.sales import FLAVORS, ZONE, Market, asked, batch, host, in_market, later, live, project

from outlive.base import LoopClock, Random, SeededIds
from outlive.commitments import commitment_name
from outlive.resources import CommittedResource, Condition, ObjectMeta
from outlive.store import MemoryStore


def promised(uuid: str, amount: str = "8Gi", *, name: str = "", **fields: object) -> CommittedResource:
    """A commitment that somebody wrote without asking us."""
    spec = make_spec(uuid, amount, availability_zone=ZONE, project_id="p1")
    return CommittedResource(metadata=ObjectMeta(name=name or commitment_name(uuid)), spec=replace(spec, **fields))


async def uids(market: Market) -> set[str]:
    return {one.metadata.uid for one in (await market.slots()).values()}


@run_by(in_market, [host("h1")])
async def test_slots_stay_where_only_the_cache_has_lost_their_commitment(market: Market) -> None:
    await market.sell("aaaaaa", 8)
    before = await uids(market)
    cached = market.role.commitments.informers.commitments
    cached.note_deleted((await market.commitments())["aaaaaa"].ref)
    await asyncio.sleep(3)
    assert await uids(market) == before


@pytest.mark.slow
@run_by(in_market, [host("h1")])
async def test_slots_stay_where_only_the_cache_says_that_their_commitment_is_over(market: Market) -> None:
    await market.sell("aaaaaa", 8)
    before = await uids(market)
    found = (await market.commitments())["aaaaaa"]
    old = replace(
        found, metadata=replace(found.metadata, resource_version="old"), spec=replace(found.spec, state="expired")
    )
    market.role.commitments.informers.commitments.note(old)
    await asyncio.sleep(3)
    assert await uids(market) == before


@run_by(in_market, [host("h1")])
async def test_slots_go_with_a_commitment_that_somebody_deletes_whatever_its_uuid_looks_like(market: Market) -> None:
    await market.sell("ABC-DEF-1", 8)
    await market.store.delete((await market.commitments())["ABC-DEF-1"].ref)
    await asyncio.sleep(5)
    assert await market.slots() == {}
    assert market.free("h1") == 64


@run_by(in_market, [host("h1")])
async def test_a_commitment_that_waits_for_capacity_ends_at_its_time(market: Market) -> None:
    assert await market.change(batch(project("p1", asked("aaaaaa", 8)))) == ""
    assert await market.change(batch(project("p2", asked("bbbbbb", 8, new="pending", expires=later(150))))) == ""
    await asyncio.sleep(100)
    assert await market.ready("bbbbbb") == "Reserving"
    await asyncio.sleep(51)
    assert await market.ready("bbbbbb") == "expired"
    assert await market.slots("bbbbbb") == {}


async def test_a_commitment_of_a_group_that_was_not_known_is_looked_at_once_that_is() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(2)))
    store.load([host("h1"), promised("aaaaaa")])

    async def story(market: Market) -> None:
        await asyncio.sleep(200)
        assert await market.ready("aaaaaa") == "Reserving"
        for flavor in FLAVORS:
            await market.store.create(flavor)
        await asyncio.sleep(5)
        assert await market.ready("aaaaaa") == "Accepted"

    await live(store, story, whole=False)


@run_by(in_market, [host("h1")])
async def test_an_object_with_the_name_of_another_commitment_has_no_slots_and_says_so(market: Market) -> None:
    await market.store.create(promised("aaaaaa", name="mine"))
    await asyncio.sleep(5)
    assert await market.slots() == {}
    assert await market.ready("aaaaaa") == "Rejected"
    found = (await market.commitments())["aaaaaa"]
    assert "commitment-aaaaaa" in found.status.conditions[0].message


@run_by(in_market, [host("h1")])
async def test_slots_of_what_was_accepted_go_when_that_ends_though_more_was_refused(market: Market) -> None:
    assert await market.change(batch(project("p1", asked("aaaaaa", 4, expires=later(100))))) == ""
    await asyncio.sleep(1)
    found = (await market.commitments())["aaaaaa"]
    more = replace(found.spec, amount="128Gi", end_time=later(1000), allow_rejection=True)
    await market.store.replace(replace(found, spec=more))
    await asyncio.sleep(5)
    assert await market.ready("aaaaaa") == "Rejected"
    assert market.free("h1") == 32
    await asyncio.sleep(120)
    assert market.free("h1") == 64


async def refuse_more(market: Market) -> CommittedResource:
    """A commitment of half the host was accepted, and twice the host in its place is refused."""
    await market.sell("aaaaaa", 4)
    found = (await market.commitments())["aaaaaa"]
    await market.store.replace(replace(found, spec=replace(found.spec, amount="128Gi", allow_rejection=True)))
    await asyncio.sleep(5)
    assert await market.ready("aaaaaa") == "Rejected"
    assert market.free("h1") == 32
    return (await market.commitments())["aaaaaa"]


@run_by(in_market, [host("h1")])
async def test_a_refused_commitment_keeps_the_slots_of_what_was_accepted_while_its_group_is_not_known(
    market: Market,
) -> None:
    found = await refuse_more(market)
    before = await uids(market)
    for flavor in FLAVORS:
        await market.store.delete(flavor.ref)
    await asyncio.sleep(5)
    await market.store.replace(replace(found, metadata=replace(found.metadata, labels={"seen": "again"})))
    await asyncio.sleep(5)
    assert await uids(market) == before


@run_by(in_market, [host("h1")])
async def test_slots_of_what_was_accepted_stay_where_only_the_cache_says_that_less_was(market: Market) -> None:
    found = await refuse_more(market)
    before = await uids(market)
    assert found.status.accepted_spec is not None
    old = replace(
        found,
        metadata=replace(found.metadata, resource_version="old"),
        spec=replace(found.spec, amount="256Gi"),
        status=replace(found.status, accepted_spec=replace(found.status.accepted_spec, amount="8Gi")),
    )
    market.role.commitments.informers.commitments.note(old)
    await asyncio.sleep(3)
    assert await uids(market) == before


@run_by(in_market, [host(f"h{number}") for number in range(15)])
async def test_many_slots_are_placed_while_others_get_their_turn(market: Market) -> None:
    turns: list[int] = []

    async def others() -> None:
        for _ in range(5000):
            fleet = market.role.fleet
            turns.append(sum(one.name.startswith("commitment-") for one in fleet.list_reservations()))
            await asyncio.sleep(0)

    await market.store.create(promised("aaaaaa", "960Gi"))
    watching = asyncio.ensure_future(others())
    await asyncio.sleep(1)
    watching.cancel()
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(turns) == 30
    assert max(steps) <= 16


@run_by(in_market, [host("h1")])
async def test_cores_stay_accepted_while_figures_of_capacity_are_not_ready(market: Market) -> None:
    await asyncio.sleep(60)
    wanted = batch(project("p1", asked("aaaaaa", 8), resource="hw_version_g_cores"))
    assert await market.change(wanted) == ""
    await asyncio.sleep(1)
    capacity = await market.capacity()
    doubted = replace(capacity.status, conditions=(Condition(type="Ready", status="False"),))
    await market.store.replace_status(replace(capacity, status=doubted))
    found = (await market.commitments())["aaaaaa"]
    meta = replace(found.metadata, annotations={"touched": "now"})
    await market.store.replace(replace(found, metadata=meta))
    await asyncio.sleep(1)
    assert await market.ready("aaaaaa") == "Accepted"
