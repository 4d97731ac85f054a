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

from outlive.base import Clock, Ids, Instant, Invalid, NotFound, NotUnderstood, Unavailable, limits
from outlive.resources import KINDS, ObjectRef, R, Resource, stored_version
from outlive.store import rules
from outlive.store.contract import MALFORMED, Malformed, Page
from outlive.store.observers import INDEXED, Observers, ObserverStream, find_label
from outlive.store.selectors import Selector
from outlive.store.tables import StoreUsage, Tables, Write, WriteBatch, decode_stored, labels_of

Judge = Callable[[WriteBatch], Write]
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
        """Why the last write of any sender could not be kept; empty while writes are kept."""
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

    def find_near_quotas(self, share: float) -> tuple[str, ...]:
        """What takes at least this share of its quota, each in a few words."""
        uses = [("all kinds", StoreUsage(len(self), self._tables.size_bytes), sys.maxsize, limits.STORED_BYTES)]
        for name, table in self._tables:
            plural, quota = self._tables.kinds[name].info.plural, self._tables.kinds[name].info.quota
            uses.append((plural, table.use, *quota.get_limits()))
            uses += [
                (f"{plural} of {owner}", use, *quota.get_limits(shared=True)) for owner, use in table.list_owners()
            ]
        return tuple(
            f"{what} ({use.objects} with {use.size_bytes // 2**20} MiB)"
            for what, use, most, most_bytes in uses
            if use.objects >= share * most or use.size_bytes >= share * most_bytes
        )

    def usage_by_kind(self) -> dict[str, tuple[int, int]]:
        """Objects and bytes by the plural of their kind."""
        tables = self._tables
        return {tables.kinds[name].info.plural: (table.use.objects, table.use.size_bytes) for name, table in tables}

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``. Always linearizable."""
        await asyncio.sleep(0)
        self._check_open()
        raw = self._tables.table_of(kind).get(name)
        if raw is None:
            raise rules.build_not_found_error(kind, name)
        found = decode_stored(kind, raw)
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
        wanted = find_label(selector)
        label = wanted if wanted is not None and wanted[0] in INDEXED else None
        while True:
            await asyncio.sleep(0)
            self._check_open()
            table = self._tables.table_of(kind)
            rows = table.list_after(token, limits.YIELD_OBJECTS, label)
            for key, raw in rows:
                if selector is None or selector.matches(labels_of(raw)):
                    if len(items) + len(malformed) == limit:
                        return Page(tuple(items), token, tuple(malformed))
                    found = decode_stored(kind, raw)
                    if isinstance(found, Malformed):
                        malformed.append(found)
                    else:
                        items.append(found)
                token = key
            if len(rows) < limits.YIELD_OBJECTS:
                return Page(tuple(items), malformed=tuple(malformed))

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> ObserverStream[R]:
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
        for key, stored in self._tables.table_of(kind).list_all():
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

    def _count(self, batch: WriteBatch) -> None:
        """The batch counts: show it to readers and observers."""
        self._tables.apply(batch)
        self.written_at = self._clock.now()
        for write in batch.writes:
            self._observers.publish(write)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store was closed", remedy="open it again")
