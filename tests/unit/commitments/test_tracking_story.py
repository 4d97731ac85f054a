"""VMs that placement places are put into slots of their project; and a refused batch says when to try again."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.sales import GIB, SETTINGS, ZONE, Market, asked, batch, host, in_cloud, later, project, vm

from outlive.base.errors import Invalid, Unavailable
from outlive.commitments.decision import Refusal
from outlive.commitments.state import from_spec
from outlive.placement.request import HYPERVISOR_TYPE, Options, PlacementRequest
from outlive.resources import Amounts, Reservation
from outlive.store.memory import MemoryStore

TRACKS = replace(SETTINGS, scheduler=replace(SETTINGS.scheduler, committed_resource_tracking=True))
PIPELINE = "kvm-general-purpose-load-balancing"


def call(name: str, gib: int = 8, *, of: str = "p1") -> PlacementRequest:
    return PlacementRequest(
        resource_id=name,
        project=of,
        zone=ZONE,
        need=Amounts(cpu=2000, memory=gib * GIB),
        flavor_name="m8",
        extra_specs={"quota:hw_version": "g", HYPERVISOR_TYPE: "QEMU"},
        image_properties={},
        pipeline=PIPELINE,
        options=Options(),
    )


async def expected(market: Market, uuid: str = "aaaaaa") -> dict[str, list[str]]:
    """Slot → VMs that the store says it expects."""
    found: dict[str, list[str]] = {}
    for name, slot in (await market.slots(uuid)).items():
        assert slot.spec.committed_resource_reservation is not None
        found[name] = sorted(slot.spec.committed_resource_reservation.allocations)
    return found


def outcomes(market: Market) -> dict[str, float]:
    """How placements counted."""
    lines = market.metrics("nova_placement_total{") + market.metrics("nova_no_host_found_total{")
    return {line.split('cr_slot="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@pytest.mark.slow
def test_a_placed_vm_takes_a_slot_of_its_project_at_once_and_in_the_store() -> None:
    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 2)))) == ""
        await asyncio.sleep(1)
        await market.role.placement.rank(call("v1"))
        await market.role.placement.rank(call("v2"))
        await asyncio.sleep(1)
        assert sorted(await expected(market)) == ["commitment-aaaaaa-0"]
        assert await expected(market) == {"commitment-aaaaaa-0": ["v1", "v2"]}
        assert outcomes(market) == {"slot_used": 2.0}
        assert market.free("h1") == 64 - 16

    in_cloud([host("h1")], story, settings=TRACKS)


def test_placements_of_other_projects_and_without_the_setting_take_nothing() -> None:
    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 2)))) == ""
        await asyncio.sleep(1)
        await market.role.placement.rank(call("v1", of="p2"))
        await asyncio.sleep(1)
        assert await expected(market) == {"commitment-aaaaaa-0": []}
        assert outcomes(market) == {"no_cr": 1.0}

    for settings in (TRACKS, SETTINGS):
        in_cloud([host("h1")], story, settings=settings)


def test_a_placement_that_finds_no_host_says_whether_slots_stood_in_the_way() -> None:
    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 8)))) == ""
        await asyncio.sleep(1)
        await market.role.placement.rank(replace(call("v1", gib=65)))
        assert outcomes(market) == {"slot_exhausted": 1.0}

    in_cloud([host("h1")], story, settings=TRACKS)


def test_a_slot_that_the_store_does_not_take_is_written_later() -> None:
    class Away:
        def __init__(self, store: MemoryStore) -> None:
            self.inner = store
            self.away = False

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        async def replace(self, obj: object) -> object:
            if self.away and isinstance(obj, Reservation):
                raise Unavailable("away")
            return await self.inner.replace(obj)  # type: ignore[type-var]

    made: list[Away] = []

    def wrap(store: MemoryStore) -> Away:
        made.append(Away(store))
        return made[0]

    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 2)))) == ""
        await asyncio.sleep(1)
        made[0].away = True
        await market.role.placement.rank(call("v1"))
        await asyncio.sleep(2)
        assert await expected(market) == {"commitment-aaaaaa-0": []}
        made[0].away = False
        await asyncio.sleep(5)
        assert await expected(market) == {"commitment-aaaaaa-0": ["v1"]}

    in_cloud([host("h1")], story, settings=TRACKS, wrap=wrap)


def test_a_slot_that_the_store_refuses_keeps_no_other_from_being_written() -> None:
    class Refuses:
        def __init__(self, store: MemoryStore) -> None:
            self.inner = store
            self.bad = ""

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        async def replace(self, obj: object) -> object:
            if self.bad and isinstance(obj, Reservation):
                if obj.name.startswith(self.bad):
                    raise Invalid("the store refuses this one")
                await asyncio.sleep(0.02)  # the refusal comes first
            return await self.inner.replace(obj)  # type: ignore[type-var]

    made: list[Refuses] = []

    def wrap(store: MemoryStore) -> Refuses:
        made.append(Refuses(store))
        return made[0]

    async def story(market: Market) -> None:
        for of, uuid in (("p1", "aaaaaa"), ("p2", "bbbbbb")):
            assert await market.change(batch(project(of, asked(uuid, 2)))) == ""
        await asyncio.sleep(1)
        made[0].bad = "commitment-aaaaaa"
        await market.role.placement.rank(call("v1"))
        await market.role.placement.rank(call("v2", of="p2"))
        await asyncio.sleep(0.5)
        assert await expected(market, "bbbbbb") == {"commitment-bbbbbb-0": ["v2"]}
        await asyncio.sleep(8)  # the pause of the other slot is 4 s by now
        await market.role.placement.rank(call("v3", of="p2"))
        await asyncio.sleep(0.5)
        assert await expected(market, "bbbbbb") == {"commitment-bbbbbb-0": ["v2", "v3"]}
        assert await expected(market, "aaaaaa") == {"commitment-aaaaaa-0": []}
        await asyncio.sleep(30)
        (dropped,) = (line for line in market.metrics("committed_resource_slot_vms_dropped_total") if line[0] != "#")
        assert dropped.endswith(" 1.0"), "the store has refused one slot five times"
        made[0].bad = ""
        await market.role.placement.rank(call("v4"))
        await asyncio.sleep(1)
        assert await expected(market, "aaaaaa") == {"commitment-aaaaaa-0": ["v4"]}

    in_cloud([host("h1"), host("h2")], story, settings=TRACKS, wrap=wrap)


async def refusal(market: Market, amount: int, resource: str = "hw_version_g_ram") -> Refusal:
    found = await market.role.commitments.changes.change(
        batch(project("p2", asked("zzzzzz", amount), resource=resource)), request_id="r", requested_by="limes"
    )
    assert found is not None
    return found


def test_a_refusal_says_when_enough_commitments_will_have_ended() -> None:
    async def story(market: Market) -> None:
        first, second = later(1000), later(2000)
        ending = (asked("aaaaaa", 2, expires=first), asked("bbbbbb", 3, expires=second), asked("cccccc", 3))
        assert await market.change(batch(project("p1", *ending))) == ""
        await asyncio.sleep(31)
        assert (await refusal(market, 2)).retry_at == first
        assert (await refusal(market, 4)).retry_at == second
        assert (await refusal(market, 6)).retry_at is None

    in_cloud([host("h1")], story)


@pytest.mark.slow
def test_the_end_of_a_commitment_makes_no_room_where_its_vms_run_on() -> None:
    mine = [vm("v1", "h1"), vm("v2", "h1")]

    async def story(market: Market) -> None:
        first, second = later(1000), later(2000)
        assert await market.change(batch(project("p1", asked("aaaaaa", 2, expires=first)))) == ""
        others = (asked("bbbbbb", 3, expires=second), asked("cccccc", 3))
        assert await market.change(batch(project("p3", *others))) == ""
        await asyncio.sleep(31)
        assert (await refusal(market, 2)).retry_at == second
        assert (await refusal(market, 4)).retry_at is None

    in_cloud([host("h1", vms=mine), *mine], story)


def test_a_commitment_that_was_superseded_books_nothing() -> None:
    async def story(market: Market) -> None:
        first = later(1000)
        assert await market.change(batch(project("p1", asked("aaaaaa", 4), asked("bbbbbb", 4, expires=first)))) == ""
        await asyncio.sleep(31)
        gone = asked("aaaaaa", 4, old="confirmed", new="superseded")
        assert await market.change(batch(project("p1", gone, asked("cccccc", 4)))) == ""
        await asyncio.sleep(31)
        assert (await refusal(market, 4)).retry_at == first

    in_cloud([host("h1")], story)


def test_cores_that_are_missing_have_no_such_time() -> None:
    async def story(market: Market) -> None:
        await asyncio.sleep(31)
        assert (await refusal(market, 1000, resource="hw_version_g_cores")).retry_at is None

    in_cloud([host("h1")], story)


def test_vms_of_a_slot_that_the_batch_gives_up_can_be_covered_anew() -> None:
    mine = [vm("v1", "h1")]

    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 1)))) == ""
        await asyncio.sleep(1)
        view = market.role.commitments.view
        cr = view.commitment("aaaaaa")
        assert cr is not None
        new, group = replace(from_spec(cr.spec), uuid="bbbbbb"), view.groups()["g"]
        assert view.candidates(new, group) == ()
        (slot,) = await market.slots("aaaaaa")
        assert [one.vm for one in view.candidates(new, group, released={slot})] == ["v1"]

    in_cloud([host("h1", vms=mine), *mine], story)


def test_a_slot_that_passes_to_another_project_takes_no_vm_of_the_one_before() -> None:
    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 1)))) == ""
        await asyncio.sleep(1)
        ((name, slot),) = (await market.slots()).items()
        details = slot.spec.committed_resource_reservation
        assert details is not None
        passed = replace(slot.spec, committed_resource_reservation=replace(details, project_id="p2"))
        fleet = market.role.fleet
        fleet.upsert_reservation(replace(slot, spec=passed))  # as a batch holds it that is decided and not applied yet
        await market.role.placement.rank(call("v1"))
        await asyncio.sleep(1)
        assert await expected(market) == {name: []}

    in_cloud([host("h1")], story, settings=TRACKS)


def test_a_flavor_whose_group_nobody_knows_counts_as_an_error_and_one_without_a_group_not_at_all() -> None:
    async def story(market: Market) -> None:
        await market.role.placement.rank(
            replace(call("v1"), extra_specs={"quota:hw_version": "gone", HYPERVISOR_TYPE: "QEMU"})
        )
        await market.role.placement.rank(replace(call("v2"), extra_specs={HYPERVISOR_TYPE: "QEMU"}))
        counted = [line for line in market.metrics("nova_placement_total{") if not line.endswith(" 0.0")]
        assert counted == ['nova_placement_total{cr_slot="error",flavor_group="unknown",intent="unknown"} 1.0']

    in_cloud([host("h1")], story, settings=TRACKS)
