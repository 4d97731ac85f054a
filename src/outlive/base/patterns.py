r"""Name patterns as operators of Go programs know them (``path.Match``); the whole name must match.

``*`` is any run of characters except ``/``, ``?`` one character except ``/``, ``[abc]``, ``[a-z]``,
``[^a]`` a class, ``\x`` the character x. Python's ``fnmatch`` is another language: its ``*`` crosses
``/``, it negates with ``!`` and knows no escape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from outlive.base.errors import BadInput

PATTERN_LENGTH_LIMIT = 1024

Ranges = tuple[tuple[str, str], ...]
"""First and last character of each range of a class."""


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
        raise _malformed(pattern, f"longer than {PATTERN_LENGTH_LIMIT} characters")
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
            accepts, position = _class(pattern, position)
            classes.append((bit, accepts))
        else:
            if char == "\\":
                char, position = _escaped(pattern, position)
            literals[char] = literals.get(char, 0) | bit
        bit <<= 1
    return Pattern(literals, classes, any_, stars, bit)


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches; ``BadInput`` for a malformed pattern."""
    return compile_pattern(pattern).fullmatch(name)


def _class(pattern: str, position: int) -> tuple[Callable[[str], bool], int]:
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
    return _accepting(tuple(ranges), negated), position + 1


def _accepting(ranges: Ranges, negated: bool) -> Callable[[str], bool]:
    return lambda char: any(low <= char <= high for low, high in ranges) is not negated


def _class_char(pattern: str, position: int) -> tuple[str, int]:
    if position >= len(pattern) or pattern[position] in "-]":
        raise _malformed(pattern, f"a class at character {position + 1} is not closed or empty")
    if pattern[position] == "\\":
        return _escaped(pattern, position + 1)
    return pattern[position], position + 1


def _escaped(pattern: str, position: int) -> tuple[str, int]:
    if position >= len(pattern):
        raise _malformed(pattern, "it ends in a lone backslash")
    return pattern[position], position + 1


def _malformed(pattern: str, why: str) -> BadInput:
    remedy = "see docs/reference/failover-rules.md#patterns"
    return BadInput(f"pattern {pattern[:80]!r} is malformed: {why}", remedy=remedy)
