"""What the daemon of a host looks at before it starts."""

from __future__ import annotations

import pytest

from outlive.base import LoopClock, Refused
from outlive.cli import check_clock
from outlive.runtime import run_virtual


def test_a_clock_before_2020_is_refused() -> None:
    async def checked(start: float) -> None:
        check_clock(LoopClock(start))

    run_virtual(checked(1_577_836_800.0))
    with pytest.raises(Refused, match=r"the clock says 1970-01-01, which is long past \(set it"):
        run_virtual(checked(0.0))
