"""Where whoever finds something wrong says so, for an operator to know (``outlive.node.faults`` records it)."""

from __future__ import annotations

from typing import Protocol

from outlive.resources import ObjectRef


class Faults(Protocol):
    """Whoever records faults; never fails."""

    async def raise_(self, code: str, subject: ObjectRef, message: str, *, remedy: str = "", delta: int = 0) -> None:
        """Something is wrong with this object: create the fault, or refresh it."""
        ...

    async def end(self, code: str, subject: ObjectRef) -> None:
        """It is over."""
        ...


class NoFaults:
    """Records nothing."""

    async def raise_(self, code: str, subject: ObjectRef, message: str, *, remedy: str = "", delta: int = 0) -> None:
        """Nothing."""

    async def end(self, code: str, subject: ObjectRef) -> None:
        """Nothing."""
