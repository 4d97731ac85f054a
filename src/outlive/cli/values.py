"""What the texts of options say: names with commas, amounts, pairs with an equals sign."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from outlive.base import BadInput, Instant, NotFound, Usage, as_instant

if TYPE_CHECKING:
    from outlive.resources import Amounts, FlavorSpec
    from outlive.store import Store

COUNT_DIGITS = 3
"""Digits of a number of slots or failures."""


def split_words(*texts: str) -> list[str]:
    """The words between commas, each once."""
    found = [word.strip() for text in texts for word in text.split(",")]
    return list(dict.fromkeys(word for word in found if word))


def parse_amounts(cpu: str, memory: str) -> Amounts:
    """What ``--cpu`` and ``--memory`` say; what is empty is left out."""
    from outlive.resources import Amounts

    try:
        return Amounts.parse({name: text for name, text in (("cpu", cpu), ("memory", memory)) if text})
    except BadInput as error:
        raise BadInput(error.message, place="--cpu, --memory", remedy=error.remedy) from None


def pattern_and_count(text: str, place: str) -> tuple[str, int]:
    """``PATTERN=N``: flavors, and a number of slots or failures."""
    pattern, _, number = text.rpartition("=")
    if not pattern or not number.isdecimal() or len(number) > COUNT_DIGITS:
        raise BadInput(f"{text[:80]!r} is not PATTERN=N", place=place, remedy="write 'db_*=2'")
    return pattern, int(number)


def name_and_value(text: str, place: str, remedy: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise BadInput(f"{text[:80]!r} is not NAME=VALUE", place=place, remedy=remedy)
    return name, value


def instant_of(flag: str, text: str) -> Instant:
    """A time of day; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Usage(f"{text[:40]!r} is no time", place=flag, remedy="write 2026-05-01T22:00") from None
    return as_instant(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


async def flavor_named(store: Store, name: str) -> FlavorSpec | None:
    """The flavor of that name, be it the object's or OpenStack's."""
    from outlive.resources import Flavor
    from outlive.store import list_all

    async for flavor in list_all(store, Flavor):
        if name in (flavor.spec.flavor_name, flavor.name):
            return flavor.spec
    return None


def unknown_flavor(name: str) -> NotFound:
    """There is none of that name."""
    return NotFound(f"there is no flavor {name!r}", place="--flavor", remedy="see outlive get flavors")


def gib_text(gib: float) -> str:
    """GiB for people: whole ones, and tenths of few, so that a little is never shown as nothing."""
    return f"{gib:,.0f}" if gib >= 10 or float(gib).is_integer() else f"{gib:,.1f}"
