"""A kind as an observer sees it: a listing, then what its log names.

A lost connection is no doubt as long as the log shows all that was missed: the observer goes on where it was. What is
in doubt (the log does not reach back, its past is another one, nothing was read for ``DOUBT_S``) is listed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, Generic

import msgspec

from outlive.base import OutliveError, Unavailable, get_logger, limits, set_within
from outlive.resources import HOST_LABEL, ObjectRef, R
from outlive.store.contract import Change, Delete, Malformed, Synced, Upsert
from outlive.store.observers import find_label
from outlive.store.selectors import Selector
from outlive.store.zookeeper.log import Lagging, LogEntry, LogPlace, LogReader
from outlive.store.zookeeper.rows import decode_selected

if TYPE_CHECKING:
    from outlive.store.zookeeper.layout import TreeLayout
    from outlive.store.zookeeper.store import ZooKeeperStore

DOUBT_S: Final = 2.0
"""How long an observer goes without reading the log before what it has shown is in doubt."""
LOOK_S: Final = 20.0
"""How often it looks without being woken."""
AGAIN_S: Final = 0.1
"""The pause before the log is read again after an error."""

_log = get_logger("store.zookeeper")


class _Shown(msgspec.Struct, frozen=True):
    """What was last shown of an object."""

    uid: str
    version: int
    """The transaction that wrote it; grows."""


class KindObserver(Generic[R]):
    """One observer of one kind, until its listing is in doubt."""

    def __init__(self, store: ZooKeeperStore, kind: type[R], selector: Selector | None) -> None:
        self._store = store
        self._kind = kind
        self._selector = selector
        self._shown: dict[str, _Shown] = {}
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def watch_changes(self) -> AsyncGenerator[Change[R], None]:
        """A listing, ``Synced``, and every change after it; an error of the store is a doubt."""
        client, wanted = self._store.client, find_label(self._selector)
        layout = await self._store.get_layout()
        host = wanted[1] if wanted is not None and wanted[0] == HOST_LABEL else ""
        log = layout.log_path(self._kind, host)

        async def make() -> None:
            await self._store.schema.ensure((log,), layout, await self._store.read_acl(self._kind, layout))

        reader = LogReader(client, log, self._wake, make)
        stops = [client.listen(self._woken.set), self._store.schema.listen(self._woken.set)]
        try:
            session = client.session
            place = await reader.find_end()
            async for name, uid, raw, version in self._store.reader.read_rows(self._kind, layout):
                for change in self._follow_row(name, uid, raw, version):
                    yield change
            yield Synced()
            read_s = self._store.clock.monotonic()
            while True:
                try:
                    now = client.session
                    changes, place = await self._read_missed(reader, place, layout, fresh=now != session)
                    session, read_s = now, self._store.clock.monotonic()
                except OutliveError as error:
                    if self._store.clock.monotonic() - read_s > DOUBT_S or self._store.closed:
                        raise
                    _log.debug("store.zookeeper.not_read", kind=self._kind.kind(), why=str(error))
                    await self._store.clock.sleep(AGAIN_S)
                    continue
                for change in changes:
                    yield change
                await self._wait(reader, place)
        except Lagging as error:
            raise Unavailable(str(error)) from None
        finally:
            for stop in stops:
                stop()

    async def _read_missed(
        self, reader: LogReader, place: LogPlace, layout: TreeLayout, *, fresh: bool
    ) -> tuple[list[Change[R]], LogPlace]:
        """What was written since, as changes that were not shown yet; nothing counts as shown if it raises."""
        session = self._store.client.session
        entries, end = await reader.read_after(place, fresh=fresh)
        last = {(entry.name, entry.uid): entry for entry in entries}  # in the order of their first entries
        there = [entry for entry in last.values() if not entry.gone]
        found = await self._store.reader.read_objects(self._kind, [(one.name, one.uid) for one in there], layout)
        if self._store.client.session != session:
            raise Unavailable("the session was replaced while it read")
        states = {(one.name, one.uid): row for one, row in zip(there, found, strict=True)}
        changes: list[Change[R]] = []
        for number, entry in enumerate(last.values(), 1):
            changes += self._change(entry, states.get((entry.name, entry.uid)))
            if number % limits.YIELD_OBJECTS == 0:
                await asyncio.sleep(0)
        return changes, end

    def _change(self, entry: LogEntry, row: tuple[bytes, int] | None) -> list[Change[R]]:
        if row is not None:
            return self._follow_row(entry.name, entry.uid, *row)
        before = self._shown.get(entry.name)
        if before is None or before.uid != entry.uid:
            return []
        del self._shown[entry.name]
        return [self._delete(entry.name, entry.uid)]

    def _follow_row(self, name: str, uid: str, raw: bytes, version: int) -> list[Change[R]]:
        """What an object's state means to those who were shown what was shown."""
        before = self._shown.get(name)
        if before is not None and before.uid == uid and version <= before.version:
            return []
        changes: list[Change[R]] = []
        if before is not None and before.uid != uid:
            del self._shown[name]
            changes.append(self._delete(name, before.uid))
            before = None
        found = decode_selected(self._kind, name, uid, raw, version, self._selector)
        if isinstance(found, Malformed):
            return [*changes, found]
        if found is None:
            if before is not None:
                del self._shown[name]
                changes.append(self._delete(name, uid))
            return changes
        self._shown[name] = _Shown(uid, version)
        return [*changes, Upsert(found)]

    def _delete(self, name: str, uid: str) -> Delete[R]:
        info = self._kind.info
        return Delete(ObjectRef(kind=self._kind.kind(), name=name, uid=uid, api_version=info.api_version))

    async def _wait(self, reader: LogReader, place: LogPlace) -> None:
        """Return when there may be more."""
        self._woken.clear()
        try:
            if await reader.is_behind(place):
                return
        except OutliveError:
            return  # the next reading says what is wrong
        await set_within(self._woken, LOOK_S)

    def _wake(self, _: object) -> None:
        """Called by a thread of kazoo."""
        self._store.client.post(self._woken.set)
