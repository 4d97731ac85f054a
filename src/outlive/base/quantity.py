"""Kubernetes quantities ("480Gi", "500m", "8"), parsed once at the edge to whole numbers.

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
        value = _parse_text(text)
    if abs(value) > QUANTITY_LIMIT:
        raise BadInput(f"quantity {text!r} is too large", remedy="at most 2^63-1")
    return value


def _parse_text(text: str) -> Fraction:
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
    elif suffix in _BINARY:
        value *= _BINARY[suffix]
    else:
        value *= _DECIMAL[suffix or ""]
    return -value if sign == "-" else value


def away_from_zero(value: Fraction) -> int:
    """The value as a whole number, rounded away from zero."""
    whole = abs(value.numerator) // value.denominator + (abs(value.numerator) % value.denominator != 0)
    return whole if value >= 0 else -whole


@lru_cache(maxsize=8192, typed=True)
def parse_bytes(text: str | int | float) -> int:
    """Bytes of a memory quantity."""
    return away_from_zero(parse_quantity(text))


@lru_cache(maxsize=8192, typed=True)
def parse_milli(text: str | int | float) -> int:
    """Thousandths of a quantity: milli-cores of a CPU quantity."""
    return away_from_zero(parse_quantity(text) * 1000)


def format_bytes(value: int) -> str:
    """The shortest exact quantity: the largest binary unit that divides the value."""
    for suffix in reversed(_BINARY):
        if value and value % _BINARY[suffix] == 0:
            return f"{value // _BINARY[suffix]}{suffix}"
    return str(value)


def format_milli(value: int) -> str:
    """Milli-cores as a CPU quantity: "8" or "7500m"."""
    return str(value // 1000) if value % 1000 == 0 else f"{value}m"
