"""``FirewallPort`` with ``nft -f``, which carries a document out as one transaction."""

from __future__ import annotations

from typing import Final

from outlive.base.errors import Refused, Unavailable
from outlive.drivers.commands import run

LIMIT_S: Final = 10.0
SHOWN: Final = 300


class NftFirewall:
    """See the module."""

    def __init__(self, program: str = "nft") -> None:
        self._program = program

    async def load(self, document: str) -> None:
        """Put the document in force; ``Refused`` where nft does not take it."""
        await self._run(document)

    async def check(self, document: str) -> None:
        """Have nft look at it."""
        await self._run(document, "--check")

    async def has_chain(self, table: str, chain: str) -> bool:
        """Whether nft lists the chain."""
        ended = await run([self._program, "list", "chain", "inet", table, chain], limit_s=LIMIT_S)
        if ended.killed:
            raise Unavailable(f"{self._program} did not end within {LIMIT_S:g} s", remedy="see its log")
        return ended.code == 0

    async def _run(self, document: str, *options: str) -> None:
        ended = await run([self._program, *options, "-f", "-"], limit_s=LIMIT_S, stdin=document.encode())
        if ended.killed:
            raise Unavailable(f"{self._program} did not end within {LIMIT_S:g} s", remedy="see its log")
        if ended.code != 0:
            why = " ".join(ended.err.split())[:SHOWN]
            raise Refused(f"nft does not take the rules: {why}", remedy="correct the rule: man nft")
