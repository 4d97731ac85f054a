"""Work over a whole fleet in portions, so that whoever shares the event loop gets a turn in between.

Such work is a generator that yields after every portion and returns its result. The same code runs at once where nobody
waits (decisions, tests) and with pauses in a cycle (docs/reference/failover.md#turns-of-the-event-loop). What it reads
must not change meanwhile: it works on frozen views and on lists of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from outlive.base.clock import Clock
from outlive.resources.codec import encode_canonical

PORTION: Final = 1_000
"""Objects of a portion: a few milliseconds."""
ENCODED: Final = 100
"""Objects that are encoded together: slots have many members, and offers many hosts."""
SLOTS: Final = 20
"""Slots of a portion, where their members are looked at; each may have many."""

T = TypeVar("T")
Portions = Generator[None, None, T]
"""Work that yields between its portions and returns a ``T``."""


def whole(work: Portions[T]) -> T:
    """The result, at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


async def in_portions(work: Portions[T], clock: Clock) -> T:
    """The result; others run after every portion."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await clock.sleep(0)


def portioned(objects: Iterable[T], size: int = PORTION) -> Iterator[list[T]]:
    """The objects in lists of at most ``size``."""
    rest = iter(objects)
    while portion := list(islice(rest, size)):
        yield portion


def encoded(value: msgspec.Struct) -> Portions[bytes]:
    """``encode_canonical(value)``, its large tuples and maps in portions."""
    parts = [b"{"]
    for name, content in sorted(_shown_fields(value)):
        parts.append((b"," if len(parts) > 1 else b"") + encode_canonical(name) + b":")
        if isinstance(content, tuple):
            parts.append(b"[")
            for number, portion in enumerate(portioned(content, ENCODED)):
                parts.append((b"," if number else b"") + encode_canonical(portion)[1:-1])
                yield
            parts.append(b"]")
        elif isinstance(content, Mapping):
            parts.append(b"{")
            for number, pairs in enumerate(portioned(sorted(content.items()), ENCODED)):
                parts.append((b"," if number else b"") + encode_canonical(dict(pairs))[1:-1])
                yield
            parts.append(b"}")
        else:
            parts.append(encode_canonical(content))
    parts.append(b"}")
    return b"".join(parts)


def _shown_fields(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Wire name and content of the fields that its encoding has."""
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        if value.__struct_config__.omit_defaults and _is_default(field, content):
            continue
        yield field.encode_name, content


def _is_default(field: msgspec.structs.FieldInfo, content: object) -> bool:
    """As msgspec judges it: the very default, or an empty collection where that is the default."""
    if field.default is not msgspec.NODEFAULT:
        return content is field.default
    factory = field.default_factory
    return factory in (list, dict, set) and type(content) is factory and not content
