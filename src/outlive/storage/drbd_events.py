"""The events stream of DRBD: what ``drbdsetup events2`` prints, line by line.

Of it only ``may_promote`` is used, which no status prints, and that something has changed. Until the first dump is
complete, and after a line that is not understood, nothing is known.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.errors import BadInput

ACTIONS: Final = frozenset({"exists", "create", "change", "destroy", "rename", "call", "response"})
DUMP_ENDS: Final = "-"
QUIET_OBJECTS: Final = frozenset({"peer-device", "path", "helper"})
"""Objects whose changes say nothing about who may write."""
RESOURCES_MOST: Final = 100_000


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what happened to which object, and the members that are given."""

    action: str
    object: str
    members: dict[str, str] = {}


class BadEvent(BadInput):
    """A line of the events stream that is none."""

    code = "bad-event"


def read_event(line: str) -> EventLine:
    """The line, with or without a time before it; ``BadEvent``. Members that nobody knows are kept as they are."""
    words = line.split()
    if words and words[0][:1].isdigit():
        words = words[1:]
    if len(words) < 2 or words[0] not in ACTIONS:
        raise BadEvent(f"{line[:120]!r} is no event of DRBD", remedy="is drbdsetup events2 another version?")
    members = {}
    for word in words[2:]:
        name, colon, value = word.partition(":")
        if not colon:
            raise BadEvent(f"{word[:80]!r} is no member of an event", place=line[:120])
        members[name] = value
    if words[1] != DUMP_ENDS and "name" not in members and words[1] in ("resource", "device", "connection"):
        raise BadEvent("the event names no resource", place=line[:120])
    return EventLine(action=words[0], object=words[1], members=members)


class EventStream:
    """What the stream has said of each resource."""

    def __init__(self) -> None:
        self._complete = False
        self._may_promote: dict[str, bool | None] = {}

    def reset(self) -> None:
        """Forget everything: the stream ended, or was not understood."""
        self._complete = False
        self._may_promote.clear()

    def may_promote(self, resource: str) -> bool | None:
        """Whether DRBD says that the resource may be promoted here; ``None``: not known."""
        return self._may_promote.get(resource) if self._complete else None

    def take(self, line: str) -> bool:
        """Take a line over. True if it may change what is to be done. ``BadEvent``: nothing is known any more."""
        try:
            event = read_event(line)
        except BadEvent:
            self.reset()
            raise
        if event.object == DUMP_ENDS:
            self._complete = True
            return True
        name = event.members.get("name", "")
        if event.object == "resource":
            self._take_resource(event, name)
        return self._complete and event.object not in QUIET_OBJECTS

    def _take_resource(self, event: EventLine, name: str) -> None:
        if event.action == "destroy":
            self._may_promote.pop(name, None)
        elif event.action == "rename":
            known = self._may_promote.pop(name, None)
            self._may_promote[event.members.get("new_name", "")] = known
        elif (said := event.members.get("may_promote")) is not None:
            self._may_promote[name] = {"yes": True, "no": False}.get(said)
        else:
            self._may_promote.setdefault(name, None)
        if len(self._may_promote) > RESOURCES_MOST:
            self.reset()
