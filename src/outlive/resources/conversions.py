"""How a stored object of one version of its kind becomes one of another version.

A release that stores a kind in a new version registers both ways, so that a cluster can go back
(docs/operating/upgrades.md). This release stores every kind in its first version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from outlive.base.errors import Refused

Conversion = Callable[[dict[str, Any]], dict[str, Any]]
"""From the JSON object of the one version to that of the other."""
CONVERSIONS: Final[dict[tuple[str, str, str], Conversion]] = {}
"""Plural of the kind, version before, version after → how."""


def convert_document(plural: str, before: str, after: str, raw: bytes) -> bytes | None:
    """The object in the version ``after``; ``None`` where it is no object of ``before``, for example one of ``after``
    already. ``Refused`` where nobody knows how."""
    if stored_version(raw) != before:
        return None
    conversion = CONVERSIONS.get((plural, before, after))
    if conversion is None:
        raise Refused(f"nobody knows how {plural} of {before} become {after}", remedy="install the release that does")
    document = msgspec.json.decode(raw)
    group = document["apiVersion"].rpartition("/")[0]
    return msgspec.json.encode({**conversion(document), "apiVersion": f"{group}/{after}" if group else after})


def stored_version(raw: bytes) -> str:
    """The version in which an object was stored; empty where it does not say."""
    try:
        return _heads.decode(raw).api_version.rpartition("/")[2]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""  # nonsense stays what it is: readers report it


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""


_heads: Final = msgspec.json.Decoder(_Head)
