"""The log of a daemon in the store: the last lines, for people who are not on its host.

A call that logs does not wait: it puts its line into a list with a limit, and one task writes the lines now and then,
all together. What cannot be written is written with the next ones, as far as it is kept then. Of this task itself
nothing is logged, or a store that is away would fill the log with that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

from outlive.base import Clock, OutliveError, as_datetime, deadline
from outlive.resources import LOG_BYTES, LOG_LINES, HostLog, ObjectMeta
from outlive.runtime import Periodic
from outlive.store import Store, compare_and_swap

EVERY_S: Final = 2.0
"""Pause between two writes."""
WRITE_S: Final = 5.0
"""How long one may take."""
FLUSH_S: Final = 15.0
"""How long the end of a daemon waits for the last one."""
LINE_CHARACTERS: Final = 1000
"""What is kept of a line."""
TRIES: Final = 2


class HostLogWriter:
    """See the module. ``process``: which one logs; ``lines``: how many are kept at most."""

    def __init__(self, store: Store, host: str, *, clock: Clock, process: str, lines: int) -> None:
        self._store = store
        self._host = host
        self._clock = clock
        self._process = process
        self._most = lines
        self._waiting: deque[str] = deque(maxlen=LOG_LINES)
        self._dropped = 0
        self._kept: list[str] = []
        self._last = 0
        self._begun = False
        """Whether the lines of the process before this one were taken over."""
        self._written = 0

    def put(self, text: str) -> None:
        """Add what was logged; from any thread."""
        for line in text.encode(errors="replace").decode().splitlines():  # a lone surrogate cannot be written
            if line:
                self._dropped += len(self._waiting) == LOG_LINES
                self._waiting.append(line[:LINE_CHARACTERS])

    async def run(self) -> None:
        """Write what was put, until cancelled."""
        await Periodic(partial(self.write, WRITE_S), EVERY_S, clock=self._clock, wait_first=True).run()

    async def flush(self) -> None:
        """The last write."""
        await self.write(FLUSH_S)

    async def write(self, limit_s: float) -> None:
        """What was put since the last write that succeeded."""
        new = [self._waiting.popleft() for _ in range(len(self._waiting))]
        dropped, self._dropped = self._dropped, 0
        self._last += len(new) + dropped
        self._kept = trim_lines([*self._kept, *new], self._most)
        if self._last == self._written:
            return
        try:
            with deadline(limit_s):
                await compare_and_swap(
                    self._store, HostLog, self._host, self._change_log, clock=self._clock, tries=TRIES
                )
        except (OutliveError, TimeoutError):
            return
        self._begun, self._written = True, self._last

    def _change_log(self, found: HostLog | None) -> HostLog:
        if not self._begun and found is not None and found.process != self._process:
            self._begun, self._kept = True, trim_lines([*found.lines, *self._kept], self._most)
        return HostLog(
            metadata=ObjectMeta(name=self._host) if found is None else found.metadata,
            process=self._process,
            last=self._last,
            lines=tuple(self._kept),
            written_at=as_datetime(self._clock.now()),
        )


def trim_lines(lines: list[str], most: int) -> list[str]:
    """The last ones, so many at most, and of ``LOG_BYTES`` together."""
    lines, left, kept = lines[-most:] if most else [], LOG_BYTES, 0
    for line in reversed(lines):
        left -= len(line.encode(errors="replace")) + 1
        if left < 0:
            break
        kept += 1
    return lines[len(lines) - kept :]


def lines_since(found: HostLog, process: str, last: int) -> Iterable[str]:
    """Lines that are newer than line ``last`` of ``process``, as far as they are kept."""
    new = found.last - last if found.process == process else found.last
    return found.lines[-new:] if new > 0 else ()
