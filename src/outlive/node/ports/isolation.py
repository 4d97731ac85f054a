"""Storage isolation: who can shut a host out of disks and networks, and who shows that it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class CutReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a host is shut out of, as it was read back."""

    scope: tuple[str, ...] = ()
    """``disk:<id>`` and ``port:<id>``."""
    evidence: str = ""
    unanswered: str = ""
    """Why some storage did not say what is shut out there: then there may be more. Empty: all of them answered."""
    expires_in_s: float | None = None
    """When it ends unless renewed; ``None``: never."""


class CutPort(Protocol):
    """Who can shut a host out. ``NotFound`` where nobody can."""

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """That part of ``scope`` that this host can shut others out of and let them into again, as it is configured."""
        ...

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Shut the host out of as much of ``scope`` as is in its power; renewing is the same call.

        Every client of the host is meant, whatever its address and process: those that are connected, and those that
        connect later in this epoch; ``NotFound`` where the driver does not know them all. What was shut out before
        stays so. The host itself is needed for nothing. A driver that knows neither disks nor epochs (Ceph: addresses)
        shuts it out of more: of all its disks, in later epochs too, until it is let in.
        """
        ...

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """What is shut out now, as the servers that enforce it say; never what was ordered.

        Of ``scope`` only what **every** client of the host is shut out of.
        """
        ...

    async def barrier(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Return once everybody who was shut out of something in ``scope`` before this call really is.

        Answers that part of ``scope`` for which this is certain. What the driver shuts nobody out of is no part of it,
        whoever else may: then a start waits until no host is recorded as isolated from it. A server may learn of a cut
        after it can be read back (Ceph: an OSD with an older map), and would until then still take a write of the one
        who is shut out after a write of the one who comes next. Asked before each start on the host of the start:
        afterwards no such write is taken any more. ``Unavailable`` where that is not known, and where the host of the
        start is itself shut out.
        """
        ...

    async def lift(self, host: str, epoch: int) -> None:
        """Let it in again, as far as it was shut out through that epoch: what was cut through a later one stays."""
        ...

    async def hosts(self) -> Mapping[str, int]:
        """Every host that is shut out of anything now, and through which epoch: the lowest, where there are several.

        Whoever ordered it, and whether or not a record says so. An address of no host of ours is not among them.
        What cannot be read hides no other host: one that is missing is found the next time.
        """
        ...
