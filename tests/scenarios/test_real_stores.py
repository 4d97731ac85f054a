"""Stories marked ``real: true`` are played on the product's real stores as well; only hosts are simulated there.

Time is accelerated and stands still while something is computed (``tests.support.accelerated``); the store takes
the time that it takes. So everything that is expected may come a few seconds later than the story says.
The invariants hold without any tolerance, after every event.
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from outlive.base import silence_logging
from outlive.simulation import PlayedStory, read_scenario
from tests.support.accelerated import run_accelerated
from tests.support.live_store import LiveStory
from tests.support.real_stores import REAL_STORES, RESTARTED, RealStore

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/cluster.yaml") if "real: true" in path.read_text().splitlines())
MEMORY = Path("/dev/shm")
"""Where syncing takes no time that depends on who else uses the disk; that writes last is claimed elsewhere."""
SPEED = 120.0
"""Everything that answers is in this process but the disk, so that there is little to wait for."""
KINDS = {
    "recovery": "host-loses-power",
    "recovery that hosts reject": "every-host-rejects-once",
    "recovery of a rack": "rack-loses-power",
    "a fence that another host takes over": "fencer-dies-right-after-the-proof",
    "a live move": "live-move",
    "a cold move that fails": "cold-move-whose-target-dies",
    "a drain": "host-is-drained",
    "a host that is cut off": "partitioned-host-is-switched-off",
    "a host that comes back": "host-returns-after-the-proof",
    "lost answers": "answers-of-the-store-are-lost",
    "an outage of the store": "store-is-away-for-half-a-minute",
    "a promise that is broken on purpose, which the judges notice": "lying-power-controller-is-found-out",
}
EVERYWHERE = {"rack-loses-power", "answers-of-the-store-are-lost"}
SAMPLES = {"sqlite": {"rack-loses-power"}, "http": {*EVERYWHERE, "store-is-away-for-half-a-minute"}}
"""The HTTP server, which keeps everything in SQLite, plays three stories, and SQLite alone one. An API server and
ZooKeeper play two of these as well, and each of the others is played by one of the two."""
for _at, _folder in enumerate(one for one in FOLDERS if one.name not in EVERYWHERE):
    SAMPLES.setdefault(("kubernetes", "zookeeper")[_at % 2], {*EVERYWHERE}).add(_folder.name)
if os.environ.get("OUTLIVE_TEST_STORES") == "all":
    SAMPLES = {"http": {*KINDS.values()}, "sqlite": {*KINDS.values()}}
PLAYED = [
    pytest.param(
        folder,
        real,
        id=f"{folder.name}-{real.name}",
        marks=(pytest.mark.component(real.component),) if real.component else (),
    )
    for folder in FOLDERS
    for real in REAL_STORES
    if folder.name in SAMPLES.get(real.name, {folder.name})
]


def played(folder: Path, real: RealStore, path: Path) -> PlayedStory:
    scenario = read_scenario(folder)
    path = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else path))

    async def play() -> PlayedStory:
        async with real.open(path) as connect:
            replay = f"outlive simulate tests/scenarios/{folder.name}, on {real.name}"
            story = LiveStory(scenario, replay=replay, connect=connect, tolerance_s=real.tolerance_s)
            return await story.play()

    try:
        with silence_logging():
            return run_accelerated(play(), speed=SPEED)
    finally:
        rmtree(path)


@pytest.mark.parametrize(("folder", "real"), PLAYED)
def test_story_ends_as_told_on_a_real_store(folder: Path, real: RealStore, tmp_path: Path) -> None:
    ended = played(folder, real, tmp_path)
    assert ended.failed == (), "\n".join(map(str, ended.summary.violations))


@pytest.mark.parametrize("name", ["live-move", "fencer-dies-right-after-the-proof"])
def test_story_ends_as_told_although_the_server_before_the_store_is_started_again_and_again(
    name: str, tmp_path: Path
) -> None:
    ended = played(HERE / name, RESTARTED, tmp_path)
    assert ended.failed == (), "\n".join(map(str, ended.summary.violations))


@pytest.mark.parametrize("kind", KINDS)
def test_stories_of_every_kind_are_played_on_real_stores(kind: str) -> None:
    assert KINDS[kind] in {folder.name for folder in FOLDERS}
