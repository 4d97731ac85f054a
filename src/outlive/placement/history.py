"""The history of placement: one object for each VM with its last answers, and why they were given.

Writing it delays no call and fails none: what an answer says is taken in its turn, and one task writes it from a
bounded queue. Where the store is slower than the calls, records are lost and counted
(docs/reference/placement.md#history).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from outlive.base import Clock, Conflict, NotFound, OutliveError, as_instant, get_logger
from outlive.placement.explanation import Explanation, explain, explanation_text
from outlive.placement.ranking import Ranking
from outlive.placement.request import PlacementRequest
from outlive.resources import (
    DECISIONS_KEPT,
    Condition,
    ObjectMeta,
    ObjectRef,
    PlacementDecision,
    PlacementHistory,
    PlacementHistorySpec,
    PlacementHistoryStatus,
    find_condition,
    history_name,
)
from outlive.runtime import BackgroundWriter, EventRecorder, Periodic, Waiting, log_errors
from outlive.store import Store, compare_and_swap, list_all

QUEUE_LIMIT: Final = 5_000
"""Answers that wait to be written."""
HOSTS_KEPT: Final = 3
"""Hosts of an answer that are kept."""
CLEANUP_S: Final = 3600.0
"""How often histories of what is gone are looked for."""
GRACE_S: Final = 86400.0
"""For how long after its last answer a history stays in any case: a VM that found no host runs nowhere."""
TICK_S: Final = 1e-6
"""By so much later at least each answer of a process is than the one before."""
_log = get_logger("placement")


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one run, before it is put into words."""

    resource_id: str
    zone: str
    at: float
    pipeline: str
    intent: str
    target: str = ""
    hosts: tuple[str, ...] = ()
    facts: Explanation | None = None
    error: str = ""


def answer_of(ranking: Ranking, at: float, order: tuple[str, ...] = ()) -> RecordedRun:
    """What is kept of a run that took place, in its turn. ``order``: the hosts of the answer, if they were permuted."""
    request = ranking.run.request
    best = order[:HOSTS_KEPT] or tuple(ranking.names_at(ranking.order[:HOSTS_KEPT]))
    return RecordedRun(
        resource_id=request.resource_id,
        zone=request.zone,
        at=at,
        pipeline=ranking.pipeline,
        intent=request.intent.value,
        target=best[0] if best else "",
        hosts=best,
        facts=explain(ranking),
    )


def with_answer(kept: PlacementHistory | None, answer: RecordedRun) -> PlacementHistory | None:
    """The history with one more answer, ``None`` where it has it already: the write before was applied."""
    moment = datetime.fromtimestamp(answer.at, UTC)
    status = kept.status if kept is not None else PlacementHistoryStatus()
    if any(one.timestamp == moment for one in (status.current, *status.history) if one is not None):
        return None
    decision = PlacementDecision(
        timestamp=moment,
        pipeline_ref=ObjectRef(kind="Pipeline", name=answer.pipeline),
        intent=answer.intent,
        successful=bool(answer.target),
        target_host=answer.target,
        ordered_hosts=answer.hosts,
        explanation=_render_answer(answer),
    )
    earlier = status.history
    if status.current is not None:
        earlier = (*earlier, msgspec.structs.replace(status.current, target_host="", explanation=""))
    if answer.target:
        ready = Condition(type="Ready", status="True", reason="SchedulingSucceeded")
    elif answer.error:
        ready = Condition(type="Ready", status="False", reason="PipelineRunFailed", message=answer.error)
    else:
        ready = Condition(type="Ready", status="False", reason="NoHostFound", message="no host passed all filters")
    before = find_condition(status.conditions, "Ready")
    since = moment if before is None or before.status != ready.status else before.last_transition_time
    return PlacementHistory(
        metadata=kept.metadata if kept is not None else ObjectMeta(name=history_name(answer.resource_id)),
        spec=PlacementHistorySpec(resource_id=answer.resource_id, availability_zone=answer.zone),
        status=PlacementHistoryStatus(
            current=decision,
            history=earlier[-DECISIONS_KEPT:],
            conditions=(msgspec.structs.replace(ready, last_transition_time=since),),
        ),
    )


