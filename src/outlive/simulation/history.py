"""What happened in a run, in order: what stories tell, what violations quote, and whose hash is the same for a seed.

An event is short and readable; its fields are for programs. Every write of the store enters the hash with its content,
and becomes an event of its own only where it is a step of the protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

EVENTS_LIMIT: Final = 200_000
"""Events that are kept; older ones are in the hash only."""
QUOTED: Final = 12
"""Last events that a violation quotes of each object."""


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    at_s: float
    kind: str
    """A stable word: ``fault``, ``domain``, ``machine``, ``process``, ``fence``, ``join``, ``hold``, …"""
    subject: str
    """The host, VM or slot that it is about."""
    text: str
    fields: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.kind:<10} {self.subject}: {self.text}"


class History:
    """See the module."""

    def __init__(self) -> None:
        self.events: deque[HistoryEvent] = deque(maxlen=EVENTS_LIMIT)
        self._of: dict[str, deque[HistoryEvent]] = {}
        self._digest = hashlib.blake2b(digest_size=16)
        self._listeners: list[Callable[[HistoryEvent], None]] = []

    def add(self, kind: str, subject: str, text: str, **fields: Any) -> None:
        """Something happened now. ``fields`` that name other objects make it an event of those as well (``also``)."""
        at_s = asyncio.get_running_loop().time()
        event = HistoryEvent(at_s=at_s, kind=kind, subject=subject, text=text, fields=fields)
        self.events.append(event)
        for name in (subject, *fields.get("also", ())):
            self._of.setdefault(name, deque(maxlen=QUOTED)).append(event)
        self._digest.update(f"{at_s!r}|{kind}|{subject}|{text}\n".encode())
        for listener in self._listeners:
            listener(event)

    def wrote(self, what: str, raw: bytes) -> None:
        """A write of the store, for the hash."""
        self._digest.update(what.encode())
        self._digest.update(raw)

    def last(self, *subjects: str) -> tuple[HistoryEvent, ...]:
        """The last events of these objects, in order."""
        found = [event for name in dict.fromkeys(subjects) for event in self._of.get(name, ())]
        found.sort(key=lambda event: event.at_s)
        return _once(found)

    def listen(self, listener: Callable[[HistoryEvent], None]) -> None:
        """Tell each event from now on."""
        self._listeners.append(listener)

    def trace_hash(self) -> str:
        """Of everything that happened, every write of the store included."""
        return self._digest.hexdigest()


def _once(events: list[HistoryEvent]) -> tuple[HistoryEvent, ...]:
    found: list[HistoryEvent] = []
    for event in events:
        if not any(event is one for one in found):
            found.append(event)
    return tuple(found)
