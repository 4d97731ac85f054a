"""The facts of objects: what digests are made of, and all that a check of a state has to read.

A fact is whatever says something about the cluster; versions, uids, generations and times do not. For every kind a
second, narrower struct type is derived from the first that lacks those fields and has the others in the order of their
names, so that leaving out, ordering and encoding all happen in compiled code. Attributes have the names that they have
in the kind. A default that is recognised when written is left out on writing, every other one is always written: then
equal facts have equal bytes, however they came about.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

import msgspec

from outlive.resources.codec import decode_as, encode, encode_lines
from outlive.resources.meta import ObjectMeta, ObjectRef, Resource

Facts: TypeAlias = Any
"""An object of a type that ``facts_type`` made."""

_NO_FACTS: Final[dict[type, frozenset[str]]] = {
    ObjectMeta: frozenset({"uid", "resource_version", "generation"}),
    ObjectRef: frozenset({"uid"}),
}
"""Fields besides times that are no facts."""
_TIMES: Final = (datetime, datetime | None)
_AT_ONCE: Final = 10_000
"""Objects whose facts are encoded together."""


@cache
def facts_type(kind: type[Resource]) -> type[msgspec.Struct]:
    """The struct type of a kind's facts."""
    return _narrowed(kind, kind.kind())


def facts_of(objects: Iterable[Resource], kinds: Iterable[type[Resource]]) -> tuple[Facts, ...]:
    """The facts of those objects that are of these kinds."""
    asked = tuple(kinds)
    lines = b",".join(encode(item) for item in objects if isinstance(item, asked))
    facts: tuple[Facts, ...] = decode_as(tuple[any_facts(asked), ...], b"[" + lines + b"]")  # type: ignore[misc]
    return facts


def any_facts(kinds: Iterable[type[Resource]]) -> Any:
    """The type of facts of any of these kinds."""
    return Union[tuple(facts_type(kind) for kind in kinds)]  # noqa: UP007


def digest_of(facts: Iterable[Facts]) -> str:
    """``sha256:…`` over the canonical JSON of the facts, in the order of kind and name."""
    kinds: dict[str, list[Facts]] = {}
    for item in facts:
        kinds.setdefault(type(item).__name__, []).append(item)
    digest = hashlib.sha256()
    for kind in sorted(kinds):
        items = sorted(kinds[kind], key=lambda one: one.metadata.name)
        for begin in range(0, len(items), _AT_ONCE):
            digest.update(encode_lines(items[begin : begin + _AT_ONCE]))
    return f"sha256:{digest.hexdigest()}"


@cache
def _narrowed(kind: type[msgspec.Struct], tag: str | None = None) -> type[msgspec.Struct]:
    kept = [
        field
        for field in sorted(msgspec.structs.fields(kind), key=lambda one: one.encode_name)
        if field.type not in _TIMES and field.name not in _NO_FACTS.get(kind, ())
    ]
    return msgspec.defstruct(
        kind.__name__,
        [(field.name, _narrowed_type(field.type), *_default(field)) for field in kept],
        rename={field.name: field.encode_name for field in kept},
        tag=tag,
        tag_field="kind" if tag else None,
        omit_defaults=True,
        kw_only=True,
        frozen=True,
        gc=False,  # frozen, and of values that cannot refer back
    )


def _default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """The default as it is written down for the field. One that a factory makes is never taken for the default."""
    default = field.default
    if default is msgspec.NODEFAULT:
        factory = field.default_factory
        return () if factory is msgspec.NODEFAULT else (msgspec.field(default_factory=factory),)
    if default is None or default is False or default == "" or default == () or (type(default) is int and default == 0):
        return (default,)
    if isinstance(default, msgspec.Struct):
        default = msgspec.convert(default, _narrowed(type(default)), from_attributes=True)
    return (msgspec.field(default_factory=lambda: default),)


def _narrowed_type(type_: Any) -> Any:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return _narrowed(type_)
    origin, inner = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        return Union[tuple(_narrowed_type(one) for one in inner)]  # noqa: UP007
    if origin is tuple:
        return tuple[_narrowed_type(inner[0]), ...]  # type: ignore[misc]
    if origin in (dict, Mapping):
        return dict[inner[0], _narrowed_type(inner[1])]  # type: ignore[misc, valid-type]
    return type_
