"""What a patch means for one object: pure functions on the object as it is and the patch as it was sent."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from outlive.api.patches import json_patch, merge_patch
from outlive.base.errors import BadInput, Conflict, Invalid
from outlive.resources import Resource
from outlive.resources.codec import convert, encode

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
PATCH_REMEDY: Final = f"send {MERGE_PATCH} or {JSON_PATCH}"


def metadata_only(patch: Any) -> bool:
    """Whether a merge patch sets nothing but labels and annotations, on any version."""
    if not isinstance(patch, dict) or not isinstance(patch.get("metadata"), dict):
        return False
    if not patch.keys() <= {"apiVersion", "kind", "metadata"}:
        return False
    metadata = patch["metadata"]
    return bool(metadata) and metadata.keys() <= {"labels", "annotations", "uid"} and None not in metadata.values()


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


def apply(patch: Any, media: str, current: Resource) -> Resource:
    """The current object with the patch applied; what identifies it must stay."""
    document = msgspec.json.decode(encode(current))
    try:
        patched = merge_patch(document, patch) if media == MERGE_PATCH else json_patch(document, patch)
    except RecursionError:
        raise BadInput("the patch is nested too deeply", remedy="send less than 100 levels") from None
    if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
        raise Invalid("the patch leaves no object", remedy=PATCH_REMEDY)
    metadata = patched["metadata"]
    for name, value in (("name", current.metadata.name), ("namespace", current.metadata.namespace)):
        if (metadata.get(name) or "") != value:
            raise Invalid(
                f"metadata.{name} cannot be patched", place=f"metadata.{name}", remedy="create another object"
            )
    for name, value in (("uid", current.metadata.uid), ("resourceVersion", current.metadata.resource_version)):
        if metadata.get(name) != value:
            raise Conflict(
                f"{current.kind()}/{current.name} has {name} {value}, not {str(metadata.get(name))[:80]}",
                remedy="read it again and repeat",
            )
    return cast("Resource", convert(type(current), patched))


def same_but_labels(wanted: Resource, current: Resource) -> bool:
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


def string_map(value: Any, place: str) -> dict[str, str | None]:
    """Labels or annotations of a patch: strings, or ``null`` to remove."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str | None) for item in value.values()):
        raise Invalid("not a map of strings", place=place, remedy='write {"key": "value"}, or null to remove a key')
    return value
