"""What the storage agent needs of its machine: the tools of DRBD.

A driver runs the real programs; the simulation answers from a model of DRBD.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec


class CommandOutput(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of ``drbdsetup`` ended."""

    argv: tuple[str, ...]
    exit: int | None = None
    """Exit status; ``None`` where it did not end by itself."""
    timed_out: bool = False
    """Whether it was killed at its limit."""
    stdout: str = ""
    stderr: str = ""


class DrbdTool(Protocol):
    """The DRBD of one machine."""

    async def is_loaded(self) -> bool:
        """Whether the kernel has DRBD (``/proc/drbd``); true where nobody can say."""
        ...

    async def run(self, argv: Sequence[str], *, limit_s: float | None) -> CommandOutput:
        """Run ``drbdsetup`` to its end, or for ``limit_s``; ``Unavailable`` where it cannot be started."""
        ...

    def events(self) -> AsyncGenerator[str, None]:
        """Lines of ``drbdsetup events2``, until its process ends; ``Unavailable`` where it cannot be started."""
        ...
