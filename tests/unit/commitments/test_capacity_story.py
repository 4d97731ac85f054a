"""Capacity of flavor groups follows the cloud, in a running cloud."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.loops import run, run_by
from tests.support.sales import FLAVORS, GIB, SETTINGS, ZONE, Market, flavor, host, hosting, in_market, live, vm

from outlive.base import LoopClock, NotFound, Random, SeededIds, Unavailable
from outlive.placement import VmList, VmView
from outlive.resources import Flavor, FlavorGroup, Hypervisor, ObjectMeta, Pipeline, find_condition
from outlive.store import MemoryStore


@run_by(in_market, [*hosting("h1", vm("v1", "h1")), host("h2")])
async def test_a_group_has_what_hosts_have_and_commitments_take_of_it(market: Market) -> None:
    status = (await market.capacity()).status
    assert (status.running_instances, status.exclusively_free_slots, status.smallest_flavor_name) == (1, 15, "m8")
    assert status.total_capacity["memory"] == 128 * GIB
    assert status.running_resources.to_wire() == {"memory": "8Gi", "cores": "2"}
    await market.sell("aaaaaa", 4, of="p2", then_s=31)
    status = (await market.capacity()).status
    assert (status.committed_capacity, status.committed_capacity_bytes) == (4, 32 * GIB)
    assert (status.exclusively_free_slots, status.running_instances) == (11, 1)
    ready = find_condition(status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "ReconcileSucceeded")


@run_by(in_market, [host("h1")])
async def test_many_changes_cost_one_look_in_half_a_minute_and_nothing_is_written_that_is_the_same(
    market: Market,
) -> None:
    first = (await market.capacity()).metadata.resource_version
    for number in range(10):
        await market.start(vm(f"v{number}", "h1"))
        await asyncio.sleep(1)
    assert (await market.capacity()).metadata.resource_version == first
    await asyncio.sleep(30)
    await _grow(market)
    await asyncio.sleep(31)
    assert (await market.capacity()).status.running_instances == 10
    second = (await market.capacity()).metadata.resource_version
    await _touch(market)
    await asyncio.sleep(60)
    assert (await market.capacity()).metadata.resource_version == second


async def _grow(market: Market) -> None:
    """The host reports what its VMs use."""
    found = await market.store.get(Hypervisor, "h1")
    assert found.status.capacity is not None
    status = replace(found.status, allocation=found.status.capacity)
    await market.store.replace_status(replace(found, status=status))


async def _touch(market: Market) -> None:
    """Of the host something changes that capacity does not rest on."""
    found = await market.store.get(Hypervisor, "h1")
    labels = {**found.metadata.labels, "rack": "r1"}
    await market.store.replace(replace(found, metadata=replace(found.metadata, labels=labels)))


@run_by(in_market, [host("h1")])
async def test_a_group_that_placement_cannot_be_asked_about_keeps_its_figures_and_is_not_ready(market: Market) -> None:
    pipeline = SETTINGS.commitments.capacity_placeable_pipeline
    assert (await market.capacity()).status.exclusively_free_slots == 8
    found = await market.store.get(Pipeline, pipeline)
    await market.store.delete(found.ref, uid=found.metadata.uid)
    await asyncio.sleep(31)
    status = (await market.capacity()).status
    ready = find_condition(status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "ReconcileFailed")
    assert pipeline in ready.message
    assert status.exclusively_free_slots == 8


@run_by(
    in_market,
    [host("h1")],
    settings=replace(
        SETTINGS, commitments=replace(SETTINGS.commitments, capacity_placeable_pipeline="no-such-pipeline")
    ),
)
async def test_where_placement_could_never_be_asked_there_is_no_object(market: Market) -> None:
    with pytest.raises(NotFound):
        await market.capacity()


@run_by(in_market, [host("h1"), host("h2", zone="zone-b"), flavor("o8", 8, 2, group="other")])
async def test_a_group_or_zone_that_is_gone_has_no_object(market: Market) -> None:
    await asyncio.sleep(31)
    assert (await market.capacity("other", "zone-b")).status.exclusively_free_slots > 0
    found = await market.store.get(Flavor, "o8")
    await market.store.delete(found.ref, uid=found.metadata.uid)
    await asyncio.sleep(31)
    with pytest.raises(NotFound):
        await market.capacity("other", "zone-b")
    assert (await market.capacity("g", "zone-b")).status.exclusively_free_slots == 8
    gone = await market.store.get(Hypervisor, "h2")
    await market.store.delete(gone.ref, uid=gone.metadata.uid)
    await asyncio.sleep(31)
    with pytest.raises(NotFound):
        await market.capacity("g", "zone-b")


def test_the_first_flavors_of_a_cloud_are_counted_at_once() -> None:
    async def story(market: Market) -> None:
        for one in FLAVORS:
            await market.store.create(one)
        await asyncio.sleep(3)
        assert (await market.capacity()).status.exclusively_free_slots > 0

    async def scene() -> None:
        store = MemoryStore(LoopClock(), SeededIds(Random(2)))
        store.load([host("h1")])
        await live(store, story, whole=False)

    run(scene())


@run_by(in_market, [host("h1")])
async def test_a_group_that_lists_no_flavor_keeps_no_other_group_from_its_figures(market: Market) -> None:
    good = await market.store.get(FlavorGroup, "g")
    broken = replace(good.spec, group_name="broken", flavors=())
    await market.store.create(FlavorGroup(metadata=ObjectMeta(name="broken"), spec=broken))
    await market.add(host("h2"))
    await asyncio.sleep(40)
    assert (await market.capacity()).status.exclusively_free_slots == 16
    assert market.role.commitments.view.find_group("broken") is None


@pytest.mark.slow
def test_before_vms_are_known_for_the_first_time_no_group_counts_as_one_without_vms() -> None:
    class Away:
        away = True

        async def list_vms(self) -> VmList:
            if self.away:
                raise Unavailable("away")
            return VmList(vms=(VmView(id="v1", host="h1", zone=ZONE, project="p1", flavor="m8"),))

        async def get_vm(self, vm_id: str) -> VmView | None:
            raise Unavailable("away")

    source = Away()

    async def story(market: Market) -> None:
        await asyncio.sleep(60)
        status = (await market.capacity()).status
        ready = find_condition(status.conditions, "Ready")
        assert ready is not None
        assert (ready.status, ready.message) == ("False", "which VMs run is not known yet")
        source.away = False
        await asyncio.sleep(330)
        status = (await market.capacity()).status
        ready = find_condition(status.conditions, "Ready")
        assert ready is not None
        assert (ready.status, status.running_instances) == ("True", 1)
        source.away = True
        await asyncio.sleep(3600)
        status = (await market.capacity()).status
        assert status.running_instances == 1, "what was known last stays"

    in_market([host("h1")], story, source=source)
