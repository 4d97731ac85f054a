"""``RoleGuardPort``: the process that takes back what only the primary has, and what the daemon tells it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlive.base.errors import Unavailable
from outlive.base.logging import get_logger
from outlive.drivers.services import role_guard_program

CLOSE_S: Final = 3.0
ARGV: Final = (sys.executable, "-I", "-S", role_guard_program.__file__)

_log = get_logger("services")


class RoleGuard:
    """See the module."""

    def __init__(self, file: Path, argv: Sequence[str] = ARGV) -> None:
        self._argv = argv
        self._file = file
        """Notes what is held, for a daemon that starts after this one was killed together with its guard."""
        self._process: asyncio.subprocess.Process | None = None
        self._told: dict[tuple[str, str], None] = {}
        """Addresses that a new process is told again."""

    async def start(self) -> None:
        """Start the process, if none runs."""
        if self._process is not None and self._process.returncode is None:
            return
        try:
            self._process = await asyncio.create_subprocess_exec(*self._argv, stdin=asyncio.subprocess.PIPE)
        except OSError as error:
            raise Unavailable(
                f"{self._argv[0]} cannot be started: {error}", remedy="see what this host lacks"
            ) from error
        for device, address in self._told:
            self._tell(f"hold {device} {address}")

    async def extend(self, seconds: float) -> None:
        """The role is this host's for so long from now."""
        self._tell(f"until {time.clock_gettime(time.CLOCK_BOOTTIME) + seconds:.3f}")

    async def hold(self, device: str, address: str) -> None:
        """Remember an address."""
        self._told[device, address] = None
        self._note()
        self._tell(f"hold {device} {address}")

    async def leftovers(self) -> Sequence[tuple[str, str]]:
        """What a former daemon has noted."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[tuple[str, str]])
        except (OSError, msgspec.DecodeError):
            return ()

    def _note(self) -> None:
        self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._file.write_bytes(msgspec.json.encode(list(self._told)))

    async def release(self, device: str, address: str) -> None:
        """Forget an address."""
        self._told.pop((device, address), None)
        self._note()
        if self._process is not None and self._process.returncode is None:
            self._tell(f"release {device} {address}")

    def watch(self, pid: int) -> None:
        """Have the process group of a program end as well."""
        if self._process is not None and self._process.returncode is None:
            self._tell(f"process {pid}")

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

    def _tell(self, line: str) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise Unavailable("the guard of the primary's addresses does not run", remedy="see the log of the daemon")
        process.stdin.write(f"{line}\n".encode())
