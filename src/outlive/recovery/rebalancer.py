"""The loop that moves VMs for balance, and back to hosts that they prefer, in the background.

One process asks, the one that leads failover, and only while nothing else is under way: no recovery, no move, no
unanswered request, no planned work. One VM moves after the other, as the plan has tried them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from outlive.base import Clock, Ids, get_logger, new_global_request_id, request_context, split_batches
from outlive.failover import (
    FAIL_BACK,
    REBALANCE,
    Computer,
    Documents,
    FailBackObstacle,
    FailBackResult,
    FailoverSettings,
    RebalanceResult,
    VmMove,
)
from outlive.failover.planner import Action
from outlive.failover.reconciler import ApplyOutcome
from outlive.failover.report import Events
from outlive.recovery.balance import (
    PLANNED,
    BalancingPlan,
    BalancingState,
    describe_move,
    encode_state,
    explain_unfinished,
    move_together,
    request_move,
    resting_reason,
)
from outlive.recovery.informers import FAILBACK_INDEX
from outlive.resources import (
    CLUSTER,
    Cluster,
    FlavorGroup,
    Hypervisor,
    ObjectRef,
    Pipeline,
    RebalancePolicy,
    Reservation,
    Resource,
    VirtualMachine,
    decode_as,
    encode_canonical,
)
from outlive.runtime import Decision, DecisionLog, Informer, Periodic, log_errors
from outlive.store import Store, list_all, read

AT_ONCE: Final = 1_000
"""VMs that are looked at without a pause."""
LOOK_S: Final = 10.0
"""How often the background loop looks whether it has something to do."""
ASK_AGAIN_S: Final = 300.0
"""After so long a VM that was asked to go back and did not is asked again."""
BLOCKED_S: Final = 60.0
"""After so long a VM that could not go back is looked at again."""
BLOCKED_KEPT: Final = 1_000
"""VMs of which is remembered why they do not go back, so that it is told once."""
SUBJECT: Final = "cluster"
"""Under which the decision is recorded."""

R = TypeVar("R", bound=Resource)
T = TypeVar("T")
_log = get_logger("rebalance")


class Rebalancer:
    """The loop in the background. ``run`` until cancelled, which is safe at any moment."""

    def __init__(
        self,
        store: Store,
        settings: FailoverSettings,
        *,
        computer: Computer,
        decisions: DecisionLog,
        events: Events,
        clock: Clock,
        ids: Ids,
        vms: Informer[VirtualMachine],
        exchange: Callable[[Sequence[Action]], Awaitable[ApplyOutcome]],
    ) -> None:
        """``vms``: with the indexes of recovery. ``exchange``: has VMs change slots."""
        self._store = store
        self._settings = settings.plan_settings
        self._vms = vms
        self._exchange = exchange
        self._rests_until: dict[tuple[str, str], float] = {}
        """VM and the host that it is on → until when it is left alone, so that one that is refused is not asked at once
        again."""
        self._blocked: dict[str, FailBackObstacle] = {}
        """What was told last of VMs that do not go back."""
        self._computer = computer
        self._decisions = decisions
        self._events = events
        self._clock = clock
        self._ids = ids
        self._said = ""
        self._asked = 0
        """Moves that were requested since the last pause."""

    async def run(self) -> None:
        """Plan and ask, as often as the policy says; what the store does not answer is tried again."""
        failed = log_errors(_log, "rebalance.put_off")
        await Periodic(self._plan_and_ask, LOOK_S, clock=self._clock, wait_first=True, failed=failed).run()

    async def _plan_and_ask(self) -> float:
        with request_context(greq=new_global_request_id(self._ids, "rebalance"), req=""):
            return max(LOOK_S, await self.run_once())

    async def run_once(self) -> float:
        """Plan once, where the policy asks for it and nothing is under way; after how long to look again."""
        cluster = await read(self._store, Cluster, CLUSTER)
        balances = cluster is not None and cluster.spec.rebalance.mode == "auto"
        back = self._vms_to_fail_back()
        if not balances and not back:
            return LOOK_S
        policy = cluster.spec.rebalance if cluster is not None else RebalancePolicy()
        waits = resting_reason(cluster, self._clock.now()) or await self._find_unfinished()
        if waits:
            if waits != self._said:
                _log.info("rebalance.waits", why=waits)
            self._said = waits
            return LOOK_S
        self._said = ""
        documents = await self._read()
        if back and (await self._bring_home(documents, policy, tuple(sorted(back))) or not balances):
            return LOOK_S
        if not balances:
            return LOOK_S
        plan = await self._compute_plan(BalancingState(documents=documents, settings=self._settings, policy=policy))
        assert plan.result is not None, "that was asked for"
        self._keep(REBALANCE, plan, plan.result)
        moves = await self._begin(plan.result)
        self._asked = self._asked + 1 if moves and self._asked + 1 < policy.moves else 0
        return LOOK_S if self._asked else policy.pause_s

    def _vms_to_fail_back(self) -> frozenset[str]:
        """VMs that go back by themselves, and prefer a host to the one that they are on."""
        now = self._clock.monotonic()
        self._rests_until = {one: until for one, until in self._rests_until.items() if now < until}
        found = set[str]()
        for vm in self._vms.list_by_index(FAILBACK_INDEX, "auto"):
            weights = vm.spec.preferred_hosts.weights
            prefers_another = vm.host and max(weights.values(), default=0) > weights.get(vm.host, 0)
            if prefers_another and (vm.name, vm.host) not in self._rests_until:
                found.add(vm.name)
        return frozenset(found)

    async def _bring_home(self, documents: Documents, policy: RebalancePolicy, back: tuple[str, ...]) -> bool:
        """Exchange slots where that is needed, then let one VM, or all of one affinity group, go back; whether anything
        was begun. What does not go is told, and is looked at again after a while."""
        plan = await self._plan_fail_back(documents, policy, back)
        if plan.slots:
            outcome = await self._exchange(plan.slots)
            _log.info("failback.slots", joined=outcome.reused, opened=outcome.created, failed=outcome.failed)
            plan = await self._plan_fail_back(await self._read(), policy, back)
        for one in plan.blocked:
            self._tell(one)
        if not plan.moves or plan.slots:
            return bool(plan.slots)
        now = self._clock.monotonic()
        self._rests_until.update({(move.vm, move.source): now + ASK_AGAIN_S for move in plan.moves})
        if len(plan.moves) == 1:
            requested = await request_move(self._store, self._clock, self._ids, plan.moves[0])
            if requested:
                self._report_return(plan.moves[0])
            return requested
        stayed = await move_together(self._store, self._clock, self._ids, plan.moves)
        for move in plan.moves:
            if stayed:
                text = f"{move.vm} does not go back to {move.host}: {stayed} of its affinity group did not move"
                self._report(move.vm, "FailBackBlocked", text)
            else:
                self._report_return(move)
        return True

    def _report_return(self, move: VmMove) -> None:
        self._report(move.vm, "FailedBack", f"{move.vm} goes back from {move.source} to {move.host}, which it prefers")
        _log.info("failback.asked", vm=move.vm, source=move.source, host=move.host)

    def _tell(self, blocked: FailBackObstacle) -> None:
        """Say once why it does not go back, and look at it again after a while."""
        vm = self._vms.get(blocked.vm)
        if vm is not None:
            self._rests_until[vm.name, vm.host] = self._clock.monotonic() + BLOCKED_S
        if self._blocked.get(blocked.vm) != blocked:
            self._report(blocked.vm, "FailBackBlocked", str(blocked))
        self._blocked[blocked.vm] = blocked
        while len(self._blocked) > BLOCKED_KEPT:
            self._blocked.pop(next(iter(self._blocked)))

    def _report(self, vm: str, event: str, note: str) -> None:
        about = ObjectRef(kind="VirtualMachine", name=vm)
        self._events.emit(about, event, note, type="Normal", action="Failback")

    async def _find_unfinished(self) -> str:
        for some in split_batches(self._vms.items(), AT_ONCE):
            if said := explain_unfinished(some):
                return said
            await self._clock.sleep(0)
        return ""

    async def _read(self) -> Documents:
        return Documents(
            hypervisors=tuple(await self._read_all(Hypervisor)),
            reservations=tuple(await self._read_all(Reservation)),
            vms=tuple(self._vms.items()),
            groups=tuple(await self._read_all(FlavorGroup)),
            pipelines=tuple(await self._read_all(Pipeline)),
        )

    async def _read_all(self, kind: type[R]) -> list[R]:
        found: list[R] = []
        async for one in list_all(self._store, kind):
            found.append(one)
            if len(found) % AT_ONCE == 0:
                await self._clock.sleep(0)
        return found

    async def _plan_fail_back(
        self, documents: Documents, policy: RebalancePolicy, back: tuple[str, ...]
    ) -> FailBackResult:
        state = BalancingState(documents=documents, settings=self._settings, policy=policy, back=back)
        plan = await self._compute_plan(state)
        assert plan.back is not None, "that was asked for"
        self._keep(FAIL_BACK, plan, plan.back)
        return plan.back

    async def _compute_plan(self, given: BalancingState) -> BalancingPlan:
        """The decision, made by the process that computes decisions."""
        answer = await self._computer.compute(PLANNED, *await encode_state(given, self._clock))
        plan: BalancingPlan = decode_as(BalancingPlan, answer)
        return plan

    def _keep(self, decision: Decision[Any, T], plan: BalancingPlan, result: T) -> None:
        self._decisions.keep(
            decision,
            plan.input,
            encode_canonical(result),
            empty=decision.is_empty(result),
            subject=SUBJECT,
            input_digest=plan.input_digest,
        )

    async def _begin(self, result: RebalanceResult) -> bool:
        """Ask for the first move of a plan, and for no other: the next plan is made where it has led."""
        _log.info(
            "rebalance.planned",
            before=result.before,
            after=result.after,
            moves=len(result.moves),
            why=result.why.value,
        )
        for move in result.moves[:1]:
            if await request_move(self._store, self._clock, self._ids, move):
                about = ObjectRef(kind="VirtualMachine", name=move.vm)
                self._events.emit(about, "Rebalanced", describe_move(move), type="Normal", action="Rebalance")
                return True
            _log.info("rebalance.not_asked", vm=move.vm, why="it is not as it was planned for")
        return False
