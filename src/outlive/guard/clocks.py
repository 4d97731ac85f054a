"""How long something took, by two clocks of the kernel that fail in different ways.

``CLOCK_BOOTTIME`` goes on while the host sleeps, and a time service may steer it: chrony by up to 8.3 % unless told
otherwise. ``CLOCK_MONOTONIC_RAW`` is steered by nobody, and stands still while the host sleeps. A process that must not
act too late counts the larger of the two, one that must not act too early the smaller; what is left of the error is the
crystal's. Readings of one host may be compared, those of two may not.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple


class Instants(NamedTuple):
    """One moment on both clocks, in seconds since the host started."""

    boot_s: float
    raw_s: float

    def elapsed_since(self, earlier: Instants) -> tuple[float, float]:
        """What passed on each clock."""
        return self.boot_s - earlier.boot_s, self.raw_s - earlier.raw_s


START: Final = Instants(0.0, 0.0)
"""Of the host."""


def max_elapsed(earlier: Instants, now: Instants) -> float:
    """Seconds that passed at most."""
    return max(now.elapsed_since(earlier))


def min_elapsed(earlier: Instants, now: Instants) -> float:
    """Seconds that passed at least."""
    return min(now.elapsed_since(earlier))


def read_clocks() -> Instants:
    """Now."""
    return Instants(time.clock_gettime(time.CLOCK_BOOTTIME), time.clock_gettime(time.CLOCK_MONOTONIC_RAW))
