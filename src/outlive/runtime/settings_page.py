"""The reference page of all settings, made from the structs that hold them.

What a key means is the ``description`` of its ``msgspec.Meta`` or, where it has none, the docstring below the field,
read from the module's source.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

import msgspec

from outlive.resources.schema import field_docs
from outlive.runtime.units import Duration, Size, encode_unit
from outlive.runtime.validation import environment_name, struct_in

_INTRODUCTION = """\
# Settings

<!-- Generated from the code; do not edit. -->

Settings come from `outlive.yaml`, from the environment and from flags; a flag counts more than a variable, and a
variable more than the file. In a variable's name case and single underscores are free. An unknown section or key
is an error.
"""


def reference_page(sections: Mapping[str, type[msgspec.Struct]]) -> str:
    """All sections as markdown, a table each: key, variable, type, default, meaning."""
    parts = [_INTRODUCTION]
    for section, struct in sections.items():
        lines = [f"## {section}", "", inspect.cleandoc(struct.__doc__ or ""), ""]
        lines += ["| key | variable | type | default | meaning |", "|---|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(section, struct, ())]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _rows(section: str, struct: type[msgspec.Struct], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    docs = field_docs(struct)
    for field in msgspec.structs.fields(struct):
        here = (*path, field.encode_name)
        nested = struct_in(field.type)
        if nested is not None:
            yield from _rows(section, nested, here)
            continue
        yield (
            f"`{'.'.join(here)}`",
            f"`{environment_name(section, *here)}`",
            _cell(_type_name(field.type)),
            _cell(_default(field)),
            _cell(_description(field.type) or docs.get(field.name, "")),
        )


def _description(kind: Any) -> str:
    if typing.get_origin(kind) is not Annotated:
        return ""
    for note in typing.get_args(kind)[1:]:
        if isinstance(note, msgspec.Meta) and note.description:
            return note.description
    return ""


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "required"
    if value is None or value == "":
        return "none"
    if isinstance(value, Duration | Size | str):
        return f"`{value}`"
    return f"`{msgspec.json.encode(value, enc_hook=encode_unit).decode()}`"


def _type_name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (typing.Union, UnionType):
        return " or ".join(_type_name(each) for each in arguments if each is not NoneType)
    if origin in (list, tuple):
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"map of {_type_name(arguments[1])}"
    return _PLAIN_TYPES.get(kind, getattr(kind, "__name__", str(kind)))


_PLAIN_TYPES: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Duration: "duration",
    Size: "size",
}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
