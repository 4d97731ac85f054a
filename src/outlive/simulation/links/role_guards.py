"""The process of a virtual host that takes back addresses of the primary: ``RoleGuardPort``.

It removes all that it holds once the daemon has given it no more time, and at once when the daemon is gone. What
was noted on the disk outlives both; whatever manages services clears it when the daemon ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from outlive.base import Unavailable, set_within
from outlive.node import Place
from outlive.simulation.links.kernel import CALL_S, SimKernel
from outlive.simulation.machines import Machine
from outlive.simulation.process import Process, go

START_S: Final = 0.05
"""From the start of the process to the moment from which it guards."""


class SimRoleGuard:
    """One of a host: its process, and its notes on the disk."""

    def __init__(self, kernel: SimKernel, machine: Machine) -> None:
        self.noted: dict[Place, None] = {}
        """What the file on the disk says that the host has."""
        self.process: Process | None = None
        self._kernel = kernel
        self._machine = machine
        self._runs = 0
        self._until_s = 0.0
        self._holds: dict[Place, None] = {}
        self._woken = asyncio.Event()
        self._orphaned = False

    @property
    def runs(self) -> bool:
        """Whether it lives."""
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Start it for a daemon, if none runs."""
        if not self.runs:
            self._runs += 1
            self._until_s, self._orphaned, self._holds = 0.0, False, dict(self.noted)
            self._woken = asyncio.Event()
            self.process = Process(f"{self._machine.name}/role-guard", self._runs)
            self.process.start(self._watch, lambda _: None)

    def kill(self) -> None:
        """It dies, and nobody but the daemon starts it again."""
        if self.process is not None:
            self.process.kill()

    def handle_pace(self, stands: bool) -> None:
        """Its host stands still, or goes on."""
        if self.process is not None and self.process.alive:
            (self.process.halt if stands else self.process.go_on)()

    def extend(self, seconds: float) -> None:
        """Wait so long from now."""
        self._until_s = self._read_boot_clock() + seconds
        self._woken.set()

    def hold(self, place: Place) -> None:
        """Remember it."""
        self.noted[place] = self._holds[place] = None
        self._woken.set()

    def release(self, place: Place) -> None:
        """Forget it."""
        self.noted.pop(place, None)
        self._holds.pop(place, None)

    def handle_daemon_end(self) -> None:
        """Take everything back now: so does the process, and so does the service manager by the file."""
        self._orphaned = True
        self._woken.set()
        boot_id = self._machine.boot_id
        go(self._clear(boot_id), name="a service manager clears up")

    async def _clear(self, boot_id: str) -> None:
        await asyncio.sleep(START_S)
        if self._machine.running and self._machine.boot_id == boot_id and self._orphaned:
            self._remove_addresses(self.noted)
            self.noted.clear()

    def _read_boot_clock(self) -> float:
        return self._machine.clock.read_clocks().boot_s

    async def _watch(self) -> None:
        await asyncio.sleep(START_S)
        while not self._orphaned:
            self._woken.clear()
            left_s = self._until_s - self._read_boot_clock()
            if left_s <= 0:
                self._remove_addresses(self._holds)
                await self._woken.wait()
            else:
                await set_within(self._woken, max(left_s, CALL_S))
        self._remove_addresses(self._holds)

    def _remove_addresses(self, places: dict[Place, None]) -> None:
        for device, address in places:
            self._kernel.remove_address(device, address)
        if places is self._holds:
            self._holds = {}


class RoleGuardClient:
    """It as a daemon reaches it."""

    def __init__(self, guard: SimRoleGuard, process: Process) -> None:
        self._guard = guard
        self._process = process

    async def start(self) -> None:
        """As ``RoleGuardPort``."""
        self._process.check()
        self._guard.start()

    async def extend(self, seconds: float) -> None:
        """As ``RoleGuardPort``."""
        self._check()
        self._guard.extend(seconds)

    async def hold(self, device: str, address: str) -> None:
        """As ``RoleGuardPort``."""
        self._check()
        self._guard.hold((device, address))

    async def list_leftovers(self) -> Sequence[tuple[str, str]]:
        """As ``RoleGuardPort``."""
        self._process.check()
        return tuple(self._guard.noted)

    async def release(self, device: str, address: str) -> None:
        """As ``RoleGuardPort``."""
        self._process.check()
        self._guard.release((device, address))

    async def close(self) -> None:
        """As ``RoleGuardPort``."""
        self._process.check()
        self._guard.handle_daemon_end()

    def _check(self) -> None:
        self._process.check()
        if not self._guard.runs:
            raise Unavailable("the guard of the primary's addresses does not run", remedy="see the log of the daemon")
