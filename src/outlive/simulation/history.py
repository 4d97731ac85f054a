"""What happened in a run, in order: what stories print, what violations quote, and whose hash is the same for a seed.

An event is one sentence (``outlive.simulation.narration``). Every write of the store enters the hash with its content,
and becomes an event of its own only where it is a step of the protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

EVENTS_LIMIT: Final = 200_000
"""Events that are kept; older ones are in the hash only."""
QUOTED: Final = 12
"""Last events that a violation quotes of each object."""


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    kind: str
    """A stable word: ``fault``, ``domain``, ``machine``, ``process``, ``fence``, ``join``, ``hold``, …"""
    subject: str
    """The host, VM or slot that it is about."""
    text: str
    also: tuple[str, ...] = ()
    """Others of whom it is an event as well."""
    loud: bool = False
    """Whether a story prints it also where not everything is asked for."""
    key: str = ""
    """Events of one key that happen at about the same time are printed together; empty: this one is printed alone."""
    many: str = ""
    """How it reads for several: ``{n}`` is their number, ``{where}`` the places of all."""
    where: str = ""
    at_s: float = 0.0

    @property
    def said(self) -> str:
        """The sentence, which names the subject."""
        return self.text if self.loud or self.subject in self.text else f"{self.subject}: {self.text}"

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.kind:<10} {self.said}"


class History:
    """See the module."""

    def __init__(self) -> None:
        self.events: deque[HistoryEvent] = deque(maxlen=EVENTS_LIMIT)
        self._of: dict[str, deque[HistoryEvent]] = {}
        self._digest = hashlib.blake2b(digest_size=16)
        self._listeners: list[Callable[[HistoryEvent], None]] = []

    def add(self, kind: str, subject: str, text: str, *, also: tuple[str, ...] = (), loud: bool = False) -> None:
        """Something happened now."""
        self.record(HistoryEvent(kind=kind, subject=subject, text=text, also=also, loud=loud))

    def record(self, event: HistoryEvent) -> None:
        """This happened now."""
        event = msgspec.structs.replace(event, at_s=asyncio.get_running_loop().time())
        self.events.append(event)
        for name in (event.subject, *event.also):
            self._of.setdefault(name, deque(maxlen=QUOTED)).append(event)
        self._digest.update(f"{event.at_s!r}|{event.kind}|{event.subject}|{event.text}\n".encode())
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
        return tuple({id(event): event for event in found}.values())

    def listen(self, listener: Callable[[HistoryEvent], None]) -> None:
        """Call this with each event from now on."""
        self._listeners.append(listener)

    def trace_hash(self) -> str:
        """Of everything that happened, every write of the store included."""
        return self._digest.hexdigest()
