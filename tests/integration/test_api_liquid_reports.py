"""Reports of capacity and usage over HTTP, and pushes of quota."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from tests.support.liquid import capacity
from tests.support.liquid_calls import CAPACITY, QUOTA, USAGE, Limes, claimed, limes
from tests.support.loops import run_by

from outlive.base import OutliveError, SystemClock, SystemIds
from outlive.placement import VmView
from outlive.resources import Event, ObjectMeta, ProjectQuota, ProjectQuotaSpec
from outlive.store import MemoryStore, list_all

# -- reports ------------------------------------------------------------------------------------------------


def test_capacity_is_reported_and_shown_as_a_metric() -> None:
    known = capacity("s4", "a", running={"s4_c15_m240": 3}, exclusively_free_slots=2)

    async def claim(caller: Limes) -> None:
        version = await caller.version()
        status, answer, _ = await caller.call("POST", CAPACITY, {"allAZs": ["a"], "demandByResource": {"x": 1}})
        assert (status, answer["infoVersion"]) == (200, version)
        assert answer["resources"]["hw_version_s4_ram"] == {"perAZ": {"a": {"capacity": 5, "usage": 3}}}
        shown = caller.sample("reported_capacity")
        assert (
            'outlive_committed_resource_reported_capacity{az="a",resource="hw_version_s4_ram",unit_size="240"} 5.0'
            in shown
        )
        assert (
            'outlive_committed_resource_reported_capacity{az="a",resource="hw_version_s4_cores",unit_size="1"} 0.0'
            in shown
        )

    claimed(claim, capacities=(known,))


@run_by(claimed, capacities=(capacity("s4", "a", ready=False),))
async def test_a_capacity_that_is_not_up_to_date_is_a_503(caller: Limes) -> None:
    assert (await caller.call("POST", CAPACITY, {"allAZs": ["a"]}))[:2] == (
        503,
        "Failed to calculate capacity: the capacity of flavor group s4 in a is not up to date\n",
    )
    assert (await caller.call("POST", CAPACITY, {"allAZs": ["b"]}))[0] == 200


def test_usage_is_that_of_the_project_in_the_path_and_a_vm_is_where_its_host_is() -> None:
    def vm(name: str, project: str) -> VmView:
        return VmView(
            id=name, host="a.kvm-1", project=project, flavor="s4_c15_m240", cpu_milli=15_000, memory_bytes=240 * 2**30
        )

    async def claim(caller: Limes) -> None:
        status, answer, _ = await caller.call("POST", USAGE, {"allAZs": ["a"]})
        zone = answer["resources"]["hw_version_s4_instances"]["perAZ"]["a"]
        assert (status, zone["usage"], zone["subresources"][0]["id"]) == (200, 1, "1")

    claimed(claim, vms=(vm("1", "p1"), vm("2", "p2")))


# -- quota --------------------------------------------------------------------------------------------------


async def quotas(store: Any) -> dict[str, ProjectQuotaSpec]:
    return {one.name: one.spec async for one in list_all(store, ProjectQuota)}


def push(zones: dict[str, int], **metadata: Any) -> dict[str, Any]:
    per_zone = {zone: {"quota": amount} for zone, amount in zones.items()}
    return {"resources": {"hw_version_s4_ram": {"quota": 1, "perAZ": per_zone}}, "projectMetadata": metadata}


def test_a_push_replaces_all_quota_of_its_project_and_of_no_other() -> None:
    other = ProjectQuota(
        metadata=ObjectMeta(name="quota-p2-a"), spec=ProjectQuotaSpec(project_id="p2", availability_zone="a")
    )

    async def claim(caller: Limes) -> None:
        named = {"uuid": "p1", "name": "quay", "domain": {"uuid": "d1", "name": "port"}}
        assert (await caller.call("PUT", QUOTA, push({"a": 1, "b": 2}, **named)))[:2] == (204, "")
        assert (await caller.call("PUT", QUOTA, push({"b": 3, "c": 4}, uuid="p1")))[0] == 204
        found = await quotas(caller.world.store)
        assert sorted(found) == ["quota-p1-b", "quota-p1-c", "quota-p2-a"]
        kept = found["quota-p1-b"]
        assert (kept.project_name, kept.domain_id, kept.domain_name) == ("quay", "d1", "port")
        assert kept.quota == {"hw_version_s4_ram": 720}
        assert found["quota-p1-c"].project_name == ""
        assert (await caller.call("PUT", QUOTA, {}))[0] == 204
        assert sorted(await quotas(caller.world.store)) == ["quota-p2-a"]
        await caller.world.events.flush()
        events = [event async for event in list_all(caller.world.store, Event)]
        assert {event.reason for event in events} == {"QuotaSet"}
        assert len(events) == 3

    claimed(claim, quotas=(other,))


@run_by(claimed)
async def test_the_same_push_again_writes_nothing(caller: Limes) -> None:
    for _ in range(2):
        await caller.call("PUT", QUOTA, push({"a": 1}))
        versions = [one.metadata.resource_version async for one in list_all(caller.world.store, ProjectQuota)]
    assert versions == [one.metadata.resource_version async for one in list_all(caller.world.store, ProjectQuota)]
    await caller.world.events.flush()
    assert len([event async for event in list_all(caller.world.store, Event)]) == 1


@run_by(claimed)
async def test_pushes_at_once_leave_one_of_them(caller: Limes) -> None:
    pushes = [{"a": 1, "b": 1}, {"b": 2, "c": 2}, {"d": 3}]
    await asyncio.gather(*(caller.call("PUT", QUOTA, push(zones)) for zones in pushes * 3))
    found = await quotas(caller.world.store)
    kept = {one.availability_zone: one.quota["hw_version_s4_ram"] // 240 for one in found.values()}
    assert kept in pushes


class NoZoneB(MemoryStore):
    """A store that refuses one object."""

    async def create(self, obj: Any) -> Any:
        if isinstance(obj, ProjectQuota) and obj.spec.availability_zone == "b":
            raise OutliveError("hunter2")
        return await super().create(obj)


async def test_a_push_that_fails_midway_says_where_and_keeps_what_is_written() -> None:
    store: Any = NoZoneB(SystemClock(), SystemIds())
    async with limes(store=store) as caller:
        status, text, _ = await caller.call("PUT", QUOTA, push({"a": 1, "b": 1, "c": 1}))
        assert (status, text) == (500, "Failed to persist quota for AZ b: internal error (error)\n")
        assert sorted(await quotas(store)) == ["quota-p1-a"]
        await caller.world.events.flush()
        (event,) = [event async for event in list_all(store, Event)]
        assert event.reason == "QuotaNotSet"
        assert event.note.endswith(": Failed to persist quota for AZ b: internal error (error); written are a")


@run_by(claimed)
async def test_a_push_is_logged_with_what_was_there_before(caller: Limes) -> None:
    await caller.call("PUT", QUOTA, push({"a": 1, "b": 2}))
    with structlog.testing.capture_logs() as entries:
        await caller.call("PUT", QUOTA, push({"b": 3}))
    (entry,) = [one for one in entries if one["event"] == "quota.push"]
    assert entry["by"] == "liquid-of-tests"
    assert entry["before"] == {"a": {"hw_version_s4_ram": 240}, "b": {"hw_version_s4_ram": 480}}
    assert entry["quota"] == {"b": {"hw_version_s4_ram": 720}}
