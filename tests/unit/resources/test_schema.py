"""Manifests are structural, say what the structs say, and the page of the documentation is current."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect as types
from tests.support.command import outlive
from tests.unit.resources.examples import FULL, SMALL

from outlive.resources import (
    KINDS,
    Election,
    Resource,
    build_crd,
    build_crds,
    column_type,
    field_docs,
    kind_schema,
    openapi_schemas,
    printer_columns,
    to_builtins,
)

TYPES = {"string", "integer", "number", "boolean", "object", "array"}
Schema = dict[str, Any]


def parts(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from parts(part, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from parts(schema[name], f"{path}.{name}")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_schema_is_structural(kind: type[Resource]) -> None:
    for path, schema in parts(kind_schema(kind)):
        if schema.get("x-kubernetes-int-or-string"):
            assert "type" not in schema, path
            assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]
            continue
        assert schema.get("type") in TYPES, f"{path} has no type"
        assert not {"$ref", "oneOf", "allOf", "not", "anyOf"} & set(schema), path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        assert (schema["type"] == "array") == ("items" in schema), path
        assert set(schema.get("required", ())) <= set(schema.get("properties", {})), path


def check(value: Any, schema: Schema, path: str) -> None:
    """A validator for the part of the schema language that manifests use."""
    if value is None:
        assert schema.get("nullable"), f"{path} is null"
        return
    if schema.get("x-kubernetes-int-or-string"):
        assert isinstance(value, int | str), path
        assert not isinstance(value, str) or re.search(schema["pattern"], value), f"{path}: {value}"
        return
    python = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list}
    assert isinstance(value, python[schema["type"]]), f"{path}: {value!r} is no {schema['type']}"  # type: ignore[arg-type]
    assert value in schema.get("enum", [value]), f"{path}: {value!r}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            check(item, schema["items"], f"{path}[{index}]")
    elif isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value), path
        for name, part in value.items():
            if "additionalProperties" in schema:
                check(part, schema["additionalProperties"], f"{path}.{name}")
            elif "properties" in schema:
                assert name in schema["properties"], f"{path}.{name} is unknown"
                check(part, schema["properties"][name], f"{path}.{name}")


@pytest.mark.slow
@pytest.mark.parametrize("obj", [*FULL, *SMALL], ids=lambda obj: obj.kind())
def test_what_is_encoded_is_what_the_schema_describes(obj: Resource) -> None:
    check(to_builtins(obj), kind_schema(type(obj)), obj.kind())
    check(to_builtins(obj), openapi_schemas()[f"dev.outlive.v1alpha1.{obj.kind()}"], obj.kind())


def test_the_check_itself_finds_what_is_wrong() -> None:
    document = to_builtins(FULL[-1])
    document["spec"]["diskGib"] = "10"
    with pytest.raises(AssertionError, match="diskGib"):
        check(document, kind_schema(type(FULL[-1])), "vm")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_manifest_names_the_kind(kind: type[Resource]) -> None:
    manifest = build_crd(kind)
    spec = manifest["spec"]
    assert manifest["metadata"]["name"] == f"{kind.info.plural}.outlive.dev"
    assert spec["scope"] == "Cluster"
    assert spec["names"]["kind"] == kind.kind()
    assert spec["names"]["listKind"] == f"{kind.kind()}List"
    assert spec["names"].get("shortNames", []) == list(kind.info.short_names)
    (version,) = spec["versions"]
    assert ("subresources" in version) == (kind.info.halves and "status" in kind.__struct_fields__)


def test_there_is_a_manifest_for_every_kind() -> None:
    assert [manifest["spec"]["names"]["kind"] for manifest in build_crds()] == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_column_leads_somewhere(kind: type[Resource]) -> None:
    columns = printer_columns(kind)
    if kind.info.display:
        assert columns.pop(0)["jsonPath"] == kind.info.display
    assert [column["name"] for column in columns[:-1]] == [title for title, _, _ in kind.info.columns]
    assert columns[-1]["type"] == "date"
    for column, (_, path, priority) in zip(columns, kind.info.columns, strict=False):
        assert column["jsonPath"] == path
        assert column.get("priority", 0) == priority


def test_columns_have_the_type_of_what_they_show() -> None:
    types = {c["name"]: c["type"] for kind in KINDS.values() for c in printer_columns(kind)}
    assert types["VMs"] == "integer"
    assert types["Covered"] == "boolean"
    assert types["Load"] == "number"
    assert types["Last"] == "date"
    assert types["End"] == "string"
    assert types["Memory"] == types["Ready"] == types["Zone"] == types["Allocations"] == "string"


def test_a_column_that_leads_nowhere_is_found() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        column_type(kind_schema(KINDS["VirtualMachine"]), ".status.nowhere")


def test_what_is_written_below_a_field_describes_it() -> None:
    (election,) = [one for one in FULL if isinstance(one, Election)]
    assert field_docs(type(election.record))["term"].startswith("Rises")
    schema = kind_schema(KINDS["Coverage"])
    assert "count" in schema["properties"]["status"]["properties"]["slots"]["description"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_field_says_what_it_means(kind: type[Resource]) -> None:
    for path, schema in parts(kind_schema(kind)):
        for name, field in schema.get("properties", {}).items():
            if (path, name) == ("", "metadata"):
                continue  # which the API server describes itself
            words = re.findall(r"[\w']+", field.get("description", ""))
            of_name = re.sub(r"[A-Z]+", lambda found: f" {found[0].lower()}", name).split()
            assert len(words) >= 3, f"{path}.{name}: write below the field what it means"
            assert {word.lower() for word in words} - {*of_name, "the", "of", "a", "an"}, f"{path}.{name}: {words}"


def test_lists_refer_to_their_kind() -> None:
    schemas = openapi_schemas()
    assert len(schemas) == 2 * len(KINDS)
    for name, schema in schemas.items():
        assert schema["x-kubernetes-group-version-kind"][0]["kind"] == name.rpartition(".")[2]
        if name.endswith("List"):
            assert schema["properties"]["items"]["items"]["$ref"].rpartition("/")[2] in schemas


def constraints(info: types.Type, schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, object, object]]:
    """Of each value below a type: what decoding checks, and what its schema says of it."""
    while isinstance(info, types.Metadata):
        info = info.type
    match info:
        case types.StructType():
            for field in info.fields:
                if field.encode_name in schema["properties"] and field.encode_name != "metadata":
                    at = schema["properties"][field.encode_name]
                    yield from constraints(field.type, at, f"{path}.{field.encode_name}")
        case types.UnionType():
            for one in info.types:
                yield from constraints(one, schema, path)
        case types.VarTupleType() | types.ListType():
            yield from constraints(info.item_type, schema["items"], f"{path}[]")
        case types.DictType() if "additionalProperties" in schema:
            yield from constraints(info.value_type, schema["additionalProperties"], f"{path}[*]")
        case types.IntType() | types.FloatType():
            yield from ((path, word, getattr(info, word), schema.get(name)) for word, name in NUMBERS.items())
        case types.StrType():
            yield from ((path, word, getattr(info, word), schema.get(name)) for word, name in TEXTS.items())


NUMBERS = {"ge": "minimum", "le": "maximum"}
TEXTS = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}


def test_what_decoding_checks_the_schema_says() -> None:
    found = 0
    for kind in KINDS.values():
        for path, word, checked, said in constraints(types.type_info(kind), kind_schema(kind), kind.kind()):
            if checked is not None:
                found += 1
                assert said == checked, f"{path}: decoding checks {word}={checked}, and its schema says {said}"
    assert found > 50


def test_the_manifests_for_kubernetes_have_the_kinds_as_they_are() -> None:
    kept = Path(__file__).parents[3] / "deploy/kubernetes/crds.yaml"
    assert kept.read_text() == outlive("crds").out, "outlive crds > deploy/kubernetes/crds.yaml"
