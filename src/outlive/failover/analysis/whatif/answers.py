"""What ``outlive whatif`` answers: one form for all questions, whose members programs may rely on.

The names on the wire are documented in docs/design/failover.md#what-if.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from outlive.base import count_of, join_parts
from outlive.failover.analysis.coverage import Numbers, Uncovered
from outlive.failover.analysis.drain.inputs import DrainObstacle, Step
from outlive.failover.planner.actions import Leave

T = TypeVar("T")


class WhatIfTolerance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Failures that every VM which needs slots survives."""

    fleet: int
    zones: dict[str, int]


class Pair(msgspec.Struct, Generic[T], frozen=True, kw_only=True, rename="camel"):
    """Something as it is, as the planner would make it without the change, and as it would be with it."""

    before: T
    planned: T | None = None
    """Absent where nothing is planned: emptying hosts changes only what it has to."""
    after: T | None = None
    """Absent where it cannot be."""


class Landed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM and the host that it comes to."""

    vm: str
    source: str = ""
    """Where it was; empty for a new VM."""
    host: str
    slot: str = ""
    """The slot of its own that it takes, after a failure."""


class Unplaced(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that finds no host."""

    vm: str
    reason: str


class Short(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many hosts like this one are short in a zone."""

    zone: str
    hosts: int
    like: str


class WholeRemedy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What gives everybody all slots, as the planner finds it: planning anew, or hosts besides."""

    hosts: int | None
    """Hosts that are short; 0: a plan without any does; ``None``: no number up to the limits was found."""
    by: tuple[Short, ...] = ()

    @property
    def text(self) -> str:
        """For people."""
        if self.hosts == 0:
            return "a plan covers everybody: `outlive failover plan --apply`"
        if self.hosts is None:
            return "no number of further hosts was found, within the limits, with which a plan covers everybody"
        each = [
            f"{count_of(one.hosts, 'more host')} like {one.like}" + (f" in zone {one.zone}" if one.zone else "")
            for one in self.by
        ]
        return f"with {join_parts(each)} a plan covers everybody"


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer; every member is always there."""

    question: str
    possible: bool
    """For emptying hosts: whether there is an order; else whether everybody has a place and full coverage."""
    proven: bool = True
    """Of a no: whether it is certain, and not only what the planner found."""
    coverage: Pair[Numbers]
    tolerance: Pair[WhatIfTolerance]
    moves: tuple[Landed, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    order: tuple[Step, ...] = ()
    """Emptying hosts: the steps, one after the other."""
    closed: tuple[str, ...] = ()
    """Slots that vanish."""
    displaced: tuple[Leave, ...] = ()
    """Memberships that end."""
    obstacles: tuple[DrainObstacle, ...] = ()
    weaker: dict[str, int] = {}
    """VM → failures that it tolerates now, where that is less than was asked to be kept."""
    uncovered: tuple[Uncovered, ...] = ()
    """Who has not all slots afterwards, and why."""
    keep: int | None = None
    keep_possible: int | None = None
    """Where there is no order: the largest tolerance below the one asked for that an order was found for."""
    short_hosts: int | None = 0
    """Hosts that are short for a yes; ``None`` where more hosts do not help, or more than the limit would."""
    short_by: tuple[Short, ...] = ()
    most: int | None = None
    limit: str = ""
    """The named limit that ended a search, if one did."""
