"""The story that was recorded on three real hosts, told again by the model: it prints what they printed.

n1 is primary and is cut off; n2 is promoted; n1 is demoted by force; n1 is back. Statistics that depend on what the
recorded file system wrote are not compared: ``MASKED`` names them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.loops import run

from outlive.base import LoopClock, Random
from outlive.simulation.drbd import DrbdCluster, WriteFailed

DATA = Path(os.environ.get("OUTLIVE_SHARED", "/nowhere")) / "data/drbd"
NODES: Final = ("n1", "n2", "n3")
STEPS: Final = (
    "00-nothing-configured",
    "01-just-up",
    "02-healthy",
    "03-n1-isolated",
    "04-n2-promoted",
    "05-n1-forced-secondary",
    "06-n1-back",
)
MASKED: Final = ("written", "al-writes", "bm-writes", "received", "sent")
SEED_OF_THE_LOGS: Final = 11
"""With it, also what happens independently of each other happens in the recorded order."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="OUTLIVE_SHARED names no folder with data/drbd"),
]


def masked(text: str) -> str:
    return re.sub(rf'("(?:{"|".join(MASKED)})"): \d+', r"\1: #", text)


def recorded(node: str, file: str) -> str:
    return masked((DATA / node / file).read_text())


def recorded_log(node: str) -> list[str]:
    return [line.partition(" ")[2] for line in (DATA / node / "events2.log").read_text().splitlines()]


class Story:
    """See the module: ``printed`` by step, node and form; ``logs`` by node."""

    def __init__(self, seed: int) -> None:
        self.cluster = DrbdCluster(
            LoopClock(), Random(seed), NODES, ping_interval_s=3.0, ping_timeout_s=1.0, connect_interval_s=3.0
        )
        self.printed: dict[tuple[str, str, str], str] = {}
        self.logs: dict[str, list[str]] = {node: [] for node in NODES}

    def note(self, step: str) -> None:
        for node in NODES:
            self.printed[step, node, "status.json"] = masked(self.cluster.status_text(node))
            self.printed[step, node, "show.json"] = self.cluster.show_text(node)
            self.printed[step, node, "events2"] = self.cluster.events_text(node)

    async def read(self, node: str) -> None:
        async for line in self.cluster.follow_events(node):
            self.logs[node].append(line)

    async def play(self) -> None:
        cluster = self.cluster
        self.note(STEPS[0])
        cluster.create("r0", NODES, connected=False, auto_promote=False, backing_device="/dev/ram0")
        readers = [asyncio.create_task(self.read(node)) for node in NODES]
        await asyncio.sleep(0)
        self.note(STEPS[1])
        for pause_s, one, other in ((0.3, "n1", "n3"), (0.002, "n1", "n2"), (5.0, "n2", "n3")):
            cluster.reconnect(one, other)
            await asyncio.sleep(pause_s)
        cluster.new_current_uuid("n1", "r0")
        await asyncio.sleep(0.05)
        await cluster.promote("n1", "r0")
        opener = await cluster.open("n1", "r0")
        await cluster.write(opener)
        await asyncio.sleep(5.0)
        self.note(STEPS[2])
        cluster.cut("n1", "n2")
        cluster.cut("n1", "n3")

        async def write() -> None:
            with contextlib.suppress(WriteFailed):
                await cluster.write(opener)
            cluster.close(opener)

        writer = asyncio.create_task(write())
        await asyncio.sleep(0.01)
        for node, peer in (("n1", "n3"), ("n1", "n2"), ("n3", "n1")):
            cluster.detect(node, peer)
        await asyncio.sleep(8.0)
        self.note(STEPS[3])
        await cluster.promote("n2", "r0")
        await asyncio.sleep(1.0)
        self.note(STEPS[4])
        cluster.force_secondary("n1", "r0")
        await writer
        await asyncio.sleep(1.0)
        self.note(STEPS[5])
        cluster.heal("n1", "n2")
        cluster.reconnect("n1", "n2")
        await asyncio.sleep(0.1)
        cluster.heal("n1", "n3")
        await asyncio.sleep(6.0)
        self.note(STEPS[6])
        for reader in readers:
            reader.cancel()


def played(seed: int) -> Story:
    story = Story(seed)
    run(story.play())
    return story


@pytest.fixture(scope="module")
def story() -> Story:
    return played(SEED_OF_THE_LOGS)


@pytest.mark.parametrize("form", ["status.json", "show.json", "events2"])
@pytest.mark.parametrize("step", STEPS)
def test_each_step_prints_what_the_real_hosts_printed(story: Story, step: str, form: str) -> None:
    for node in NODES:
        assert story.printed[step, node, form] == recorded(node, f"{step}.{form}"), node


@pytest.mark.parametrize("node", NODES)
def test_every_event_of_the_story_is_in_the_recorded_order(story: Story, node: str) -> None:
    assert story.logs[node] == recorded_log(node)


def isolated(log: list[str]) -> list[str]:
    """From the promotion of n1 to that of n2, as n2 sees it."""
    ends = [index for index, line in enumerate(log) if "role:Primary" in line]
    return log[ends[0] : ends[1]]


@pytest.mark.parametrize("seed", range(10))
def test_survivor_sees_the_loss_in_the_recorded_order_whatever_is_drawn(seed: int) -> None:
    assert isolated(played(seed).logs["n2"]) == isolated(recorded_log("n2"))


def lines_of(log: list[str], what: tuple[Any, ...]) -> list[str]:
    return [line for line in log if all(word in line for word in what)]


@pytest.mark.parametrize("seed", range(3))
def test_each_connection_goes_through_the_recorded_states_whatever_is_drawn(seed: int) -> None:
    story = played(seed)
    for node in NODES:
        for peer in NODES:
            for kind in ("change connection", "change path"):
                what = (kind, f"conn-name:{peer} ")
                assert lines_of(story.logs[node], what) == lines_of(recorded_log(node), what)
