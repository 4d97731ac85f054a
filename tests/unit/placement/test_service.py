"""The service: the lock, the informers' callbacks, and what it counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.loops import run
from tests.support.placement import host, request, slot

from outlive.base import LoopClock, Random
from outlive.placement import (
    SILENT,
    Fleet,
    PipelineTable,
    PlacementService,
    PlacementSettings,
    UnknownPipeline,
    shipped_pipelines,
)
from outlive.runtime import Metrics


def service(metrics: Metrics | None = None, settings: PlacementSettings | None = None) -> PlacementService:
    return PlacementService(Fleet(settings), PipelineTable(), clock=LoopClock(), random=Random(0), metrics=metrics)


async def test_the_service_follows_hosts_reservations_and_pipelines() -> None:
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
