"""What a fencer needs of the outside: power controllers, and whoever can shut a host out of disks and networks.

Every call is bounded by the deadline that its caller sets; real drivers run each in a child process, killed then.
Nothing that a controller says counts before its identity was checked (``outlive.node.fencing.proofs``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from outlive.resources import Hypervisor


class PowerState(StrEnum):
    """What a power controller says of its system."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class PowerReading(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer of a power controller."""

    state: PowerState
    system_uuid: str = ""
    """What the controller says that its system is."""


class PowerPort(Protocol):
    """Power controllers of hosts. ``Unavailable`` where one does not answer, ``NotFound`` where a host has none."""

    async def read(self, host: Hypervisor) -> PowerReading:
        """Identity and state, by one answer."""
        ...

    async def off(self, host: Hypervisor) -> None:
        """Cut the power; returning says only that the command was taken."""
        ...

    async def on(self, host: Hypervisor) -> None:
        """Switch on."""
        ...


class CutReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a host is shut out of, as it was read back."""

    scope: tuple[str, ...] = ()
    """``disk:<id>`` and ``port:<id>``."""
    evidence: str = ""
    expires_in_s: float | None = None
    """When it ends unless renewed; ``None``: never."""


class CutPort(Protocol):
    """Who can shut a host out. ``NotFound`` where nobody can."""

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Shut the host out of as much of ``scope`` as is in its power; renewing is the same call."""
        ...

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """What is really shut out."""
        ...

    async def lift(self, host: str, epoch: int) -> None:
        """Let it in again, as far as it was shut out through that epoch: what was cut through a later one stays."""
        ...
