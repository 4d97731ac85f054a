"""Long searches for plans, in a child process and ended by the clock.

A search is measured in steps, so that its answer does not depend on the machine; the clock only ends one that takes
much longer than was asked for, and then the answer says so. Whoever interrupts the command ends the child with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from outlive.base.clock import Clock, SystemClock
from outlive.drivers.child import ChildComputer
from outlive.failover.planner.plan import PlanInput, PlanResult
from outlive.failover.planner.repack import RepackInput, RepackResult, repack
from outlive.failover.planner.replan import replan
from outlive.resources.codec import decode_as, encode_canonical
from outlive.runtime.decisions import Decision

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
    return replan(given, keep_going=time_for(given.effort_s, SystemClock()))


def repack_in_time(given: RepackInput) -> RepackResult:
    """Likewise for a live state."""
    return repack(given, keep_going=time_for(given.effort_s, SystemClock()))


_PLAN: Final = Decision(
    "failover.replan",
    plan_in_time,
    PlanInput,
    PlanResult,
    "Slots for a whole fleet",
)
_REPACK: Final = Decision("failover.repack", repack_in_time, RepackInput, RepackResult, "Which members move")


async def search_plan(given: PlanInput, at: Callable[[int, int], None]) -> PlanResult:
    """Plan in a child process. ``at`` is told how many seconds of how many have passed."""
    return await _search(_PLAN, given, given.effort_s, at)


async def search_repacking(given: RepackInput, at: Callable[[int, int], None]) -> RepackResult:
    """Look for moves in a child process."""
    return await _search(_REPACK, given, given.effort_s, at)


async def _search(
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


def time_for(effort_s: float, clock: Clock) -> Callable[[], bool]:
    """Whether a search of so many nominal seconds may go on; its time begins when it first asks.

    What comes before the search, the greedy plan of a large fleet, is not its time.
    """
    end: float | None = None

    def goes_on() -> bool:
        nonlocal end
        now = clock.monotonic()
        if end is None:
            end = now + OVERTIME * effort_s + SPARE_S
        return now < end

    return goes_on
