"""What placement needs of those who move VMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from outlive.placement.detectors import CompletedMove


class VmLocation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a VM is and how it does, as its source has it now."""

    host: str
    state: str
    """``ACTIVE``: it runs and does not move. ``ERROR``. Any other: something else is going on with it."""
    refusal: str = ""
    """Why the move that was asked for will not take place; empty: nobody has said so."""


class VmMoves(Protocol):
    """Moves VMs live. ``request`` names one wish: asked again under the same name, nothing more happens."""

    async def locate(self, vm: str, request: str) -> VmLocation | None:
        """Where the VM is; ``None`` if it does not exist. ``Unavailable``."""
        ...

    async def migrate(self, vm: str, request: str) -> None:
        """Move it live to any other host, without copying disks. Errors say why that is refused."""
        ...

    async def list_moves(self, vm: str) -> Sequence[CompletedMove]:
        """Moves that it has made, the oldest first, as far as they are known. ``Unavailable``."""
        ...
