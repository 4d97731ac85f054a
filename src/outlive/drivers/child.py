"""Computes long decisions in a child process, so that the event loop stays free.

A decision is a pure function that is importable by its module and name; its input and answer travel as JSON. One child
computes one decision at a time and is kept for the next. A child that dies, or takes longer than the deadline, is
``Unavailable``: the cycle that asked ends, and the next one gets a new child. A child ends with its parent, also with
one that is killed.

A long search for a plan is measured in steps, so that its answer does not depend on the machine; the clock only ends
one that takes much longer than was asked for, and then the answer says so. A caller that interrupts it ends the child.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

import msgspec

from outlive.base import Clock, OutliveError, SystemClock, Unavailable
from outlive.failover.planner import PlanInput, PlanResult, RepackInput, RepackResult
from outlive.failover.planner.repack import repack
from outlive.failover.planner.replan import replan
from outlive.resources import decode_as, encode_canonical
from outlive.runtime import Decision

DEADLINE_S: Final = 120.0
"""How long one decision may take."""
PORTION_BYTES: Final = 512 * 1024
"""Of an input in parts so much is sent at once: whatever is sent holds the interpreter's lock while it is copied."""


class ChildComputer:
    """A ``Computer`` in a process of its own; started at its first use."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Lock()
        """The parts of one input follow each other."""

    async def compute(self, decision: Decision[Any, Any], *raw: bytes) -> bytes:
        """The answer to a JSON input, as canonical JSON."""
        try:
            pickle.dumps(decision)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise Unavailable(
                f"{decision.name} cannot be sent to a child process: {error}", remedy="make it importable by its name"
            ) from error
        async with self._turn:
            try:
                if self._pool is None:
                    context = multiprocessing.get_context("spawn")
                    self._pool = ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_prepare)
                return await asyncio.wait_for(self._send_parts(self._pool, decision, raw), self._deadline_s)
            except (BrokenProcessPool, TimeoutError) as error:
                self.abandon()
                late = isinstance(error, TimeoutError)
                why = f"no answer within {self._deadline_s:g} s" if late else "its process died"
                raise Unavailable(
                    f"{decision.name} could not be computed: {why}", remedy="the next cycle tries again"
                ) from error
            except RuntimeError as error:
                raise Unavailable(f"{decision.name} was refused: {error}", remedy="see the log of the child") from error

    async def _send_parts(
        self, pool: ProcessPoolExecutor, decision: Decision[Any, Any], raw: tuple[bytes, ...]
    ) -> bytes:
        """What the child answers, once it has all parts."""
        loop = asyncio.get_running_loop()
        *before, last = split_portions(raw)
        for number, portion in enumerate(before):
            await loop.run_in_executor(pool, _receive, portion, number)
        return await loop.run_in_executor(pool, _compute, decision, last, len(before))

    async def close(self) -> None:
        """Let the child go."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, lambda: pool.shutdown(cancel_futures=True))

    def abandon(self) -> None:
        """End the child, whatever it is doing."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)  # the child is dead, so that this does not wait


def _prepare() -> None:
    """In the child: Ctrl-C in the terminal is the parent's business, and nothing goes on once the parent is dead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def split_portions(raw: Iterable[bytes]) -> Iterator[bytes]:
    """The same, in parts that are large enough to be worth a message; at least one."""
    waiting, size = list[bytes](), 0
    for part in raw:
        if waiting and size + len(part) > PORTION_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += len(part)
    yield b"".join(waiting)


_received: list[bytes] = []
"""In the child: portions of an input that is on its way. One that never came whole is forgotten with the next one."""


def _receive(portion: bytes, number: int) -> None:
    del _received[number:]
    _received.append(portion)


def _compute(decision: Decision[Any, Any], last: bytes, number: int) -> bytes:
    """In the child: errors of ours travel as their text, because they do not pickle with their fields."""
    raw = b"".join((*_received[:number], last))
    _received.clear()
    try:
        return encode_canonical(decision.function(decode_as(decision.input, raw)))
    except OutliveError as error:
        raise RuntimeError(str(error)) from None


OVERTIME: Final = 1.5
"""How many times the effort a search may take by the clock."""
SPARE_S: Final = 10.0
"""What it may take beyond that: a machine that is busy for seconds does not change what a short search finds."""
GRACE_S: Final = 120.0
"""What everything besides the search may take: the greedy plan of a large fleet."""
LOOK_S: Final = 0.5
"""Seconds between two looks at how far it is."""

R = TypeVar("R")


def plan_in_time(given: PlanInput) -> PlanResult:
    """The plan, its search ended by the clock if need be."""
    return replan(given, keep_going=start_timer(given.effort_s, SystemClock()))


def repack_with_limit(given: RepackInput) -> RepackResult:
    """Likewise for a live state."""
    return repack(given, keep_going=start_timer(given.effort_s, SystemClock()))


_PLAN: Final = Decision(
    "failover.replan",
    plan_in_time,
    PlanInput,
    PlanResult,
    "Slots for a whole fleet",
)
_REPACK: Final = Decision("failover.repack", repack_with_limit, RepackInput, RepackResult, "Which members move")


async def search_plan(given: PlanInput, at: Callable[[int, int], None]) -> PlanResult:
    """Plan in a child process. ``at`` is called with how many seconds of how many have passed."""
    return await _run_search(_PLAN, given, given.effort_s, at)


async def search_repacking(given: RepackInput, at: Callable[[int, int], None]) -> RepackResult:
    """Look for moves in a child process."""
    return await _run_search(_REPACK, given, given.effort_s, at)


async def _run_search(
    decision: Decision[Any, R], given: msgspec.Struct, effort_s: float, at: Callable[[int, int], None]
) -> R:
    clock: Clock = SystemClock()
    computer = ChildComputer(deadline_s=OVERTIME * effort_s + SPARE_S + GRACE_S)
    work = asyncio.ensure_future(computer.compute(decision, encode_canonical(given)))
    begun = clock.monotonic()
    try:
        while not work.done():
            await asyncio.wait([work], timeout=LOOK_S)
            at(min(int(clock.monotonic() - begun), int(effort_s)), max(1, int(effort_s)))
        result: R = decode_as(decision.output, work.result())
    except BaseException:
        work.cancel()
        computer.abandon()
        raise
    await computer.close()
    return result


def start_timer(effort_s: float, clock: Clock) -> Callable[[], bool]:
    """Whether a search of so many nominal seconds may go on; its time begins when it first asks.

    What comes before the search, the greedy plan of a large fleet, is not its time.
    """
    end: float | None = None

    def has_time() -> bool:
        nonlocal end
        now = clock.monotonic()
        if end is None:
            end = now + OVERTIME * effort_s + SPARE_S
        return now < end

    return has_time
