"""The reference store: objects in memory, every rule of the contract enforced, nothing durable.

Each call lets others on the event loop run once before it takes effect, as every real store does. A store
that fails, delays or forgets is this one behind ``outlive.store.faults``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from outlive.base import Clock, Ids
from outlive.resources import KINDS, Resource, encode
from outlive.store.local import Judge, LocalStore
from outlive.store.tables import WriteBatch


class MemoryStore(LocalStore):
    """A store that lives as long as its process."""

    embedded = False
    """In simulation it stands for any store, so that all that needs a replicated one runs on it."""

    def __init__(self, clock: Clock, ids: Ids, *, kinds: Mapping[str, type[Resource]] = KINDS) -> None:
        super().__init__(clock, ids, kinds=kinds)
        self.incarnation = ids.new_uuid()

    def load(self, objects: Iterable[Resource]) -> None:
        """Take objects over as they are, uids and versions included, before anybody reads or observes.

        An object without a uid or a version gets one.
        """
        tables: dict[str, dict[str, bytes]] = {kind: {} for kind in self._tables.kinds}
        for obj in objects:
            self._tables.check_kind(type(obj))
            meta = obj.metadata
            version = meta.resource_version or "1"
            if version.isdecimal():
                self._tables.revision = max(self._tables.revision, int(version))
            meta = msgspec.structs.replace(meta, uid=meta.uid or self._ids.new_uuid(), resource_version=version)
            tables[obj.kind()][meta.name] = encode(msgspec.structs.replace(obj, metadata=meta))
        self.load_documents(tables)

    def load_documents(self, documents: Mapping[str, Mapping[str, bytes]], *, revision: int = 0) -> None:
        """The same from documents by kind and name, as another store keeps them; ``revision``: its highest version."""
        self._tables.revision = max(self._tables.revision, revision)
        for kind, rows in documents.items():
            if kind in self._tables.kinds:
                self._tables.load(kind, dict(rows))

    async def _submit(self, judge: Judge) -> Resource:
        """A write counts as soon as it is judged."""
        await asyncio.sleep(0)
        self._check_open()
        batch = WriteBatch(self._tables)
        write = judge(batch)
        batch.add(write)
        self._count(batch)
        return write.answer
