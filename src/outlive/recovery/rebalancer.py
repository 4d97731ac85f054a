"""Rebalancing: what the decision is made from, the requests that carry its moves out, and the loop in the background.

The decision (``failover.rebalance``) sees what a plan sees, and VMs that run, can move live, and have nothing else
under way. A move is a request of the VM like any user's: its host answers it by the rules at that moment, so that what
has changed since the plan costs a refused request and nothing else. One VM moves after the other, as the plan has tried
them. In the background one process asks, the one that leads failover, and only while nothing else is under way: no
recovery, no move, no unanswered request, no planned work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from outlive.base.batches import batches
from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.failover.analysis.drain.inputs import free_table, possible_places
from outlive.failover.config import FailoverSettings
from outlive.failover.ports import Computer
from outlive.failover.rebalance import (
    FAIL_BACK,
    REBALANCE,
    BalancedHost,
    BalancingMove,
    RebalanceInput,
    RebalanceResult,
    allocated,
    share,
)
from outlive.failover.reconciler.decider import encode_large
from outlive.failover.report.reporter import Events
from outlive.failover.snapshot import Documents, Snapshot, snapshot_of
from outlive.node.vm.requests import is_asked
from outlive.node.vm.states import VmState, active_move, state_of, wanted
from outlive.placement.rules import demands_of
from outlive.recovery.in_flight import in_flight
from outlive.recovery.informers import FAILBACK_INDEX
from outlive.recovery.states import unfinished
from outlive.resources import (
    CPU,
    MEMORY,
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
from outlive.resources.hosts import refuses
from outlive.resources.vms import Request
from outlive.runtime.decisions import Decision, DecisionLog
from outlive.runtime.informer import Informer
from outlive.store import Store, list_all
from outlive.store.access import compare_and_swap, read

SOURCES: Final = 16
"""Of so many hosts, the fullest ones, VMs may leave in one plan."""
AT_ONCE: Final = 1_000
"""VMs that are looked at without a pause."""
LOOK_S: Final = 10.0
"""How often the background loop looks whether it has something to do."""
ASK_AGAIN_S: Final = 300.0
"""After so long a VM that was asked to go back and did not is asked again."""
MOVE_LIMIT_S: Final = 600.0
"""How long one move of a plan is waited for before the next is requested."""
MOVE_POLL_S: Final = 1.0
SUBJECT: Final = "cluster"
"""Under which the decision is recorded."""

R = TypeVar("R", bound=Resource)
_replace = msgspec.structs.replace
_log = get_logger("rebalance")


def rebalance_input(
    gathered: Snapshot,
    vms: Mapping[str, VirtualMachine],
    policy: RebalancePolicy,
    *,
    ours_only: bool = False,
    back: Collection[str] | None = None,
) -> RebalanceInput:
    """The question for ``failover.rebalance``; ``ours_only``: of hosts with our daemon, which carries moves out.

    ``back``: the question for ``failover.failback`` instead, about these VMs.
    """
    known = gathered.observation.hypervisors
    ours = {host.name for host in known if host.spec.management == "node"}
    hosts = {host.name: capacity for host in known if _takes_part(host) and (capacity := _capacity(host))}
    if ours_only:
        hosts = {name: capacity for name, capacity in hosts.items() if name in ours}
    sources = _fullest(gathered, hosts)
    movable = [
        view
        for view in gathered.vms
        if (view.host in sources if back is None else view.id in back and view.host in hosts)
        and view.id in vms
        and _may_move(vms[view.id], ours=view.host in ours)
    ]
    demands = {name: demands_of(vm) for name, vm in vms.items()}
    return RebalanceInput(
        hosts=tuple(BalancedHost(name=name, capacity=capacity) for name, capacity in hosts.items()),
        vms=gathered.vms,
        required=gathered.required,
        slots=gathered.observation.slots,
        free=free_table(gathered.fleet),
        destinations={
            name: tuple(host for host in places if host in hosts)
            for name, places in possible_places(gathered, movable).items()
        },
        demands={name: one for name, one in demands.items() if one.rules or one.preferred or one.host_limit},
        threshold=policy.threshold,
        moves=policy.moves,
        topology=gathered.topology,
    )


_NONE: Final = Documents()


class BalancingState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the background loop asks with: documents as they are, since of 100,000 VMs the rest takes seconds."""

    documents: Documents = _NONE
    settings: FailoverSettings
    policy: RebalancePolicy
    back: tuple[str, ...] | None = None
    """As of ``rebalance_input``."""


def _input_of(given: BalancingState) -> RebalanceInput:
    gathered = snapshot_of(given.documents, given.settings, in_flight=in_flight)
    vms = {vm.name: vm for vm in given.documents.vms}
    return rebalance_input(gathered, vms, given.policy, ours_only=True, back=given.back)


GATHERED: Final = Decision("rebalance.gather", _input_of, BalancingState, RebalanceInput, "What a plan is made from")
"""No decision, and in no record: it is computed where decisions are, so that the event loop stays free."""


def _takes_part(host: Hypervisor) -> bool:
    return not refuses(host) and host.status.degrading is None


def _capacity(host: Hypervisor) -> dict[str, int]:
    amounts = host.effective_capacity()
    return {} if amounts is None else {CPU: amounts.cpu_milli, MEMORY: amounts.memory_bytes}


