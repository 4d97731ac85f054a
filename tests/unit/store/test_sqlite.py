"""The embedded store: one process per directory, honest about what it finds, durable before it answers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.conformance.objects import vm, with_project
from tests.conformance.observers import following
from tests.support.loops import run_real

from outlive.base import BadInput, Conflict, InUse, Random, SeededIds, SystemClock, Unavailable, Unknown, limits
from outlive.resources import VirtualMachine
from outlive.store.sqlite import DATABASE_FILE, LOCK_FILE, SCHEMA_VERSION, Database, Fate, Place, SqliteStore


async def opened(path: Path, **options: int) -> SqliteStore:
    return await SqliteStore.open(path, clock=SystemClock(), ids=SeededIds(Random(1)), **options)


def written(path: Path) -> None:
    """A store in the directory with one object, closed."""

    async def scene() -> None:
        store = await opened(path)
        await store.create(vm())
        await store.close()

    run_real(scene())


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.name != LOCK_FILE}


def refused(path: Path, error: type[Exception]) -> str:
    with pytest.raises(error) as reported:
        run_real(opened(path))
    return str(reported.value)


async def test_what_was_written_is_there_after_reopening(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    made = [await store.create(vm(f"vm-{n}")) for n in range(10)]
    await store.delete(made[3].ref)
    changed = await store.replace(with_project(made[4], "q"))
    incarnation = store.incarnation
    await store.close()
    store = await opened(tmp_path)
    assert store.incarnation == incarnation
    page = await store.list(VirtualMachine)
    assert list(page.items) == [*made[:3], changed, *made[5:]]
    await store.close()


async def test_a_version_is_not_given_again_after_reopening(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    made = await store.create(vm())
    await store.delete(made.ref)
    last = store.revision
    await store.close()
    store = await opened(tmp_path)
    assert int((await store.create(vm())).metadata.resource_version) > last
    await store.close()


async def test_a_second_store_on_the_directory_is_told_who_has_it(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    with pytest.raises(InUse) as reported:
        await opened(tmp_path)
    assert str(tmp_path) in str(reported.value)
    assert str(os.getpid()) in str(reported.value)
    assert reported.value.remedy
    await store.create(vm())
    await store.close()
    await (await opened(tmp_path)).close()


@pytest.mark.slow
def test_a_second_process_on_the_directory_is_told_who_has_it(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from outlive.store.sqlite import SqliteStore\n"
        "from outlive.base.clock import SystemClock\n"
        "from outlive.base import SystemIds\n"
        "from outlive.base.errors import InUse\n"
        "try:\n"
        "    asyncio.run(SqliteStore.open(sys.argv[1], clock=SystemClock(), ids=SystemIds()))\n"
        "except InUse as error:\n"
        "    print(error)\n"
    )

    async def scene() -> None:
        store = await opened(tmp_path)
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(tmp_path), stdout=subprocess.PIPE
        )
        said, _ = await other.communicate()
        assert f"in use by process {os.getpid()}" in said.decode()
        await store.close()

    run_real(scene())


async def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path / "new" / "state")
    await store.create(vm())
    assert (tmp_path / "new" / "state").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "new" / "state").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file
    await store.close()


def test_a_newer_store_is_refused_and_left_untouched(tmp_path: Path) -> None:
    written(tmp_path)
    with sqlite3.connect(tmp_path / DATABASE_FILE) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA_VERSION + 6),))
    connection.close()
    before = contents(tmp_path)
    said = refused(tmp_path, BadInput)
    assert str(SCHEMA_VERSION + 6) in said
    assert f"knows {SCHEMA_VERSION}" in said
    assert contents(tmp_path) == before


def test_a_newer_store_whose_process_died_is_refused_too(tmp_path: Path) -> None:
    written(tmp_path)
    other = tmp_path / "crashed"
    other.mkdir()
    connection = sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)
    connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    for suffix in ("", "-wal"):
        (other / f"{DATABASE_FILE}{suffix}").write_bytes((tmp_path / f"{DATABASE_FILE}{suffix}").read_bytes())
    connection.close()
    before = contents(other)
    assert "99" in refused(other, BadInput)
    assert {name: raw for name, raw in contents(other).items() if not name.endswith("-shm")} == before


def test_another_programs_database_is_refused_and_left_untouched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE_FILE) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = contents(tmp_path)
    assert "not a store of Outlive" in refused(tmp_path, BadInput)
    assert contents(tmp_path) == before


def test_what_is_no_database_is_refused_and_left_untouched(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"# my notes\n" * 500)
    before = contents(tmp_path)
    said = refused(tmp_path, BadInput)
    assert "damaged" in said
    assert "restore" in said
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        store = await opened(tmp_path)
        for number in range(200):
            await store.create(vm(f"vm-{number}"))
        await store.close()

    run_real(scene())
    path = tmp_path / DATABASE_FILE
    raw = bytearray(path.read_bytes())
    place = raw.find(b'"vm-77"')
    raw[place + 1] ^= 0x01
    path.write_bytes(raw)
    assert "VirtualMachine/vm-77 has a wrong checksum" in refused(tmp_path, BadInput)
    raw[4096:] = b"\x5a" * (len(raw) - 4096)
    path.write_bytes(raw)
    assert "damaged" in refused(tmp_path, BadInput)


def test_an_empty_file_from_a_crash_while_starting_is_taken(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).touch()
    written(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(tmp_path / "file", BadInput)
    refused(tmp_path / "file" / "below", BadInput)


def test_after_a_refusal_the_directory_is_free_again(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"nonsense" * 1000)
    refused(tmp_path, BadInput)
    (tmp_path / DATABASE_FILE).unlink()
    written(tmp_path)


async def test_a_conflict_does_not_harm_writes_of_the_same_transaction(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    made = [await store.create(vm(f"vm-{n}")) for n in range(30)]
    stale = made[0]
    await store.replace(with_project(stale, "moved on"))
    answers = await asyncio.gather(*(store.replace(with_project(obj, "q")) for obj in made), return_exceptions=True)
    assert isinstance(answers[0], Conflict)
    assert all(isinstance(answer, VirtualMachine) for answer in answers[1:])
    await store.close()


async def test_of_swaps_that_wait_together_one_wins(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    made = await store.create(vm())
    answers = await asyncio.gather(
        *(store.replace(with_project(made, f"p{n}")) for n in range(50)), return_exceptions=True
    )
    winners = [answer for answer in answers if isinstance(answer, VirtualMachine)]
    assert len(winners) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == 49
    assert await store.get(VirtualMachine, "vm-1") == winners[0]
    await store.close()


async def test_closing_finishes_what_was_begun(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    writes = [asyncio.create_task(store.create(vm(f"vm-{n}"))) for n in range(500)]
    await asyncio.sleep(0)
    await store.close()
    made = await asyncio.gather(*writes)
    store = await opened(tmp_path)
    assert len(store) == len(made) == 500
    await store.close()


@pytest.mark.slow
def test_more_waiting_writes_than_the_limit_are_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        store = await opened(tmp_path)
        writes = [asyncio.create_task(store.create(vm(f"vm-{n}"))) for n in range(limits.WRITE_QUEUE + 10)]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, Unavailable)]
        assert refusals
        assert len(store) == len(answers) - len(refusals)
        await store.close()

    run_real(scene())


async def test_a_caller_who_gives_up_does_not_disturb_the_others(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    writes = [asyncio.create_task(store.create(vm(f"vm-{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    writes[3].cancel()
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(answers[3], asyncio.CancelledError)
    assert all(isinstance(answer, VirtualMachine) for i, answer in enumerate(answers) if i != 3)
    await store.close()


@pytest.mark.slow
async def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    made = await store.create(vm())
    for number in range(300):
        big = with_project(made, "x" * 100_000 + str(number))
        made = await store.replace(big)
    log = (tmp_path / f"{DATABASE_FILE}-wal").stat().st_size
    assert log < 20 * 2**20
    await store.close()
    assert not (tmp_path / f"{DATABASE_FILE}-wal").exists()


class Lying(Database):
    """The real file behind a disk that reports an error; ``applies`` says whether the write got there."""

    applies = True
    readable = True

    def write(self, final: Mapping[Place, bytes | None], *, ceiling: int | None) -> Fate:
        if self.applies:
            assert super().write(final, ceiling=ceiling) is Fate.DURABLE
        self.failure = "disk I/O error"
        return Fate.HIDDEN

    def reread(self, final: Mapping[Place, bytes | None]) -> Fate:
        return super().reread(final) if self.readable else Fate.HIDDEN


def lying(store: SqliteStore, *, applies: bool, readable: bool = True) -> Lying:
    disk = Lying(store._database.path, max_bytes=2**30)
    disk.applies, disk.readable = applies, readable
    store._database.close()
    store._database = disk
    return disk


async def test_a_failed_write_that_is_in_the_file_is_unknown_and_visible(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    follower = await following(store, VirtualMachine)
    lying(store, applies=True)
    with pytest.raises(Unknown):
        await store.create(vm())
    found = await store.get(VirtualMachine, "vm-1", fresh=True)
    await follower.until(lambda objects: objects.get("vm-1") == found, why="what reads show")
    await follower.close()
    await store.close()


async def test_a_failed_write_that_is_not_in_the_file_is_certainly_not_applied(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    lying(store, applies=False)
    with pytest.raises(Unavailable):
        await store.create(vm())
    assert len(store) == 0
    await store.close()


async def test_while_the_file_cannot_be_read_nothing_more_is_written(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    disk = lying(store, applies=True, readable=False)
    with pytest.raises(Unknown):
        await store.create(vm("doubtful"))
    with pytest.raises(Unavailable):
        await store.create(vm("later"))
    disk.readable = True
    store._database = Database(disk.path, max_bytes=2**30)
    await store.create(vm("at-last"))
    assert {obj.name for obj in (await store.list(VirtualMachine)).items} == {"doubtful", "at-last"}
    await store.close()
