r"""Name patterns as operators of Go programs know them (``path.Match``); the whole name must match.

``*`` is any run of characters except ``/``, ``?`` one character except ``/``, ``[abc]``, ``[a-z]``,
``[^a]`` a class, ``\x`` the character x. Python's ``fnmatch`` is another language: its ``*`` crosses
``/``, it negates with ``!`` and knows no escape.
"""

from __future__ import annotations

import re
from functools import lru_cache

from outlive.base.errors import BadInput

PATTERN_LENGTH_LIMIT = 1024


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression; ``BadInput`` says where it is malformed."""
    if len(pattern) > PATTERN_LENGTH_LIMIT:
        raise _malformed(pattern, f"longer than {PATTERN_LENGTH_LIMIT} characters")
    out: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            if out[-1:] != ["[^/]*"]:
                out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            text, position = _class(pattern, position)
            out.append(text)
        elif char == "\\":
            literal, position = _escaped(pattern, position)
            out.append(re.escape(literal))
        else:
            out.append(re.escape(char))
    return re.compile("".join(out), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches; ``BadInput`` for a malformed pattern."""
    return compile_pattern(pattern).fullmatch(name) is not None


def _class(pattern: str, position: int) -> tuple[str, int]:
    """The class that begins after ``[`` at ``position``, and where it ends."""
    negated = pattern[position : position + 1] == "^"
    position += negated
    ranges: list[str] = []
    while True:
        if position < len(pattern) and pattern[position] == "]" and ranges:
            position += 1
            break
        low, position = _class_char(pattern, position)
        high = low
        if pattern[position : position + 1] == "-":
            high, position = _class_char(pattern, position + 1)
        if low <= high:
            ranges.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            ranges.append("")
    body = "".join(ranges)
    if not body:
        return ("[\\s\\S]" if negated else "(?!)"), position
    return f"[{'^' if negated else ''}{body}]", position


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
    return BadInput(f"pattern {pattern[:80]!r} is malformed: {why}", remedy="see docs/reference/failover.md#patterns")
