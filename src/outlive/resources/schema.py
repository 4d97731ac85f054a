"""Schemas of the kinds, made from the structs: manifests for Kubernetes and parts of the API's own description.

Kubernetes takes only *structural* schemas: every value has a type, nothing is referred to
(docs/reference/resources.md#manifests). What a schema cannot say (a quantity's range, the rules between
fields) the codec and the stores check.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from outlive.resources import API_VERSION, GROUP, KINDS, VERSION, Amounts, ObjectMeta, Resource
from outlive.resources.columns import DISPLAY_COLUMN, parse_path
from outlive.resources.list_limits import limit_of

Schema = dict[str, Any]

QUANTITY_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE])?$"

ROOT_FIELDS: Final[dict[str, Schema]] = {
    "apiVersion": {"type": "string", "description": f"Version of the schema that the object follows: `{API_VERSION}`."},
    "kind": {"type": "string", "description": "What the object is: the name of its schema."},
    "metadata": {"type": "object"},
}
"""Of each object, before those of its kind. An API server refuses definitions that say more of metadata."""


def build_crds() -> list[Schema]:
    """The manifests of all kinds, in name order."""
    return [build_crd(KINDS[name]) for name in sorted(KINDS)]


def build_crd(kind: type[Resource]) -> Schema:
    """The ``CustomResourceDefinition`` of one kind."""
    info = kind.info
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": kind_schema(kind)},
        "additionalPrinterColumns": printer_columns(kind),
    }
    if kind.has_status():
        version["subresources"] = {"status": {}}
    names: Schema = {
        "kind": kind.kind(),
        "listKind": f"{kind.kind()}List",
        "plural": info.plural,
        "singular": kind.singular_name(),
    }
    if info.short_names:
        names["shortNames"] = list(info.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Cluster",
            "versions": [version],
        },
    }


def kind_schema(kind: type[Resource]) -> Schema:
    """The structural schema of a whole object; Kubernetes itself knows what metadata is."""
    body = struct_schema(kind)
    properties = ROOT_FIELDS | {name: part for name, part in body["properties"].items() if name not in ROOT_FIELDS}
    schema = {"type": "object", "description": body["description"], "properties": properties}
    required = [name for name in body.get("required", ()) if name not in ROOT_FIELDS]
    return schema | ({"required": required} if required else {})


def printer_columns(kind: type[Resource]) -> list[Schema]:
    """The columns that are printed in tables, with their types; the age comes last."""
    columns: list[Schema] = []
    if kind.info.display:
        columns.append({"name": DISPLAY_COLUMN, "type": "string", "jsonPath": kind.info.display})
    schema = kind_schema(kind)
    for title, path, priority in kind.info.columns:
        column: Schema = {"name": title, "type": column_type(schema, path), "jsonPath": path}
        columns.append(column | ({"priority": priority} if priority else {}))
    columns.append({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
    return columns


def column_type(schema: Schema, path: str) -> str:
    """What a column's path leads to: ``string``, ``integer``, ``number``, ``boolean`` or ``date``.

    Of a ``date`` kubectl shows the age, which times of a spec (they may lie ahead) do not have: they stay text.
    ``KeyError`` names a step that leads nowhere, so that no column stays empty for a slip of the pen.
    """
    at: Schema = schema
    for step in parse_path(path):
        if isinstance(step, tuple):
            at = at["items"]
        elif step in at.get("properties", {}):
            at = at["properties"][step]
        elif "additionalProperties" in at:
            at = at["additionalProperties"]
        elif at == ROOT_FIELDS["metadata"]:
            return "string"
        else:
            raise KeyError(f"{path}: there is no {step}")
    if at.get("format") == "date-time":
        return "string" if path.startswith(".spec.") else "date"
    kind = str(at.get("type", "string"))
    return kind if kind in ("integer", "number", "boolean") else "string"


def openapi_schemas() -> dict[str, Schema]:
    """Schemas by name for an OpenAPI document: each kind and its list, as Kubernetes names them."""
    prefix = ".".join([*reversed(GROUP.split(".")), VERSION])
    meta = struct_schema(ObjectMeta)
    schemas: dict[str, Schema] = {}
    for name, kind in sorted(KINDS.items()):
        schema = kind_schema(kind)
        schema["properties"] = schema["properties"] | {"metadata": meta}
        schema["x-kubernetes-group-version-kind"] = [{"group": GROUP, "kind": name, "version": VERSION}]
        schemas[f"{prefix}.{name}"] = schema
        schemas[f"{prefix}.{name}List"] = {
            "type": "object",
            "description": f"A list of {kind.info.plural}.",
            "required": ["items"],
            "properties": {
                "apiVersion": ROOT_FIELDS["apiVersion"],
                "kind": ROOT_FIELDS["kind"],
                "metadata": {
                    "type": "object",
                    "properties": {
                        "continue": {"type": "string"},
                        "remainingItemCount": {"type": "integer", "format": "int64"},
                        "resourceVersion": {"type": "string"},
                    },
                },
                "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{prefix}.{name}"}},
            },
            "x-kubernetes-group-version-kind": [{"group": GROUP, "kind": f"{name}List", "version": VERSION}],
        }
    return schemas


def struct_schema(struct: type[msgspec.Struct]) -> Schema:
    """The schema of one struct, its docstring as the description, also of fields that have none of their own."""
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    docs = field_docs(struct)
    properties: Schema = {}
    for field in info.fields:
        schema = _type_schema(field.type)
        if docs.get(field.name):
            schema["description"] = docs[field.name]
        properties[field.encode_name] = schema
    result: Schema = {"type": "object", "description": summarize(struct), "properties": properties}
    required = [field.encode_name for field in info.fields if field.required]
    return result | ({"required": required} if required else {})


def _type_schema(info: types.Type) -> Schema:
    """The schema of one type; ``TypeError`` for a type that no kind has had so far."""
    # the range or pattern that the declaration of a field names for the schema alone; decoding does not check it
    declared = (info.extra_json_schema or {}) if isinstance(info, types.Metadata) else {}
    bounds = {word: declared[word] for word in ("minimum", "maximum", "pattern") if word in declared}
    info, most = limit_of(info)
    match info:
        case types.StructType():
            return struct_schema(info.cls)
        case types.UnionType():
            return _union_schema(info)
        case types.StrType():
            given = {"minLength": info.min_length, "maxLength": info.max_length, "pattern": info.pattern}
            return {"type": "string"} | {word: one for word, one in given.items() if one is not None} | bounds
        case types.BoolType():
            return {"type": "boolean"}
        case types.IntType():
            return {"type": "integer", "format": "int64"} | _number_bounds(info) | bounds
        case types.FloatType():
            return {"type": "number", "format": "double"} | _number_bounds(info)
        case types.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case types.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case types.EnumType():
            return {"type": "string", "enum": sorted(one.value for one in info.cls)}
        case types.VarTupleType() | types.ListType():
            least = {"minItems": info.min_length} if info.min_length else {}
            return {"type": "array", "items": _type_schema(info.item_type), "maxItems": most} | least
        case types.DictType() if isinstance(info.value_type, types.AnyType):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "maxProperties": most}
        case types.DictType():
            return {"type": "object", "additionalProperties": _type_schema(info.value_type), "maxProperties": most}
        case types.CustomType() if info.cls is Amounts:
            return {"type": "object", "additionalProperties": quantity_schema(bounds)}
        case _:
            raise TypeError(f"{info} has no schema yet")


def _union_schema(info: types.UnionType) -> Schema:
    """Only "this or absent": ``null`` is taken as absent."""
    members = [member for member in info.types if not isinstance(member, types.NoneType)]
    if len(members) != 1 or len(members) == len(info.types):
        raise TypeError(f"{info} has no structural schema")
    return _type_schema(members[0]) | {"nullable": True}


def _number_bounds(info: types.IntType | types.FloatType) -> Schema:
    """What decoding checks of a number. ``TypeError`` for a constraint that no field has had so far."""
    if info.multiple_of is not None:
        raise TypeError(f"{info} has no schema yet")
    bounds = {word: edge for word, edge in (("minimum", info.ge), ("maximum", info.le)) if edge is not None}
    for word, edge in (("minimum", info.gt), ("maximum", info.lt)):
        if edge is not None:
            bounds |= {word: edge, f"exclusive{word.capitalize()}": True}
    return bounds


def quantity_schema(bounds: Schema) -> Schema:
    """A quantity, written as a number or as text; a text has no minus sign where ``bounds`` allow none."""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY_PATTERN.replace("[+-]", "[+]", 1) if bounds.get("minimum") == 0 else QUANTITY_PATTERN,
        "x-kubernetes-int-or-string": True,
    } | bounds


def summarize(struct: type) -> str:
    """The docstring of a struct as one line of plain text."""
    return _plain_text(inspect.getdoc(struct) or "")


@lru_cache(maxsize=256)
def field_docs(struct: type) -> dict[str, str]:
    """The docstring below each field, by the field's name in Python; bases included."""
    docs: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if not base.__module__.startswith("outlive."):
            continue
        for field, text in pairwise(_parse_classes(base.__module__)[base.__name__].body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            value = text.value if isinstance(text, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs[field.target.id] = _plain_text(value.value)
    return docs


@lru_cache(maxsize=64)
def _parse_classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module as they are written; it is parsed once for all of them."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def _plain_text(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
