"""Silence alone moves no slot: hosts that are not heard of, and come back, find every slot where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlive.node import HostLife
from outlive.resources import OBSERVED, Hypervisor, Reservation, observed_condition
from tests.support.watched_story import WatchedStory

HERE = Path(__file__).parent


class SlotStory(WatchedStory):
    """A story in which is noted where slots are, and which hosts are silent."""

    pause_s = 0.5

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.layouts: set[frozenset[tuple[str, str]]] = set()
        self.silent: set[str] = set()

    def note(self) -> None:
        slots = self.world.store.list_all(Reservation)
        self.layouts.add(frozenset((one.name, one.status.host) for one in slots))
        for host in self.world.store.list_all(Hypervisor):
            ready = observed_condition(host)
            if ready is not None and ready.reason == OBSERVED[HostLife.SILENT]:
                self.silent.add(host.name)


@pytest.mark.parametrize(
    ("scenario", "silent"), [("storm-passes-by-itself", 4), ("all-hosts-are-cut-from-the-store", 4)]
)
def test_silence_alone_moves_no_slot(scenario: str, silent: int) -> None:
    story = SlotStory.played(HERE / scenario)
    assert len(story.silent) == silent
    (layout,) = story.layouts
    assert layout
