"""Runs informers, controllers and tasks together, and keeps them running.

Order: informers, electors and plain tasks start; once every informer has synced, the controllers start, each with
its own queue filled from what the informers hold. Nothing that fails stops the process: a reconcile that fails is
logged, counted and retried with back-off; a task or informer that fails is started again with back-off; both show
in ``explain_unready``. A controller behind an elector runs only while that elector leads, and is cancelled when it
loses; two leaders at once are possible for a moment (``outlive.runtime.election``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outlive.base import Clock, Ids, Random, get_logger
from outlive.runtime.controller import Controller, ControllerOptions, ControllerRun, Watch
from outlive.runtime.election import Elector
from outlive.runtime.informer import Informer
from outlive.runtime.metrics import Metrics
from outlive.runtime.tasks import OrderedTaskGroup

SYNC_LIMIT_S: Final = 60.0
"""How long informers may take to sync before readiness says so; the manager goes on waiting."""
GRACE_S: Final = 20.0
"""How long running reconciles get to end at a stop."""
RESTART_BASE_S: Final = 0.5
"""The first wait before a failed task is started again."""
RESTART_CAP_S: Final = 60.0
"""The longest."""
UNREADY_FAILURES: Final = 3
"""Failures of a task in a row from which on the process is not ready."""

_log = get_logger("manager")


@dataclass(slots=True)
class _TaskFailure:
    """A task that failed: how often in a row, when, and why."""

    failures: int
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class _ManagedTask:
    name: str
    run: Callable[[], Awaitable[None]]
    elector: Elector | None
    after_sync: bool


class Manager:
    """See the module. Everything is added before ``run``, which is called once."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        metrics: Metrics,
        ids: Ids,
    ) -> None:
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._ids = ids
        self._informers: list[Informer[Any]] = []
        self._electors: list[Elector] = []
        self._controllers: list[tuple[ControllerRun, Elector | None]] = []
        self._tasks: list[_ManagedTask] = []
        self._troubles: dict[str, _TaskFailure] = {}
        self._stopping = asyncio.Event()
        self._started_at: float | None = None
        self._controllers_started = False
        self._restarts = metrics.add_counter("task_restarts_total", "Tasks started again after a failure", ("task",))
        metrics.register_collector(self._collect)

    # Putting together

    def list_malformed(self) -> list[tuple[str, str, str]]:
        """Kind, name and what is wrong, of every object that no informer understands."""
        return [
            (each.kind.kind(), name, why) for each in self._informers for name, why in sorted(each.malformed.items())
        ]

    def add_informer(self, informer: Informer[Any]) -> None:
        """Run this informer, and let controllers wait for it. Added twice it runs once."""
        if informer not in self._informers:
            self._informers.append(informer)

    def add_elector(self, elector: Elector) -> None:
        """Be a candidate for this role. Added twice it runs once."""
        if elector not in self._electors:
            self._electors.append(elector)

    def add_controller(
        self,
        controller: Controller,
        watches: Sequence[Watch] = (),
        workers: int = 1,
        *,
        elector: Elector | None = None,
        options: ControllerOptions = ControllerOptions(),
    ) -> ControllerRun:
        """Run this controller, while ``elector`` leads if one is given; returns the handle that takes keys.

        The watches' informers are added as well.
        """
        run = ControllerRun(
            controller,
            watches,
            workers,
            options,
            clock=self._clock,
            random=self._random,
            ids=self._ids,
            metrics=self._metrics,
        )
        for watch in watches:
            self.add_informer(watch.informer)
        if elector is not None:
            self.add_elector(elector)
        self._controllers.append((run, elector))
        return run

    def add_task(
        self,
        name: str,
        run: Callable[[], Awaitable[None]],
        *,
        elector: Elector | None = None,
        after_sync: bool = False,
    ) -> None:
        """Run a task beside the controllers; one that returns has done its work, one that fails is started again.

        It starts at once, unless ``after_sync``, or an elector, says to wait.
        """
        if elector is not None:
            self.add_elector(elector)
        self._tasks.append(_ManagedTask(name, run, elector, after_sync or elector is not None))

    # How it is

    @property
    def ready(self) -> bool:
        """Whether everything runs as it should: started, synced, nothing that keeps failing, not stopping."""
        return not self.explain_unready()

    def explain_unready(self) -> tuple[str, ...]:
        """Why it is not ready, one line each; empty when it is."""
        if self._started_at is None:
            return ("not started",)
        if self._stopping.is_set():
            return ("stopping",)
        waited_s = self._clock.monotonic() - self._started_at
        late = f" for {waited_s:.0f} s" if waited_s >= SYNC_LIMIT_S else ""
        reasons = [f"informer {each.name} has not synced{late}" for each in self._informers if not each.synced]
        if not reasons and not self._controllers_started:
            reasons.append("controllers are starting")
        now = self._clock.monotonic()
        for name, trouble in self._troubles.items():
            if trouble.failures >= UNREADY_FAILURES and now - trouble.at < 2 * RESTART_CAP_S:
                reasons.append(f"{name} failed {trouble.failures} times in a row: {trouble.why}")
        return tuple(reasons)

    def stop(self) -> None:
        """Let running reconciles end, for ``GRACE_S`` at most, and then end ``run``."""
        self._stopping.set()

    # Running

    async def run(self) -> None:
        """Run everything until ``stop`` or cancellation."""
        self._started_at = self._clock.monotonic()
        plan: list[tuple[str, Callable[[], Awaitable[None]], bool]] = []
        plan += [(f"informer {each.name}", each.run, True) for each in self._informers]
        plan += [(f"elector {each.role}", each.run, True) for each in self._electors]
        plan += [(f"task {each.name}", each.run, False) for each in self._tasks if not each.after_sync]
        async with OrderedTaskGroup() as group:
            running = [group.create_task(self._supervise(name, run, endless), name=name) for name, run, endless in plan]
            stop = group.create_task(self._stopping.wait(), name="stop")
            sync = group.create_task(self._wait_synced(), name="sync")
            await asyncio.wait([stop, sync], return_when=asyncio.FIRST_COMPLETED)
            working: list[tuple[ControllerRun | None, asyncio.Task[None]]] = []
            if not stop.done():
                working = self._start_working(group)
                self._controllers_started = True
            await stop
            _log.info("manager.stopping", grace_s=GRACE_S)
            await self._drain(working)
            for task in [sync, *(task for _, task in working), *running]:
                task.cancel()

    def _start_working(self, group: OrderedTaskGroup) -> list[tuple[ControllerRun | None, asyncio.Task[None]]]:
        working: list[tuple[ControllerRun | None, asyncio.Task[None]]] = []
        for controller, elector in self._controllers:
            name = f"controller {controller.name}"
            run = _gate(elector, controller.run)
            working.append((controller, group.create_task(self._supervise(name, run, False), name=name)))
        for task in self._tasks:
            if task.after_sync:
                name = f"task {task.name}"
                run = _gate(task.elector, task.run)
                working.append((None, group.create_task(self._supervise(name, run, False), name=name)))
        return working

    async def _wait_synced(self) -> None:
        for informer in self._informers:
            assert self._started_at is not None
            left_s = max(0.0, self._started_at + SYNC_LIMIT_S - self._clock.monotonic())
            try:
                async with asyncio.timeout(left_s):
                    await informer.wait_synced()
            except TimeoutError:
                _log.error("manager.not_synced", informer=informer.name, limit_s=SYNC_LIMIT_S)
                await informer.wait_synced()

    async def _drain(self, working: Sequence[tuple[ControllerRun | None, asyncio.Task[None]]]) -> None:
        """Running controllers take no more keys and get ``GRACE_S``; whatever else there is is cancelled."""
        waiting: list[asyncio.Task[None]] = []
        for controller, task in working:
            if controller is not None and controller.active:
                controller.drain()
                waiting.append(task)
            else:
                task.cancel()
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=GRACE_S)
            if late:
                _log.warning("manager.cut_off", tasks=sorted(task.get_name() for task in late))

    async def _supervise(self, name: str, run: Callable[[], Awaitable[None]], endless: bool) -> None:
        """Run it, and after a failure again, each time after a longer wait up to ``RESTART_CAP_S``."""
        while not self._stopping.is_set() or endless:
            started_at = self._clock.monotonic()
            try:
                await run()
                if not endless:
                    return
                why = "it ended"
                _log.error("task.ended", task=name)
            except Exception as error:  # noqa: BLE001 - logged, counted, started again, shown in readiness
                why = f"{type(error).__name__}: {error}"
                _log.exception("task.failed", task=name)
            now = self._clock.monotonic()
            before = self._troubles.get(name)
            healthy = before is None or now - started_at > RESTART_CAP_S
            trouble = _TaskFailure(1 if healthy or before is None else before.failures + 1, now, why)
            self._troubles[name] = trouble
            self._restarts.labels(name).inc()
            await self._clock.sleep(self._random.backoff_seconds(trouble.failures, RESTART_BASE_S, RESTART_CAP_S))

    def _collect(self) -> list[Metric]:
        depth = GaugeMetricFamily("controller_queue_depth", "Keys that wait for a worker", labels=["controller"])
        for controller, _ in self._controllers:
            depth.add_metric([controller.name], controller.depth)
        leads = GaugeMetricFamily("election_leader", "1 while this process leads the role", labels=["role"])
        for elector in self._electors:
            leads.add_metric([elector.role], float(elector.is_leader))
        return [depth, leads, *informer_metrics(self._informers)]


