"""Every output says of hosts and VMs what is so at that second, once the silence limit has passed.

A sample of the stories; ``OUTLIVE_TEST_PRINT=all`` plays every one of them (docs/testing.md).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlive.simulation import PlayedStory, read_scenario
from tests.support.loops import run
from tests.support.printed_states import PrintedStory

HERE = Path(__file__).parent
SAMPLE = (
    "all-hosts-are-cut-from-the-store",
    "all-hosts-lose-power",
    "lying-power-controller-is-found-out",
    "live-move",
    "no-controller-is-left-for-a-while",
    "partitioned-host-that-nobody-can-reach-keeps-its-vms",
    "rack-loses-power",
    "server-starts-after-all-hosts-died",
    "short-partition-harms-nobody",
)
ALL = tuple(sorted(path.parent.name for path in HERE.glob("*/README")))


@pytest.mark.parametrize("name", ALL if os.environ.get("OUTLIVE_TEST_PRINT") == "all" else SAMPLE)
def test_what_is_printed_is_so(name: str) -> None:
    scenario = read_scenario(HERE / name)

    async def play() -> tuple[PrintedStory, PlayedStory]:
        story = PrintedStory(scenario, seed=scenario.spec.seed, replay="")
        return story, await story.play()

    story, ended = run(play())
    assert story.wrong == [], "\n".join(story.wrong[:20])
    assert story.printed > 0
    assert ended.failed == ()
