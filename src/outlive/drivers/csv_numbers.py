"""Numbers of a table as people and spreadsheets write them: 16384, 16.384, 16,384 and 1.5 may stand for four numbers.

Whether a point or a comma stands before the fraction is seen from all numbers of a file together: 1,5 and 0.25 say it,
1.048.576 says it, 16.384 alone does not. Where nothing says it, nobody guesses (``--decimal``).
"""

from __future__ import annotations

import re
from typing import Final

from outlive.base import BadInput

SIGNS: Final = (".", ",")
_PLAIN: Final = re.compile(r"[+-]?[0-9]*(?:[.,][0-9]*)*")
_BLANKS: Final = re.compile(r"(?<=[0-9])['\u2019\u00a0\u202f ](?=[0-9]{3}(?![0-9]))")
"""Thousands may also be set apart by a blank or an apostrophe."""
_WORD: Final = re.compile(r"(?<=[0-9])\s*([kKMGTP])(i?)[bB]\Z")


class AmbiguousNumber(BadInput):
    """A number that may be two, and nothing in its file says which: that is no matter of one row."""


class NumberForm:
    """How one file writes its numbers. ``decimal``: the sign before a fraction, where somebody says it."""

    def __init__(self, decimal: str = "") -> None:
        self._given = decimal
        self._seen: dict[str, str] = {}
        """Sign before a fraction → a number that shows it."""

    def take_sample(self, text: str) -> None:
        """Take a number into account."""
        if "." in text or "," in text:
            number = _leading_number(text)
            sign = _find_sign(number)
            if sign:
                self._seen.setdefault(sign, number)

    def normalise(self, text: str, place: str) -> str:
        """The number without signs between thousands and with a point before its fraction, and its unit as it is.

        ``BadInput`` where it may be two numbers, and for a unit that may be two units.
        """
        text = _BLANKS.sub("", text.strip())
        if unit := _WORD.search(text):
            letter, number = unit[1].upper(), text[: unit.start()]
            raise BadInput(
                f"unit of {text[:60]!r} is not known", remedy=f"write {number}{letter}i, or {number}{letter}"
            )
        number = _leading_number(text)
        if "." not in number and "," not in number:
            return text
        sign = self._given or self._choose_sign(number, place)
        other = SIGNS[1 - SIGNS.index(sign)]
        return number.replace(other, "").replace(sign, ".") + text[len(number) :]

    def _choose_sign(self, number: str, place: str) -> str:
        if len(self._seen) > 1:
            first, second = self._seen.values()
            message = f"{first} and {second} do not have the same sign before their fractions"
            raise AmbiguousNumber(message, place=place, remedy="say which it is: --decimal . or --decimal ,")
        if self._seen:
            return next(iter(self._seen))
        joined = re.sub("[.,]", "", number)
        message = f"{number} may be {joined}, or {number.replace(',', '.')} with a fraction"
        sign = "." if "." in number else ","
        remedy = f"say which sign stands before a fraction: --decimal {SIGNS[1 - SIGNS.index(sign)]} for {joined}"
        raise AmbiguousNumber(message, place=place, remedy=f"{remedy}, else --decimal {sign}")


def _leading_number(text: str) -> str:
    """The number at the beginning of a text, without its unit."""
    found = _PLAIN.match(_BLANKS.sub("", text.strip()))
    return found[0] if found else ""


def _find_sign(number: str) -> str:
    """The sign before the fraction, where this number alone shows it; empty where it may be two numbers."""
    used = [sign for sign in SIGNS if sign in number]
    if len(used) == 2:
        return max(used, key=number.rindex)
    if not used:
        return ""
    sign = used[0]
    if number.count(sign) > 1:
        return SIGNS[1 - SIGNS.index(sign)]
    whole, _, fraction = number.lstrip("+-").partition(sign)
    is_thousands = len(fraction) == 3 and 1 <= len(whole) <= 3 and not whole.startswith("0")
    return "" if is_thousands else sign
