"""Natural order of names: ``hv2`` before ``hv10``, so that lists read as people count.

Two names that differ only in leading zeros (``hv2``, ``hv02``) are equal in that order and fall back to plain text,
so the order is total and every decision that breaks ties by it has one answer.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

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
    key = tuple(_number(run) if place % 2 else (0, run) for place, run in enumerate(runs))
    return key, name


def _number(digits: str) -> tuple[int, str]:
    significant = digits.lstrip("0")
    return len(significant), significant
