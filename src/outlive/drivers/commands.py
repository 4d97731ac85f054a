"""Runs a program in a child process that ends with the call: killed with its process group when the caller gives up.

What must not be on the command line of the program, where every user of the machine can read it, comes through
pipes: each ``feeds`` key among the arguments is replaced by the path of one, ``/dev/fd/N``. What it prints is read up
to a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from outlive.base.errors import LimitExceeded, Unavailable

OUTPUT_BYTES: Final = 2**18
"""Read of what a program prints, of each of its two streams, unless the caller expects more."""
FEED_BYTES: Final = 2**14
"""The largest feed: it fits into the pipe, so that nothing has to be written while the program runs."""
REAP_S: Final = 1.0
"""A killed program is waited for so long."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    code: int | None
    """``None``: it was killed, because it took longer than its limit."""
    out: str
    err: str


async def run(
    argv: Sequence[str],
    *,
    limit_s: float,
    feeds: Mapping[str, bytes] = {},
    env: Mapping[str, str] | None = None,
    output_bytes: int = OUTPUT_BYTES,
) -> Ended:
    """Run it to its end, or for ``limit_s``. ``Unavailable``: it cannot be started, and nothing happened."""
    readers: dict[str, int] = {}
    try:
        for key, feed in feeds.items():
            if len(feed) > FEED_BYTES:
                raise LimitExceeded(f"{len(feed)} bytes are more than {argv[0]} can be given")
            reader, writer = os.pipe()
            readers[key] = reader
            try:
                os.write(writer, feed)
            finally:
                os.close(writer)
        process = await _started(argv, readers, env)
    finally:
        for reader in readers.values():
            os.close(reader)
    parts = bytearray(), bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async with asyncio.TaskGroup() as group:
                for stream, part in zip((process.stdout, process.stderr), parts, strict=True):
                    assert stream is not None
                    group.create_task(_collect(stream, part, output_bytes))
            await process.wait()
    except TimeoutError:
        return Ended(None, *(bytes(part).decode(errors="replace") for part in parts))
    finally:
        await _killed(process)
    return Ended(process.returncode, *(bytes(part).decode(errors="replace") for part in parts))


async def _started(
    argv: Sequence[str], readers: Mapping[str, int], env: Mapping[str, str] | None
) -> asyncio.subprocess.Process:
    said = [f"/dev/fd/{readers[one]}" if one in readers else one for one in argv]
    try:
        return await asyncio.create_subprocess_exec(
            *said,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=tuple(readers.values()),
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not installed on this host", remedy=f"install {argv[0]}") from None
    except OSError as error:
        raise Unavailable(
            f"{argv[0]} cannot be started: {error.strerror}", remedy="see what this host lacks"
        ) from error


async def _collect(stream: asyncio.StreamReader, part: bytearray, limit: int) -> None:
    """All of it is read, so that the program does not stand still; what is over the limit is dropped."""
    while chunk := await stream.read(2**16):
        part += chunk[: max(0, limit - len(part))]


async def _killed(process: asyncio.subprocess.Process) -> None:
    """Nothing of its process group is left, where it had not ended by itself."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_S):
            await process.wait()
