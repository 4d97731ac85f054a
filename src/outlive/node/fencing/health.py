"""What a fault takes off the cluster's health, and the faults that fencing raises.

Health is 100 less what every fault takes that neither ended nor was acknowledged, and never below 0
(docs/concepts/safety.md).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from outlive.resources import Fault

FULL: Final = 100
"""Health without a fault."""


class FaultCode(enum.StrEnum):
    """Faults of fencing."""

    HOST_DEAD = "host-dead"
    FENCE_UNCONFIRMED = "fence-unconfirmed"
    FENCE_WAITS = "fence-waits"
    STORM = "storm-hold"
    RATE = "rate-hold"
    POWER_UNREACHABLE = "power-unreachable"
    CONTRADICTED = "proof-contradicted"
    CUT_FAILING = "cut-failing"
    CUT_FOUND = "cut-found"

    @property
    def delta(self) -> int:
        """What it takes off the cluster's health."""
        return _DELTAS[self]


_DELTAS: Final[dict[FaultCode, int]] = {
    FaultCode.HOST_DEAD: 50,
    FaultCode.FENCE_UNCONFIRMED: 50,
    FaultCode.FENCE_WAITS: 10,
    FaultCode.STORM: 50,
    FaultCode.RATE: 50,
    FaultCode.POWER_UNREACHABLE: 10,
    FaultCode.CONTRADICTED: 50,
    FaultCode.CUT_FAILING: 50,
    FaultCode.CUT_FOUND: 10,
}


def health(faults: Iterable[Fault]) -> int:
    """Of the cluster, 0 to 100."""
    return max(0, FULL - sum(fault.delta for fault in faults if not fault.ended and not fault.acknowledged))
