"""Writes: one transaction of the object, of what makes its name unique, and of an entry in each log that it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from kazoo import exceptions as zk
from kazoo.security import ACL

from outlive.base import Conflict, OutliveError, Unavailable, Unknown
from outlive.resources import HOST_LABEL, ObjectRef, R, Resource, convert_document
from outlive.store.contract import Malformed
from outlive.store.tables import Write, WriteBatch
from outlive.store.zookeeper.layout import ALL, ENTRY, TreeLayout, entry_number
from outlive.store.zookeeper.log import KEPT, KEPT_OF_HOST, TRIM_EVERY, LogEntry, trim
from outlive.store.zookeeper.requests import Operation, TransactionRefused, create, remove, replace_data
from outlive.store.zookeeper.rows import OneObject, Row, decode_row, decode_selected, row_of, set_version

if TYPE_CHECKING:
    from outlive.store.zookeeper.store import ZooKeeperStore

MENDS: Final = 4
"""Times that a transaction is sent again because a znode above was not made yet."""
SHARDS: Final = 2000
"""Logs that get an entry for one removal, where it is not known which of them need it."""
TRIES: Final = 8
"""Transactions of one write that were refused for what others wrote meanwhile, before it is given up."""


class ObjectWriter:
    """Writes the objects of a store."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self._store = store
        self._trims: dict[str, asyncio.Task[None]] = {}

    async def write(self, kind: type[R], key: str, judge: Callable[[WriteBatch], Write], version: str = "") -> R:
        """Judge a write on what is there and make it count. ``key`` is empty for a new object."""
        return await self._store.schema.retry_on_change(lambda: self._write_once(kind, key, judge, version))

    async def _write_once(self, kind: type[R], key: str, judge: Callable[[WriteBatch], Write], version: str) -> R:
        row = self._store.reader.cache.get(kind, key)
        fresh = not key
        if key and (row is None or str(row.transaction) != version):
            row = await self._store.reader.read_row(kind, key, fresh=False)
        taken: set[str] = set()
        for _ in range(TRIES):
            batch = OneObject(kind, key, row, decode_row(kind, row))
            batch.taken = taken
            try:
                write = judge(batch)
            except OutliveError:
                if fresh:
                    raise
            else:
                if write.changes and (answer := await self._commit(write, row)) is not None:
                    return cast("R", answer)
                if not write.changes and fresh:
                    return cast("R", write.answer)
            if key:
                row, fresh = await self._store.reader.read_row(kind, key, fresh=True), True
            else:
                taken.add(write.key)
        raise Conflict(f"{kind.kind()}/{key} is changed by others all the time", remedy="try again later")

    async def _commit(self, write: Write, row: Row | None) -> Resource | None:
        """Send one transaction; the answer, or ``None`` where it was refused for what others wrote meanwhile."""
        schema, kind, key = self._store.schema, write.kind, write.key
        layout = await schema.get_layout()
        uid = write.answer.metadata.uid
        path, name_path = layout.object_path(kind, key, uid), layout.name_path(kind, key)
        raw = write.raw or b""
        stored = layout.document.kinds.get(kind.info.plural, kind.info.version)
        if raw and stored != kind.info.version:
            raw = convert_document(kind.info.plural, kind.info.version, stored, raw) or raw
        acl = await self._store.read_acl(kind, layout)
        operations: list[Operation]
        if row is None:
            # The object is made empty and then filled: the second answer says which transaction this was.
            operations = [create(name_path, uid.encode(), acl), create(path, b"", acl), replace_data(path, raw)]
        elif write.after is None:
            operations = [remove(path, row.znode_version), remove(name_path)]
        else:
            operations = [replace_data(path, raw, row.znode_version)]
        of_object, entry = len(operations), LogEntry(key, uid, write.after is None).encode()
        logs = self._log_paths(layout, write)
        operations += [create(f"{log}/{ENTRY}", entry, acl, numbered=True) for log in logs]
        above = [name_path.rpartition("/")[0], path.rpartition("/")[0]] if row is None else []
        for _ in range(MENDS):
            try:
                answers = await schema.send(operations, (path, name_path, *logs), layout)
                break
            except TransactionRefused as refused:
                is_missing = isinstance(refused.error, zk.NoNodeError)
                if is_missing and (row is None or refused.index >= of_object):
                    await schema.ensure(above if refused.index < of_object else logs, layout, acl)
                    continue
                self._store.reader.cache.forget(kind, key)
                if is_missing or isinstance(refused.error, zk.BadVersionError | zk.NodeExistsError):
                    return None
                raise self._store.client.error_of(refused.error, writing=True) from None
            except Unknown:
                self._store.reader.cache.forget(kind, key)
                raise
        else:
            raise Unavailable(f"what is above {path} does not stay", remedy="does somebody delete znodes by hand?")
        for log, made in zip(logs, answers[of_object:], strict=True):
            self._trim(log, entry_number(made), acl)
        if write.after is None:
            self._store.reader.cache.forget(kind, key)
            return write.answer
        stat = answers[of_object - 1]
        self._store.reader.cache.keep(kind, key, row_of(uid, (raw, stat)))
        return set_version(write.answer, stat.mzxid)

    @staticmethod
    def _log_paths(layout: TreeLayout, write: Write) -> list[str]:
        """Those of the kind, of the host to which the object belonged and of that to which it belongs now."""
        hosts = [one.metadata.labels.get(HOST_LABEL, "") for one in (write.before, write.after) if one is not None]
        return [layout.log_path(write.kind, host) for host in dict.fromkeys(("", *hosts))]

    def _trim(self, log: str, number: int, acl: Sequence[ACL]) -> None:
        """Remove old entries, once for ``TRIM_EVERY`` of them, if nobody here is doing it."""
        running = self._trims.get(log)
        if number % TRIM_EVERY or (running is not None and not running.done()):
            return
        kept = KEPT if log.endswith(f"/{ALL}") else KEPT_OF_HOST
        task = self._trims[log] = asyncio.create_task(
            trim(self._store.client, log, number, kept, acl=acl, condition=self._store.schema.condition),
            name=f"trim {log}",
        )
        task.add_done_callback(lambda _: self._trims.pop(log, None))

    async def delete_malformed(self, kind: type[Resource], ref: ObjectRef, uid: str) -> bool:
        """Whether the object was not understood, and so was removed without being judged."""
        return await self._store.schema.retry_on_change(lambda: self._delete_malformed(kind, ref, uid))

    async def _delete_malformed(self, kind: type[Resource], ref: ObjectRef, uid: str) -> bool:
        row = await self._store.reader.read_row(kind, ref.key, fresh=False)
        if row is None or not isinstance(decode_selected(kind, ref.key, row.uid, row.raw, 0, None), Malformed):
            return False
        if any(wanted and wanted != row.uid for wanted in (uid, ref.uid)):
            raise Conflict(f"{ref.kind}/{ref.name} is another object of the same name", remedy="read it again")
        layout = await self._store.get_layout()
        acl, log = await self._store.read_acl(kind, layout), layout.log_path(kind)
        path, name_path = layout.object_path(kind, ref.key, row.uid), layout.name_path(kind, ref.key)
        operations = [remove(path, row.znode_version), remove(name_path)]
        parent = log.rpartition("/")[0]  # nobody can say of which host it was
        shards = (await self._store.client.list_children((parent,)))[0] or []
        entry = LogEntry(ref.key, row.uid, True).encode()
        operations += [create(f"{parent}/{one}/{ENTRY}", entry, acl, numbered=True) for one in shards[:SHARDS]]
        self._store.reader.cache.forget(kind, ref.key)
        try:
            await self._store.schema.send(operations, (path, name_path, parent), layout)
        except TransactionRefused as refused:
            raise Conflict(f"{ref.kind}/{ref.name} changed meanwhile: {refused}", remedy="read it again") from None
        return True

    async def close(self) -> None:
        """End what goes on beside the writes."""
        trims = [*self._trims.values()]
        for task in trims:
            task.cancel()
        if trims:
            await asyncio.wait(trims)
