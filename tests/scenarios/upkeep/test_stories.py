"""Every folder here is a failure story that must end as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.upkeep.story import Story, play
from tests.support.loops import run

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/README"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_story_ends_as_told(folder: Path) -> None:
    assert run(play(Story.read(folder))) == []


def test_the_promise_is_judged_and_not_assumed() -> None:
    """The judge finds a broken promise when the rules are broken behind the product's back."""
    folder = Path(__file__).parent / "vm-moves-next-to-a-rival"
    story = Story.read(folder)
    story.timeline = [entry for entry in story.timeline if "move" in entry]
    story.cluster.settings["failoverUpkeep"] = {"eventsReact": False}
    story.cluster.settings["failover"]["reconcileInterval"] = "1h"
    assert any("no slot left" in problem or "hold it" in problem for problem in run(play(story)))
