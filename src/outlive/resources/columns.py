"""The printed columns of a kind, worked out on an object: one evaluator for the HTTP ``Table`` form and the terminal.

A path is that of Kubernetes' printer columns, in the part that our kinds use: ``.field``, ``.map.key`` with ``\\.``
for a dot inside a key, and ``[?(@.type=="Ready")]`` for the first element whose field has that value. Paths run on
the typed object and not on its JSON, so that a default that the wire leaves out (0 VMs) is still printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from outlive.base import BadInput
from outlive.resources.amounts import Amounts
from outlive.resources.meta import Resource

Cell = str | int | float | bool
NOTHING_KNOWN: Mapping[str, Cell] = MappingProxyType({})
Segment = str | tuple[str, str]
"""A field or key, or the field and value that choose an element of a list."""

_SEGMENT = re.compile(r"""\.(?P<key>(?:\\.|[^.\[\\])+)|\[\?\(@\.(?P<field>\w+)==["'](?P<value>[^"']*)["']\)\]""")


@lru_cache(maxsize=512)
def parse_path(path: str) -> tuple[Segment, ...]:
    """The steps of a path; ``BadInput`` shows the part that is not understood."""
    segments: list[Segment] = []
    position = 0
    while position < len(path):
        match = _SEGMENT.match(path, position)
        if match is None:
            raise BadInput(f"column path {path!r} is malformed at {path[position:]!r}", remedy="write .spec.field")
        if match["key"] is not None:
            segments.append(match["key"].replace("\\.", "."))
        else:
            segments.append((match["field"], match["value"]))
        position = match.end()
    return tuple(segments)


def value_at(obj: Any, path: str) -> Any:
    """The value at the path of a resource, or ``None``."""
    value = obj
    for segment in parse_path(path):
        if value is None:
            return None
        if isinstance(segment, str):
            value = _get_field(value, segment)
            continue
        field, wanted = segment
        items = value if isinstance(value, tuple | list) else ()
        value = next((item for item in items if str(_get_field(item, field)) == wanted), None)
    return value


DISPLAY_COLUMN = "Display name"
"""Title of the column with the name by which people call an object."""


def name_cells(obj: Resource) -> list[Cell]:
    """The name by which people call the object, where its kind has such names, and that of the object."""
    return [*([cell_at(obj, obj.info.display)] if obj.info.display else []), obj.name]


def check_fields(obj: Resource, path: str) -> None:
    """``BadInput`` for a path with a field that no object of this kind has; keys of maps may be any."""
    value: Any = obj
    for segment in parse_path(path):
        if not isinstance(value, msgspec.Struct) or not isinstance(segment, str):
            return
        fields = _attribute_names(type(value))
        if segment not in fields:
            raise BadInput(f"{path}: there is no field {segment!r}", remedy=f"one of {', '.join(sorted(fields))}")
        value = getattr(value, fields[segment])


def cell_at(obj: Resource, path: str) -> Cell:
    """What a table prints of the path: numbers and truths as they are, everything else as text, nothing as ``""``."""
    return _to_cell(value_at(obj, path))


def object_cells(obj: Resource, *, wide: bool = False, known: Mapping[str, Cell] = NOTHING_KNOWN) -> list[Cell]:
    """The cells of the object's columns, in the order of ``KindInfo.columns``; those of the wide view on request.

    ``known``: by column, what is printed instead of what the document says, such as how a host is now.
    """
    return [
        known[title] if title in known else cell_at(obj, path)
        for title, path, priority in type(obj).info.columns
        if wide or priority == 0
    ]


def _get_field(value: Any, name: str) -> Any:
    if isinstance(value, msgspec.Struct):
        attribute = _attribute_names(type(value)).get(name)
        return None if attribute is None else getattr(value, attribute)
    if isinstance(value, Amounts):
        return value.to_wire().get(name)
    return value.get(name) if isinstance(value, Mapping) else None


@lru_cache(maxsize=256)
def _attribute_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


def _to_cell(value: Any) -> Cell:
    if value is None:
        return ""
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, Amounts):
        value = value.to_wire()
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_to_cell(item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return ",".join(str(_to_cell(item)) for item in value)
    return str(value)
