"""Keeps programs of the host running: starts them, waits for their end, and starts them again after a pause.

Each program has a name, and leads a process group of its own. What it printed last is kept for the fault that names it.
Which processes run stands in a file, so that those of a daemon that was killed are ended before anything is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import Clock, OutliveError, get_logger, start_time, write_whole

BACKOFF_S: Final = 0.5
BACKOFF_CAP_S: Final = 30.0
SETTLED_S: Final = 0.5
"""A program that runs for so long counts as started."""
STEADY_S: Final = 60.0
"""After so long a run the first pause is short again."""
TERM_S: Final = 0.2
"""From TERM to KILL."""
STOP_S: Final = 2.0
"""All programs that are stopped together have ended within."""
TAIL_LINES: Final = 5
LINE_CHARACTERS: Final = 200

_log = get_logger("services")


@dataclass(slots=True)
class SupervisedProgram:
    """One program that is to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    prepare: Callable[[], Awaitable[None]] | None
    """Called before each start, such as to write a file that the program reads then."""
    why: str = "it is being started"
    """Why it does not run; empty: it does."""
    task: asyncio.Task[None] | None = None
    process: asyncio.subprocess.Process | None = None
    tail: list[str] = field(default_factory=list)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it counts as started, or has failed once."""


class Supervisor:
    """See the module. ``file``: where the running processes are noted; ``watch`` is called with each."""

    def __init__(self, file: Path, clock: Clock, *, watch: Callable[[int], None] | None = None) -> None:
        self._file = file
        self._clock = clock
        self._watch = watch
        self._programs: dict[str, SupervisedProgram] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Stops that are under way, also those whose callers were cancelled."""

    def list_failures(self) -> dict[str, str]:
        """Programs that do not run → why."""
        return {name: one.why for name, one in self._programs.items() if one.why and one.settled.is_set()}

    @property
    def names(self) -> frozenset[str]:
        """Programs that are to run."""
        return frozenset(self._programs)

    def keep(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> SupervisedProgram:
        """Have a program of this name run from now on; there is none of the name so far."""
        if name in self._programs:
            raise ValueError(f"{name} runs already")
        program = SupervisedProgram(tuple(argv), dict(env or {}), prepare)
        program.task = asyncio.create_task(self._supervise(name, program), name=f"program {name}")
        self._programs[name] = program
        return program

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a program, if it runs."""
        program = self._programs.get(name)
        if program is not None and program.process is not None and program.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                program.process.send_signal(number)

    async def stop(self, names: Collection[str]) -> None:
        """Stop these programs, all at once; they end also where the caller is cancelled meanwhile."""
        chosen = [self._programs.pop(name) for name in names if name in self._programs]
        if chosen:
            ending = asyncio.create_task(self._end(chosen), name="programs end")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        await asyncio.shield(asyncio.gather(*self._ending))

    async def _end(self, chosen: Sequence[SupervisedProgram]) -> None:
        for program in chosen:
            if program.task is not None:
                program.task.cancel()
        if tasks := [one.task for one in chosen if one.task is not None]:
            await asyncio.wait(tasks)
        running = [one.process for one in chosen if one.process is not None and one.process.returncode is None]
        for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, STOP_S - TERM_S)):
            for process in running:
                send_to_group(process.pid, number)
            if running:
                waits = [asyncio.ensure_future(process.wait()) for process in running]
                _, late = await asyncio.wait(waits, timeout=wait_s)
                for wait in late:
                    wait.cancel()
            running = [process for process in running if process.returncode is None]
        for process in running:
            _log.error("services.program_not_ended", pid=process.pid)
        try:
            self._note()
        except OSError as error:  # it says too much, which the times of the processes put right
            _log.warning("services.programs_not_noted", why=str(error))

    async def stop_all(self) -> None:
        """Stop every program."""
        await self.stop(self.names)

    def end_leftovers(self) -> int:
        """Kill what a former daemon left running; how many there were."""
        try:
            noted = msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return 0
        left = [int(pid) for pid, started in noted.items() if pid.isdecimal() and start_time(int(pid)) == started]
        for pid in left:
            send_to_group(pid, signal.SIGKILL)
        return len(left)

    async def _supervise(self, name: str, program: SupervisedProgram) -> None:
        pause_s = BACKOFF_S
        while True:
            began = self._clock.monotonic()
            try:
                await self._run_once(name, program)
            except FileNotFoundError as error:
                missing = error.filename in (program.argv[0], None)
                program.why = f"{program.argv[0]} is not installed" if missing else f"{program.argv[0]}: {error}"
            except (OSError, OutliveError, ValueError) as error:
                program.why = f"{program.argv[0]}: {error}"
            program.settled.set()
            _log.warning("services.program_ended", program=name, why=program.why)
            pause_s = BACKOFF_S if self._clock.monotonic() - began >= STEADY_S else pause_s
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_CAP_S)

    async def _run_once(self, name: str, program: SupervisedProgram) -> None:
        if program.prepare is not None:
            await program.prepare()
        process = program.process = await asyncio.create_subprocess_exec(
            *program.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **program.env},
            start_new_session=True,
        )
        try:
            if self._watch is not None:
                self._watch(process.pid)
            self._note()
        except (OSError, OutliveError):  # nobody would end it after this daemon
            send_to_group(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        program.tail.clear()
        reading = asyncio.create_task(_read_tail(process, program.tail))
        try:
            ended = asyncio.ensure_future(process.wait())
            await asyncio.wait((ended,), timeout=SETTLED_S)
            if not ended.done():
                program.why = ""
                program.settled.set()
                _log.info("services.program_runs", program=name, pid=process.pid)
            await ended
            await asyncio.wait((reading,), timeout=SETTLED_S)
        finally:
            reading.cancel()
        send_to_group(process.pid, signal.SIGKILL)  # helpers that it left behind
        code = process.returncode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        program.why = ": ".join([f"{program.argv[0]} {how}", *program.tail[-1:]])

    def _note(self) -> None:
        """Write down which processes run; ``OSError``, and what was there before stays."""
        pids = [one.process.pid for one in self._programs.values() if one.process is not None]
        noted = {str(pid): started for pid in pids if (started := start_time(pid))}
        write_whole(self._file, msgspec.json.encode(noted))


async def _read_tail(process: asyncio.subprocess.Process, tail: list[str]) -> None:
    """Keep the last lines of what a program prints; a line that is too long is dropped."""
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:
            continue
        if not line:
            return
        tail.append(line.decode(errors="replace").strip()[:LINE_CHARACTERS])
        del tail[:-TAIL_LINES]


def send_to_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to a process and all of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
