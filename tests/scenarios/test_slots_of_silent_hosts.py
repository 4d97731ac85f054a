"""Silence alone moves no slot: hosts that are not heard of, and come back, find every slot where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlive.node.liveness import HostLife
from outlive.resources import Hypervisor, Reservation
from outlive.resources.hosts import OBSERVED, observed_condition
from outlive.simulation.scenario import read_scenario
from outlive.simulation.story import Story
from tests.support.loops import run

HERE = Path(__file__).parent
WATCH_S = 0.5


class SlotStory(Story):
    """A story in which is noted where slots are, and which hosts are silent."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.layouts: set[frozenset[tuple[str, str]]] = set()
        self.silent: set[str] = set()

    async def _run(self) -> None:
        self.world.start_task(self._watch(), name="slots are noted")
        await super()._run()

    async def _watch(self) -> None:
        while True:
            await self.world.clock.sleep(WATCH_S)
            slots = self.world.store.all_of(Reservation)
            self.layouts.add(frozenset((one.name, one.status.host) for one in slots))
            for host in self.world.store.all_of(Hypervisor):
                ready = observed_condition(host)
                if ready is not None and ready.reason == OBSERVED[HostLife.SILENT]:
                    self.silent.add(host.name)


@pytest.mark.parametrize(
    ("scenario", "silent"), [("storm-passes-by-itself", 4), ("all-hosts-are-cut-from-the-store", 4)]
)
def test_silence_alone_moves_no_slot(scenario: str, silent: int) -> None:
    async def play() -> SlotStory:
        found = read_scenario(HERE / scenario)
        story = SlotStory(found, seed=found.spec.seed, replay="")
        await story.play()
        return story

    story = run(play())
    assert len(story.silent) == silent
    (layout,) = story.layouts
    assert layout
