"""Controllers: what one is, its queue of keys, its workers, and what happens around each reconcile.

A controller looks at one key, compares the world with what is wanted, acts, and says when to look again. A reconcile is
level-triggered: it reads the world and not the event that woke it, so running it twice changes nothing, and a lost or
doubled key does no harm. It may be cancelled at any ``await``.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from outlive.base import (
    Clock,
    Ids,
    InUse,
    LimitExceeded,
    OutliveError,
    Random,
    deadline,
    get_logger,
    new_global_request_id,
    request_context,
)
from outlive.resources import Resource
from outlive.runtime.informer import Informer
from outlive.runtime.metrics import Metrics
from outlive.runtime.tasks import OrderedTaskGroup


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look at this key again after so many seconds, even if nothing changes."""

    after_s: float


class Controller(Protocol):
    """See the module."""

    @property
    def name(self) -> str:
        """One short word with dashes; logs, metrics and request ids have it."""
        ...

    async def reconcile(self, key: str) -> Requeue | None:
        """Bring one key to what is wanted. Any error is logged, counted and retried with back-off."""
        ...


Keys = Callable[[Any, Any], Iterable[str]]
"""From the state before and after a change (``None`` for absent) to the keys that need a look."""


def own_name(old: Resource | None, new: Resource | None) -> Iterable[str]:
    """The changed object's own name."""
    obj = new if new is not None else old
    return () if obj is None else (obj.name,)


@dataclass(frozen=True, slots=True)
class Watch:
    """Changes of one informer's objects, and the keys that each asks to look at."""

    informer: Informer[Any]
    keys: Keys = own_name


KEYS_LIMIT: Final = 1_000_000
"""Keys that a queue holds at most, waiting, delayed or with a worker, unless asked otherwise."""


LEAST_S: Final = 0.001
"""The shortest delay of a key, and the shortest sleep: in a shorter one a clock may not move at all."""


class QueueClosed(Exception):
    """The queue was shut down: no more keys."""


