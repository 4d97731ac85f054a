"""VMs of a project are charged to its commitments, and what they use is counted, in a running cloud."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.dying import Watched
from tests.support.loops import run_by
from tests.support.sales import GIB, SETTINGS, ZONE, Market, host, hosting, in_market, vm

from outlive.base import Invalid, Unavailable
from outlive.placement import VmList, VmView
from outlive.resources import Instance, ObjectMeta, ProjectQuota, ProjectQuotaSpec
from outlive.store import MemoryStore

RAM, CORES, VMS = "hw_version_g_ram", "hw_version_g_cores", "hw_version_g_instances"


def limit(name: str = "p1", **quota: int) -> ProjectQuota:
    return ProjectQuota(
        metadata=ObjectMeta(name=f"quota-{name}-{ZONE}"),
        spec=ProjectQuotaSpec(
            project_id=name, availability_zone=ZONE, quota={f"hw_version_g_{k}": v for k, v in quota.items()}
        ),
    )


@run_by(in_market, hosting("h1", *(vm(f"v{number}", "h1") for number in range(3))))
async def test_vms_are_charged_to_commitments_as_soon_as_these_are_accepted(market: Market) -> None:
    await market.sell("aaaaaa", 2, then_s=2)
    status = (await market.commitments())["aaaaaa"].status
    assert status.assigned_instances == ("v0", "v1")
    assert status.used_resources is not None
    assert (status.used_resources.memory_bytes, status.used_resources.cpu_milli) == (16 * GIB, 4000)
    assert status.status_summary == "Accepted · 2 VMs · no expiry"
    assert market.metrics("committed_resource_usage_assigned_vms_total{") == [
        'committed_resource_usage_assigned_vms_total{project_id="p1"} 2.0'
    ]


@run_by(in_market, [host("h1")])
async def test_a_vm_that_starts_later_is_charged_after_the_cooldown_and_leaves_with_the_vm(market: Market) -> None:
    await market.sell("aaaaaa", 2, then_s=2)
    await market.start(vm("late", "h1"))
    await asyncio.sleep(200)
    assert (await market.commitments())["aaaaaa"].status.assigned_instances == ()
    await asyncio.sleep(120)
    assert (await market.commitments())["aaaaaa"].status.assigned_instances == ("late",)
    await market.end("late")
    await asyncio.sleep(301)
    assert (await market.commitments())["aaaaaa"].status.assigned_instances == ()


@run_by(in_market, hosting("h1", *(vm(f"v{number}", "h1") for number in range(3))))
async def test_a_quota_says_what_is_used_and_what_no_commitment_covers(market: Market) -> None:
    await market.store.create(limit(ram=100, cores=50, instances=-1))
    await asyncio.sleep(2)
    status = (await market.quota()).status
    assert status.total_usage == status.payg_usage == {RAM: 24, CORES: 6, VMS: 3}
    assert status.observed_generation == 1
    await market.sell("aaaaaa", 2, then_s=5)
    status = (await market.quota()).status
    assert status.total_usage == {RAM: 24, CORES: 6, VMS: 3}
    assert status.payg_usage == {RAM: 8, CORES: 2, VMS: 3}
    assert status.payg_usage_summary == "g: c=2 i=3 r=8"
    assert status.limes_quota_summary == "g: c=50 i=-1 r=12"
    label = f'availability_zone="{ZONE}",project_id="p1",resource="{RAM}"'
    assert market.metrics("quota_cr_usage{" + label) == [f"quota_cr_usage{{{label}}} 16.0"]


@run_by(in_market, [host("h1"), limit(ram=100, instances=5)])
async def test_usage_follows_vms_that_start_and_go_between_two_counts(market: Market) -> None:
    await market.start(vm("v1", "h1"))
    await asyncio.sleep(1)
    assert (await market.quota()).status.total_usage[VMS] == 1
    await market.end("v1")
    await asyncio.sleep(1)
    assert (await market.quota()).status.total_usage == {RAM: 0, VMS: 0}


class Database:
    """A VM source whose listing is old."""

    def __init__(self) -> None:
        self.listed: dict[str, VmView] = {}
        self.now: dict[str, VmView] = {}

    def add(self, name: str) -> None:
        self.now[name] = VmView(
            id=name, host="h1", zone=ZONE, project="p1", flavor="m8", cpu_milli=2000, memory_bytes=8 * GIB
        )

    async def list_vms(self) -> VmList:
        return VmList(vms=tuple(self.listed.values()))

    async def get_vm(self, vm_id: str) -> VmView | None:
        return self.now.get(vm_id)


def test_a_host_that_reports_a_vm_has_its_source_asked_at_once() -> None:
    database = Database()

    async def reports(market: Market, *vms: str) -> None:
        found = market.role.informers.hypervisors.get("h1")
        assert found is not None
        status = replace(found.status, instances=tuple(Instance(id=one) for one in vms))
        await market.store.replace_status(replace(found, status=status))
        await asyncio.sleep(1)

    async def story(market: Market) -> None:
        await asyncio.sleep(5)
        assert (await market.quota()).status.total_usage == {RAM: 0}
        database.add("v1")
        await reports(market, "v1")
        assert (await market.quota()).status.total_usage[VMS] == 1
        await reports(market)
        assert (await market.quota()).status.total_usage[VMS] == 1  # it is somewhere else now, not gone
        await reports(market, "v1")
        database.now.clear()
        await reports(market)
        assert (await market.quota()).status.total_usage == {RAM: 0}

    in_market([host("h1"), limit(ram=100)], story, source=database)


def test_a_source_of_vms_that_is_away_is_asked_again_and_keeps_the_process_ready() -> None:
    class Away(Database):
        tries = 0

        async def list_vms(self) -> VmList:
            self.tries += 1
            if self.tries <= 10:
                raise Unavailable("away")
            return await super().list_vms()

    database = Away()

    async def story(market: Market) -> None:
        await asyncio.sleep(50)
        assert market.role.explain_unready() == ""
        assert (await market.quota()).status.last_full_reconcile_at is None
        await asyncio.sleep(500)
        assert (await market.quota()).status.last_full_reconcile_at is not None

    in_market([host("h1"), limit(ram=100)], story, source=database)


@pytest.mark.slow
def test_without_a_list_of_vms_nothing_is_counted() -> None:
    class Silent(Database):
        async def list_vms(self) -> VmList:
            await asyncio.Event().wait()
            raise AssertionError

    async def story(market: Market) -> None:
        await asyncio.sleep(60)
        assert (await market.quota()).status.last_full_reconcile_at is None
        assert any('result="error"' in line for line in market.metrics("quota_reconcile_total{"))

    in_market([host("h1"), limit(ram=100)], story, source=Silent(), settings=SETTINGS)


def test_a_quota_that_the_store_refuses_keeps_no_other_from_being_written() -> None:
    async def refuses(call: str, obj: object) -> None:
        if call == "replace_status" and isinstance(obj, ProjectQuota):
            if obj.name == limit("p1").name:
                raise Invalid("the store refuses this one")
            await asyncio.sleep(0.02)  # the refusal comes first

    def watched(store: MemoryStore) -> Watched:
        made = Watched(store)
        made.before = refuses
        return made

    async def story(market: Market) -> None:
        await asyncio.sleep(60)
        found = {one.spec.project_id: one.status for one in (await market.store.list(ProjectQuota)).items}
        assert found["p1"].last_full_reconcile_at is None
        assert found["p2"].last_full_reconcile_at is not None

    in_market([host("h1"), limit("p1", ram=12), limit("p2", ram=12)], story, wrap=watched)
