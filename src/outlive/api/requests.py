"""What a request for a resource says, read from its path, query and body: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from outlive.api.problems import Expired
from outlive.api.tables import IncludeObject
from outlive.api.wire import Answer, Call
from outlive.base.errors import BadInput, Conflict
from outlive.resources import API_VERSION, Resource
from outlive.resources.codec import encode
from outlive.store import Selector

GROUP_PATH: Final = f"/apis/{API_VERSION}"
GROUP_SEGMENTS: Final = GROUP_PATH.count("/")


class Target(msgspec.Struct, frozen=True):
    """What a request is about."""

    kind: type[Resource]
    name: str = ""
    namespace: str = ""
    status: bool = False

    @property
    def route(self) -> str:
        """The path without names, for metrics."""
        return f"{GROUP_PATH}/{self.kind.info.plural}{'/{name}' if self.name else ''}{'/status' if self.status else ''}"


def object_answer(obj: Resource, status: int = 200) -> Answer:
    """One object."""
    return Answer(status, encode(obj) + b"\n")


def list_head(kind: type[Resource], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a list document, up to its first item."""
    head = {"kind": f"{kind.kind()}List", "apiVersion": API_VERSION, "metadata": metadata}
    return msgspec.json.encode(head)[:-1] + b',"items":['


def label_selector(call: Call) -> Selector | None:
    """The label selector of the query."""
    text = call.query.get("labelSelector", "")
    return Selector.parse(text) if text else None


def name_selector(call: Call) -> str:
    """The name that a field selector asks for; no other field is known."""
    text = call.query.get("fieldSelector", "")
    if not text:
        return ""
    field, sign, name = text.partition("=")
    if field != "metadata.name" or not sign or "," in name:
        raise BadInput(f"field selector {text[:80]!r} is not known", remedy="only metadata.name=NAME is")
    return name.removeprefix("=")


def split_continue(text: str) -> tuple[str, str]:
    """The watch number and the store's token in a ``continue`` of ours."""
    if not text:
        return "", ""
    number, dot, token = text.partition(".")
    if not dot or not number.isascii() or not number.isdigit() or not token:
        raise Expired("the continue token is not one of this server", remedy="list from the beginning")
    return number, token


def include_object(call: Call) -> IncludeObject:
    """How much of each object goes with its row."""
    text = call.query.get("includeObject", "") or "Metadata"
    if text not in ("None", "Metadata", "Object"):
        raise BadInput(f"includeObject={text[:40]!r} is not known", remedy="None, Metadata or Object")
    return cast("IncludeObject", text)


def refuse_dry_run(value: object) -> None:
    """``BadInput`` for a dry run: it would have to be one, and the store has none."""
    if value:
        raise BadInput("dryRun is not served here", remedy="use --dry-run=client, or the dry runs of outlive itself")


def document_of(raw: bytes) -> Any:
    """Any JSON document."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}", remedy="send one JSON document") from None


def named(obj: Resource, target: Target) -> Resource:
    """The object, which must have the name of the path."""
    if not obj.metadata.name:
        obj = msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, name=target.name))
    if obj.metadata.name != target.name:
        raise BadInput(
            f"the body is of {obj.metadata.name!r}, the path of {target.name!r}",
            place="metadata.name",
            remedy="send it to the path of its name",
        )
    return in_namespace(obj, target)


def in_namespace(obj: Resource, target: Target) -> Resource:
    """The object in the namespace of the path, if that names one."""
    if not target.namespace or obj.metadata.namespace == target.namespace:
        return obj
    if obj.metadata.namespace:
        raise BadInput(f"the body is in namespace {obj.metadata.namespace!r}", place="metadata.namespace")
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, namespace=target.namespace))


def with_uid(obj: Resource, current: Resource) -> Resource:
    """The object with the uid of the current one, whose version it must have."""
    if obj.metadata.resource_version != current.metadata.resource_version:
        raise Conflict(
            f"{obj.kind()}/{obj.name} has version {current.metadata.resource_version}, "
            f"not {obj.metadata.resource_version[:80]}",
            remedy="read it again and repeat",
        )
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, uid=current.metadata.uid))
