"""What a patch means for one object: pure functions on the object as it is and the patch as it was sent.

JSON patch (RFC 6902) is the library's. Merge patch (RFC 7396) is also what a strategic merge patch means here: no list
of our kinds merges by a key. A server-side apply is a merge as well, which also removes what the same manager applied
before and no longer names; who applied which field stands in one annotation.

Errors are ``BadInput`` for a malformed patch and ``Invalid`` for one that does not fit the document. A failed ``test``
and a field that another manager applied are a ``Conflict``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import jsonpatch
import msgspec
from jsonpointer import JsonPointer, JsonPointerException

from outlive.api.config import PATCH_COPIED_BYTES, PATCH_OPERATIONS, POINTER_CHARACTERS
from outlive.api.errors import TooLarge
from outlive.base import BadInput, Conflict, Invalid
from outlive.resources import Resource, convert, encode

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
PATCHES: Final = (MERGE_PATCH, JSON_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
PATCH_REMEDY: Final = f"send {', '.join(PATCHES)}"
APPLIED: Final = "outlive.dev/applied"
"""The annotation that says which fields each manager applied: JSON, pointers by manager."""
MANAGER_CHARACTERS: Final = 128
_NOT_APPLIED: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "managedFields"}
)
"""Metadata that nobody applies."""
_BY_LIBRARY: Final = (jsonpatch.JsonPatchException, JsonPointerException, TypeError, KeyError, IndexError)


def merge_patch(document: Any, patch: Any) -> Any:
    """The document with the patch laid over it: ``null`` removes, maps merge, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(document: Any, operations: Any) -> Any:
    """The document after the operations, all or none."""
    if not isinstance(operations, list):
        raise BadInput("a JSON patch is a list of operations", remedy='write [{"op": "replace", "path": …}]')
    if len(operations) > PATCH_OPERATIONS:
        raise BadInput(f"{len(operations)} operations", remedy=f"at most {PATCH_OPERATIONS} in one patch")
    maps = [one for one in operations if isinstance(one, dict)]
    if any(len(str(one.get(key, ""))) > POINTER_CHARACTERS for one in maps for key in ("path", "from")):
        raise BadInput("a path is too long", remedy=f"at most {POINTER_CHARACTERS} characters")
    try:
        patches = [jsonpatch.JsonPatch([operation]) for operation in operations]
    except _BY_LIBRARY as error:
        raise BadInput(f"not a JSON patch: {error}"[:300], remedy="see RFC 6902") from None
    left = PATCH_COPIED_BYTES
    document = msgspec.json.decode(msgspec.json.encode(document))
    try:
        for operation, patch in zip(operations, patches, strict=True):
            if operation["op"] == "copy":
                copied = msgspec.json.encode(JsonPointer(operation["from"]).resolve(document))
                left -= len(copied)
                if left < 0:
                    raise TooLarge(f"the patch copies over {PATCH_COPIED_BYTES} bytes", remedy="send less at a time")
                added = {"op": "add", "path": operation["path"], "value": msgspec.json.decode(copied)}
                patch = jsonpatch.JsonPatch([added])
            document = patch.apply(document, in_place=True)
        return document
    except jsonpatch.JsonPatchTestFailed as error:
        raise Conflict(f"{error}"[:300], remedy="read the object again") from None
    except jsonpatch.InvalidJsonPatch as error:
        raise BadInput(f"not a JSON patch: {error}"[:300], remedy="see RFC 6902") from None
    except _BY_LIBRARY as error:
        raise Invalid(f"the patch does not fit: {error}"[:300], remedy="read the object again") from None


def names_version(patch: Any) -> bool:
    """Whether a patch says which version it is for."""
    if isinstance(patch, dict):
        metadata = patch.get("metadata")
        return isinstance(metadata, dict) and bool(metadata.get("resourceVersion"))
    return isinstance(patch, list) and any(
        isinstance(operation, dict)
        and operation.get("op") == "test"
        and operation.get("path") == "/metadata/resourceVersion"
        for operation in patch
    )


