"""Objects in the ``Table`` form of the Kubernetes protocol, which is what ``kubectl get`` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from outlive.base.clock import Instant, as_instant
from outlive.resources import Resource
from outlive.resources.codec import to_builtins
from outlive.resources.columns import cells

TABLE_VERSIONS: Final = ("v1", "v1beta1")
IncludeObject = Literal["None", "Metadata", "Object"]


def wanted_table(accept: str) -> str:
    """The Table version that the Accept header asks for first, or the empty string where plain JSON comes first."""
    for part in accept.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if media not in ("application/json", "*/*", "application/*"):
            continue
        if options.get("as") == "Table" and options.get("g") == "meta.k8s.io":
            if options.get("v") in TABLE_VERSIONS:
                return options["v"]
            continue
        if "as" not in options:
            return ""
    return ""


def columns(kind: type[Resource]) -> list[dict[str, Any]]:
    """Column definitions: the name, the kind's own columns, the age."""
    own = [_column(title, "string", "", path, priority) for title, path, priority in kind.info.columns]
    name = _column("Name", "string", "name", "metadata.name", 0)
    return [name, *own, _column("Age", "string", "", "time since the creation", 0)]


def _column(title: str, kind: str, form: str, description: str, priority: int) -> dict[str, Any]:
    return {"name": title, "type": kind, "format": form, "description": description, "priority": priority}


def row(obj: Resource, now: Instant, include: IncludeObject) -> dict[str, Any]:
    """One row of the table."""
    values = [str(value).lower() if isinstance(value, bool) else value for value in cells(obj, wide=True)]
    result: dict[str, Any] = {"cells": [obj.name, *values, age(obj, now)]}
    if include == "Object":
        result["object"] = to_builtins(obj)
    elif include == "Metadata":
        result["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": to_builtins(obj.metadata),
        }
    return result


def table(
    kind: type[Resource],
    objects: Iterable[Resource],
    *,
    version: str,
    now: Instant,
    include: IncludeObject,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    """The whole table of one page or one object."""
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": columns(kind),
        "rows": [row(obj, now, include) for obj in objects],
    }


def age(obj: Resource, now: Instant) -> str:
    """How long ago the object was created, in the largest unit that fits: "42s", "7m", "3h", "12d"."""
    created = obj.metadata.creation_timestamp
    if created is None:
        return "<unknown>"
    seconds = max(0, int(now - as_instant(created)))
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"
