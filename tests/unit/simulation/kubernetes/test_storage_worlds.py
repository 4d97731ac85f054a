"""Storage worlds: Kubernetes takes its real times, judges find what is wrong, and agents do nothing wrong."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.loops import run, run_by

from outlive.base import Clock, Random
from outlive.resources.foreign import KubernetesPod, VolumeAttachment
from outlive.runtime import ClusterVerbs
from outlive.simulation.drbd import DrbdCluster
from outlive.simulation.kubernetes import (
    ClientEvents,
    NodeCount,
    NodeSpecification,
    StorageSpec,
    StorageWorld,
    WorkloadSpec,
    is_ready,
    storage_world,
)
from outlive.storage import DrbdTool
from outlive.store import Store, list_all

pytestmark = pytest.mark.slow

NODES = ("node-1", "node-2", "node-3")
SHAPES = {
    "three replicas": WorkloadSpec(name="db", disks=NODES),
    "two and a tie-breaker": WorkloadSpec(name="db", disks=NODES[:2], diskless=NODES[2:]),
}
PAIRS = tuple(itertools.combinations(NODES, 2))
CUTS = [cut for count in range(1, 4) for cut in itertools.combinations(PAIRS, count)]
"""Every shape of partition of three nodes."""
SEEN_S = 5.0
"""Within so long a kubelet has reported that its pods run."""


def world_of(workload: WorkloadSpec, *, agents: bool = True, **options: Any) -> StorageWorld:
    nodes = tuple(NodeSpecification(name=name, agent=agents) for name in NODES)
    return storage_world(StorageSpec(nodes=nodes, workloads=(workload,), **options), seed=1)


def play(world: Callable[[], StorageWorld], story: Callable[[StorageWorld], Awaitable[None]]) -> None:
    async def body() -> None:
        one = world()
        await one.build()
        await one.start()
        assert await one.wait_settled(30.0)
        await one.clock.sleep(SEEN_S)
        await story(one)
        await one.stop()

    run(body())


async def back_after_s(world: StorageWorld, limit_s: float) -> float:
    """Seconds from now until every pod writes."""
    began_s = world.clock.monotonic()
    await world.clock.sleep(12.0)
    await world.wait_settled(limit_s)
    return world.clock.monotonic() - began_s


@run_by(play, lambda: world_of(SHAPES["three replicas"], agents=False))
async def test_without_an_agent_a_stateful_pod_never_comes_back_from_a_dead_node(world: StorageWorld) -> None:
    await world.do("power-off", {"nodes": ("node-1",)})
    assert await back_after_s(world, 1500.0) >= 1500.0
    pod = world.server.find(KubernetesPod, "default/db-0")
    assert pod is not None
    assert "deletionTimestamp" in pod["metadata"], "it is evicted after 300 s, and no kubelet ends it"


def test_without_an_agent_a_deployment_waits_for_eviction_and_six_minutes_more() -> None:
    async def story(world: StorageWorld) -> None:
        await world.do("power-off", {"nodes": ("node-1",)})
        took_s = await back_after_s(world, 1500.0)
        assert took_s >= 40 + 300, "not before it is not ready, and tolerated no longer"

    deployment = WorkloadSpec(name="db", kind="deployment", disks=NODES)
    play(lambda: world_of(deployment, agents=False), story)


@run_by(play, lambda: world_of(SHAPES["three replicas"], agents=False))
async def test_out_of_service_taint_has_a_stateful_pod_come_back(world: StorageWorld) -> None:
    await world.do("power-off", {"nodes": ("node-1",)})
    await world.clock.sleep(60.0)
    await world.do("out-of-service", {"nodes": ("node-1",)})
    assert await back_after_s(world, 300.0) < 90.0


@pytest.mark.parametrize("shape", SHAPES)
def test_with_agents_a_stateful_pod_is_back_within_75_seconds_of_not_ready(shape: str) -> None:
    async def story(world: StorageWorld) -> None:
        await world.do("power-off", {"nodes": ("node-1",)})
        assert await back_after_s(world, 300.0) <= 50.0 + 75.0
        await world.do("heal", {})
        assert await world.wait_recovered(300.0) == []
        assert world.violations == []

    play(lambda: world_of(SHAPES[shape]), story)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: ",".join(f"{a[-1]}{b[-1]}" for a, b in cut))
@pytest.mark.parametrize("verb", ["cut-links", "cut-links and the API"])
def test_every_partition_ends_well(shape: str, cut: tuple[tuple[str, str], ...], verb: str) -> None:
    async def story(world: StorageWorld) -> None:
        await world.do("cut-links", {"between": cut})
        if verb != "cut-links":
            await world.do("cut-api", {"nodes": ("node-1",)})
        await world.clock.sleep(400.0)
        await world.do("heal", {})
        assert await world.wait_recovered(600.0) == []
        world.judge.judge_lost_writes()
        assert world.violations == []

    play(lambda: world_of(SHAPES[shape]), story)


@run_by(play, lambda: world_of(SHAPES["three replicas"]))
async def test_the_side_with_quorum_takes_over(world: StorageWorld) -> None:
    await world.do("cut-off", {"nodes": ("node-1",)})
    assert await back_after_s(world, 300.0) <= 50.0 + 75.0
    assert world.judge.find_writing()["pvc-data-db-0"] != "node-1"
    assert world.violations == []


def test_calls_of_three_survivors_are_at_most_a_third_more_than_those_of_one() -> None:
    nodes = ("node-1", "node-2", "node-3", "node-4")
    workload = WorkloadSpec(name="db", replicas=50, parallel=True, disks=nodes)
    counts = []
    spec = StorageSpec(nodes=NodeCount(count=4), workloads=(workload,))
    for survivors in (1, 3):

        async def story(world: StorageWorld, survivors: int = survivors) -> None:
            on_first = [one for one in world.judge.find_writing().values() if one == "node-1"]
            assert len(on_first) == 50
            for name in nodes[1 + survivors :]:
                world.stop_agent(world.nodes[name])
            before = world.count_calls()
            await world.do("power-off", {"nodes": ("node-1",)})
            await world.clock.sleep(60.0)
            after = world.count_calls()
            counts.append(sum((after - before).values()))

        play(lambda: storage_world(spec, seed=1), story)
    print("calls of one survivor and of three:", counts)
    assert counts[1] <= 1.3 * counts[0], counts


def test_same_seed_is_the_same_run() -> None:
    async def trace() -> str:
        world = world_of(SHAPES["three replicas"])
        await world.build()
        await world.start()
        await world.clock.sleep(30.0)
        await world.do("crash", {"nodes": ("node-1",)})
        await world.clock.sleep(200.0)
        await world.stop()
        return world.history.trace_hash()

    assert run(trace()) == run(trace())


class Rogue:
    """An agent that evicts every pod and deletes every attachment, a minute after it began."""

    def __init__(
        self,
        node: str,
        store: Store,
        verbs: ClusterVerbs,
        events: ClientEvents,
        drbd: DrbdTool,
        clock: Clock,
        random: Random,
    ) -> None:
        self._store, self._verbs, self._clock = store, verbs, clock

    async def run(self) -> None:
        await self._clock.sleep(60.0)
        async for pod in list_all(self._store, KubernetesPod):
            await self._verbs.evict(pod.metadata.key)
        async for attachment in list_all(self._store, VolumeAttachment):
            await self._verbs.delete(VolumeAttachment, attachment.name)
        await self._clock.sleep(3600.0)


def test_judges_find_an_agent_that_removes_healthy_pods() -> None:
    def world() -> StorageWorld:
        nodes = tuple(NodeSpecification(name=name, agent=name == "node-1") for name in NODES)
        spec = StorageSpec(nodes=nodes, workloads=(SHAPES["three replicas"],))
        return StorageWorld(spec, seed=1, make_agent=Rogue, make_volumes=DrbdCluster)

    async def story(world: StorageWorld) -> None:
        await world.clock.sleep(70.0)
        assert [one.invariant for one in world.violations] == ["healthy-pod", "detached-writer"]

    play(world, story)


@run_by(play, lambda: world_of(SHAPES["three replicas"], agents=False))
async def test_judges_find_a_pod_that_is_down_in_silence(world: StorageWorld) -> None:
    await world.do("cut-links", {"nodes": ("node-1",)})
    await world.clock.sleep(590.0)
    assert world.violations == []
    await world.clock.sleep(60.0)
    assert [one.invariant for one in world.violations] == ["silence"]


def test_judges_find_a_writer_behind_another_one() -> None:
    class Process:
        key, resources = "default/db-0", ("pvc-data-db-0",)

        def __init__(self, node: str) -> None:
            self.node = node

    async def story(world: StorageWorld) -> None:
        first, beside, second = Process("node-1"), Process("node-1"), Process("node-2")
        judge: Any = world.judge
        for process in (first, beside, second):
            judge.note_opened(process, "pvc-data-db-0")
        for process in (first, beside, first, second, second):
            judge.note_acknowledged(process, "pvc-data-db-0", 1.0)
        assert world.violations == [], "pods of one node may share a volume"
        judge.note_acknowledged(first, "pvc-data-db-0", 4.0)
        assert [one.invariant for one in world.violations] == ["two-writers"]

    play(lambda: world_of(SHAPES["three replicas"]), story)


@run_by(play, lambda: world_of(SHAPES["three replicas"], agents=False))
async def test_a_process_that_hangs_in_frozen_writes_is_not_ended(world: StorageWorld) -> None:
    await world.do("cut-links", {"nodes": ("node-1",)})
    await world.clock.sleep(30.0)
    await world.do("delete-pod", {"pods": ("db-0",)})
    await world.clock.sleep(120.0)
    pod = world.server.find(KubernetesPod, "default/db-0")
    assert pod is not None
    assert not is_ready(pod)
    await world.do("heal-links", {"nodes": ("node-1",)})
    await world.clock.sleep(60.0)
    assert world.judge.find_writing()
