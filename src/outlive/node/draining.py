"""Emptying this host, and taking its virtual machines back."""

from __future__ import annotations

import asyncio


class Drainer:
    """See the module."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()

    def poke(self) -> None:
        """Look at the wishes."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
