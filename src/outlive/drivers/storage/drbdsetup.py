"""Runs ``drbdsetup`` for the storage agent: each command in a child that is killed at its limit, with what it started.

What a command prints is read up to a limit: a longer document is cut, and so is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

from outlive.base import Unavailable
from outlive.drivers.commands import run
from outlive.storage import DOCUMENT_BYTES, CommandOutput

LOADED: Final = Path("/proc/drbd")
NO_LIMIT_S: Final = 365 * 86_400.0
"""For commands that may take as long as they like."""
LINE_BYTES: Final = 2**16
"""The longest line of the events stream; a longer one ends it."""
REAP_S: Final = 5.0


class DrbdSetup:
    """``DrbdTool`` of this machine. ``program``: its ``drbdsetup``."""

    def __init__(self, program: str = "drbdsetup", loaded: Path = LOADED) -> None:
        self._program = program
        self._loaded = loaded

    async def is_loaded(self) -> bool:
        """See ``DrbdTool``."""
        try:
            await asyncio.to_thread(os.stat, self._loaded)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    async def run(self, argv: Sequence[str], *, limit_s: float | None) -> CommandOutput:
        """See ``DrbdTool``."""
        words = [self._program, *argv[1:]]
        ended = await run(words, limit_s=limit_s or NO_LIMIT_S, output_bytes=DOCUMENT_BYTES)
        return CommandOutput(
            argv=tuple(argv),
            exit=None if ended.killed else ended.code,
            timed_out=ended.killed,
            stdout=ended.out,
            stderr=ended.err,
        )

    async def follow_events(self) -> AsyncGenerator[str, None]:
        """See ``DrbdTool``."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._program,
                "events2",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{self._program} cannot be started: {error.strerror}") from None
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                yield line.decode(errors="replace").rstrip("\n")
        except ValueError:
            raise Unavailable(f"{self._program} events2 printed a line of more than {LINE_BYTES} bytes") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REAP_S):
                        await process.wait()
