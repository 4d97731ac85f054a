"""What clients of the Kubernetes protocol expect around the resources: discovery, tables, events, and who may do what.

The only kind of the core group is ``Event``, which ``kubectl describe`` looks up: our own events in that form, to be
read only.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.auth import AccessLevel, Identity, allow, may_read, may_write
from outlive.api.config import LIST_SLICE_OBJECTS
from outlive.api.levels import Turns
from outlive.api.requests import (
    JSON,
    IncludeObject,
    document_of,
    field_selector,
    include_object,
    json_response,
    media_type,
    wanted_table,
)
from outlive.api.streams import StreamedResponse
from outlive.base import BadInput, Clock, Forbidden, Instant, as_instant, shown_age
from outlive.resources import (
    API_VERSION,
    DISPLAY_COLUMN,
    GROUP,
    VERBS,
    VERSION,
    Cell,
    Event,
    ObjectMeta,
    Resource,
    Verb,
    name_cells,
    object_cells,
    to_builtins,
)
from outlive.store import Store, list_all

SERVED_MAJOR, SERVED_MINOR = "1", "32"
"""The release of Kubernetes whose protocol is served a part of."""
AUTHORIZATION: Final = "authorization.k8s.io"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
EVENTS_NAMESPACE: Final = "default"
"""Where events are, as Kubernetes has it for those of objects without a namespace."""
_EVENT_FIELDS: Final[Mapping[str, Callable[[Event], str]]] = {
    "involvedObject.kind": lambda event: event.regarding.kind,
    "involvedObject.name": lambda event: event.regarding.name,
    "involvedObject.namespace": lambda _event: "",
    "involvedObject.uid": lambda event: event.regarding.uid,
    "metadata.name": lambda event: event.name,
    "reason": lambda event: event.reason,
    "type": lambda event: event.type,
}
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_READS: Final[Mapping[str, Verb]] = {verb: verb for verb in VERBS}


# Discovery


def _group_version(group: str, version: str) -> dict[str, Any]:
    served = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [served], "preferredVersion": served}


def core_versions() -> dict[str, Any]:
    """``/api``: the core group, for its events."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def core_resources() -> dict[str, Any]:
    """``/api/v1``."""
    events = {"name": "events", "singularName": "event", "namespaced": True, "kind": "Event"}
    listed = {**events, "shortNames": ["ev"], "verbs": ["get", "list"]}
    return {"kind": "APIResourceList", "groupVersion": "v1", "resources": [listed]}


def api_group() -> dict[str, Any]:
    """``/apis/outlive.dev``."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group_version(GROUP, VERSION)}


def api_groups() -> dict[str, Any]:
    """``/apis``."""
    served = [_group_version(GROUP, VERSION), _group_version(AUTHORIZATION, "v1")]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": served}


def authorization_resources() -> dict[str, Any]:
    """``/apis/authorization.k8s.io/v1``."""
    reviews = [
        ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        ("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    ]
    served = [
        {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind, "verbs": ["create"]}
        for plural, kind in reviews
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{AUTHORIZATION}/v1", "resources": served}


def api_resources(plurals: Mapping[str, type[Resource]]) -> dict[str, Any]:
    """``/apis/outlive.dev/v1alpha1``: every kind and, where it has one, its status half."""
    served: list[dict[str, Any]] = []
    for plural, kind in sorted(plurals.items()):
        info = kind.info
        own = {"namespaced": False, "kind": kind.kind()}
        served.append(
            {
                "name": plural,
                "singularName": kind.singular_name(),
                **own,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                "shortNames": list(info.short_names),
                "categories": ["outlive"],
            }
        )
        if kind.has_status():
            served.append({"name": f"{plural}/status", "singularName": "", **own, "verbs": ["get", "patch", "update"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": served}


def server_version(outlive_version: str) -> dict[str, Any]:
    """``/version``: the protocol's version for its clients, and ours."""
    return {
        "major": SERVED_MAJOR,
        "minor": SERVED_MINOR,
        "gitVersion": f"v{SERVED_MAJOR}.{SERVED_MINOR}.0+outlive-{outlive_version}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{platform.machine()}",
        "outlive": outlive_version,
    }


