"""YAML read event by event: the safe subset, with limits on what a small text may cost.

The composer of PyYAML calls itself for each level, in C, and ends the process on a text that is nested deeply enough;
its constructor computes numbers of any length. This reader keeps its own stack and counts every value, so the cost of
a text is known before anything is made of it (docs/reference/http-api.md#limits). Tags that build objects, binary data
and sets are refused; the numbers, dates, booleans and ``<<`` of YAML 1.1 are read as PyYAML does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml  # type: ignore[import-untyped]

from outlive.base import BadInput

DEPTH: Final = 100
"""Levels of maps and lists in each other."""
FILE_VALUES: Final = 1_000_000
"""Values in all documents of one file, aliases counted as often as they are used."""
PLAIN_CHARACTERS: Final = 64
"""A longer scalar without quotes is text, whatever it looks like: no number or date is that long."""
SLICE_EVENTS: Final = 1000
"""Events after which others get their turn: about 5 ms."""

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = object()
"""Stands as the key for ``<<`` without quotes."""


class YamlLimits(msgspec.Struct, frozen=True):
    """What a text may contain."""

    values: int = FILE_VALUES
    depth: int = DEPTH
    aliases: bool = True
    """Whether a value may be used in several places (``&name`` and ``*name``)."""


class YamlDocument(msgspec.Struct, frozen=True):
    """One document, and the line that it begins on."""

    line: int
    value: Any


class _Level:
    """A list or map that is not complete."""

    __slots__ = ("anchor", "first", "key", "keys", "merged", "value")

    def __init__(self, value: list[Any] | dict[Any, Any], anchor: str | None, first: int) -> None:
        self.value = value
        self.anchor = anchor
        self.first = first
        """Values that were counted before it."""
        self.keys: set[str] = set()
        """As they are written, of a map."""
        self.key: tuple[Any] | None = None
        """Of a map: the key whose value comes next."""
        self.merged: dict[Any, Any] | None = None
        """Of a map: what ``<<`` brings in."""


def read_yaml(raw: bytes, place: str, limits: YamlLimits) -> Iterator[YamlDocument | None]:
    """The documents of a text; ``None`` after each ``SLICE_EVENTS``, so that a caller on an event loop can let others
    run. ``BadInput`` names the line and what is wrong or beyond a limit."""
    try:
        loader = yaml.CSafeLoader(raw)
        try:
            reader = _EventReader(place, limits)
            events = 0
            while loader.check_event():
                document = reader.take(loader.get_event())
                if document is not None:
                    yield document
                events += 1
                if events % SLICE_EVENTS == 0:
                    yield None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise BadInput(f"not YAML: {what}", place=f"{place}:{line}", remedy="check indentation and quotes") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise BadInput(f"not YAML: {text}", place=f"{place}:1", remedy="write UTF-8 text") from None


class _EventReader:
    """Makes values of events."""

    def __init__(self, place: str, limits: YamlLimits) -> None:
        self._place = place
        self._limits = limits
        self._resolver = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()
        self._levels: list[_Level] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        """Value, and how many values it has."""
        self._count = 0
        self._line = 1
        self._root = 1

    def take(self, event: Any) -> YamlDocument | None:
        """The document that the event completes, if any."""
        self._line = event.start_mark.line + 1
        match event:
            case yaml.ScalarEvent():
                self._count_values(1)
                plain = event.implicit[0] and event.tag is None
                if plain and event.value == "<<" and self._expects_key():
                    self._levels[-1].key = (_MERGE,)
                    return None
                value = self._read_scalar(event.value, event.tag, plain=plain)
                self._keep(event.anchor, value, 1)
                return self._put(value, event.value)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                is_map = isinstance(event, yaml.MappingStartEvent)
                self._begin({} if is_map else [], event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                level = self._levels.pop()
                if level.merged:
                    level.value = {**level.merged, **level.value}  # type: ignore[dict-item]
                self._keep(level.anchor, level.value, self._count - level.first)
                return self._put(level.value)
            case yaml.AliasEvent():
                name = event.anchor
                if not self._limits.aliases:
                    raise self._make_error(f"alias *{name[:80]}", "write the value out")
                if name not in self._anchors:
                    why = f"alias *{name[:80]} has no complete value"
                    raise self._make_error(why, "define its anchor before its use")
                value, count = self._anchors[name]
                self._count_values(count)
                return self._put(value, str(value))
            case yaml.DocumentStartEvent():
                self._anchors.clear()
        return None

    def _expects_key(self) -> bool:
        top = self._levels[-1] if self._levels else None
        return top is not None and isinstance(top.value, dict) and top.key is None

    def _count_values(self, more: int) -> None:
        self._count += more
        if self._count > self._limits.values:
            raise self._make_error(f"more than {self._limits.values} values", "split the file; avoid aliases")

    def _begin(self, value: list[Any] | dict[Any, Any], event: Any) -> None:
        wanted = _TAG + ("map" if isinstance(value, dict) else "seq")
        if event.tag not in (None, "!", wanted):
            raise self._make_error(f"tag {event.tag[:80]!r} is not read", "write plain values")
        if len(self._levels) == self._limits.depth:
            raise self._make_error(f"more than {self._limits.depth} levels of maps and lists", "nest less deeply")
        if not self._levels:
            self._root = self._line
        elif self._expects_key():
            raise self._make_error("a key that is a map or a list", "write a plain key")
        self._levels.append(_Level(value, event.anchor, self._count))
        self._count_values(1)

    def _read_scalar(self, text: str, tag: str | None, *, plain: bool) -> Any:
        if plain:
            if len(text) > PLAIN_CHARACTERS:
                return text
            tag = self._resolver.resolve(yaml.ScalarNode, text, (True, False))
        kind = (tag or "str").removeprefix(_TAG)
        match kind:
            case "str" | "value" | "merge" | "!":
                return text
            case "null":
                return None
            case "bool" | "int" | "float" | "timestamp":
                if len(text) > PLAIN_CHARACTERS:
                    raise self._make_error(
                        f"a value of {len(text)} characters with the tag {kind}", f"at most {PLAIN_CHARACTERS}"
                    )
                try:
                    return getattr(self._constructor, f"construct_yaml_{kind}")(yaml.ScalarNode(tag, text))
                except (KeyError, AttributeError):
                    raise self._make_error(f"{text[:80]!r} is no {kind}", "write a plain value") from None
        raise self._make_error(f"tag {str(tag)[:80]!r} is not read", "write plain values")

    def _keep(self, anchor: str | None, value: Any, count: int) -> None:
        if anchor is not None and self._limits.aliases:
            self._anchors[anchor] = (value, count)

    def _put(self, value: Any, text: str = "") -> YamlDocument | None:
        """The document, if the value is the whole of it; else the value becomes a part of the level above."""
        if not self._levels:
            return YamlDocument(self._line if not isinstance(value, dict | list) else self._root, value)
        top = self._levels[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            if isinstance(value, dict | list):
                raise self._make_error("a key that is a map or a list", "write a plain key")
            if text in top.keys:
                raise self._make_error(f"key {text[:80]!r} is there twice", "keep one of them")
            top.keys.add(text)
            top.key = (value,)
        else:
            (key,) = top.key
            top.key = None
            if key is _MERGE:
                self._merge(top, value)
            else:
                top.value[key] = value
        return None

    def _merge(self, top: _Level, value: Any) -> None:
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise self._make_error("<< brings in what is no map", "name maps")
        merged: dict[Any, Any] = {}
        for part in [*reversed(parts), *([top.merged] if top.merged else [])]:
            merged.update(part)
        top.merged = merged

    def _make_error(self, message: str, remedy: str) -> BadInput:
        return BadInput(message, place=f"{self._place}:{self._line}", remedy=remedy)
