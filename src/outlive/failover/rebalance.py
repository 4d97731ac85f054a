"""Which VMs move from full hosts to emptier ones: few moves, each with the figures that justify it.

How full a host is, is the share of its capacity that its VMs are allocated, of cores or of memory, whichever is more.
The imbalance is the fullest host's share less the emptiest one's. Nothing happens until it is above the threshold; then
VMs move between hosts whose shares are further apart than half of it, until none is left for which that helps. Between
the two nothing moves to and fro: a plan that was carried out leaves nothing to be planned
(docs/design/failover.md#rebalancing).

Each move is tried on the fleet first. It must leave every rule, every slot and everybody's coverage as good as they
were, and needs room beside all slots and reservations; what VMs ask of hosts says ``placement.rules``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from outlive.failover.failback import VmMove
from outlive.failover.fleet import FleetIndex, FreeAmounts
from outlive.failover.model import SlotView
from outlive.failover.topology import Topology
from outlive.placement import Peers, VmConstraints, VmView, amounts_of, judge
from outlive.resources import CPU, MEMORY
from outlive.runtime import Decision

THRESHOLD: Final = 0.2
"""The imbalance above which VMs move."""
MOVES: Final = 4
"""Moves of one plan."""
GAIN: Final = 0.01
"""By so much of its capacity at least a move relieves the fuller one of its two hosts."""
DIGITS: Final = 4
"""Of the shares in an answer."""


class BalancedHost(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A host that takes part."""

    name: str
    capacity: dict[str, int] = {}
    """Of cores, in thousandths, and of memory, in bytes."""


class RebalanceInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fleet, and the VMs that may move."""

    hosts: tuple[BalancedHost, ...]
    """Those that VMs may leave or come to."""
    vms: tuple[VmView, ...]
    required: dict[str, int] = {}
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    free: dict[str, dict[str, int]] = {}
    """Host → resource → free after VMs and all reservations. A host that is missing here has no room; an empty table
    limits nothing."""
    destinations: dict[str, tuple[str, ...]] = {}
    """VM that may move → hosts that may run it if they have room."""
    demands: dict[str, VmConstraints] = {}
    """VM → what it asks of hosts and of other VMs; missing: nothing."""
    threshold: float = THRESHOLD
    moves: int = MOVES
    topology: Topology = Topology()


class BalancingMove(VmMove, frozen=True, kw_only=True, rename="camel"):
    """A VM moves, and how full its two hosts are before and after."""

    source_before: float
    source_after: float
    host_before: float
    host_after: float


class BalanceReason(enum.StrEnum):
    """Why there are no more moves."""

    EVEN = "even"
    """The imbalance is not above the threshold."""
    BALANCED = "balanced"
    """No two hosts are left that are further apart than half of the threshold."""
    LIMIT = "limit"
    """The number of moves is reached; the next plan goes on."""
    NOTHING_HELPS = "nothing-helps"
    """No VM of a fuller host may, or helps to, move to an emptier one."""


class RebalanceResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The moves in order, and what they come to."""

    before: float = 0.0
    """Imbalance now …"""
    after: float = 0.0
    """… and after all moves."""
    why: BalanceReason = BalanceReason.EVEN
    moves: tuple[BalancingMove, ...] = ()


def rebalance(given: RebalanceInput) -> RebalanceResult:
    """At most ``moves`` moves that make the fleet more even; none unless it is more uneven than ``threshold``."""
    work = _Balancing(given)
    before = work.compute_imbalance()
    if before <= given.threshold:
        return RebalanceResult(before=round(before, DIGITS), after=round(before, DIGITS))
    steps: list[BalancingMove] = []
    while len(steps) < given.moves and (step := work.step()) is not None:
        steps.append(step)
    if steps:
        work = _Balancing(given)
    moves, left_out = work.merge_steps(steps)
    after = work.compute_imbalance()
    if len(steps) >= given.moves or (left_out and moves):
        why = BalanceReason.LIMIT
    else:
        why = BalanceReason.BALANCED if after <= given.threshold / 2 else BalanceReason.NOTHING_HELPS
    return RebalanceResult(before=round(before, DIGITS), after=round(after, DIGITS), why=why, moves=moves)


