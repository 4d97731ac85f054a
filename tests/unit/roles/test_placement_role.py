"""Placement in the role of ``outlive up``: what follows from Nova's call, until the VM is seen."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.unit.placement.test_descheduling import steal
from tests.unit.roles.test_up import SETTINGS, lived

from outlive.placement import (
    FLAVOR_GROUPS,
    NEVER,
    OvercommitMapping,
    PlacementRequest,
    encode_request,
    history,
    version_of,
)
from outlive.resources import (
    IN_FLIGHT,
    Amounts,
    Descheduling,
    Hypervisor,
    Instance,
    Knowledge,
    ObjectMeta,
    Parameter,
    Pipeline,
    PipelineSpec,
    PlacementHistory,
    Reservation,
    StepSpec,
)
from outlive.roles import UpRole
from outlive.store import MemoryStore, list_all

ASKED = PlacementRequest(
    resource_id="new",
    project="p",
    need=Amounts(cpu=4000, memory=8 * 2**30),
    extra_specs={"capabilities:hypervisor_type": "QEMU"},
    hosts=("h00", "h01", "h02", "h03"),
    pipeline="kvm-general-purpose-load-balancing",
)


async def in_flight(store: MemoryStore) -> list[str]:
    return [one.spec.target_host async for one in list_all(store, Reservation) if one.spec.type == IN_FLIGHT]


@pytest.mark.slow
@run_by(lived, 11)
async def test_room_and_history_follow_novas_call_and_the_room_goes_when_the_vm_is_seen(
    store: MemoryStore, made: UpRole
) -> None:
    await asyncio.sleep(60)
    answer = await made.placement.answer_external(encode_request(ASKED))
    hosts = json.loads(answer.body)["hosts"]
    await asyncio.sleep(5)
    assert sorted(await in_flight(store)) == sorted(hosts[:3])
    kept = await store.get(PlacementHistory, "nova-new")
    assert kept.status.current is not None
    assert kept.status.current.target_host == hosts[0]
    host = await store.get(Hypervisor, hosts[1])
    seen = (*host.status.instances, Instance(id="new"))
    await store.replace_status(replace(host, status=replace(host.status, instances=seen)))
    await asyncio.sleep(5)
    assert await in_flight(store) == []
    assert made.explain_unready() == ""


@pytest.mark.slow
def test_what_was_not_seen_ends_and_its_history_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "GRACE_S", 1_200.0)  # a whole day of the role takes long
    monkeypatch.setattr(history, "CLEANUP_S", 300.0)

    async def story(store: MemoryStore, made: UpRole) -> None:
        await asyncio.sleep(60)
        await made.placement.answer_external(encode_request(ASKED))
        await asyncio.sleep(605)
        assert await in_flight(store) == []
        assert [one.name async for one in list_all(store, PlacementHistory)] == ["nova-new"]
        await asyncio.sleep(2_000)
        assert [one async for one in list_all(store, PlacementHistory)] == []

    lived(12, story)


@pytest.mark.slow
@run_by(lived, 13)
async def test_flavor_groups_have_a_version_and_detectors_find_by_records(store: MemoryStore, made: UpRole) -> None:
    await store.create(steal(("v00", "h00", 50.0), ("of-nova", "h01", 50.0)))
    await asyncio.sleep(180)
    assert version_of(await store.get(Knowledge, FLAVOR_GROUPS)) == NEVER
    found = {one.spec.ref: one async for one in list_all(store, Descheduling)}
    reasons = {name: one.status.conditions[0].reason for name, one in found.items()}
    assert reasons == dict.fromkeys(("v00", "of-nova"), "UnsupportedRefType")  # nobody here moves servers of Nova


def test_overcommit_is_set_where_it_is_configured() -> None:
    mapping = OvercommitMapping(overcommit={"cpu": 4.0}, hasnt_trait="CUSTOM_HANA")
    settings = replace(SETTINGS, scheduler=replace(SETTINGS.scheduler, overcommit_mappings=(mapping,)))

    async def story(store: MemoryStore, made: UpRole) -> None:
        await asyncio.sleep(30)
        assert {tuple(one.spec.overcommit.items()) async for one in list_all(store, Hypervisor)} == {(("cpu", 4.0),)}

    lived(14, story, settings)


@run_by(lived, 14)
async def test_a_pipeline_that_cannot_be_used_is_seen_in_the_metrics(store: MemoryStore, made: UpRole) -> None:
    wrong = StepSpec(name="filter_correct_az", params=(Parameter(key="unknown", bool_value=True),))
    await store.create(Pipeline(metadata=ObjectMeta(name="broken"), spec=PipelineSpec(filters=(wrong,))))
    await asyncio.sleep(5)
    lines = made.metrics.render().decode().splitlines()
    unready = [line for line in lines if line.startswith("outlive_pipeline_ready{") and line.endswith(" 0.0")]
    assert unready == ['outlive_pipeline_ready{pipeline="broken"} 0.0']
