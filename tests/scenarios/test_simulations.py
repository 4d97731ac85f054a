"""Every folder here is a failure story that is played by the product in virtual time, and must end as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.base.logging import gathered_defects
from outlive.simulation.scenario import read_scenario
from outlive.simulation.story import Ended, Story
from tests.support.loops import run

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/README"))


def played(folder: Path) -> Ended:
    scenario = read_scenario(folder)
    replay = f"outlive simulate tests/scenarios/{folder.name}"

    async def play() -> Ended:
        return await Story(scenario, seed=scenario.spec.seed, replay=replay).play()

    return run(play())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_story_ends_as_told(folder: Path) -> None:
    with gathered_defects() as defects:
        ended = played(folder)
    assert ended.failed == (), "\n".join(map(str, ended.summary.violations))
    assert defects == [], "a program came upon an error that it did not foresee"


def test_story_is_the_same_each_time() -> None:
    folder = HERE / "rack-loses-power"
    assert played(folder).trace_hash == played(folder).trace_hash


def test_there_is_a_story_for_every_fault_that_the_protocol_is_about() -> None:
    assert len(FOLDERS) >= 60