# Tables, which kubectl get prints


def column_definitions(kind: type[Resource]) -> list[dict[str, Any]]:
    """Column definitions: the names, the kind's own columns, the age."""
    own = [_column_definition(title, path, priority) for title, path, priority in kind.info.columns]
    display = [_column_definition(DISPLAY_COLUMN, "the name that people gave it")] if kind.info.display else []
    return [
        *display,
        _column_definition("Name", "metadata.name", form="name"),
        *own,
        _column_definition("Age", "time since the creation"),
    ]


def _column_definition(title: str, description: str = "", priority: int = 0, *, form: str = "") -> dict[str, Any]:
    return {"name": title, "type": "string", "format": form, "description": description, "priority": priority}


KnownCells = Callable[[Resource], Mapping[str, Cell]]
"""What a table prints of an object by column, instead of what its document says (``outlive.node.liveness``)."""


def table_row(obj: Resource, now: Instant, include: IncludeObject, known: Mapping[str, Cell]) -> dict[str, Any]:
    """One row of the table."""
    found = object_cells(obj, wide=True, known=known)
    values = [str(value).lower() if isinstance(value, bool) else value for value in found]
    result: dict[str, Any] = {"cells": [*name_cells(obj), *values, format_age(obj.metadata, now)]}
    if include == "Object":
        result["object"] = to_builtins(obj)
    elif include == "Metadata":
        result["object"] = _partial_metadata(to_builtins(obj.metadata))
    return result


def _partial_metadata(metadata: Any) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}


def render_table(
    kind: type[Resource],
    objects: Iterable[Resource],
    *,
    version: str,
    now: Instant,
    include: IncludeObject,
    metadata: dict[str, Any],
    known_cells: KnownCells,
) -> dict[str, Any]:
    """The whole table of one page or one object."""
    return _table_document(
        version, metadata, column_definitions(kind), [table_row(obj, now, include, known_cells(obj)) for obj in objects]
    )


def table_head(kind: type[Resource], version: str) -> bytes:
    """The beginning of a table of that kind, up to its first row."""
    head = {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "columnDefinitions": column_definitions(kind)}
    return msgspec.json.encode(head)[:-1] + b',"rows":['


