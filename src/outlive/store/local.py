"""What the stores in this process share: reading, observing, and turning calls into judged writes.

A subclass says when an accepted write counts (``_submit``): at once for memory, after the disk has it for
SQLite. Reads see only writes that count, so every read is linearizable and ``fresh`` makes no difference.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import cast

from outlive.base import limits
from outlive.base.clock import Clock, Instant
from outlive.base.errors import Invalid, NotFound, NotUnderstood, Unavailable
from outlive.base.ids import Ids
from outlive.resources import KINDS, ObjectRef, R, Resource
from outlive.resources.conversions import stored_version
from outlive.store import rules
from outlive.store.contract import MALFORMED, Malformed, Page
from outlive.store.observers import INDEXED, Observation, Observers, wanted_label
from outlive.store.selectors import Selector
from outlive.store.tables import Batch, StoreUsage, Tables, Write, labels_of, understood

Judge = Callable[[Batch], Write]
"""Judges one write on top of a batch; raises if it is refused, and changes nothing."""


class LocalStore(abc.ABC):
    """Reads and observers over ``Tables``; writes go through ``_submit``."""

    embedded: bool = True
    """See ``outlive.store.contract.Store``."""

    def __init__(
        self, clock: Clock, ids: Ids, *, kinds: Mapping[str, type[Resource]] = KINDS, revision: int = 0
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._tables = Tables(kinds, revision=revision)
        self._observers = Observers(self._tables)
        self._closed = False
        self.write_failure = ""
        """Why the last write could not be kept, whoever sent it; empty while writes are kept."""
        self.written_at: Instant | None = None
        """When a write last counted; ``None``: none since it was opened."""
        self.incarnation = ""
        """Changes when the store is another one than before, or was restored from a backup."""

    @property
    def revision(self) -> int:
        """The highest version that was ever given to an object here."""
        return self._tables.revision

    def __len__(self) -> int:
        return len(self._tables)

    def near_quotas(self, share: float) -> tuple[str, ...]:
        """What takes at least this share of its quota, each in a few words."""
        uses = [("all kinds", StoreUsage(len(self), self._tables.size_bytes), sys.maxsize, limits.STORED_BYTES)]
        for name, table in self._tables:
            plural, quota = self._tables.kinds[name].info.plural, self._tables.kinds[name].info.quota
            uses.append((plural, table.use, *quota.most()))
            uses += [(f"{plural} of {owner}", use, *quota.most(shared=True)) for owner, use in table.owners()]
        return tuple(
            f"{what} ({use.objects} with {use.size_bytes // 2**20} MiB)"
            for what, use, most, most_bytes in uses
            if use.objects >= share * most or use.size_bytes >= share * most_bytes
        )

    def uses(self) -> dict[str, tuple[int, int]]:
        """Objects and bytes by the plural of their kind."""
        tables = self._tables
        return {tables.kinds[name].info.plural: (table.use.objects, table.use.size_bytes) for name, table in tables}

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``. Always linearizable."""
        await asyncio.sleep(0)
        self._check_open()
        raw = self._tables.table(kind).get(name)
        if raw is None:
            raise rules.not_found(kind, name)
        found = understood(kind, raw)
        if isinstance(found, Malformed):
            raise NotUnderstood(f"{kind.kind()}/{name} is not understood: {found.why}", remedy=MALFORMED)
        return found

    async def list(
        self,
        kind: type[R],
        *,
        selector: Selector | None = None,
        limit: int = limits.PAGE_OBJECTS,
        token: str = "",
    ) -> Page[R]:
        """One page in name order. ``limit`` is cut to ten times ``PAGE_OBJECTS``."""
        if limit < 1:
            raise Invalid(f"a page of {limit} objects", place="limit", remedy="ask for at least 1")
        limit = min(limit, 10 * limits.PAGE_OBJECTS)
        items: list[R] = []
        malformed: list[Malformed] = []
        wanted = wanted_label(selector)
        label = wanted if wanted is not None and wanted[0] in INDEXED else None
        while True:
            await asyncio.sleep(0)
            self._check_open()
            table = self._tables.table(kind)
            rows = table.after(token, limits.YIELD_OBJECTS, label)
            for key, raw in rows:
                if selector is None or selector.matches(labels_of(raw)):
                    if len(items) + len(malformed) == limit:
                        return Page(tuple(items), token, tuple(malformed))
                    found = understood(kind, raw)
                    if isinstance(found, Malformed):
                        malformed.append(found)
                    else:
                        items.append(found)
                token = key
            if len(rows) < limits.YIELD_OBJECTS:
                return Page(tuple(items), malformed=tuple(malformed))

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> Observation[R]:
        """Lists as of now, says ``Synced``, then follows."""
        self._check_open()
        return self._observers.observe(kind, selector)

    async def create(self, obj: R) -> R:
        """Write a new object; see ``outlive.store.rules.create``."""
        now = self._clock.now()
        return cast("R", await self._submit(lambda batch: rules.create(batch, obj, ids=self._ids, now=now)))

    async def replace(self, obj: R) -> R:
        """Compare-and-swap of everything but the status half."""
        return cast("R", await self._submit(lambda batch: rules.replace(batch, obj)))

    async def replace_status(self, obj: R) -> R:
        """Compare-and-swap of the status half."""
        return cast("R", await self._submit(lambda batch: rules.replace_status(batch, obj)))

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """Delete, or mark where there are finalizers."""
        now = self._clock.now()
        await self._submit(lambda batch: rules.delete(batch, ref, uid=uid, version=version, now=now))

    async def rewrite(self, kind: type[Resource]) -> None:
        """Store every object of the kind in the version of this release; one that is stored in it stays."""
        for key, stored in self._tables.table(kind).snapshot():
            if stored_version(stored) == kind.info.version:
                continue
            with contextlib.suppress(NotFound):
                await self._submit(lambda batch, key=key: rules.rewrite(batch, kind, key))  # type: ignore[misc]

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """Set or remove labels and annotations without a version, where the kind allows it."""
        return await self._submit(
            lambda batch: rules.patch_metadata(batch, ref, labels=labels or {}, annotations=annotations or {})
        )

    async def close(self) -> None:
        """Let go of everything; further calls and all observers raise ``Unavailable``."""
        self._closed = True
        self._observers.fail("the store was closed")

    @abc.abstractmethod
    async def _submit(self, judge: Judge) -> Resource:
        """Judge a write, make it count, and return its answer."""

    def _count(self, batch: Batch) -> None:
        """The batch counts: show it to readers and observers."""
        self._tables.apply(batch)
        self.written_at = self._clock.now()
        for write in batch.writes:
            self._observers.publish(write)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store was closed", remedy="open it again")
