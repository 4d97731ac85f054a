"""Processes that outlive their starter, remembered by number and start time: no other is ever signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any


class LabError(Exception):
    """What went wrong, and what to do."""


def start_time(pid: int) -> str:
    """When a process started, as the kernel counts it; empty where it is gone or only waits to be reaped."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


PAUSE_FACTOR, PAUSE_MOST_S = 2.0, 0.5
"""How much longer than a look the pause after it is, and how long at most."""


def until(happened: Callable[[], Any], what: str, limit_s: float, every_s: float = 0.02) -> Any:
    """Wait for a condition and return its value; ``LabError`` when the limit is over."""
    end = time.monotonic() + limit_s
    while True:
        began_s = time.monotonic()
        value = happened()
        if value:
            return value
        if time.monotonic() > end:
            raise LabError(f"within {limit_s:g} s it never happened that {what}")
        pause(began_s, every_s)


def pause(began_s: float, every_s: float) -> None:
    """Sleep after a look that began then. After one that took long, because it started a program, sleep longer: the
    processor belongs to what is waited for."""
    took_s = time.monotonic() - began_s
    time.sleep(max(every_s, min(PAUSE_MOST_S, PAUSE_FACTOR * took_s)))


PORTS_FROM = 20_000
PORTS_OF_CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, and that the kernel gives to no client while their server is away."""
    end, random, found = int(PORTS_OF_CLIENTS.read_text().split()[0]), Random(), list[int]()
    with contextlib.ExitStack() as opened:
        while len(found) < count:
            one = opened.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody has it
                one.bind(("127.0.0.1", random.randrange(min(PORTS_FROM, end // 2), end)))
                found.append(int(one.getsockname()[1]))
    return found


def run(*command: str, stdin: str = "", limit_s: float = 60.0) -> str:
    """The output of a command; ``LabError`` with its last line where it fails."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s)
    except FileNotFoundError as error:
        raise LabError(f"{command[0]}: not installed; scripts/lab start installs what it needs as root") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(command)}: no end after {limit_s:g} s") from error
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise LabError(f"{' '.join(command)}: exit code {done.returncode}: {lines[-1]}")
    return done.stdout


class Process:
    """One process, known by the file that remembers it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def pid(self) -> int:
        """Its number; 0 where it does not run (any more)."""
        try:
            pid, started = self.file.read_text().split()
        except (OSError, ValueError):
            return 0
        return int(pid) if start_time(int(pid)) == started else 0

    def start(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, keep: Sequence[int] = ()
    ) -> int:
        """Start it unless it runs, in a session of its own; ``keep`` are descriptors that it inherits."""
        if self.pid:
            return self.pid
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            made = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=None if env is None else {**os.environ, **env},
                pass_fds=keep,
            )
        self.remember(made.pid)
        _CHILDREN.append(made)
        return made.pid

    def remember(self, pid: int) -> None:
        """Take over a process that somebody else started for this lab."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{pid} {start_time(pid)}")
        new.replace(self.file)

    def signal(self, number: int) -> bool:
        """Whether it was there to be signalled; by a handle that cannot mean another process."""
        try:
            handle = os.pidfd_open(self.pid or -1)
        except OSError:
            return False
        try:
            if not self.pid:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def stop(self, limit_s: float = 5.0) -> None:
        """End it: asked first, killed after the limit."""
        if self.signal(signal.SIGTERM):
            self.signal(signal.SIGCONT)
            with contextlib.suppress(LabError):
                until(lambda: not self._there(), "it ends", limit_s)
        self.kill()

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        if self.signal(signal.SIGKILL):
            until(lambda: not self._there(), f"{self.file.stem} dies", 10)
        self.file.unlink(missing_ok=True)

    def _there(self) -> int:
        for child in _CHILDREN[:]:
            if child.poll() is not None:
                _CHILDREN.remove(child)
        return self.pid


_CHILDREN: list[subprocess.Popen[bytes]] = []
"""What this very process started and has to reap."""
