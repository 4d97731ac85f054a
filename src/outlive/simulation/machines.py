"""The machine under one virtual host: its cord, its boots, its clocks, its disk, its watchdog device.

Power goes on and off by cord or by switch (a BMC, the front button); a boot takes a while and gets a new
boot id; what was written to the disk survives. The watchdog is hardware: it runs on while the kernel stands still, and
resets the machine W seconds after it was fed last. Its clock is the loop's, whatever the kernel's says.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from outlive.base import FasterOf, Ids, Instant, SlowerOf
from outlive.guard import Instants
from outlive.node.fencing import is_unset, system_key
from outlive.node.membership import RememberedMembership
from outlive.resources import Amounts, Capabilities
from outlive.runtime import outside_parts
from outlive.simulation.process import Process

SHORTEST_SLEEP_S: Final = 1e-6
"""A wait for a moment that is a rounding error away gets there."""
RESET_S: Final = 1.0
"""From a reset to the power-on test of the next boot."""
RESET_TAKES_S: Final = 1.9
"""From when a watchdog fires until nothing runs any more: the most that fencers allow for beside the guard's own tick
(``outlive.node.fencing.proofs.GUARD_SLACK_S``)."""
EPOCH_S: Final = 1_767_225_600.0
"""The wall clock when a story begins."""


class HostClock:
    """The clocks of one host (``outlive.base.clock.Clock``), and what is wrong with them.

    The crystal runs at a rate of its own and nobody steers it (``raw_s``); a time service steers the others by a factor
    on top of that (``boot_s``, ``now``). While the host sleeps only those go on. Nobody but the host's own processes
    reads them. Timers that the event loop sets by itself (``asyncio.timeout``) run at the loop's rate; what measures or
    waits through ``Clock`` runs at the host's.
    """

    def __init__(self) -> None:
        self._loop_time = asyncio.get_running_loop().time
        self._rate = 1.0
        self._slew = 1.0
        self._asleep = False
        self._at_s = 0.0
        """Of the loop: when any of these changed last; the readings of that moment follow."""
        self._raw_s = 0.0
        self._steered_s = 0.0
        self._jumped_s = 0.0
        self._booted = Instants(0.0, 0.0)
        self.monotonic = SlowerOf(self._read_steered, self._read_raw)
        """Seconds at the slower of the host's rates."""
        self.latest = FasterOf(self._read_steered, self._read_raw)
        """Seconds at the faster one."""

    def now(self) -> Instant:
        """The host's wall clock."""
        return Instant(EPOCH_S + self._read_steered() + self._jumped_s)

    def read_clocks(self) -> Instants:
        """Both clocks of the kernel, since the host booted."""
        return Instants(*Instants(self._read_steered(), self._read_raw()).elapsed_since(self._booted))

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds of ``monotonic``, as fast as it runs now."""
        loop_s = seconds / self.pace
        await asyncio.sleep(max(SHORTEST_SLEEP_S, loop_s) if seconds > 0 else 0.0)

    def boot(self) -> None:
        """The host boots now."""
        self._note()
        self._asleep = False
        self._booted = Instants(self._steered_s, self._raw_s)

    @property
    def pace(self) -> float:
        """Seconds of its slowest clock in one second."""
        return self._rate * min(1.0, self._slew)

    def set_rate(self, rate: float) -> None:
        """The crystal runs at ``rate`` from now on; what has passed stays."""
        self._note()
        self._rate = rate

    def set_slew(self, slew: float) -> None:
        """A time service has its clocks run so much faster or slower than the crystal from now on."""
        self._note()
        self._slew = slew

    def set_asleep(self, asleep: bool) -> None:
        """The host falls asleep, or wakes up."""
        self._note()
        self._asleep = asleep

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._jumped_s += seconds

    def _passed_s(self) -> float:
        return self._loop_time() - self._at_s

    def _read_steered(self) -> float:
        return self._steered_s + self._passed_s() * self._rate * self._slew

    def _read_raw(self) -> float:
        return self._raw_s + (0.0 if self._asleep else self._passed_s() * self._rate)

    def _note(self) -> None:
        """What the clocks say now, before their rates change."""
        self.monotonic()
        self.latest()
        self._at_s, self._steered_s, self._raw_s = self._loop_time(), self._read_steered(), self._read_raw()


class SimWatchdog:
    """The device: armed, fed, and the one who resets."""

    def __init__(self, fires: Callable[[], None]) -> None:
        self.broken = False
        """It never fires."""
        self.armed = False
        self.timeout_s = 0.0
        self.fed_at = 0.0
        self._fires = fires
        self._timer: asyncio.TimerHandle | None = None

    def start(self, timeout_s: float) -> None:
        """Armed from now on."""
        self.armed, self.timeout_s = True, timeout_s
        self.feed()

    def feed(self) -> None:
        """So many seconds more."""
        if not self.armed:
            return
        self.fed_at = asyncio.get_running_loop().time()
        if self._timer is None:
            self._set(self.timeout_s)

    def stop(self) -> None:
        """End cleanly, or because the machine is off."""
        self.armed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._handle_timer, context=outside_parts())

    def _handle_timer(self) -> None:
        self._timer = None
        left_s = self.fed_at + self.timeout_s - asyncio.get_running_loop().time()
        if left_s > 1e-9:
            self._set(left_s)
        elif self.armed:
            self.armed = False
            if not self.broken:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(RESET_TAKES_S, self._fires, context=outside_parts())


class Machine:
    """See the module. ``up`` is called when the kernel has booted, ``down(how)`` when everything on it has ended."""

    def __init__(
        self,
        name: str,
        *,
        ids: Ids,
        capacity: Amounts,
        boot_s: float,
        up: Callable[[], None],
        down: Callable[[str], None],
    ) -> None:
        self.name = name
        self._installation = ids.new_uuid()
        self.system_uuid = ids.new_uuid()
        """What a BMC, and its own firmware, say of it."""
        self.boot_id = ""
        self.boots = 0
        self.boot_s = boot_s
        self.clock = HostClock()
        self.capacity = capacity
        self.load: Callable[[], float] = lambda: 0.0
        """How many cores its guests keep busy; the owner of the guests says it."""
        self.measured: Callable[[], Amounts | None] = lambda: None
        """What is in use of it, as its kernel would say; ``None``: nobody measures it. Said by its host as well."""
        self.remembered: RememberedMembership | None = None
        self.disk_stall = 0.0
        """The share of time in which everything waits for its own disks."""
        self.disk_full = False
        """Whether its own disk takes nothing more."""
        self.lacks = ""
        """What it does not have and a guard needs before it may be armed; empty: it has all."""
        self.misses = ""
        """Why its guard would not end its guests; empty: it would."""
        self.lock: Process | None = None
        """Who has the lock that admits one daemon."""
        self.fed = False
        """Whether its power cord carries power."""
        self.switched_on = False
        self.running = False
        self.watchdog = SimWatchdog(self.reset)
        self._ids = ids
        self._up, self._down = up, down
        self._booting: asyncio.TimerHandle | None = None

    @property
    def machine_id(self) -> str:
        """As a real one says it (``outlive.drivers.machine``)."""
        board = "" if is_unset(self.system_uuid) else system_key(self.system_uuid)
        return f"{self._installation}.{board}" if board else self._installation

    @property
    def powered(self) -> bool:
        """Whether current flows, running or booting."""
        return self.fed and self.switched_on

    def plug(self, *, at_once: bool = False) -> None:
        """Power comes back, and it boots."""
        self.fed = True
        self.switch_on(at_once=at_once)

    def unplug(self) -> None:
        """The feed fails."""
        self.fed = False
        self._end("lost power")

    def switch_on(self, *, at_once: bool = False) -> None:
        """By controller or button; nothing happens without power in the cord."""
        if not self.fed or (self.switched_on and (self.running or self._booting is not None)):
            return
        self.switched_on = True
        self._boot(0.0 if at_once else self.boot_s)

    def switch_off(self) -> None:
        """By controller or button."""
        if self.switched_on:
            self.switched_on = False
            self._end("was switched off")

    def reset(self) -> None:
        """By the watchdog: all is gone, and it boots again."""
        if self.powered:
            self._end("was reset by its watchdog")
            self._boot(RESET_S + self.boot_s)

    def replace_hardware(self) -> None:
        """Other hardware under the same name, with an empty disk."""
        self._installation, self.system_uuid, self.remembered = self._ids.new_uuid(), self._ids.new_uuid(), None

    def _end(self, how: str) -> None:
        if self._booting is not None:
            self._booting.cancel()
            self._booting = None
        self.watchdog.stop()
        self.lock = None
        if self.running:
            self.running = False
            self._down(how)

    def _boot(self, after_s: float) -> None:
        if after_s == 0.0:
            self._finish_boot()
            return
        self._booting = asyncio.get_running_loop().call_later(after_s, self._finish_boot, context=outside_parts())

    def _finish_boot(self) -> None:
        self._booting = None
        self.boots += 1
        self.boot_id = self._ids.new_uuid()
        self.clock.boot()
        self.running = True
        self._up()


class MachineClient:
    """The machine as one process on it sees it: ``MachinePort``."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine = machine
        self._process = process

    def machine_id(self) -> str:
        """Of the machine."""
        return self._machine.machine_id

    def boot_id(self) -> str:
        """Of the running kernel."""
        return self._machine.boot_id

    async def read_remembered(self) -> RememberedMembership | None:
        """From its disk."""
        self._process.check()
        await asyncio.sleep(0)
        self._process.check()
        return self._machine.remembered

    async def remember(self, remembered: RememberedMembership) -> None:
        """To its disk, synced."""
        self._process.check()
        await asyncio.sleep(0.001 + self._machine.disk_stall)
        self._process.check()
        if self._machine.disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._machine.remembered = remembered

    def lock(self) -> bool:
        """The lock goes with the process that has it."""
        owner = self._machine.lock
        if owner is not None and owner.alive and owner is not self._process:
            return False
        self._machine.lock = self._process
        return True

    def read_capacity(self) -> Amounts:
        """What it has for VMs."""
        return self._machine.capacity

    def read_capabilities(self) -> Capabilities:
        """Nobody says."""
        return Capabilities()

    def read_load(self) -> float:
        """What its guests keep busy."""
        return self._machine.load()

    def read_usage(self) -> Amounts | None:
        """What a timeline says that is in use, if it says so."""
        return self._machine.measured()

    def disk_stall(self) -> float | None:
        """What its disks make everything wait."""
        return self._machine.disk_stall


