"""One running controller: its queue, its workers, and what happens around each reconcile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from outlive.base.clock import Clock
from outlive.base.deadline import deadline
from outlive.base.errors import Conflict, LimitExceeded, OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.base.random import Random
from outlive.runtime.controller import Controller, Requeue, Watch
from outlive.runtime.metrics import Metrics
from outlive.runtime.queue import KEYS_LIMIT, QueueClosed, WorkQueue
from outlive.runtime.tasks import OrderedTaskGroup

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
class Options:
    """How a controller is run."""

    workers: int = 1
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
        options: Options,
        *,
        clock: Clock,
        random: Random,
        ids: Ids,
        metrics: Metrics,
    ) -> None:
        self.name = controller.name
        self.watches = tuple(watches)
        self._controller = controller
        self._options = options
        self._clock = clock
        self._random = random.fork(f"queue {self.name}")
        self._ids = ids
        self._queue: WorkQueue | None = None
        self._missed = asyncio.Event()
        self._results = metrics.counter(
            "controller_reconciles_total", "Reconciles, by their result", ("controller", "result")
        )
        self._seconds = metrics.histogram("controller_reconcile_seconds", "Duration of a reconcile", ("controller",))
        self._retries = metrics.counter("controller_retries_total", "Keys put back after a failure", ("controller",))
        self._dropped = metrics.counter(
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
        ends = [watch.informer.subscribe(partial(self._changed, watch), replay=False) for watch in self.watches]
        try:
            async with OrderedTaskGroup() as group:
                workers = [
                    group.create_task(self._work(queue), name=f"{self.name} worker {number}")
                    for number in range(self._options.workers)
                ]
                fill = group.create_task(self._fill(queue), name=f"{self.name} fill")
                await asyncio.wait(workers)
                fill.cancel()
        finally:
            for end in ends:
                end()
            queue.shut_down()
            self._queue = None

    def _changed(self, watch: Watch, old: Any, new: Any) -> None:
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
                    await self._look_at(queue, key)
            finally:
                queue.done(key)

    async def _look_at(self, queue: WorkQueue, key: str) -> None:
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
        log: Callable[..., Any] = _log.warning
        try:
            with limit:
                return "ok", await self._controller.reconcile(key)
        except Conflict as error:
            _log.info("reconcile.conflict", controller=self.name, key=key, error=str(error))
            return "conflict", None
        except OutliveError as error:
            log("reconcile.refused", controller=self.name, key=key, error=str(error), code=error.code)
            return "refused", None
        except TimeoutError:
            if limit.expired:
                log("reconcile.deadline", controller=self.name, key=key, deadline_s=self._options.deadline_s)
                return "deadline", None
            _log.exception("reconcile.crashed", controller=self.name, key=key)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, counted and the key tried again
            _log.exception("reconcile.crashed", controller=self.name, key=key)
        return "crash", None
