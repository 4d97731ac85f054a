"""How changes of others are published: by names, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from outlive.network.operations import Columns
from outlive.network.scopes import row_vm

NAMES_LIMIT: Final = 10_000
"""A batch of more names becomes the empty one, which means everything."""


def row_names(table: str, row: Columns) -> frozenset[str]:
    """The names under which a change of the row is published: its own, and that of its VM."""
    return frozenset({str(row.get("name", "")), row_vm(table, row)} - {""})


class ChangeBatches:
    """Names of what changed, for any number of readers; each has a batch of its own."""

    def __init__(self) -> None:
        self._readers: list[tuple[asyncio.Event, list[frozenset[str]]]] = []

    def publish(self, names: frozenset[str]) -> None:
        """Add to everybody's batch; empty: everything."""
        for event, batch in self._readers:
            everything = not names or (batch and (not batch[0] or len(batch[0]) + len(names) > NAMES_LIMIT))
            batch[:] = [frozenset()] if everything else [batch[0] | names if batch else names]
            event.set()

    async def read(self) -> AsyncIterator[frozenset[str]]:
        """The batches from now on."""
        reader: tuple[asyncio.Event, list[frozenset[str]]] = (asyncio.Event(), [])
        self._readers.append(reader)
        event, batch = reader
        try:
            while True:
                await event.wait()
                event.clear()
                yield batch.pop()
        finally:
            self._readers.remove(reader)
