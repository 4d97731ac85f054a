"""What must hold for every shape of a DRBD cluster, whatever happens to its links and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import LoopClock, NotFound, Random, Refused
from outlive.simulation.drbd import DrbdCluster, DrbdWrite, WriteFailed

pytestmark = pytest.mark.slow

NODES = ("n1", "n2", "n3", "n4", "n5")
SHAPES = {
    "three replicas": (NODES[:3], ()),
    "two and a tie-breaker": (NODES[:2], NODES[2:3]),
    "three replicas and a client": (NODES[:3], NODES[3:4]),
    "two replicas and two clients": (NODES[:2], NODES[2:4]),
    "four and a tie-breaker": (NODES[:4], NODES[4:]),
    "five replicas": (NODES, ()),
}
RETRY_S = 0.05
EXAMPLES = 15
"""Of each shape."""
HEALED_S = 60.0
"""After that everything is connected and in sync again."""


class Step(msgspec.Struct, frozen=True):
    """Something that happens, and how long nothing happens after it."""

    verb: str
    a: int
    b: int
    pause_s: float


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["cut", "one_way", "heal", "crash", "boot", "open", "close", "force", "move", "isolate"]),
        st.integers(0, 4),
        st.integers(0, 4),
        st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.3, 1.0, 4.0, 15.0]),
    ),
    max_size=25,
)


class Story:
    """A cluster with one resource, processes that write it, and what may never be seen."""

    def __init__(self, disks: Sequence[str], diskless: Sequence[str], seed: int, **options: Any) -> None:
        self.nodes = [*disks, *diskless]
        self.cluster = DrbdCluster(LoopClock(), Random(seed), self.nodes, ping_interval_s=3.0, connect_interval_s=3.0)
        self.cluster.create("r0", disks, diskless, **options)
        self.wanting: set[str] = set()
        """Nodes on which a process wants to write."""
        self.tasks = [asyncio.create_task(self.write(node)) for node in self.nodes]
        self.worked_remotely = False
        """A primary used the data of its peers only; then all data may be outdated in the end, as with the real one."""
        self.acknowledged: list[DrbdWrite] = []

    async def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.apply(step)
            self.judge()
            rest_s = step.pause_s
            while rest_s > 0:
                await asyncio.sleep(min(rest_s, 0.25))
                rest_s -= 0.25
                self.judge()

    def apply(self, step: Step) -> None:
        a, b = self.nodes[step.a % len(self.nodes)], self.nodes[step.b % len(self.nodes)]
        match step.verb:
            case "cut" | "one_way" if a != b:
                self.cluster.cut(a, b, one_way=step.verb == "one_way")
            case "heal" if a != b:
                self.cluster.heal(a, b)
            case "isolate":
                for other in self.nodes:
                    if other != a:
                        self.cluster.cut(a, other)
            case "crash":
                self.cluster.crash(a)
            case "boot":
                self.cluster.boot(a)
            case "open":
                self.wanting.add(a)
            case "close":
                self.wanting.discard(a)
            case "move":
                self.wanting = {a}
            case "force" if a not in self.cluster.network.down and self.cluster.find_replica(a, "r0").suspended:
                self.cluster.force_secondary(a, "r0")
            case _:
                pass

    async def write(self, node: str) -> None:
        """A process that opens the device whenever it is wanted there, and writes until it fails."""
        while True:
            await asyncio.sleep(RETRY_S)
            if node not in self.wanting or node in self.cluster.network.down:
                continue
            try:
                opener = await self.cluster.open(node, "r0")
            except (Refused, NotFound):
                continue
            try:
                while node in self.wanting:
                    self.acknowledged.append(await self.cluster.write(opener))
                    self.judge()
                    await asyncio.sleep(RETRY_S)
            except WriteFailed:
                pass
            finally:
                self.cluster.close(opener)

    def judge(self) -> None:
        writers = self.cluster.find_writers("r0")
        assert len(writers) <= 1, writers
        quorate = self.cluster.find_quorate("r0")
        resource = self.cluster.resources["r0"]
        for replica in resource.replicas.values():
            self.worked_remotely |= replica.is_primary and replica.volumes[0].disk != "UpToDate"
        if quorate:
            reached = {one.node for one in resource.reachable_replicas(quorate[0])}
            assert set(quorate) <= reached, (quorate, reached)

    async def heal(self) -> None:
        """Everything works again, and nobody waits for a writer that waits for them."""
        self.wanting.clear()
        for a in self.nodes:
            self.cluster.boot(a)
            for b in self.nodes:
                if a < b:
                    self.cluster.heal(a, b)
        rest_s = HEALED_S
        while rest_s > 0:
            await asyncio.sleep(4.0)
            rest_s -= 4.0
            self.judge()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for task in self.tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


@pytest.mark.parametrize("shape", SHAPES)
@given(steps=STEPS, seed=st.integers(0, 1000))
@settings(max_examples=EXAMPLES, deadline=None)
def test_never_two_writers_nor_two_sides_with_quorum_and_no_acknowledged_write_is_lost(
    shape: str, steps: list[Step], seed: int
) -> None:
    async def story() -> None:
        disks, diskless = SHAPES[shape]
        world = Story(disks, diskless, seed)
        await world.play(steps)
        await world.heal()
        kept = world.cluster.list_writes("r0")
        assert [write.number for write in kept] == [write.number for write in world.acknowledged]
        assert all(write.survives for write in kept), kept
        resource = world.cluster.resources["r0"]
        for replica in resource.replicas.values():
            assert all(peer.is_connected for peer in replica.peers.values()), replica.node
        disks_now = {node: resource.replicas[node].volumes[0].disk for node in disks}
        assert world.worked_remotely or set(disks_now.values()) == {"UpToDate"}, disks_now
        await world.end()

    run(story())
