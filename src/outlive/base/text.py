r"""Names and sentences: patterns of names, their natural order, and parts of sentences.

Patterns are those of Go's ``path.Match``; the whole name must match. ``*`` is any run of characters except ``/``,
``?`` one character except ``/``, ``[abc]``, ``[a-z]``, ``[^a]`` a class, ``\x`` the character x. Python's ``fnmatch``
is another language: its ``*`` crosses ``/``, it negates with ``!`` and knows no escape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

from outlive.base.errors import BadInput

PATTERN_LENGTH_LIMIT = 1024


class Pattern:
    """A pattern, ready to be asked. One pass over the name whatever the pattern: stars never make it try again.

    The pattern is a row of places, one for each character that it asks for; a set of places reached so far, as the
    bits of one number, is moved on by each character of the name.
    """

    __slots__ = ("_any", "_classes", "_end", "_literals", "_stars")

    def __init__(
        self,
        literals: dict[str, int],
        classes: list[tuple[int, Callable[[str], bool]]],
        any_: int,
        stars: int,
        end: int,
    ) -> None:
        """Bits of the places: by the character that they ask for, by class, for ``?``; where a star stands; the end."""
        self._literals = literals
        self._classes = tuple(classes)
        self._any = any_
        self._stars = stars
        self._end = end

    def fullmatch(self, name: str) -> bool:
        """Whether the whole name matches."""
        places = 1
        for char in name:
            slash = char == "/"
            here = self._literals.get(char, 0) | (0 if slash else self._any)
            for bit, accepts in self._classes:
                if bit & places and accepts(char):
                    here |= bit
            places = ((places & here) << 1) | (0 if slash else places & self._stars)
            if not places:
                return False
        return bool(places & self._end)


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Pattern:
    """The pattern, ready to be asked; ``BadInput`` says where it is malformed."""
    if len(pattern) > PATTERN_LENGTH_LIMIT:
        raise _malformed_error(pattern, f"longer than {PATTERN_LENGTH_LIMIT} characters")
    literals: dict[str, int] = {}
    classes: list[tuple[int, Callable[[str], bool]]] = []
    any_ = stars = 0
    bit = 1
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            stars |= bit
            continue
        if char == "?":
            any_ |= bit
        elif char == "[":
            accepts, position = _parse_class(pattern, position)
            classes.append((bit, accepts))
        else:
            if char == "\\":
                char, position = _read_escape(pattern, position)
            literals[char] = literals.get(char, 0) | bit
        bit <<= 1
    return Pattern(literals, classes, any_, stars, bit)


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches; ``BadInput`` for a malformed pattern."""
    return compile_pattern(pattern).fullmatch(name)


def _parse_class(pattern: str, position: int) -> tuple[Callable[[str], bool], int]:
    """What the class that begins after ``[`` at ``position`` accepts, and where it ends."""
    negated = pattern[position : position + 1] == "^"
    position += negated
    ranges: list[tuple[str, str]] = []
    while not (position < len(pattern) and pattern[position] == "]" and ranges):
        low, position = _class_char(pattern, position)
        high = low
        if pattern[position : position + 1] == "-":
            high, position = _class_char(pattern, position + 1)
        ranges.append((low, high))
    return (lambda char: any(low <= char <= high for low, high in ranges) is not negated), position + 1


def _class_char(pattern: str, position: int) -> tuple[str, int]:
    if position >= len(pattern) or pattern[position] in "-]":
        raise _malformed_error(pattern, f"a class at character {position + 1} is not closed or empty")
    if pattern[position] == "\\":
        return _read_escape(pattern, position + 1)
    return pattern[position], position + 1


def _read_escape(pattern: str, position: int) -> tuple[str, int]:
    if position >= len(pattern):
        raise _malformed_error(pattern, "it ends in a lone backslash")
    return pattern[position], position + 1


def _malformed_error(pattern: str, why: str) -> BadInput:
    remedy = "see docs/reference/failover-rules.md#patterns"
    return BadInput(f"pattern {pattern[:80]!r} is malformed: {why}", remedy=remedy)


# Natural order of names: ``hv2`` before ``hv10``, so that lists read as people count.
#
# Two names that differ only in leading zeros (``hv2``, ``hv02``) are equal in that order and fall back to plain text,
# so the order is total and every decision that breaks ties by it has one answer.

_DIGITS: Final = re.compile(r"([0-9]+)")

NAMES_REMEMBERED: Final = 10_000
"""Names whose keys are kept: hosts are sorted again at every choice."""

NaturalKey = tuple[tuple[tuple[int, str], ...], str]


@lru_cache(maxsize=NAMES_REMEMBERED)
def natural_key(name: str) -> NaturalKey:
    """A sort key: runs of digits compare as whole numbers, everything between them as text."""
    runs = _DIGITS.split(name)
    # Runs alternate, text first, so a number meets a number. It is compared by length and digits, which needs no
    # conversion: a name may have more digits than Python converts.
    key = []
    for place, run in enumerate(runs):
        digits = run.lstrip("0")
        key.append((len(digits), digits) if place % 2 else (0, run))
    return tuple(key), name


# Parts of sentences: numbers with their nouns, and listings. Every text for people is put together from these.


def noun_for(number: int, noun: str) -> str:
    """The noun as it stands after the number: "host", "hosts"; "units of failure"."""
    if number == 1:
        return noun
    head, of, rest = noun.partition(" of ")
    return f"{head}s{of}{rest}"


def count_of(number: int, noun: str) -> str:
    """A number with its noun: "1 host", "1,213 hosts"."""
    return f"{number:,} {noun_for(number, noun)}"


def join_parts(parts: Sequence[str], *, most: int | None = None) -> str:
    """At least one part, as in a sentence: "a, b and c"; of more than ``most``, "a, b and 7 more"."""
    if most is not None and len(parts) > most:
        return f"{', '.join(parts[:most])} and {len(parts) - most:,} more"
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def escape_controls(text: str) -> str:
    """The text with what would steer a terminal or hide on it written out, such as ``\\x1b``.

    Names come from files, requests and clusters; none of them may clear the screen or make up a line of its own.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown_bytes(value: int) -> str:
    """Rounded, with the unit that leaves the fewest digits: ``0 B``, ``1.5 GiB``, ``318 TiB``."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(amount) < 1000 or unit == "PiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or abs(amount) >= 100 else f"{amount:.1f} {unit}"


def shown_time(moment: datetime | None) -> str:
    """A moment, in words."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "some time ago"


def shown_age(seconds: float) -> str:
    """How long ago, in the largest unit that fits: "42s", "7m", "3h", "12d"."""
    whole = max(0, int(seconds))
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if whole < limit:
            return f"{whole // size}{unit}"
    return f"{whole // 86400}d"


def format_until(moment: datetime | None) -> str:
    """Until when, in words."""
    return f"until {shown_time(moment)}" if moment else "until somebody ends it"
