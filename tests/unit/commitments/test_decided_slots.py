"""A slot that is decided counts exactly as one that is stored: VMs of its project join it, others find it taken, and
what is taken back leaves nothing. The store takes its time, or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from tests.support.dying import Dead, Dying, Watched
from tests.support.loops import run_by
from tests.support.sales import GIB, SETTINGS, Market, asked, batch, host, in_market, live, project, store_with

from outlive.base import Unavailable
from outlive.resources import COMMITTED, Amounts, CommitmentChange, Reservation


class Gate:
    """Lets no write of some kind through before it is opened; ``refuses``: nor then."""

    def __init__(self, held: Callable[[object], bool]) -> None:
        self.opened = asyncio.Event()
        self.held = held
        self.refuses = False

    async def __call__(self, _call: str, obj: object) -> None:
        if self.held(obj):
            await self.opened.wait()
            if self.refuses:
                raise Unavailable("the store is away")


def gated(held: Callable[[object], bool], story: Callable[[Market, Gate], Awaitable[None]]) -> None:
    async def watched(market: Market) -> None:
        gate = Gate(held)
        market.before_writes(gate)
        await story(market, gate)

    in_market([host("h1")], watched, wrap=Watched)


def is_slot(obj: object) -> bool:
    return isinstance(obj, Reservation) and obj.spec.type == COMMITTED


def is_batch(obj: object) -> bool:
    return isinstance(obj, CommitmentChange) and obj.phase == "decided" and bool(obj.steps)


@pytest.mark.parametrize("pause_s", [0.0, 0.05, 3.0])
def test_a_vm_joins_a_slot_that_is_decided_and_not_written(pause_s: float) -> None:
    async def story(market: Market, gate: Gate) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 8)))) == ""
        await asyncio.sleep(pause_s)
        assert await market.place("v1", "p1") == ("h1",)
        assert 'cr_slot="slot_used"' in market.metrics("nova_placement_total{")[0]
        assert [one for n in range(9) if (one := await market.place(f"x{n}", "p2"))] == []
        await asyncio.sleep(1)
        assert market.free("h1") == 0
        gate.opened.set()
        await asyncio.sleep(5)
        assert await market.expected() == {"commitment-aaaaaa-0": ["v1"], "commitment-aaaaaa-1": []}
        assert market.role.fleet.overbooked_amounts("h1") == {}
        await asyncio.sleep(400)
        assert await market.ready("aaaaaa") == "Accepted"

    gated(is_slot, story)


@pytest.mark.parametrize("owner", ["p1", "p2"])
def test_before_it_is_committed_a_batch_holds_its_room_from_everybody(owner: str) -> None:
    async def story(market: Market, gate: Gate) -> None:
        asking = asyncio.create_task(market.change(batch(project("p1", asked("aaaaaa", 8)))))
        await asyncio.sleep(0.1)
        assert await market.place("v1", owner) == ()
        gate.refuses = True
        gate.opened.set()
        with pytest.raises(Unavailable):
            await asking
        assert market.free("h1") == 64
        assert await market.place("v2", "p2") == ("h1",)

    gated(is_batch, story)


def test_what_a_batch_gives_up_is_free_once_it_is_committed_and_not_before() -> None:
    async def story(market: Market, gate: Gate) -> None:
        gate.opened.set()
        await market.sell("aaaaaa", 8)
        gate.opened.clear()
        gone = batch(project("p1", asked("aaaaaa", 8, old="confirmed", new=None)))
        asking = asyncio.create_task(market.change(gone))
        await asyncio.sleep(0.1)
        assert await market.place("v1", "p2") == ()
        assert await market.place("v2", "p1") == (), "nor is it of the project any more"
        gate.opened.set()
        assert await asking == ""
        assert await market.place("v3", "p2") == ("h1",)

    gated(is_batch, story)


def test_a_slot_that_passes_to_another_project_takes_that_ones_vms_as_soon_as_it_is_decided() -> None:
    async def story(market: Market, gate: Gate) -> None:
        gate.opened.set()
        await market.sell("aaaaaa", 8)
        gate.opened.clear()
        moved = batch(project("p1", asked("aaaaaa", 8, old="confirmed", new=None)), project("p2", asked("aaaaaa", 8)))
        assert await market.change(moved) == ""
        assert await market.place("v1", "p1") == ()
        assert await market.place("v2", "p2") == ("h1",)
        await asyncio.sleep(3)
        gate.opened.set()
        await asyncio.sleep(5)
        assert [vm for vms in (await market.expected()).values() for vm in vms] == ["v2"]
        assert market.free("h1") == 0

    gated(is_slot, story)


async def test_the_next_process_holds_what_was_committed_before_it_leads() -> None:
    store = store_with(host("h1"))
    dying = Dying(store)

    async def first(market: Market) -> None:
        dying.dies_at = dying.writes + 2  # the batch is written, and nothing of what it says
        await market.sell("aaaaaa", 8)
        raise Dead

    with pytest.raises(Dead):
        await live(dying, first, ends=False, whole=False)

    async def second(market: Market) -> None:
        assert market.free("h1") == 0
        assert await market.place("v1", "p2") == ()
        assert await market.place("v2", "p1") == ("h1",)
        await asyncio.sleep(60)
        assert [vm for vms in (await market.expected()).values() for vm in vms] == ["v2"]

    # it does not lead: nothing applies the change while the other one's lease lasts
    slow = replace(SETTINGS, election=replace(SETTINGS.election, silence=30.0))
    await live(store, second, settings=slow, whole=False)


@run_by(in_market, [host("h1")])
async def test_a_vm_of_a_project_whose_commitments_are_used_up_is_in_the_slot_whose_room_let_it_in(
    market: Market,
) -> None:
    assert await market.change(batch(project("p1", asked("aaaaaa", 2)), project("p2", asked("bbbbbb", 6)))) == ""
    await asyncio.sleep(1)
    cr = (await market.commitments())["aaaaaa"]
    used = replace(cr.status, used_resources=Amounts(memory=16 * GIB))
    await market.store.replace_status(replace(cr, status=used))
    await asyncio.sleep(1)
    assert await market.place("v1", "p1") == ("h1",)
    assert 'cr_slot="no_cr"' in market.metrics("nova_placement_total{")[0]
    await asyncio.sleep(1)
    assert (await market.expected())["commitment-aaaaaa-0"] == ["v1"]
    assert market.role.fleet.overbooked_amounts("h1") == {}
