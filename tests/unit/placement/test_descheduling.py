"""VMs that should leave their hosts: found, recorded once a day, and moved only where that is switched on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.field_writers import WriterStore
from tests.support.loops import run, run_by
from tests.unit.placement.test_vmware import knowledge

from outlive.base import BadInput, LoopClock, Random, Refused, SeededIds, Unavailable, as_datetime
from outlive.placement import (
    NOVA,
    OWN,
    AvoidHighSteal,
    CompletedMove,
    Descheduler,
    DeschedulingController,
    Detection,
    KnowledgeRecords,
    PipelineTable,
    VmLocation,
    decode_parameters,
    judge_descheduling,
    merge_detections,
    moves_in_a_circle,
)
from outlive.resources import (
    Condition,
    Descheduling,
    DeschedulingSpec,
    DeschedulingStatus,
    ObjectMeta,
    Parameter,
    StepSpec,
    find_condition,
)
from outlive.runtime import Informer, Metrics, OrderedTaskGroup, Requeue
from outlive.store import MemoryStore, list_all

SPEC = DeschedulingSpec(ref="v", ref_type=OWN, prev_host="a", prev_host_type="hypervisor", reason="slow")


def record(*conditions: Condition, age_s: float = 0.0, **spec: Any) -> Descheduling:
    return Descheduling(
        metadata=ObjectMeta(name="v", creation_timestamp=as_datetime(1_000_000.0 - age_s)),
        spec=replace(SPEC, **spec),
        status=DeschedulingStatus(conditions=conditions),
    )


def judged(one: Descheduling, where: VmLocation | None, *, dry_run: bool = False) -> tuple[str, str]:
    """What is done, and the reason of the condition Ready."""
    found = judge_descheduling(one, where, 1_000_000.0, dry_run=dry_run, known=frozenset({OWN}))
    ready = find_condition(found.conditions, "Ready")
    return found.action, ready.reason if ready is not None else ""


def moving(since_s: float = 1.0) -> Condition:
    return Condition(type="InProgress", status="True", last_transition_time=as_datetime(1_000_000.0 - since_s))


HERE = VmLocation(host="a", state="ACTIVE")
THERE = VmLocation(host="b", state="ACTIVE")


@pytest.mark.parametrize(
    ("one", "where", "verdict"),
    [
        (record(), HERE, ("migrate", "")),
        (record(), None, ("delete", "")),
        (record(), THERE, ("write", "VMNotOnExpectedHost")),
        (record(), VmLocation(host="a", state="SHUTOFF"), ("write", "VMNotActive")),
        (record(ref=""), None, ("write", "MissingRef")),
        (record(ref_type="container"), None, ("write", "UnsupportedRefType")),
        (record(ref_type=NOVA, prev_host_type="novaComputeHostName"), None, ("write", "UnsupportedRefType")),
        (record(prev_host_type="novaComputeHostName"), HERE, ("write", "UnsupportedPrevHostType")),
        (record(moving()), HERE, ("nothing", "")),
        (record(moving()), VmLocation(host="b", state="MIGRATING"), ("nothing", "")),
        (record(moving()), THERE, ("write", "DeschedulingSucceeded")),
        (record(moving()), VmLocation(host="a", state="ERROR"), ("write", "LiveMigrationFailed")),
        (record(moving()), VmLocation(host="a", state="ACTIVE", refusal="no host"), ("write", "LiveMigrationFailed")),
        (record(moving(3601.0)), HERE, ("write", "LiveMigrationFailed")),
        (record(moving()), None, ("delete", "")),
        (record(Condition(type="Ready", status="False", reason="VMNotActive")), HERE, ("nothing", "")),
        (record(Condition(type="Ready", status="True")), THERE, ("nothing", "")),
        (record(moving(), age_s=86_400.0), HERE, ("delete", "")),
    ],
)
def test_what_becomes_of_a_record(one: Descheduling, where: VmLocation | None, verdict: tuple[str, str]) -> None:
    assert judged(one, where) == verdict


def test_a_dry_run_moves_nothing_and_a_later_real_one_does() -> None:
    assert judged(record(), HERE, dry_run=True) == ("write", "DryRun")
    said = record(Condition(type="Ready", status="Unknown", reason="DryRun"))
    assert judged(said, HERE, dry_run=True) == ("nothing", "")
    assert judged(said, HERE) == ("migrate", "")
    assert judged(record(ref=""), None, dry_run=True) == ("write", "MissingRef")


def test_reasons_are_joined_and_disagreement_leaves_the_vm_out() -> None:
    def seen(vm: str, host: str, reason: str) -> Detection:
        return Detection(vm=vm, host=host, reason=reason)

    late = [seen("v", "a", "late"), seen("w", "a", "x")]
    slow = [seen("v", "a", "slow"), seen("w", "b", "y")]
    found = merge_detections([("z", late), ("b", slow)])
    assert found == (Detection(vm="v", host="a", reason="slow; late"),)
    assert merge_detections([]) == ()


@pytest.mark.parametrize(
    ("moves", "circle"),
    [
        ([], False),
        (["ab"], False),
        (["ab", "bc"], False),
        (["ab", "ba"], True),
        (["ab", "bc", "cb"], True),
        (["aa"], True),
    ],
)
def test_moves_in_a_circle_are_seen(moves: list[str], circle: bool) -> None:
    assert moves_in_a_circle([CompletedMove(one[0], one[1]) for one in moves]) is circle


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8))
def test_a_circle_is_a_host_that_is_seen_twice(hosts: list[str]) -> None:
    moves = [CompletedMove(source, target) for source, target in pairwise(hosts)]
    assert moves_in_a_circle(moves) is (len(set(hosts)) < len(hosts) and bool(moves))


def test_a_threshold_of_nothing_finds_nothing_and_a_negative_one_is_refused() -> None:
    records = KnowledgeRecords()
    records.upsert(steal(("v", "a", 0.1)))
    assert AvoidHighSteal().detect(records) == []
    key = "maxStealPctOverObservedTimeSpan"
    with pytest.raises(BadInput, match="must not be negative"):
        decode_parameters(
            StepSpec(name="avoid_high_steal_pct", params=(Parameter(key=key, float_value=-1.0),)), AvoidHighSteal
        )


def steal(*vms: tuple[str, str, float]) -> Any:
    features = [{"instanceUUID": vm, "host": host, "maxStealTimePct": value} for vm, host, value in vms]
    return knowledge("kvm-libvirt-domain-cpu-steal-pct", *features)


class Cloud:
    """Moves VMs at once, unless it is told otherwise."""

    def __init__(self) -> None:
        self.vms: dict[str, VmLocation] = {}
        self.past: dict[str, list[CompletedMove]] = {}
        self.asked: list[str] = []
        self.away = False
        self.refuses = False

    async def locate(self, vm: str, request: str) -> VmLocation | None:
        if self.away:
            raise Unavailable("nova is away")
        return self.vms.get(vm)

    async def migrate(self, vm: str, request: str) -> None:
        if self.refuses:
            raise Refused("no valid host")
        self.asked.append(vm)

    async def list_moves(self, vm: str) -> Sequence[CompletedMove]:
        if self.away:
            raise Unavailable("nova is away")
        return self.past.get(vm, [])


class World:
    def __init__(self, *, dry_run: bool) -> None:
        self.clock, random = LoopClock(), Random(1)
        self.store = MemoryStore(self.clock, SeededIds(random))
        self.records = Informer(self.store, Descheduling, clock=self.clock, random=random)
        self.known = KnowledgeRecords()
        writes = WriterStore(self.store, writer="placement")
        self.cloud = Cloud()
        self.metrics = Metrics()
        table = PipelineTable.with_shipped(self.known.usable_names)
        self.table = table
        self.descheduler = Descheduler(
            writes, table.detector_pipelines, self.known, {NOVA: self.cloud}, lambda _vm: NOVA, self.records.get,
            metrics=self.metrics, clock=self.clock, random=random,
        )  # fmt: skip
        self.controller = DeschedulingController(
            writes, self.records, {NOVA: self.cloud}, dry_run=dry_run, clock=self.clock
        )

    def knows(self, *vms: tuple[str, str, float]) -> None:
        self.known.upsert(steal(*vms))
        self.table.rebuild()
        for vm, host, _ in vms:
            self.cloud.vms[vm] = VmLocation(host=host, state="ACTIVE")

    async def look(self) -> int:
        made = await self.descheduler.detect_once()
        await self.clock.sleep(1)
        return made

    async def carry_out(self, vm: str) -> tuple[str, str, Requeue | None]:
        """Reconcile the record; reason of Ready, new host, and when to look again."""
        again = await self.controller.reconcile(vm)
        await self.clock.sleep(1)
        kept = self.records.get(vm)
        ready = find_condition(kept.status.conditions, "Ready") if kept is not None else None
        return ready.reason if ready else "", kept.status.new_host if kept else "", again


def told(story: Callable[[World], Awaitable[None]], *, dry_run: bool = False) -> None:
    async def telling() -> None:
        world = World(dry_run=dry_run)
        async with OrderedTaskGroup() as group:
            task = group.create_task(world.records.run(), name="records")
            await world.records.wait_synced()
            await story(world)
            task.cancel()

    run(telling())


@run_by(told)
async def test_a_vm_with_too_much_steal_is_moved_once(world: World) -> None:
    assert await world.look() == 0
    world.knows(("v", "a", 25.0), ("w", "a", 20.0))
    assert await world.look() == 1
    assert await world.look() == 0
    kept = world.records.get("v")
    assert kept is not None
    assert (kept.spec.prev_host, kept.spec.ref_type) == ("a", NOVA)
    assert kept.spec.reason == "others took 25.0 % of its processor time, more than 20 %"
    assert await world.carry_out("v") == ("", "", Requeue(1.0))
    assert world.cloud.asked == ["v"]
    assert await world.carry_out("v") == ("", "", Requeue(1.0))
    world.cloud.vms["v"] = VmLocation(host="b", state="ACTIVE")
    assert (await world.carry_out("v"))[:2] == ("DeschedulingSucceeded", "b")
    assert world.cloud.asked == ["v"]
    text = world.metrics.render().decode()
    assert 'outlive_detector_pipeline_step_detections{step="avoid_high_steal_pct"} 1.0' in text


@run_by(told, dry_run=True)
async def test_as_shipped_nothing_is_moved(world: World) -> None:
    world.knows(("v", "a", 25.0))
    await world.look()
    assert (await world.carry_out("v"))[0] == "DryRun"
    assert world.cloud.asked == []


@run_by(told)
async def test_a_move_that_is_refused_and_a_cloud_that_is_away_end_the_record(world: World) -> None:
    world.knows(("v", "a", 25.0), ("w", "a", 30.0))
    await world.look()
    world.cloud.refuses = True
    assert (await world.carry_out("v"))[0] == "LiveMigrationFailed"
    world.cloud.refuses = False
    world.cloud.away = True
    with pytest.raises(Unavailable):
        await world.controller.reconcile("w")
    world.cloud.away = False
    await world.carry_out("w")
    world.cloud.away = True
    assert (await world.carry_out("w"))[0] == "GetVMStatusFailed"


@run_by(told)
async def test_a_vm_that_moved_in_a_circle_is_left_alone_and_a_lookup_that_fails_ends_the_look(world: World) -> None:
    world.knows(("v", "a", 25.0), ("w", "a", 25.0))
    world.cloud.past["v"] = [CompletedMove("a", "b"), CompletedMove("b", "a")]
    world.cloud.away = True
    with pytest.raises(Unavailable):
        await world.look()
    world.cloud.away = False
    assert await world.look() == 1
    assert [one.name async for one in list_all(world.store, Descheduling)] == ["w"]


@run_by(told, dry_run=True)
async def test_a_record_is_deleted_after_a_day_and_the_vm_may_be_found_again(world: World) -> None:
    world.knows(("v", "a", 25.0))
    await world.look()
    assert (await world.carry_out("v"))[2] is not None
    await world.clock.sleep(timedelta(days=1).total_seconds())
    await world.carry_out("v")
    assert world.records.get("v") is None
    assert await world.look() == 1


@run_by(told)
async def test_the_loop_looks_every_minute_and_survives_a_cloud_that_is_away(world: World) -> None:
    world.knows(("v", "a", 25.0))
    world.cloud.away = True
    async with OrderedTaskGroup() as group:
        task = group.create_task(world.descheduler.run(), name="look")
        await world.clock.sleep(70)
        world.cloud.away = False
        await world.clock.sleep(70)
        task.cancel()
    assert world.records.get("v") is not None
    text = world.metrics.render().decode()
    assert 'outlive_detector_pipeline_run_duration_seconds_count{error="true"} 1.0' in text
    assert 'outlive_detector_pipeline_run_duration_seconds_count{error="false"}' in text
