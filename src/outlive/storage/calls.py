"""How a plan is carried out: the tools of DRBD, and which calls may be made now, given the answers so far.

The caller makes the calls and asks again with their answers until ``done``; it keeps the deadlines and which calls are
on their way. Taints come first, then pods, attachments last: a pod that could not be removed keeps its volume
(docs/design/storage-decisions.md#storagenext_calls).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from outlive.runtime import Decision
from outlive.storage.drbd import BadDocument, DrbdResource, read_status
from outlive.storage.objects import NodeView
from outlive.storage.own_node import is_stuck
from outlive.storage.tick import Plan, StorageEvent, has_taint

# What the storage agent needs of its machine: the tools of DRBD.
#
# A driver runs the real programs; the simulation answers from a model of DRBD.


class CommandOutput(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of ``drbdsetup`` ended."""

    argv: tuple[str, ...]
    exit: int | None = None
    """Exit status; ``None`` where it did not end by itself."""
    timed_out: bool = False
    """Whether it was killed at its limit."""
    stdout: str = ""
    stderr: str = ""


class DrbdTool(Protocol):
    """The DRBD of one machine."""

    async def is_loaded(self) -> bool:
        """Whether the kernel has DRBD (``/proc/drbd``); true where nobody can say."""
        ...

    async def run(self, argv: Sequence[str], *, limit_s: float | None) -> CommandOutput:
        """Run ``drbdsetup`` to its end, or for ``limit_s``; ``Unavailable`` where it cannot be started."""
        ...

    def follow_events(self) -> AsyncGenerator[str, None]:
        """Lines of ``drbdsetup events2``, until its process ends; ``Unavailable`` where it cannot be started."""
        ...


TAINT_ATTEMPTS: Final = 3
GONE: Final = 404
CONFLICT: Final = 409
REFUSED: Final = 429
PlanError = Literal["taint-failed", "evict-failed", "delete-failed", "detach-failed", "demote-failed", "volume-missing"]


class AgentCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One call; which members it has depends on ``op``."""

    op: Literal["update_node", "evict", "delete_pod", "delete_volume_attachment", "exec", "read_node", "read_status"]
    node: str | None = None
    taints: tuple[dict[str, Any], ...] | None = None
    """The complete list, after the change."""
    resource_version: str | None = None
    """Of the object that they were made from; the write is conditional on it."""
    namespace: str | None = None
    pod: str | None = None
    name: str | None = None
    uid: str | None = None
    grace: int | None = None
    """In seconds."""
    argv: tuple[str, ...] | None = None
    resource: str | None = None


class CallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call."""

    call: AgentCall
    status: int | None = None
    """HTTP status, or exit status; ``None``: none came in time."""
    object: NodeView | None = None
    """Of ``read_node``."""
    document: str | None = None
    """Of ``read_status``."""

    @property
    def is_success(self) -> bool:
        """Whether an API server took it."""
        return self.status is not None and 200 <= self.status < 300


