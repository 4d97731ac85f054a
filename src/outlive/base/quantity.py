"""Kubernetes quantities ("480Gi", "500m", "8") and durations ("1m30s", "100ms"), parsed once at the edge to numbers.

Inside Outlive memory is bytes and CPU is milli-cores, both ``int``. Anything finer is rounded away
from zero, as Kubernetes' "integer value" is (docs/reference/placement.md#quantities).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from outlive.base.errors import BadInput

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_PATTERN = re.compile(
    r"([+-]?)(\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:([eE][+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE])?)\Z", re.ASCII
)
QUANTITY_LIMIT = 2**63 - 1
"""No quantity is larger, as in Kubernetes."""


def parse_quantity(text: str | int | float) -> Fraction:
    """The exact value of a quantity; ``BadInput`` names a value that is none."""
    if isinstance(text, bool):
        raise BadInput(f"{text!r} is not a quantity", remedy='write a number such as 8, "500m" or "16Gi"')
    if isinstance(text, int):
        value = Fraction(text)
    elif isinstance(text, float):
        if text != text or text in (float("inf"), float("-inf")):
            raise BadInput(f"{text!r} is not a quantity", remedy='write a number such as 8, "500m" or "16Gi"')
        value = Fraction(str(text))
    else:
        match = _PATTERN.match(text.strip())
        if match is None:
            raise BadInput(f"{text[:80]!r} is not a quantity", remedy='write a number such as 8, "500m" or "16Gi"')
        sign, digits, exponent, suffix = match.groups()
        value = Fraction(digits.rstrip(".") or "0")
        if exponent:
            power = int(exponent[1:])
            if abs(power) > 60:
                raise BadInput(f"quantity {text!r} is out of range", remedy="at most 2^63-1")
            value *= Fraction(10) ** power
        else:
            value *= _BINARY[suffix] if suffix in _BINARY else _DECIMAL[suffix or ""]
        value = -value if sign == "-" else value
    if abs(value) > QUANTITY_LIMIT:
        raise BadInput(f"quantity {text!r} is too large", remedy="at most 2^63-1")
    return value


def round_away_from_zero(value: Fraction) -> int:
    """The value as a whole number, rounded away from zero."""
    whole = abs(value.numerator) // value.denominator + (abs(value.numerator) % value.denominator != 0)
    return whole if value >= 0 else -whole


@lru_cache(maxsize=8192, typed=True)
def parse_bytes(text: str | int | float) -> int:
    """Bytes of a memory quantity."""
    return round_away_from_zero(parse_quantity(text))


@lru_cache(maxsize=8192, typed=True)
def parse_milli(text: str | int | float) -> int:
    """Thousandths of a quantity: milli-cores of a CPU quantity."""
    return round_away_from_zero(parse_quantity(text) * 1000)


def format_bytes(value: int) -> str:
    """The shortest exact quantity: the largest binary unit that divides the value."""
    for suffix in reversed(_BINARY):
        if value and value % _BINARY[suffix] == 0:
            return f"{value // _BINARY[suffix]}{suffix}"
    return str(value)


def format_milli(value: int) -> str:
    """Milli-cores as a CPU quantity: "8" or "7500m"."""
    return str(value // 1000) if value % 1000 == 0 else f"{value}m"


# Go-style durations ("1m30s", "100ms"), parsed once at the edge to seconds.

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
                return f"{sign}{_format_number(rest / size)}{unit}"
        return "0s"
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = f"{int(hours)}h" if hours else ""
    if minutes or (hours and rest):
        parts += f"{int(minutes)}m"
    if rest or not parts:
        parts += f"{_format_number(rest)}s"
    return sign + parts


def _format_number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
