"""A real guard between a watchdog that resets nothing and a tree of cgroups whose processes are real.

The tree is kept as the kernel would keep it: a thread takes processes out of ``cgroup.procs`` when they are dead, and
obeys ``cgroup.kill`` where a test put that file.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

T_S = 0.6
W_S = 0.8
WAIT_S = 30.0
"""For whatever must happen in the end."""


def boot_time_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def both(boot_s: float) -> dict[str, float]:
    """A moment, by its time on the one clock, on both: as a client of the guard names it."""
    apart_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    return {"bootS": boot_s, "rawS": boot_s - apart_s}


def until(happened: Callable[[], Any], what: str, limit_s: float = WAIT_S) -> Any:
    """Wait for a condition; returns its value."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = happened()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"within {limit_s} s it never happened that {what}")


class Watchdog:
    """A FIFO whose reader notes when it was fed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._end, self._ender = os.pipe()
        self.feeds: list[float] = []
        self.stopped = False
        """Whether the last thing said to it was to stop."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._ender)
        self._thread.join(WAIT_S)
        os.close(self._fd)
        os.close(self._end)

    def fed_after(self, moment_s: float, times: int = 1) -> bool:
        return sum(fed_s > moment_s for fed_s in self.feeds) >= times

    def _read(self) -> None:
        poll = selectors.SelectSelector()
        poll.register(self._fd, selectors.EVENT_READ)
        poll.register(self._end, selectors.EVENT_READ)
        while True:
            ready = [key.fd for key, _ in poll.select()]
            if self._end in ready:
                return
            now = boot_time_s()
            try:
                heard = os.read(self._fd, 4096)
            except BlockingIOError:
                heard = b""
            if not heard:
                time.sleep(0.005)  # no writer: the end of the file stays readable
                continue
            self.feeds.extend(now for byte in heard if byte == 0)
            self.stopped = heard.endswith(b"V")


class Cgroups:
    """The folder that all VMs are below, and the processes that are the VMs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self._vms: dict[str, subprocess.Popen[bytes]] = {}
        self._over = threading.Event()
        self.kernel_kills = 0
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """A VM in a group of its own."""
        vm = subprocess.Popen(["sleep", "300"])
        group = self.root / f"machine-{name}.scope" / "libvirt"
        group.mkdir(parents=True)
        (group.parent / "cgroup.procs").write_text("")
        self._list(group, [vm.pid])
        self._vms[name] = vm
        return vm

    def alive(self) -> int:
        return sum(vm.poll() is None for vm in self._vms.values())

    def close(self) -> None:
        self._over.set()
        self._thread.join(WAIT_S)
        for vm in self._vms.values():
            vm.kill()
            vm.wait()

    def _list(self, group: Path, pids: list[int]) -> None:
        new = self.root.parent / f"{group.parent.name}.procs"
        new.write_text("".join(f"{pid}\n" for pid in pids))
        new.replace(group / "cgroup.procs")

    def _keep(self) -> None:
        while not self._over.wait(0.01):
            kill = self.root / "cgroup.kill"
            if kill.exists() and kill.read_text() == "1":
                kill.write_text("")
                self.kernel_kills += 1
                for vm in list(self._vms.values()):
                    vm.kill()
            for name, vm in list(self._vms.items()):
                if vm.poll() is not None:
                    self._list(self.root / f"machine-{name}.scope" / "libvirt", [])


class Connection:
    """What a client of the guard can ask, by a connection that is made when it is needed."""

    def __init__(self, path: Path) -> None:
        self.socket = path
        self._connection: socket.socket | None = None
        self._connections: list[socket.socket] = []

    def connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(WAIT_S)
        connection.connect(str(self.socket))
        self._connections.append(connection)
        return connection

    def ask(self, do: str, **members: Any) -> dict[str, Any]:
        if self._connection is None:
            self._connection = self.connected()
        self._connection.sendall(json.dumps({"id": 1, "do": do, **members}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            chunk = self._connection.recv(65536)
            assert chunk, "the guard hung up"
            answer += chunk
        return json.loads(answer)

    def status(self) -> dict[str, Any]:
        return self.ask("status")

    def beat(self, sent_at_s: float | None = None, epoch: int = 1) -> dict[str, Any]:
        return self.ask("beat", sent=both(boot_time_s() if sent_at_s is None else sent_at_s), epoch=epoch)

    def arm(self, timeout_s: float = T_S, watchdog_s: float = W_S) -> float:
        """Armed by a fresh beat; returns when that beat was sent."""
        sent_s = boot_time_s()
        assert self.beat(sent_s)["ok"]
        assert self.ask("arm", timeoutS=timeout_s, watchdogS=watchdog_s)["ok"]
        return sent_s

    def in_phase(self, *phases: str) -> bool:
        return self.status()["phase"] in phases

    def forget(self) -> None:
        """The next request makes a new connection."""
        self._connection = None

    def hang_up(self) -> None:
        for connection in self._connections:
            connection.close()


class Guard(Connection):
    """The process, and a connection to it."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder / "guard.sock")
        self.log = folder / "guard.log"
        self._options = options
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        before = self.text().count("guard.started")
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "outlive", "guard", "--socket", str(self.socket), *self._options], stderr=log
            )
        until(lambda: self.text().count("guard.started") > before or process.poll() is not None, "the guard started")
        return process

    def again(self) -> None:
        """Another process after the first has died."""
        self.forget()
        self.process = self._started()

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        self.hang_up()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


DAEMON = """
import contextlib, json, os, socket, sys, threading, time
path, hog = sys.argv[1], sys.argv[2:] == ["hog"]
guard = socket.socket(socket.AF_UNIX)
guard.connect(path)
lines = guard.makefile("rb")
def beat():
    sent = time.clock_gettime(time.CLOCK_BOOTTIME)
    both = {"bootS": sent, "rawS": time.clock_gettime(time.CLOCK_MONOTONIC_RAW)}
    guard.sendall(json.dumps({"id": 1, "do": "beat", "sent": both, "epoch": 1}).encode() + b"\\n")
    lines.readline()
    print(sent, flush=True)
def beats():
    with contextlib.suppress(OSError):  # however busy the machine is: it is late where the test has it be late
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while True:
        beat()
        time.sleep(0.03)
if hog:
    threading.Thread(target=beats, daemon=True).start()
    sys.stdin.readline()
    print("hogging", flush=True)
    number = 1
    while True:
        number = pow(3, 20_000_000)
else:
    beats()
"""


class Daemon:
    """A process that renews and tells the guard, from a thread where it is to hog the interpreter."""

    def __init__(self, guard: Guard, *how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(guard.socket), *how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.beats: list[float] = []
        self.hogging_s = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def hog(self) -> None:
        """Hold the interpreter in one call of C for seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        until(lambda: self.hogging_s, "the daemon hogs")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(WAIT_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == b"hogging":
                self.hogging_s = boot_time_s()
            else:
                self.beats.append(float(line))


@contextlib.contextmanager
def closing(thing: Any) -> Iterator[Any]:
    try:
        yield thing
    finally:
        thing.close()
