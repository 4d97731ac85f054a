"""Whether disks answer their guests, where many QEMUs hang."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.support.loops import run

from outlive.base import Unavailable, deadline
from outlive.drivers.libvirt import DiskWatch, GuestProcess, disk_io
from outlive.node import ANSWER_S, STUCK_S, WATCH_S, StuckRequests
from outlive.node.ports import DiskIo

GUESTS = 400


class Runs:
    """Where QEMUs listen."""

    def socket_path(self, vm: str, run_id: str, name: str) -> str:
        return vm


class Qemu:
    """Answers at once, or never."""

    hanging: frozenset[str] = frozenset()

    @classmethod
    async def open(cls, path: str, limit_s: float) -> Qemu:
        if path in cls.hanging:
            await asyncio.sleep(limit_s)
            raise Unavailable("no answer")
        return cls()

    async def __call__(self, command: str, limit_s: float, **arguments: Any) -> list[dict[str, Any]]:
        return [{"stats": {"rd_operations": 7}}] if command == "query-blockstats" else []

    def close(self) -> None:
        """Nothing is open."""


def guest(number: int) -> GuestProcess:
    name = f"vm-{number:03}"
    return cast("GuestProcess", _Guest(name, f"run-{number}", 2**22 + number))


class _Guest:
    def __init__(self, vm: str, run_id: str, pid: int) -> None:
        self.vm, self.run_id, self.pid = vm, run_id, pid


ALL = [guest(number) for number in range(GUESTS)]


async def looks(count: int) -> list[tuple[DiskIo, ...]]:
    """Looks as the watch of storage takes them, each within its limit."""
    watch, found = DiskWatch(cast("Any", Runs())), []
    for _ in range(count):
        with deadline(ANSWER_S):
            found.append(await watch.read_disk_io(ALL, 10.0))
        await asyncio.sleep(WATCH_S)
    return found


@pytest.fixture(autouse=True)
def qemus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_io, "Qmp", Qemu)
    monkeypatch.setattr(disk_io, "waiting_threads", lambda pids: {})


def test_guests_are_found_stuck_however_many_qemus_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qemu, "hanging", frozenset(one.vm for one in ALL))
    stuck = StuckRequests(STUCK_S)
    seen = run(looks(8))
    found = [stuck.find_stuck(one, number * (WATCH_S + disk_io.ROUND_S)) for number, one in enumerate(seen)]
    assert len(found[-1]) == GUESTS


def test_qemus_that_hang_keep_none_from_being_asked_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qemu, "hanging", frozenset(one.vm for one in ALL[:350]))
    *_, last = run(looks(8))
    assert [one.vm for one in last if one.done == 7] == [one.vm for one in ALL[350:]]
    assert sum(one.done is None and one.pending == 1 for one in last) == 350


async def test_qemu_that_answers_again_is_known_to(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = DiskWatch(cast("Any", Runs()))
    monkeypatch.setattr(Qemu, "hanging", frozenset({"vm-003"}))
    (before,) = await watch.read_disk_io(ALL[3:4], 10.0)
    assert (before.done, before.pending) == (None, 1)
    monkeypatch.setattr(Qemu, "hanging", frozenset())
    (after,) = await watch.read_disk_io(ALL[3:4], 10.0)
    assert (after.done, after.pending) == (7, 0)
