"""One object of every kind with every field set, and one with as few as can be, made from what the kinds declare."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from msgspec import NODEFAULT, inspect

from outlive.resources import API_VERSION, KINDS, Amounts, ObjectMeta, Resource

MOMENT = datetime(2026, 11, 21, 17, 0, 0, tzinfo=UTC)
META = ObjectMeta(
    name="one",
    uid="6f9619ff-8b86-4011-b42d-00cf4fc964ff",
    resource_version="7",
    generation=2,
    creation_timestamp=MOMENT,
    finalizers=("outlive.dev/x",),
    labels={"outlive.dev/host": "h1"},
    annotations={"note": "any text, also ünïcode"},
)
AMOUNTS = Amounts({"cpu": 7500, "memory": 480 * 2**30, "gpu": 2})
WORDS: Final = {
    "host": "h1",
    "hypervisor": "h1",
    "home": "h1",
    "source": "h1",
    "definition": "<domain/>",
    "digest": "0" * 64,
    "amount": "16Gi",
    "console_secret": "console-web",
}
"""What a field of that name holds if its own name will not do."""


def value_of(declared: inspect.Type, name: str, default: Any, *, full: bool) -> Any:
    """A value of the declared type that is not the default."""
    match declared:
        case inspect.Metadata():
            return value_of(declared.type, name, default, full=full)
        case inspect.UnionType():
            choices = [one for one in declared.types if not isinstance(one, inspect.NoneType)]
            return value_of(choices[0], name, default, full=full)
        case inspect.StructType():
            return made(declared, full=full)
        case inspect.VarTupleType():
            return (value_of(declared.item_type, name, NODEFAULT, full=full),)
        case inspect.DictType():
            key = value_of(declared.key_type, "vm-1", NODEFAULT, full=full)
            return {key: value_of(declared.value_type, name, NODEFAULT, full=full)}
        case inspect.EnumType():
            return next(one for one in declared.cls if one != default)
        case inspect.LiteralType():
            return next(one for one in reversed(declared.values) if one != default)
        case inspect.CustomType(cls=cls) if cls is Amounts:
            return AMOUNTS
        case inspect.DateTimeType():
            return MOMENT
        case inspect.BoolType():
            return not default
        case inspect.IntType() | inspect.FloatType():
            least = declared.ge if declared.ge is not None else 0
            numbers = (least + 1, least + 2) if declared.le is None else (declared.le, least)
            number = next(one for one in numbers if one != default)
            return number if isinstance(declared, inspect.IntType) else float(number)
        case inspect.StrType() | inspect.AnyType():
            return WORDS.get(name, name if name != default else f"{name}-1")
    raise AssertionError(f"{name} is of a type of which there is no example: {declared}")


def made(declared: inspect.StructType, *, full: bool) -> Any:
    """An object of that class with all its fields set, or with those that have no default."""
    given: dict[str, Any] = {}
    if issubclass(declared.cls, Resource):
        given = {"api_version": API_VERSION, "metadata": META if full else ObjectMeta()}
    for field in declared.fields:
        default = field.default
        required = default is NODEFAULT and field.default_factory is NODEFAULT
        if (full or required) and field.name not in given:
            given[field.name] = value_of(field.type, field.name, default, full=full)
    return declared.cls(**given)


def examples(*, full: bool) -> tuple[Resource, ...]:
    declared = inspect.multi_type_info([KINDS[name] for name in sorted(KINDS)])
    return tuple(made(one, full=full) for one in declared if isinstance(one, inspect.StructType))


FULL, SMALL = examples(full=True), examples(full=False)