def _render_answer(answer: RecordedRun) -> str:
    return explanation_text(answer.facts) if answer.facts is not None else f"{answer.error}."


class HistoryWriter(BackgroundWriter[RecordedRun]):
    """Writes the history of one process's answers."""

    what = "placement-history"

    def __init__(self, store: Store, *, clock: Clock, events: EventRecorder | None = None) -> None:
        """``events``: where it is said which host was chosen, or that there was none."""
        super().__init__(clock, limit=QUEUE_LIMIT)
        self._store = store
        self._events = events
        self._numbers = itertools.count()
        self._last = 0.0

    def record(self, ranking: Ranking, order: tuple[str, ...] = ()) -> None:
        """Keep what a run answered."""
        if _leaves_history(ranking.run.request):
            self._keep(answer_of(ranking, self._next_moment(), order))

    def record_refusal(self, request: PlacementRequest, error: OutliveError) -> None:
        """Keep that a run was refused as a whole."""
        if _leaves_history(request):
            self._keep(
                RecordedRun(
                    resource_id=request.resource_id,
                    zone=request.zone,
                    at=self._next_moment(),
                    pipeline=request.pipeline,
                    intent=request.intent.value,
                    error=str(error),
                )
            )

    def _keep(self, answer: RecordedRun) -> None:
        self.put(next(self._numbers), lambda _now: answer)
        if self._events is None:
            return
        vm = ObjectRef(kind="VirtualMachine", name=answer.resource_id)
        if answer.target:
            self._events.emit(vm, "SchedulingSucceeded", f"{answer.target} is chosen", action="Placing")
            return
        reason = "PipelineRunFailed" if answer.error else "NoHostFound"
        self._events.emit(vm, reason, _render_answer(answer), type="Warning", action="Placing")

    def _next_moment(self) -> float:
        """When it was answered; later than all before, so that answers are told apart and stay in order."""
        self._last = max(self._clock.now(), self._last + TICK_S)
        return self._last

    def prepare_write(self, waiting: Waiting[RecordedRun]) -> Callable[[], Awaitable[object]]:
        """Add the answer to its history."""
        answer = waiting.item
        return lambda: compare_and_swap(
            self._store,
            PlacementHistory,
            history_name(answer.resource_id),
            lambda kept: with_answer(kept, answer),
            clock=self._clock,
        )


def _leaves_history(request: PlacementRequest) -> bool:
    options = request.options
    return bool(request.resource_id) and not (options.skip_history or options.read_only)


class HistoryCleanup:
    """Removes histories of what is gone, every hour. ``known``: ids of all VMs, and names of all reservations."""

    def __init__(self, store: Store, known: Callable[[], Awaitable[frozenset[str]]], *, clock: Clock) -> None:
        self.deleted = 0
        """Histories deleted so far."""
        self._store = store
        self._known = known
        self._clock = clock

    async def run(self) -> None:
        """Clean up until cancelled; what fails is tried again an hour later."""
        failed = log_errors(_log, "placement.history_kept")
        await Periodic(self.clean, CLEANUP_S, clock=self._clock, wait_first=True, failed=failed).run()

    async def clean(self) -> None:
        """Delete what nobody will ask for any more."""
        known = await self._known()
        gone = [one async for one in list_all(self._store, PlacementHistory) if is_stale(one, known, self._clock.now())]
        for one in gone:
            try:
                await self._store.delete(one.ref, uid=one.metadata.uid, version=one.metadata.resource_version)
                self.deleted += 1
            except (Conflict, NotFound):
                _log.debug("placement.history_changed", name=one.name)


def is_stale(history: PlacementHistory, known: frozenset[str], now: float) -> bool:
    """Whether it is of nobody that exists, and its last answer is old."""
    current = history.status.current
    last = as_instant(current.timestamp) if current is not None else 0.0
    return history.spec.resource_id not in known and now - last > GRACE_S
