"""The facts of objects as bytes: what digests are made of.

A fact is whatever says something about the cluster; versions, uids, generations and times do not. For every kind a
second, narrower struct type is derived from the first that lacks those fields and has the others in the order of their
names, so that leaving out and encoding both happen in compiled code. A field whose default value cannot be told from
an equal one is always written: then equal facts have equal bytes, however they came about.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from outlive.resources.codec import encode_lines
from outlive.resources.meta import ObjectMeta, ObjectRef, Resource

_NO_FACTS: Final[dict[type, frozenset[str]]] = {
    ObjectMeta: frozenset({"uid", "resource_version", "generation"}),
    ObjectRef: frozenset({"uid"}),
}
"""Fields besides times that are no facts."""
_TIMES: Final = (datetime, datetime | None)


def facts(items: Sequence[Resource]) -> bytes:
    """The canonical JSON of the facts of objects of one kind, a line each."""
    if not items:
        return b""
    narrow = narrowed(type(items[0]))
    return encode_lines(msgspec.convert(items, list[narrow], from_attributes=True))  # type: ignore[valid-type]


@cache
def narrowed(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct type with nothing but facts."""
    kept = [
        field
        for field in sorted(msgspec.structs.fields(kind), key=lambda one: one.encode_name)
        if field.type not in _TIMES and field.name not in _NO_FACTS.get(kind, ())
    ]
    fields = [(field.name, _narrowed_type(field.type), *_default(field)) for field in kept]
    return msgspec.defstruct(
        f"{kind.__name__}Facts",
        fields,
        rename={field.name: field.encode_name for field in kept},
        omit_defaults=True,
        kw_only=True,
        frozen=True,
    )


def _default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """The default, if an equal value is always recognised as such: then it is left out on writing."""
    if field.default is None or field.default is False or field.default == "":
        return (field.default,)
    if type(field.default) is int and field.default == 0:
        return (0,)
    if field.default == () or field.default_factory in (dict, list):
        return (msgspec.field(default_factory=type(field.default) if field.default == () else field.default_factory),)
    return ()


def _narrowed_type(type_: Any) -> Any:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return narrowed(type_)
    origin, inner = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        return Union[tuple(_narrowed_type(one) for one in inner)]  # noqa: UP007
    if origin is tuple:
        return tuple[_narrowed_type(inner[0]), ...]  # type: ignore[misc]
    if origin is dict:
        return dict[inner[0], _narrowed_type(inner[1])]  # type: ignore[misc, valid-type]
    return type_
