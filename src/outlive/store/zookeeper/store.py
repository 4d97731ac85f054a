"""The contract on ZooKeeper: one znode an object, written by compare-and-swap, with an entry in its kind's log.

A write reads what it judges, by the rules of every other store, and is one transaction: the object if it still has that
version, what makes its name unique, and the entry. So it conflicts with writes of the same object only. What was read
need not be fresh: the transaction is refused if it is not. A refusal of our own is only given on what was read fresh
(docs/reference/store.md#zookeeper).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, cast

from kazoo.security import ACL

from outlive.base import limits
from outlive.base.clock import Clock
from outlive.base.errors import (
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
from outlive.resources import KINDS, ObjectRef, R, Resource, check_name
from outlive.store import rules
from outlive.store.contract import MALFORMED, Change, Malformed, Page, Reset, Synced
from outlive.store.observation import StreamObservation
from outlive.store.schema.documents import latest_version, load_document
from outlive.store.selectors import Selector
from outlive.store.tables import Batch, Write
from outlive.store.troubles import StoreTroubles
from outlive.store.zookeeper.access import ZooKeeperAccess
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH, Layout, split_object
from outlive.store.zookeeper.observers import KindObserver
from outlive.store.zookeeper.permissions import SECTIONS, acls, decode_acl, digest_id, encode_acl
from outlive.store.zookeeper.requests import put
from outlive.store.zookeeper.rows import Row, RowCache, row_of, understood_row
from outlive.store.zookeeper.writes import ObjectWriter

AHEAD: Final = 1000
"""Changes that are read before the observer asks for them."""
PAUSE_LEAST_S: Final = 0.1
PAUSE_MOST_S: Final = 5.0
"""How long to wait before observing again: doubling, up to this, with jitter."""
ACL_S: Final = 15.0
"""How long an ACL counts that was read."""
LISTINGS: Final = 8
"""Listings in pages of which the names are remembered until the next page."""
MULTIPLES: Final = 10
"""A page has at most so many times ``PAGE_OBJECTS``."""

Places = list[tuple[str, str]]
"""Names and uids."""
States = list[tuple[bytes, int] | None]
"""JSON and version of objects; ``None`` for one that is gone."""
_log = get_logger("store.zookeeper")


class ZooKeeperStore:
    """The store of one cluster. It connects with the first call."""

    embedded = False
    """See ``outlive.store.contract.Store``."""

    def __init__(self, client: ZooKeeperClient, *, clock: Clock, ids: Ids, random: Random) -> None:
        self.client = client
        self.clock = clock
        self.troubles = StoreTroubles(clock)
        self._ids = ids
        self._random = random
        self._layout: Layout | None = None
        self.cache = RowCache()
        self._writer = ObjectWriter(self)
        self._listings: OrderedDict[tuple[str, str], Places] = OrderedDict()
        self._observations: list[StreamObservation[Resource]] = []
        self._acls: dict[str, tuple[Sequence[ACL], float]] = {}
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
            self.cache.clear()

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

    async def prepare(self, coordinators: ZooKeeperAccess | None = None) -> None:
        """Make what a new store needs, the chroot first; what is there stays. ``coordinators``: whom controllers, as
        which this store is opened, let read and write what is theirs; without it anybody may do anything."""
        await self.client.ensure_chroot()
        version = latest_version()
        layout = Layout(load_document(version))
        given = dict(acls(layout, digest_id(self.client.access), digest_id(coordinators))) if coordinators else {}
        for key in layout.document.zookeeper["base"]:
            path = layout.base(key)
            if path != "/" and not key.startswith("schema."):
                await self.client.make(path, str(version).encode() if path == SCHEMA_PATH else b"", given.get(path))
        for path, acl in given.items():
            await self.client.set_acl([path], acl)
        for kind in KINDS.values():
            await self.client.make(layout.log(kind), b"", given.get(layout.objects(kind)))
            if given:
                root = layout.objects(kind)
                await self.client.commit([put(root, encode_acl(given[root]))])
            for section in SECTIONS if given else ():
                await self._apply_acl(root := layout.base(f"{section}.{kind.info.plural}"), given[root])

    async def _apply_acl(self, root: str, acl: Sequence[ACL]) -> None:
        """Have all znodes below a kind's own its ACL: what was made before with another one, too."""
        parents = [f"{root}/{one}" for one in (await self.client.children_many((root,)))[0] or ()]
        await self.client.set_acl(parents, acl)
        for parent in parents:
            children = (await self.client.children_many((parent,)))[0] or ()
            await self.client.set_acl([f"{parent}/{one}" for one in children], acl)

    async def acl(self, path: str) -> Sequence[ACL]:
        """What znodes below a kind's own are made with, as its data says: of the ACL itself servers show digests only
        to who may change it."""
        known, now = self._acls.get(path), self.clock.monotonic()
        if known is None or now - known[1] > ACL_S:
            found = await self.client.get(path)
            known = self._acls[path] = (decode_acl(found[0]) if found is not None else (), now)
        return known[0]

    # Reads

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``. With ``fresh`` it is read after a transaction of the quorum."""
        self._check_open(kind)
        with self._noting("GET", kind):
            row = await self.read_row(kind, name, fresh=fresh)
        if row is None:
            raise rules.not_found(kind, name)
        found = understood_row(kind, name, row.uid, row.raw, row.transaction, None)
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
            with self._noting("LIST", kind):
                names = [place for place in await self._places(kind) if place[0] > token]
        items: list[R] = []
        malformed: list[Malformed] = []
        last = ""
        for start in range(0, len(names), limits.YIELD_OBJECTS):
            part = names[start : start + limits.YIELD_OBJECTS]
            for number, ((name, uid), row) in enumerate(zip(part, await self.read_objects(kind, part), strict=True)):
                found = understood_row(kind, name, uid, *row, selector) if row is not None else None
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
        """Name, uid, JSON and version of every object of the kind, in name order. ``Unavailable`` where another session
        begins meanwhile, whose server may lag behind."""
        places = await self._places(kind)
        session = self.client.session
        for start in range(0, len(places), limits.YIELD_OBJECTS):
            part = places[start : start + limits.YIELD_OBJECTS]
            states = await self.read_objects(kind, part)
            if self.client.session != session:
                raise Unavailable("the session was replaced while it listed", remedy="list again")
            for (name, uid), row in zip(part, states, strict=True):
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

    async def read_row(self, kind: type[Resource], name: str, *, fresh: bool) -> Row | None:
        """The object of that name as it is stored; ``None`` if there is none."""
        try:
            check_name(name)
        except Invalid:
            return None
        layout = await self.layout()
        hint = self.cache.get(kind, name)
        if hint is not None:  # who has the name has the znode: both are made and removed together
            found = await self.client.get(layout.object(kind, name, hint.uid), fresh=fresh)
            if found is not None:
                return self.cache.keep(kind, name, row_of(hint.uid, found))
            self.cache.forget(kind, name)
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
        return self.cache.keep(kind, name, row_of(uid, found))

    # Writes

    async def create(self, obj: R) -> R:
        """Write a new object; ``AlreadyExists`` if the name is taken."""
        kind, now = type(obj), self.clock.now()
        self._check_open(kind)
        with self._noting("CREATE", kind):
            return await self._writer.write(kind, "", lambda batch: rules.create(batch, obj, ids=self._ids, now=now))

    async def replace(self, obj: R) -> R:
        """Compare-and-swap of everything but the status half."""
        return await self._swap(obj, lambda batch: rules.replace(batch, obj))

    async def replace_status(self, obj: R) -> R:
        """Compare-and-swap of the status half."""
        return await self._swap(obj, lambda batch: rules.replace_status(batch, obj))

    async def _swap(self, obj: R, judge: Callable[[Batch], Write]) -> R:
        self._check_open(type(obj))
        with self._noting("REPLACE", type(obj)):
            return await self._writer.write(type(obj), obj.metadata.name, judge, obj.metadata.resource_version)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "", orphan: bool = False) -> None:
        """Delete, or mark where there are finalizers."""
        kind, now = self._kind(ref), self.clock.now()

        def judge(batch: Batch) -> Write:
            return rules.delete(batch, ref, uid=uid, version=version, now=now)

        with self._noting("DELETE", kind):
            if not await self._writer.delete_malformed(kind, ref, uid):
                await self._writer.write(kind, ref.key, judge, version)

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """Set or remove labels and annotations without a version, where the kind allows it."""
        kind, given = self._kind(ref), {"labels": labels or {}, "annotations": annotations or {}}
        with self._noting("PATCH", kind):
            return await self._writer.write(kind, ref.key, lambda batch: rules.patch_metadata(batch, ref, **given))

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
                            self.troubles.succeeded("WATCH", f"/{kind.info.plural}")
                        yield change
            except (Unavailable, Unknown) as error:
                if self.closed:
                    raise
                self.troubles.failed("WATCH", f"/{kind.info.plural}", error)
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
        await self._writer.close()
        await self.client.close()

    # What is refused

    @contextmanager
    def _noting(self, verb: str, kind: type[Resource]) -> Iterator[None]:
        """Have an error that lasts become a fault."""
        place = f"/{kind.info.plural}"
        try:
            yield
        except OutliveError as error:
            self.troubles.failed(verb, place, error)
            raise
        self.troubles.succeeded(verb, place)

    def _kind(self, ref: ObjectRef) -> type[Resource]:
        kind = rules.kind_of(ref)
        self._check_open(kind)
        return kind

    def _check_open(self, kind: type[Resource]) -> None:
        if self.closed:
            raise _closed()
        if KINDS.get(kind.kind()) is not kind:
            raise Invalid(f"kind {kind.kind()} is not kept here", remedy=f"one of {', '.join(sorted(KINDS))}")


def _closed() -> Unavailable:
    return Unavailable("the store was closed", remedy="open it again")
