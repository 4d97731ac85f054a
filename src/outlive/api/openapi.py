"""The API's description of itself in OpenAPI 3.0, made from the kinds and the routes, never written by hand.

Two documents: ``describe_group`` is what clients of the Kubernetes protocol read (``kubectl explain``, and whether
field validation is done by the server), ``describe_all`` also has the paths outside that protocol and is what
``/schema`` shows. Both are built once, at the first request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outlive.api.auth import AccessLevel
from outlive.api.patches import APPLY_PATCH, JSON_PATCH, MERGE_PATCH
from outlive.base import stable_hash
from outlive.resources import API_VERSION, GROUP, KINDS, VERSION, Resource, openapi_schemas

if TYPE_CHECKING:
    from outlive.api.app import Endpoint

PREFIX: Final = "dev.outlive.v1alpha1."
"""Before the names of our schemas, as Kubernetes names those of a group."""
REF: Final = f"#/components/schemas/{PREFIX}{{name}}"
STATUS_REF: Final = {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Status"}
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class OpenApiDocuments:
    """The documents of one application."""

    def __init__(self, plurals: Mapping[str, type[Resource]], endpoints: Sequence[Endpoint], version: str) -> None:
        self._plurals = plurals
        self._endpoints = endpoints
        self._version = version
        self._group: bytes | None = None
        self._everything: bytes | None = None

    def describe_group(self) -> bytes:
        """OpenAPI of the group."""
        if self._group is None:
            self._group = msgspec.json.encode(self._build_document(self._kind_paths()))
        return self._group

    def describe_all(self) -> bytes:
        """OpenAPI of all paths."""
        if self._everything is None:
            paths = self._kind_paths() | {
                _PARAMETER.sub(r"{\1}", endpoint.path): plain_operations(endpoint)
                for endpoint in self._endpoints
                if endpoint.tag != "resources" and endpoint.described
            }
            self._everything = msgspec.json.encode(self._build_document(paths))
        return self._everything

    def index(self, group: str) -> dict[str, Any]:
        """Where the group's document is; the hash changes with its content."""
        digest = f"{stable_hash(self.describe_group().decode()):016X}"
        return {"paths": {group: {"serverRelativeURL": f"/openapi/v3/{group}?hash={digest}"}}}

    def _build_document(self, paths: dict[str, Any]) -> dict[str, Any]:
        status = {
            "type": "object",
            "description": "How a request failed, or that a deletion succeeded. details.code is a stable word.",
            "properties": {
                **{name: {"type": "string"} for name in ("apiVersion", "kind", "status", "message", "reason")},
                "metadata": {"type": "object"},
                "details": {"type": "object"},
                "code": {"type": "integer"},
            },
        }
        return {
            "openapi": "3.0.0",
            "info": {
                "title": "Outlive",
                "version": self._version,
                "description": "Virtual machines that outlive their hosts.",
            },
            "paths": dict(sorted(paths.items())),
            "components": {
                "schemas": openapi_schemas() | {STATUS_REF["$ref"].rpartition("/")[2]: status},
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"bearer": []}],
        }

    def _kind_paths(self) -> dict[str, Any]:
        paths: dict[str, Any] = {}
        for plural, kind in self._plurals.items():
            if kind.kind() not in KINDS:
                continue
            base = f"/apis/{API_VERSION}/{plural}"
            paths[base] = collection_operations(kind)
            paths[f"{base}/{{name}}"] = item_operations(kind, ("get", "put", "patch", "delete"))
            if kind.has_status():
                paths[f"{base}/{{name}}/status"] = item_operations(kind, ("get", "put", "patch"), status=True)
        return paths


def _schema_ref(kind: type[Resource], suffix: str = "") -> dict[str, str]:
    return {"$ref": REF.format(name=f"{kind.kind()}{suffix}")}


def _json_content(schema: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _describe_responses(schema: Any, status: str = "200") -> dict[str, Any]:
    return {
        status: {"description": "OK", **_json_content(schema)},
        "default": {"description": "What was wrong", **_json_content(STATUS_REF)},
    }


def _describe_parameter(name: str, description: str, kind: str = "string", where: str = "query") -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "description": description,
        "schema": {"type": kind},
        **({"required": True} if where == "path" else {}),
    }


