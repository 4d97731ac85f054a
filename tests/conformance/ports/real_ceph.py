"""A real Ceph, and two hosts on its network: namespaces with an address each, whose clients are QEMU's and Ceph's own.

The cluster is started once for a run of tests, and each begins with new images and an empty list of blocked clients.
The images stay: Ceph removes none for half a minute after a client of it was killed, and they hold next to nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import msgspec
from lab.ceph import POOL, RIGHTS, Ceph
from lab.hosts import NET, Switch
from tests.conformance.claims import Subject
from tests.conformance.ports import harness
from tests.support.loops import run_real

from outlive.base import NotFound, SystemClock
from outlive.drivers.storage import CephCommands, CephStatistics, Cuts, Disks, RbdCut, RbdLocks, StorageSettings
from outlive.node.ports import CutPort, StoragePort, StorageStatisticsPort
from outlive.runtime import Duration

NUMBERS = {"ceph": 200, "a": 21, "b": 32}
REACHED_S = COMMAND_S = 30.0
START_S, TEST_S = 60.0, 120.0
"""Of the cluster, at its first use; and of one test, on a machine that is busy with others."""


class Cluster:
    """One Ceph on a switch, with two hosts."""

    def __init__(self) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="outlive-ceph-"))
        self.switch = Switch(self.state / "switch")
        address = f"{NET}.{NUMBERS['ceph']}"
        self.ceph = Ceph(self.state / "ceph", address, self._inside)
        atexit.register(self.stop)
        self.switch.start()
        for name, number in NUMBERS.items():
            self.switch.plug(f"host-{name}", number)
        self.ceph.start()
        self.keyring = self.ceph.make_user("outlive", **RIGHTS)

    def _inside(self, *words: str) -> list[str]:
        """Nothing of it outlives the tests, also where these are killed."""
        return ["setpriv", "--pdeathsig", "KILL", *self.switch.inside("host-ceph", *words)]

    def stop(self) -> None:
        self.ceph.stop()
        self.switch.stop()
        shutil.rmtree(self.state, ignore_errors=True)

    def program(self, host: str, name: str) -> str:
        """The program, as it runs on that host."""
        file = self.state / f"{host}-{name}"
        if not file.exists():
            file.write_text("#!/bin/sh\nexec " + " ".join(self.switch.inside(f"host-{host}", name)) + ' "$@"\n')
            file.chmod(0o700)
        return str(file)

    def settings(self, host: str) -> StorageSettings:
        return StorageSettings(
            ceph_conf=str(self.ceph.conf),
            ceph_keyring=str(self.keyring),
            ceph_program=self.program(host, "ceph"),
            rbd_program=self.program(host, "rbd"),
            command_limit=Duration(COMMAND_S),
        )


@cache
def cluster() -> Cluster:
    return Cluster()


class Writer:
    """A client of one host that has an image open, as a guest's disk is: QEMU's own."""

    def __init__(self, made: Cluster, host: str, image: str) -> None:
        disk = f"rbd:{image}:conf={made.ceph.conf}:id=admin"
        argv = made.switch.inside(f"host-{host}", "qemu-io", "-f", "raw", disk)
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def writes(self, limit_s: float = REACHED_S, pattern: int = 7) -> bool:
        """Whether a write that is sent now is taken."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"write -P {pattern} 0 4k\nflush\n".encode())
            self.process.stdin.flush()
        except OSError:
            return False
        end = time.monotonic() + limit_s
        while (left_s := end - time.monotonic()) > 0:
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                return False
            line = self.process.stdout.readline().decode()
            if "failed" in line or not line:
                return False
            if "wrote 4096" in line:
                return True
        return False

    def kill(self) -> None:
        self.process.kill()
        with self.process:  # closes its pipes
            self.process.wait()


class Killable:
    """A driver in a process that may be killed: its calls end with it, unanswered, and so do its children."""

    def __init__(self, port: Any, calls: set[asyncio.Task[Any]]) -> None:
        self._port = port
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        return self._called(found) if asyncio.iscoroutinefunction(found) else found

    def _called(self, method: Any) -> Any:
        async def call(*given: Any) -> Any:
            task = asyncio.ensure_future(method(*given))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            return await task

        return call


