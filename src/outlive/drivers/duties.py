"""Duties of the primary coordinator that are programs of the host: such as a unit that is enabled and disabled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from outlive.base import Unavailable
from outlive.drivers.commands import run

LIMIT_S: Final = 8.0
"""How long a program may take; less than a duty may."""
SHOWN: Final = 200
"""Characters of what it prints that an error quotes."""


@dataclass(slots=True)
class CommandDuty:
    """One program that starts something, and one that stops it; either may be empty."""

    name: str
    start_argv: Sequence[str]
    stop_argv: Sequence[str]

    async def start(self, term: int) -> None:
        """Run the first one, with the term in its environment as ``OUTLIVE_TERM``."""
        await self._run(self.start_argv, term)

    async def stop(self) -> None:
        """Run the second one."""
        await self._run(self.stop_argv, 0)

    async def _run(self, argv: Sequence[str], term: int) -> None:
        if not argv:
            return
        ended = await run(argv, limit_s=LIMIT_S, env={"OUTLIVE_TERM": str(term)} if term else None)
        if ended.code != 0:
            how = f"was killed after {LIMIT_S:g} s" if ended.killed else f"ended with {ended.code}"
            said = " ".join(ended.err.split())[:SHOWN]
            raise Unavailable(
                f"{argv[0]} {how}{f': {said}' if said else ''}", remedy="see section primary of node.yaml"
            )
