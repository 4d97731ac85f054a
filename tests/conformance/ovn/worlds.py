"""OVN for the suites: a real one of the laboratory, and that of the simulation.

``OUTLIVE_TEST_OVN`` is a folder with programs of another version (``scripts/ovn-programs``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from lab.ovn import Ovn
from tests.conformance.claims import Subject
from tests.support.loops import run, run_real

from outlive.base import LoopClock, Random
from outlive.drivers.ovn import OvnNorthbound, OvnSouthbound
from outlive.network import NorthboundDb, SouthboundDb
from outlive.simulation.network import SimulatedNorthbound, SimulatedOvn, SimulatedSouthbound

MAC = "0a:00:00:00:00:05"
PROBE_MS = 20_000
"""No server hangs here, and one that is busy is not to be left."""


class OvnWorld(Protocol):
    """One OVN with its chassis ``ch-1``, ``ch-2``."""

    settle_s: float
    """After so long what was done has been told to everybody."""

    async def northbound(self) -> NorthboundDb:
        """The database as another controller has it."""
        ...

    async def southbound(self) -> SouthboundDb:
        """The same."""
        ...

    async def stop_northbound(self) -> None:
        """Let its server go away."""
        ...

    async def start_northbound(self) -> None:
        """Let it come again, with what it had."""
        ...

    def plug(self, port: str, chassis: str) -> None:
        """Plug an interface of the port in."""
        ...

    def unplug(self, port: str, chassis: str) -> None:
        """Unplug it."""
        ...

    def kill(self, chassis: str) -> None:
        """Cut the power of a chassis."""
        ...


def programs() -> Path | None:
    """The folder with programs of another version."""
    folder = os.environ.get("OUTLIVE_TEST_OVN")
    return Path(folder) if folder else None


class RealOvn:
    """See the protocol."""

    settle_s = 0.3

    def __init__(self, ovn: Ovn, stack: AsyncExitStack) -> None:
        self.ovn = ovn
        self._stack = stack

    async def northbound(self) -> NorthboundDb:
        southbound = await self._south()
        northbound = OvnNorthbound(self.ovn.nb_remote, southbound, limit_s=10, probe_ms=PROBE_MS)
        self._stack.push_async_callback(northbound.aclose)
        await northbound.start()
        return northbound

    async def southbound(self) -> SouthboundDb:
        return await self._south()

    async def stop_northbound(self) -> None:
        self.ovn.northbound[0].stop()

    async def start_northbound(self) -> None:
        self.ovn.northbound[0].start()

    def plug(self, port: str, chassis: str) -> None:
        self._chassis(chassis).plug(port, MAC)

    def unplug(self, port: str, chassis: str) -> None:
        self._chassis(chassis).unplug(port)

    def kill(self, chassis: str) -> None:
        self._chassis(chassis).kill()

    def _chassis(self, name: str):
        return next(one for one in self.ovn.chassis if one.name == name)

    async def _south(self) -> OvnSouthbound:
        southbound = OvnSouthbound(self.ovn.sb_remote, limit_s=10, probe_ms=PROBE_MS)
        self._stack.push_async_callback(southbound.aclose)
        await southbound.start()
        return southbound


class SimulatedWorld:
    """See the protocol."""

    settle_s = 1.0

    def __init__(self, *chassis: str) -> None:
        self.ovn = SimulatedOvn(*chassis)
        self._clock = LoopClock()
        self._random = Random(1)

    async def northbound(self) -> NorthboundDb:
        return SimulatedNorthbound(self.ovn, self._clock, self._random)

    async def southbound(self) -> SouthboundDb:
        return SimulatedSouthbound(self.ovn, self._clock, self._random)

    async def stop_northbound(self) -> None:
        self.ovn.faults.northbound_down = True

    async def start_northbound(self) -> None:
        self.ovn.faults.northbound_down = False
        self.ovn.reconnect()

    def plug(self, port: str, chassis: str) -> None:
        self.ovn.plug(port, chassis)

    def unplug(self, port: str, chassis: str) -> None:
        self.ovn.unplug(port, chassis)

    def kill(self, chassis: str) -> None:
        self.ovn.kill(chassis)


def real(chassis: int) -> Callable[[Path], AbstractAsyncContextManager[OvnWorld]]:
    """A real OVN with so many chassis."""

    @asynccontextmanager
    async def opened(path: Path) -> AsyncIterator[OvnWorld]:
        ovn = Ovn(path, chassis, bin=programs())
        async with AsyncExitStack() as stack:
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            stack.enter_context(ovn)
            yield RealOvn(ovn, stack)

    return opened


def simulated(chassis: int) -> Callable[[Path], AbstractAsyncContextManager[OvnWorld]]:
    """A simulated one."""

    @asynccontextmanager
    async def opened(_: Path) -> AsyncIterator[OvnWorld]:
        yield SimulatedWorld(*(f"ch-{number}" for number in range(1, chassis + 1)))

    return opened


def worlds(chassis: int) -> list[Subject[OvnWorld]]:
    """All of them."""
    return [Subject("simulated", simulated(chassis), run), Subject("real", real(chassis), run_real, component="ovn")]


async def next_batch(changes: AsyncIterator[frozenset[str]], limit_s: float = 10.0) -> frozenset[str]:
    """The next batch of changes."""
    async with asyncio.timeout(limit_s):
        return await anext(changes)


@contextlib.asynccontextmanager
async def reading(changes: AsyncIterator[frozenset[str]]) -> AsyncIterator[list[frozenset[str]]]:
    """The batches of a reader, as they come."""
    got: list[frozenset[str]] = []

    async def read() -> None:
        async for names in changes:
            got.append(names)

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    try:
        yield got
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
