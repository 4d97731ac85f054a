"""A copy of a store that is put back: another store, paused, with versions beyond all that were ever given."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.loops import run_real

from outlive.base import BadInput, Conflict, InUse, NotFound, SystemClock, SystemIds
from outlive.resources import Cluster, Hypervisor, ObjectMeta
from outlive.store.sqlite import DATABASE_FILE, RECORD_FILE, Restored, SqliteStore, copy_of, finish_interrupted
from outlive.store.sqlite.restore import restore


async def opened(directory: Path) -> SqliteStore:
    return await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds())


def left_over(directory: Path) -> list[Path]:
    return list(directory.glob("restore-*"))


async def put_back(backup: Path, directory: Path) -> Restored:
    return await restore(copy_of(backup), directory, clock=SystemClock(), ids=SystemIds())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a host, and a copy of it, after which another host came."""
    directory = tmp_path / "state"

    async def write(*objects: Cluster | Hypervisor) -> None:
        store = await opened(directory)
        for each in objects:
            await store.create(each)
        await store.close()

    run_real(write(Cluster(metadata=ObjectMeta(name="default")), Hypervisor(metadata=ObjectMeta(name="h1"))))
    shutil.copytree(directory, tmp_path / "backup")
    run_real(write(Hypervisor(metadata=ObjectMeta(name="h2"))))
    return directory


async def test_a_store_that_is_put_back_is_another_one_and_its_cluster_is_paused(state: Path) -> None:
    before = await opened(state)
    await before.close()
    done = await put_back(state.parent / "backup", state)
    store = await opened(state)
    cluster = await store.get(Cluster, "default")
    assert [host.name for host in (await store.list(Hypervisor)).items] == ["h1"]
    assert store.incarnation == done.incarnation == cluster.status.store_incarnation != before.incarnation
    assert cluster.status.pause is not None
    assert cluster.status.pause.reason == "restored"
    assert done.objects == 2
    await store.close()


async def test_what_was_read_in_the_replaced_store_writes_nothing_in_the_restored_one(state: Path) -> None:
    store = await opened(state)
    newest = await store.get(Hypervisor, "h2")
    await store.close()
    await put_back(state.parent / "backup", state)
    store = await opened(state)
    written = await store.create(Hypervisor(metadata=ObjectMeta(name="h3")))
    assert int(written.metadata.resource_version) > int(newest.metadata.resource_version)
    host = await store.get(Hypervisor, "h1")
    stale = ObjectMeta(name="h1", uid=host.metadata.uid, resource_version=newest.metadata.resource_version)
    with pytest.raises(Conflict):
        await store.replace(Hypervisor(metadata=stale))
    await store.close()


async def test_the_replaced_store_is_kept_and_can_be_put_back(state: Path) -> None:
    (replaced,) = (await put_back(state.parent / "backup" / DATABASE_FILE, state)).kept
    await put_back(state / replaced, state)
    store = await opened(state)
    assert [host.name for host in (await store.list(Hypervisor)).items] == ["h1", "h2"]
    await store.close()


async def test_a_backup_without_a_cluster_is_paused_too(tmp_path: Path) -> None:
    store = await opened(tmp_path / "backup")
    await store.close()
    done = await put_back(tmp_path / "backup", tmp_path / "state")
    assert done.kept == ()
    store = await opened(tmp_path / "state")
    assert (await store.get(Cluster, "default")).paused
    await store.close()


async def test_nothing_is_put_back_while_a_process_works_on_the_directory(state: Path) -> None:
    store = await opened(state)
    with pytest.raises(InUse):
        await put_back(state.parent / "backup", state)
    assert len((await store.list(Hypervisor)).items) == 2
    await store.close()


@pytest.mark.parametrize("content", [b"", b"no store at all", b"SQLite format 3\0"])
async def test_what_is_no_store_is_refused_and_the_directory_stays_as_it_was(state: Path, content: bytes) -> None:
    file = state.parent / "file"
    file.write_bytes(content)
    with pytest.raises(BadInput):
        await put_back(file, state)
    with pytest.raises(NotFound):
        await put_back(state.parent / "nothing", state)
    store = await opened(state)
    assert len((await store.list(Hypervisor)).items) == 2
    await store.close()
    assert not left_over(state)


async def test_a_copy_with_a_damaged_object_is_refused(state: Path) -> None:
    copy = state.parent / "backup" / DATABASE_FILE
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE objects SET crc = 1 WHERE key = 'h1'")
    with pytest.raises(BadInput, match="wrong checksum"):
        await put_back(copy, state)


CHANGES = ("os.rename", "os.remove")
"""What a restore does to a directory, each of which the machine may not live to see."""
LATEST = 40


def killed_before(change: int, work: Callable[[], object]) -> bool:
    """Run the work in a process that is killed right before its ``change``-th renaming or removal; whether it was."""
    child = os.fork()
    if child == 0:
        left = change

        def count(event: str, _arguments: object) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(count)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_crash_between_any_two_steps_leaves_the_old_files_or_the_new_ones(state: Path) -> None:
    old, new = {"cluster-key": "old", "ca.key": "old", "ca-next.key": "old"}, {"cluster-key": "new", "ca.key": "new"}
    for name in old:
        (state / name).write_text("old")

    def unpack(folder: Path) -> None:
        copy_of(state.parent / "backup")(folder)
        for name in new:
            (folder / name).write_text("new")

    async def put_all_back(directory: Path) -> Restored:
        return await restore(unpack, directory, clock=SystemClock(), ids=SystemIds(), leaves=old)

    found = []
    for change in range(LATEST):
        directory = state.parent / f"try-{change}"
        shutil.copytree(state, directory)
        killed = killed_before(change, lambda directory=directory: run_real(put_all_back(directory)))
        finish_interrupted(directory)
        hosts = run_real(_hosts(directory))
        keys = {name: (directory / name).read_text() for name in old if (directory / name).exists()}
        assert (hosts, keys) in ((["h1", "h2"], old), (["h1"], new)), change
        assert not (directory / RECORD_FILE).exists()
        found.append(hosts)
        if not killed:
            break
    assert not killed
    assert found == sorted(found, reverse=True), "once the new ones count they go on doing so"
    assert found.count(["h1"]) > 5


async def _hosts(directory: Path) -> list[str]:
    store = await opened(directory)
    names = [host.name for host in (await store.list(Hypervisor)).items]
    await store.close()
    return names


async def test_two_restores_within_a_second_keep_both_stores(state: Path) -> None:
    kept = [(await put_back(state.parent / "backup", state)).kept for _ in range(3)]
    assert len(set(kept)) == 3
    assert all((state / name).exists() for (name,) in kept)