class CallsInput(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and the answers so far in the order in which they came."""

    plan: Plan
    answers: tuple[CallAnswer, ...] = ()


class CallsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What may be done now."""

    calls: tuple[AgentCall, ...] = ()
    """All at once; those that are on their way are among them."""
    events: tuple[StorageEvent, ...] = ()
    """All that are due so far."""
    error: PlanError | None = None
    """The first failure."""
    done: bool = False


def next_calls(given: CallsInput) -> CallsResult:
    """Calls that may be made now and have no answer yet."""
    run = _PlanRun(given.plan, given.answers)
    steps = (run.plan_demote,) if given.plan.of == "suspended" else (run.plan_taint, run.remove, run.detach)
    for step in steps:
        step()
        if run.calls or run.ended:
            break
    return CallsResult(calls=tuple(run.calls), events=tuple(run.events), error=run.error, done=not run.calls)


class _PlanRun:
    """Replays the answers against the plan."""

    def __init__(self, plan: Plan, answers: Sequence[CallAnswer]) -> None:
        self.plan = plan
        self.hardened = plan.profile == "hardened"
        self.waiting = list(answers)
        self.calls: list[AgentCall] = []
        self.events: list[StorageEvent] = []
        self.error: PlanError | None = None
        self.ended = False
        """Whether the plan ends here, though steps may be left."""

    def next_answer(self, call: AgentCall) -> CallAnswer | None:
        """The next answer to the call; without one the call is due."""
        for number, answer in enumerate(self.waiting):
            if answer.call == call:
                return self.waiting.pop(number)
        self.calls.append(call)
        return None

    def fail(self, error: PlanError) -> None:
        self.error = self.error or error

    def plan_taint(self) -> None:
        planned = self.plan.taint
        if planned is None:
            return
        taints, version = planned.taints, planned.resource_version
        attempts = TAINT_ATTEMPTS if self.plan.of == "failover" and self.hardened else 1
        for attempt in range(attempts):
            call = AgentCall(op="update_node", node=planned.node, taints=taints, resource_version=version or None)
            answer = self.next_answer(call)
            if answer is None:
                return
            if answer.is_success:
                self.events += planned.events
                return
            if answer.status != CONFLICT or attempt == attempts - 1:
                break
            reading = self.next_answer(AgentCall(op="read_node", node=planned.node))
            if reading is None:
                return
            if not reading.is_success or reading.object is None:
                break
            assert planned.adds is not None
            if has_taint(reading.object, planned.adds["key"]):
                return
            taints = (*reading.object.spec.taints, planned.adds)
            version = reading.object.metadata.resource_version
        if self.hardened and (
            self.plan.of == "forced_errors" or (self.plan.of == "failover" and not self.plan.node_ready)
        ):
            return  # these pods are rescued all the same: they fail already, or their node takes no new ones
        self.fail("taint-failed")
        self.ended = True

    def remove(self) -> None:
        one_by_one = self.plan.of == "forced_errors"
        for removal in self.plan.removals:
            call = AgentCall(
                op=removal.op,
                namespace=removal.namespace,
                pod=removal.pod,
                uid=removal.uid or None,
                grace=removal.grace,
            )
            answer = self.next_answer(call)
            if answer is None:
                if one_by_one:
                    return
                continue
            if answer.is_success or answer.status == GONE:
                self.events += removal.events
                continue
            if answer.status == REFUSED and removal.refused:
                self.events += removal.refused
                continue
            self.fail("evict-failed" if removal.op == "evict" else "delete-failed")
            if one_by_one and not self.hardened:
                self.ended = True
                return
        self.ended = not self.calls and self.error is not None

    def detach(self) -> None:
        for detachment in self.plan.detachments:
            answer = self.next_answer(
                AgentCall(
                    op="delete_volume_attachment",
                    name=detachment.name,
                    uid=detachment.uid or None,
                    grace=detachment.grace,
                )
            )
            if answer is None:
                continue
            if answer.is_success:
                self.events += detachment.events
            elif not (self.hardened and answer.status == GONE):
                self.fail("detach-failed")

    def plan_demote(self) -> None:
        planned = self.plan.demotion
        assert planned is not None
        if self.hardened:
            reading = self.next_answer(AgentCall(op="read_status", resource=planned.resource))
            if reading is None:
                return
            if not _is_still_stuck(reading, planned.resource):
                self.ended = True
                return
        answer = self.next_answer(AgentCall(op="exec", argv=("drbdsetup", "secondary", "--force", planned.resource)))
        if answer is None:
            return
        if answer.status != 0:
            self.fail("demote-failed")
        elif not planned.has_volume:
            self.fail("volume-missing")
        else:
            self.events += planned.events


def _is_still_stuck(reading: CallAnswer, name: str) -> bool:
    """Whether the resource is still frozen here, as a reading right before the demotion says."""
    if reading.status != 0 or reading.document is None:
        return False
    try:
        states = read_status(reading.document)
    except BadDocument:
        return False
    found = [state for state in states if state.name == name]
    return bool(found) and is_stuck(DrbdResource(**msgspec.structs.asdict(found[-1])), hardened=True)


NEXT_CALLS: Final = Decision(
    "storage.next_calls",
    next_calls,
    CallsInput,
    CallsResult,
    "Which calls of a plan may be made now",
    lambda result: result.done,
    nulls_are_absent=True,
)
