"""Columns of Nova's tables, whatever a row really holds: SQLite keeps any value in any column.

A column that decides something (id, host, zone, project, flavor, size) must be readable, or its row is left out and
counted; one that is only shown never costs a VM its place (docs/reference/failover.md#vm-source).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeVar

import msgspec

from outlive.failover.vms import FlavorRow, ServerRow

VCPUS_MOST: Final = 2**20
"""More cores of a flavor than this are a damaged row."""
RAM_MIB_MOST: Final = 2**32
"""The same for memory: 4 PiB."""
TEXT_MOST: Final = 2**20
"""Characters of one column that are taken over at most."""

T = TypeVar("T")


def readable(rows: Iterable[Mapping[Any, Any]], make: Callable[[Mapping[str, Any]], T]) -> tuple[tuple[T, ...], int]:
    """What the rows say, and how many of them cannot be read."""
    made: list[T] = []
    unreadable = 0
    for row in rows:
        try:
            made.append(make(row))
        except ValueError:
            unreadable += 1
    return tuple(made), unreadable


def server_row(columns: Mapping[Any, Any]) -> ServerRow:
    """A row of servers; ``ValueError`` where one that matters cannot be read, or the id is missing."""
    return ServerRow(
        id=_named(columns["id"]),
        name=_shown(columns["name"]),
        status=_shown(columns["status"]),
        project_id=_text(columns["tenant_id"]),
        host=_text(columns["os_ext_srv_attr_host"]),
        zone=_text(columns["os_ext_az_availability_zone"]),
        created=_shown(columns["created"]),
        flavor_name=_text(columns["flavor_name"]),
        os_type=_shown(columns["os_type"]),
    )


def flavor_row(columns: Mapping[Any, Any]) -> FlavorRow:
    """A row of flavors; ``ValueError`` where its name or size cannot be read."""
    return FlavorRow(
        name=_named(columns["name"]),
        vcpus=_count(columns["vcpus"], VCPUS_MOST),
        ram_mib=_count(columns["ram"], RAM_MIB_MOST),
        disk_gib=_count_or_none(columns["disk"]),
        extra_specs=_json(columns["extra_specs"]),
    )


def _named(value: Any) -> str:
    text = _text(value)
    if not text:
        raise ValueError("no name")
    return text


def _text(value: Any) -> str:
    """Text, also from bytes and whole numbers; null is empty."""
    match value:
        case None:
            return ""
        case str():
            text = value
        case bytes() | memoryview():
            text = bytes(value).decode()
        case int() if not isinstance(value, bool):
            text = str(value)
        case _:
            raise ValueError(f"{type(value).__name__} is no text")
    if len(text) > TEXT_MOST or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("no text that can be passed on")
    return text


def _shown(value: Any) -> str:
    """What can be shown of it."""
    text = bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else str(value or "")
    return text[:TEXT_MOST].encode(errors="replace").decode()


def _count(value: Any, most: int) -> int:
    """A whole number from 0; null is 0."""
    match value:
        case None:
            return 0
        case int():
            number = value
        case float() | Decimal() if math.isfinite(value) and value == int(value):
            number = int(value)
        case str() | bytes() if len(value) <= len(str(most)):
            number = int(value)
        case _:
            raise ValueError("no whole number")
    if not 0 <= number <= most:
        raise ValueError(f"{number} is out of range")
    return number


def _count_or_none(value: Any) -> int:
    """A disk's size, which nothing is decided by; 0 where it cannot be read."""
    try:
        return _count(value, RAM_MIB_MOST)
    except ValueError:
        return 0


def _json(value: Any) -> str:
    """The text of a JSON document, also from a column that the database gives as a document."""
    if value is None or isinstance(value, str | bytes | memoryview):
        return _shown(value)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return _shown(repr(value))
