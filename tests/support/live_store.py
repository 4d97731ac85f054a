"""A virtual cluster whose store is a real one: what processes read and write goes there, past the same faults.

The real store lies where the memory store does otherwise, below each process's own way with its delays and cuts; each
process has a connection of its own. What the judges look at is a copy of it, which hears of every write with its author
before anybody else is shown it: an answer is heard before its writer gets it, and an observer or reader that is shown
something newer than the copy waits for the writes that are under way.

The store must be empty, and nobody else may write to it: a write that no process here has made is put down to
``nobody``. Versions are taken to be numbers that only grow, which the contract does not promise and all our stores
keep. Backups and inventories are for the memory store only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from outlive.base import Clock, Ids, Instant, NotFound, OutliveError, Unavailable, Unknown
from outlive.resources import KINDS, ObjectRef, R, Resource, encode
from outlive.simulation import (
    LOOK_S,
    Author,
    Moment,
    PlayedStory,
    Refused,
    Scenario,
    Story,
    WorldStore,
    WriteRefusal,
    Wrote,
    current_author,
    find_differences,
    go,
    set_author,
)
from outlive.store import Change, Delete, Judge, Page, Selector, Store, Upsert, Write, WriteBatch, rules
from tests.support.accelerated import outside

T = TypeVar("T")


class Connection:
    """The real store as one process reaches it: ``Store``. What was sent goes on without its sender."""

    embedded: bool = False
    """As the memory store of a simulation, it stands for one that is away only when all of it is."""

    def __init__(self, kept: LiveStore, inner: Store) -> None:
        self._kept = kept
        self.inner = inner

    @property
    def incarnation(self) -> str:
        """As the world's."""
        return self._kept.incarnation

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """As the real store."""

        async def sent() -> R:
            return await self._kept.shown(await self.inner.get(kind, name, fresh=fresh))

        return await self._sent(sent)

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """As the real store."""

        async def sent() -> Page[R]:
            page = await self.inner.list(kind, selector=selector, limit=limit, token=token)
            for one in page.items:
                await self._kept.shown(one)
            return page

        return await self._sent(sent)

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> Following[R]:
        """As the real store; what it shows was heard of before."""
        return Following(self._kept, self.inner.observe(kind, selector=selector))

    async def create(self, obj: R) -> R:
        """As the real store."""
        self._kept.permit(lambda batch: rules.create(batch, obj, ids=self._kept.ids, now=self._kept.now()))
        return await self._write(obj, None, lambda: self.inner.create(obj))

    async def replace(self, obj: R) -> R:
        """As the real store."""
        self._kept.permit(lambda batch: rules.replace(batch, obj))
        return await self._write(obj, obj, lambda: self.inner.replace(obj))

    async def replace_status(self, obj: R) -> R:
        """As the real store."""
        self._kept.permit(lambda batch: rules.replace_status(batch, obj))
        return await self._write(obj, obj, lambda: self.inner.replace_status(obj))

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """As the real store."""

        now = self._kept.now()
        self._kept.permit(lambda batch: rules.delete(batch, ref, uid=uid, version=version, now=now))

        async def sent() -> None:
            with self._kept.writing(ref.kind, ref.name):
                await self.inner.delete(ref, uid=uid, version=version)
                try:
                    left = await self.inner.get(KINDS[ref.kind], ref.name, fresh=True)
                except NotFound:
                    self._kept.heard_delete(ref)
                else:
                    self._kept.heard(self._kept.look_at(left), left)

        await self._sent(sent)

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """As the real store."""

        given = {"labels": labels or {}, "annotations": annotations or {}}
        self._kept.permit(lambda batch: rules.patch_metadata(batch, ref, **given))

        async def sent() -> Resource:
            with self._kept.writing(ref.kind, ref.name):
                answer = await self.inner.patch_metadata(ref, labels=labels, annotations=annotations)
                self._kept.heard(self._kept.look_at(answer), answer)
                return answer

        return await self._sent(sent)

    async def close(self) -> None:
        """The caller that made the connection closes it."""

    async def _sent(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer to what is sent in a task of its own, which ends with its sender or without."""

        async def explain_unfinished() -> T:
            try:
                with outside():
                    return await call()
            except (Unavailable, Unknown):
                self._kept.failed_s = asyncio.get_running_loop().time()
                raise

        return await asyncio.shield(go(explain_unfinished(), name="live-store"))

    async def _write(self, obj: R, base: R | None, call: Callable[[], Awaitable[R]]) -> R:
        async def sent() -> R:
            with self._kept.writing(obj.kind(), obj.metadata.name):
                answer = await call()
                self._kept.heard(base, answer)
                return answer

        return await self._sent(sent)


class Following(Generic[R]):
    """One observer's stream. For one task at a time; a cancelled wait loses nothing."""

    def __init__(self, kept: LiveStore, inner: Any) -> None:
        self._kept = kept
        self._inner = inner
        self._next: Change[R] | None = None

    def __aiter__(self) -> Following[R]:
        return self

    async def __anext__(self) -> Change[R]:
        """The next change, once the copy knows of it."""
        change: Change[R] = self._next if self._next is not None else await anext(self._inner)
        self._next = change
        match change:
            case Upsert(obj):
                await self._kept.shown(obj)
            case Delete(ref, _):
                await self._kept.shown_delete(ref)
        self._next = None
        return change

    async def aclose(self) -> None:
        """Stop."""
        await self._inner.aclose()


Connect = Callable[[], Store]
"""Makes a connection for one more process."""

TOLERANCE_S: Final = 5.0
"""So much later than on the memory store, whose answers take no time, may everything come that a story expects."""
FAILING_S: Final = 3.0
"""So long after a call that failed the store counts as away; processes call it more often."""
PAST_LIMIT: Final = 20_000
"""States of objects that are kept, to know what a swap has changed."""
NOBODY: Final = Author("nobody here", "", ())
"""Who wrote what no process of the cluster has written."""


class LiveStore(WorldStore):
    """See the module. The maker of ``connect`` closes what it made, after the world has stopped."""

    def __init__(self, clock: Clock, ids: Ids, wrote: Wrote, refused: Refused, *, connect: Connect) -> None:
        super().__init__(clock, ids, wrote, refused)
        self._connect = connect
        self._operator = Connection(self, connect())
        self._under_way: list[_UnderWay] = []
        self._past: OrderedDict[str, Resource] = OrderedDict()
        self._gone: dict[str, None] = {}
        self._unanswered: dict[tuple[str, str], Author] = {}
        self.failed_s = -FAILING_S
        """When a call failed last."""

    # What the world does with it

    @property
    def failing(self) -> bool:
        """Whether a call could not reach it a moment ago, by itself and not by what happens to the way there."""
        return asyncio.get_running_loop().time() - self.failed_s < FAILING_S

    def way_end(self, process: str) -> Connection:
        """A connection for a process."""
        return Connection(self, self._connect())

    async def fill(self, objects: Iterable[Resource]) -> None:
        """Write what there is at the beginning."""
        with outside():
            self.load([await _put(self._operator.inner, one) for one in objects])
        for kind_name, table in self._tables:
            for key, _ in table.list_all():
                self._remember(self._decoded[(kind_name, key)])

    async def astray(self) -> list[str]:
        """Objects that the store does not have as it answered that it has them."""
        found: list[str] = []
        for kind, table in self._tables:
            for key, _ in table.list_all():
                noted = self._decoded[(kind, key)]
                meta = noted.metadata
                try:
                    has = await self._operator.get(type(noted), meta.name, fresh=True)
                except NotFound:
                    if (kind, key) in self._decoded:
                        found.append(f"{kind}/{key} was written, and the store does not have it")
                    continue
                version = has.metadata.resource_version
                if int(version) < int(meta.resource_version):
                    found.append(
                        f"{kind}/{key} was acknowledged as {meta.resource_version}, and the store has {version}"
                    )
                elif version == meta.resource_version and has != noted:
                    found.append(f"version {version} of {kind}/{key} is another one than was answered")
        return found

    # What an operator does: as any process, on a connection of its own

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """As the real store."""
        return await self._operator.get(kind, name, fresh=fresh)

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """As the real store."""
        return await self._operator.list(kind, selector=selector, limit=limit, token=token)

    async def create(self, obj: R) -> R:
        """As the real store."""
        return await self._operator.create(obj)

    async def replace(self, obj: R) -> R:
        """As the real store."""
        return await self._operator.replace(obj)

    async def replace_status(self, obj: R) -> R:
        """As the real store."""
        return await self._operator.replace_status(obj)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """As the real store."""
        await self._operator.delete(ref, uid=uid, version=version)

    # What is refused

    def now(self) -> Instant:
        """By the world's clock."""
        return self._clock.now()

    @property
    def ids(self) -> Ids:
        """For what is judged only: the real store gives its own."""
        return self._ids

    def permit(self, judge: Judge) -> None:
        """``Forbidden`` where the server would refuse the write, which is asked before it is sent. What does not fit
        the copy is the real store's to refuse."""
        try:
            write = judge(self._make_batch())
        except OutliveError:
            return
        self._permit(write)

    # What is heard of

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[None]:
        """A write is under way; the key is empty where the store gives the name."""
        one = _UnderWay(kind, key, asyncio.get_running_loop().create_future())
        self._under_way.append(one)
        try:
            yield
        except Unknown:
            self._unanswered[(kind, key)] = current_author()
            raise
        finally:
            self._under_way.remove(one)
            one.over.set_result(None)

    def heard(self, base: Resource | None, after: Resource) -> None:
        """A write was answered, by the task that carries its author."""
        version, kept = after.metadata.resource_version, self.look_at(after)
        ended = after.metadata.deletion_timestamp is not None and not after.metadata.finalizers
        if ended and after.metadata.uid in self._gone:
            return
        if not ended and (version in self._past or (base is not None and base.metadata.resource_version == version)):
            return  # it changed nothing; one that has removed the object is answered with the old version as well
        if base is not None:
            base = self._past.get(base.metadata.resource_version, kept)
        self._tell(after, base, None if ended else after)

    def heard_delete(self, ref: ObjectRef) -> None:
        """An object was deleted."""
        kept = self._decoded.get((ref.kind, ref.name))
        if kept is not None:
            self._tell(kept, kept, None)

    async def shown(self, obj: R) -> R:
        """Somebody is shown this: once the copy knows of it."""
        place = (obj.kind(), obj.metadata.name)
        while not self._knows(obj) and await self._settled(*place):
            pass
        if not self._knows(obj):
            with set_author(self._unanswered.pop(place, NOBODY)):
                self._tell(obj, self.look_at(obj), obj)
        return obj

    async def shown_delete(self, ref: ObjectRef) -> None:
        """Somebody is shown that it is gone."""
        while await self._settled(ref.kind, ref.name):
            pass

    def look_at(self, obj: Resource) -> Resource | None:
        """The copy's state of the object of that kind and name."""
        return self._decoded.get((obj.kind(), obj.metadata.name))

    async def _settled(self, kind: str, key: str) -> bool:
        """Wait for the first write under way that may be of this object; false if there is none."""
        for one in self._under_way:
            if one.kind == kind and one.key in ("", key):
                await asyncio.wait([one.over])
                return True
        return False

    def _knows(self, obj: Resource) -> bool:
        kept = self.look_at(obj)
        if obj.metadata.uid in self._gone:
            return True
        return kept is not None and int(obj.metadata.resource_version) <= int(kept.metadata.resource_version)

    def _tell(self, named: Resource, before: Resource | None, after: Resource | None) -> None:
        """The write counts; one that was answered after a later one is judged, and does not turn the copy back."""
        key = named.metadata.name
        raw = encode(after) if after is not None else None
        write = Write(type(named), key, before, after, raw, named)
        late = after is not None and self._knows(after)
        self._remember(named)
        if current_author() is NOBODY:
            self._refused(write, NOBODY, WriteRefusal(f"is not to write {named.kind()}/{key}", by_facts=False))
        if late:
            self._wrote(write, current_author())
            return
        if after is None:
            self._gone[named.metadata.uid] = None
        batch = WriteBatch(self._tables)
        batch.add(write)
        self._count(batch)

    def _remember(self, obj: Resource) -> None:
        self._past[obj.metadata.resource_version] = obj
        if len(self._past) > PAST_LIMIT:
            self._past.popitem(last=False)


class _UnderWay(msgspec.Struct, eq=False):
    """A write that was sent and not answered."""

    kind: str
    key: str
    over: asyncio.Future[None]


async def _put(store: Store, obj: R) -> R:
    """Both halves of an object."""
    made = await store.create(msgspec.structs.replace(obj, metadata=_without_version(obj)))
    if not type(obj).has_status():
        return made
    wanted: Any = obj
    return await store.replace_status(msgspec.structs.replace(made, status=wanted.status))


def _without_version(obj: Resource) -> Any:
    return msgspec.structs.replace(obj.metadata, uid="", resource_version="")


class LiveStory(Story):
    """A story on such a store, where everything that is expected may come so much later than it says."""

    def __init__(self, scenario: Scenario, *, replay: str, connect: Connect, tolerance_s: float = TOLERANCE_S) -> None:
        super().__init__(scenario, seed=scenario.spec.seed, replay=replay, store=partial(LiveStore, connect=connect))
        self.tolerance_s = tolerance_s
        self._looks: list[asyncio.Task[None]] = []

    def _check_moment(self, moment: Moment) -> None:
        self._looks.append(asyncio.ensure_future(self._look_again(moment)))

    async def _look_again(self, moment: Moment) -> None:
        while (found := find_differences(self.world, moment)) and self.now_s < moment.at + self.tolerance_s:
            await self.world.clock.sleep(LOOK_S)
        self.failed += [f"at {moment.at:g} s: {text}" for text in found]

    async def _end(self) -> PlayedStory:
        await asyncio.gather(*self._looks)
        assert isinstance(self.world.store, LiveStore)
        self.failed += await self.world.store.astray()
        return await super()._end()
