"""``RoleGuardPort``: the process that takes back what only the primary has, and what the daemon sends to it."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import Unavailable, get_logger, start_time
from outlive.drivers.services import role_guard_program

CLOSE_S: Final = 3.0
STUCK_S: Final = 2.0
"""A process that has not read what was sent to it for so long is killed, and another one is started."""
ARGV: Final = (sys.executable, "-I", "-S", role_guard_program.__file__)

_log = get_logger("services")


class RoleGuard:
    """See the module."""

    def __init__(self, file: Path, argv: Sequence[str] = ARGV) -> None:
        self._argv = argv
        self._file = file
        """Notes what this host has, for a daemon that starts after this one was killed together with its guard."""
        self._process: asyncio.subprocess.Process | None = None
        self._until = 0.0
        """Until when the role is this host's, by the clock that goes on while a machine sleeps."""
        self._addresses: dict[tuple[str, str], None] = {}
        """Addresses that a new process is sent again …"""
        self._programs: dict[int, str] = {}
        """… and programs, each with the time of its start, as another one may have its number by then."""
        self._read_at = 0.0
        """When the process had read all that was sent to it."""

    async def start(self) -> None:
        """Start the process, if none runs, or the one that runs reads nothing, as a stopped one."""
        if self._process is not None and self._process.returncode is None:
            if not self._is_stuck():
                return
            _log.error("services.role_guard_stuck", pid=self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        try:
            self._process = await asyncio.create_subprocess_exec(*self._argv, stdin=asyncio.subprocess.PIPE)
        except OSError as error:
            self._process = None
            raise Unavailable(
                f"{self._argv[0]} cannot be started: {error}", remedy="see what this host lacks"
            ) from error
        self._read_at = time.monotonic()
        self._send(f"until {self._until:.3f}")  # first, or it would take back what follows
        for device, address in self._addresses:
            self._send(f"hold {device} {address}")
        for pid, started in self._programs.items():
            self._send(f"process {pid} {started}")

    async def extend(self, seconds: float) -> None:
        """The role is this host's for so long from now."""
        self._until = time.clock_gettime(time.CLOCK_BOOTTIME) + seconds
        self._send(f"until {self._until:.3f}")

    async def hold(self, device: str, address: str) -> None:
        """Remember an address."""
        self._addresses[device, address] = None
        self._note()
        self._send(f"hold {device} {address}")

    async def list_leftovers(self) -> Sequence[tuple[str, str]]:
        """What a former daemon has noted; it stays noted until it is released."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=list[tuple[str, str]])
        except (OSError, msgspec.DecodeError):
            return ()
        self._addresses |= dict.fromkeys(found)
        return found

    async def release(self, device: str, address: str) -> None:
        """Forget an address."""
        self._addresses.pop((device, address), None)
        self._note()
        if self._process is not None and self._process.returncode is None:
            self._send(f"release {device} {address}")

    def watch(self, pid: int) -> None:
        """Have the process group of a program end as well."""
        self._programs = {one: started for one, started in self._programs.items() if start_time(one) == started}
        if started := start_time(pid):
            self._programs[pid] = started
            if self._process is not None and self._process.returncode is None:
                self._send(f"process {pid} {started}")

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await process.wait()
        except TimeoutError:
            _log.warning("services.role_guard_not_ended", pid=process.pid)

    def _note(self) -> None:
        """Write down what this host has: all of it, or what was there before. A boot takes the addresses with it."""
        new = self._file.with_name(f".{self._file.name}.new")
        try:
            self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.encode(list(self._addresses)))
            new.replace(self._file)
        except OSError as error:
            what = f"{self._file}: the primary's addresses cannot be noted: {error.strerror or error}"
            raise Unavailable(what, remedy="see services.publicDir of node.yaml, and the room there") from error

    def _is_stuck(self) -> bool:
        """Whether the process has not read what it was sent for longer than it may take."""
        pipe = self._process.stdin.transport if self._process is not None and self._process.stdin is not None else None
        unread, now_s = array.array("i", [0]), time.monotonic()
        if isinstance(pipe, asyncio.WriteTransport) and not pipe.is_closing():
            with contextlib.suppress(OSError, ValueError):
                fcntl.ioctl(pipe.get_extra_info("pipe").fileno(), termios.FIONREAD, unread)
        if unread[0] == 0:
            self._read_at = now_s
        return now_s - self._read_at >= STUCK_S

    def _send(self, line: str) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise Unavailable("the guard of the primary's addresses does not run", remedy="see the log of the daemon")
        process.stdin.write(f"{line}\n".encode())
