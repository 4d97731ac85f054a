"""The numbered documents of the storage schema. A released one is never changed: a test holds its hash."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import Refused

FOLDER: Final = Path(__file__).with_name("documents")
"""Where the documents are, each named by its number."""
BASE: Final = "base"
"""The section of paths that exist once."""


class SchemaDocument(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Where a version of the storage schema keeps everything."""

    version: int
    """Its number."""
    zookeeper: dict[str, dict[str, str]]
    """Section → key → path of a znode below the chroot."""
    buckets: dict[str, int]
    """Plural of a kind → number of znodes over which its objects are spread, by their names."""
    kinds: dict[str, str]
    """Plural of a kind → the version in which its objects are stored."""

    def find_path(self, key: str) -> str | None:
        """The path of a key of the base section; ``None`` where this version has no such key."""
        return self.zookeeper[BASE].get(key)


def latest_version() -> int:
    """The newest version that this release knows."""
    return max(int(one.stem) for one in FOLDER.glob("*.json"))


@lru_cache(maxsize=64)
def load_document(version: int) -> SchemaDocument:
    """The document of that number; ``Refused`` for one that this release does not have."""
    try:
        raw = (FOLDER / f"{version}.json").read_bytes()
    except FileNotFoundError:
        newest = latest_version()
        remedy = f"install the release that made it; this one knows 1 to {newest}"
        raise Refused(f"storage schema {version} is not known here", remedy=remedy) from None
    return msgspec.json.decode(raw, type=SchemaDocument)
