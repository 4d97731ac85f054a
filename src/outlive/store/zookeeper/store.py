"""The contract on ZooKeeper: one znode an object, written by compare-and-swap, with an entry in its kind's log.

A write reads what it judges, by the rules of every other store, and is one transaction: the object if it still has that
version, what makes its name unique, and the entry. So it conflicts with writes of the same object only. What was read
need not be fresh: the transaction is refused if it is not. A refusal of our own is only given on what was read fresh
(docs/reference/store.md#zookeeper).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec
from kazoo import exceptions as zk

from outlive.base import limits
from outlive.base.clock import Clock
from outlive.base.errors import (
    Conflict,
    Invalid,
    NotUnderstood,
    OutliveError,
    Refused,
    Unavailable,
    Unknown,
)
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.base.random import Random
from outlive.resources import HOST_LABEL, KINDS, ObjectRef, R, Resource, check_name
from outlive.resources.codec import decode
from outlive.store import rules
from outlive.store.contract import MALFORMED, Change, Malformed, Page, Reset, Synced
from outlive.store.observation import StreamObservation
from outlive.store.schema.documents import latest_version, load_document
from outlive.store.selectors import Selector
from outlive.store.tables import Batch, Tables, Write, labels_of
from outlive.store.zookeeper.client import (
    Found,
    Operation,
    TransactionRefused,
    ZooKeeperClient,
    create,
    put,
    remove,
)
from outlive.store.zookeeper.layout import ALL, ENTRY, SCHEMA_PATH, Layout, entry_number, split_object
from outlive.store.zookeeper.log import KEPT, KEPT_OF_HOST, TRIM_EVERY, Entry, trim
from outlive.store.zookeeper.observers import KindObserver

MENDS: Final = 4
"""Times that a transaction is sent again because a znode above was not made yet."""
TRIES: Final = 8
"""Transactions of one write that were refused for what others wrote meanwhile, before it is given up."""
AHEAD: Final = 1000
"""Changes that are read before the observer asks for them."""
PAUSE_LEAST_S: Final = 0.1
PAUSE_MOST_S: Final = 5.0
"""How long to wait before observing again: doubling, up to this, with jitter."""
CACHED: Final = 4096
CACHED_BYTES: Final = 32 * 2**20
"""Objects, and bytes of them, that are remembered as they were read or written last."""
LISTINGS: Final = 8
"""Listings in pages of which the names are remembered until the next page."""
MULTIPLES: Final = 10
"""A page has at most so many times ``PAGE_OBJECTS``."""

Places = list[tuple[str, str]]
"""Names and uids."""
States = list[tuple[bytes, int] | None]
"""JSON and version of objects; ``None`` for one that is gone."""
Paths = list[str]

_log = get_logger("store.zookeeper")


class _Row(msgspec.Struct, frozen=True):
    """An object as it is stored."""

    uid: str
    raw: bytes
    znode_version: int
    """What a transaction compares: counts the writes of this znode."""
    transaction: int
    """Which wrote it last; the version that others see."""


class _OneObject(Batch):
    """A batch for one write of one object, which was decoded already."""

    def __init__(self, kind: type[Resource], key: str, row: _Row | None, found: Resource | None) -> None:
        super().__init__(Tables({kind.kind(): kind}, revision=0))
        self._place = (kind.kind(), key)
        self._row = row
        self._found = found
        self.taken: set[str] = set()
        """Names that other objects have."""

    def raw(self, kind: type[Resource], key: str) -> bytes | None:
        if key in self.taken:
            return b""
        return self._row.raw if self._row is not None and (kind.kind(), key) == self._place else None

    def find(self, kind: type[R], key: str) -> R | None:
        return cast("R | None", self._found) if (kind.kind(), key) == self._place else None


class ZooKeeperStore:
    """The store of one cluster. It connects with the first call."""

    embedded = False
    """See ``outlive.store.contract.Store``."""

    def __init__(self, client: ZooKeeperClient, *, clock: Clock, ids: Ids, random: Random) -> None:
        self.client = client
        self.clock = clock
        self._ids = ids
        self._random = random
        self._layout: Layout | None = None
        self._rows: OrderedDict[tuple[str, str], _Row] = OrderedDict()
        self._rows_bytes = 0
        self._listings: OrderedDict[tuple[str, str], Places] = OrderedDict()
        self._observations: list[StreamObservation[Resource]] = []
        self._trims: dict[str, asyncio.Task[None]] = {}
        self._incarnation = ""
        self.closed = False

    @property
    def incarnation(self) -> str:
        """Changes when somebody says that the ensemble's data was put back to an earlier time."""
        return self._incarnation

    def become(self, incarnation: str) -> None:
        """It is this incarnation from now on."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._rows.clear()
            self._rows_bytes = 0

    async def layout(self) -> Layout:
        """Where everything lies, by the version of the storage schema that counts."""
        if self._layout is None:
            found = await self.client.get(SCHEMA_PATH, fresh=True)
            if found is None:
                remedy = "correct chroot in the access file, or make the store: outlive zookeeper init"
                raise Unavailable(f"{self.client.access.place} holds no store of Outlive", remedy=remedy)
            text = found[0].decode("ascii", "replace").strip()
            if not text.isdecimal():
                raise Refused(f"{SCHEMA_PATH} says {text[:40]!r}, which is no number", remedy="restore a backup")
            self._layout = Layout(load_document(int(text)))
        return self._layout

    async def prepare(self) -> None:
        """Make what a new store needs, the chroot first; what is there stays."""
        await self.client.ensure_chroot()
        version = latest_version()
        layout = Layout(load_document(version))
        for key in layout.document.zookeeper["base"]:
            path = layout.base(key)
            if path != "/" and not key.startswith("schema."):
                data = str(version).encode() if path == SCHEMA_PATH else b""
                try:
                    await self.client.commit([create(path, data)])
                except TransactionRefused as refused:
                    if not isinstance(refused.error, zk.NodeExistsError):
                        raise self.client.error(refused.error, writing=True) from None

    # Reads

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``. With ``fresh`` it is read after a transaction of the quorum."""
        self._check_open(kind)
        row = await self._read(kind, name, fresh=fresh)
        if row is None:
            raise rules.not_found(kind, name)
        found = self.understood_row(kind, name, row.uid, row.raw, row.transaction, None)
        if isinstance(found, Malformed):
            raise NotUnderstood(f"{kind.kind()}/{name} is not understood: {found.why}", remedy=MALFORMED)
        assert found is not None
        return found

    async def list(
        self,
        kind: type[R],
        *,
        selector: Selector | None = None,
        limit: int = limits.PAGE_OBJECTS,
        token: str = "",
    ) -> Page[R]:
        """One page in name order; its names are of the moment of the first page."""
        if limit < 1:
            raise Invalid(f"a page of {limit} objects", place="limit", remedy="ask for at least 1")
        self._check_open(kind)
        limit = min(limit, MULTIPLES * limits.PAGE_OBJECTS)
        names = self._listings.pop((kind.kind(), token), None) if token else None
        if names is None:
            names = [place for place in await self._places(kind) if place[0] > token]
        items: list[R] = []
        malformed: list[Malformed] = []
        last = ""
        for start in range(0, len(names), limits.YIELD_OBJECTS):
            part = names[start : start + limits.YIELD_OBJECTS]
            for number, ((name, uid), row) in enumerate(zip(part, await self.read_objects(kind, part), strict=True)):
                found = self.understood_row(kind, name, uid, *row, selector) if row is not None else None
                if found is not None and len(items) + len(malformed) == limit:
                    self._listings[kind.kind(), last] = names[start + number :]
                    while len(self._listings) > LISTINGS:
                        self._listings.popitem(last=False)
                    return Page(tuple(items), last, tuple(malformed))
                if isinstance(found, Malformed):
                    malformed.append(found)
                elif found is not None:
                    items.append(found)
                last = name
            await asyncio.sleep(0)
        return Page(tuple(items), malformed=tuple(malformed))

    async def rows(self, kind: type[Resource]) -> AsyncIterator[tuple[str, str, bytes, int]]:
        """Name, uid, JSON and version of every object of the kind, in name order."""
        places = await self._places(kind)
        for start in range(0, len(places), limits.YIELD_OBJECTS):
            part = places[start : start + limits.YIELD_OBJECTS]
            for (name, uid), row in zip(part, await self.read_objects(kind, part), strict=True):
                if row is not None:
                    yield name, uid, *row

    async def read_objects(self, kind: type[Resource], places: Sequence[tuple[str, str]]) -> States:
        """JSON and version of the objects of these names and uids, in their order; ``None`` where one is gone."""
        layout = await self.layout()
        found = await self.client.get_many([layout.object(kind, name, uid) for name, uid in places])
        return [None if one is None else (one[0], one[1].mzxid) for one in found]

    async def _places(self, kind: type[Resource]) -> Places:
        """Names and uids of all objects of the kind, in name order."""
        root = (await self.layout()).objects(kind)
        buckets = (await self.client.children_many((root,), fresh=True))[0] or []
        found = await self.client.children_many([f"{root}/{bucket}" for bucket in buckets])
        return sorted(split_object(child) for children in found for child in children or ())

    async def _read(self, kind: type[Resource], name: str, *, fresh: bool) -> _Row | None:
        try:
            check_name(name)
        except Invalid:
            return None
        layout = await self.layout()
        hint = self._rows.get((kind.kind(), name))
        if hint is not None:  # who has the name has the znode: both are made and removed together
            found = await self.client.get(layout.object(kind, name, hint.uid), fresh=fresh)
            if found is not None:
                return self._keep(kind, name, _row(hint.uid, found))
            self._forget(kind, name)
        named = await self.client.get(layout.name(kind, name), fresh=fresh)
        if named is None:
            return None
        uid = named[0].decode("ascii", "replace")
        found = await self.client.get(layout.object(kind, name, uid))
        if found is None:  # it went since; what came after it counts
            named = await self.client.get(layout.name(kind, name), fresh=fresh)
            if named is None or named[0].decode("ascii", "replace") == uid:
                return None
            raise Unavailable(f"{kind.kind()}/{name} is being replaced", remedy="try again")
        return self._keep(kind, name, _row(uid, found))

    def understood_row(
        self, kind: type[R], name: str, uid: str, raw: bytes, version: int, selector: Selector | None
    ) -> R | Malformed | None:
        """The object, or what is wrong with it; ``None`` for one that the selector does not choose."""
        try:
            if selector is not None and not selector.matches(labels_of(raw)):
                return None
            found = decode(kind, raw)
            if found.metadata.name != name or found.metadata.uid != uid:
                raise Invalid(f"it says that it is {found.metadata.name[:80]!r} of uid {found.metadata.uid[:80]!r}")
        except (Invalid, msgspec.DecodeError) as error:
            ref = ObjectRef(kind=kind.kind(), name=name, uid=uid, api_version=kind.info.api_version)
            return Malformed(ref, str(error))
        return _versioned(found, version)

    # Writes

    async def create(self, obj: R) -> R:
        """Write a new object; ``AlreadyExists`` if the name is taken."""
        kind, now = type(obj), self.clock.now()
        self._check_open(kind)
        return await self._write(kind, "", lambda batch: rules.create(batch, obj, ids=self._ids, now=now))

    async def replace(self, obj: R) -> R:
        """Compare-and-swap of everything but the status half."""
        return await self._swap(obj, lambda batch: rules.replace(batch, obj))

    async def replace_status(self, obj: R) -> R:
        """Compare-and-swap of the status half."""
        return await self._swap(obj, lambda batch: rules.replace_status(batch, obj))

    async def _swap(self, obj: R, judge: Callable[[Batch], Write]) -> R:
        self._check_open(type(obj))
        return await self._write(type(obj), obj.metadata.name, judge, obj.metadata.resource_version)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "", orphan: bool = False) -> None:
        """Delete, or mark where there are finalizers."""
        kind, now = self._kind(ref), self.clock.now()
        if await self._delete_malformed(kind, ref, uid):
            return

        def judge(batch: Batch) -> Write:
            return rules.delete(batch, ref, uid=uid, version=version, now=now)

        await self._write(kind, ref.key, judge, version)

    async def _delete_malformed(self, kind: type[Resource], ref: ObjectRef, uid: str) -> bool:
        """Whether the object was not understood, and so was removed without being judged."""
        row = await self._read(kind, ref.key, fresh=False)
        if row is None or not isinstance(self.understood_row(kind, ref.key, row.uid, row.raw, 0, None), Malformed):
            return False
        if any(wanted and wanted != row.uid for wanted in (uid, ref.uid)):
            raise Conflict(f"{ref.kind}/{ref.name} is another object of the same name", remedy="read it again")
        layout = await self.layout()
        operations = [
            remove(layout.object(kind, ref.key, row.uid), row.znode_version),
            remove(layout.name(kind, ref.key)),
            create(f"{layout.log(kind)}/{ENTRY}", Entry(ref.key, row.uid, True).encode(), numbered=True),
        ]
        self._forget(kind, ref.key)
        try:
            await self.client.commit(operations)
        except TransactionRefused as refused:
            raise Conflict(f"{ref.kind}/{ref.name} changed meanwhile: {refused}", remedy="read it again") from None
        return True

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """Set or remove labels and annotations without a version, where the kind allows it."""
        kind, given = self._kind(ref), {"labels": labels or {}, "annotations": annotations or {}}
        return await self._write(kind, ref.key, lambda batch: rules.patch_metadata(batch, ref, **given))

    async def _write(self, kind: type[R], key: str, judge: Callable[[Batch], Write], version: str = "") -> R:
        """Judge a write on what is there and make it count. ``key`` is empty for a new object."""
        row = self._rows.get((kind.kind(), key))
        fresh = not key
        if key and (row is None or str(row.transaction) != version):
            row = await self._read(kind, key, fresh=False)
        taken: set[str] = set()
        for _ in range(TRIES):
            batch = _OneObject(kind, key, row, _decoded(kind, row))
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
                row, fresh = await self._read(kind, key, fresh=True), True
            else:
                taken.add(write.key)
        raise Conflict(f"{kind.kind()}/{key} is changed by others all the time", remedy="try again later")

    async def _commit(self, write: Write, row: _Row | None) -> Resource | None:
        """Send one transaction; the answer, or ``None`` where it was refused for what others wrote meanwhile."""
        layout, kind, key = await self.layout(), write.kind, write.key
        uid = write.answer.metadata.uid
        path, name_path = layout.object(kind, key, uid), layout.name(kind, key)
        raw = write.raw or b""
        operations: list[Operation]
        if row is None:
            # The object is made empty and then filled: the second answer says which transaction this was.
            operations = [create(name_path, uid.encode()), create(path, b""), put(path, raw)]
        elif write.after is None:
            operations = [remove(path, row.znode_version), remove(name_path)]
        else:
            operations = [put(path, raw, row.znode_version)]
        of_object, entry = len(operations), Entry(key, uid, write.after is None).encode()
        logs = self._logs(layout, write)
        operations += [create(f"{log}/{ENTRY}", entry, numbered=True) for log in logs]
        above = [name_path.rpartition("/")[0], path.rpartition("/")[0]] if row is None else []
        for _ in range(MENDS):
            try:
                answers = await self.client.commit(operations)
                break
            except TransactionRefused as refused:
                is_missing = isinstance(refused.error, zk.NoNodeError)
                if is_missing and (row is None or refused.index >= of_object):
                    for one in above if refused.index < of_object else logs:
                        await self.client.ensure(one)
                    continue
                self._forget(kind, key)
                if is_missing or isinstance(refused.error, zk.BadVersionError | zk.NodeExistsError):
                    return None
                raise self.client.error(refused.error, writing=True) from None
            except Unknown:
                self._forget(kind, key)
                raise
        else:
            raise Unavailable(f"what is above {path} does not stay", remedy="does somebody delete znodes by hand?")
        for log, made in zip(logs, answers[of_object:], strict=True):
            self._trim(log, entry_number(made))
        if write.after is None:
            self._forget(kind, key)
            return write.answer
        stat = answers[of_object - 1]
        self._keep(kind, key, _row(uid, (raw, stat)))
        return _versioned(write.answer, stat.mzxid)

    @staticmethod
    def _logs(layout: Layout, write: Write) -> Paths:
        """Those of the kind, of the host to which the object belonged and of that to which it belongs now."""
        hosts = [one.metadata.labels.get(HOST_LABEL, "") for one in (write.before, write.after) if one is not None]
        return [layout.log(write.kind, host) for host in dict.fromkeys(("", *hosts))]

    def _trim(self, log: str, number: int) -> None:
        """Remove old entries, once for ``TRIM_EVERY`` of them, if nobody here is doing it."""
        running = self._trims.get(log)
        if number % TRIM_EVERY or (running is not None and not running.done()):
            return
        kept = KEPT if log.endswith(f"/{ALL}") else KEPT_OF_HOST
        task = self._trims[log] = asyncio.create_task(trim(self.client, log, number, kept), name=f"trim {log}")
        task.add_done_callback(lambda _: self._trims.pop(log, None))

    # Observers

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> StreamObservation[R]:
        """Lists, says ``Synced``, then follows."""
        self._check_open(kind)
        observation: StreamObservation[R] = StreamObservation(self._follow(kind, selector), AHEAD)
        self._observations = [other for other in self._observations if not other.ended]
        self._observations.append(cast("StreamObservation[Resource]", observation))
        return observation

    async def _follow(self, kind: type[R], selector: Selector | None) -> AsyncGenerator[Change[R], None]:
        """One listing after the other, with ``Reset`` in between."""
        failures = 0
        while True:
            failures += 1
            try:
                async with aclosing(KindObserver(self, kind, selector).changes()) as changes:
                    async for change in changes:
                        if isinstance(change, Synced):
                            failures = 1
                        yield change
            except (Unavailable, Unknown) as error:
                if self.closed:
                    raise
                wait = self._random.backoff(failures, PAUSE_LEAST_S, PAUSE_MOST_S)
                _log.info("store.zookeeper.reset", kind=kind.kind(), why=str(error), retry_s=round(wait, 3))
            yield Reset()
            await self.clock.sleep(wait)

    async def close(self) -> None:
        """End the session; further calls and all observers raise ``Unavailable``."""
        self.closed = True
        observations, self._observations = self._observations, []
        for observation in observations:
            await observation.fail(_closed())
        trims = [*self._trims.values()]
        for task in trims:
            task.cancel()
        if trims:
            await asyncio.wait(trims)
        await self.client.close()

    # What is remembered

    def _keep(self, kind: type[Resource], name: str, row: _Row) -> _Row:
        self._forget(kind, name)
        self._rows[kind.kind(), name] = row
        self._rows_bytes += len(row.raw)
        while len(self._rows) > CACHED or self._rows_bytes > CACHED_BYTES:
            _, old = self._rows.popitem(last=False)
            self._rows_bytes -= len(old.raw)
        return row

    def _forget(self, kind: type[Resource], name: str) -> None:
        old = self._rows.pop((kind.kind(), name), None)
        if old is not None:
            self._rows_bytes -= len(old.raw)

    def _kind(self, ref: ObjectRef) -> type[Resource]:
        kind = rules.kind_of(ref)
        self._check_open(kind)
        return kind

    def _check_open(self, kind: type[Resource]) -> None:
        if self.closed:
            raise _closed()
        if KINDS.get(kind.kind()) is not kind:
            raise Invalid(f"kind {kind.kind()} is not kept here", remedy=f"one of {', '.join(sorted(KINDS))}")


def _row(uid: str, found: Found) -> _Row:
    raw, stat = found
    return _Row(uid, raw, stat.version, stat.mzxid)


def _versioned(obj: R, transaction: int) -> R:
    meta = msgspec.structs.replace(obj.metadata, resource_version=str(transaction))
    return msgspec.structs.replace(obj, metadata=meta)


def _decoded(kind: type[R], row: _Row | None) -> R | None:
    """The object that a write is judged on; ``NotUnderstood`` for one that is not."""
    if row is None:
        return None
    try:
        return _versioned(decode(kind, row.raw), row.transaction)
    except Invalid as error:
        raise NotUnderstood(f"the stored {kind.kind()} is not understood: {error}", remedy=MALFORMED) from None


def _closed() -> Unavailable:
    return Unavailable("the store was closed", remedy="open it again")
