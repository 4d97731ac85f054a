"""What happened in a run, in order: what stories print, what violations quote, and whose hash is the same for a seed.

An event is one sentence (``outlive.simulation.narration``). Every write of the store enters the hash with its content,
and becomes an event of its own only where it is a step of the protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from outlive.base import join_parts, natural_key

EVENTS_LIMIT: Final = 200_000
"""Events that are kept; older ones are in the hash only."""
QUOTED: Final = 12
"""Last events that a violation quotes of each object."""
TOGETHER_S: Final = 1.5
"""Sentences of one key that follow this closely on the first are printed as one."""
NAMES_SHOWN: Final = 4
"""Names and places that such a sentence lists."""
NAMES_CHARACTERS: Final = 80
"""Longer lists of names are left out: VMs may be named by uuids."""


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

    def hash_write(self, what: str, raw: bytes) -> None:
        """A write of the store, for the hash."""
        self._digest.update(what.encode())
        self._digest.update(raw)

    def last_events(self, *subjects: str) -> tuple[HistoryEvent, ...]:
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


def group_events(events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Sentences of one key that follow closely on the first become one, at the place of the first."""
    groups: list[list[HistoryEvent]] = []
    open_groups: dict[str, list[HistoryEvent]] = {}
    for one in events:
        group = open_groups.get(one.key) if one.key else None
        if group is not None and one.at_s - group[0].at_s <= TOGETHER_S:
            group.append(one)
            continue
        group = [one]
        groups.append(group)
        if one.key:
            open_groups[one.key] = group
    return [_merge_group(group) for group in groups]


def _merge_group(group: list[HistoryEvent]) -> HistoryEvent:
    first = group[0]
    subjects = list(dict.fromkeys(one.subject for one in group))
    if len(subjects) == 1:
        return first
    subjects.sort(key=natural_key)
    places = sorted({one.where for one in group if one.where}, key=natural_key)
    where = join_parts(places) if 0 < len(places) <= NAMES_SHOWN else f"{len(places)} hosts"
    text = first.many.replace("{n}", str(len(subjects))).replace("{where}", where)
    if len(subjects) <= NAMES_SHOWN and len("".join(subjects)) <= NAMES_CHARACTERS:
        text += f": {', '.join(subjects)}" if ": " not in text else f" [{', '.join(subjects)}]"
    return msgspec.structs.replace(first, text=text)


def lines_of(events: Sequence[HistoryEvent], *, everything: bool = False) -> list[str]:
    """The story as a log: time and sentence.

    Without ``everything``, equal sentences are one line, and asides are left out.
    """
    shown = events if everything else group_events([one for one in events if one.loud])
    return [f"{one.at_s:7.1f} s  {one.said}" for one in shown]
