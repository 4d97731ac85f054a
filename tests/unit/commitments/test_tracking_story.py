"""VMs that placement places are put into slots of their project; and a refused batch says when to try again."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.dying import Watched
from tests.support.loops import run_by
from tests.support.sales import GIB, SETTINGS, Market, asked, batch, host, hosting, in_market, later, project, vm

from outlive.base import Invalid, Unavailable
from outlive.commitments import BatchRefusal, from_spec
from outlive.placement import HYPERVISOR_TYPE
from outlive.resources import Amounts, Reservation

TRACKS = replace(SETTINGS, scheduler=replace(SETTINGS.scheduler, committed_resource_tracking=True))


def outcomes(market: Market) -> dict[str, float]:
    """How placements counted."""
    lines = market.metrics("nova_placement_total{") + market.metrics("nova_no_host_found_total{")
    return {line.split('cr_slot="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@pytest.mark.slow
@run_by(in_market, [host("h1")], settings=TRACKS)
async def test_a_placed_vm_takes_a_slot_of_its_project_at_once_and_in_the_store(market: Market) -> None:
    await market.sell("aaaaaa", 2)
    await market.place("v1")
    await market.place("v2")
    await asyncio.sleep(1)
    assert sorted(await market.expected("aaaaaa")) == ["commitment-aaaaaa-0"]
    assert await market.expected("aaaaaa") == {"commitment-aaaaaa-0": ["v1", "v2"]}
    assert outcomes(market) == {"slot_used": 2.0}
    assert market.free("h1") == 64 - 16


def test_placements_of_other_projects_and_without_the_setting_take_nothing() -> None:
    async def story(market: Market) -> None:
        await market.sell("aaaaaa", 2)
        await market.place("v1", "p2")
        await asyncio.sleep(1)
        assert await market.expected("aaaaaa") == {"commitment-aaaaaa-0": []}
        assert outcomes(market) == {"no_cr": 1.0}

    for settings in (TRACKS, SETTINGS):
        in_market([host("h1")], story, settings=settings)


@run_by(in_market, [host("h1")], settings=TRACKS)
async def test_a_placement_that_finds_no_host_says_whether_slots_stood_in_the_way(market: Market) -> None:
    await market.sell("aaaaaa", 8)
    await market.place("v1", need=Amounts(cpu=2000, memory=65 * GIB))
    assert outcomes(market) == {"slot_exhausted": 1.0}


def test_a_slot_that_the_store_does_not_take_is_written_later() -> None:
    async def away(_call: str, obj: object) -> None:
        if isinstance(obj, Reservation):
            raise Unavailable("away")

    async def story(market: Market) -> None:
        await market.sell("aaaaaa", 2)
        market.before_writes(away)
        await market.place("v1")
        await asyncio.sleep(2)
        assert await market.expected("aaaaaa") == {"commitment-aaaaaa-0": []}
        market.before_writes(None)
        await asyncio.sleep(5)
        assert await market.expected("aaaaaa") == {"commitment-aaaaaa-0": ["v1"]}

    in_market([host("h1")], story, settings=TRACKS, wrap=Watched)


def test_a_slot_that_the_store_refuses_keeps_no_other_from_being_written() -> None:
    async def refuses(_call: str, obj: object) -> None:
        if isinstance(obj, Reservation):
            if obj.name.startswith("commitment-aaaaaa"):
                raise Invalid("the store refuses this one")
            await asyncio.sleep(0.02)  # the refusal comes first

    async def story(market: Market) -> None:
        for of, uuid in (("p1", "aaaaaa"), ("p2", "bbbbbb")):
            assert await market.change(batch(project(of, asked(uuid, 2)))) == ""
        await asyncio.sleep(1)
        market.before_writes(refuses)
        await market.place("v1")
        await market.place("v2", "p2")
        await asyncio.sleep(0.5)
        assert await market.expected("bbbbbb") == {"commitment-bbbbbb-0": ["v2"]}
        await asyncio.sleep(8)  # the pause of the other slot is 4 s by now
        await market.place("v3", "p2")
        await asyncio.sleep(0.5)
        assert await market.expected("bbbbbb") == {"commitment-bbbbbb-0": ["v2", "v3"]}
        assert await market.expected("aaaaaa") == {"commitment-aaaaaa-0": []}
        await asyncio.sleep(30)
        (dropped,) = (line for line in market.metrics("committed_resource_slot_vms_dropped_total") if line[0] != "#")
        assert dropped.endswith(" 1.0"), "the store has refused one slot five times"
        market.before_writes(None)
        await market.place("v4")
        await asyncio.sleep(1)
        assert await market.expected("aaaaaa") == {"commitment-aaaaaa-0": ["v4"]}

    in_market([host("h1"), host("h2")], story, settings=TRACKS, wrap=Watched)


async def refusal(market: Market, amount: int, resource: str = "hw_version_g_ram") -> BatchRefusal:
    found = await market.role.commitments.changes.change(
        batch(project("p2", asked("zzzzzz", amount), resource=resource)), request_id="r", requested_by="limes"
    )
    assert found is not None
    return found


@run_by(in_market, [host("h1")])
async def test_a_refusal_says_when_enough_commitments_will_have_ended(market: Market) -> None:
    first, second = later(1000), later(2000)
    ending = (asked("aaaaaa", 2, expires=first), asked("bbbbbb", 3, expires=second), asked("cccccc", 3))
    assert await market.change(batch(project("p1", *ending))) == ""
    await asyncio.sleep(31)
    assert (await refusal(market, 2)).retry_at == first
    assert (await refusal(market, 4)).retry_at == second
    assert (await refusal(market, 6)).retry_at is None


@pytest.mark.slow
@run_by(in_market, hosting("h1", vm("v1", "h1"), vm("v2", "h1")))
async def test_the_end_of_a_commitment_makes_no_room_where_its_vms_run_on(market: Market) -> None:
    first, second = later(1000), later(2000)
    assert await market.change(batch(project("p1", asked("aaaaaa", 2, expires=first)))) == ""
    others = (asked("bbbbbb", 3, expires=second), asked("cccccc", 3))
    assert await market.change(batch(project("p3", *others))) == ""
    await asyncio.sleep(31)
    assert (await refusal(market, 2)).retry_at == second
    assert (await refusal(market, 4)).retry_at is None


@run_by(in_market, [host("h1")])
async def test_a_commitment_that_was_superseded_books_nothing(market: Market) -> None:
    first = later(1000)
    assert await market.change(batch(project("p1", asked("aaaaaa", 4), asked("bbbbbb", 4, expires=first)))) == ""
    await asyncio.sleep(31)
    gone = asked("aaaaaa", 4, old="confirmed", new="superseded")
    assert await market.change(batch(project("p1", gone, asked("cccccc", 4)))) == ""
    await asyncio.sleep(31)
    assert (await refusal(market, 4)).retry_at == first


@run_by(in_market, [host("h1")])
async def test_cores_that_are_missing_have_no_such_time(market: Market) -> None:
    await asyncio.sleep(31)
    assert (await refusal(market, 1000, resource="hw_version_g_cores")).retry_at is None


@run_by(in_market, hosting("h1", vm("v1", "h1")))
async def test_vms_of_a_slot_that_the_batch_gives_up_can_be_covered_anew(market: Market) -> None:
    await market.sell("aaaaaa", 1)
    view = market.role.commitments.view
    cr = view.find_commitment("aaaaaa")
    assert cr is not None
    new, group = replace(from_spec(cr.spec), uuid="bbbbbb"), view.groups_by_name()["g"]
    assert view.find_candidates(new, group) == ()
    (slot,) = await market.slots("aaaaaa")
    assert [one.vm for one in view.find_candidates(new, group, released={slot})] == ["v1"]


@run_by(in_market, [host("h1")], settings=TRACKS)
async def test_a_slot_that_passes_to_another_project_takes_no_vm_of_the_one_before(market: Market) -> None:
    await market.sell("aaaaaa", 1)
    ((name, slot),) = (await market.slots()).items()
    details = slot.spec.committed_resource_reservation
    assert details is not None
    passed = replace(slot.spec, committed_resource_reservation=replace(details, project_id="p2"))
    fleet = market.role.fleet
    fleet.upsert_reservation(replace(slot, spec=passed))  # as a batch holds it that is decided and not applied yet
    await market.place("v1")
    await asyncio.sleep(1)
    assert await market.expected("aaaaaa") == {name: []}


@run_by(in_market, [host("h1")], settings=TRACKS)
async def test_a_flavor_whose_group_nobody_knows_counts_as_an_error_and_one_without_a_group_not_at_all(
    market: Market,
) -> None:
    await market.place("v1", extra_specs={"quota:hw_version": "gone", HYPERVISOR_TYPE: "QEMU"})
    await market.place("v2", extra_specs={HYPERVISOR_TYPE: "QEMU"})
    counted = [line for line in market.metrics("nova_placement_total{") if not line.endswith(" 0.0")]
    assert counted == ['nova_placement_total{cr_slot="error",flavor_group="unknown",intent="unknown"} 1.0']
