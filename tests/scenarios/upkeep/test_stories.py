"""Every folder here is a failure story in an inventory whose hosts run no daemon of ours, and must end as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.simulation import PlayedStory, Scenario, Story, read_scenario
from tests.scenarios.upkeep import verbs  # noqa: F401 - they enter their verbs
from tests.support.loops import run

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/README"))


def played(scenario: Scenario) -> PlayedStory:
    async def play() -> PlayedStory:
        return await Story(scenario, seed=scenario.spec.seed, replay="").play()

    return run(play())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_story_ends_as_told(folder: Path) -> None:
    ended = played(read_scenario(folder))
    assert ended.failed == (), "\n".join(map(str, ended.summary.violations))


def test_the_promise_is_judged_and_not_assumed() -> None:
    """The judge finds a broken promise when the product does not look at what happens."""
    scenario = read_scenario(HERE / "vm-moves-next-to-a-rival")
    settings: dict[str, Any] = {**scenario.spec.settings, "failoverUpkeep": {"eventsReact": False}}
    settings["failover"] = {**settings["failover"], "reconcileInterval": "1h"}
    ended = played(msgspec.structs.replace(scenario, spec=msgspec.structs.replace(scenario.spec, settings=settings)))
    assert "S3" in {one.invariant for one in ended.summary.violations}