WRITING: Final = (
    _describe_parameter("fieldValidation", "Accepted; unknown fields are always refused."),
    _describe_parameter("dryRun", "All: judge the request and answer as if it were done, and write nothing."),
    _describe_parameter("fieldManager", "Who applies; needed by a server-side apply, else accepted."),
)
FORCE: Final = _describe_parameter("force", "Let a server-side apply take over what others applied.", "boolean")
ORPHAN: Final = _describe_parameter(
    "propagationPolicy", "Orphan: delete a host though VMs are on it, which then have none."
)
SELECTION: Final = (
    _describe_parameter("labelSelector", "Labels that objects must have, such as a=b,c in (x,y),!d."),
    _describe_parameter("fieldSelector", "Only metadata.name=NAME."),
    _describe_parameter("limit", "Objects on a page.", "integer"),
    _describe_parameter("continue", "Where the page before ended."),
    _describe_parameter("watch", "Stream changes, one JSON document a line.", "boolean"),
    _describe_parameter("resourceVersion", "Where a watch begins."),
    _describe_parameter("sendInitialEvents", "Begin a watch with all present states and a bookmark.", "boolean"),
    _describe_parameter("allowWatchBookmarks", "Let a watch say that it is alive.", "boolean"),
    _describe_parameter("timeoutSeconds", "When a watch ends.", "integer"),
)


def _describe_operation(kind: type[Resource], action: str, verb: str, **rest: Any) -> dict[str, Any]:
    return {
        "tags": [kind.info.plural],
        "operationId": f"{verb}{kind.kind()}",
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": kind.kind()},
        **rest,
    }


def collection_operations(kind: type[Resource]) -> dict[str, Any]:
    """List, watch and create."""
    plural = kind.info.plural
    return {
        "get": _describe_operation(
            kind,
            "list",
            "list",
            summary=f"List or watch {plural}",
            parameters=list(SELECTION),
            responses=_describe_responses(_schema_ref(kind, "List")),
        ),
        "post": _describe_operation(
            kind,
            "post",
            "create",
            summary=f"Create one of the {plural}; what it says of the status half is dropped",
            parameters=list(WRITING),
            requestBody={"required": True, **_json_content(_schema_ref(kind))},
            responses=_describe_responses(_schema_ref(kind), "201"),
        ),
    }


def item_operations(kind: type[Resource], verbs: Sequence[str], *, status: bool = False) -> dict[str, Any]:
    """What can be done to one object, or to its status half."""
    half = "Status" if status else ""
    of = f"the status half of one of the {kind.info.plural}" if status else f"one of the {kind.info.plural}"
    patches = {"type": "object"}, {"type": "array", "items": {"type": "object"}}
    types = ((MERGE_PATCH, patches[0]), (JSON_PATCH, patches[1]), (APPLY_PATCH, patches[0]))
    body = {media: {"schema": schema} for media, schema in types}
    possible = {
        "get": _describe_operation(
            kind, "get", f"read{half}", summary=f"Read {of}", responses=_describe_responses(_schema_ref(kind))
        ),
        "put": _describe_operation(
            kind,
            "put",
            f"replace{half}",
            summary=f"Replace {of}: compare-and-swap on resourceVersion and uid",
            parameters=list(WRITING),
            requestBody={"required": True, **_json_content(_schema_ref(kind))},
            responses=_describe_responses(_schema_ref(kind)),
        ),
        "patch": _describe_operation(
            kind,
            "patch",
            f"patch{half}",
            summary=f"Patch {of}",
            parameters=[*WRITING, FORCE],
            requestBody={"required": True, "content": body},
            responses=_describe_responses(_schema_ref(kind)),
        ),
        "delete": _describe_operation(
            kind,
            "delete",
            "delete",
            summary=f"Delete {of}, with preconditions",
            parameters=[WRITING[1], ORPHAN],
            responses=_describe_responses(STATUS_REF),
        ),
    }
    return {
        "parameters": [_describe_parameter("name", "The object's name.", where="path")],
        **{verb: possible[verb] for verb in verbs},
    }


def plain_operations(endpoint: Endpoint) -> dict[str, Any]:
    """A path outside the resources."""
    ok = {"description": "OK", **_json_content({})}
    wrong = _json_content({"type": "object"})
    if endpoint.tag == "liquid":
        wrong = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    operation: dict[str, Any] = {
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "responses": {
            **({"204": {"description": "Done"}} if endpoint.methods == ("PUT",) else {"200": ok}),
            "default": {"description": "What was wrong", **wrong},
        },
    }
    if endpoint.access is AccessLevel.OPEN:
        operation["security"] = []
    if {"POST", "PUT"} & set(endpoint.methods):
        operation["requestBody"] = {"required": True, **_json_content({"type": "object"})}
    names = _PARAMETER.findall(endpoint.path)
    parameters = [_describe_parameter(name, f"The {name}.", where="path") for name in names]
    return {"parameters": parameters, **{verb.lower(): operation for verb in endpoint.methods if verb != "HEAD"}}
