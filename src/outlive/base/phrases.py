"""Parts of sentences: numbers with their nouns, and listings. Every text for people is put together from these."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


def noun_for(number: int, noun: str) -> str:
    """The noun as it stands after the number: "host", "hosts"; "units of failure"."""
    if number == 1:
        return noun
    head, of, rest = noun.partition(" of ")
    return f"{head}s{of}{rest}"


def count_of(number: int, noun: str) -> str:
    """A number with its noun: "1 host", "1,213 hosts"."""
    return f"{number:,} {noun_for(number, noun)}"


def listing(parts: Sequence[str], *, most: int | None = None) -> str:
    """At least one part, as in a sentence: "a, b and c"; of more than ``most``, "a, b and 7 more"."""
    if most is not None and len(parts) > most:
        return f"{', '.join(parts[:most])} and {len(parts) - most:,} more"
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def visible(text: str) -> str:
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


def until(moment: datetime | None) -> str:
    """Until when, in words."""
    return f"until {shown_time(moment)}" if moment else "until somebody ends it"
