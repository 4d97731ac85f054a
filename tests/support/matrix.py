"""Every field of every kind, and objects in which exactly one field differs: made from the types alone."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec

from outlive.api import HOSTS, Role
from outlive.node import ROLE
from outlive.resources import (
    HOST_LABEL,
    SHARES_LABEL,
    Amounts,
    Assigned,
    Console,
    DecisionRecord,
    Election,
    Fault,
    ObjectMeta,
    ObjectRef,
    Resource,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.runtime import REPORTER_LABEL, fault_name

NAME = "kvm-1"
"""Of every object: that of the host whose token is tried, where it is one of a host."""
METADATA = {
    "metadata.labels.a": {"labels": {"a": "b"}},
    f"metadata.labels.{HOST_LABEL}": {"labels": {HOST_LABEL: NAME}},
    f"metadata.labels.{SHARES_LABEL}": {"labels": {SHARES_LABEL: "true"}},
    "metadata.annotations.a": {"annotations": {"a": "b"}},
    "metadata.finalizers": {"finalizers": ("outlive.dev/x",)},
}
TERM = 3
"""In which the coordinator of the matrix is the primary."""
R = TypeVar("R", bound=Resource)
_replace = msgspec.structs.replace


def fields_of(kind: type[Resource]) -> list[str]:
    """The paths in wire form of all fields that have no parts with owners of their own, and of metadata."""
    return [*METADATA, *_leaves(kind)]


def _leaves(struct: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    for field, kind in _typed(struct):
        if field.name in ("metadata", "api_version"):
            continue
        inner = f"{path}{field.encode_name}"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _leaves(kind, f"{inner}.")
        else:
            yield inner


def made(kind: type[R], name: str = NAME) -> R:
    """An object with what its type requires, and nothing else."""
    return _replace(_struct(kind, 1), metadata=ObjectMeta(name=name))


def fitting(kind: type[Resource], role: Role) -> Resource:
    """An object that a token of that role has to do with, as far as the rules besides the table ask for it."""
    obj: Any = made(kind)
    if isinstance(obj, VirtualMachine):
        return _replace(obj, status=VirtualMachineStatus(assigned=Assigned(hypervisor=NAME)))
    if isinstance(obj, Fault):
        reporter = {Role.HOST: "daemon", Role.COORDINATOR: "fencer"}.get(role, "recovery")
        labels = {REPORTER_LABEL: reporter} | ({HOST_LABEL: NAME} if role is Role.HOST else {})
        subject = ObjectRef(kind="Hypervisor", name=NAME)
        return _replace(obj, subject=subject, metadata=ObjectMeta(name=fault_name(obj.code, subject), labels=labels))
    if isinstance(obj, Election):
        return made(Election, ROLE if role in HOSTS else "failover")
    if isinstance(obj, Console):
        return _replace(obj, host=NAME)
    if isinstance(obj, DecisionRecord):
        return _replace(obj, by=f"node {NAME}")
    return _replace(obj, term=TERM) if "term" in kind.__struct_fields__ and role is Role.COORDINATOR else obj


def with_changed(obj: R, path: str) -> R:
    """The object with another value in this one field."""
    if path in METADATA:
        return _replace(obj, metadata=_replace(obj.metadata, **METADATA[path]))
    return typing.cast("R", _changed(obj, path.split(".")))


def _changed(struct: msgspec.Struct, path: list[str]) -> msgspec.Struct:
    field, kind = next((field, kind) for field, kind in _typed(type(struct)) if field.encode_name == path[0])
    now = getattr(struct, field.name)
    if len(path) > 1:
        return _replace(struct, **{field.name: _changed(now, path[1:])})
    other = next(value for value in (_value(kind, 1), _value(kind, 2)) if value != now)
    return _replace(struct, **{field.name: other})


def _typed(struct: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, Any]]:
    hints = typing.get_type_hints(struct, include_extras=True)
    return ((field, hints[field.name]) for field in msgspec.structs.fields(struct))


def _struct(kind: type[Any], number: int) -> Any:
    return kind(**{field.name: _value(of, number) for field, of in _typed(kind) if field.required})


def _value(kind: Any, number: int) -> Any:
    """The first or second value of the type, neither of which is a usual default."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        meta = arguments[1]
        if arguments[0] in (int, float):
            least, most = meta.ge or 0, meta.le if meta.le is not None else (meta.ge or 0) + 4
            return arguments[0](least + (most - least) * number / 4)
        return _value(arguments[0], number)
    if origin in (typing.Union, types.UnionType):
        return _value(next(one for one in arguments if one is not type(None)), number)
    if origin is Literal:
        return arguments[-number]
    if origin is tuple:
        return (_value(arguments[0], number),)
    if origin is dict:
        return {_value(arguments[0], number): _value(arguments[1], number)}
    if kind is Amounts:
        return Amounts(cpu=number * 1000)
    if kind is datetime:
        return datetime(2026, 1, number, tzinfo=UTC)
    if kind is bool:
        return number == 1
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[number]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, number)
    return {str: str(number), int: number, float: number / 2, Any: number}[kind]
