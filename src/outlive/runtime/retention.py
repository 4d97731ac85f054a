"""Objects that are only kept for a while: one task writes them, another deletes the old ones and the oldest beyond a
number.
"""

from __future__ import annotations

import abc
import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from outlive.base import Clock, Conflict, Instant, NotFound, OutliveError, as_instant, get_logger
from outlive.resources import ObjectRef, R, encode
from outlive.runtime.periodic import Periodic, log_errors
from outlive.store import Store, StoreUsage, list_all, owner_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from outlive.runtime.metrics import Metrics

ATTEMPTS: Final = 4
"""Writes of one object before it is dropped."""
RETRY_S: Final = 0.5
"""The wait before the second attempt; it doubles."""
FLUSH_S: Final = 10.0
"""How long the end of a process waits for its last objects."""
SWEEP_S: Final = 60.0
"""How often old objects are looked for."""
SWEEP_STEP: Final = 500
"""Objects deleted before the sweeper rests."""
SWEEP_REST_S: Final = 1.0
"""How long it rests when there is more to delete."""

T = TypeVar("T")
_log = get_logger("retention")


@dataclass(slots=True)
class Waiting(Generic[T]):
    """What was said ``count`` times and is not written yet."""

    item: T
    count: int
    last: Instant


class BackgroundWriter(abc.ABC, Generic[T]):
    """Writes in one task; nobody waits for it: where its queue is full or the store away, items are dropped."""

    what: str
    """What it writes, for the log."""

    def __init__(self, clock: Clock, *, limit: int) -> None:
        self.dropped = 0
        """Items lost, because the queue was full or the store away."""
        self.written = 0
        """Items written."""
        self._clock = clock
        self._limit = limit
        self._waiting: OrderedDict[Hashable, Waiting[T]] = OrderedDict()
        self._some = asyncio.Event()

    @abc.abstractmethod
    def prepare_write(self, waiting: Waiting[T]) -> Callable[[], Awaitable[object]]:
        """One attempt to write it, which may be made again."""

    def drop_item(self, item: T) -> None:
        """The item will not be written; a writer whose caller has to know says so here."""

    def put(self, key: Hashable, make: Callable[[Instant], T]) -> bool:
        """Add an item; one of the same key that waits is counted instead. False: there is no room, it is dropped."""
        now = self._clock.now()
        if (waiting := self._waiting.get(key)) is not None:
            waiting.count, waiting.last = waiting.count + 1, now
        elif len(self._waiting) >= self._limit:
            self.dropped += 1
            return False
        else:
            self._waiting[key] = Waiting(make(now), 1, now)
            self._some.set()
        return True

    def expose(self, metrics: Metrics) -> None:
        """Show what was written and dropped as metrics."""
        metrics.register_collector(self._collect)

    def _collect(self) -> list[Metric]:
        from prometheus_client.core import CounterMetricFamily

        name = self.what.replace("-", "_")
        dropped = f"{self.what}: lost to a full queue or an absent store"
        return [
            CounterMetricFamily(f"{name}_written", f"{self.what}: written", value=self.written),
            CounterMetricFamily(f"{name}_dropped", dropped, value=self.dropped),
        ]

    async def run(self) -> None:
        """Write what was put, until cancelled."""
        while True:
            await self._some.wait()
            if not self._waiting:
                self._some.clear()
                continue
            await self._write(self._waiting.popitem(last=False)[1])

    async def flush(self) -> None:
        """Write what waits now, for ``FLUSH_S`` at most; for the end of a process. What is left is dropped."""
        waiting: Waiting[T] | None = None
        try:
            async with asyncio.timeout(FLUSH_S):
                for _ in range(len(self._waiting)):
                    if not self._waiting:
                        return
                    _, waiting = self._waiting.popitem(last=False)
                    await self._write(waiting)
        except TimeoutError:
            lost = sum(each.count for each in (waiting, *self._waiting.values()) if each is not None)
            self._waiting.clear()
            self.dropped += lost
            _log.warning("writer.not_flushed", what=self.what, limit_s=FLUSH_S, count=lost)

    async def _write(self, waiting: Waiting[T]) -> None:
        write = self.prepare_write(waiting)
        for attempt in range(ATTEMPTS):
            try:
                await write()
            except OutliveError as error:
                _log.info("writer.not_written", what=self.what, error=str(error))
                await self._clock.sleep(RETRY_S * 2.0**attempt)
            else:
                self.written += 1
                return
        self.dropped += waiting.count
        _log.warning("writer.dropped", what=self.what, attempts=ATTEMPTS, count=waiting.count)
        self.drop_item(waiting.item)


class _DeletableObject(NamedTuple):
    """An object that may be deleted."""

    seen: Instant
    ref: ObjectRef
    version: str
    owner: str
    size_bytes: int


class Sweeper(Generic[R]):
    """Keeps objects of one kind for ``keep_s`` seconds, at most ``keep`` of them, and of each owner at most half of its
    share of the kind's quota, so that an owner who has much displaces only its own. ``seen`` says when an object was
    written last; ``None``: it is kept whatever its age."""

    def __init__(
        self,
        store: Store,
        kind: type[R],
        *,
        seen: Callable[[R], datetime | None],
        keep_s: float,
        keep: int,
        clock: Clock,
        every_s: float = SWEEP_S,
    ) -> None:
        self.deleted = 0
        """Objects deleted so far."""
        self._store = store
        self._kind = kind
        self._seen = seen
        self._keep_s = keep_s
        self._most = keep
        self._clock = clock
        self._every_s = every_s

    async def run(self) -> None:
        """Sweep until cancelled. Errors of the store only end a step."""
        failed = log_errors(_log, "sweeper.failed", kind=self._kind.kind())
        await Periodic(self._sweep_step, self._every_s, clock=self._clock, failed=failed).run()

    async def _sweep_step(self) -> float | None:
        return SWEEP_REST_S if await self.sweep() == SWEEP_STEP else None

    async def sweep(self) -> int:
        """One step: delete up to ``SWEEP_STEP`` objects, the oldest first; returns how many it tried to delete."""
        quota, kept = self._kind.info.quota, list[_DeletableObject]()
        async for each in list_all(self._store, self._kind):
            if (seen := self._seen(each)) is not None:
                raw = encode(each) if quota.owners else b""
                version = each.metadata.resource_version
                kept.append(
                    _DeletableObject(as_instant(seen), each.ref, version, owner_of(raw, quota.owners), len(raw))
                )
        kept.sort(key=lambda each: (each.seen, each.ref.name), reverse=True)
        most, most_bytes = quota.get_limits(shared=True)
        oldest, uses = self._clock.now() - self._keep_s, dict[str, StoreUsage]()
        expired: list[_DeletableObject] = []
        for number, one in enumerate(kept):
            use = uses.setdefault(one.owner, StoreUsage())
            use.objects, use.size_bytes = use.objects + 1, use.size_bytes + one.size_bytes
            beyond = one.owner and (2 * use.objects > most or 2 * use.size_bytes > most_bytes)
            if one.seen < oldest or number >= self._most or beyond:
                expired.append(one)
        expired = expired[::-1][:SWEEP_STEP]
        for _, ref, version, _, _ in expired:
            try:
                await self._store.delete(ref, uid=ref.uid, version=version)
                self.deleted += 1
            except (Conflict, NotFound):
                _log.debug("sweeper.changed", kind=ref.kind, name=ref.name)
        return len(expired)
