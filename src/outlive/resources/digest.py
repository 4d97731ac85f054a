"""The facts of objects: what digests are made of, and all that a check of a state has to read.

A fact is whatever says something about the cluster; versions, uids, generations and times do not. For every kind a
second, narrower struct type is derived from the first that lacks those fields and has the others in the order of their
names, so that leaving out, ordering and encoding all happen in compiled code. Attributes have the names that they have
in the kind. A member at its default is left out, a struct's as well: equal facts have equal bytes, however they came
about, and a member that a later version adds changes no digest of a state that does not use it.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin

import msgspec

from outlive.resources.cluster import ClusterStatus
from outlive.resources.codec import decode_as, encode, encode_lines
from outlive.resources.hosts import Capabilities, HypervisorStatus
from outlive.resources.meta import ObjectMeta, ObjectRef, Resource

Facts: TypeAlias = Any
"""An object of a type that ``facts_type`` made."""

_NO_FACTS: Final[dict[type, frozenset[str]]] = {
    ObjectMeta: frozenset({"uid", "resource_version", "generation"}),
    ObjectRef: frozenset({"uid"}),
    Resource: frozenset({"api_version"}),
    ClusterStatus: frozenset({"sealing_key", "key_ids"}),
    Capabilities: frozenset({"cpus", "kernel", "os"}),
    HypervisorStatus: frozenset({"version", "key_ids", "authorities"}),
}
"""Fields besides times that are no facts: of these types and of what is derived from them."""
_TIMES: Final = (datetime, datetime | None)
_TIMES_THAT_COUNT: Final = frozenset({"deletion_timestamp"})
"""That it is there says that the object is being deleted."""
_AT_ONCE: Final = 10_000
"""Objects whose facts are encoded together."""


@cache
def facts_type(kind: type[Resource]) -> type[msgspec.Struct]:
    """The struct type of a kind's facts."""
    return _narrow_struct(kind, kind.kind())


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
def _narrow_struct(kind: type[msgspec.Struct], tag: str | None = None) -> type[msgspec.Struct]:
    no_facts = frozenset[str]().union(*(_NO_FACTS.get(base, ()) for base in kind.__mro__))
    kept = [
        field
        for field in sorted(msgspec.structs.fields(kind), key=lambda one: one.encode_name)
        if (field.type not in _TIMES or field.name in _TIMES_THAT_COUNT) and field.name not in no_facts
    ]
    defaults = {field.name: _field_default(field) for field in kept}
    replaced = tuple((field.name, *defaults[field.name]) for field in kept if _has_equals(field.default))
    return msgspec.defstruct(
        kind.__name__,
        [(field.name, _narrowed_type(field.type), *defaults[field.name]) for field in kept],
        namespace={"__post_init__": _with_defaults(replaced)} if replaced else None,
        rename={field.name: field.encode_name for field in kept},
        tag=tag,
        tag_field="kind" if tag else None,
        omit_defaults=True,
        kw_only=True,
        frozen=True,
        gc=False,  # frozen, and of values that cannot refer back
    )


def _field_default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """The default as it is written down for the field: one object, unless a factory makes empty ones."""
    default = field.default
    if default is msgspec.NODEFAULT:
        factory = field.default_factory
        return () if factory is msgspec.NODEFAULT else (msgspec.field(default_factory=factory),)
    if isinstance(default, msgspec.Struct):
        default = msgspec.convert(default, _narrow_struct(type(default)), from_attributes=True)
    return (default,)


def _has_equals(default: Any) -> bool:
    """Whether other objects are equal to it: what is written leaves a member out only if it *is* the default."""
    one_object = default is None or isinstance(default, bool) or default in ("", (), 0)
    return default is not msgspec.NODEFAULT and not one_object


def _with_defaults(defaults: tuple[tuple[str, Any], ...]) -> Callable[[Facts], None]:
    """A ``__post_init__`` that puts the default where a member has an equal value."""

    def put_defaults(self: Facts) -> None:
        for name, default in defaults:
            value = getattr(self, name)
            if value is not default and value == default:
                msgspec.structs.force_setattr(self, name, default)

    return put_defaults


def _narrowed_type(type_: Any) -> Any:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return _narrow_struct(type_)
    origin, inner = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _narrowed_type(inner[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(_narrowed_type(one) for one in inner)]  # noqa: UP007
    if origin is tuple:
        return tuple[_narrowed_type(inner[0]), ...]  # type: ignore[misc]
    if origin in (dict, Mapping):
        return dict[inner[0], _narrowed_type(inner[1])]  # type: ignore[misc, valid-type]
    return type_
