"""What is asked before VMs move for balance or back: the input of the decision, and the requests that carry it out.

The decision (``failover.rebalance``) sees what a plan sees, and VMs that run, can move live, and have nothing else
under way. A move is a request of the VM like any user's: its host answers it by the rules at that moment, so that what
has changed since the plan costs a refused request and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import Clock, Ids
from outlive.failover import (
    FAIL_BACK,
    REBALANCE,
    BalancedHost,
    BalancingMove,
    Documents,
    FailBackInput,
    FailBackResult,
    FailoverSettings,
    RebalanceInput,
    RebalanceResult,
    Snapshot,
    VmMove,
    allocated_by_host,
    fullest_share,
    snapshot_of,
)
from outlive.failover.analysis.drain import free_table, possible_places
from outlive.failover.reconciler import encode_parts
from outlive.node.vm import is_asked
from outlive.placement import VmView, demands_of
from outlive.recovery.in_flight import build_in_flight
from outlive.recovery.states import is_unfinished
from outlive.resources import (
    CPU,
    MEMORY,
    Cluster,
    RebalancePolicy,
    Request,
    VirtualMachine,
    VirtualMachineSpec,
    VmState,
    active_move,
    encode_canonical,
    explain_out_of_service,
    is_to_run,
    lost_places,
    observed_condition,
    state_of,
)
from outlive.runtime import RECORD_BYTES, Decision, compute_digest
from outlive.store import Store, change_spec, read

SOURCES: Final = 16
"""Of so many hosts, the fullest ones, VMs may leave in one plan."""
MOVE_LIMIT_S: Final = 600.0
"""How long one move of a plan is waited for before the next is requested."""
MOVE_POLL_S: Final = 1.0

_replace = msgspec.structs.replace


def rebalance_input(
    gathered: Snapshot, vms: Mapping[str, VirtualMachine], policy: RebalancePolicy, *, ours_only: bool = False
) -> RebalanceInput:
    """The question for ``failover.rebalance``; ``ours_only``: of hosts with our daemon, which carries moves out."""
    hosts = _balanced_hosts(gathered, ours_only=ours_only)
    used = allocated_by_host(gathered.vms)
    shares = {name: fullest_share(capacity, used.get(name, {})) for name, capacity in hosts.items()}
    sources = frozenset(sorted(shares, key=lambda name: (-shares[name], name))[:SOURCES])
    movable = _movable_vms(gathered, vms, (view for view in gathered.vms if view.host in sources))
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


def fail_back_input(gathered: Snapshot, vms: Mapping[str, VirtualMachine], back: Collection[str]) -> FailBackInput:
    """The question for ``failover.failback``, about these VMs and hosts with our daemon."""
    hosts, demands = _balanced_hosts(gathered, ours_only=True), {name: demands_of(vm) for name, vm in vms.items()}
    willing = {name for name, vm in vms.items() if vm.spec.failback == "auto"}
    going = (view for view in gathered.vms if view.id in willing and (view.id in back or demands[view.id].rules))
    return FailBackInput(
        hosts=tuple(hosts),
        vms=gathered.vms,
        back=tuple(sorted(back)),
        willing=tuple(sorted(willing)),
        required=gathered.required,
        slots=gathered.observation.slots,
        sizes=gathered.sizes,
        free=free_table(gathered.fleet),
        places=possible_places(gathered, _movable_vms(gathered, vms, going)),
        demands={name: one for name, one in demands.items() if one.rules or one.preferred or one.host_limit},
        topology=gathered.topology,
    )


def _balanced_hosts(gathered: Snapshot, *, ours_only: bool) -> dict[str, dict[str, int]]:
    """Host that VMs may leave or come to → its capacity."""
    found: dict[str, dict[str, int]] = {}
    for host in gathered.observation.hypervisors:
        amounts, is_lacking = host.effective_capacity(), lost_places(host) or host.status.degrading is not None
        if (
            amounts is not None
            and not is_lacking
            and not explain_out_of_service(host)
            and observed_condition(host) is None
        ):
            found[host.name] = {CPU: amounts.cpu_milli, MEMORY: amounts.memory_bytes}
    ours = _own_hosts(gathered)
    return {name: capacity for name, capacity in found.items() if name in ours} if ours_only else found


def _own_hosts(gathered: Snapshot) -> set[str]:
    return {host.name for host in gathered.observation.hypervisors if host.spec.management == "node"}


def _movable_vms(gathered: Snapshot, vms: Mapping[str, VirtualMachine], views: Iterable[VmView]) -> list[VmView]:
    ours = _own_hosts(gathered)
    return [view for view in views if view.id in vms and _may_move(vms[view.id], ours=view.host in ours)]


_NONE: Final = Documents()


class BalancingState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the background loop asks with: documents as they are, since of 100,000 VMs the rest takes seconds."""

    documents: Documents = _NONE
    settings: FailoverSettings
    policy: RebalancePolicy
    back: tuple[str, ...] | None = None
    """VMs that are to go back to hosts that they prefer: this is asked instead of balance."""


class BalancingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what is recorded of its input."""

    result: RebalanceResult | None = None
    back: FailBackResult | None = None
    """One of these two."""
    input_digest: str
    input: bytes = b""
    """Empty where it is too large for a record."""


def _plan_of(given: BalancingState) -> BalancingPlan:
    gathered = snapshot_of(given.documents, given.settings, in_flight=build_in_flight)
    vms = {vm.name: vm for vm in given.documents.vms}
    if given.back is None:
        question = rebalance_input(gathered, vms, given.policy, ours_only=True)
        plan = BalancingPlan(result=REBALANCE.function(question), input_digest="")
        raw = encode_canonical(question)
    else:
        journey = fail_back_input(gathered, vms, given.back)
        plan = BalancingPlan(back=FAIL_BACK.function(journey), input_digest="")
        raw = encode_canonical(journey)
    return _replace(plan, input_digest=compute_digest(raw), input=raw if len(raw) <= RECORD_BYTES else b"")


PLANNED: Final = Decision("rebalance.plan", _plan_of, BalancingState, BalancingPlan, "A plan, from documents")
"""No decision of its own: it computes one from documents where decisions are computed, so that the event loop has
neither its input nor the work."""


def _may_move(vm: VirtualMachine, *, ours: bool) -> bool:
    """Whether it runs, may be moved while it does, and nothing else of it is under way."""
    if not is_to_run(vm) or is_unfinished(vm) or is_asked(vm) or active_move(vm) is not None:
        return False
    if vm.spec.move_method == "shutdown" or state_of(vm) != VmState.START:
        return False
    return not ours or [one.seen for one in vm.status.holders] == ["running"]


def resting_reason(cluster: Cluster | None, now: float) -> str:
    """Why nothing is moved in this cluster for balance now; empty where something may."""
    if cluster is not None and cluster.paused:
        return "the cluster is paused"
    return cluster.spec.resting_reason(now) if cluster is not None else ""


def explain_unfinished(vms: Iterable[VirtualMachine]) -> str:
    """What of these VMs has to end before anything is moved for balance; empty where nothing does."""
    for vm in vms:
        if is_unfinished(vm):
            return f"{vm.name} is being recovered"
        if active_move(vm) is not None or (is_asked(vm) and vm.host):
            return f"{vm.name} is on its way, or is asked for something"
    return ""


async def request_move(store: Store, clock: Clock, ids: Ids, move: VmMove, *, with_group: bool = False) -> bool:
    """Ask the VM's host for the move, live or not at all; ``False`` where the VM is not as it was planned for.

    ``with_group``: as of ``Request``.
    """
    request = Request(id=ids.new_uuid(), verb="move", target=move.host, force_live=True, with_group=with_group)

    def set_request(vm: VirtualMachine) -> VirtualMachineSpec | None:
        if vm.host != move.source or is_asked(vm) or active_move(vm) is not None or is_unfinished(vm):
            return None
        return _replace(vm.spec, request=request)

    after = await change_spec(store, VirtualMachine, move.vm, set_request, clock=clock)
    return after is not None and after.spec.request == request


async def move_together(store: Store, clock: Clock, ids: Ids, moves: Sequence[VmMove]) -> str:
    """Move these VMs one after the other, all or none: the VM that did not move, after those before it were brought
    back; empty where all moved.

    Bounded by ``MOVE_LIMIT_S`` a move. Where a process ends in between, or a move back fails too, the rest of the group
    is asked for again by the next plan, and ``outlive why`` names the rule that the VMs go against meanwhile.
    """
    moved: list[VmMove] = []
    for move in moves:
        requested = await request_move(store, clock, ids, move, with_group=True)
        if not requested or not await is_moved(store, clock, move):
            for done in reversed(moved):
                back = VmMove(vm=done.vm, source=done.host, host=done.source)
                if await request_move(store, clock, ids, back, with_group=True):
                    await is_moved(store, clock, back)
            return move.vm
        moved.append(move)
    return ""


async def is_moved(store: Store, clock: Clock, move: VmMove) -> bool:
    """Wait until a move that was requested is over, at most ``MOVE_LIMIT_S``; whether the VM is where it was to go."""
    until = clock.monotonic() + MOVE_LIMIT_S
    while clock.monotonic() < until:
        vm = await read(store, VirtualMachine, move.vm)
        if vm is None or not (is_asked(vm) or active_move(vm) is not None):
            return vm is not None and vm.host == move.host
        await clock.sleep(MOVE_POLL_S)
    return False


def describe_move(move: BalancingMove) -> str:
    """A move, and the figures that justify it."""
    return (
        f"{move.vm} moves from {move.source} ({move.source_before:.0%} full, then {move.source_after:.0%}) to "
        f"{move.host} ({move.host_before:.0%} full, then {move.host_after:.0%})"
    )


async def encode_state(given: BalancingState, clock: Clock) -> list[bytes]:
    """As JSON, in parts; others get their turn meanwhile."""
    documents = await encode_parts(given.documents, clock)
    rest = encode_canonical(msgspec.structs.replace(given, documents=_NONE))
    return [b'{"documents":', *documents, b"," + rest[1:]]
