"""Which confirmed commitments could not be filled after the loss of any one host."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.support.sales import Market, asked, batch, host, in_market, project

from outlive.commitments import Unfilled, find_unfilled_after_loss

GAUGE = "committed_resource_unfilled_after_host_loss{"


def unfilled(market: Market, *hosts: str) -> list[tuple[str, str, int]]:
    """Host, commitment, and slots without another host."""
    made = market.role.commitments
    found: list[Unfilled] = []
    for name in hosts:
        found.extend(find_unfilled_after_loss(name, made.view, made.changes._decider._placer, 0.0))
    return [(one.host, one.commitment, one.slots) for one in found]


@run_by(in_market, [host("h1"), host("h2")])
async def test_what_another_host_has_room_for_survives_and_nothing_is_left_of_the_question(market: Market) -> None:
    await market.sell("aaaaaa", 4, then_s=10)
    before = [market.free(name) for name in ("h1", "h2")]
    assert unfilled(market, "h1", "h2") == []
    assert [market.free(name) for name in ("h1", "h2")] == before


@run_by(in_market, [host("h1")])
async def test_what_no_other_host_has_room_for_is_named_the_oldest_commitment_being_placed_first(
    market: Market,
) -> None:
    for uuid, units in (("bbbbbb", 4), ("aaaaaa", 3)):
        await market.sell(uuid, units, then_s=2)
    assert await market.change(batch(project("p1", asked("pppppp", 1, new="pending")))) == ""
    await asyncio.sleep(10)
    await market.add(host("h2", gib=32))
    await asyncio.sleep(1)
    lost = {slot.status.host for slot in (await market.slots()).values()}
    assert lost == {"h1"}
    assert unfilled(market, "h1", "h2") == [("h1", "aaaaaa", 2)]
    assert market.free("h1") == 0


@run_by(in_market, [host("h1"), host("h2", gib=16)])
async def test_what_is_planned_and_in_no_store_yet_is_held_as_before(market: Market) -> None:
    await market.sell("aaaaaa", 4, then_s=10)
    slot = next(iter((await market.slots()).values()))
    placer = market.role.commitments.changes._decider._placer
    placer.hold(replace(slot, metadata=replace(slot.metadata, name="commitment-planned-0")), by="batch")
    assert market.free("h1") == 0
    assert unfilled(market, "h1") == [("h1", "aaaaaa", 2)]
    assert market.free("h1") == 0


@pytest.mark.slow
@run_by(in_market, [host("h1")])
async def test_the_metric_counts_commitments_by_group_and_zone(market: Market) -> None:
    await asyncio.sleep(10)
    assert market.metrics(GAUGE) == []
    assert await market.change(batch(project("p1", asked("aaaaaa", 4), asked("bbbbbb", 1)))) == ""
    await asyncio.sleep(3700)
    assert market.metrics(GAUGE) == [GAUGE + 'availability_zone="zone-a",flavor_group="g"} 2.0']
    await market.add(host("h2"))
    await asyncio.sleep(3700)
    assert market.metrics(GAUGE) == []
