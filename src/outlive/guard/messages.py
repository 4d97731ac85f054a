"""The protocol of the guard's socket: one JSON object a line each way, and nothing is believed unread.

A request is ``{"id": 7, "do": "beat", "sent": {"bootS": 812.25, "rawS": 811.5}, "epoch": 3}``; its answer
``{"id": 7, "ok": true, …}`` or ``{"id": 7, "ok": false, "code": "…", "message": "…"}``. All requests with their
members: docs/design/guard.md#protocol.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from outlive.guard.clocks import Instants
from outlive.guard.states import Arm, Beat, CreateBegin, CreateEnd, Disarm, Event, GuardState

MESSAGE_BYTES: Final = 4096
"""The longest request."""
STATUS: Final = "status"


class MalformedMessage(Exception):
    """A line that is no request; the message says what it lacks."""


class GuardRequest(NamedTuple):
    """What a client wants; ``None`` is a look at the status."""

    id: int
    event: Event | None


def parse_request(line: bytes) -> GuardRequest:
    """The request on a line, or ``MalformedMessage``."""
    try:
        document = json.loads(line, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise MalformedMessage('not an object: say {"do": …}')
    identity, do = _read_integer(document, "id") if "id" in document else 0, document.get("do")
    if do == STATUS:
        return GuardRequest(identity, None)
    for name, (kind, members) in _REQUESTS.items():
        if do == name:
            return GuardRequest(identity, kind(*(read(document, member) for member, read in members.items())))
    raise MalformedMessage(f"do is {str(do)[:40]!r}: say {STATUS}, {', '.join(_REQUESTS)}")


def encode_request(identity: int, event: Event | None) -> bytes:
    """The line of a request."""
    do = name_of(event)
    members = dict(zip(_REQUESTS[do][1], map(_to_wire, event), strict=True)) if event is not None else {}
    return _encode_line({"id": identity, "do": do, **members})


def name_of(event: Event | None) -> str:
    """What a request for it is called."""
    return next((name for name, (kind, _) in _REQUESTS.items() if isinstance(event, kind)), STATUS)


def encode_grant(identity: int, members: Mapping[str, Any] | None = None) -> bytes:
    """The line of a yes."""
    return _encode_line({"id": identity, "ok": True, **(members or {})})


def encode_refusal(identity: int, code: str, message: str) -> bytes:
    """The line of a no."""
    return _encode_line({"id": identity, "ok": False, "code": code, "message": message})


def describe_state(
    state: GuardState, *, now: Instants, feeding: bool, processes: int, hardware: bool
) -> dict[str, Any]:
    """What the guard says of itself."""
    return {
        "armed": state.armed,
        "phase": str(state.phase),
        "gate": "open" if state.gate_open else "closed",
        "timeoutS": state.timeout_s,
        "watchdogS": state.watchdog_s,
        "beat": _to_wire(state.beat),
        "epoch": state.epoch,
        "now": _to_wire(now),
        "feeding": feeding,
        "hardware": hardware,
        "processes": processes,
        "creates": len(state.creates),
        "createRuns": [create.run_id for create in state.creates],
        "closed": state.closed,
        "closedEpochs": list(state.closed_epochs),
        "closures": [
            {"at": _to_wire(closure.at), "epoch": closure.epoch, "verified": closure.verified}
            for closure in state.closures
        ],
    }


def _encode_line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _to_wire(value: Any) -> Any:
    """As it is on the wire."""
    return {"bootS": value.boot_s, "rawS": value.raw_s} if isinstance(value, Instants) else value


def _reject_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _read_number(document: Mapping[str, Any], name: str) -> float:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedMessage(f"{name} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise MalformedMessage(f"{name} is not a finite number")
    return number


def _read_instants(document: Mapping[str, Any], name: str) -> Instants:
    value = document.get(name)
    if not isinstance(value, dict):
        raise MalformedMessage(f'{name} is not {{"bootS": …, "rawS": …}}')
    return Instants(_read_number(value, "bootS"), _read_number(value, "rawS"))


def _read_integer(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedMessage(f"{name} is not a whole number")
    if abs(value) >= 2**63:
        raise MalformedMessage(f"{name} is too large")
    return value


def _read_text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise MalformedMessage(f"{name} is not a text")
    return value


_REQUESTS: Final[dict[str, tuple[type[Any], dict[str, Callable[[Mapping[str, Any], str], Any]]]]] = {
    "beat": (Beat, {"sent": _read_instants, "epoch": _read_integer}),
    "arm": (Arm, {"timeoutS": _read_number, "watchdogS": _read_number}),
    "disarm": (Disarm, {}),
    "create-begin": (CreateBegin, {"runId": _read_text}),
    "create-end": (CreateEnd, {"runId": _read_text}),
}
"""Requests by name: the event, and its members in order with how each is read."""
