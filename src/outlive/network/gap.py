"""How long a guest was not heard while it moved, from probes (docs/reference/network-decisions.md#networkgap)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

import msgspec

from outlive.base.errors import BadInput
from outlive.runtime.decisions import Decision


class ProbesMissing(BadInput):
    """Nobody probed the guest in the time that is asked about."""

    code = "probes-missing"


class GuestProbe(msgspec.Struct, frozen=True, kw_only=True):
    """One probe."""

    at: Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
    """When it was sent, in seconds."""
    answered: bool = False


class GapInput(msgspec.Struct, frozen=True, kw_only=True):
    """Probes of a guest, and from when on they count."""

    start: float | None = msgspec.field(default=None, name="from")
    """In seconds; ``None``: from the first one."""
    probes: tuple[GuestProbe, ...] = ()


class GapResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Two measures of one silence, in whole milliseconds; both ``None`` while the guest is down."""

    gap_ms: int | None
    """The longest time from one answer to the next."""
    silent_ms: int | None
    """The longest time from the first of some unanswered probes to the next answer."""
    down: bool
    """The last probe has no answer."""


def measure_gap(given: GapInput) -> GapResult:
    """The longest silence of the guest; ``ProbesMissing`` for none at or after the start."""
    counted = [one for one in given.probes if given.start is None or one.at >= given.start]
    probes = sorted(counted, key=lambda one: one.at)
    if not probes:
        raise ProbesMissing("no probe was sent since then", remedy="probe until the move is over")
    if not probes[-1].answered:
        return GapResult(gap_ms=None, silent_ms=None, down=True)
    answers = [one.at for one in probes if one.answered]
    gap = max((later - earlier for earlier, later in pairwise(answers)), default=0.0)
    return GapResult(gap_ms=round(gap * 1000), silent_ms=round(_longest_silence(probes) * 1000), down=False)


def _longest_silence(probes: Sequence[GuestProbe]) -> float:
    longest, since = 0.0, None
    for probe in probes:
        if not probe.answered:
            since = probe.at if since is None else since
        elif since is not None:
            longest, since = max(longest, probe.at - since), None
    return longest


GAP: Final = Decision(
    "network.gap",
    measure_gap,
    GapInput,
    GapResult,
    "How long a guest was not heard",
    nulls_are_absent=True,
)
