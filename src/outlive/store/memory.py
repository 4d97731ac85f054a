"""The reference store: objects in memory, every rule of the contract enforced, nothing durable.

Each call lets others on the event loop run once before it takes effect, as every real store does. A store
that fails, delays or forgets is this one behind ``outlive.store.faults``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.resources import KINDS, Resource
from outlive.store.local import Judge, LocalStore
from outlive.store.tables import Batch


class MemoryStore(LocalStore):
    """A store that lives as long as its process."""

    def __init__(self, clock: Clock, ids: Ids, *, kinds: Mapping[str, type[Resource]] = KINDS) -> None:
        super().__init__(clock, ids, kinds=kinds)
        self.incarnation = ids.uuid()

    async def _submit(self, judge: Judge) -> Resource:
        """A write counts as soon as it is judged."""
        await asyncio.sleep(0)
        self._check_open()
        batch = Batch(self._tables)
        write = judge(batch)
        batch.add(write)
        self._count(batch)
        return write.answer
