"""The storage agent: each tick it compares the DRBD of its node with what Kubernetes believes, and repairs the
difference.

A tick has one reference time and one state; its four decisions are pure functions, whose inputs are kept where they
asked for something. The agent remembers nothing that must not be lost: after a restart timers begin anew. A clock that
jumps begins them anew too, so that a jump never is taken for time that has passed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from outlive.base import Clock, Random, as_datetime, get_logger
from outlive.resources import ObjectRef, encode_canonical
from outlive.runtime import ClusterEvents, ClusterVerbs, Decision, DecisionLog, OrderedTaskGroup, Periodic, Use
from outlive.storage.calls import DrbdTool
from outlive.storage.cluster_cache import ClusterCache
from outlive.storage.drbd import CONNECTED, MAJORITY, promotion_facts
from outlive.storage.executor import PlanExecutor, PlanOutcome
from outlive.storage.explain import StorageExplainInput, StorageExplanation, Subject, explain_subject
from outlive.storage.failover import FAILOVER, is_lost_to
from outlive.storage.metrics import (
    AgentMetrics,
    ApiFailure,
    HealthAnswer,
    HealthInput,
    VolumeState,
    check_health,
    describe_troubles,
)
from outlive.storage.objects import NODE, POD, ObjectView
from outlive.storage.observer import DrbdObserver
from outlive.storage.options import AgentFlags
from outlive.storage.own_node import FORCED_ERRORS_DECISION, OWN_TAINTS, SUSPENDED
from outlive.storage.tick import KubernetesObjects, OwnRules, Plan, TickInput, TickResult, TickView, parse_time
from outlive.store import Store, StoreTroubles

JUMP_S: Final = 2.0
"""A wall clock that goes so much faster or slower than time between two ticks has jumped."""
JUMP_SHOWN_S: Final = 300.0
"""Explanations say so long that it has."""
TROUBLES_S: Final = 5.0
"""How often it is looked whether something is wrong."""
STOP_S: Final = 5.0
"""A running tick may take so long to its end when the agent stops."""
USES_KEPT: Final = 40
"""Decisions that asked for something, whose input is kept for replay."""
USES_BYTES: Final = 4 * 2**20
"""All of their inputs together."""
_TICK_DECISIONS: Final[tuple[Decision[TickInput, TickResult], ...]] = (
    FAILOVER,
    SUSPENDED,
    FORCED_ERRORS_DECISION,
    OWN_TAINTS,
)
_log = get_logger("storage.agent")


class StorageAgent:
    """See the module. ``run`` until cancelled or until ``stop``."""

    def __init__(
        self,
        flags: AgentFlags,
        *,
        store: Store,
        verbs: ClusterVerbs,
        events: ClusterEvents,
        drbd: DrbdTool,
        clock: Clock,
        random: Random,
        metrics: AgentMetrics,
    ) -> None:
        self._flags = flags
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._standbys: set[tuple[str, str]] = set()
        self.cache = ClusterCache(flags, store, clock, random.fork("cache"))
        self.observer = DrbdObserver(flags, drbd, clock, random.fork("drbd"), metrics)
        self._executor = PlanExecutor(
            flags,
            store=store,
            verbs=verbs,
            events=events,
            drbd=drbd,
            clock=clock,
            metrics=metrics,
            is_proven=self._is_proven,
        )
        self._log = DecisionLog(clock)
        self._log.listen(self._keep)
        self._uses: deque[Use] = deque(maxlen=USES_KEPT)
        self._memories: dict[str, Any] = {}
        self._results: dict[str, TickResult] = {}
        self._outcomes: dict[tuple[str, str | None, str], PlanOutcome] = {}
        self._ticked_at: float | None = None
        self._times: tuple[float, float] | None = None
        """Wall clock and monotonic clock of the last tick."""
        self._jumped_at: float | None = None
        self._stopping = asyncio.Event()
        refusals: StoreTroubles | None = getattr(store, "troubles", None)
        self._refusals = refusals
        """What an API server refuses, where the store is one."""
        metrics.caches = self.cache.list_states
        if refusals is not None:
            metrics.refusals = lambda: refusals.counts

    # What others ask

    def check_health(self) -> HealthAnswer:
        """What ``/healthz`` answers now."""
        options = self._flags.options
        return check_health(
            HealthInput(
                profile=self._flags.profile,
                options=options,
                since_tick_s=None if self._ticked_at is None else self._clock.monotonic() - self._ticked_at,
                caches_filled=self.cache.filled,
                own_node_known=self.cache.find_node(options.node_name) is not None,
                snapshot_age_s=self.observer.age_s(),
            )
        )

    def tick_input(self) -> TickInput:
        """What the decision of failover would be given now."""
        snapshot = self.observer.take_snapshot()
        resources = snapshot.resources if snapshot is not None else ()
        return TickInput(
            profile=self._flags.profile,
            options=self._flags.options,
            now=as_datetime(self._clock.now()).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),  # timers count microseconds
            memory=self._memories.get(FAILOVER.name),
            snapshot=snapshot,
            cluster=self.cache.gather(resources, self._flags.options.node_name)
            if self.cache.filled
            else KubernetesObjects(),
            own=self._build_own_rules(),
        )

    def explain(self, kind: Subject, name: str) -> StorageExplanation:
        """Every check about a pod, a volume or a node, as it is now; ``NotFound``."""
        return explain_subject(
            StorageExplainInput(
                tick=self.tick_input(),
                kind=kind,
                name=name,
                malformed=self.cache.malformed,
                failure=self.observer.failure,
                troubles=self.list_troubles(),
            )
        )

    def list_troubles(self) -> tuple[str, ...]:
        """What keeps this agent from knowing something, or from doing it, in words."""
        refused = [ApiFailure(*one) for one in self._refusals.current_errors()] if self._refusals is not None else []
        found = [*describe_troubles(self.cache.list_states(), refused), *self.observer.list_troubles()]
        found += [
            f"{one.plan.of} of {one.plan.resource or 'all volumes'} on {one.plan.node} failed: {one.error} {one.detail}"
            for one in self.outcomes
            if one.error is not None
        ]
        if self._jumped_at is not None and self._clock.monotonic() - self._jumped_at < JUMP_SHOWN_S:
            found.append("the clock of this node jumped, and all timers began anew")
        return tuple(found)

    def lost_volumes(self, node: str) -> tuple[str, ...]:
        """Resources of which this node proves that the other one can write them no more, now."""
        view = TickView(self.tick_input())
        return () if view.is_stale else tuple(one.resource.name for one in view.requests if is_lost_to(one, node))

    @property
    def uses(self) -> tuple[Use, ...]:
        """Decisions that asked for something, the newest last."""
        return tuple(self._uses)

    @property
    def outcomes(self) -> tuple[PlanOutcome, ...]:
        """How the plans of the last tick ended."""
        return tuple(self._outcomes.values())

    # The loop

    async def run(self) -> None:
        """Observe, decide and act until ``stop``; ``ProcessEnds`` where the profile wants that."""
        troubles = Periodic(self._log_troubles, TROUBLES_S, clock=self._clock, wait_first=True)
        async with OrderedTaskGroup() as group:
            tasks = [
                group.create_task(self.cache.run(), name="caches"),
                group.create_task(self.observer.poll_endlessly(), name="poll DRBD"),
                group.create_task(troubles.run(), name="log troubles"),
            ]
            if self.observer.follows_events:
                tasks.append(group.create_task(self.observer.follow_for_ever(), name="follow DRBD"))
            await self._tick_until_stopped()
            for task in tasks:
                task.cancel()

    async def _log_troubles(self) -> None:
        """Each trouble when it begins, and again once in a while (``base.logging.Repeats``)."""
        for trouble in self.list_troubles():
            _log.warning("storage.trouble", what=trouble)

    def stop(self) -> None:
        """End after the running tick, which has ``STOP_S`` for that."""
        self._stopping.set()

    async def _tick_until_stopped(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        filled = asyncio.create_task(self.cache.wait_filled(), name="caches filled")
        try:
            await asyncio.wait((stopping, filled), return_when=asyncio.FIRST_COMPLETED)
            next_at = self._clock.monotonic()
            while not stopping.done():
                tick = asyncio.create_task(self.tick(), name="tick")
                await asyncio.wait((tick, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not tick.done():
                    await asyncio.wait((tick,), timeout=STOP_S)
                    tick.cancel()
                    await asyncio.wait((tick,))
                if not tick.cancelled():
                    tick.result()
                # of the events that a long tick has missed one is kept
                interval_s = self._flags.options.reconcile_interval_s
                now = self._clock.monotonic()
                next_at += interval_s
                if next_at < now:
                    next_at = now
                await self._wait_for_next(next_at, stopping)
        finally:
            for task in (stopping, filled):
                task.cancel()
            await asyncio.wait((stopping, filled))

    async def _wait_for_next(self, next_at: float, stopping: asyncio.Task[Any]) -> None:
        """Until the next tick is due; with an events stream a change, or a timer that ends, makes it due."""
        changed: asyncio.Task[Any] | None = None
        waits_s = next_at - self._clock.monotonic()
        waiting = {stopping}
        if self.observer.follows_events:
            self.observer.changed.clear()
            changed = asyncio.create_task(self.observer.changed.wait(), name="DRBD changed")
            waiting.add(changed)
            result = self._results.get(FAILOVER.name)
            now, timeout_s = self._clock.now(), self._flags.options.fail_over_timeout_s
            for one in result.pending if result is not None else ():
                waits_s = min(waits_s, parse_time(one.since).timestamp() + timeout_s - now)
        await asyncio.wait(waiting, timeout=max(0.0, waits_s), return_when=asyncio.FIRST_COMPLETED)
        if changed is not None:
            changed.cancel()
            await asyncio.wait((changed,))

    async def tick(self) -> None:
        """Decide about everything once, and carry it out."""
        began = self._ticked_at = self._clock.monotonic()
        self._notice_jump()
        given = self.tick_input()
        plans: list[Plan] = []
        for decision in _TICK_DECISIONS:
            one = msgspec.structs.replace(given, memory=self._memories.get(decision.name))
            result = decision.function(one)
            self._memories[decision.name] = result.memory
            self._results[decision.name] = result
            if not decision.is_empty(result):
                raw = encode_canonical(one)
                self._log.keep(decision, raw, encode_canonical(result), empty=False)
            for skipped in result.skipped:
                self._metrics.count_skipped(skipped.reason)
            if result.error is not None:
                _log.warning("storage.decision_failed", decision=decision.name, error=result.error)
            plans += result.plans
        self._show(given)
        self._report(given)
        self._outcomes = {}
        async with OrderedTaskGroup() as group:
            for plan in plans:
                group.create_task(self._carry_out(plan), name=f"plan {plan.of} {plan.resource}")
        self._metrics.observe_tick(self._clock.monotonic() - began)

    async def _carry_out(self, plan: Plan) -> None:
        outcome = await self._executor.carry_out(plan)
        self._outcomes[plan.of, plan.resource, plan.node] = outcome
        if outcome.error is not None:
            _log.warning(
                "storage.plan_failed",
                of=plan.of,
                resource=plan.resource,
                node=plan.node,
                error=outcome.error,
                why=outcome.detail,
            )
        elif plan.of == "failover" and plan.detachments:
            memory = self._memories.get(FAILOVER.name) or {}
            since = memory.get("firstSeen", {}).get(plan.resource)
            since = since.get(plan.node) if isinstance(since, dict) else since
            if since is not None:
                self._metrics.observe_failover(self._clock.now() - parse_time(since).timestamp())

    def _is_proven(self, plan: Plan) -> bool:
        """Whether the loss that a plan rests on is still one, by the newest state of DRBD. ``compat`` does not ask."""
        snapshot = self.observer.take_snapshot()
        if plan.of != "failover" or self._flags.profile == "compat" or snapshot is None:
            return True
        resource = next((one for one in snapshot.resources if one.name == plan.resource), None)
        source = self._flags.options.promotion_source
        if snapshot.age_s > self._flags.options.drbd_stale_after_s:
            return False
        if resource is None or not promotion_facts(resource, source).may_take_over:
            return False
        lost = {self.cache.node_of_peer(one.name) for one in resource.connections if one.connection_state != CONNECTED}
        return lost >= {plan.node, *plan.further_nodes}

    def _notice_jump(self) -> None:
        """Begin all timers anew if the wall clock did not go as time did since the last tick."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        if self._times is not None:
            jumped_s = (now - self._times[0]) - (monotonic - self._times[1])
            if abs(jumped_s) > JUMP_S and self._flags.profile == "hardened":
                _log.warning("storage.clock_jumped", seconds=round(jumped_s, 1))
                self._metrics.count_clock_jump()
                self._jumped_at = monotonic
                self._memories.clear()
        self._times = now, monotonic

    def _build_own_rules(self) -> OwnRules:
        """Those of the options, which ``compat`` has none of."""
        own = self._flags.own
        if self._flags.profile == "compat":
            return OwnRules()
        return OwnRules(
            standby_delay_s=own.standby_delay_s,
            brake_fraction=own.brake_fraction if own.brake_window_s else None,
            brake_window_s=own.brake_window_s,
            domains=self.cache.failure_domains(own.brake_domain_label),
            kubevirt=True,
            evacuation_limit_s=own.vm_evacuation_timeout_s,
            out_of_service=True,
        )

    def _report(self, given: TickInput) -> None:
        """Tell about pods that are left alone, and about losses that are held back; once for each in every tick."""
        result = self._results[FAILOVER.name]
        standbys = {(one.resource, one.node) for one in result.waiting if one.rule == "standby"}
        for _ in standbys - self._standbys:
            self._metrics.count_standby()
        self._standbys = standbys
        self._metrics.set_brake(engaged=result.braked)
        if self._flags.profile == "compat":
            return
        nodes = {one.metadata.name: one for one in given.cluster.nodes}
        for waiting in result.waiting:
            if waiting.rule == "brake":
                self._emit(
                    NODE,
                    nodes[waiting.node],
                    "MassFailover",
                    "HeldBack",
                    f"volume {waiting.resource} waits: so many nodes are lost at once that a network may be at fault",
                )
        pods = {one.metadata.key: one for one in given.cluster.pods}
        for skipped in result.skipped:
            pod = pods[skipped.namespace, skipped.pod]
            why = f"{skipped.reason} {skipped.detail}".rstrip()
            note = f"node {skipped.node} lost volume {skipped.resource}, and this pod is left there: {why}"
            self._emit(POD, pod, "NotFailedOver", "LeftAlone", note)

    def _emit(self, kind: tuple[str, str], obj: ObjectView, reason: str, action: str, note: str) -> None:
        meta = obj.metadata
        ref = ObjectRef(kind=kind[1], name=meta.name, namespace=meta.namespace, uid=meta.uid, api_version=kind[0])
        self._events.emit(ref, reason, note, type="Warning", action=action)

    def _show(self, given: TickInput) -> None:
        """Bring the gauges up to date."""
        resources = given.snapshot.resources if given.snapshot is not None else ()
        using_quorum = [one for one in resources if one.quorum == MAJORITY]
        counts: dict[VolumeState, int] = {  # one may be in several
            "quorum": sum(one.has_quorum for one in using_quorum),
            "no-quorum": sum(not one.has_quorum for one in using_quorum),
            "suspended": sum(one.suspended for one in resources),
            "failing-io": sum(one.force_io_failures for one in resources),
        }
        self._metrics.set_resources(counts)
        self._metrics.set_pending(len(self._results[FAILOVER.name].pending))

    def _keep(self, use: Use) -> None:
        self._uses.append(use)
        while len(self._uses) > 1 and sum(len(one.input) for one in self._uses) > USES_BYTES:
            self._uses.popleft()
