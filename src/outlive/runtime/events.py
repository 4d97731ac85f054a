"""Events: what happened to an object, for people who look at it within the hour.

``emit`` never waits and never fails: it puts a note into a bounded queue, from which one task writes. Repeats of
(object, type, reason, note, action) within an hour are one event with a count. The name of an event is a hash of
those, so that two processes that say the same count on the same object. Events are a convenience: when the queue is
full or the store is away they are dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from outlive.base import Clock, Ids, OutliveError, as_datetime, as_instant, global_request_id, limits, stable_hash
from outlive.resources import Event, ObjectMeta, ObjectRef, check_name
from outlive.runtime.retention import BackgroundWriter, Sweeper, Waiting
from outlive.store import Store, compare_and_swap

QUEUE_LIMIT: Final = limits.EVENTS_KEPT
"""Events that wait to be written."""
NOTE_CHARACTERS: Final = 1024
"""What is kept of a note."""
NAME_CHARACTERS: Final = 200
"""What an event's name takes of its object's name."""
NONCE_ANNOTATION: Final = "outlive.dev/nonce"
"""Tells a writer whose answer was lost that the write is its own."""

EventType = Literal["Normal", "Warning"]


class EventRecorder(BackgroundWriter[Event]):
    """Writes events in the name of ``source``."""

    what = "events"

    def __init__(self, store: Store, *, clock: Clock, ids: Ids, source: str) -> None:
        super().__init__(clock, limit=QUEUE_LIMIT)
        self._store = store
        self._ids = ids
        self._source = source

    def emit(
        self, regarding: ObjectRef, reason: str, note: str, *, type: EventType = "Normal", action: str = ""
    ) -> None:
        """Say that something happened to an object. Returns at once; a full queue drops it and counts that."""
        note = note[:NOTE_CHARACTERS]
        name = event_name(regarding, type, reason, note, action)
        self.put(
            name,
            lambda now: Event(
                metadata=ObjectMeta(name=name),
                regarding=regarding,
                type=type,
                reason=reason,
                action=action,
                note=note,
                source=self._source,
                request_id=global_request_id(),
                first_seen=as_datetime(now),
                last_seen=as_datetime(now),
            ),
        )

    def prepare_write(self, waiting: Waiting[Event]) -> Callable[[], Awaitable[object]]:
        """Create the event or count on."""
        name, nonce = waiting.item.name, self._ids.new_uuid()
        return lambda: compare_and_swap(
            self._store, Event, name, lambda kept: _add_repeats(kept, waiting, nonce), clock=self._clock
        )


def event_sweeper(store: Store, clock: Clock) -> Sweeper[Event]:
    """Deletes events that are older than an hour, and the oldest beyond ``limits.EVENTS_KEPT``."""
    return Sweeper(
        store,
        Event,
        seen=lambda event: event.last_seen,
        keep_s=limits.EVENT_SECONDS,
        keep=limits.EVENTS_KEPT,
        clock=clock,
    )


def event_name(regarding: ObjectRef, type: EventType, reason: str, note: str, action: str) -> str:
    """The name of the event that counts repeats of this: the object's name, or its kind, and a hash."""
    parts = (regarding.cluster, regarding.kind, regarding.name, regarding.uid)
    digest = f"{stable_hash(*parts, type, reason, note, action):016x}"
    stem = regarding.name[:NAME_CHARACTERS].rstrip("-.")
    try:
        check_name(stem)
    except OutliveError:
        stem = "".join(each for each in regarding.kind.lower() if each.isascii() and each.isalnum()) or "object"
    return f"{stem}.{digest}"


def _add_repeats(kept: Event | None, waiting: Waiting[Event], nonce: str) -> Event | None:
    """The kept event with these repeats added, or begun anew when its first is more than an hour ago.

    ``None`` once that is written, which the nonce shows.
    """
    event = waiting.item
    meta = event.metadata if kept is None else kept.metadata
    if meta.annotations.get(NONCE_ANNOTATION) == nonce:
        return None
    if kept is None or waiting.last - as_instant(kept.first_seen) >= limits.EVENT_SECONDS:
        count, first_seen = waiting.count, event.first_seen
    else:
        count, first_seen = kept.count + waiting.count, kept.first_seen
    last = waiting.last if kept is None else max(waiting.last, as_instant(kept.last_seen))
    marked = msgspec.structs.replace(meta, annotations={**meta.annotations, NONCE_ANNOTATION: nonce})
    return msgspec.structs.replace(
        event, metadata=marked, count=count, first_seen=first_seen, last_seen=as_datetime(last)
    )
