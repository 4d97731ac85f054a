"""How new slots are named, and what a host's name says (docs/reference/failover.md#names)."""

from __future__ import annotations

import re

NAME_PREFIX = "failover-"
ZONE_LENGTH = 9
UNKNOWN_ZONE = "unknown"
_BUILDING_BLOCK = re.compile(r"bb[0-9]+")
_NOT_ALLOWED = re.compile(r"[^a-z0-9-]")


def zone_segment(zone: str) -> str:
    """The part of a name that says the zone: lower case, illegal characters removed, cut, then hyphens stripped."""
    return _NOT_ALLOWED.sub("", zone.lower())[:ZONE_LENGTH].strip("-") or UNKNOWN_ZONE


def name_prefix(zone: str) -> str:
    """The beginning of a slot's name. The zone is in it because stores of several zones draw suffixes independently."""
    return f"{NAME_PREFIX}{zone_segment(zone)}-"


def building_block(host: str) -> str:
    """The building block in the name of a host, such as ``bb042``; empty where there is none."""
    found = _BUILDING_BLOCK.search(host)
    return found.group() if found else ""
