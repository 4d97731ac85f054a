"""How changes of others are published: by names, in batches."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from outlive.network.names import OWN_CONTROLLER, OWN_NAMESPACE, OWNER_KEY
from outlive.network.operations import Columns
from outlive.network.owners import external_ids
from outlive.network.scopes import row_network, row_vm

NAMES_LIMIT: Final = 10_000
"""A batch of more names becomes the empty one, which means everything."""
OWN_NETWORK: Final = f"{OWN_NAMESPACE}/network/"
"""Before the name of a network of our own hosts; no VM has a slash in its name."""


def row_names(table: str, row: Columns) -> frozenset[str]:
    """The names under which a change of the row is published: its own, and that of its VM, or of its network."""
    names = {str(row.get("name", "")), row_vm(table, row)} - {""}
    if external_ids(row).get(OWNER_KEY) == OWN_CONTROLLER and (network := row_network(table, row)):
        names.add(OWN_NETWORK + network)
    return frozenset(names)


class ChangeReader:
    """An endless iterator over batches of names: what has come since the batch before, all in one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._batch: frozenset[str] | None = None

    def add(self, names: frozenset[str]) -> None:
        """Add to the batch; empty: everything."""
        before = self._batch
        if before is None:
            self._batch = names
        elif before and names and len(before) + len(names) <= NAMES_LIMIT:
            self._batch = before | names
        else:
            self._batch = frozenset()
        self._event.set()

    def __aiter__(self) -> ChangeReader:
        return self

    async def __anext__(self) -> frozenset[str]:
        await self._event.wait()
        self._event.clear()
        batch, self._batch = self._batch, None
        return batch or frozenset()


class ChangeBatches:
    """Publishes names to any number of readers; one that nobody holds any more is forgotten."""

    def __init__(self) -> None:
        self._readers: WeakValueDictionary[int, ChangeReader] = WeakValueDictionary()
        self._number = 0

    def publish(self, names: frozenset[str]) -> None:
        """Add to everybody's batch; empty: everything."""
        for reader in list(self._readers.values()):
            reader.add(names)

    def read(self) -> ChangeReader:
        """The batches from now on."""
        reader = ChangeReader()
        self._number += 1
        self._readers[self._number] = reader
        return reader
