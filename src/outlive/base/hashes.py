"""Hashes that are the same on every machine, in every process and under every PYTHONHASHSEED."""

from __future__ import annotations

import hashlib


def stable_hash(*parts: str) -> int:
    """An unsigned 64-bit hash of the parts; the parts' borders count."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return int.from_bytes(digest.digest(), "big")
