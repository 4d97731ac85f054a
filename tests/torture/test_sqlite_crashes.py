"""What SQLite acknowledged is there after the process was killed, and nothing is half there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.loops import run_real
from tests.torture.victim import whole

from outlive.base.clock import SystemClock
from outlive.base.ids import SystemIds
from outlive.base.random import Random
from outlive.resources import VirtualMachine
from outlive.store.sqlite import DATABASE_FILE, SqliteStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROUNDS = 6
PATIENCE_S = 30.0


def kill_at(directory: Path, wait_s: float) -> dict[str, int]:
    """Let a victim write for a while, kill it, and return the highest number acknowledged for each object."""
    victim = subprocess.Popen(
        [sys.executable, "-m", "tests.torture.victim", str(directory), str(2**40)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"open 0\n"
    time.sleep(wait_s)
    victim.kill()
    said, _ = victim.communicate(timeout=PATIENCE_S)
    return acknowledged(said)


def acknowledged(said: bytes) -> dict[str, int]:
    highest: dict[str, int] = {}
    for line in said.decode().splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("vm-"):
            name, number = line.split()
            highest[name] = max(highest.get(name, 0), int(number))
    return highest


def kept(directory: Path) -> dict[str, int]:
    """The numbers in the store after it was opened again, each object whole."""

    async def read() -> dict[str, int]:
        store = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds())
        page = await store.list(VirtualMachine)
        await store.close()
        return {obj.name: whole(obj) for obj in page.items}

    return run_real(read())


def test_no_acknowledged_write_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    random = Random(7)
    total = 0
    before: dict[str, int] = {}
    for _ in range(ROUNDS):
        promised = kill_at(tmp_path, random.uniform(0.0, 0.6))
        found = kept(tmp_path)
        for name, number in {**before, **promised}.items():
            assert found.get(name, 0) >= number, f"{name}: {number} was acknowledged, {found.get(name)} is there"
        for name, number in found.items():
            assert number <= max(promised.get(name, 0), before.get(name, 0)) + 1, f"{name}: {number} from nowhere"
        before = found
        total += sum(promised.values())
    assert total > 200


def test_a_log_that_ends_anywhere_gives_whole_objects_of_one_moment(tmp_path: Path) -> None:
    """As after power loss: the log is cut at every kind of place, and what opens is some moment of the past."""
    source = tmp_path / "source"
    promised = kill_at(source, 0.3)
    log = source / f"{DATABASE_FILE}-wal"
    size = log.stat().st_size
    assert size > 0
    random = Random(9)
    for cut in range(12):
        copy = tmp_path / f"copy-{cut}"
        copy.mkdir()
        shutil.copy(source / DATABASE_FILE, copy)
        raw = log.read_bytes()[: random.randrange(size)]
        (copy / log.name).write_bytes(raw)
        found = kept(copy)
        assert all(number <= promised.get(name, 0) + 1 for name, number in found.items())
        shutil.rmtree(copy)
    assert all(kept(source)[name] >= number for name, number in promised.items())


def test_versions_are_not_given_twice_across_crashes(tmp_path: Path) -> None:
    seen: set[str] = set()
    for _ in range(3):
        kill_at(tmp_path, 0.1)

        async def write() -> str:
            store = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds())
            page = await store.list(VirtualMachine)
            older = {obj.metadata.resource_version for obj in page.items}
            made = await store.patch_metadata(page.items[0].ref, annotations={"n": str(len(seen))})
            assert made.metadata.resource_version not in older | seen
            await store.delete(made.ref)
            await store.close()
            return made.metadata.resource_version

        seen.add(run_real(write()))
    assert len(seen) == 3
