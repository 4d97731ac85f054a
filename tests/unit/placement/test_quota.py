"""The quota filter: who may still place what, counted always and enforced where the pipeline says so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.loops import run
from tests.support.placement import fleet_of, host, request

from outlive.base import LoopClock, Random, SeededIds
from outlive.placement import (
    Engine,
    Fleet,
    InFlightWriter,
    PipelineTable,
    PlacementService,
    PlacementSettings,
    QuotaCommitment,
    QuotaDemand,
    Quotas,
    Ranking,
    VmSize,
    balance_of,
    decide_quota,
    room_for,
)
from outlive.resources import (
    Amounts,
    CommittedResource,
    CommittedResourceSpec,
    CommittedResourceStatus,
    ObjectMeta,
    Parameter,
    Pipeline,
    PipelineSpec,
    ProjectQuota,
    ProjectQuotaSpec,
    ProjectQuotaStatus,
    StepSpec,
)
from outlive.runtime import Metrics
from outlive.store import MemoryStore

GIB = 2**30
NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
FILTER = "filter_quota_enforcement"


def commitment(name: str = "c", gib: int = 64, *, used_gib: int = 0, **spec: Any) -> CommittedResource:
    """An active one of project p for group g in zone z1."""
    fields: dict[str, Any] = {
        "commitment_uuid": name, "flavor_group_name": "g", "resource_type": "memory", "amount": f"{gib}Gi",
        "availability_zone": "z1", "project_id": "p", "state": "confirmed", **spec,
    }  # fmt: skip
    used = Amounts(memory=used_gib * GIB)
    return CommittedResource(
        metadata=ObjectMeta(name=f"commitment-{name}"),
        spec=CommittedResourceSpec(**fields),
        status=CommittedResourceStatus(used_resources=used),
    )


def quota(used: dict[str, int] | None = None, **limits: int) -> ProjectQuota:
    """Of project p in zone z1, and what it pays as it goes, by kind."""
    return ProjectQuota(
        metadata=ObjectMeta(name="quota-p-z1"),
        spec=ProjectQuotaSpec(project_id="p", availability_zone="z1", quota=_named(limits)),
        status=ProjectQuotaStatus(payg_usage=_named(used or {})),
    )


def _named(amounts: dict[str, int]) -> dict[str, int]:
    return {f"hw_version_g_{kind}": amount for kind, amount in amounts.items()}


def pipelines(*, enforce: bool) -> PipelineTable:
    table = PipelineTable()
    step = StepSpec(name=FILTER, params=(Parameter(key="enforce", bool_value=enforce),))
    table.put(Pipeline(metadata=ObjectMeta(name="p"), spec=PipelineSpec(filters=(step,))))
    return table


def fleet(*objects: CommittedResource | ProjectQuota) -> Fleet:
    made = fleet_of(host("a"), host("b"))
    for one in objects:
        if isinstance(one, CommittedResource):
            made.quotas.upsert_commitment(one)
        else:
            made.quotas.upsert_quota(one)
    return made


def asked(**fields: Any) -> Any:
    """A VM of 4 cores and 16 GiB of project p and group g in zone z1."""
    return request(**{"zone": "z1", "extraSpecs": {"quota:hw_version": "g"}, "pipeline": "p", **fields})


def ranked(world: Fleet, *, enforce: bool = True, **fields: Any) -> Ranking:
    return Engine(world, pipelines(enforce=enforce), now=NOW.timestamp()).rank(asked(**fields), why=True)


def decided(*objects: CommittedResource | ProjectQuota, enforce: bool = True, **fields: Any) -> tuple[str, str, int]:
    """Decision, resource, and how many hosts are left."""
    ranking = ranked(fleet(*objects), enforce=enforce, **fields)
    (event,) = ranking.traces[0].events
    labels = dict(event.labels)
    assert labels["mode"] == ("enforce" if enforce else "shadow")
    return labels["decision"], labels["resource"], len(ranking)


@pytest.mark.parametrize(
    ("objects", "decision", "resource"),
    [
        ((), "accept_no_quota", ""),
        ((commitment(gib=16),), "accept_cr", "ram"),
        ((commitment(gib=16), quota(ram=0, cores=0, instances=0)), "accept_cr", "ram"),
        ((commitment(gib=15), quota(ram=15 + 16)), "accept_payg", ""),
        ((commitment(gib=15), quota(ram=15 + 15)), "reject", "ram"),
        ((commitment(gib=32, used_gib=17), quota(ram=100)), "accept_payg", ""),
        ((commitment("c", 8), commitment("d", 8), quota(ram=20)), "reject", "ram"),
        ((quota(ram=16, cores=4, instances=1),), "accept_payg", ""),
        ((quota({"ram": 1, "cores": 2, "instances": 1}, ram=17, cores=6, instances=2),), "accept_payg", ""),
        ((quota({"cores": 3}, ram=17, cores=6, instances=2),), "reject", "cores"),
        ((quota(ram=-1, cores=3),), "reject", "cores"),
        ((quota(instances=0),), "reject", "instances"),
        ((quota(),), "accept_payg", ""),
        ((commitment(state="pending"), quota(ram=0)), "reject", "ram"),
        ((commitment(resource_type="cores", amount="64"), quota(ram=0)), "reject", "ram"),
        ((commitment(start_time=NOW.replace(hour=13)), quota(ram=0)), "reject", "ram"),
        ((commitment(end_time=NOW), quota(ram=0)), "reject", "ram"),
        ((commitment(start_time=NOW, end_time=NOW.replace(hour=13)), quota(ram=0)), "accept_cr", "ram"),
        ((commitment(project_id="q"), commitment("d", availability_zone="z2"),
          commitment("e", flavor_group_name="h"), quota(ram=0)), "reject", "ram"),
    ],
)  # fmt: skip
def test_commitments_come_before_quota(objects: Any, decision: str, resource: str) -> None:
    assert decided(*objects) == (decision, resource, 0 if decision == "reject" else 2)
    assert decided(*objects, enforce=False) == (decision, resource, 2)


def test_the_accepted_spec_counts() -> None:
    grows = commitment(gib=64)
    accepted = replace(grows.status, accepted_spec=replace(grows.spec, amount="8Gi"))
    assert decided(replace(grows, status=accepted), quota(ram=0))[0] == "reject"


@pytest.mark.parametrize(
    "over", [{"state": "superseded"}, {"state": "expired"}, {"state": "planned"}, {"end_time": NOW}]
)
def test_what_was_accepted_of_a_commitment_that_is_over_counts_no_more(over: dict[str, Any]) -> None:
    active = commitment(gib=64)
    status = replace(active.status, accepted_spec=active.spec)
    assert decided(replace(active, status=status), quota(ram=0))[0] == "accept_cr"
    gone = replace(active, spec=replace(active.spec, **over), status=status)
    assert decided(gone, quota(ram=0))[0] == "reject"
    assert decided(gone, quota(ram=16))[0] == "accept_payg"


@pytest.mark.parametrize(
    ("fields", "decision"),
    [
        ({"intent": "evacuate"}, "accept_skipped_intent_migration"),
        ({"intent": "live_migration"}, "accept_skipped_intent_migration"),
        ({"intent": "reserve_for_failover"}, "accept_skipped_intent_internal"),
        ({"intent": "reserve_for_committed_resource"}, "accept_skipped_intent_internal"),
        ({"intent": "capacity_probe"}, "accept_skipped"),
        ({"project": ""}, "accept_skipped_missing_data"),
        ({"zone": ""}, "accept_skipped_missing_data"),
        ({"extraSpecs": {}}, "accept_skipped_missing_data"),
        ({"intent": "create"}, "reject"),
        ({"intent": "resize"}, "reject"),
    ],
)
def test_only_what_is_charged_is_checked(fields: dict[str, Any], decision: str) -> None:
    assert decided(quota(ram=0), **fields)[0] == decision


def test_all_instances_count_together() -> None:
    assert decided(quota(ram=47), numInstances=3)[:2] == ("reject", "ram")
    assert decided(quota(ram=48, cores=12, instances=3), numInstances=3)[0] == "accept_payg"


def test_a_refusal_says_what_is_left() -> None:
    refused = ranked(fleet(quota(ram=10)))
    assert refused.rejected["a"].code == "quota-exceeded"
    assert refused.rejected["a"].message == (
        "project p in zone z1, flavor group g: needs 16 GiB of RAM and has 10 left of its quota"
    )


def test_a_resize_is_charged_what_it_grows_by() -> None:
    world = fleet(quota(ram=8, cores=2, instances=0))
    for resources, hosts in ((Amounts(cpu=2000, memory=8 * GIB), 2), (Amounts(cpu=2000, memory=7 * GIB), 0)):
        size = VmSize(group="g", resources=resources)
        world.quotas.size_of = lambda vm, size=size: size if vm == "vm-1" else None  # type: ignore[misc]
        assert len(ranked(world, intent="resize")) == hosts
    world.quotas.size_of = lambda _vm: VmSize(group="other", resources=Amounts(cpu=64_000, memory=512 * GIB))
    assert len(ranked(world, intent="resize")) == 0
    world.quotas.size_of = lambda _vm: VmSize(group="g", resources=Amounts(cpu=64_000, memory=512 * GIB))
    assert len(ranked(world, intent="resize")) == 2


def test_what_is_gone_counts_no_more() -> None:
    world = fleet(commitment(), quota(ram=0))
    world.quotas.remove_commitment("commitment-c")
    assert len(ranked(world)) == 0
    world.quotas.remove_quota("quota-p-z1")
    world.quotas.remove_quota("quota-p-z1")
    assert len(ranked(world)) == 2


def test_requests_side_by_side_do_not_both_get_the_last_of_a_quota() -> None:
    metrics = Metrics()

    async def story() -> None:
        clock, world = LoopClock(), fleet(commitment(gib=16), quota(ram=16 + 16, cores=4, instances=1))
        service = PlacementService(world, pipelines(enforce=True), clock=clock, random=Random(0), metrics=metrics)
        service.in_flight = InFlightWriter(MemoryStore(clock, SeededIds(Random(0))), world, lambda _: None, clock=clock)
        found = [len(await service.rank(asked(resourceId=f"vm-{number}"))) for number in range(3)]
        assert found == [2, 2, 0]
        assert len(await service.rank(asked(resourceId="vm-1"))) == 2
        for name in [one.name for one in world.list_reservations()]:
            world.remove_reservation(name)
        assert len(await service.rank(asked(resourceId="vm-3"))) == 2

    run(story())
    text = metrics.render().decode()
    labels = 'availability_zone="z1",decision="{}",flavor_group="g",mode="enforce",resource="{}"'
    for decision, resource, count in (("accept_cr", "ram", 2), ("accept_payg", "", 2), ("reject", "ram", 1)):
        name = "outlive_nova_filter_quota_enforcement_decisions_total"
        assert f"{name}{{{labels.format(decision, resource)}}} {count}.0" in text


SMALL = st.integers(0, 8)
DEMANDS = st.builds(QuotaDemand, ram=SMALL, cores=SMALL, instances=st.integers(0, 2))


@given(
    st.lists(st.builds(QuotaCommitment, amount=SMALL, used=SMALL), max_size=3),
    st.none() | st.dictionaries(st.sampled_from(["ram", "cores", "instances"]), st.integers(-1, 20)),
    st.dictionaries(st.sampled_from(["ram", "cores", "instances"]), SMALL),
    DEMANDS,
)
def test_without_vms_on_their_way_the_rule_is_as_written(
    promises: list[QuotaCommitment], limits: dict[str, int] | None, used: dict[str, int], demand: QuotaDemand
) -> None:
    found = decide_quota(balance_of(promises, limits, used, ()), demand)
    if demand.ram and any(one.amount - one.used >= demand.ram for one in promises):
        assert found.decision == "accept_cr"
    elif limits is None:
        assert found.decision == "accept_no_quota"
    else:
        deducted = {"ram": sum(one.amount for one in promises)}
        short = [
            kind
            for kind in ("ram", "cores", "instances")
            if limits.get(kind, -1) >= 0
            and demand.amount_of(kind)
            and limits[kind] - deducted.get(kind, 0) - used.get(kind, 0) < demand.amount_of(kind)
        ]
        assert (found.decision, found.resource) == (("reject", short[0]) if short else ("accept_payg", ""))


@given(st.lists(DEMANDS, max_size=4), DEMANDS, st.integers(0, 20))
def test_vms_on_their_way_that_no_commitment_takes_count_as_used(
    pending: list[QuotaDemand], demand: QuotaDemand, limit: int
) -> None:
    limits = dict.fromkeys(("ram", "cores", "instances"), limit)
    used = {kind: sum(vm.amount_of(kind) for vm in pending) for kind in limits}
    assert decide_quota(balance_of((), limits, {}, pending), demand) == decide_quota(
        balance_of((), limits, used, ()), demand
    )


def test_vms_on_their_way_take_the_smallest_commitment_that_has_room() -> None:
    promises = [QuotaCommitment(amount=16), QuotaCommitment(amount=8, used=2), QuotaCommitment(amount=4, used=5)]
    vms = [
        QuotaDemand(ram=6, cores=1, instances=1),
        QuotaDemand(ram=10, cores=1, instances=1),
        QuotaDemand(ram=7, cores=2),
    ]
    found = balance_of(promises, None, {"ram": 1}, vms)
    assert (found.free, found.committed) == ([0, 0, 6], 28)
    assert found.used == {"ram": 8, "cores": 2, "instances": 0}


KINDS = st.sampled_from(["commitment", "quota", "room"])
EVENTS = st.tuples(KINDS, st.integers(0, 2), st.integers(1, 40), st.booleans(), st.integers(0, 3))


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=16))
def test_a_kept_balance_is_that_of_a_fresh_index(events: list[tuple[str, int, int, bool, int]]) -> None:
    kept = Quotas()
    others: dict[str, CommittedResource | ProjectQuota] = {}
    rooms: dict[str, tuple[str, int]] = {}
    order: list[str] = []
    sizes: dict[str, int] = {}
    for hour, (kind, number, size, gone, vm) in enumerate(events):
        if kind == "room":
            name, owner = f"room-{number}", f"vm-{vm}"
            fields = {"resourceId": owner, "need": {"cpu": "1", "memory": f"{size}Gi"}}
            (made,) = room_for(asked(**fields), ["h"], group="g", until=NOW)
            (kept.release(name) if gone else kept.hold(replace(made, metadata=ObjectMeta(name=name))))
            rooms.pop(name, None)
            if not gone:
                rooms[name] = (owner, size)
                sizes[owner] = size
                order += [owner] if owner not in order else []
            order = [one for one in order if any(one == mine for mine, _ in rooms.values())]
        else:
            begins = NOW.replace(hour=size % 20)
            thing: CommittedResource | ProjectQuota = (
                commitment(str(number), size, start_time=begins, end_time=begins.replace(hour=begins.hour + 2))
                if kind == "commitment"
                else quota({"ram": size % 3}, ram=size)
            )
            others.pop(thing.name, None)
            if isinstance(thing, CommittedResource):
                (kept.remove_commitment(thing.name) if gone else kept.upsert_commitment(thing))
            else:
                (kept.remove_quota(thing.name) if gone else kept.upsert_quota(thing))
            if not gone:
                others[thing.name] = thing
        now = NOW.timestamp() + 1800.0 * hour
        fresh = fleet(*others.values()).quotas.compute_balance("p", "z1", "g", now=now)
        for owner in order:
            fresh.charge(QuotaDemand(ram=sizes[owner], cores=1, instances=1))
        assert kept.compute_balance("p", "z1", "g", now=now) == fresh


def test_in_shadow_mode_the_shipped_pipeline_only_counts() -> None:
    world = fleet(quota(ram=0))
    found = Engine(world, PipelineTable.with_shipped(), now=NOW.timestamp()).rank(
        request(zone="z1", extraSpecs={"quota:hw_version": "g", "capabilities:hypervisor_type": "QEMU"})
    )
    assert len(found) == 2
    assert PlacementSettings().flavor_group_keys == ("quota:hw_version",)
