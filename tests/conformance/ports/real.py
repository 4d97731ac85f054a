"""Drivers of the real world as subjects of the suites."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.claims import Subject
from tests.conformance.ports import harness
from tests.support.guards import Cgroups, Guard, Watchdog, closing

from outlive.guard.clocks import Instants, instants
from outlive.node.guard_client import GuardClient


class RealGuard:
    """The guard as a process, with a watchdog that resets nothing and a folder for cgroups; its daemon is this one."""

    settle_s = 3.0

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._clients: list[GuardClient] = []

    def driver(self) -> GuardClient:
        client = GuardClient(str(self._guard.socket), limit_s=0.5)
        self._clients.append(client)
        return client

    def kill(self) -> None:
        """As the guard sees it: the connection ends."""
        self._clients[-1]._drop()

    def instants(self, ago_s: float = 0.0) -> Instants:
        return Instants(*(each - ago_s for each in instants()))

    def kill_guard(self) -> None:
        self._guard.process.kill()
        self._guard.process.wait()

    def halt_guard(self) -> None:
        self._guard.process.send_signal(signal.SIGSTOP)

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
