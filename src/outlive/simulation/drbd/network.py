"""The nodes of a DRBD cluster, the links between them, and the time that things take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from outlive.base import Clock, NotFound, Random
from outlive.runtime import outside_parts

MESSAGE_S: Final = 0.008
"""A peer hears of a change."""
TOUCH_S: Final = 0.001
"""A peer takes part in an agreement, which shows as a line without values."""
RESET_S: Final = 0.002
"""The other end of a connection hears that it was closed."""
TEARDOWN_S: Final = ((0.004, 0.014), (0.0005, 0.012), (0.0005, 0.007))
"""From the loss to the closed path, to ``Unconnected``, to ``Connecting``."""
HANDSHAKE_S: Final = ((0.02, 0.05), (0.006, 0.03))
"""From the established path to the agreement, to ``Connected``."""
RESOLUTION_S: Final = (0.04, 0.06)
"""A survivor is ``Consistent`` for so long before it knows that it is ``UpToDate``."""
FORCED_END_S: Final = 0.007
"""From a forced demotion to its end, if nobody has the device open."""
DETACH_S: Final = 0.05
"""From ``Failed`` to ``Diskless``."""
WRITE_S: Final = 0.0005
"""A write takes at least this."""


class DrbdTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all connections, and how long data takes."""

    ping_interval_s: float = 10.0
    ping_timeout_s: float = 0.5
    connect_interval_s: float = 10.0
    resync_s: float = 2.0
    """A replica that returns gets what it missed."""


class DrbdNetwork:
    """See the module. Timers run in no part of a virtual cluster: a kernel does not stop with its processes."""

    def __init__(self, clock: Clock, random: Random, nodes: Iterable[str], times: DrbdTimes) -> None:
        self.clock = clock
        self.random = random
        self.times = times
        self.nodes = tuple(nodes)
        self.down: set[str] = set()
        self._broken: set[tuple[str, str]] = set()
        """From a node, to a node."""

    def check_node(self, node: str) -> None:
        """``NotFound`` for one that there is not."""
        if node not in self.nodes:
            raise NotFound(f"node {node} does not exist", remedy=f"use {', '.join(self.nodes)}")

    def cut(self, a: str, b: str, *, one_way: bool) -> None:
        """Nothing passes from ``a`` to ``b``, nor back unless ``one_way``."""
        self._broken.add((a, b))
        if not one_way:
            self._broken.add((b, a))

    def heal(self, a: str, b: str) -> None:
        """Everything passes again, both ways."""
        self._broken -= {(a, b), (b, a)}

    def is_passing(self, a: str, b: str) -> bool:
        """Whether what ``a`` sends reaches ``b``."""
        return (a, b) not in self._broken and a not in self.down and b not in self.down

    def is_working(self, a: str, b: str) -> bool:
        """Whether a connection can live: packets pass both ways."""
        return self.is_passing(a, b) and self.is_passing(b, a)

    def draw_delay_s(self, limits: tuple[float, float]) -> float:
        """Seconds between these."""
        return self.random.uniform(*limits)

    def call_later(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        """Call a function later."""
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, function, *arguments, context=outside_parts())
