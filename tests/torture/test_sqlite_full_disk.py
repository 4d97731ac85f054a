"""A full disk: nothing half-written, everything refused is named so, and the store goes on once there is room."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.objects import vm
from tests.conformance.observers import following
from tests.support.loops import run_real
from tests.torture.test_sqlite_crashes import ROOT, acknowledged, kept
from tests.torture.victim import numbered, whole

from outlive.base import SystemClock, SystemIds, Unavailable, Unknown
from outlive.resources import VirtualMachine
from outlive.store.sqlite import SqliteStore

pytestmark = pytest.mark.slow


async def fill(store: SqliteStore) -> dict[str, VirtualMachine]:
    """Write large objects until the store says that it cannot; return what was acknowledged."""
    held: dict[str, VirtualMachine] = {}

    async def one(worker: int) -> None:
        for number in range(10_000):
            obj = vm(f"vm-{worker}-{number}")
            try:
                held[obj.name] = await store.create(numbered(obj, 399))
            except Unavailable:
                return
        raise AssertionError("the disk never got full")

    async with asyncio.TaskGroup() as group:
        for worker in range(8):
            group.create_task(one(worker))
    return held


async def survives_being_full(directory: Path, free: object, **limits: int) -> None:
    store = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds(), **limits)
    follower = await following(store, VirtualMachine)
    held = await fill(store)
    assert held
    for obj in held.values():
        assert await store.get(VirtualMachine, obj.name) == obj
    page_names = {obj.name for obj in (await store.list(VirtualMachine, limit=5000)).items}
    assert page_names == set(held)
    await follower.until(lambda objects: set(objects) == set(held), why="what was acknowledged, and nothing else")
    if callable(free):
        free()
    for obj in list(held.values())[: len(held) // 2]:
        try:
            await store.delete(obj.ref)
            del held[obj.name]
        except Unavailable:
            break
    again = await store.create(vm("after"))
    held["after"] = again
    await follower.close()
    await store.close()
    store = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds(), **limits)
    items = (await store.list(VirtualMachine, limit=5000)).items
    assert {obj.name for obj in items} == set(held)
    for obj in items:
        whole(obj) if obj.name != "after" else None
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root; the other tests here have limits of their own")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this container may not mount")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 2**20)
    run_real(survives_being_full(small_disk / "state", ballast.unlink))


def test_a_full_store_refuses_and_recovers(tmp_path: Path) -> None:
    run_real(survives_being_full(tmp_path, None, max_bytes=512 * 1024))


def test_opening_on_a_full_disk_says_so(small_disk: Path) -> None:
    (small_disk / "ballast").touch()
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)

    async def scene() -> None:
        with pytest.raises(Unavailable) as reported:
            await SqliteStore.open(small_disk / "state", clock=SystemClock(), ids=SystemIds())
        assert reported.value.remedy
        (small_disk / "ballast").unlink()
        await (await SqliteStore.open(small_disk / "state", clock=SystemClock(), ids=SystemIds())).close()

    run_real(scene())


def test_a_process_with_a_file_size_limit_loses_nothing(tmp_path: Path) -> None:
    """``RLIMIT_FSIZE`` makes writes fail with another error than a full disk does, in the middle of a transaction."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    victim = subprocess.run(
        [sys.executable, "-m", "tests.torture.victim", str(tmp_path), str(2**40)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
        preexec_fn=limited,
    )
    promised = acknowledged(victim.stdout)
    assert b"full " in victim.stdout
    assert victim.stdout.endswith(b"closed 0\n")
    assert kept(tmp_path) == promised


async def test_no_write_is_of_unknown_fate_on_a_merely_full_store(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds(), max_bytes=256 * 1024)
    try:
        await fill(store)
    except* Unknown:
        pytest.fail("a full store knows that nothing was written")
    await store.close()


async def test_the_reason_why_writes_fail_is_kept_until_one_is_kept_again(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds(), max_bytes=512 * 1024)
    assert store.write_failure == ""
    held = await fill(store)
    assert "full" in store.write_failure
    for obj in list(held.values())[: len(held) // 2]:
        await store.delete(obj.ref)
    assert store.write_failure == ""
    await store.close()
