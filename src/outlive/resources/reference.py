"""The reference page of the kinds, made from the structs (docs/reference/resources.md is its committed form)."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.resources import API_VERSION, KINDS, Resource
from outlive.resources.schema import Schema, kind_schema, singular
from outlive.resources.validity import WORD_LENGTH_LIMIT

_INTRO = f"""# Resources

<!-- Made from the structs by outlive.resources.reference.reference_page(); a test compares. -->

All objects are of API version `{API_VERSION}`. A document has `apiVersion`, `kind` and `metadata`; most kinds
have a `spec` (what is wanted) and a `status` (what is seen), which are written apart; some are one document.
Unknown fields and values of the wrong type are refused. Fields that have their default value are left out.

## Quantities

Amounts of resources are maps such as `{{"cpu": "7500m", "memory": "16Gi", "gpu": "1"}}`. A quantity is a number with
an optional binary (`Ki` to `Ei`) or decimal (`n`, `u`, `m`, `k` to `E`) suffix or exponent, or a plain JSON number.
CPU is kept in thousandths of a core, everything else in whole units (memory in bytes); finer parts are rounded
away from zero.

## Manifests

`outlive crds` prints a `CustomResourceDefinition` for each kind, with a structural schema, the printed columns, and
the status subresource where the kind has a status half.

## Metadata

| field | type | meaning |
|---|---|---|
| `name` | string | a DNS name of at most 253 characters, unique within the kind |
| `generateName` | string | instead of a name: its beginning; the store adds five characters |
| `namespace` | string | empty: all kinds of Outlive are cluster-scoped |
| `uid` | string | set by the store; tells an object from a later one of the same name |
| `resourceVersion` | string | set by the store; opaque, compared for equality only |
| `generation` | integer | set by the store; counts changes of what is wanted |
| `creationTimestamp`, `deletionTimestamp` | time | set by the store |
| `finalizers` | list | the object stays, marked, until the last is removed |
| `labels` | map | keys `name` or `prefix/name`, values of at most {WORD_LENGTH_LIMIT} of letters, digits, `-_.` |
| `annotations` | map | keys as for labels, any values, 256 KiB together |
"""


def reference_page() -> str:
    """The page, in Markdown."""
    return "\n".join([_INTRO, *(_kind_section(KINDS[name]) for name in sorted(KINDS))])


def _kind_section(kind: type[Resource]) -> str:
    info = kind.info
    schema = kind_schema(kind)
    form = "spec and status" if kind.has_status() else "spec only" if info.halves else "one document"
    names = ", ".join(f"`{name}`" for name in (info.plural, singular(kind), *info.short_names))
    lines = [
        f"## {kind.kind()}",
        "",
        schema["description"],
        "",
        f"Names: {names}. Form: {form}.",
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    for name, part in schema["properties"].items():
        if name not in ("apiVersion", "kind", "metadata"):
            lines += _rows(name, part, required=name in schema.get("required", ()))
    return "\n".join(lines) + "\n"


def _rows(path: str, schema: Schema, *, required: bool) -> Iterator[str]:
    meaning = schema.get("description", "")
    if schema.get("enum"):
        words = ", ".join(f"`{word}`" if word else "empty" for word in schema["enum"])
        meaning = f"{meaning} One of {words}.".strip()
    if required:
        meaning = f"Required. {meaning}".strip()
    yield f"| `{path}` | {_type(schema)} | {meaning.replace('|', '/')} |"
    inner, suffix = schema, ""
    while "properties" not in inner:
        if "items" in inner:
            inner, suffix = inner["items"], f"{suffix}[]"
        elif isinstance(inner.get("additionalProperties"), dict):
            inner, suffix = inner["additionalProperties"], f"{suffix}.*"
        else:
            return
    for name, part in inner["properties"].items():
        yield from _rows(f"{path}{suffix}.{name}", part, required=name in inner.get("required", ()))


def _type(schema: Schema) -> str:
    if "x-kubernetes-int-or-string" in schema:
        return "quantity"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    return "time" if schema.get("format") == "date-time" else str(schema["type"])
