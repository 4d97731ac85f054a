"""A cache of one kind that follows the store, with indexes, and reports what changed.

What it guarantees: after ``synced`` the cache holds what the store held at some moment after ``run`` began, and
whatever happens (lost connections, ``Reset``, errors) it comes to hold the store's last state; subscribers see
every change of the cache, in order, each with the state before and after. What it does not: that a state in
between is ever seen, that two objects are of the same moment, or that the cache is fresh; a listing on a *new*
stream may even be older than what the lost stream had shown, because versions are opaque.
A writer's own acknowledged writes are shown at once; what exactly is guaranteed says ``PendingWrite``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic

from outlive.base import Clock, Forbidden, OutliveError, Random, get_logger
from outlive.resources import ObjectRef, R, Resource
from outlive.runtime.pending_writes import HOLD_S, PassedVersions, PendingWrite
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Change, Delete, Malformed, Reset, Selector, Store, Synced, Upsert

Callback = Callable[[R | None, R | None], None]
"""Called with (state before, state after) once the cache has changed; ``None`` for absent. It must not block."""

BACKOFF_BASE_S: Final = 0.2
"""The first wait after a lost stream."""
BACKOFF_CAP_S: Final = 30.0
"""The longest wait after a lost stream."""
MALFORMED_MOST: Final = 1000
"""Objects that are not understood, of which it is remembered why."""
YIELD_EVERY: Final = 256
"""Changes after which others get their turn, so that a long listing does not block the loop."""

_log = get_logger("informer")


@dataclass(slots=True)
class Figures:
    """What an informer has counted; the manager shows it as metrics."""

    changes: int = 0
    """Changes of the cache."""
    resets: int = 0
    """Doubts: resets and lost streams."""
    syncs: int = 0
    """Listings that were complete."""
    errors: int = 0
    """Streams that ended in an error."""
    callback_errors: int = 0
    """Subscribers that failed: their picture may be wrong."""
    held: int = 0
    """Arrivals held back because of a pending write."""


class Informer(Generic[R]):
    """See the module. ``indexes`` maps a name to what yields an object's keys in that index."""

    def __init__(
        self,
        store: Store,
        kind: type[R],
        *,
        clock: Clock,
        random: Random,
        selector: Selector | None = None,
        indexes: Mapping[str, Callable[[R], Iterable[str]]] | None = None,
        hold_s: float = HOLD_S,
    ) -> None:
        self.kind = kind
        self.name = kind.kind() if selector is None else f"{kind.kind()}[{selector}]"
        self.figures = Figures()
        self.error: OutliveError | None = None
        """Why the stream was lost, until a listing is complete again; a store may also recover from losses itself."""
        self.malformed: dict[str, str] = {}
        """Objects that exist and are not understood → why; of them the cache has what was understood last, if any."""
        self._store = store
        self._clock = clock
        self._random = random
        self._selector = selector
        self._hold_s = hold_s
        self._index_functions = dict(indexes or {})
        self._objects: dict[str, R] = {}
        self._order: list[str] | None = []
        self._indexes: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self._index_functions}
        self._callbacks: dict[int, Callback[R]] = {}
        self._next_callback = 0
        self._pending: dict[str, PendingWrite[R]] = {}
        self._held = asyncio.Event()
        self._left = PassedVersions()
        self._listed: set[str] | None = None
        """Names that the running listing has shown; ``None`` while no listing runs."""
        self._synced = asyncio.Event()
        self._stalled_since: float | None = None
        self._doubt_ends_s = float("-inf")
        """Until then writes may be reported that were sent before the last listing."""

    # What readers use

    @property
    def synced(self) -> bool:
        """Whether a listing has been complete once; the cache is of use from then on, though it may be old."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return once ``synced``."""
        await self._synced.wait()

    def stalled_s(self) -> float:
        """Seconds since the cache is in doubt (lost stream, running listing); 0 while it follows."""
        return 0.0 if self._stalled_since is None else self._clock.monotonic() - self._stalled_since

    @property
    def in_doubt(self) -> bool:
        """Whether an object that disappears now may only be missing in a listing: nobody saw its deletion."""
        return self._stalled_since is not None or self._clock.monotonic() < self._doubt_ends_s

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: str) -> R | None:
        """The object of that key (``ObjectMeta.key``) as it was last seen."""
        return self._objects.get(key)

    def items(self) -> list[R]:
        """All objects, in order of their keys."""
        if self._order is None:
            self._order = sorted(self._objects)
        return [self._objects[key] for key in self._order]

    def list_by_index(self, index: str, key: str) -> list[R]:
        """The objects of that entry of the index, in order of their keys; ``KeyError`` for an undeclared index."""
        names = self._indexes[index].get(key)
        return [self._objects[name] for name in sorted(names)] if names else []

    def index_keys(self, index: str) -> list[str]:
        """All keys of the index that have objects, sorted."""
        return sorted(self._indexes[index])

    def subscribe(self, callback: Callback[R], *, replay: bool = True) -> Callable[[], None]:
        """Call ``callback`` for what is there now (``replay``), then of each change; returns what ends that."""
        number = self._next_callback
        self._next_callback += 1
        for obj in self.items() if replay else ():
            self._call(callback, None, obj)
        self._callbacks[number] = callback

        def end() -> None:
            self._callbacks.pop(number, None)

        return end

    # What writers use

    def note(self, obj: R, *, replaced: str | None = None) -> None:
        """Show an acknowledged write at once. ``obj`` is what the store gave back.

        ``replaced`` is the version that the write was made against, or ``""`` for a creation: with it newer
        arrivals are told from older ones where that can be proven. Without it they wait (``PendingWrite``).
        """
        key = obj.metadata.key
        uid, version = obj.metadata.uid, obj.metadata.resource_version
        if self._is_past(key, uid, version, replaced):
            return
        pending = self._pending.get(key)
        if pending is None or pending.uid != uid:
            self._begin_pending(key, uid, replaced).latest = version
        elif pending.write(version, replaced):
            del self._pending[key]
        self._show(key, obj if self._selects(obj) else None, reported=True)

    def note_deleted(self, ref: ObjectRef) -> None:
        """Show an acknowledged deletion at once; ``ref`` must carry the uid.

        An object that was only marked, because of finalizers, shows again when that is seen.
        """
        key = ref.key
        now = self._objects.get(key)
        if now is None or now.metadata.uid != ref.uid or now.metadata.deletion_timestamp is not None:
            return
        self._begin_pending(key, ref.uid, None)
        self._left.leave(key, ref.uid, now.metadata.resource_version, gone=True)
        self._show(key, None, reported=True)

    def _is_past(self, key: str, uid: str, version: str, replaced: str | None) -> bool:
        """Whether the cache shows this write or is known to be beyond it."""
        pending = self._pending.get(key)
        if pending is not None and pending.uid == uid:
            return pending.is_past(version, replaced) or self._left.has_passed(key, uid, version, replaced)
        now = self._objects.get(key)
        if now is not None and _is_version(now, uid, version):
            return True
        if now is not None and now.metadata.uid == uid and replaced in ("", now.metadata.resource_version):
            # A creation comes before every other state; a write against what is shown is the next one.
            return replaced == ""
        return self._left.has_passed(key, uid, version, replaced)

    def _begin_pending(self, key: str, uid: str, replaced: str | None) -> PendingWrite[R]:
        """A new one. Unless the stream is at what was replaced, what it shows now may yet turn out newer."""
        before = self._pending.get(key)
        doubted = self.synced and (self._listed is not None or self._clock.monotonic() < self._doubt_ends_s)
        pending: PendingWrite[R] = PendingWrite(uid, born=replaced == "", doubted=doubted)
        now = self._objects.get(key)
        if replaced:
            pending.older.add(replaced)
        if before is None and now is not None and now.metadata.uid == uid:
            pending.reached = True
            pending.adjoins = replaced == now.metadata.resource_version and not doubted
        if before is not None:
            pending.dead = before.dead if before.latest or before.uid == uid else before.dead | {before.uid}
        if not pending.adjoins:
            shown = now if before is None else before.held
            self._hold(pending, None if shown is not None and shown.metadata.uid in pending.dead else shown)
        self._pending[key] = pending
        return pending

    # Following the store

    async def run(self) -> None:
        """Follow the store until cancelled. Errors of the store are survived with back-off; others are raised."""
        async with OrderedTaskGroup() as group:
            group.create_task(self._follow(), name=f"follow {self.name}")
            group.create_task(self._release(), name=f"release {self.name}")

    async def _follow(self) -> None:
        failures = 0
        while True:
            self._doubt()
            syncs, refused = self.figures.syncs, False
            try:
                async with self._stream() as stream:
                    await self._take_all(stream)
                _log.warning("informer.stream_ended", kind=self.name)
            except OutliveError as error:
                self.figures.errors += 1
                self.error, refused = error, isinstance(error, Forbidden)
                _log.warning("informer.stream_lost", kind=self.name, error=str(error), code=error.code)
            # who may list and not watch would list for ever
            failures = 1 if self.figures.syncs > syncs and not refused else failures + 1
            await self._clock.sleep(self._random.backoff_seconds(failures, BACKOFF_BASE_S, BACKOFF_CAP_S))

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[AsyncIterator[Change[R]]]:
        stream = self._store.observe(self.kind, selector=self._selector)
        try:
            yield stream
        finally:
            close: Callable[[], Any] | None = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def _take_all(self, stream: AsyncIterator[Change[R]]) -> None:
        count = 0
        async for change in stream:
            match change:
                case Upsert(object=obj):
                    self._arrive(obj.metadata.key, obj)
                case Malformed(ref=ref, why=why):
                    self._report_malformed(ref, why)
                case Delete(ref=ref):
                    self._depart(ref)
                case Reset():
                    self._doubt()
                case Synced():
                    await self._settle()
            count += 1
            if count % YIELD_EVERY == 0:
                await self._clock.sleep(0)

    def _report_malformed(self, ref: ObjectRef, why: str) -> None:
        """Its last good state stays, and nobody else of its kind is held up."""
        if self._listed is not None:
            self._listed.add(ref.key)
        if self.malformed.get(ref.key) != why and len(self.malformed) < MALFORMED_MOST:
            self.malformed[ref.key] = why
            _log.warning("informer.malformed", kind=self.name, name=ref.key, why=why)

    def _doubt(self) -> None:
        self.figures.resets += 1
        self._listed = set()
        if self._stalled_since is None:
            self._stalled_since = self._clock.monotonic()
        for pending in self._pending.values():
            pending.doubt()

    async def _settle(self) -> None:
        """The listing is complete: what it did not name is gone."""
        listed, self._listed = self._listed, None
        if listed is not None:
            self.malformed = {name: why for name, why in self.malformed.items() if name in listed}
            missing = sorted((self._objects.keys() - listed) | (self._pending.keys() - listed))
            for count, key in enumerate(missing, 1):
                self._miss(key)
                if count % YIELD_EVERY == 0:
                    await self._clock.sleep(0)
        self._stalled_since, self.error = None, None
        if self.synced:
            self._doubt_ends_s = self._clock.monotonic() + self._hold_s
        self.figures.syncs += 1
        self._synced.set()

    def _miss(self, key: str) -> None:
        """A complete listing did not name this object."""
        pending = self._pending.get(key)
        if pending is not None and (pending.latest or not pending.reached):
            # Noted after the listing began, or deleted since, or the listing is old: nobody can say yet.
            self._hold(pending, None)
            return
        self._pending.pop(key, None)
        self._show(key, None)

    def _arrive(self, key: str, obj: R) -> None:
        self.malformed.pop(key, None)
        if self._listed is not None:
            self._listed.add(key)
        pending = self._pending.get(key)
        if pending is not None:
            age = pending.compare_age(obj)
            if age == "unknown":
                self._hold(pending, obj)
                return
            if age == "older":
                pending.let_go()
                return
            del self._pending[key]
        self._show(key, obj)

    def _depart(self, ref: ObjectRef) -> None:
        key = ref.key
        self.malformed.pop(key, None)
        if self._listed is not None:
            self._listed.discard(key)
        pending = self._pending.get(key)
        if pending is not None:
            if ref.uid in pending.dead and not pending.doubted:
                return
            # With a selector this may only say that some state, perhaps an old one, was not selected.
            if not pending.is_final(ref) or (pending.latest and self._selector is not None):
                self._hold(pending, None)
                return
            del self._pending[key]
        self._show(key, None)

    def _hold(self, pending: PendingWrite[R], obj: R | None) -> None:
        self.figures.held += 1
        pending.hold(obj, self._clock.monotonic() + self._hold_s)
        self._held.set()

    async def _release(self) -> None:
        """Show what was held back, when its time has come."""
        while True:
            await self._held.wait()
            held = sorted(
                (pending.deadline, key) for key, pending in self._pending.items() if pending.deadline is not None
            )
            if not held:
                self._held.clear()
                continue
            await self._clock.sleep(held[0][0] - self._clock.monotonic())
            now = self._clock.monotonic()
            for _, key in held:
                pending = self._pending.get(key)
                if pending is not None and pending.deadline is not None and pending.deadline <= now:
                    del self._pending[key]
                    self._show(key, pending.held)

    # The cache

    def _selects(self, obj: R) -> bool:
        return self._selector is None or self._selector.matches(obj.metadata.labels)

    def _show(self, key: str, obj: R | None, *, reported: bool = False) -> None:
        """Put a state into the cache and its indexes, and notify the subscribers if it is another one."""
        old = self._objects.get(key)
        if obj is None:
            if old is None:
                return
            self._reindex(key, old, None)
            del self._objects[key]
            self._order = None
        else:
            if old is None:
                self._order = None
            elif _is_version(old, obj.metadata.uid, obj.metadata.resource_version):
                return
            self._reindex(key, old, obj)
            self._objects[key] = obj
        if old is not None and not reported:
            gone = self._selector is None and (obj is None or obj.metadata.uid != old.metadata.uid)
            self._left.leave(key, old.metadata.uid, old.metadata.resource_version, gone=gone)
        self.figures.changes += 1
        for callback in list(self._callbacks.values()):
            self._call(callback, old, obj)

    def _reindex(self, key: str, old: R | None, new: R | None) -> None:
        for name, function in self._index_functions.items():
            before = dict.fromkeys(function(old)) if old is not None else {}
            after = dict.fromkeys(function(new)) if new is not None else {}
            if before == after:
                continue
            index = self._indexes[name]
            for entry in before:
                if entry not in after:
                    del index[entry][key]
                    if not index[entry]:
                        del index[entry]
            for entry in after:
                index.setdefault(entry, {})[key] = None

    def _call(self, callback: Callback[R], old: R | None, new: R | None) -> None:
        try:
            callback(old, new)
        except Exception:  # noqa: BLE001 - one subscriber's fault must not keep the change from the others
            self.figures.callback_errors += 1
            _log.exception(
                "informer.subscriber_failed", kind=self.name, callback=getattr(callback, "__qualname__", "?")
            )


def _is_version(obj: Resource, uid: str, version: str) -> bool:
    return obj.metadata.resource_version == version and obj.metadata.uid == uid
