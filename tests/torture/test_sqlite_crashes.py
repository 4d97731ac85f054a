"""What SQLite acknowledged is there after the process was killed, and nothing is half there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.loops import run_real
from tests.torture.victim import LIVES, MORTAL, step_of, whole

from outlive.base import Random, SystemClock, SystemIds
from outlive.resources import VirtualMachine
from outlive.store.sqlite import DATABASE_FILE, SqliteStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROUNDS = 6
ROUNDS_MOST = 60
"""Where the disk is slow, a round writes little."""
PATIENCE_S = 30.0


def kill_at(directory: Path, wait_s: float, *, lines: int = 0) -> bytes:
    """Let a victim write for a while, and at least so many lines, kill it, and return what was acknowledged."""
    victim = subprocess.Popen(
        [sys.executable, "-m", "tests.torture.victim", str(directory), str(2**40)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"open 0\n"
    first = b"".join(victim.stdout.readline() for _ in range(lines))
    time.sleep(wait_s)
    victim.kill()
    rest, _ = victim.communicate(timeout=PATIENCE_S)
    return first + rest


def acknowledged(said: bytes) -> dict[str, int]:
    """The highest number acknowledged for each object."""
    highest: dict[str, int] = {}
    for line in said.decode().splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("vm-"):
            name, number = line.split()
            highest[name] = max(highest.get(name, 0), int(number))
    return highest


def lived(said: bytes) -> dict[str, list[tuple[int, str]]]:
    """Step and uid of all that was acknowledged of each object that lives and dies."""
    steps: dict[str, list[tuple[int, str]]] = {}
    for line in said.decode().splitlines(keepends=True):
        if line.endswith("\n") and line.startswith(MORTAL):
            name, step, uid = line[:-1].split(" ")
            steps.setdefault(name, []).append((int(step), uid))
    return steps


def stored(directory: Path) -> dict[str, VirtualMachine]:
    """What is in the store after it was opened again, each object whole."""

    async def read() -> dict[str, VirtualMachine]:
        store = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds())
        page = await store.list(VirtualMachine)
        await store.close()
        assert all(whole(obj) >= 0 for obj in page.items)
        return {obj.name: obj for obj in page.items}

    return run_real(read())


def kept(directory: Path) -> dict[str, int]:
    """The numbers in it of those that do not die."""
    return {name: whole(obj) for name, obj in stored(directory).items() if not name.startswith(MORTAL)}


def test_no_acknowledged_write_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    random = Random(7)
    total = 0
    before: dict[str, int] = {}
    rounds = 0
    while rounds < ROUNDS or total <= 200:
        rounds += 1
        promised = acknowledged(kill_at(tmp_path, random.uniform(0.0, 0.6)))
        found = kept(tmp_path)
        for name, number in {**before, **promised}.items():
            assert found.get(name, 0) >= number, f"{name}: {number} was acknowledged, {found.get(name)} is there"
        for name, number in found.items():
            assert number <= max(promised.get(name, 0), before.get(name, 0)) + 1, f"{name}: {number} from nowhere"
        before = found
        total += sum(promised.values())
        assert rounds < ROUNDS_MOST


def test_what_is_deleted_is_gone_with_its_finalizer_and_neither_before_nor_for_a_while(tmp_path: Path) -> None:
    random = Random(8)
    over: set[str] = set()
    lives = rounds = 0
    while rounds < ROUNDS or lives <= 50:
        rounds += 1
        said = lived(kill_at(tmp_path, random.uniform(0.1, 0.5)))
        found = stored(tmp_path)
        for name, steps in said.items():
            for (step, uid), (_, now) in pairwise(steps):
                assert (uid != now) == (step % 4 == 0), f"{name}: a life is a uid"
            ended = {uid for step, uid in steps if step % 4 == 0}
            begun = {uid for step, uid in steps if step % 4}
            assert not begun & over, f"{name}: a uid of an earlier life"
            (last, uid), obj = steps[-1], found.get(name)
            there = obj.metadata.uid if obj is not None else ""
            # the step that was on its way may have been taken, and no other
            possible = [last, last + 1]
            assert step_of(obj) in [step if step % 4 else 0 for step in possible], f"{name}: {last} was acknowledged"
            assert obj is None or obj.metadata.finalizers, f"{name}: marked, and nothing keeps it"
            if last % 4 and there:
                assert there == uid
            elif there:
                assert there not in over | ended, f"{name}: {there} is back"
            over |= ended - {""}
            lives += len(begun)
            if not there and last % 4:
                over.add(uid)
        assert rounds < ROUNDS_MOST


def test_a_log_that_ends_anywhere_gives_whole_objects_of_one_moment(tmp_path: Path) -> None:
    """As after power loss: the log is cut at every kind of place, and what opens is some moment of the past."""
    source = tmp_path / "source"
    promised = acknowledged(kill_at(source, 0.3))
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
        kill_at(tmp_path, 0.1, lines=LIVES + 1)  # each says where it begins

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
