"""Programs that are kept running: whatever cannot be done about one is its failure, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.loops import run_real

from outlive.base import SystemClock, start_time
from outlive.drivers.services import Supervisor

pytestmark = pytest.mark.real_loop


async def test_a_program_that_cannot_be_noted_does_not_run_on_its_own(tmp_path: Path) -> None:
    """Nobody would end it after this daemon."""
    pids: list[int] = []
    supervisor = Supervisor(tmp_path / "gone/programs", SystemClock(), watch=pids.append)
    program = supervisor.keep("one", ("sleep", "60"))
    await program.settled.wait()
    assert "gone" in supervisor.list_failures()["one"]
    assert pids
    assert start_time(pids[0]) == ""
    (tmp_path / "gone").mkdir()
    async with asyncio.timeout(5):
        while supervisor.list_failures():  # noqa: ASYNC110 - the supervisor tries again
            await asyncio.sleep(0.05)
    await supervisor.stop_all()
    assert all(start_time(pid) == "" for pid in pids)


def test_a_program_whose_files_cannot_be_written_is_a_failure_and_starts_once_they_can(tmp_path: Path) -> None:
    async def story() -> None:
        tries = 0

        async def prepare() -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ValueError("nonsense in the store")

        supervisor = Supervisor(tmp_path / "programs", SystemClock())
        program = supervisor.keep("one", ("sleep", "60"), prepare=prepare)
        await program.settled.wait()
        assert supervisor.list_failures() == {"one": "sleep: nonsense in the store"}
        async with asyncio.timeout(5):
            while supervisor.list_failures():  # noqa: ASYNC110 - the supervisor tries again
                await asyncio.sleep(0.05)
        await supervisor.stop_all()

    run_real(story())


async def test_what_a_killed_daemon_has_left_running_is_ended(tmp_path: Path) -> None:
    pids: list[int] = []
    former = Supervisor(tmp_path / "programs", SystemClock(), watch=pids.append)
    await former.keep("one", ("sleep", "60")).settled.wait()
    next_one = Supervisor(tmp_path / "programs", SystemClock())
    assert next_one.end_leftovers() == 1
    await asyncio.sleep(0.1)
    assert start_time(pids[0]) == ""
    await former.stop_all()


async def test_a_program_ends_also_where_the_task_that_stops_it_is_cancelled(tmp_path: Path) -> None:
    """Such as a DHCP server that is started anew when the role is lost: two of them would serve one network."""
    pids: list[int] = []
    supervisor = Supervisor(tmp_path / "programs", SystemClock(), watch=pids.append)
    await supervisor.keep("one", ("sleep", "60")).settled.wait()
    stopping = asyncio.ensure_future(supervisor.stop(["one"]))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait((stopping,))
    async with asyncio.timeout(2):
        while start_time(pids[0]):  # noqa: ASYNC110 - the process ends by itself
            await asyncio.sleep(0.02)
