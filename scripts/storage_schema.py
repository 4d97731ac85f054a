"""Writes the storage schema of this release: run it when a kind was added, and before a version is released.

``python -m scripts.storage_schema`` rewrites the newest document of ``outlive/store/schema/documents``. Documents of
released versions are never written again; a test holds their hashes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.resources import KINDS
from outlive.store.schema import FOLDER, latest_version

OBJECTS_PER_BUCKET = 4000
"""So that the names of one bucket's children are below 1 MiB, however long they are, up to the quota of the kind."""
BASE = {
    "root": "",
    "schema": "/schema",
    "schema.hold": "/schema/hold",
    "schema.journal": "/schema/journal",
    "schema.locks": "/schema/locks",
    "keys": "/keys",
    "incarnation": "/incarnation",
    "objects": "/objects",
    "names": "/names",
    "bumps": "/bumps",
}


def document(version: int) -> dict[str, Any]:
    """The document of the kinds that there are now."""
    kinds = sorted((kind.info.plural, kind.info.version, kind.info.quota.objects) for kind in KINDS.values())
    base = dict(BASE)
    for plural, _, _ in kinds:
        base |= {f"{section}.{plural}": f"{BASE[section]}/{plural}" for section in ("objects", "names", "bumps")}
    buckets = {plural: 1 << max(0, (most - 1) // OBJECTS_PER_BUCKET).bit_length() for plural, _, most in kinds}
    return {
        "version": version,
        "zookeeper": {"base": base},
        "buckets": buckets,
        "kinds": {plural: kind_version for plural, kind_version, _ in kinds},
    }


if __name__ == "__main__":
    newest = latest_version()
    path = FOLDER / f"{newest}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document(newest)), indent=2) + b"\n")
