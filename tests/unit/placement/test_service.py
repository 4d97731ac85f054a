"""The service: the lock, the informers' callbacks, and what it counts."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.loops import run
from tests.support.placement import host, request, slot

from outlive.base.clock import LoopClock
from outlive.base.errors import LimitExceeded
from outlive.base.random import Random
from outlive.placement.errors import UnknownPipeline
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable
from outlive.placement.request import SILENT
from outlive.placement.service import PlacementService, ReadWriteLock
from outlive.placement.settings import PlacementSettings
from outlive.placement.shipped import shipped_pipelines
from outlive.runtime.metrics import Metrics


def service(metrics: Metrics | None = None, settings: PlacementSettings | None = None) -> PlacementService:
    return PlacementService(Fleet(settings), PipelineTable(), clock=LoopClock(), random=Random(0), metrics=metrics)


def test_readers_share_the_lock_and_a_writer_has_it_alone() -> None:
    seen: list[str] = []

    async def part(lock: ReadWriteLock, name: str, *, shared: bool) -> None:
        async with lock.hold(shared=shared):
            seen.append(f"+{name}")
            await asyncio.sleep(1)
            seen.append(f"-{name}")

    async def all_parts() -> None:
        lock = ReadWriteLock(10)
        parts = [("r1", True), ("r2", True), ("w1", False), ("r3", True), ("w2", False)]
        tasks = [asyncio.ensure_future(part(lock, name, shared=shared)) for name, shared in parts]
        for task in tasks:
            await task

    run(all_parts())
    assert seen == ["+r1", "+r2", "-r1", "-r2", "+w1", "-w1", "+r3", "-r3", "+w2", "-w2"]


def test_a_cancelled_waiter_does_not_keep_others_waiting() -> None:
    async def story() -> str:
        lock = ReadWriteLock(10)

        async def wait(*, shared: bool) -> None:
            async with lock.hold(shared=shared):
                pass

        async with lock.hold(shared=True):
            writer = asyncio.ensure_future(wait(shared=False))
            await asyncio.sleep(0)
            reader = asyncio.ensure_future(wait(shared=True))
            await asyncio.sleep(0)
            writer.cancel()
            await asyncio.wait_for(reader, 1)
        async with lock.hold(shared=False):
            return "free"

    assert run(story()) == "free"


def test_the_number_of_waiters_is_limited() -> None:
    async def story() -> None:
        lock = ReadWriteLock(0)
        async with lock.hold(shared=False):
            with pytest.raises(LimitExceeded):
                async with lock.hold(shared=True):
                    pass

    run(story())


def test_the_service_follows_hosts_reservations_and_pipelines() -> None:
    async def story() -> None:
        placement = service()
        general = next(p for p in shipped_pipelines() if p.name == "kvm-general-purpose-load-balancing")
        with pytest.raises(UnknownPipeline):
            await placement.rank(request())
        placement.on_pipeline(None, general)
        placement.on_hypervisor(None, host("a"))
        placement.on_hypervisor(None, host("b"))
        placement.on_reservation(None, slot("s", on="b", cpu="15"))
        assert (await placement.rank(request())).hosts == ("a",)
        placement.on_reservation(slot("s", on="b"), None)
        placement.on_hypervisor(host("a"), None)
        assert (await placement.rank(request())).hosts == ("b",)
        placement.on_pipeline(general, None)
        with pytest.raises(UnknownPipeline):
            await placement.rank(request())

    run(story())


def test_capacity_says_how_often_a_request_fits_and_what_holds_the_rest() -> None:
    async def story() -> None:
        placement = service()
        placement.on_hypervisor(None, host("a"))
        placement.on_reservation(None, slot("s", on="a"))
        (row,) = (await placement.capacity(request())).hosts
        assert (row.fits, [held.verdict for held in row.held]) == (3, ["blocks"])

    run(story())


def test_how_often_a_request_fits_is_counted_in_the_megabytes_of_the_filter() -> None:
    async def fits(settings: PlacementSettings) -> int:
        placement = service(settings=settings)
        placement.on_hypervisor(None, host("a", effectiveCapacity={"cpu": "64", "memory": "62Gi"}))
        (row,) = (await placement.capacity(request())).hosts
        return row.fits

    assert run(fits(PlacementSettings())) == 3
    assert run(fits(PlacementSettings(flavor_memory_unit="mb"))) == 4


def test_runs_are_counted_by_pipeline_and_step() -> None:
    metrics = Metrics()

    async def story() -> None:
        placement = service(metrics, PlacementSettings(metrics_detail_every=1))
        for pipeline in shipped_pipelines():
            placement.on_pipeline(None, pipeline)
        placement.on_hypervisor(None, host("a"))
        placement.on_hypervisor(None, host("b", zone="z2", allocation={"cpu": "8", "memory": "32Gi"}))
        await placement.rank(request(zone="z1"))
        await placement.rank(
            replace(request(), extra_specs={**request().extra_specs, "quota:hw_version": "g"}, zone="")
        )
        nowhere = request(zone="z9", extraSpecs={"capabilities:hypervisor_type": "QEMU", "quota:hw_version": "g"})
        await placement.rank(replace(nowhere, pipeline="kvm-report-capacity"))
        await placement.rank(replace(nowhere, pipeline="kvm-report-capacity", options=SILENT))

    run(story())
    text = metrics.render().decode()
    pipeline = 'pipeline="kvm-general-purpose-load-balancing"'
    for line in (
        'outlive_nova_placement_total{cr_slot="no_cr",flavor_group="g",intent="unknown"} 1.0',
        'outlive_nova_no_host_found_total{cr_slot="no_cr",flavor_group="g",intent="unknown"} 1.0',
        f"outlive_filter_weigher_pipeline_requests_total{{{pipeline}}} 2.0",
        f"outlive_filter_weigher_pipeline_host_number_in_sum{{{pipeline}}} 4.0",
        f"outlive_filter_weigher_pipeline_host_number_out_sum{{{pipeline}}} 3.0",
        f'outlive_filter_weigher_pipeline_step_removed_hosts_sum{{{pipeline},step="filter_correct_az"}} 1.0',
        f'event="image_properties_hv_type_undetermined",intent="unknown",{pipeline},step="filter_image',
        'decision="accept_skipped_missing_data"',
        f'outlive_filter_weigher_pipeline_step_shift_origin_count{{outidx="1",{pipeline},step="kvm_binpack"}} 1.0',
        f'outlive_filter_weigher_pipeline_step_weight_modification{{{pipeline},step="kvm_binpack"}}',
        "outlive_filter_weigher_pipeline_step_impact_count{",
    ):
        assert line in text, line