class WorkQueue:
    """See the module. ``base_s`` is the first back-off of ``retry``, ``cap_s`` the longest."""

    def __init__(
        self, clock: Clock, random: Random, *, base_s: float = 0.5, cap_s: float = 300.0, limit: int = KEYS_LIMIT
    ) -> None:
        self._clock = clock
        self._random = random
        self._base_s = base_s
        self._cap_s = cap_s
        self._limit = limit
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._working: dict[str, bool] = {}
        """Keys with a worker; true when the key was added again meanwhile."""
        self._due: dict[str, float] = {}
        self._timers: list[tuple[float, int, str]] = []
        self._failures: dict[str, int] = {}
        self._order = itertools.count()
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._closed = False

    def __len__(self) -> int:
        """Keys that wait for a worker now, without the delayed ones."""
        self._admit_due()
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """Keys whose time has not come."""
        return len(self._due)

    @property
    def working(self) -> int:
        """Keys that a worker has."""
        return len(self._working)

    def count_failures(self, key: str) -> int:
        """How often the key was retried since it was last forgotten."""
        return self._failures.get(key, 0)

    def add(self, key: str) -> None:
        """Have a look at the key soon. ``LimitExceeded`` when the queue is full; nothing after ``shut_down``."""
        if self._closed or key in self._ready:
            return
        if key in self._working:
            self._working[key] = True
            return
        self._check_room(key)
        self._ready[key] = None
        self._wake_waiter()

    def add_after(self, key: str, seconds: float) -> None:
        """Have a look in ``seconds``; of several such requests for a key the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        if self._closed:
            return
        when = self._clock.monotonic() + max(seconds, LEAST_S)
        if key in self._due and self._due[key] <= when:
            return
        self._check_room(key)
        self._due[key] = when
        heapq.heappush(self._timers, (when, next(self._order), key))
        self._wake_waiter()

    def retry(self, key: str) -> float:
        """Have another look after a back-off that doubles with each retry of the key; returns its seconds."""
        count = self._failures.get(key, 0) + 1
        self._failures[key] = count
        seconds = self._random.backoff_seconds(count, self._base_s, self._cap_s)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: str) -> None:
        """The key is well: the next retry starts with the first back-off again."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """The next key, which is then the caller's until ``finish``. ``QueueClosed`` after ``shut_down``."""
        while True:
            if self._closed:
                raise QueueClosed
            self._admit_due()
            if self._ready:
                key, _ = self._ready.popitem(last=False)
                self._working[key] = False
                if self._ready or self._timers:
                    # This worker slept until the next delayed key; somebody else has to now.
                    self._wake_waiter()
                return key
            await self._wait()

    def finish(self, key: str) -> None:
        """The worker has finished with the key, however it went."""
        again = self._working.pop(key, False)
        if again and not self._closed:
            self._ready[key] = None
            self._wake_waiter()

    def shut_down(self) -> None:
        """Drop what waits and let every ``get`` raise; keys with workers are theirs until ``finish``."""
        self._closed = True
        self._ready.clear()
        self._due.clear()
        self._timers.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _check_room(self, key: str) -> None:
        if key in self._due or key in self._working:
            return
        if len(self._ready) + len(self._working) + len(self._due) >= self._limit:
            raise LimitExceeded(
                f"the work queue is full: {self._limit} keys wait", remedy="look why the controller is slow"
            )

    def _admit_due(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            when, _, key = heapq.heappop(self._timers)
            if self._due.get(key) != when:
                continue
            del self._due[key]
            if key in self._working:
                self._working[key] = True
            else:
                self._ready[key] = None

    def _wake_waiter(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _wait(self) -> None:
        """Until something was added, or the time of the next delayed key has come."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        sleeper: asyncio.Task[None] | None = None
        if self._timers:
            seconds = max(self._timers[0][0] - self._clock.monotonic(), LEAST_S)
            sleeper = asyncio.get_running_loop().create_task(_sleep_and_wake(self._clock, seconds, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._waiters.pop(waiter)
                self._wake_waiter()
            raise
        finally:
            self._waiters.pop(waiter, None)
            if sleeper is not None:
                sleeper.cancel()


async def _sleep_and_wake(clock: Clock, seconds: float, waiter: asyncio.Future[None]) -> None:
    await clock.sleep(seconds)
    if not waiter.done():
        waiter.set_result(None)


DEADLINE_S: Final = 300.0
"""How long one reconcile may take, unless its controller is given another limit."""
RETRY_BASE_S: Final = 0.5
"""The first wait before a failed key is tried again."""
RETRY_CAP_S: Final = 300.0
"""The longest."""
FILL_STEP: Final = 500
"""Objects whose keys are queued before others get their turn."""

ROOM_S: Final = 1.0
"""How long to wait for room in a full queue before looking again."""

_log = get_logger("controller")


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """How a controller is run."""

    keys: tuple[str, ...] = ()
    """Keys that are looked at when the controller starts, whatever the watches say."""
    deadline_s: float = DEADLINE_S
    retry_base_s: float = RETRY_BASE_S
    retry_cap_s: float = RETRY_CAP_S
    keys_limit: int = KEYS_LIMIT


class ControllerRun:
    """See the module. ``run`` may be called again after it has ended, and then begins with a full queue."""

    def __init__(
        self,
        controller: Controller,
        watches: Sequence[Watch],
        workers: int,
        options: ControllerOptions,
        *,
        clock: Clock,
        random: Random,
        ids: Ids,
        metrics: Metrics,
    ) -> None:
        self.name = controller.name
        self.watches = tuple(watches)
        self._controller = controller
        self._workers = workers
        self._options = options
        self._clock = clock
        self._random = random.fork(f"queue {self.name}")
        self._ids = ids
        self._queue: WorkQueue | None = None
        self._missed = asyncio.Event()
        self._results = metrics.add_counter(
            "controller_reconciles_total", "Reconciles, by their result", ("controller", "result")
        )
        self._seconds = metrics.add_histogram(
            "controller_reconcile_seconds", "Duration of a reconcile", ("controller",)
        )
        self._retries = metrics.add_counter(
            "controller_retries_total", "Keys put back after a failure", ("controller",)
        )
        self._dropped = metrics.add_counter(
            "controller_keys_dropped_total", "Keys that found the queue full; all are looked at later", ("controller",)
        )

    @property
    def active(self) -> bool:
        """Whether it is running."""
        return self._queue is not None

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._queue) if self._queue is not None else 0

    def add(self, key: str) -> None:
        """Have a look at the key soon. While the controller is not running this does nothing: it starts with all."""
        if self._queue is None:
            return
        try:
            self._queue.add(key)
        except LimitExceeded:
            self._missed.set()
            self._dropped.labels(self.name).inc()

    def add_after(self, key: str, seconds: float) -> None:
        """Have a look in ``seconds``, while it is running."""
        if self._queue is not None:
            self._queue.add_after(key, seconds)

    def drain(self) -> None:
        """Take no more keys and end when the running reconciles have."""
        if self._queue is not None:
            self._queue.shut_down()

    async def run(self) -> None:
        """Work until drained or cancelled."""
        queue = WorkQueue(
            self._clock,
            self._random,
            base_s=self._options.retry_base_s,
            cap_s=self._options.retry_cap_s,
            limit=self._options.keys_limit,
        )
        self._queue = queue
        ends = [watch.informer.subscribe(partial(self._on_change, watch), replay=False) for watch in self.watches]
        try:
            async with OrderedTaskGroup() as group:
                workers = [
                    group.create_task(self._work(queue), name=f"{self.name} worker {number}")
                    for number in range(self._workers)
                ]
                fill = group.create_task(self._fill(queue), name=f"{self.name} fill")
                await asyncio.wait(workers)
                fill.cancel()
        finally:
            for end in ends:
                end()
            queue.shut_down()
            self._queue = None

    def _on_change(self, watch: Watch, old: Any, new: Any) -> None:
        for key in watch.keys(old, new):
            self.add(key)

    async def _fill(self, queue: WorkQueue) -> None:
        """Queue every key there is, and once more whenever a key has found the queue full."""
        while True:
            self._missed.clear()
            for count, key in enumerate(self._all_keys(), 1):
                await self._add_when_room(queue, key)
                if count % FILL_STEP == 0:
                    await self._clock.sleep(0)
            await self._missed.wait()

    def _all_keys(self) -> Iterator[str]:
        yield from self._options.keys
        for watch in self.watches:
            for obj in watch.informer.items():
                yield from watch.keys(None, obj)

    async def _add_when_room(self, queue: WorkQueue, key: str) -> None:
        while True:
            try:
                queue.add(key)
            except LimitExceeded:
                await self._clock.sleep(ROOM_S)
            else:
                return

    async def _work(self, queue: WorkQueue) -> None:
        while True:
            try:
                key = await queue.get()
            except QueueClosed:
                return
            try:
                with request_context(greq=new_global_request_id(self._ids, self.name), req=""):
                    await self._process_key(queue, key)
            finally:
                queue.finish(key)

    async def _process_key(self, queue: WorkQueue, key: str) -> None:
        start = self._clock.monotonic()
        result, requeue = await self._reconcile(key)
        self._seconds.labels(self.name).observe(max(0.0, self._clock.monotonic() - start))
        self._results.labels(self.name, result).inc()
        if result != "ok":
            self._retries.labels(self.name).inc()
            queue.retry(key)
            return
        queue.forget(key)
        if requeue is not None:
            queue.add_after(key, requeue.after_s)

    async def _reconcile(self, key: str) -> tuple[str, Requeue | None]:
        """One reconcile, and its result: ok, conflict, refused (an error of ours), deadline or crash."""
        limit = deadline(self._options.deadline_s)
        try:
            with limit:
                return "ok", await self._controller.reconcile(key)
        except InUse as error:  # somebody else wrote it meanwhile
            _log.info("reconcile.conflict", controller=self.name, key=key, error=str(error))
            return "conflict", None
        except OutliveError as error:
            _log.warning("reconcile.refused", controller=self.name, key=key, error=str(error), code=error.code)
            return "refused", None
        except TimeoutError:
            if limit.expired:
                _log.warning("reconcile.deadline", controller=self.name, key=key, deadline_s=self._options.deadline_s)
                return "deadline", None
            _log.exception("reconcile.crashed", controller=self.name, key=key)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, counted and the key tried again
            _log.exception("reconcile.crashed", controller=self.name, key=key)
        return "crash", None