def allocated_by_host(vms: tuple[VmView, ...]) -> dict[str, dict[str, int]]:
    """Host → what its VMs that run, or are to, are allocated."""
    found: dict[str, dict[str, int]] = {}
    for vm in vms:
        if vm.held or not vm.stopped:
            used = found.setdefault(vm.host, {CPU: 0, MEMORY: 0})
            used[CPU] += vm.cpu_milli
            used[MEMORY] += vm.memory_bytes
    return found


def fullest_share(capacity: Mapping[str, int], used: Mapping[str, int]) -> float:
    """How full a host is: of cores or of memory, whichever is more. One of unknown capacity counts as full."""
    shares = [used.get(name, 0) / capacity[name] for name in (CPU, MEMORY) if capacity.get(name, 0) > 0]
    return max(shares, default=1.0)


class _Balancing:
    """The fleet as the moves so far leave it."""

    def __init__(self, given: RebalanceInput) -> None:
        self._given = given
        self._apart = given.threshold / 2
        self._vms = {vm.id: vm for vm in given.vms}
        self._capacity = {host.name: host.capacity for host in given.hosts}
        used = allocated_by_host(given.vms)
        self._used = {name: used.get(name, {CPU: 0, MEMORY: 0}) for name in self._capacity}
        self._shares = {name: fullest_share(self._capacity[name], self._used[name]) for name in sorted(self._capacity)}
        self._fleet = FleetIndex.build(
            sorted(given.slots, key=lambda slot: slot.name), given.vms, given.required, given.topology
        )
        self._fleet.set_free(FreeAmounts.from_resources(given.free))
        self._peers = Peers()
        for name, demands in given.demands.items():
            if demands.rules and name in self._vms:
                self._peers.put(name, demands.rules, (self._vms[name].host,))
        self._destinations = {
            name: frozenset(hosts) | {self._vms[name].host}  # it may come back, if others have left
            for name, hosts in given.destinations.items()
            if name in self._vms
        }
        self._on: dict[str, set[str]] = {name: set() for name in self._capacity}
        for name in given.destinations:
            if name in self._vms and self._vms[name].host in self._on:
                self._on[self._vms[name].host].add(name)

    def compute_imbalance(self) -> float:
        """How far the fullest and the emptiest host are apart."""
        return max(self._shares.values(), default=0.0) - min(self._shares.values(), default=0.0)

    def step(self) -> BalancingMove | None:
        """The next move: from the fullest host from which one helps, of the VM that helps most."""
        by_share = sorted(self._shares, key=lambda name: (self._shares[name], name))
        for source in sorted(self._shares, key=lambda name: (-self._shares[name], name)):
            for vm in self._order_candidates(source, by_share):
                for host in self._iter_emptier(source, by_share):
                    without, filled = self._share_without(vm, source), self._share_with(vm, host)
                    relieved = max(without, filled) <= self._shares[source] - GAIN and without >= self._shares[host]
                    if relieved and self._may_run(vm, source, host) and self._holds(vm, host):
                        return self._apply_move(vm, source, host)
        return None

    def merge_steps(self, steps: Sequence[BalancingMove]) -> tuple[tuple[BalancingMove, ...], bool]:
        """The steps as moves: of a VM with several of them one, from where it is to where it ends, or none.

        Each is tried on the fleet that those before it leave. The first that harms somebody is left out with all that
        follow, which the second value says.
        """
        ends = {step.vm: step.host for step in steps}
        last = {step.vm: number for number, step in enumerate(steps)}
        moves: list[BalancingMove] = []
        for vm in sorted(last, key=last.__getitem__):
            source, host = self._vms[vm].host, ends[vm]
            if host == source:
                continue
            if not self._may_run(vm, source, host) or not self._holds(vm, host):
                return tuple(moves), True
            moves.append(self._apply_move(vm, source, host))
        return tuple(moves), False

    def _iter_emptier(self, source: str, by_share: Sequence[str]) -> Iterator[str]:
        """Hosts that are so much emptier that something is to be done about it, the emptiest first."""
        limit = self._shares[source] - self._apart
        for host in by_share:
            if self._shares[host] >= limit:
                return
            yield host

    def _order_candidates(self, source: str, by_share: Sequence[str]) -> list[str]:
        """VMs of the host that may move, the one first that would leave the two hosts most alike."""
        emptiest = next(self._iter_emptier(source, by_share), None)
        if emptiest is None:
            return []

        def share_after(name: str) -> float:
            return max(self._share_without(name, source), self._share_with(name, emptiest))

        return sorted(self._on[source], key=lambda name: (share_after(name), name))

    def _share_without(self, vm: str, host: str) -> float:
        return fullest_share(self._capacity[host], _add_amounts(self._used[host], self._vms[vm], -1))

    def _share_with(self, vm: str, host: str) -> float:
        return fullest_share(self._capacity[host], _add_amounts(self._used[host], self._vms[vm], 1))

    def _may_run(self, vm: str, source: str, host: str) -> bool:
        """Whether placement, the VM's rules and its preferences allow it there, and like it as well as where it is."""
        if host not in self._destinations[vm] or not self._fleet.allowed_by_groups(vm, (host,)):
            return False
        demands = self._given.demands.get(vm)
        if demands is None:
            return True
        there = judge(demands, host, self._peers)
        return there.allowed and there.merit >= judge(demands, source, self._peers).merit

    def _holds(self, vm: str, host: str) -> bool:
        """Whether there is room, and everything that held before holds after it; then it is so on the fleet."""
        fleet, view = self._fleet, self._vms[vm]
        if not fleet.has_room(host, amounts_of(view)):
            return False
        if any(fleet.separation.share_domain(fleet.host_of_slot(slot), host) for slot in fleet.slots_of(vm)):
            return False
        faulty, missing = set(fleet.list_faulty()), fleet.missing_slots()
        mark = fleet.set_savepoint()
        fleet.move(view, host)
        worse = not faulty.issuperset(fleet.list_faulty())
        worse = worse or any(count > missing.get(one, 0) for one, count in fleet.missing_slots().items())
        if worse:
            fleet.roll_back(mark)
            return False
        fleet.release(mark)
        return True

    def _apply_move(self, vm: str, source: str, host: str) -> BalancingMove:
        """What the move makes of the shares; the fleet is not asked."""
        view, before = self._vms[vm], (self._shares[source], self._shares[host])
        self._used[source], self._used[host] = (
            _add_amounts(self._used[source], view, -1),
            _add_amounts(self._used[host], view, 1),
        )
        for name in (source, host):
            self._shares[name] = fullest_share(self._capacity[name], self._used[name])
        self._on[source].discard(vm)
        self._on[host].add(vm)
        demands = self._given.demands.get(vm)
        if demands is not None and demands.rules:
            self._peers.put(vm, demands.rules, (host,))
        return BalancingMove(
            vm=vm,
            source=source,
            host=host,
            source_before=round(before[0], DIGITS),
            source_after=round(self._shares[source], DIGITS),
            host_before=round(before[1], DIGITS),
            host_after=round(self._shares[host], DIGITS),
        )


def _add_amounts(used: Mapping[str, int], vm: VmView, times: int) -> dict[str, int]:
    return {CPU: used[CPU] + times * vm.cpu_milli, MEMORY: used[MEMORY] + times * vm.memory_bytes}


def _moves_nothing(result: RebalanceResult) -> bool:
    return not result.moves


REBALANCE: Final = Decision(
    "failover.rebalance",
    rebalance,
    RebalanceInput,
    RebalanceResult,
    "Which VMs move from full hosts to emptier ones",
    _moves_nothing,
)
