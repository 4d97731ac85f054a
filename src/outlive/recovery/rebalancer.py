"""The loop that moves VMs for balance, and back to hosts that they prefer, in the background.

One process asks, the one that leads failover, and only while nothing else is under way: no recovery, no move, no
unanswered request, no planned work. One VM moves after the other, as the plan has tried them.
"""

from __future__ import annotations

from typing import Final, TypeVar

from outlive.base.batches import batches
from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.failover.config import FailoverSettings
from outlive.failover.ports import Computer
from outlive.failover.rebalance import RebalanceResult
from outlive.failover.report.reporter import Events
from outlive.failover.snapshot import Documents
from outlive.recovery.balance import (
    PLANNED,
    BalancingPlan,
    BalancingState,
    decision_for,
    encoded,
    request_move,
    rests,
    sentence,
    under_way,
)
from outlive.recovery.informers import FAILBACK_INDEX
from outlive.resources import (
    Cluster,
    FlavorGroup,
    Hypervisor,
    ObjectRef,
    Pipeline,
    Reservation,
    Resource,
    VirtualMachine,
)
from outlive.resources.cluster import CLUSTER, RebalancePolicy
from outlive.resources.codec import decode_as, encode_canonical
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.informer import Informer
from outlive.store import Store, list_all
from outlive.store.access import read

AT_ONCE: Final = 1_000
"""VMs that are looked at without a pause."""
LOOK_S: Final = 10.0
"""How often the background loop looks whether it has something to do."""
ASK_AGAIN_S: Final = 300.0
"""After so long a VM that was asked to go back and did not is asked again."""
SUBJECT: Final = "cluster"
"""Under which the decision is recorded."""

R = TypeVar("R", bound=Resource)
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
    ) -> None:
        """``vms``: with the indexes of recovery."""
        self._store = store
        self._settings = settings.of_plans
        self._vms = vms
        self._sent_back: dict[tuple[str, str], float] = {}
        """VM and the host that it is on → when it was last asked to go back, so that one that is refused is not asked
        again at once."""
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
        pause_s = LOOK_S
        while True:
            await self._clock.sleep(max(LOOK_S, pause_s))
            try:
                with request_context(greq=new_global_request_id(self._ids, "rebalance"), req=""):
                    pause_s = await self.look()
            except OutliveError as error:
                _log.warning("rebalance.put_off", error=str(error))
                pause_s = LOOK_S

    async def look(self) -> float:
        """Plan once, where the policy asks for it and nothing is under way; after how long to look again."""
        cluster = await read(self._store, Cluster, CLUSTER)
        balances = cluster is not None and cluster.spec.rebalance.mode == "auto"
        back = self._going_back()
        if not balances and not back:
            return LOOK_S
        policy = cluster.spec.rebalance if cluster is not None else RebalancePolicy()
        waits = rests(cluster, self._clock.now()) or await self._under_way()
        if waits:
            if waits != self._said:
                _log.info("rebalance.waits", why=waits)
            self._said = waits
            return LOOK_S
        self._said = ""
        documents = await self._read()
        if back:
            result = await self._planned(documents, policy, tuple(sorted(back)))
            for move in result.moves:
                self._sent_back[move.vm, move.source] = self._clock.monotonic()
                if await request_move(self._store, self._clock, self._ids, move):
                    note = f"{move.vm} goes back from {move.source} to {move.host}, which it prefers"
                    about = ObjectRef(kind="VirtualMachine", name=move.vm)
                    self._events.emit(about, "FailedBack", note, type="Normal", action="Failback")
                    _log.info("failback.asked", vm=move.vm, source=move.source, host=move.host)
            if result.moves or not balances:
                return LOOK_S
        moves = await self._begin(await self._planned(documents, policy))
        self._asked = self._asked + 1 if moves and self._asked + 1 < policy.moves else 0
        return LOOK_S if self._asked else policy.pause_s

    def _going_back(self) -> frozenset[str]:
        """VMs that go back by themselves, and prefer a host to the one that they are on."""
        now = self._clock.monotonic()
        self._sent_back = {one: at for one, at in self._sent_back.items() if now - at < ASK_AGAIN_S}
        found = (vm for vm in self._vms.by_index(FAILBACK_INDEX, "auto") if (vm.name, vm.host) not in self._sent_back)
        return frozenset(vm.name for vm in found if _prefers_another(vm))

    async def _under_way(self) -> str:
        for some in batches(self._vms.items(), AT_ONCE):
            if said := under_way(some):
                return said
            await self._clock.sleep(0)
        return ""

    async def _read(self) -> Documents:
        return Documents(
            hypervisors=tuple(await self._all(Hypervisor)),
            reservations=tuple(await self._all(Reservation)),
            vms=tuple(self._vms.items()),
            groups=tuple(await self._all(FlavorGroup)),
            pipelines=tuple(await self._all(Pipeline)),
        )

    async def _all(self, kind: type[R]) -> list[R]:
        found: list[R] = []
        async for one in list_all(self._store, kind):
            found.append(one)
            if len(found) % AT_ONCE == 0:
                await self._clock.sleep(0)
        return found

    async def _planned(
        self, documents: Documents, policy: RebalancePolicy, back: tuple[str, ...] | None = None
    ) -> RebalanceResult:
        """The decision, made by whoever computes decisions."""
        given = BalancingState(documents=documents, settings=self._settings, policy=policy, back=back)
        answer = await self._computer.compute(PLANNED, *await encoded(given, self._clock))
        plan: BalancingPlan = decode_as(BalancingPlan, answer)
        decision, result = decision_for(back), plan.result
        self._decisions.keep(
            decision,
            plan.input,
            encode_canonical(result),
            empty=decision.is_empty(result),
            subject=SUBJECT,
            input_digest=plan.input_digest,
        )
        return result

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
                self._events.emit(about, "Rebalanced", sentence(move), type="Normal", action="Rebalance")
                return True
            _log.info("rebalance.not_asked", vm=move.vm, why="it is not as it was planned for")
        return False


def _prefers_another(vm: VirtualMachine) -> bool:
    weights = vm.spec.preferred_hosts.weights
    return bool(vm.host) and max(weights.values(), default=0) > weights.get(vm.host, 0)
