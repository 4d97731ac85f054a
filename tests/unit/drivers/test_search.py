"""How long a search may take by the clock, so that its answer depends on the machine only if it has to."""

from __future__ import annotations

import asyncio

from outlive.base import LoopClock
from outlive.drivers import OVERTIME, SPARE_S, start_timer
from outlive.runtime import run_virtual

GREEDY_S = 300.0
"""What the greedy plan of a fleet may take before its search begins."""


def asked(effort_s: float, *moments: float) -> list[bool]:
    """What a search is told at those moments after its begin, which comes after a long greedy plan."""

    async def main() -> list[bool]:
        goes_on = start_timer(effort_s, LoopClock())
        await asyncio.sleep(GREEDY_S)
        begun, reported = asyncio.get_running_loop().time(), [goes_on()]
        for moment in moments:
            await asyncio.sleep(begun + moment - asyncio.get_running_loop().time())
            reported.append(goes_on())
        return reported

    return run_virtual(main())


def test_what_comes_before_a_search_is_not_its_time() -> None:
    assert asked(2.0) == [True]


def test_a_search_is_ended_by_the_clock() -> None:
    end = OVERTIME * 60.0 + SPARE_S
    assert asked(60.0, end - 0.1, end + 0.1) == [True, True, False]


def test_a_short_search_is_not_ended_because_the_machine_is_busy_for_seconds() -> None:
    assert asked(1.0, 10.0) == [True, True]
