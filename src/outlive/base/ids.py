"""Where identities come from: uuids, name suffixes, nonces, and secrets.

``SystemIds`` asks the operating system; ``SeededIds`` gives the same identities for the same seed and
is what tests and the simulation use. Never take a token from ``SeededIds`` on a real server.
"""

from __future__ import annotations

import secrets
import uuid
from typing import Protocol

from outlive.base.random import Random

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels and no look-alikes, as Kubernetes draws its suffixes."""


class Ids(Protocol):
    """A source of identities."""

    def uuid(self) -> str:
        """A version 4 uuid in lower case."""
        ...

    def suffix(self, length: int = 5) -> str:
        """A random end for a generated name."""
        ...

    def token(self) -> str:
        """A secret of 256 bits, safe in a URL."""
        ...


class SystemIds:
    """Identities from the operating system."""

    def uuid(self) -> str:
        """A version 4 uuid in lower case."""
        return str(uuid.uuid4())

    def suffix(self, length: int = 5) -> str:
        """A random end for a generated name."""
        return "".join(secrets.choice(_SUFFIX) for _ in range(length))

    def token(self) -> str:
        """A secret of 256 bits, safe in a URL."""
        return secrets.token_urlsafe(32)


class SeededIds:
    """The same identities for the same seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> str:
        """A version 4 uuid in lower case."""
        # As uuid.UUID would write it, at a third of the cost: a simulation asks thousands of times.
        value = self._random.getrandbits(128) & ~(0xF000 << 64 | 0xC000 << 48) | (4 << 76) | (0x8000 << 48)
        digits = f"{value:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def suffix(self, length: int = 5) -> str:
        """A random end for a generated name."""
        return "".join(self._random.choice(_SUFFIX) for _ in range(length))

    def token(self) -> str:
        """A repeatable word: not a secret."""
        return f"{self._random.getrandbits(256):064x}"
