"""What goes wrong at the HTTP edge, and how any error becomes an answer.

The edge adds to the tree of ``outlive.base.errors``::

    Forbidden
    └── Unauthenticated     401  no token, or none that is known
    BadInput
    ├── MethodNotAllowed    405
    ├── SlowBody            408  the body did not come in time
    └── UnsupportedMedia    415
    Conflict
    └── Expired             410  the place in a watch is too old: list again
    LimitExceeded
    ├── TooLarge            413  the body
    ├── TooManyRequests     429  watches, or requests at once
    └── HeadTooLarge        431
    Unknown
    └── TimedOut            504  the request took longer than allowed

Paths of the Kubernetes protocol answer with a ``Status`` object, those of LIQUID with a line of text, all others with
``{"code", "message", "remedy", "requestId"}`` (docs/reference/http-api.md#errors). What is not in the tree is a
defect of ours: it answers 500 with the request id and nothing else; the log has the traceback.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from outlive.base import errors
from outlive.resources import GROUP


class Unauthenticated(errors.Forbidden):
    """No token was given, or none that is known."""

    code = "unauthenticated"


class MethodNotAllowed(errors.BadInput):
    """The path knows other methods; ``allow`` lists them."""

    code = "method-not-allowed"

    def __init__(self, method: str, allow: tuple[str, ...]) -> None:
        super().__init__(f"method {method[:16]} is not allowed here", remedy=f"use {', '.join(allow)}")
        self.allow = allow


class UnsupportedMedia(errors.BadInput):
    """The body is in a form that is not read here."""

    code = "unsupported-media-type"


class SlowBody(errors.BadInput):
    """The request body did not come in time; nothing was done."""

    code = "body-timeout"


class Expired(errors.Conflict):
    """The place in a watch is too old, or of another run of the server."""

    code = "expired"


class TooLarge(errors.LimitExceeded):
    """The request body is larger than the limit."""

    code = "body-too-large"


class HeadTooLarge(errors.LimitExceeded):
    """The request's headers are larger than the limit."""

    code = "headers-too-large"


class TooManyRequests(errors.LimitExceeded):
    """As many as allowed are being served already."""

    code = "too-many"


class TimedOut(errors.Unknown):
    """The request took longer than allowed; a write may have been applied."""

    code = "timeout"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP code and Kubernetes' word for it."""

    http: int
    reason: str


STATUSES: Final[tuple[tuple[type[errors.OutliveError], Status], ...]] = (
    (Unauthenticated, Status(http=401, reason="Unauthorized")),
    (MethodNotAllowed, Status(http=405, reason="MethodNotAllowed")),
    (SlowBody, Status(http=408, reason="Timeout")),
    (UnsupportedMedia, Status(http=415, reason="UnsupportedMediaType")),
    (Expired, Status(http=410, reason="Expired")),
    (TooLarge, Status(http=413, reason="RequestEntityTooLarge")),
    (HeadTooLarge, Status(http=431, reason="BadRequest")),
    (errors.LimitExceeded, Status(http=429, reason="TooManyRequests")),
    (errors.Invalid, Status(http=422, reason="Invalid")),
    (errors.BadInput, Status(http=400, reason="BadRequest")),
    (errors.Usage, Status(http=400, reason="BadRequest")),
    (errors.NotFound, Status(http=404, reason="NotFound")),
    (errors.AlreadyExists, Status(http=409, reason="AlreadyExists")),
    (errors.InUse, Status(http=409, reason="Conflict")),
    (errors.Refused, Status(http=409, reason="Conflict")),
    (errors.Forbidden, Status(http=403, reason="Forbidden")),
    (errors.Unavailable, Status(http=503, reason="ServiceUnavailable")),
    (errors.Unknown, Status(http=504, reason="Timeout")),
)
"""Errors and their answers; the first that fits counts."""
_PATH = re.compile(r"`\$\.?([^`]*)`")
"""Where msgspec says that a document is wrong."""
INTERNAL: Final = Status(http=500, reason="InternalError")
INTERNAL_CODE: Final = "internal"


def status_of(error: BaseException) -> Status:
    """How the error is answered."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), INTERNAL)


def code_of(error: BaseException) -> str:
    """The stable word of the error."""
    return error.code if isinstance(error, errors.OutliveError) else INTERNAL_CODE


def message_of(error: BaseException, request_id: str) -> str:
    """One line for people. A defect of ours is not explained to the client: the log is, under the request id."""
    if isinstance(error, errors.OutliveError):
        return str(error)
    return f"the server failed at this request; its log says why (request id {request_id})"


def plain_problem(error: BaseException, request_id: str) -> dict[str, str]:
    """The body of an answer outside the Kubernetes protocol."""
    body = {
        "code": code_of(error),
        "message": error.message if isinstance(error, errors.OutliveError) else message_of(error, request_id),
        "requestId": request_id,
    }
    if isinstance(error, errors.OutliveError) and error.remedy:
        body["remedy"] = error.remedy
    if isinstance(error, errors.OutliveError) and error.place:
        body["place"] = error.place
    return body


def plain_line(error: BaseException, request_id: str) -> str:
    """The body of an answer of LIQUID: one line, whose wording its callers know where it has no remedy."""
    if isinstance(error, MethodNotAllowed):
        return "Method not allowed\n"
    if isinstance(error, errors.NotFound):
        return "Not found\n"
    return " ".join(message_of(error, request_id).split()) + "\n"


def status_document(error: BaseException, request_id: str) -> dict[str, Any]:
    """The error as a ``Status`` object, also for the ERROR event of a watch. ``details.code`` is our stable word."""
    status = status_of(error)
    details: dict[str, Any] = {"code": code_of(error), "requestId": request_id}
    if isinstance(error, errors.OutliveError):
        text = f"{error.message} ({error.remedy})" if error.remedy else error.message
        place = error.place or next(iter(_PATH.findall(error.message)), "body")
        details["causes"] = [{"reason": error.code, "message": text, "field": place}]
        details |= {"message": error.message, "place": error.place, "remedy": error.remedy}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message_of(error, request_id),
        "reason": status.reason,
        "details": details,
        "code": status.http,
    }


def success_document(*, plural: str, name: str, uid: str) -> dict[str, Any]:
    """What a finished deletion answers."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": name, "group": GROUP, "kind": plural, "uid": uid},
    }
