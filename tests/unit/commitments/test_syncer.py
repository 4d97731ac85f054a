"""The syncer's runs: whole or nothing before the first write, and one step after the other from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from tests.support.loops import run
from tests.unit.commitments.test_sync import GROUPS, NOW, SETTINGS, change, listed, ours, slot

from outlive.base import Conflict, LoopClock, OutliveError, Random, SeededIds, Unavailable
from outlive.commitments import CommitmentSyncer, ListedCommitment, Project, StoreState, read_store
from outlive.resources import (
    FAILOVER,
    CommitmentStep,
    CommittedResource,
    Fault,
    FlavorGroup,
    ObjectMeta,
    Reservation,
    ReservationSpec,
)
from outlive.runtime import FaultRecorder, Metrics, OrderedTaskGroup
from outlive.store import MemoryStore, list_all

FAILS = ReservationSpec(type=FAILOVER)
T = TypeVar("T")
PROJECT = Project(id="p1", domain_id="d1")


class Cloud:
    """Keystone, Limes and the store of one test."""

    def __init__(self, *commitments: ListedCommitment) -> None:
        self.commitments = commitments
        self.failure: OutliveError | None = None
        self.refused: set[str] = set()
        self.groups: Any = GROUPS
        self.ours: dict[str, CommittedResource] = {}
        self.steps: list[CommitmentStep] = []
        self.asked: list[float] = []
        self.offloaded = 0
        self.clock = LoopClock(NOW)
        self.metrics = Metrics()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.syncer = CommitmentSyncer(
            self, self, self.known, self.write, SETTINGS, clock=self.clock, random=Random(1), metrics=self.metrics,
            offload=self.offload, faults=FaultRecorder(self.store, self.clock, "commitments-sync"),
        )  # fmt: skip

    async def list_projects(self) -> tuple[Project, ...]:
        self.asked.append(self.clock.monotonic())
        return (PROJECT,)

    async def list_commitments(self, projects: Sequence[Project]) -> tuple[ListedCommitment, ...]:
        assert list(projects) == [PROJECT]
        if self.failure is not None:
            raise self.failure
        return self.commitments

    async def offload(self, work: Callable[[], T]) -> T:
        self.offloaded += 1
        return work()

    async def known(self) -> StoreState:
        return StoreState(groups=self.groups, commitments=tuple(self.ours.values()))

    async def write(self, step: CommitmentStep) -> None:
        if step.uuid in self.refused:
            raise Conflict("it changed meanwhile")
        self.steps.append(step)

    def count(self, name: str, label: str = "") -> float:
        wanted = f"outlive_committed_resource_syncer_{name}{label} "
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(wanted))


def test_a_run_writes_what_it_planned_and_says_so_in_its_metrics() -> None:
    cloud = Cloud(listed("uuid-1"), listed("uuid-2", amount=20), listed("uuid-3", service_type="dns"))
    cloud.ours = {"uuid-2": ours("uuid-2"), "uuid-9": ours("uuid-9")}
    run(cloud.syncer.sync())
    assert [step.uuid for step in cloud.steps] == ["uuid-1", "uuid-2"]
    assert (cloud.count("cr_creates_total"), cloud.count("cr_updates_total"), cloud.count("cr_deletes_total")) == (
        1,
        1,
        0,
    )
    assert (cloud.count("limes_commitments_active"), cloud.count("crd_unmatched")) == (2, 1)
    assert cloud.count("commitments_skipped_total", '{reason="non_compute"}') == 1
    assert cloud.count("commitments_skipped_total", '{reason="unit_mismatch"}') == 0
    assert cloud.count("errors_total") == 0
    assert cloud.offloaded == 1  # comparing them is no work for the event loop


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    cloud = Cloud(listed("uuid-1"), listed("uuid-2"))
    cloud.refused = {"uuid-1"}
    run(cloud.syncer.sync())
    assert [step.uuid for step in cloud.steps] == ["uuid-2"]
    assert (cloud.count("errors_total"), cloud.count("cr_creates_total")) == (1, 1)


def test_nothing_is_asked_or_written_before_the_flavor_groups_are_known() -> None:
    cloud = Cloud(listed())
    cloud.groups = None
    assert run(cloud.syncer.sync()) is None
    assert (cloud.asked, cloud.steps, cloud.count("errors_total")) == ([], [], 0)


async def test_flavor_groups_that_become_known_after_the_start_are_not_waited_for_until_the_next_usual_run() -> None:
    cloud = Cloud(listed())
    cloud.groups = None
    async with OrderedTaskGroup() as group:
        task = group.create_task(cloud.syncer.run())
        await cloud.clock.sleep(10)
        cloud.groups = GROUPS
        await cloud.clock.sleep(120)
        assert [step.uuid for step in cloud.steps] == [listed().uuid]
        task.cancel()


def test_while_limes_is_away_nothing_is_written_and_it_is_asked_sooner_than_usual() -> None:
    cloud = Cloud(listed())
    cloud.ours = {"uuid-9": ours("uuid-9")}
    cloud.failure = Unavailable("away")

    async def hours() -> None:
        async with OrderedTaskGroup() as group:
            task = group.create_task(cloud.syncer.run())
            await cloud.clock.sleep(1800)
            assert cloud.steps == []
            assert len(cloud.asked) >= 4
            cloud.failure = None
            await cloud.clock.sleep(3600)
            assert [step.uuid for step in cloud.steps] == [listed().uuid]
            task.cancel()

    run(hours())
    gaps = [after - before for before, after in zip(cloud.asked, cloud.asked[1:], strict=False)]
    assert max(gaps) <= 3600
    assert gaps[0] < 61


async def test_when_limes_has_been_away_for_hours_a_fault_says_so_until_it_is_back() -> None:
    cloud = Cloud(listed())
    cloud.failure = Unavailable("503", place="Limes")

    async def faults() -> list[tuple[str, str]]:
        return [(one.name, one.message) async for one in list_all(cloud.store, Fault) if not one.ended]

    async with OrderedTaskGroup() as group:
        task = group.create_task(cloud.syncer.run())
        await cloud.clock.sleep(2.9 * 3600)
        assert await faults() == []
        await cloud.clock.sleep(1.2 * 3600)
        ((name, message),) = await faults()
        assert name.startswith("commitments-not-synced.")
        assert message == "commitments were not compared with Limes since the start: Limes: 503"
        cloud.failure = None
        await cloud.clock.sleep(3600)
        assert await faults() == []
        task.cancel()


async def test_what_the_store_has_is_read_with_valid_groups_only() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    assert (await read_store(store)).groups is None
    broken = msgspec.structs.replace(GROUPS["s4"], group_name="odd", ram_core_ratio_min=1)
    for spec in (GROUPS["s4"], broken):
        await store.create(FlavorGroup(metadata=ObjectMeta(name=spec.group_name), spec=spec))
    for one in (ours("uuid-1"), slot("uuid-1"), change(), Reservation(metadata=ObjectMeta(name="f"), spec=FAILS)):
        await store.create(one)
    known = await read_store(store)
    assert known.groups is not None
    assert list(known.groups) == ["s4"]
    assert [one.name for one in known.slots] == ["commitment-uuid-1-0"]
    assert (len(known.commitments), len(known.changes)) == (1, 1)
