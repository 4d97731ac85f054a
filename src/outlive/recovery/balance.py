"""What is asked before VMs move for balance or back: the input of the decision, and the requests that carry it out.

The decision (``failover.rebalance``) sees what a plan sees, and VMs that run, can move live, and have nothing else
under way. A move is a request of the VM like any user's: its host answers it by the rules at that moment, so that what
has changed since the plan costs a refused request and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.failover.analysis.drain.inputs import free_table, possible_places
from outlive.failover.config import FailoverSettings
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
from outlive.failover.reconciler.decider import encode_parts
from outlive.failover.snapshot import Documents, Snapshot, snapshot_of
from outlive.node.vm.requests import is_asked
from outlive.node.vm.states import VmState, active_move, state_of, wanted
from outlive.placement.rules import demands_of
from outlive.recovery.in_flight import in_flight
from outlive.recovery.states import unfinished
from outlive.resources import CPU, MEMORY, Cluster, Hypervisor, VirtualMachine
from outlive.resources.cluster import RebalancePolicy
from outlive.resources.codec import encode_canonical
from outlive.resources.hosts import lost_places, observed_condition, out_of_service
from outlive.resources.vms import Request
from outlive.runtime.decisions import Decision, digest
from outlive.runtime.trail import RECORD_BYTES
from outlive.store import Store
from outlive.store.access import compare_and_swap, read

SOURCES: Final = 16
"""Of so many hosts, the fullest ones, VMs may leave in one plan."""
MOVE_LIMIT_S: Final = 600.0
"""How long one move of a plan is waited for before the next is requested."""
MOVE_POLL_S: Final = 1.0

_replace = msgspec.structs.replace


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


class BalancingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what is recorded of its input."""

    result: RebalanceResult
    input_digest: str
    input: bytes = b""
    """Empty where it is too large for a record."""


def _plan_of(given: BalancingState) -> BalancingPlan:
    asked = _input_of(given)
    raw = encode_canonical(asked)
    result = decision_for(given.back).function(asked)
    return BalancingPlan(result=result, input_digest=digest(raw), input=raw if len(raw) <= RECORD_BYTES else b"")


def decision_for(back: tuple[str, ...] | None) -> Decision[RebalanceInput, RebalanceResult]:
    """Which one is asked; ``back`` as of ``rebalance_input``."""
    return REBALANCE if back is None else FAIL_BACK


PLANNED: Final = Decision("rebalance.plan", _plan_of, BalancingState, BalancingPlan, "A plan, from documents")
"""No decision of its own: it computes one from documents where decisions are computed, so that the event loop has
neither its input nor the work."""


def _takes_part(host: Hypervisor) -> bool:
    return (
        not out_of_service(host)
        and observed_condition(host) is None
        and not lost_places(host)
        and host.status.degrading is None
    )


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


def sentence(move: BalancingMove) -> str:
    """A move, and the figures that justify it."""
    return (
        f"{move.vm} moves from {move.source} ({move.source_before:.0%} full, then {move.source_after:.0%}) to "
        f"{move.host} ({move.host_before:.0%} full, then {move.host_after:.0%})"
    )


async def encoded(given: BalancingState, clock: Clock) -> list[bytes]:
    """As JSON, in parts; others get their turn meanwhile."""
    documents = await encode_parts(given.documents, clock)
    rest = encode_canonical(msgspec.structs.replace(given, documents=_NONE))
    return [b'{"documents":', *documents, b"," + rest[1:]]
