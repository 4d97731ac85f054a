"""What the answers of another Outlive process mean: pages, lines of a watch, and errors as ours.

A refusal carries its stable word, message, place and remedy in ``details``; where something in between answered
instead, the status has to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from outlive.base import NotUnderstood, OutliveError, Unavailable, Unknown, errors, limits
from outlive.resources import R, decode
from outlive.store.contract import Change, Delete, Malformed, Synced, Upsert
from outlive.store.tables import decode_stored

if TYPE_CHECKING:
    import aiohttp

ANSWER_SECONDS: Final = 75.0
"""How long an answer may take; longer than the server gives itself."""
ANSWER_BYTES: Final = 512 * 1024 * 1024
"""The largest answer that is read."""
LINE_BYTES: Final = 2 * limits.OBJECT_BYTES
"""The longest line of a watch."""

_BY_CODE: Final[Mapping[str, type[OutliveError]]] = {
    **{kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OutliveError)},
    "unauthenticated": errors.Forbidden,
    "timeout": errors.Unknown,
    "too-many": errors.Unavailable,
    "body-too-large": errors.LimitExceeded,
}
"""Errors by the stable word in ``details.code``."""
_BY_STATUS: Final[dict[int, type[OutliveError]]] = {
    400: errors.BadInput,
    401: errors.Forbidden,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.LimitExceeded,
    422: errors.Invalid,
    429: errors.Unavailable,
}
"""Errors by status, for an answer that has no such word: something between us and the server gave it."""


class _ErrorDetails(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    place: str = ""
    remedy: str = ""


class _ErrorStatus(msgspec.Struct, frozen=True):
    """An error below ``/apis``, in the form of Kubernetes, or of another path, whose ``code`` is the stable word."""

    message: str = ""
    details: _ErrorDetails | None = None
    code: str | int = ""
    place: str = ""
    remedy: str = ""

    @property
    def error_details(self) -> _ErrorDetails:
        if self.details is not None:
            return self.details
        return _ErrorDetails(self.code if isinstance(self.code, str) else "", self.message, self.place, self.remedy)


class ListMetadata(msgspec.Struct, frozen=True):
    """The part of a list's metadata that is read."""

    continue_: str = msgspec.field(default="", name="continue")


class ListPage(msgspec.Struct, frozen=True):
    """A page, its items still encoded."""

    metadata: ListMetadata
    items: tuple[msgspec.Raw, ...]


class WatchLine(msgspec.Struct, frozen=True):
    """A line of a watch, its object still encoded."""

    type: str
    object: msgspec.Raw


class _BookmarkMetadata(msgspec.Struct, frozen=True):
    annotations: dict[str, str] = {}


class _Bookmark(msgspec.Struct, frozen=True):
    metadata: _BookmarkMetadata = _BookmarkMetadata()


class WatchExpired(errors.Unavailable):
    """The server cannot continue this watch; a new one can begin."""

    code = "expired"


def decode_answer(kind: type[Any], raw: bytes) -> Any:
    """The document of an answer; ``Unavailable`` for one that is not understood."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the server's answer is not understood: {error}", remedy="is it Outlive's?") from None


def decode_object(kind: type[R], raw: bytes | msgspec.Raw, *, writing: bool) -> R:
    """The object of an answer. One that is not understood leaves the outcome of a write open."""
    try:
        return decode(kind, bytes(raw))
    except errors.Invalid as error:
        failure = Unknown if writing else NotUnderstood
        raise failure(f"the server's answer is not understood: {error.message}", remedy="is it newer?") from None


async def lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The complete lines of a stream; what is left of a broken one at its end is dropped."""
    rest = b""
    async for part in content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(rest) > LINE_BYTES:
            raise Unavailable(f"a line of more than {LINE_BYTES} bytes in a watch", remedy="is it Outlive's?")
        await asyncio.sleep(0)


def change_of(kind: type[R], line: bytes) -> Change[R] | None:
    """What a line of a watch says; ``None`` for a sign of life."""
    return change_of_line(kind, cast("WatchLine", decode_answer(WatchLine, line)), error_of_answer)


def change_of_line(kind: type[R], line: WatchLine, error_of: Callable[..., OutliveError]) -> Change[R] | None:
    """The same of one that was read; ``error_of`` makes an error of a status, a body, and whether it was a write."""
    match line.type:
        case "ADDED" | "MODIFIED":
            found = decode_stored(kind, line.object)
            return found if isinstance(found, Malformed) else Upsert(found)
        case "DELETED":
            last = decode_stored(kind, line.object)
            return Delete(last.ref, None if isinstance(last, Malformed) else last)
        case "BOOKMARK":
            annotations = cast("_Bookmark", decode_answer(_Bookmark, line.object)).metadata.annotations
            return Synced() if annotations.get("k8s.io/initial-events-end") == "true" else None
        case "ERROR":
            raise error_of(0, bytes(line.object), writing=False)
        case other:
            raise Unavailable(f"an event of type {other[:40]!r} in a watch", remedy="is the server newer than this?")


def error_of_answer(status: int, raw: bytes, *, writing: bool) -> OutliveError:
    """The error that an answer stands for."""
    try:
        body = msgspec.json.decode(raw, type=_ErrorStatus)
    except msgspec.DecodeError:
        body = _ErrorStatus(message=raw[: limits.ERROR_BODY_BYTES].decode("utf-8", "replace").strip())
    code = body.error_details.code
    kind = _BY_CODE.get(code) or (WatchExpired if code == "expired" else None)
    if kind is None:
        if status not in _BY_STATUS:
            text = f"the server answered {status}: {body.message[:200]}"
            if writing:
                return Unknown(text, remedy="read the object to see whether it was applied")
            return Unavailable(text, remedy="see the server's log")
        kind = _BY_STATUS[status]
    if kind is Unknown and not writing:
        kind = Unavailable
    details = body.error_details
    message = details.message or body.message or f"the server answered {status}"
    return kind(message, place=details.place, remedy=details.remedy)


class Remedies(NamedTuple):
    """What helps where no connection comes about."""

    not_believed: str = "give the --fingerprint that outlive up printed there; see that this machine's clock is right"
    not_reached: str = "is 'outlive up' running there?"


def untrusted_error(error: object, base: str, remedies: Remedies = Remedies()) -> Unavailable:
    """The server could not prove who it is; nothing was sent."""
    return Unavailable(f"{base} is not believed: {error}", remedy=remedies.not_believed)


def unreachable_error(error: object, base: str, remedies: Remedies = Remedies()) -> Unavailable:
    """No connection was opened; nothing was sent."""
    return Unavailable(f"{base} cannot be reached: {error}", remedy=remedies.not_reached)


def connection_error(error: Exception, base: str, *, writing: bool) -> OutliveError:
    """What a connection means that ended before its answer: a write was perhaps applied."""
    text = f"the connection to {base} was lost: {str(error) or type(error).__name__}"
    if writing:
        return Unknown(text, remedy="read the object to see whether it was applied")
    return Unavailable(text, remedy="try again")
