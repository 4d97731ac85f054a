"""How many entries each list and map of an object has at most.

A kind declares it beside the field (``limit_entries``); other lists and maps have at most ``LIST_ENTRIES``. The limits
bound what judging a write costs: one host's token must not keep the server from renewing the leases of other hosts.
Stores check them on every write, and the manifests for Kubernetes repeat them. Decoding does not: an object that an
older version has stored stays readable, and may be written as long as its lists do not grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect as types

from outlive.base import Invalid
from outlive.resources.meta import LIST_ENTRIES, Resource


class _FieldLimits(msgspec.Struct, frozen=True):
    """One field that has lists or maps."""

    name: str
    wire: str
    value: _ValueLimits


class _ValueLimits(msgspec.Struct, frozen=True):
    """What is limited of a value: its own entries, those of its fields, and those of its entries."""

    most: int | None = None
    fields: tuple[_FieldLimits, ...] = ()
    entry: _ValueLimits | None = None


def check_lists(before: Resource | None, after: Resource) -> None:
    """``Invalid`` names the list or map that has more entries than its limit, and more than before."""
    _check(before, after, _limits_of_struct(type(after)), "", f"{after.kind()}/{after.name}")


def limit_of(info: types.Type) -> tuple[types.Type, int | None]:
    """The type without its constraints, and what they say of the number of its entries; ``None``: it has none."""
    declared: int | None = None
    while isinstance(info, types.Metadata):
        declared = (info.extra_json_schema or {}).get("maxItems", declared)
        info = info.type
    if not isinstance(info, types.VarTupleType | types.ListType | types.DictType):
        return info, None
    return info, declared or info.max_length or LIST_ENTRIES


@lru_cache(maxsize=512)
def _limits_of_struct(struct: type[msgspec.Struct]) -> _ValueLimits:
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    found = [(field, _limits_of(field.type)) for field in info.fields]
    limits = [_FieldLimits(field.name, field.encode_name, value) for field, value in found if value is not None]
    return _ValueLimits(fields=tuple(limits))


def _limits_of(info: types.Type) -> _ValueLimits | None:
    """``None`` where nothing of a value of the type is limited."""
    info, most = limit_of(info)
    match info:
        case types.StructType():
            limits = _limits_of_struct(info.cls)
            return limits if limits.fields else None
        case types.UnionType():
            return next((found for one in info.types if (found := _limits_of(one)) is not None), None)
        case types.VarTupleType() | types.ListType():
            return _ValueLimits(most=most, entry=_limits_of(info.item_type))
        case types.DictType():
            return _ValueLimits(most=most, entry=_limits_of(info.value_type))
        case _:
            return None


def _check(before: Any, after: Any, limits: _ValueLimits, path: str, what: str) -> None:
    if after is None or before == after:  # most of an object is as it was
        return
    for field in limits.fields:
        old = getattr(before, field.name) if before is not None else None
        inner = f"{path}.{field.wire}" if path else field.wire
        _check(old, getattr(after, field.name), field.value, inner, what)
    if limits.most is None:
        return
    if len(after) > limits.most and (before is None or len(after) > len(before)):
        raise Invalid(
            f"{what} has {len(after)} entries there, and may have {limits.most}",
            place=path,
            remedy=f"write at most {limits.most}",
        )
    if limits.entry is None:
        return
    if isinstance(after, Mapping):
        for key, value in after.items():
            _check((before or {}).get(key), value, limits.entry, f"{path}.{key}", what)
    else:
        for number, value in enumerate(after):
            old = before[number] if before is not None and number < len(before) else None
            _check(old, value, limits.entry, f"{path}[{number}]", what)