def apply_patch(current: Resource, patch: Any, media: str) -> Resource:
    """The current object with the patch applied; what identifies it must stay."""
    document = msgspec.json.decode(encode(current))
    try:
        changed = json_patch(document, patch) if media == JSON_PATCH else merge_patch(document, patch)
    except RecursionError:
        raise BadInput("the patch is nested too deeply", remedy="send less than 100 levels") from None
    if not isinstance(changed, dict) or not isinstance(changed.get("metadata"), dict):
        raise Invalid("the patch leaves no object", remedy=PATCH_REMEDY)
    metadata = changed["metadata"]
    if metadata.get("name") != current.metadata.name:
        raise Invalid("metadata.name cannot be patched", place="metadata.name", remedy="create another object")
    for name, value in (("uid", current.metadata.uid), ("resourceVersion", current.metadata.resource_version)):
        if metadata.get(name) != value:
            raise Conflict(
                f"{current.kind()}/{current.name} has {name} {value}, not {str(metadata.get(name))[:80]}",
                remedy="read it again and repeat",
            )
    return cast("Resource", convert(type(current), changed))


def apply_configuration(current: Resource | None, configuration: Any, *, manager: str, force: bool) -> dict[str, Any]:
    """The document that a manager's server-side apply makes of the object (``None``: there is none yet).

    ``Conflict`` names the fields that another manager applied with other values, unless ``force`` takes them over.
    """
    if not manager or len(manager) > MANAGER_CHARACTERS:
        raise BadInput("an apply names its manager", place="fieldManager", remedy="give fieldManager=NAME")
    if not isinstance(configuration, dict) or not isinstance(configuration.get("metadata", {}), dict):
        raise BadInput("an apply is of one object", remedy="send apiVersion, kind, metadata and spec")
    metadata = {key: value for key, value in configuration.get("metadata", {}).items() if key not in _NOT_APPLIED}
    wanted = {**configuration, "metadata": metadata}
    document: dict[str, Any] = msgspec.json.decode(encode(current)) if current is not None else {}
    text = document.get("metadata", {}).get("annotations", {}).get(APPLIED, "{}")
    try:
        known = msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.DecodeError:
        known = {}
    managers: dict[str, list[_Path]] = {
        name: [tuple(map(_unescape_key, path.split("/"))) for path in paths] for name, paths in known.items()
    }
    fields = dict(_leaf_fields({key: value for key, value in wanted.items() if key not in ("apiVersion", "kind")}))
    fields.pop(("metadata", "name"), None)
    for other in sorted(managers.keys() - {manager}):
        disputed = [path for path in managers[other] if path in fields and _value_at(document, path) != fields[path]]
        if disputed and not force:
            listed = ", ".join(".".join(path) for path in disputed[:10])
            raise Conflict(
                f"{other} applied {listed}", remedy="apply with --force-conflicts, or leave these fields out"
            )
        managers[other] = [path for path in managers[other] if path not in disputed]
    kept = {path for other, paths in managers.items() if other != manager for path in paths}
    document = merge_patch(document, wanted)
    for path in managers.get(manager, []):
        if path not in fields and path not in kept:
            parent = _value_at(document, path[:-1])
            if isinstance(parent, dict):
                parent.pop(path[-1], None)
    managers[manager] = sorted(fields)
    known = {name: ["/".join(map(_escape_key, path)) for path in paths] for name, paths in managers.items() if paths}
    document["metadata"].setdefault("annotations", {})[APPLIED] = msgspec.json.encode(known).decode()
    return document


def differs_in_labels_only(wanted: Resource, current: Resource) -> bool:
    """Whether nothing but labels and annotations would change (and something of them does)."""
    metadata = msgspec.structs.replace(
        wanted.metadata, labels=current.metadata.labels, annotations=current.metadata.annotations
    )
    return wanted != current and msgspec.structs.replace(wanted, metadata=metadata) == current


def label_changes(current: Resource, wanted: Resource) -> dict[str, dict[str, str | None]]:
    """What has to be set and removed to come from one to the other."""
    changes: dict[str, dict[str, str | None]] = {}
    for name in ("labels", "annotations"):
        old: dict[str, str] = getattr(current.metadata, name)
        new: dict[str, str] = getattr(wanted.metadata, name)
        changes[name] = {
            **{key: None for key in old if key not in new},
            **{key: value for key, value in new.items() if old.get(key) != value},
        }
    return changes


_Path = tuple[str, ...]


def _leaf_fields(value: dict[str, Any], at: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Every field of a document that is no map, with its path. A list is one field."""
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _leaf_fields(inner, (*at, key))
        else:
            yield (*at, key), inner


def _value_at(document: Any, path: _Path) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _escape_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape_key(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
