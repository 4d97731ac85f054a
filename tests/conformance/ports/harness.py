"""What a driver has to bring to be run through the suites: itself, and hands on the world behind it.

A harness is the world: hosts, servers, controllers. ``driver`` gives the port as a new process reaches it; everything
else is what no daemon can do or see. A real one stops services, kills processes, counts them in ``/proc``, delays
packets; what it cannot do it skips (``pytest.skip``). Enter it into the list of its suite, and it has to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from outlive.base import Unknown
from outlive.guard import Instants
from outlive.node.ports import (
    CutPort,
    GuardPort,
    HypervisorPort,
    MachinePort,
    PowerPort,
    PowerState,
    StoragePort,
    StorageStatisticsPort,
)
from outlive.resources import Hypervisor, VirtualMachine

T = TypeVar("T")


async def perhaps(call: Awaitable[T]) -> T | None:
    """The answer of a call that may be lost: it was carried out, and the caller has to look."""
    with contextlib.suppress(Unknown):
        return await call
    return None


async def within(call: Awaitable[T], seconds: float) -> T:
    """The answer, or ``TimeoutError``: the caller's own deadline."""
    async with asyncio.timeout(seconds):
        return await call


class ProcessHarness(Protocol):
    """The process that drivers work in: a daemon."""

    def kill(self) -> None:
        """Kill the process of the last driver, as ``kill -9``: its calls are never answered."""
        ...


class HypervisorHarness(ProcessHarness, Protocol):
    """Two hosts, ``a`` and ``b``, that can send guests to each other."""

    settle_s: float
    """After so long what was asked for has happened, or never will."""
    pace: float
    """How long a migration takes beside a simulated one of some seconds."""

    def driver(self, host: str = "a") -> HypervisorPort:
        """For a new process on that host."""
        ...

    def vm(self, name: str) -> VirtualMachine:
        """A VM that both hosts can run."""
        ...

    def busy_vm(self, name: str) -> VirtualMachine:
        """One that changes its memory all the time."""
        ...

    def vm_with_disk(self, name: str, target: str) -> VirtualMachine:
        """The same VM, whose definition has one more disk, which a guest that runs gets without being asked."""
        ...

    def processes(self, vm: str, host: str = "a") -> int:
        """Processes of the VM there, known to the port or not."""
        ...

    def executes(self, vm: str, host: str = "a") -> bool:
        """Whether the guest runs there at this moment: its CPUs, not its process alone."""
        ...

    def both_ran(self, vm: str) -> bool:
        """Whether the guest ever ran on both hosts at the same moment."""
        ...

    def stop_service(self, host: str = "a") -> None:
        """As the guard does it."""
        ...

    def lose_track(self, vm: str) -> None:
        """The service of ``a`` forgets the guest, whose process goes on."""
        ...

    def outside_slice(self) -> None:
        """Processes on ``a``, those there and those to come, are outside the guests' slice."""
        ...

    def autostart(self) -> None:
        """The service of ``a`` has a domain that it starts by itself."""
        ...

    def foreign(self, name: str) -> str:
        """Somebody starts a domain on ``a`` that Outlive did not make; its UUID."""
        ...

    def crash(self, vm: str) -> None:
        """The guest on ``a`` crashes, or what waits for one there, or is left of one."""
        ...

    def hang(self, vm: str) -> None:
        """No signal ends the VM's process on ``a``."""
        ...

    def fail_start(self, vm: str) -> None:
        """The next start of it on ``a`` fails."""
        ...

    def fail_migration(self, phase: str) -> None:
        """The next one from ``a`` fails: ``precopy``, ``paused`` (before all was sent), ``sent``, ``last`` (after)."""
        ...

    def freeze(self, host: str = "a") -> None:
        """The whole host stands still."""
        ...

    def thaw(self, host: str = "a") -> None:
        """It goes on."""
        ...

    def reboot(self, host: str = "a") -> None:
        """It loses power and boots."""
        ...


class PowerHarness(ProcessHarness, Protocol):
    """Hosts ``a`` and ``b`` with controllers, and ``c`` without one; all are on."""

    settle_s: float

    def driver(self) -> PowerPort:
        """For a new process."""
        ...

    def host(self, name: str) -> Hypervisor:
        """As the store describes it."""
        ...

    def is_on(self, host: str) -> bool:
        """Whether current flows."""
        ...

    def boots(self, host: str) -> int:
        """How often it booted."""
        ...

    def commands(self, host: str) -> int:
        """Power commands that its controller has received."""
        ...

    def set_mode(self, host: str, mode: str) -> None:
        """Of its controller: ``ok``, ``dead``, ``slow`` (answers after six seconds or more), ``lying``."""
        ...

    def wire(self, host: str, to: str) -> None:
        """The controller at the address of ``host`` is another host's."""
        ...


class IsolationHarness(ProcessHarness, Protocol):
    """Storage and network of hosts ``a`` and ``b``, and what their clients use of them."""

    scope: tuple[str, ...]
    """Two disks, and ports where they are in the driver's power."""
    settle_s: float
    """After so long what a killed process had asked for has happened, or never will."""

    def driver(self, host: str = "b") -> CutPort:
        """For a new process on that host."""
        ...

    def storage(self, host: str = "b") -> StoragePort:
        """The same."""
        ...

    def reaches(self, host: str, epoch: int, one: str) -> bool:
        """Whether a client of the host that was started in that epoch reaches this part of ``scope`` now.

        Of any server that enforces: one that has not heard of a cut counts.
        """
        ...

    def slow_servers(self, seconds: float) -> None:
        """Some servers hear of a cut so much later than it is on record."""
        ...

    def partition(self, host: str = "b") -> None:
        """The host does not reach the storage network."""
        ...

    def open_disk(self, disk: str, host: str) -> None:
        """A client of the host opens it and takes the lock."""
        ...


class StatisticsHarness(ProcessHarness, Protocol):
    """A storage cluster with daemons that are in, and some pools."""

    limit_s: float
    """How long a round may take in which nothing is answered."""
    pools: tuple[str, ...]
    """Those that there are."""

    def driver(self, pools: tuple[str, ...] = ()) -> StorageStatisticsPort:
        """For a new process; ``pools``: those that it is to report, none: all."""
        ...

    def place(self, daemon: str, inside: bool) -> None:
        """Data is placed on the daemon, or not."""
        ...

    def hang(self, servers: bool) -> None:
        """All servers stand still, or go on."""
        ...

    def children(self) -> int:
        """Processes that the driver has started and that are still there."""
        ...


class MachineHarness(ProcessHarness, Protocol):
    """A machine that runs."""

    def driver(self) -> MachinePort:
        """For a new process."""
        ...

    def halt(self) -> None:
        """Let the process of the last driver stand still."""
        ...

    def lose_power(self) -> None:
        """Now: what the disk was not told to keep is gone; then it boots."""
        ...

    def fill_disk(self, full: bool) -> None:
        """The disk takes nothing more, or does again."""
        ...


class GuardHarness(ProcessHarness, Protocol):
    """A host with a guard, and VMs that it may have to kill."""

    def driver(self) -> GuardPort:
        """For a new daemon."""
        ...

    def instants(self, ago_s: float = 0.0) -> Instants:
        """The host's clocks, as they were so long ago."""
        ...

    def kill_guard(self) -> None:
        """It is not there any more."""
        ...

    def halt_guard(self) -> None:
        """It stands still."""
        ...


__all__ = [
    "GuardHarness",
    "HypervisorHarness",
    "IsolationHarness",
    "MachineHarness",
    "PowerHarness",
    "PowerState",
    "StatisticsHarness",
    "perhaps",
    "within",
]
