"""The contract on ZooKeeper: one znode an object, written by compare-and-swap, with an entry in its kind's log.

A write reads what it judges, by the rules of every other store, and is one transaction: the object if it still has that
version, what makes its name unique, and the entry. So it conflicts with writes of the same object only. What was read
need not be fresh: the transaction is refused if it is not. A refusal of our own is only given on what was read fresh
(docs/reference/store.md#zookeeper).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, cast

from kazoo.security import ACL

from outlive.base import (
    Clock,
    Ids,
    Invalid,
    NotUnderstood,
    OutliveError,
    Random,
    Unavailable,
    Unknown,
    get_logger,
    limits,
)
from outlive.resources import KINDS, ObjectRef, R, Resource
from outlive.store import rules
from outlive.store.contract import MALFORMED, Change, Malformed, Page, Reset, Synced
from outlive.store.observation import StreamObservation
from outlive.store.selectors import Selector
from outlive.store.tables import Write, WriteBatch
from outlive.store.troubles import StoreTroubles
from outlive.store.zookeeper.access import ZooKeeperAccess
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import TreeLayout
from outlive.store.zookeeper.observers import KindObserver
from outlive.store.zookeeper.permissions import decode_acl
from outlive.store.zookeeper.preparation import prepare_store
from outlive.store.zookeeper.reads import ObjectReader
from outlive.store.zookeeper.rows import decode_selected
from outlive.store.zookeeper.schema_view import LayoutChanged, SchemaView
from outlive.store.zookeeper.writes import ObjectWriter

AHEAD: Final = 1000
"""Changes that are read before the observer asks for them."""
PAUSE_LEAST_S: Final = 0.1
PAUSE_MOST_S: Final = 5.0
"""How long to wait before observing again: doubling, up to this, with jitter."""
ACL_S: Final = 15.0
"""How long an ACL counts that was read."""
MULTIPLES: Final = 10
"""A page has at most so many times ``PAGE_OBJECTS``."""

_log = get_logger("store.zookeeper")


class ZooKeeperStore:
    """The store of one cluster. It connects with the first call."""

    embedded = False
    """See ``outlive.store.contract.Store``."""

    def __init__(
        self, client: ZooKeeperClient, *, clock: Clock, ids: Ids, random: Random, schema: SchemaView | None = None
    ) -> None:
        self.client = client
        self.clock = clock
        self.troubles = StoreTroubles(clock)
        self._ids = ids
        self._random = random
        self.schema = schema or SchemaView(client, clock=clock)
        self.schema.listen(self._forget)
        self.reader = ObjectReader(client, self.schema)
        self._writer = ObjectWriter(self)
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
            self._forget()

    def _forget(self) -> None:
        """Nothing counts any more that was read before."""
        self.reader.forget()
        self._acls.clear()

    async def get_layout(self) -> TreeLayout:
        """Where everything lies, by the version of the storage schema that counts."""
        return await self.schema.get_layout()

    async def prepare(self, coordinators: ZooKeeperAccess | None = None) -> None:
        """Make what a new store needs, the chroot first; what is there stays. ``coordinators``: whom controllers, as
        which this store is opened, let read and write what is theirs; without it anybody may do anything."""
        await prepare_store(self.client, self.schema, coordinators, clock=self.clock)

    async def read_acl(self, kind: type[Resource], layout: TreeLayout) -> Sequence[ACL]:
        """What znodes below a kind's own are made with, as its data says: of the ACL itself servers show digests only
        to who may change it. ``LayoutChanged`` where another schema counts by now."""
        path = layout.kind_path(kind)
        known, now = self._acls.get(path), self.clock.monotonic()
        if known is None or now - known[1] > ACL_S:
            found = (await self.reader.get_many((path,), layout))[0]
            found = found or (await self.reader.get_many((path,), layout, fresh=True))[0]
            if found is None:  # nothing is made that anybody may change
                raise Unavailable(f"{path} is not there", remedy="make it: outlive zookeeper init")
            known = self._acls[path] = (decode_acl(found[0]), now)
        return known[0]

    # Reads

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``. With ``fresh`` it is read after a transaction of the quorum."""
        self._check_open(kind)
        with self._note_errors("GET", kind):
            row = await self.schema.retry_on_change(lambda: self.reader.read_row(kind, name, fresh=fresh))
        if row is None:
            raise rules.build_not_found_error(kind, name)
        found = decode_selected(kind, name, row.uid, row.raw, row.transaction, None)
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
        with self._note_errors("LIST", kind):
            return await self.schema.retry_on_change(lambda: self.reader.read_page(kind, selector, limit, token))

    # Writes

    async def create(self, obj: R) -> R:
        """Write a new object; ``AlreadyExists`` if the name is taken."""
        kind, now = type(obj), self.clock.now()
        self._check_open(kind)
        with self._note_errors("CREATE", kind):
            return await self._writer.write(kind, "", lambda batch: rules.create(batch, obj, ids=self._ids, now=now))

    async def replace(self, obj: R) -> R:
        """Compare-and-swap of everything but the status half."""
        return await self._swap(obj, lambda batch: rules.replace(batch, obj))

    async def replace_status(self, obj: R) -> R:
        """Compare-and-swap of the status half."""
        return await self._swap(obj, lambda batch: rules.replace_status(batch, obj))

    async def _swap(self, obj: R, judge: Callable[[WriteBatch], Write]) -> R:
        self._check_open(type(obj))
        with self._note_errors("REPLACE", type(obj)):
            return await self._writer.write(type(obj), obj.metadata.name, judge, obj.metadata.resource_version)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "", orphan: bool = False) -> None:
        """Delete, or mark where there are finalizers."""
        kind, now = self._kind_of(ref), self.clock.now()

        def judge(batch: WriteBatch) -> Write:
            return rules.delete(batch, ref, uid=uid, version=version, now=now)

        with self._note_errors("DELETE", kind):
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
        kind, given = self._kind_of(ref), {"labels": labels or {}, "annotations": annotations or {}}
        with self._note_errors("PATCH", kind):
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
                async with aclosing(KindObserver(self, kind, selector).watch_changes()) as changes:
                    async for change in changes:
                        if isinstance(change, Synced):
                            failures = 1
                            self.troubles.note_success("WATCH", f"/{kind.info.plural}")
                        yield change
            except (Unavailable, Unknown) as error:
                if self.closed:
                    raise
                self.troubles.note_failure("WATCH", f"/{kind.info.plural}", error)
                wait = self._random.backoff_seconds(failures, PAUSE_LEAST_S, PAUSE_MOST_S)
                _log.info("store.zookeeper.reset", kind=kind.kind(), why=str(error), retry_s=round(wait, 3))
            except LayoutChanged:
                wait = self._random.backoff_seconds(failures, PAUSE_LEAST_S, PAUSE_MOST_S)
                _log.info("store.zookeeper.reset", kind=kind.kind(), why="the storage schema changed")
            yield Reset()
            await self.clock.sleep(wait)

    async def close(self) -> None:
        """End the session; further calls and all observers raise ``Unavailable``."""
        self.closed = True
        observations, self._observations = self._observations, []
        for observation in observations:
            await observation.fail(_closed_error())
        await self._writer.close()
        await self.schema.close()
        await self.client.close()

    # What is refused

    @contextmanager
    def _note_errors(self, verb: str, kind: type[Resource]) -> Iterator[None]:
        """Have an error that lasts become a fault."""
        place = f"/{kind.info.plural}"
        try:
            yield
        except OutliveError as error:
            self.troubles.note_failure(verb, place, error)
            raise
        self.troubles.note_success(verb, place)

    def _kind_of(self, ref: ObjectRef) -> type[Resource]:
        kind = rules.kind_of(ref)
        self._check_open(kind)
        return kind

    def _check_open(self, kind: type[Resource]) -> None:
        if self.closed:
            raise _closed_error()
        if KINDS.get(kind.kind()) is not kind:
            raise Invalid(f"kind {kind.kind()} is not kept here", remedy=f"one of {', '.join(sorted(KINDS))}")


def _closed_error() -> Unavailable:
    return Unavailable("the store was closed", remedy="open it again")
