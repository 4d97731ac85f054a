"""Where randomness and identities come from: generators, hashes, uuids, name suffixes, nonces, and secrets.

A seeded generator is handed in; there is no global one. ``Random.fork`` gives a part of the program a stream of its
own, so that one part drawing more numbers does not change what another part sees for the same seed.

``SystemIds`` asks the operating system; ``SeededIds`` gives the same identities for the same seed and
is what tests and the simulation use. Never take a token from ``SeededIds`` on a real server.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import uuid
from typing import Protocol


def stable_hash(*parts: str) -> int:
    """An unsigned 64-bit hash of the parts; the parts' borders count."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return int.from_bytes(digest.digest(), "big")


class Random(random.Random):
    """A pseudo-random generator that knows its seed. Not for secrets (see ``outlive.base.ids``)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.start = seed

    def fork(self, name: str) -> Random:
        """A generator of its own for ``name``, fixed by this one's seed and the name alone."""
        return Random(stable_hash(str(self.start), name))

    def backoff_seconds(self, failures: int, base_s: float, cap_s: float) -> float:
        """Seconds to wait after so many failures in a row: doubling from ``base_s`` to ``cap_s``.

        Between half of it and all of it is drawn, so that those who failed together do not come back together.
        """
        return min(cap_s, base_s * 2.0 ** min(failures - 1, 60)) * self.uniform(0.5, 1.0)


def system_random() -> Random:
    """A generator whose seed the operating system chose; log ``start`` to be able to repeat a run."""
    return Random(int.from_bytes(os.urandom(8), "big"))


_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels and no look-alikes, as Kubernetes draws its suffixes."""


class Ids(Protocol):
    """A source of identities."""

    def new_uuid(self) -> str:
        """A version 4 uuid in lower case."""
        ...

    def new_suffix(self, length: int = 5) -> str:
        """A random end for a generated name."""
        ...

    def new_token(self) -> str:
        """A secret of 256 bits, safe in a URL."""
        ...


class SystemIds:
    """Identities from the operating system."""

    def new_uuid(self) -> str:
        """A version 4 uuid in lower case."""
        return str(uuid.uuid4())

    def new_suffix(self, length: int = 5) -> str:
        """A random end for a generated name."""
        return "".join(secrets.choice(_SUFFIX) for _ in range(length))

    def new_token(self) -> str:
        """A secret of 256 bits, safe in a URL."""
        return secrets.token_urlsafe(32)


class SeededIds:
    """The same identities for the same seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def new_uuid(self) -> str:
        """A version 4 uuid in lower case."""
        # As uuid.UUID would write it, at a third of the cost: a simulation asks thousands of times.
        value = self._random.getrandbits(128) & ~(0xF000 << 64 | 0xC000 << 48) | (4 << 76) | (0x8000 << 48)
        digits = f"{value:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def new_suffix(self, length: int = 5) -> str:
        """A random end for a generated name."""
        return "".join(self._random.choice(_SUFFIX) for _ in range(length))

    def new_token(self) -> str:
        """A repeatable word: not a secret."""
        return f"{self._random.getrandbits(256):064x}"
