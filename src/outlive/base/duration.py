"""Go-style durations ("1m30s", "100ms"), parsed once at the edge to seconds."""

from __future__ import annotations

import re

from outlive.base.errors import BadInput

_SECOND = 10**9
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
"""Nanoseconds, of which Go counts whole ones: what is left over of a fraction is dropped."""
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LENGTH_LIMIT = 200
"""Characters of a duration."""
_LIMIT_NS = 2**63 - 1
"""The longest duration that Go holds: about 292 years."""


def parse_duration(text: str | int | float) -> float:
    """Seconds of a duration. A bare number is refused except 0, because its unit would be a guess."""
    if not isinstance(text, str):
        if text == 0 and not isinstance(text, bool):
            return 0.0
        raise BadInput(f"{text!r} is not a duration", remedy='write a unit, such as "30s", "5m" or "1h30m"')
    raw = text.strip()
    sign = -1.0 if raw.startswith("-") else 1.0
    body = raw[1:] if raw.startswith(("+", "-")) else raw
    if body == "0":
        return 0.0
    total, position = 0, 0
    while position < len(body) <= _LENGTH_LIMIT:
        match = _PART.match(body, position)
        if match is None:
            break
        whole, _, fraction = match.group(1).partition(".")
        total += int((whole + fraction) or "0") * _UNITS[match.group(2)] // 10 ** len(fraction)
        position = match.end()
    if not body or position != len(body):
        raise BadInput(f"{text[:80]!r} is not a duration", remedy='write a unit, such as "30s", "5m" or "1h30m"')
    if total > _LIMIT_NS:
        raise BadInput(f"duration {text!r} is too long", remedy="at most 292 years")
    return sign * total / _SECOND


def duration_of_flag(flag: str, text: str) -> float:
    """Seconds of a duration that stands behind a flag, which a complaint names."""
    try:
        return parse_duration(text)
    except BadInput as error:
        raise BadInput(error.message, place=flag, remedy=error.remedy) from None


def format_duration(seconds: float) -> str:
    """The duration in Go's notation, without parts at its end that are zero: "1m30s", "1h", "100ms", "0s"."""
    if seconds == 0:
        return "0s"
    sign, rest = ("-", -seconds) if seconds < 0 else ("", seconds)
    if rest < 1:
        for unit, size in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
            if rest >= size:
                return f"{sign}{_number(rest / size)}{unit}"
        return "0s"
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = f"{int(hours)}h" if hours else ""
    if minutes or (hours and rest):
        parts += f"{int(minutes)}m"
    if rest or not parts:
        parts += f"{_number(rest)}s"
    return sign + parts


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
