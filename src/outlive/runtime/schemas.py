"""JSON schemas of what decisions take and give, made from the structs.

msgspec makes such schemas itself, but cannot write a default that holds ``Amounts``; and what stands below a field
in the source is worth showing. Structs are named parts under ``$defs``, so that they may refer to themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect as types

from outlive.resources import Amounts
from outlive.resources.codec import to_builtins
from outlive.resources.schema import field_docs, summary

Schema = dict[str, Any]

_LIMITS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}
_ITEM_LIMITS = {"min_length": "minItems", "max_length": "maxItems"}
_MAP_LIMITS = {"min_length": "minProperties", "max_length": "maxProperties"}


class Schemas:
    """Schemas that share one table of parts, ``parts``, by the structs' names."""

    def __init__(self) -> None:
        self.parts: dict[str, Schema] = {}
        self._names: dict[type, str] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type; ``TypeError`` for one that has no JSON form here."""
        return self._schema(types.type_info(kind))

    def _schema(self, info: types.Type) -> Schema:
        match info:
            case types.Metadata():
                return self._schema(info.type) | (info.extra_json_schema or {})
            case types.StructType():
                return self._part(info)
            case types.UnionType():
                return {"anyOf": [self._schema(member) for member in info.types]}
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                return {"type": "array", "items": self._schema(info.item_type)} | _limits(info, _ITEM_LIMITS)
            case types.TupleType():
                items = [self._schema(item) for item in info.item_types]
                return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
            case types.DictType():
                values = {"type": "object", "additionalProperties": self._schema(info.value_type)}
                return values | _limits(info, _MAP_LIMITS)
            case types.LiteralType():
                return {"enum": list(info.values)}
            case types.EnumType():
                return {"enum": [member.value for member in info.cls]}
            case types.CustomType() if info.cls is Amounts:
                return {
                    "type": "object",
                    "description": 'Quantities by resource, such as {"cpu": "7500m", "memory": "16Gi"}.',
                    "additionalProperties": {"type": ["string", "number"]},
                }
            case _:
                return _plain(info)

    def _part(self, info: types.StructType) -> Schema:
        name = self._names.get(info.cls)
        if name is None:
            name = _free_name(info.cls.__name__, self.parts)
            self._names[info.cls] = name
            self.parts[name] = {}
            self.parts[name].update(self._struct(info))
        return {"$ref": f"#/$defs/{name}"}

    def _struct(self, info: types.StructType) -> Schema:
        docs = field_docs(info.cls)
        properties: Schema = {} if info.tag_field is None else {info.tag_field: {"enum": [info.tag]}}
        required = list(properties)
        # The fields are asked for again: where a struct holds itself, the inner description has none.
        own = types.type_info(info.cls)
        assert isinstance(own, types.StructType)
        for field in own.fields:
            schema = dict(self._schema(field.type))
            if docs.get(field.name):
                schema.setdefault("description", docs[field.name])
            if field.required:
                required.append(field.encode_name)
            elif field.default is not msgspec.NODEFAULT:
                schema["default"] = to_builtins(field.default)
            properties[field.encode_name] = schema
        result: Schema = {"type": "object", "description": summary(info.cls), "properties": properties}
        if info.forbid_unknown_fields:
            result["additionalProperties"] = False
        return result | ({"required": required} if required else {})


def _plain(info: types.Type) -> Schema:
    match info:
        case types.StrType():
            return {"type": "string"} | _limits(info, _LIMITS)
        case types.BoolType():
            return {"type": "boolean"}
        case types.IntType():
            return {"type": "integer"} | _limits(info, _LIMITS)
        case types.FloatType():
            return {"type": "number"} | _limits(info, _LIMITS)
        case types.NoneType():
            return {"type": "null"}
        case types.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case types.AnyType() | types.RawType():
            return {}
        case _:
            raise TypeError(f"{info} has no schema")


def _limits(info: types.Type, names: dict[str, str]) -> Schema:
    found = {word: getattr(info, name, None) for name, word in names.items()}
    return {word: value for word, value in found.items() if value is not None}


def _free_name(name: str, taken: Iterable[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}{number}"
    return free
