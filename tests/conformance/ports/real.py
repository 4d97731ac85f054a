"""Drivers of the real world as subjects of the suites."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.claims import Subject
from tests.conformance.ports import harness
from tests.support.guards import Cgroups, Guard, Watchdog, closing

from outlive.guard import Instants, read_clocks
from outlive.node import GuardClient

ANSWER_S = 10.0
"""For a guard that answers, …"""
HALTED_S = 0.5
"""… and for one that stands still."""


class RealGuard:
    """The guard as a process, with a watchdog that resets nothing and a folder for cgroups; its daemon is this one."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._clients: list[GuardClient] = []
        self._limit_s = ANSWER_S

    def driver(self) -> GuardClient:
        client = GuardClient(str(self._guard.socket), limit_s=self._limit_s)
        self._clients.append(client)
        return client

    def kill(self) -> None:
        """As the guard sees it: the connection ends."""
        self._clients[-1]._drop()

    def instants(self, ago_s: float = 0.0) -> Instants:
        return Instants(*(each - ago_s for each in read_clocks()))

    def kill_guard(self) -> None:
        self._guard.process.kill()
        self._guard.process.wait()

    def halt_guard(self) -> None:
        self._guard.process.send_signal(signal.SIGSTOP)
        self._limit_s = HALTED_S
        for one in self._clients:
            one._limit_s = HALTED_S

    def close(self) -> None:
        for one in self._clients:
            one._drop()


@asynccontextmanager
async def _guard(path: Path) -> AsyncIterator[harness.GuardHarness]:
    with closing(Watchdog(path / "watchdog")) as watchdog, closing(Cgroups(path / "machine.slice")) as vms:
        places = ["--watchdog", str(watchdog.path), "--rehearsal", "--cgroup", str(vms.root)]
        service = ["--stop-service", f"touch {path}/stopped", "--start-service", f"touch {path}/started"]
        with closing(Guard(path, *places, *service)) as process, closing(RealGuard(process)) as real:
            yield real


GUARD: Subject[harness.GuardHarness] = Subject("process", _guard)