def _table_document(
    version: str, metadata: Any, columns: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    head = {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "metadata": metadata}
    return {**head, "columnDefinitions": columns, "rows": rows}


def format_age(metadata: ObjectMeta, now: Instant) -> str:
    """How long ago the object was created, in the largest unit that fits: "42s", "7m", "3h", "12d"."""
    created = metadata.creation_timestamp
    return "<unknown>" if created is None else shown_age(now - as_instant(created))


# Events of the core group


class CoreEvents:
    """The handlers of ``/api/v1/events``."""

    def __init__(self, store: Store, clock: Clock, turns: Turns) -> None:
        self._store = store
        self._clock = clock
        self._turns = turns

    async def list(self, request: Request, _identity: Identity) -> Response:
        """The events that the field selector asks for, the one that was seen last at the end."""
        wanted = field_selector(request, *_EVENT_FIELDS)
        namespace = request.path_params.get("namespace", "")
        found = [
            event
            async for event in list_all(self._store, Event)
            if namespace in ("", EVENTS_NAMESPACE)
            and all(
                # an event that names no uid is of whatever object has the name
                value == _EVENT_FIELDS[field](event) or (field == "involvedObject.uid" and not event.regarding.uid)
                for field, value in wanted.items()
            )
        ]
        found.sort(key=lambda event: event.last_seen)
        version = wanted_table(request)
        if version:
            titles = [_column_definition(title) for title in ("Last Seen", "Type", "Reason", "Object", "Message")]
            include = include_object(request)
            head = _table_document(version, {}, titles, [])
            return StreamedResponse(
                self._stream_parts(head, found, lambda event: self._event_row(event, include)), media_type=JSON
            )
        document = {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": []}
        return StreamedResponse(self._stream_parts(document, found, core_event), media_type=JSON)

    async def _stream_parts(
        self, document: dict[str, Any], events: Sequence[Event], render: Callable[[Event], dict[str, Any]]
    ) -> AsyncIterator[bytes]:
        """The document, whose last member is an empty list, with the events in that, some at a time."""
        comma, chunk = b"", msgspec.json.encode(document)[:-2]
        for start in range(0, len(events), LIST_SLICE_OBJECTS):
            await self._turns.wait()
            part = events[start : start + LIST_SLICE_OBJECTS]
            yield chunk + comma + b",".join([msgspec.json.encode(render(event)) for event in part])
            comma, chunk = b",", b""
        yield chunk + b"]}\n"

    async def get(self, request: Request, _identity: Identity) -> Response:
        """One event."""
        return json_response(core_event(await self._store.get(Event, request.path_params["name"])))

    def _event_row(self, event: Event, include: IncludeObject) -> dict[str, Any]:
        last = shown_age(self._clock.now() - as_instant(event.last_seen))
        regarding = f"{event.regarding.kind.lower()}/{event.regarding.name}"
        cells = [last, event.type, event.reason, regarding, event.note]
        row: dict[str, Any] = {"cells": cells}
        if include == "Object":
            row["object"] = core_event(event)
        elif include == "Metadata":
            row["object"] = _partial_metadata(core_event(event)["metadata"])
        return row


def core_event(event: Event) -> dict[str, Any]:
    """An event in the form of the core group."""
    document: dict[str, Any] = to_builtins(event)
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {**document["metadata"], "namespace": EVENTS_NAMESPACE},
        "involvedObject": {"apiVersion": API_VERSION, **document["regarding"]},
        "reason": event.reason,
        "message": event.note,
        "type": event.type,
        "count": event.count,
        "firstTimestamp": document["firstSeen"],
        "lastTimestamp": document["lastSeen"],
        "source": {"component": event.source},
        "reportingComponent": event.source,
        "reportingInstance": "",
    }


# Who may do what


class AccessReviews:
    """The handlers of ``kubectl auth can-i``: the same rules that requests are judged by."""

    def __init__(self, plurals: Mapping[str, type[Resource]]) -> None:
        self._plurals = plurals

    async def review(self, request: Request, identity: Identity) -> Response:
        """``SelfSubjectAccessReview``: one question."""
        document = await _review(request)
        spec = document["spec"]
        about, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if not isinstance(about if about is not None else path, dict):
            raise BadInput("a review asks about resourceAttributes or nonResourceAttributes", place="spec")
        try:
            self._allow(identity, about) if about is not None else allow(identity, AccessLevel.READ)
            status: dict[str, Any] = {"allowed": True}
        except Forbidden as error:
            status = {"allowed": False, "reason": error.message}
        return json_response({**document, "status": status}, 201)

    async def review_rules(self, request: Request, identity: Identity) -> Response:
        """``SelfSubjectRulesReview``: everything that the token may."""
        document = await _review(request)
        rules: dict[tuple[str, ...], list[str]] = {}
        for plural, kind in sorted(self._plurals.items()):
            for resource, status in ((plural, False), *(((f"{plural}/status", True),) if kind.has_status() else ())):
                verbs = ("create", "delete", "get", "list", "patch", "update", "watch")
                allowed = tuple(verb for verb in verbs if self._is_allowed(identity, verb, kind, status=status))
                rules.setdefault(allowed, []).append(resource)
        listed = [
            {"verbs": verbs, "apiGroups": [GROUP], "resources": plurals} for verbs, plurals in rules.items() if verbs
        ]
        return json_response(
            {**document, "status": {"resourceRules": listed, "nonResourceRules": [], "incomplete": False}}, 201
        )

    def _is_allowed(self, identity: Identity, verb: str, kind: type[Resource], *, status: bool) -> bool:
        try:
            about = {"verb": verb, "group": GROUP, "resource": kind.info.plural, "subresource": "status" * status}
            self._allow(identity, about)
        except Forbidden:
            return False
        return True

    def _allow(self, identity: Identity, about: Mapping[str, Any]) -> None:
        """``Forbidden`` unless the token may do this; ``*`` means everything."""
        verb, name = str(about.get("verb", "")), str(about.get("resource", ""))
        served = about.get("group") in ("", None) and name == "events"
        if verb in _READS and (served or about.get("group") in (GROUP, "*")):
            allow(identity, AccessLevel.SURVEY if served else AccessLevel.READ)
            if not served and (kind := self._plurals.get(name)) is not None:
                may_read(identity, kind, _READS[verb])
            return
        kinds = list(self._plurals.values()) if name == "*" else [self._plurals.get(name)]
        if about.get("group") not in (GROUP, "*") or (verb != "*" and verb not in _WRITES):
            raise Forbidden(f"{verb} {name} is not served here")
        for kind in kinds:
            if kind is None:
                raise Forbidden(f"there is no resource {name[:80]!r}")
            status, named = about.get("subresource") == "status", str(about.get("name") or "")
            may_write(identity, kind, status=status, name=named, verb="delete" if verb == "*" else verb)


async def _review(request: Request) -> dict[str, Any]:
    """The document of a review. kubectl sends it in protobuf, whatever the server says that it reads."""
    media = media_type(request, PROTOBUF)
    raw = await request.body()
    document = _decode_protobuf(raw) if media == PROTOBUF else document_of(raw)
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        raise BadInput("not a review", remedy='send {"kind": …, "spec": {…}}')
    return document


_RESOURCE_ATTRIBUTES: Final = {
    1: "namespace",
    2: "verb",
    3: "group",
    4: "version",
    5: "resource",
    6: "subresource",
    7: "name",
}
_PATH_ATTRIBUTES: Final = {1: "path", 2: "verb"}


def _decode_protobuf(raw: bytes) -> dict[str, Any]:
    """A review from Kubernetes' protobuf: four bytes, an envelope of type and content, and in it metadata and spec."""
    try:
        envelope = _protobuf_fields(raw.removeprefix(b"k8s\0"))
        kind = _decode_texts(envelope[1], {1: "apiVersion", 2: "kind"})
        spec = _protobuf_fields(_protobuf_fields(envelope[2]).get(2, b""))
        if kind["kind"] == "SelfSubjectRulesReview":
            return {**kind, "spec": {"namespace": spec.get(1, b"").decode()}}
        asked: dict[str, Any] = {}
        if 1 in spec:
            asked["resourceAttributes"] = _decode_texts(spec[1], _RESOURCE_ATTRIBUTES)
        if 2 in spec:
            asked["nonResourceAttributes"] = _decode_texts(spec[2], _PATH_ATTRIBUTES)
        return {**kind, "spec": asked}
    except (KeyError, IndexError, ValueError) as error:
        raise BadInput(f"the body is no review in protobuf: {error!r}", remedy="send JSON") from None


def _decode_texts(raw: bytes, names: Mapping[int, str]) -> dict[str, str]:
    return {names[number]: value.decode() for number, value in _protobuf_fields(raw).items() if number in names}


def _protobuf_fields(raw: bytes) -> dict[int, bytes]:
    """The fields that have a length, by number; the last of a repeated one. ``IndexError`` and ``ValueError``."""
    fields: dict[int, bytes] = {}
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        if tag & 7 != 2:
            raise ValueError(f"a field of type {tag & 7}")
        size, at = _read_varint(raw, at)
        if at + size > len(raw):
            raise ValueError("a field is longer than the body")
        fields[tag >> 3] = raw[at : at + size]
        at += size
    return fields


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")
