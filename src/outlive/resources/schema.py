"""The kinds as manifests for a Kubernetes cluster (``CustomResourceDefinition``), generated from the structs.

Kubernetes wants *structural* schemas: every value has a type, nothing is a reference, ``null`` is an attribute. What a
struct requires is required here; defaults stay with the structs, so that a cluster never writes them into objects.
Metadata is Kubernetes' own business and has no schema here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import inspect

from outlive.resources.amounts import Amounts
from outlive.resources.meta import GROUP, VERSION, Resource

DEPTH_LIMIT: Final = 24
"""Structs inside structs; a struct that contains itself would never end."""


def manifest(kind: type[Resource]) -> dict[str, Any]:
    """The ``CustomResourceDefinition`` of a kind."""
    info = kind.info
    names: dict[str, Any] = {
        "kind": kind.kind(),
        "listKind": f"{kind.kind()}List",
        "plural": info.plural,
        "singular": info.singular or kind.kind().lower(),
    }
    if info.short_names:
        names["shortNames"] = list(info.short_names)
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": structural_schema(kind)},
        "additionalPrinterColumns": [
            {"name": title, "type": "string", "jsonPath": path, "priority": priority}
            for title, path, priority in info.columns
        ],
    }
    if info.halves and "status" in kind.__struct_fields__:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced" if info.namespaced else "Cluster",
            "versions": [version],
        },
    }


def structural_schema(kind: type[Resource]) -> dict[str, Any]:
    """The schema of a kind's documents, whole and without references."""
    schema = _schema(inspect.type_info(kind), 0)
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **schema["properties"],
        "metadata": {"type": "object"},
    }
    return schema


def _schema(info: inspect.Type, depth: int) -> dict[str, Any]:
    """The structural schema of one type."""
    if depth > DEPTH_LIMIT:
        raise RecursionError("a kind contains itself")
    match info:
        case inspect.StructType():
            return _struct(info, depth)
        case inspect.UnionType():
            return _union(info, depth)
        case inspect.CustomType() if info.cls is Amounts:
            return {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _schema(info.value_type, depth + 1)}
        case inspect.VarTupleType() | inspect.ListType():
            return {"type": "array", "items": _schema(info.item_type, depth + 1)}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case inspect.StrType() | inspect.BoolType() | inspect.FloatType() | inspect.IntType():
            return dict(_PLAIN[type(info)])
        case _:
            raise TypeError(f"{info} has no structural schema")


_PLAIN: Final[Mapping[type[inspect.Type], Mapping[str, str]]] = {
    inspect.StrType: {"type": "string"},
    inspect.BoolType: {"type": "boolean"},
    inspect.FloatType: {"type": "number"},
    inspect.IntType: {"type": "integer", "format": "int64"},
}


def _struct(info: inspect.StructType, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if info.cls.__doc__:
        schema["description"] = " ".join(info.cls.__doc__.split())
    schema["properties"] = {field.encode_name: _schema(field.type, depth + 1) for field in info.fields}
    required = [field.encode_name for field in info.fields if field.required]
    return {**schema, **({"required": required} if required else {})}


def _union(info: inspect.UnionType, depth: int) -> dict[str, Any]:
    choices = [choice for choice in info.types if not isinstance(choice, inspect.NoneType)]
    if len(choices) != 1:
        raise TypeError(f"a field of several types has no structural schema: {info.types}")
    nullable = len(choices) < len(info.types)
    return {**_schema(choices[0], depth + 1), **({"nullable": True} if nullable else {})}