class RealCeph:
    """See ``harness.IsolationHarness``."""

    settle_s = 3.0

    def __init__(self, made: Cluster) -> None:
        self._made = made
        self._images = tuple(f"{POOL}/d{number}-{time.monotonic_ns()}" for number in (1, 2))
        self.scope = tuple(f"disk:rbd:{image}" for image in self._images)
        self._writers: dict[tuple[str, str], Writer] = {}
        self._resumed: list[asyncio.TimerHandle] = []
        for image in self._images:
            made.ceph.rbd("create", "--size", "16M", image)
        self._calls: set[asyncio.Task[Any]] = set()
        self._hosts = set(NUMBERS) - {"ceph"}

    async def _addresses(self, host: str) -> tuple[str, ...]:
        if host not in self._hosts:
            raise NotFound(f"the address of {host} is not known")
        return (self._address(host),)

    def _address(self, host: str) -> str:
        return f"{NET}.{NUMBERS[host]}"

    def driver(self, host: str = "b") -> CutPort:
        ceph = CephCommands(self._made.settings(host))
        own = self._address(host)
        cut = RbdCut(ceph, self._addresses, SystemClock(), host=host, own=own, lasts_s=3600.0)
        return cast("CutPort", Killable(Cuts({"rbd": cut}), self._calls))

    def storage(self, host: str = "b") -> StoragePort:
        return Disks(self._address(host), {"rbd": RbdLocks(CephCommands(self._made.settings(host)))}, {"rbd": "ceph"})

    def kill(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def reaches(self, host: str, epoch: int, one: str) -> bool:
        image = one.removeprefix("disk:rbd:")
        held = self._writers.get((host, image))
        if held is not None and held.writes():
            return True
        fresh = Writer(self._made, host, image)
        try:
            return fresh.writes()
        finally:
            fresh.kill()

    def slow_servers(self, seconds: float) -> None:
        """The storage daemon stands still so long; a client is connected by then whose map is an old one."""
        image = self._images[0]
        self._writers["a", image] = writer = Writer(self._made, "a", image)
        assert writer.writes()
        osd = self._made.ceph.osds[0]
        osd.signal(signal.SIGSTOP)
        self._resumed.append(asyncio.get_running_loop().call_later(seconds, osd.signal, signal.SIGCONT))

    def partition(self, host: str = "b") -> None:
        self._made.switch.isolate(f"host-{host}")

    def open_disk(self, disk: str, host: str) -> None:
        writer = Writer(self._made, host, disk.removeprefix("rbd:"))
        self._writers[host, disk] = writer
        assert writer.writes()

    def close(self) -> None:
        for handle in self._resumed:
            handle.cancel()
        self._made.ceph.osds[0].signal(signal.SIGCONT)
        for writer in self._writers.values():
            writer.kill()
        self._made.switch.heal()
        ceph = self._made.ceph
        for entry in ceph.asked("osd", "dump")["blocklist"]:
            ceph.ceph("osd", "blocklist", "rm", entry)
        for key in ceph.asked("config-key", "dump", "outlive/"):
            ceph.ceph("config-key", "rm", key)


class RealStatistics:
    """See ``harness.StatisticsHarness``."""

    limit_s = 5.0
    pools = (POOL, "device_health_metrics")

    def __init__(self, made: Cluster) -> None:
        self._made = made
        self._calls: set[asyncio.Task[Any]] = set()

    def driver(self, pools: tuple[str, ...] = ()) -> StorageStatisticsPort:
        settings = msgspec.structs.replace(
            self._made.settings("b"),
            rados_program=self._made.program("b", "rados"),
            volume_program=str(self._made.state / "nowhere"),
            statistics_limit=Duration(self.limit_s),
            pools=pools,
        )
        return cast("StorageStatisticsPort", Killable(CephStatistics(settings), self._calls))

    def kill(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def place(self, daemon: str, inside: bool) -> None:
        self._made.ceph.ceph("osd", "in" if inside else "out", daemon)

    def hang(self, servers: bool) -> None:
        for process in (self._made.ceph.mon, *self._made.ceph.osds):
            process.signal(signal.SIGSTOP if servers else signal.SIGCONT)

    def children(self) -> int:
        found = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
        return sum(_asks(pid) for pid in found)

    def close(self) -> None:
        self.hang(False)
        self.place("0", True)


def _asks(pid: str) -> bool:
    """Whether the process is a command of Ceph."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"--format" in words


@asynccontextmanager
async def _statistics(_: Path) -> AsyncIterator[harness.StatisticsHarness]:
    real = RealStatistics(cluster())
    try:
        yield real
    finally:
        real.close()


@asynccontextmanager
async def _ceph(_: Path) -> AsyncIterator[harness.IsolationHarness]:
    real = RealCeph(cluster())
    try:
        yield real
    finally:
        real.close()


CEPH: Subject[harness.IsolationHarness] = Subject(
    "Ceph", _ceph, partial(run_real, limit_s=START_S + TEST_S), component="ceph"
)
STATISTICS: Subject[harness.StatisticsHarness] = Subject(
    "Ceph", _statistics, partial(run_real, limit_s=START_S + TEST_S), component="ceph"
)
