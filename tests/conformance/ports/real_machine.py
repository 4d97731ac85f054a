"""The machine that the tests run on, as the subject of the ports' suite: each driver in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.conformance.claims import Subject
from tests.conformance.ports import harness

from outlive.drivers import HostSection, LinuxMachine
from outlive.node.membership import RememberedMembership

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["outlive.drivers.machine"])
DISK_BYTES = 64 * 1024


def _serve(way: Connection, settings: HostSection) -> None:
    """One daemon's process: carries out what it is told, one call after the other."""
    machine = LinuxMachine(settings, "host-1")
    machine.prepare()
    while True:
        call, arguments = way.recv()
        try:
            answer = getattr(machine, call)(*arguments)
            way.send((asyncio.run(answer) if asyncio.iscoroutine(answer) else answer, None))
        except OSError as error:
            way.send((None, error))


class Driver:
    """``MachinePort`` in another process."""

    def __init__(self, settings: HostSection) -> None:
        self._way, other = FORKS.Pipe()
        self.process = FORKS.Process(target=_serve, args=(other, settings), daemon=True)
        self.process.start()
        other.close()

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call in ("remember", "read_remembered"):
            return lambda *arguments: asyncio.to_thread(self._ask, call, *arguments)
        return lambda: self._ask(call)

    def _ask(self, call: str, *arguments: RememberedMembership) -> Any:
        try:
            self._way.send((call, arguments))
            answer, error = self._way.recv()
        except (EOFError, ConnectionError):
            raise asyncio.CancelledError from None
        if error is not None:
            raise error
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.join()


class RealMachine:
    """See ``harness.MachineHarness``. A loss of power is a kill of all, and another boot: what the kernel has not yet
    written to the disk stays all the same, since the machine of the tests goes on."""

    def __init__(self, path: Path) -> None:
        self._disk = path / "disk"
        self._filler = self._disk / "filler"
        (path / "machine-id").write_text(f"{uuid4().hex}\n")
        self._boot = path / "boot_id"
        self._settings = HostSection(
            state_dir=str(self._disk / "state"), machine_id_file=str(path / "machine-id"), boot_id_file=str(self._boot)
        )
        self._drivers: list[Driver] = []
        self._new_boot()

    def driver(self) -> Driver:
        one = Driver(self._settings)
        self._drivers.append(one)
        return one

    def kill(self) -> None:
        if self._drivers:
            self._drivers[-1].end()

    def halt(self) -> None:
        os.kill(self._drivers[-1].process.pid or 0, signal.SIGSTOP)

    def lose_power(self) -> None:
        for one in self._drivers:
            one.end()
        self._new_boot()

    def fill_disk(self, full: bool) -> None:
        if not full:
            self._filler.unlink()
            return
        with self._filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096):
                    pass
            except OSError:
                return

    def close(self) -> None:
        for one in self._drivers:
            one.end()

    def _new_boot(self) -> None:
        self._boot.write_text(f"{uuid4()}\n")


@asynccontextmanager
async def _machine(path: Path) -> AsyncIterator[harness.MachineHarness]:
    disk = path / "disk"
    disk.mkdir()
    # a disk of its own, small enough to be filled; without the right to mount one, that of the tests, which is not
    mounted = os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk))
    machine = RealMachine(path)
    if not mounted:
        machine.fill_disk = _cannot_fill  # type: ignore[method-assign]
    try:
        yield machine
    finally:
        machine.close()
        if mounted:
            _unmount(disk)


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


def _unmount(place: Path) -> None:
    subprocess.run(["umount", str(place)], check=True)


def _cannot_fill(full: bool) -> None:
    import pytest

    pytest.skip("a disk that can be filled needs the right to mount one")


MACHINE: Subject[harness.MachineHarness] = Subject("linux", _machine)
