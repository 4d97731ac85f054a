"""What the answers of a Kubernetes API server mean, as errors of ours.

Each error of a real server was looked at before it got its line here: a reason may stand for several things, and a
status may come from something between us and the server. What is not known leaves the outcome of a write open.
A 404 means ``NotFound`` only where the server names the object: a kind that it does not serve looks alike, and says
nothing of what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from outlive.base import OutliveError, Throttled, Unavailable, Unknown, errors, limits
from outlive.store.http_answers import WatchExpired
from outlive.store.troubles import StoreFull

FORBIDDEN_REMEDY: Final = "give the account that role: deploy/kubernetes has it"
DENIED: Final = "denied the request: "
"""In what the API server says where a webhook refuses."""
CRDS_REMEDY: Final = "outlive crds | kubectl apply -f -"
FULL_REMEDY: Final = "etcd is full: compact and defragment it, then disarm its alarm"

_BY_REASON: Final[Mapping[str, tuple[type[OutliveError], str]]] = {
    "Unauthorized": (errors.Forbidden, "renew its token or certificate"),
    "Forbidden": (errors.Forbidden, FORBIDDEN_REMEDY),
    "AlreadyExists": (errors.AlreadyExists, "choose another name, or replace it"),
    "Conflict": (errors.Conflict, "read it again and repeat"),
    "Gone": (WatchExpired, "list it again"),
    "Expired": (WatchExpired, "list it again"),
    "Invalid": (errors.Invalid, "see kubectl explain"),
    "BadRequest": (errors.BadInput, "see kubectl explain"),
    "MethodNotAllowed": (errors.Invalid, "is the server too old?"),
    "NotAcceptable": (errors.Invalid, "is the server too old?"),
    "UnsupportedMediaType": (errors.Invalid, "is the server too old?"),
    "RequestEntityTooLarge": (errors.LimitExceeded, "make the object smaller"),
}
"""Error and remedy of a reason that leaves no doubt."""
_BY_STATUS: Final[Mapping[int, str]] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    422: "Invalid",
}
"""The reason of an answer that gives none: something in between gave it."""
_BY_TEXT: Final[tuple[tuple[str, type[OutliveError], str], ...]] = (
    ("database space exceeded", StoreFull, FULL_REMEDY),
    ("exceeded quota", errors.LimitExceeded, "delete some, or raise the quota"),
    ("request is too large", errors.LimitExceeded, "make the object smaller"),
    ("etcdserver: no leader", Unavailable, "etcd has no quorum"),
    ("failed calling webhook", Unavailable, "does a controller of Outlive run that the API server reaches?"),
)
"""What the server's reason does not tell, by its words."""
THROTTLED_S: Final = 1.0
"""When a server that throttles its clients has them come again: it says so in a header alone, and always this."""


class _Cause(msgspec.Struct, frozen=True):
    field: str = ""


class _StatusDetails(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""
    causes: tuple[_Cause, ...] = ()
    retry_after_s: float | None = msgspec.field(default=None, name="retryAfterSeconds")


class _ApiStatus(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _StatusDetails | None = None


def api_error(status: int, raw: bytes, *, writing: bool) -> OutliveError:
    """The error that an answer of this status means; of an event in a watch (status 0) its own code counts."""
    try:
        body = msgspec.json.decode(raw, type=_ApiStatus)
    except msgspec.DecodeError:
        body = _ApiStatus(message=raw[: limits.ERROR_BODY_BYTES].decode("utf-8", "replace").strip())
    status = status or body.code
    text = body.message[: limits.ERROR_BODY_BYTES] or f"the API server answered {status}"
    details = body.details or _StatusDetails()
    for words, error, remedy in _BY_TEXT:
        if words in text:
            return error(text, remedy=remedy)
    if status == 404:
        if details.name:
            return errors.NotFound(text)
        return Unavailable(f"the API server does not serve this: {text}", remedy=CRDS_REMEDY)
    if status == 409 and text.endswith("UID in object meta: "):
        return errors.NotFound(f"{details.kind}/{details.name} is not there", remedy="it was deleted")
    fields = [one.field for one in details.causes]
    if status == 422 and fields == ["metadata.uid"]:
        return errors.Conflict(text, remedy="read it again and repeat")
    if status == 429:
        after_s = details.retry_after_s if body.reason else THROTTLED_S
        return Throttled(text, remedy="try again later", retry_after_s=after_s)
    reason = body.reason if body.reason in _BY_REASON else _BY_STATUS.get(status, "")
    if reason:
        error, remedy = _BY_REASON[reason]
        if DENIED in text:  # it says itself what, where and what to do
            return error(text)
        return error(text, place=fields[0] if fields else "", remedy=remedy)
    if writing:
        return Unknown(f"the API server answered {status}: {text}", remedy="read the object to see what became of it")
    return Unavailable(f"the API server answered {status}: {text}", remedy="see its log")
