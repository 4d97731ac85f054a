"""The clocks of one virtual host: the loop's time at a rate of its own, and a wall clock that may jump.

Nobody but the host's own processes reads them. Timers that the event loop sets by itself (``asyncio.timeout``) run at
the loop's rate; what measures or waits through ``Clock`` runs at the host's.
"""

from __future__ import annotations

import asyncio
from typing import Final

from outlive.base.clock import Instant

EPOCH_S: Final = 1_767_225_600.0
"""The wall clock when a story begins."""
_running_loop = asyncio.get_running_loop


class HostClock:
    """See the module; implements ``outlive.base.clock.Clock``."""

    def __init__(self, *, rate: float = 1.0) -> None:
        self._rate = rate
        self._loop_s = 0.0
        self._own_s = 0.0
        """What ``monotonic`` said at the loop's ``_loop_s``, when the rate changed last."""
        self._jumped_s = 0.0
        self._booted_s = 0.0

    def now(self) -> Instant:
        """The host's wall clock."""
        return Instant(EPOCH_S + self.monotonic() + self._jumped_s)

    def monotonic(self) -> float:
        """Seconds at the host's own rate."""
        return self._own_s + (_running_loop().time() - self._loop_s) * self._rate

    def boot_time(self) -> float:
        """Seconds since the host booted, what it was halted for included."""
        return self.monotonic() - self._booted_s

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds of this clock."""
        await asyncio.sleep(max(0.0, seconds) / self._rate)

    def boot(self) -> None:
        """The host boots now."""
        self._booted_s = self.monotonic()

    def set_rate(self, rate: float) -> None:
        """Run at ``rate`` from now on; what has passed stays."""
        self._own_s = self.monotonic()
        self._loop_s = asyncio.get_running_loop().time()
        self._rate = rate

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._jumped_s += seconds
