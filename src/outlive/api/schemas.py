"""The kinds as OpenAPI 3.0 schemas, one for each struct, so that clients can follow references by name.

Descriptions are the docstrings of the structs and of their fields, so that ``kubectl explain`` and the page of
``/schema`` say what the code says.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec.inspect import (
    AnyType,
    BoolType,
    CustomType,
    DateTimeType,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    multi_type_info,
)

from outlive.resources import Amounts, Resource

AMOUNTS: Final = {
    "type": "object",
    "description": "Quantities by resource, such as cpu: 7500m, memory: 16Gi, gpu: 1.",
    "additionalProperties": {"x-kubernetes-int-or-string": True},
}


def components(kinds: Iterable[type[Resource]], *, ref_template: str) -> dict[str, Any]:
    """Schemas by struct name; ``ref_template`` says how one refers to another (``{name}``)."""
    found: dict[str, Any] = {}
    for info in multi_type_info(tuple(kinds)):
        _schema(info, found, ref_template)
    return found


def _schema(info: Type, found: dict[str, Any], ref: str) -> dict[str, Any]:
    match info:
        case StructType():
            name = info.cls.__name__
            if name not in found:
                found[name] = {}
                found[name] = _struct(info, found, ref)
            return {"$ref": ref.format(name=name)}
        case CustomType(cls=cls) if cls is Amounts:
            return dict(AMOUNTS)
        case UnionType(types=types):
            others = [_schema(item, found, ref) for item in types if not isinstance(item, NoneType)]
            one = others[0] if len(others) == 1 else {"anyOf": others}
            return {**_extendable(one), "nullable": True} if len(others) < len(types) else one
        case ListType(item_type=item) | VarTupleType(item_type=item):
            return {"type": "array", "items": _schema(item, found, ref)}
        case DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value, found, ref)}
        case LiteralType(values=values):
            return {"type": "string", "enum": list(values)}
        case _:
            return dict(_scalar(info))


def _scalar(info: Type) -> dict[str, Any]:
    match info:
        case DateTimeType():
            return {"type": "string", "format": "date-time"}
        case StrType():
            return {"type": "string"}
        case BoolType():
            return {"type": "boolean"}
        case IntType():
            return {"type": "integer", "format": "int64"}
        case FloatType():
            return {"type": "number", "format": "double"}
        case AnyType():
            return {}
        case _:
            raise TypeError(f"{info!r} has no OpenAPI form")


def _struct(info: StructType, found: dict[str, Any], ref: str) -> dict[str, Any]:
    texts = field_texts(info.cls)
    properties: dict[str, Any] = {}
    if info.tag_field is not None:
        properties["apiVersion"] = {"type": "string"}
        properties[info.tag_field] = {"type": "string", "enum": [info.tag]}
    for field in info.fields:
        schema = _schema(field.type, found, ref)
        text = texts.get(field.name, "")
        if text or ("$ref" in schema and len(schema) > 1):
            schema = {**_extendable(schema), **({"description": text} if text else {})}
        properties[field.encode_name] = schema
    required = [field.encode_name for field in info.fields if field.required]
    return {
        "type": "object",
        "description": inspect.cleandoc(info.cls.__doc__ or ""),
        "properties": properties,
        **({"required": required} if required else {}),
    }


def _extendable(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that further keywords can be added to, which a bare reference is not."""
    return {"allOf": [schema]} if "$ref" in schema else schema


@lru_cache(maxsize=256)
def field_texts(cls: type[msgspec.Struct]) -> dict[str, str]:
    """What the string under each field of a struct says, inherited ones included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, text in pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                texts[statement.target.id] = " ".join(text.value.value.split())
    return texts
