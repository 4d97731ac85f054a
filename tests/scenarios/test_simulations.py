"""Every folder here is a failure story that is played by the product in virtual time, and must end as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.base import gather_defects
from outlive.simulation import CLUSTER, PlayedStory, Story, read_scenario, read_value
from outlive.simulation.kubernetes import StorageEnded, is_storage_cluster, read_storage_scenario, storage_story
from tests.support.loops import run

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/README"))


def played(folder: Path) -> PlayedStory | StorageEnded:
    replay = f"outlive simulate tests/scenarios/{folder.name}"
    if is_storage_cluster(read_value(folder / CLUSTER)):
        about_storage = read_storage_scenario(folder)

        async def play_storage() -> StorageEnded:
            return await storage_story(about_storage, seed=about_storage.spec.seed, replay=replay).play()

        return run(play_storage())
    scenario = read_scenario(folder)

    async def play() -> PlayedStory:
        return await Story(scenario, seed=scenario.spec.seed, replay=replay).play()

    return run(play())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_story_ends_as_told(folder: Path) -> None:
    with gather_defects() as defects:
        ended = played(folder)
    assert ended.failed == (), "\n".join(map(str, ended.summary.violations))
    assert defects == [], "a program came upon an error that it did not foresee"


@pytest.mark.parametrize("name", ["rack-loses-power", "drbd-rack-loses-power"])
def test_story_is_the_same_each_time(name: str) -> None:
    folder = HERE / name
    assert played(folder).trace_hash == played(folder).trace_hash


def test_there_is_a_story_for_every_fault_that_the_protocol_is_about() -> None:
    assert len(FOLDERS) >= 60
