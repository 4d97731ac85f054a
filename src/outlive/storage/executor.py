"""Carries out plans: makes the calls that ``storage.next_calls`` names, and asks again with their answers.

A plan has a deadline, and so has each call; a call without an answer by then counts as failed, and is not repeated: the
next tick decides anew. Calls that change something are spread over time (``--api-qps``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec

from outlive.base import (
    BadInput,
    Clock,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OutliveError,
    Throttled,
    Unavailable,
    get_logger,
)
from outlive.resources import ObjectRef
from outlive.resources.foreign import KubernetesNode, KubernetesPod, VolumeAttachment
from outlive.runtime import ClusterEvents, ClusterVerbs, Decision, PatchOperation, without_nulls
from outlive.storage.calls import AgentCall, CallAnswer, CallsInput, CallsResult, DrbdTool, next_calls
from outlive.storage.metrics import AgentAction, AgentMetrics
from outlive.storage.objects import NodeView, ObjectReference
from outlive.storage.options import AgentFlags
from outlive.storage.tick import Plan, StorageEvent
from outlive.store import Store

# By which call pods are evicted from an API server: it is asked once, and only a clear answer is kept.
#
# The agent never goes on to the next method after a 404: a pod that is gone answers that too, and the last method,
# deleting, asks no disruption budget.

EvictMethod = Literal["policy/v1", "policy/v1beta1", "delete"]
SUBRESOURCE: Final = "pods/eviction"
_METHODS: Final[dict[str, EvictMethod]] = {"v1": "policy/v1", "v1beta1": "policy/v1beta1"}
"""By version of the resource."""


class DiscoveredResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource of the group version ``v1``, as an API server lists it."""

    name: str = ""
    kind: str = ""
    group: str = ""
    version: str = ""


class DiscoveryAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an API server says it has, or why it did not say."""

    resources: tuple[DiscoveredResource | None, ...] = ()
    error: Any = None


class EvictMethodInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known before an eviction."""

    known: EvictMethod | None = None
    """What an earlier call of this process has answered."""
    discovery: DiscoveryAnswer | None = None
    """Absent: the API server has not been asked for this eviction."""


class EvictMethodAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How to evict."""

    ask: bool = False
    """Whether the API server is to be asked first."""
    method: EvictMethod | None = None
    """``None``: nothing may be sent now."""
    known: EvictMethod | None = None
    """For the next eviction."""


def choose_evict_method(given: EvictMethodInput) -> EvictMethodAnswer:
    """The method by the version of ``pods/eviction``; deleting where the server has no such resource."""
    if given.known is not None:
        return EvictMethodAnswer(method=given.known, known=given.known)
    if given.discovery is None:
        return EvictMethodAnswer(ask=True)
    error, resources = given.discovery.error, given.discovery.resources
    if error is not None and (error != "" or not resources):
        return EvictMethodAnswer()
    versions = [one.version for one in resources if one is not None and one.name == SUBRESOURCE]
    method = _METHODS.get(versions[0], "delete") if versions else "delete"
    return EvictMethodAnswer(method=method, known=method)


EVICT_METHOD: Final = Decision(
    "storage.evict_method",
    choose_evict_method,
    EvictMethodInput,
    EvictMethodAnswer,
    "By which call pods are evicted from this API server",
    nulls_are_absent=True,
)


READS: Final = frozenset({"read_node", "read_status"})
STATUSES: Final[tuple[tuple[type[OutliveError], int], ...]] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (Throttled, HTTPStatus.TOO_MANY_REQUESTS),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (Invalid, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BadInput, HTTPStatus.BAD_REQUEST),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (OutliveError, HTTPStatus.INTERNAL_SERVER_ERROR),
)
"""What an error of a call is as an HTTP status."""
METRIC_ACTIONS: Final[dict[str, AgentAction]] = {
    "evict": "evict",
    "delete_pod": "delete",
    "delete_volume_attachment": "detach",
    "exec": "demote",
}
_log = get_logger("storage.executor")


class CallRate:
    """Lets ``burst`` calls pass at once, and ``qps`` a second after that."""

    def __init__(self, clock: Clock, qps: float, burst: int) -> None:
        self._clock = clock
        self._qps = qps
        self._burst = burst
        self._free_at = clock.monotonic() - burst / qps
        """When a full burst was free last, on the monotonic clock."""

    async def wait(self) -> None:
        """Return when one more call may be made."""
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now - self._burst / self._qps) + 1.0 / self._qps
        if self._free_at > now:
            await self._clock.sleep(self._free_at - now)


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """How a plan ended."""

    plan: Plan
    error: str | None
    detail: str
    """What the first call that failed was answered."""


class PlanExecutor:
    """See the module. ``is_proven``: whether what a plan rests on still holds, asked right before each of its calls:
    one that had to wait may be late."""

    def __init__(
        self,
        flags: AgentFlags,
        *,
        store: Store,
        verbs: ClusterVerbs,
        events: ClusterEvents,
        drbd: DrbdTool,
        clock: Clock,
        metrics: AgentMetrics,
        is_proven: Callable[[Plan], bool],
    ) -> None:
        self._is_proven = is_proven
        self._deadline_s = flags.options.deadline_s
        self._dry_run = bool(flags.flags["dry-run"])
        self._store = store
        self._verbs = verbs
        self._events = events
        self._drbd = drbd
        self._clock = clock
        self._metrics = metrics
        self._rate = CallRate(clock, float(flags.flags["api-qps"]), int(flags.flags["api-burst"]))
        self._evict_method: EvictMethod | None = None

    async def carry_out(self, plan: Plan) -> PlanOutcome:
        """The plan to its end, or to its deadline."""
        answers: list[CallAnswer] = []
        running: dict[asyncio.Task[CallAnswer], AgentCall] = {}
        emitted, ends_at = 0, self._clock.monotonic() + self._deadline_s
        try:
            while True:
                result: CallsResult = next_calls(CallsInput(plan=plan, answers=tuple(answers)))
                for event in result.events[emitted:]:
                    self._emit(event)
                emitted = len(result.events)
                if result.done:
                    return PlanOutcome(plan, result.error, _first_failure(answers))
                flying = list(running.values())
                for call in result.calls:
                    if call in flying:
                        flying.remove(call)
                        continue
                    running[asyncio.create_task(self._make(plan, call), name=f"storage {call.op}")] = call
                ended, _ = await asyncio.wait(
                    running, timeout=max(0.0, ends_at - self._clock.monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                for task in [one for one in running if one in ended or not ended]:
                    call = running.pop(task)
                    answers.append(task.result() if task in ended else CallAnswer(call=call))
                    if task not in ended:
                        task.cancel()
                        self._count(plan, answers[-1])
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _make(self, plan: Plan, call: AgentCall) -> CallAnswer:
        """The answer to one call; never an error."""
        if call.op not in READS:
            if self._dry_run:
                answer = CallAnswer(call=call, status=0 if call.op == "exec" else HTTPStatus.OK)
                self._count(plan, answer)
                return answer
            if call.op != "exec":
                await self._rate.wait()
            if not self._is_proven(plan):
                _log.warning("storage.call_not_made", op=call.op, resource=plan.resource, node=plan.node)
                return CallAnswer(call=call)
        detail = ""
        try:
            answer = await self._send(call)
        except OutliveError as error:
            status = next(status for kind, status in STATUSES if isinstance(error, kind))
            answer, detail = (
                CallAnswer(call=call, status=None if call.op in ("exec", "read_status") else status),
                str(error),
            )
        level = _log.info if answer.is_success or answer.status in (0, HTTPStatus.NOT_FOUND) else _log.warning
        level(
            "storage.call",
            op=call.op,
            resource=plan.resource,
            node=plan.node,
            object=call.name or (f"{call.namespace}/{call.pod}" if call.pod else call.node),
            status=None if answer.status is None else int(answer.status),
            why=detail,
        )
        self._count(plan, answer)
        return answer

    async def _send(self, call: AgentCall) -> CallAnswer:
        match call.op:
            case "update_node":
                assert call.node is not None
                change = PatchOperation("add", "/spec/taints", list(call.taints or ()))
                await self._verbs.patch(KubernetesNode, call.node, [change], version=call.resource_version or "")
            case "evict":
                await self._evict(call)
            case "delete_pod":
                key = f"{call.namespace}/{call.pod}"
                await self._verbs.delete(KubernetesPod, key, uid=call.uid or "", grace_s=call.grace)
            case "delete_volume_attachment":
                await self._verbs.delete(VolumeAttachment, call.name or "", uid=call.uid or "", grace_s=call.grace)
            case "read_node":
                found = await self._store.get(KubernetesNode, call.node or "", fresh=True)
                view = msgspec.convert(without_nulls(found.document), NodeView)
                return CallAnswer(call=call, status=HTTPStatus.OK, object=view)
            case "read_status":
                argv = ("drbdsetup", "status", call.resource or "", "--json")
                output = await self._drbd.run(argv, limit_s=self._deadline_s)
                return CallAnswer(call=call, status=output.exit, document=output.stdout)
            case "exec":
                output = await self._drbd.run(call.argv or (), limit_s=self._deadline_s)
                if output.exit != 0:
                    _log.warning("storage.drbdsetup_failed", argv=call.argv, stderr=output.stderr[-400:])
                return CallAnswer(call=call, status=output.exit)
        return CallAnswer(call=call, status=HTTPStatus.OK)

    async def _evict(self, call: AgentCall) -> None:
        """By the call that this API server has for it."""
        choice = choose_evict_method(EvictMethodInput(known=self._evict_method))
        if choice.ask:
            try:
                served = await self._verbs.list_served("v1")
            except OutliveError as error:
                answer = DiscoveryAnswer(error=str(error))
            else:
                found = (
                    DiscoveredResource(name=one.name, kind=one.kind, group=one.group, version=one.version)
                    for one in served
                )
                answer = DiscoveryAnswer(resources=tuple(found))
            choice = choose_evict_method(EvictMethodInput(discovery=answer))
        self._evict_method = choice.known
        key, uid = f"{call.namespace}/{call.pod}", call.uid or ""
        if choice.method is None:
            raise Unavailable("the API server did not say how pods are evicted")
        if choice.method == "delete":
            await self._verbs.delete(KubernetesPod, key, uid=uid, grace_s=call.grace)
        else:
            await self._verbs.evict(key, uid=uid, grace_s=call.grace)

    def _count(self, plan: Plan, answer: CallAnswer) -> None:
        call = answer.call
        if call.op in READS:
            return
        action: AgentAction = METRIC_ACTIONS.get(call.op, "taint")
        if call.op == "update_node" and plan.taint is not None and plan.of == "own_taints":
            added = any(event.action == "TaintedNode" for event in plan.taint.events)
            action = "taint" if added else "untaint"
        if self._dry_run:
            self._metrics.count_action(action, "dry-run")
        elif answer.is_success or answer.status in (0, HTTPStatus.NOT_FOUND):
            self._metrics.count_action(action, "ok")
        else:
            self._metrics.count_action(action, "refused" if answer.status == HTTPStatus.TOO_MANY_REQUESTS else "failed")
        if call.op == "evict" and answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._metrics.count_skipped("budget")

    def _emit(self, event: StorageEvent) -> None:
        self._events.emit(
            _object_ref(event.regarding),
            event.reason,
            f"dry run, nothing was done: {event.note}" if self._dry_run else event.note,
            type=event.type,
            action=event.action,
            related=None if event.related is None else _object_ref(event.related),
        )


def _first_failure(answers: list[CallAnswer]) -> str:
    failed = (one for one in answers if not one.is_success and one.status != 0)
    found = next(failed, None)
    return "" if found is None else f"{found.call.op}: {found.status if found.status is not None else 'no answer'}"


def _object_ref(ref: ObjectReference) -> ObjectRef:
    return ObjectRef(
        kind=ref.kind, name=ref.name, namespace=ref.namespace, uid=ref.uid, api_version=ref.api_version or "v1"
    )
