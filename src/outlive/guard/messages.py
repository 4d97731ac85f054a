"""The protocol of the guard's socket: one JSON object a line each way, and nothing is believed unread.

A request is ``{"id": 7, "do": "beat", "sentAtS": 812.25, "epoch": 3}``; its answer ``{"id": 7, "ok": true, …}`` or
``{"id": 7, "ok": false, "code": "…", "message": "…"}``. All requests with their members:
docs/operating/guard.md#protocol.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from outlive.guard.states import Arm, Beat, CreateBegin, CreateEnd, Disarm, Event, State

MESSAGE_BYTES: Final = 4096
"""The longest request."""
STATUS: Final = "status"


class Malformed(Exception):
    """A line that is no request; the message says what it lacks."""


class Request(NamedTuple):
    """What a client wants; ``None`` is a look at the status."""

    id: int
    event: Event | None


def parsed(line: bytes) -> Request:
    """The request on a line, or ``Malformed``."""
    try:
        document = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Malformed('not an object: say {"do": …}')
    identity = _whole(document, "id") if "id" in document else 0
    match document.get("do"):
        case "status":
            return Request(identity, None)
        case "beat":
            return Request(identity, Beat(_number(document, "sentAtS"), _whole(document, "epoch")))
        case "arm":
            return Request(identity, Arm(_number(document, "timeoutS"), _number(document, "watchdogS")))
        case "disarm":
            return Request(identity, Disarm())
        case "create-begin":
            return Request(identity, CreateBegin(_text(document, "runId")))
        case "create-end":
            return Request(identity, CreateEnd(_text(document, "runId")))
        case other:
            raise Malformed(f"do is {str(other)[:40]!r}: say status, beat, arm, disarm, create-begin or create-end")


def granted(identity: int, members: Mapping[str, Any] | None = None) -> bytes:
    """The line of a yes."""
    return _line({"id": identity, "ok": True, **(members or {})})


def refused(identity: int, code: str, message: str) -> bytes:
    """The line of a no."""
    return _line({"id": identity, "ok": False, "code": code, "message": message})


def status(state: State, *, now: float, feeding: bool, processes: int, hardware: bool) -> dict[str, Any]:
    """What the guard says of itself."""
    return {
        "armed": state.armed,
        "phase": str(state.phase),
        "gate": "open" if state.gate_open else "closed",
        "timeoutS": state.timeout_s,
        "watchdogS": state.watchdog_s,
        "beatS": state.beat_s,
        "epoch": state.epoch,
        "nowS": now,
        "feeding": feeding,
        "hardware": hardware,
        "processes": processes,
        "creates": len(state.creates),
        "createRuns": [create.run_id for create in state.creates],
        "closed": state.closed,
        "closedEpochs": list(state.closed_epochs),
        "closures": [
            {"atS": closure.at_s, "epoch": closure.epoch, "verified": closure.verified} for closure in state.closures
        ],
    }


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _number(document: Mapping[str, Any], name: str) -> float:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{name} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Malformed(f"{name} is not a finite number")
    return number


def _whole(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"{name} is not a whole number")
    if abs(value) >= 2**63:
        raise Malformed(f"{name} is too large")
    return value


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise Malformed(f"{name} is not a text")
    return value
