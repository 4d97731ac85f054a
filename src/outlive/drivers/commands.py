"""Runs a program in a child process that ends with the call: killed with its process group when the caller gives up.

What must not be on the command line of the program, where every user of the machine can read it, comes through
pipes: each ``feeds`` key among the arguments is replaced by the path of one, ``/dev/fd/N``. What it prints is read up
to a limit. Decision ``command.result`` gives code and text of however it ended
(docs/design/node-decisions.md#commandresult).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from outlive.base import BadInput, LimitExceeded, Unavailable
from outlive.runtime import Decision

OUTPUT_BYTES: Final = 2**18
"""Read of what a program prints, of each of its two streams, unless the caller expects more."""
FEED_BYTES: Final = 2**14
"""The largest feed: it fits into the pipe, so that nothing has to be written while the program runs."""
REAP_S: Final = 1.0
"""A killed program is waited for so long."""


TIMED_OUT: Final = 128
"""Code of a program that took longer than its limit."""
FAILED: Final = 255
"""Code of one that could not be run."""


class CommandInput(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    event: Literal["exit", "timeout", "exception"]
    code: int | None = None
    """Its exit code; after ``exit`` only."""
    stdout: str | None = None
    """What it printed; null where that is no text."""
    background: bool = False
    """Whether nobody waits for it."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller gets."""

    code: int
    stdout: str | None


def command_result(given: CommandInput) -> CommandResult:
    """Code and text. ``BadInput`` for an exit without a code."""
    if given.background:
        return CommandResult(code=0, stdout=None)
    if given.event == "timeout":
        return CommandResult(code=TIMED_OUT, stdout="")
    if given.event == "exception":
        return CommandResult(code=FAILED, stdout="")
    if given.code is None:
        raise BadInput("an exit without a code", place="code", remedy="write the exit code")
    return CommandResult(code=given.code, stdout=given.stdout or "")


COMMAND_RESULT: Final = Decision(
    "command.result", command_result, CommandInput, CommandResult, "Code and text of a program that was run"
)


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """How a program ended."""

    code: int
    out: str
    err: str
    killed: bool = False
    """Whether it took longer than its limit."""
    partial: str = ""
    """What one that was killed had printed by then."""


async def run(
    argv: Sequence[str],
    *,
    limit_s: float,
    feeds: Mapping[str, bytes] = {},
    env: Mapping[str, str] | None = None,
    output_bytes: int = OUTPUT_BYTES,
    stdin: bytes = b"",
) -> ProgramExit:
    """Run it to its end, or for ``limit_s``; ``stdin``: what it reads from there.

    ``Unavailable``: it cannot be started, and nothing happened.
    """
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
        process = await _start_process(argv, readers, env, fed=bool(stdin))
    finally:
        for reader in readers.values():
            os.close(reader)
    parts, killed = (bytearray(), bytearray()), False
    try:
        async with asyncio.timeout(limit_s):
            async with asyncio.TaskGroup() as group:
                for stream, part in zip((process.stdout, process.stderr), parts, strict=True):
                    assert stream is not None
                    group.create_task(_collect(stream, part, output_bytes))
                if process.stdin is not None:
                    group.create_task(_feed(process.stdin, stdin))
            await process.wait()
    except TimeoutError:
        killed = True
    finally:
        await _kill_process(process)
    out, err = (bytes(part).decode(errors="replace") for part in parts)
    given = CommandInput(event="timeout" if killed else "exit", code=process.returncode, stdout=out)
    result = COMMAND_RESULT.function(given)
    return ProgramExit(result.code, result.stdout or "", err, killed=killed, partial=out if killed else "")


async def _start_process(
    argv: Sequence[str], readers: Mapping[str, int], env: Mapping[str, str] | None, *, fed: bool = False
) -> asyncio.subprocess.Process:
    arguments = [f"/dev/fd/{readers[one]}" if one in readers else one for one in argv]
    try:
        return await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE if fed else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=tuple(readers.values()),
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not installed on this host", remedy=f"install {argv[0]}") from None
    except (OSError, ValueError) as error:  # such as an argument with a zero in it
        why = getattr(error, "strerror", None) or error
        raise Unavailable(f"{argv[0]} cannot be started: {why}", remedy="see what this host lacks") from error


async def _feed(stream: asyncio.StreamWriter, given: bytes) -> None:
    """A program that does not read it to its end is not to blame for that."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(given)
        await stream.drain()
    stream.close()


async def _collect(stream: asyncio.StreamReader, part: bytearray, limit: int) -> None:
    """All of it is read, so that the program does not stand still; what is over the limit is dropped."""
    while chunk := await stream.read(2**16):
        part += chunk[: max(0, limit - len(part))]


async def _kill_process(process: asyncio.subprocess.Process) -> None:
    """Nothing of its process group is left, where it had not ended by itself."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_S):
            await process.wait()
