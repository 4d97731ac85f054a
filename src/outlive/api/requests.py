"""What a request says, read from its path, query and body: pure functions."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.errors import Expired, UnsupportedMedia
from outlive.base import BadInput, Conflict
from outlive.resources import API_VERSION, Resource, encode
from outlive.store import Selector

GROUP_PATH: Final = f"/apis/{API_VERSION}"
JSON: Final = "application/json"
TABLE_VERSIONS: Final = ("v1", "v1beta1")
IncludeObject = Literal["None", "Metadata", "Object"]


class RequestTarget(msgspec.Struct, frozen=True):
    """What a request is about."""

    kind: type[Resource]
    name: str = ""
    status: bool = False

    @property
    def route(self) -> str:
        """The path without names, for metrics."""
        return f"{GROUP_PATH}/{self.kind.info.plural}{'/{name}' if self.name else ''}{'/status' if self.status else ''}"


def json_response(value: object, status: int = 200) -> Response:
    """Any plain value as JSON."""
    return Response(msgspec.json.encode(value) + b"\n", status, media_type=JSON)


def object_response(obj: Resource, status: int = 200) -> Response:
    """One object."""
    return Response(encode(obj) + b"\n", status, media_type=JSON)


def list_head(kind: type[Resource]) -> bytes:
    """The beginning of a list document, up to its first item."""
    head = {"kind": f"{kind.kind()}List", "apiVersion": API_VERSION}
    return msgspec.json.encode(head)[:-1] + b',"items":['


def read_flag(request: Request, name: str) -> bool:
    """A true or false parameter; absent is false, present without a value true."""
    value = request.query_params.get(name)
    if value is None or value in ("false", "0"):
        return False
    if value in ("true", "1", ""):
        return True
    raise BadInput(f"{name}={value[:40]!r} is neither true nor false", remedy="write true or false")


def read_number(request: Request, name: str, *, default: int, most: int) -> int:
    """A whole number from 0 to ``most`` (more is cut down to it); absent or 0 is the default."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadInput(f"{name}={text[:40]!r} is not a whole number", remedy="write digits")
    return min(int(text), most) or default


def label_selector(request: Request) -> Selector | None:
    """The label selector of the query."""
    text = request.query_params.get("labelSelector", "")
    return Selector.parse(text) if text else None


def field_selector(request: Request, *known: str) -> dict[str, str]:
    """The fields that a field selector asks for, each with its value; ``BadInput`` for one that is not known."""
    wanted: dict[str, str] = {}
    for term in filter(None, request.query_params.get("fieldSelector", "").split(",")):
        field, sign, value = term.partition("=")
        if field not in known or not sign:
            raise BadInput(f"field selector {term[:80]!r} is not known", remedy=f"only FIELD=VALUE of {known} is")
        wanted[field] = value.removeprefix("=")
    return wanted


def name_selector(request: Request) -> str:
    """The name that a field selector asks for; no other field is known."""
    return field_selector(request, "metadata.name").get("metadata.name", "")


def split_continue(text: str) -> tuple[str, str]:
    """The watch number and the store's token in a ``continue`` of ours."""
    if not text:
        return "", ""
    first, dot, token = text.partition(".")
    if not dot or not first.isascii() or not first.isdigit() or not token:
        raise Expired("the continue token is not one of this server", remedy="list from the beginning")
    return first, token


def wanted_table(request: Request) -> str:
    """The Table version that the Accept header asks for first, or the empty string where plain JSON comes first."""
    for part in request.headers.get("accept", "").split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if media not in (JSON, "*/*", "application/*"):
            continue
        if options.get("as") == "Table" and options.get("g") == "meta.k8s.io":
            if options.get("v") in TABLE_VERSIONS:
                return options["v"]
            continue
        if "as" not in options:
            return ""
    return ""


def include_object(request: Request) -> IncludeObject:
    """How much of each object goes with its row."""
    text = request.query_params.get("includeObject", "") or "Metadata"
    if text not in ("None", "Metadata", "Object"):
        raise BadInput(f"includeObject={text[:40]!r} is not known", remedy="None, Metadata or Object")
    return cast("IncludeObject", text)


def is_dry_run(value: object) -> bool:
    """Whether nothing is to be written; ``BadInput`` for another value than ``All``."""
    if not value:
        return False
    if value not in ("All", ["All"]):
        raise BadInput(f"dryRun={str(value)[:40]!r} is not known", place="dryRun", remedy="write dryRun=All")
    return True


def media_type(request: Request, *others: str) -> str:
    """The body's media type, which must be JSON or one of the others; absent counts as JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower() or JSON
    known = (JSON, *others)
    if media not in known:
        raise UnsupportedMedia(f"a body of type {media[:80]!r} is not read here", remedy=f"send {', '.join(known)}")
    return media


def document_of(raw: bytes) -> Any:
    """Any JSON document."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}", remedy="send one JSON document") from None


def with_path_name(obj: Resource, target: RequestTarget) -> Resource:
    """The object, which must have the name of the path."""
    if not obj.metadata.name:
        obj = msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, name=target.name))
    if obj.metadata.name != target.name:
        raise BadInput(
            f"the body is of {obj.metadata.name!r}, the path of {target.name!r}",
            place="metadata.name",
            remedy="send it to the path of its name",
        )
    return obj


def make_replacement(obj: Resource, current: Resource) -> Resource:
    """The object as it replaces the current one; ``Conflict`` where it is for another version, or another object."""
    meta = obj.metadata
    check_preconditions(current, uid=meta.uid, version=meta.resource_version)
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(meta, uid=current.metadata.uid))


def check_preconditions(current: Resource, *, uid: str, version: str) -> None:
    """``Conflict`` unless the object is this one, in this version; empty: any."""
    meta = current.metadata
    for what, wanted, found in (("uid", uid, meta.uid), ("version", version, meta.resource_version)):
        if wanted not in ("", found):
            raise Conflict(
                f"{current.kind()}/{current.name} has {what} {found}, not {wanted[:80]}",
                remedy="read it again and repeat",
            )