# What becomes of its hypervisor


@dataclass(slots=True)
class Latencies:
    """How long a hypervisor takes, in seconds, from and to."""

    look: tuple[float, float] = (0.005, 0.02)
    create: tuple[float, float] = (0.3, 1.2)
    destroy: tuple[float, float] = (0.05, 0.4)
    migrate: tuple[float, float] = (2.0, 6.0)
    downtime: tuple[float, float] = (0.05, 0.3)
    service: tuple[float, float] = (0.3, 1.0)
    shutdown: tuple[float, float] = (2.0, 8.0)


@dataclass(slots=True)
class HypervisorFaults:
    """What goes wrong on one host, until it is taken away."""

    start_fails: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    """VM (or ``*``) → the reason, how often yet, and whether that is in its definition."""
    slow_starts_s: float = 0.0
    """Added to each start."""
    ignores_shutdown: dict[str, bool] = field(default_factory=dict)
    """VMs whose guest ignores a shutdown."""
    migration: str = ""
    """Where the next migration from here fails: ``precopy``, ``paused``, ``sent``, ``last``."""
    outside: bool = False
    """Processes of guests begin outside the slice that the guard empties."""
    autostart: tuple[str, ...] = ()
    """What else starts domains, as the daemon reads it."""
    unkillable: dict[str, bool] = field(default_factory=dict)
    """VMs whose process hangs in the kernel, so that no signal ends it."""
    lag_s: float = 0.0
    """Added to whatever the hypervisor is asked."""
    lost_answers: float = 0.0
    """Of calls that are carried out and answered ``Unknown``."""