def _fullest(gathered: Snapshot, hosts: Mapping[str, dict[str, int]]) -> frozenset[str]:
    used = allocated(gathered.vms)
    shares = {name: share(capacity, used.get(name, {})) for name, capacity in hosts.items()}
    return frozenset(sorted(shares, key=lambda name: (-shares[name], name))[:SOURCES])


def _may_move(vm: VirtualMachine, *, ours: bool) -> bool:
    """Whether it runs, may be moved while it does, and nothing else of it is under way."""
    if not wanted(vm) or unfinished(vm) or is_asked(vm) or active_move(vm) is not None:
        return False
    if vm.spec.migration_method == "shutdown" or state_of(vm) != VmState.START:
        return False
    return not ours or [one.seen for one in vm.status.holders] == ["running"]


def rests(cluster: Cluster | None, now: float) -> str:
    """Why nothing is moved in this cluster for balance now; empty where something may."""
    if cluster is not None and cluster.paused:
        return "the cluster is paused"
    return cluster.spec.resting(now) if cluster is not None else ""


def under_way(vms: Iterable[VirtualMachine]) -> str:
    """What of these VMs has to end before anything is moved for balance; empty where nothing does."""
    for vm in vms:
        if unfinished(vm):
            return f"{vm.name} is being recovered"
        if active_move(vm) is not None or (is_asked(vm) and vm.host):
            return f"{vm.name} is on its way, or is asked for something"
    return ""


async def request_move(store: Store, clock: Clock, ids: Ids, move: BalancingMove) -> bool:
    """Ask the VM's host for the move, live or not at all; ``False`` where the VM is not as it was planned for."""
    request = Request(id=ids.uuid(), verb="move", target=move.host, force_live=True)

    def asked(vm: VirtualMachine | None) -> VirtualMachine | None:
        if vm is None or vm.host != move.source or is_asked(vm) or active_move(vm) is not None or unfinished(vm):
            return None
        return _replace(vm, spec=_replace(vm.spec, request=request))

    after = await compare_and_swap(store, VirtualMachine, move.vm, asked, clock=clock, half="spec")
    return after is not None and after.spec.request == request


async def is_moved(store: Store, clock: Clock, move: BalancingMove) -> bool:
    """Wait until a move that was requested is over, at most ``MOVE_LIMIT_S``; whether the VM is where it was to go."""
    until = clock.monotonic() + MOVE_LIMIT_S
    while clock.monotonic() < until:
        vm = await read(store, VirtualMachine, move.vm)
        if vm is None or not (is_asked(vm) or active_move(vm) is not None):
            return vm is not None and vm.host == move.host
        await clock.sleep(MOVE_POLL_S)
    return False


def _prefers_another(vm: VirtualMachine) -> bool:
    weights = vm.spec.preferred_hosts.weights
    return bool(vm.host) and max(weights.values(), default=0) > weights.get(vm.host, 0)


def sentence(move: BalancingMove) -> str:
    """A move, and the figures that justify it."""
    return (
        f"{move.vm} moves from {move.source} ({move.source_before:.0%} full, then {move.source_after:.0%}) to "
        f"{move.host} ({move.host_before:.0%} full, then {move.host_after:.0%})"
    )


async def encoded(given: BalancingState, clock: Clock) -> bytes:
    """As JSON; others get their turn meanwhile."""
    documents = await encode_large(given.documents, clock)
    rest = encode_canonical(msgspec.structs.replace(given, documents=_NONE))
    return b'{"documents":' + documents + b"," + rest[1:]


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
        # without what a role has besides
        self._settings = FailoverSettings(
            failover=settings.failover,
            upkeep=settings.upkeep,
            protection=settings.protection,
            scheduler=settings.scheduler,
        )
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
            given = await self._gathered(documents, policy, tuple(sorted(back)))
            result = await self._decide(FAIL_BACK, given)
            for move in result.moves:
                self._sent_back[move.vm, move.source] = self._clock.monotonic()
                if await request_move(self._store, self._clock, self._ids, move):
                    note = f"{move.vm} goes back from {move.source} to {move.host}, which it prefers"
                    about = ObjectRef(kind="VirtualMachine", name=move.vm)
                    self._events.emit(about, "FailedBack", note, type="Normal", action="Failback")
                    _log.info("failback.asked", vm=move.vm, source=move.source, host=move.host)
            if result.moves or not balances:
                return LOOK_S
        given = await self._gathered(documents, policy)
        moves = await self._begin(await self._decide(REBALANCE, given))
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

    async def _gathered(
        self, documents: Documents, policy: RebalancePolicy, back: tuple[str, ...] | None = None
    ) -> bytes:
        """The input of a decision, made by whoever computes decisions."""
        given = BalancingState(documents=documents, settings=self._settings, policy=policy, back=back)
        return await self._computer.compute(GATHERED, await encoded(given, self._clock))

    async def _decide(self, decision: Decision[Any, Any], raw: bytes) -> RebalanceResult:
        answer = await self._computer.compute(decision, raw)
        result: RebalanceResult = decode_as(RebalanceResult, answer)
        self._decisions.keep(decision, raw, answer, empty=decision.is_empty(result), subject=SUBJECT)
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
