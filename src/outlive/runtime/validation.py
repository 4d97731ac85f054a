"""All that is wrong with a value of which the decoder reports only the first mistake.

The value is taken apart along its type: fields of structs, members of lists and maps. What does not let itself be taken
apart is reported as the decoder reports it. Nothing here says that a value is right: that is the decoder's word.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from outlive.base import BadInput

ENVIRONMENT_PREFIX: Final = "OUTLIVE_"
SEPARATOR: Final = "__"
"""Between section and key in a variable's name; a variable without it is no setting."""

_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def environment_name(section: str, *keys: str) -> str:
    """The variable of a key: ``OUTLIVE_FAILOVER__MAX_VMS_TO_PROCESS``."""
    words = [_WORD_BORDER.sub("_", word).upper() for word in (section, *keys)]
    return ENVIRONMENT_PREFIX + SEPARATOR.join(words)


def struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a field's type is or may be."""
    if typing.get_origin(kind) is Annotated:
        return struct_in(typing.get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return next((found for each in typing.get_args(kind) if (found := struct_in(each)) is not None), None)
    return None


MISTAKES_LIMIT: Final = 20
"""Mistakes of one value that are reported."""
DEPTH_LIMIT: Final = 16
"""How deep a value is taken apart."""

_PATH = re.compile(r" - at `\$[^`]*`\Z")
DecHook = Callable[[type, Any], Any]
At = tuple[str | int, ...]


class Mistake(NamedTuple):
    """One mistake: where in the value, and what the decoder says."""

    at: At
    text: str
    known: tuple[str, ...] = ()
    """Of a key that is not known: those that are."""


def find_mistakes(value: Any, kind: Any, *, dec_hook: DecHook | None = None) -> tuple[Mistake, ...]:
    """The first mistakes of ``value``, which is to be read as ``kind``; none where it can be."""
    return tuple(islice(_find_mistakes(value, kind, (), dec_hook), MISTAKES_LIMIT))


def path_text(at: At) -> str:
    """Where, as ``hosts[1].name``."""
    return "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in at).removeprefix(".")


def _find_mistakes(value: Any, kind: Any, at: At, dec_hook: DecHook | None) -> Iterator[Mistake]:
    try:
        msgspec.convert(value, kind, dec_hook=dec_hook)
        return
    except (msgspec.ValidationError, BadInput) as error:
        text = _PATH.sub("", str(error))
    found = False
    for word, inner, type_ in _list_parts(value, kind) if len(at) < DEPTH_LIMIT else ():
        for one in _find_mistakes(inner, type_, (*at, word), dec_hook):
            found = True
            yield one
    for one in _check_keys(value, kind, at):
        found = True
        yield one
    if not found:
        yield Mistake(at, text)


def _list_parts(value: Any, kind: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """Word, value and type of what is in it."""
    struct = struct_in(kind)
    if isinstance(value, dict):
        if struct is not None:
            fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
            yield from ((key, value[key], type_) for key, type_ in fields.items() if key in value)
            return
        arguments = _member_types(kind, dict)
        if len(arguments) == 2:
            yield from ((str(key), inner, arguments[1]) for key, inner in value.items())
    elif isinstance(value, list):
        arguments = _member_types(kind, tuple) or _member_types(kind, list)
        if arguments and (len(arguments) == 1 or arguments[1] is Ellipsis):
            yield from ((number, inner, arguments[0]) for number, inner in enumerate(value))


def _check_keys(value: Any, kind: Any, at: At) -> Iterator[Mistake]:
    """Keys that are not known, and that are required and not there."""
    struct = struct_in(kind)
    if struct is None or not isinstance(value, dict):
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    if struct.__struct_config__.forbid_unknown_fields:
        for key in value:
            if key not in fields:
                yield Mistake((*at, str(key)), f"Object contains unknown field `{key}`", tuple(fields))
    for name, field in fields.items():
        if field.required and name not in value:
            yield Mistake(at, f"Object missing required field `{name}`")


def _member_types(kind: Any, container: type) -> tuple[Any, ...]:
    """What the type says of the members, where it is, or may be, that container."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _member_types(typing.get_args(kind)[0], container)
    if origin in (typing.Union, UnionType):
        return next((found for each in typing.get_args(kind) if (found := _member_types(each, container))), ())
    return typing.get_args(kind) if origin is container else ()
