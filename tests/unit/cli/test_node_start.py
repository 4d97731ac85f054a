"""What the daemon of a host looks at before it starts."""

from __future__ import annotations

import asyncio

import pytest

from outlive.base import LoopClock, Refused
from outlive.cli import check_clock


def test_a_clock_before_2020_is_refused() -> None:
    async def checked(start: float) -> None:
        check_clock(LoopClock(start))

    asyncio.run(checked(1_577_836_800.0))
    with pytest.raises(Refused, match=r"the clock says 1970-01-01, which is long past \(set it"):
        asyncio.run(checked(0.0))
