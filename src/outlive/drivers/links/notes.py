"""A file of the state directory with what the daemon remembers of its links."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from outlive.drivers.files import read_input, write_private
from outlive.node.ports import LinkNotes

NOTES_BYTES: Final = 4 << 20


class LinkNotesFile(LinkNotes):
    """See the module. ``state``: the state directory."""

    def __init__(self, state: Path) -> None:
        self._file = state / "links.json"

    async def load(self) -> bytes | None:
        """As ``LinkNotes``."""

        def load() -> bytes | None:
            return read_input(self._file, limit=NOTES_BYTES) if self._file.exists() else None

        return await asyncio.to_thread(load)

    async def save(self, notes: bytes) -> None:
        """As ``LinkNotes``."""
        await asyncio.to_thread(write_private, self._file, notes)
