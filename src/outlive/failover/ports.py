"""What failover needs of the outside: VMs, placement, and somewhere to compute.

``outlive.drivers`` implements these for the real world and ``outlive.simulation`` for the virtual one;
``outlive.roles`` hands them in. Every call may raise ``Unavailable``; none is retried here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from outlive.failover.calls import Call
from outlive.failover.planner.actions import PlacementOffer
from outlive.resources import decode_as, encode_canonical
from outlive.runtime import Decision


class PlacementPort(Protocol):
    """Who ranks hosts for a call of failover."""

    needs_candidates: bool
    """Whether calls that mean all hosts must name them."""

    async def offer(self, call: Call) -> PlacementOffer:
        """The hosts that may take it, best first; none is an answer too.

        Raises ``Unavailable``, ``BadInput``, or ``Refused`` where there is no host to ask about.
        """
        ...

    def equivalence_key(self, call: Call) -> Hashable | None:
        """A key: calls with the same one have the same answer at the same moment. ``None``: nobody knows."""
        ...


class Computer(Protocol):
    """Where a long decision is computed, so that the event loop stays free."""

    async def compute(self, decision: Decision[Any, Any], *raw: bytes) -> bytes:
        """The answer to a JSON input, as canonical JSON. ``Unavailable`` where it could not be computed.

        ``raw``: the input, whole or in parts that follow each other; a large one is moved part by part.
        """
        ...


class Inline:
    """Computes on the spot: for simulation, where everything is one process."""

    async def compute(self, decision: Decision[Any, Any], *raw: bytes) -> bytes:
        """The answer, at once."""
        return encode_canonical(decision.function(decode_as(decision.input, b"".join(raw))))
