"""Backups that the server makes: daily, seven kept, and somebody hears of it when none is made."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.unit.drivers.test_backup_files import CONFIGURATION, state_directory

from outlive.base import Instant, LoopClock
from outlive.commitments import run_inline
from outlive.drivers import BackupFolder, BackupSource, check_backup
from outlive.resources.reasons import FaultCode
from outlive.runtime import FIRST_S, BackupCopy, BackupKeeper, BackupSettings, Duration, compute_due_time, find_surplus
from outlive.runtime.backups import DAY_S
from outlive.store.sqlite import DATABASE_FILE

HOUR_S = 3600.0


def copy(day: float, name: str = "") -> BackupCopy:
    return BackupCopy(name=name or f"day-{day:g}", made_at=Instant(day * DAY_S), size_bytes=1, keys=False)


@pytest.mark.parametrize(
    ("copies", "started", "due"),
    [
        ([], 5.0, 5.0 * DAY_S + FIRST_S),
        ([copy(5.9)], 5.95, 6.9 * DAY_S),
        ([copy(1), copy(3), copy(2)], 0.5, 4 * DAY_S),
        ([copy(1)], 5.0, 2 * DAY_S),
        ([copy(40)], 5.0, 5 * DAY_S + FIRST_S),
        ([copy(1), copy(40)], 5.0, 2 * DAY_S),
    ],
    ids=["none", "a restart", "the newest", "long off", "from the future", "one of them from the future"],
)
def test_the_next_backup_is_due_a_day_after_the_newest(copies: list[BackupCopy], started: float, due: float) -> None:
    assert compute_due_time(copies, DAY_S, Instant(started * DAY_S), Instant(6 * DAY_S)) == pytest.approx(due)


def test_the_newest_are_kept_and_never_is_the_last_one_deleted() -> None:
    copies = [copy(day) for day in range(10)]
    assert find_surplus(copies, 3, "day-9") == [f"day-{day}" for day in range(6, -1, -1)]
    assert find_surplus(copies, 1, "day-9") == [f"day-{day}" for day in range(8, -1, -1)]
    assert find_surplus(copies, 1, "day-0") == [f"day-{day}" for day in range(9, 0, -1)], "it was just checked"
    assert find_surplus([copy(1)], 1, "day-1") == []


class Site:
    """A keeper on real files, on virtual time."""

    def __init__(self, state: Path, **settings: object) -> None:
        self.state, self.folder, self.clock = state, state / "backups", LoopClock()
        self.settings = BackupSettings(**settings)  # type: ignore[arg-type]
        self.keeper = self.restarted()

    def restarted(self) -> BackupKeeper:
        source = BackupSource(self.state, self.state / CONFIGURATION, "here", "1.0", None)
        directory = BackupFolder(self.folder, lambda: source, self.clock, run_inline)
        return BackupKeeper(directory, self.settings, self.clock, place=str(self.folder))

    def codes(self) -> set[FaultCode]:
        return {one.code for one in self.keeper.list_faults(self.clock.now())}

    def age_s(self) -> float:
        (metric,) = self.keeper.collect()
        return float(metric.samples[0].value)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return state_directory(tmp_path / "state")


async def test_one_a_day_is_made_and_seven_are_kept(state: Path) -> None:
    site = Site(state)
    task = asyncio.create_task(site.keeper.run())
    await asyncio.sleep(FIRST_S - 1)
    assert site.names == []
    await asyncio.sleep(60)
    assert len(site.names) == 1
    await asyncio.sleep(9.5 * DAY_S)
    assert len(site.names) == 7
    assert site.codes() == set()
    assert 0.4 * DAY_S < site.age_s() < 0.6 * DAY_S, site.names
    assert all(check_backup(site.folder / name).store.objects for name in site.names)
    task.cancel()


async def test_files_of_other_names_stay(state: Path) -> None:
    site = Site(state, keep=1)
    site.folder.mkdir()
    for name in ("notes.txt", "before-the-upgrade.tar", "outlive-20200101T000000Z.tar"):
        (site.folder / name).write_text("mine")
    task = asyncio.create_task(site.keeper.run())
    await asyncio.sleep(3 * DAY_S)
    assert {"notes.txt", "before-the-upgrade.tar", "outlive-20200101T000000Z.tar"} < set(site.names)
    assert len(site.names) == 4, "what cannot be read is no backup, and is not deleted as one"
    task.cancel()


async def test_a_restart_neither_repeats_nor_forgets_one(state: Path) -> None:
    site = Site(state)
    for _ in range(12):
        task = asyncio.create_task(site.keeper.run())
        await asyncio.sleep(2 * HOUR_S)
        task.cancel()
        site.keeper = site.restarted()
    assert len(site.names) == 1
    task = asyncio.create_task(site.keeper.run())
    await asyncio.sleep(HOUR_S)
    assert len(site.names) == 2
    task.cancel()


async def test_a_backup_that_fails_is_a_fault_then_an_old_one_and_both_end(state: Path) -> None:
    site = Site(state, keep=1)
    task = asyncio.create_task(site.keeper.run())
    await asyncio.sleep(HOUR_S)
    good = site.names
    shutil.move(state / DATABASE_FILE, state / "elsewhere")
    await asyncio.sleep(DAY_S)
    assert site.codes() == {FaultCode.BACKUP_FAILED}
    (fault,) = site.keeper.list_faults(site.clock.now())
    assert "store.db is not there" in fault.message.text
    await asyncio.sleep(DAY_S)
    assert site.codes() == {FaultCode.BACKUP_FAILED, FaultCode.BACKUP_OLD}
    assert site.names == good, "the last good one stays"
    assert "store.db is not there" in site.keeper.describe(site.clock.now())["failure"]
    shutil.move(state / "elsewhere", state / DATABASE_FILE)
    await asyncio.sleep(HOUR_S)
    assert site.codes() == set()
    assert len(site.names) == 1
    assert site.names != good
    task.cancel()


async def test_a_server_that_never_made_one_says_so_after_two_days(state: Path) -> None:
    (state / DATABASE_FILE).unlink()
    site = Site(state)
    task = asyncio.create_task(site.keeper.run())
    await asyncio.sleep(2 * DAY_S + HOUR_S)
    assert site.codes() == {FaultCode.BACKUP_FAILED, FaultCode.BACKUP_OLD}
    assert site.age_s() > 2 * DAY_S
    task.cancel()


async def test_switched_off_it_makes_none_and_says_nothing(state: Path) -> None:
    site = Site(state, enabled=False)
    await site.keeper.run()
    assert (site.names, site.codes(), site.keeper.collect(), site.keeper.describe(Instant(9e9))) == (
        [],
        set(),
        [],
        {},
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keep": 0}, "keep 0 is not between 1"),
        ({"every": Duration(1.0)}, "less than a minute"),
        ({"directory": ""}, "directory is empty"),
        ({"passphrase_file": "p", "recipient": "age1"}, "are both set"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BackupSettings(**settings)  # type: ignore[arg-type]