def _gate(elector: Elector | None, run: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    if elector is None:
        return run

    async def run_gated() -> None:
        """Run while leading; cancelled on loss, begun again on the next win, over when ``run`` returns."""
        while True:
            await elector.wait_leader()
            async with OrderedTaskGroup() as group:
                work = group.create_task(_await_run(run), name=f"leading {elector.role}")
                lost = group.create_task(elector.wait_lost(), name=f"losing {elector.role}")
                await asyncio.wait([work, lost], return_when=asyncio.FIRST_COMPLETED)
                ended = work.done()
                work.cancel()
                lost.cancel()
            if ended:
                return

    return run_gated


async def _await_run(run: Callable[[], Awaitable[None]]) -> None:
    await run()


def informer_metrics(informers: Sequence[Informer[Any]]) -> list[Metric]:
    """What informers count, and how long each has been in doubt."""
    gauges = {
        "objects": GaugeMetricFamily("informer_objects", "Objects in the cache", labels=["kind"]),
        "synced": GaugeMetricFamily("informer_synced", "1 once a listing was complete", labels=["kind"]),
        "stalled": GaugeMetricFamily("informer_stalled_seconds", "Time that the cache is in doubt", labels=["kind"]),
    }
    counts = {
        field: CounterMetricFamily(f"informer_{field}", doc, labels=["kind"])
        for field, doc in (
            ("changes", "Changes of the cache"),
            ("resets", "Lost streams and resets"),
            ("errors", "Streams that ended in an error"),
            ("callback_errors", "Subscribers that failed"),
            ("held", "Arrivals held back behind a noted write"),
        )
    }
    for informer in informers:
        gauges["objects"].add_metric([informer.name], len(informer))
        gauges["synced"].add_metric([informer.name], float(informer.synced))
        gauges["stalled"].add_metric([informer.name], informer.stalled_s())
        for field, metric in counts.items():
            metric.add_metric([informer.name], getattr(informer.figures, field))
    return [*gauges.values(), *counts.values()]
