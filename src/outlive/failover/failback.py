"""Which VMs go back to a host that they prefer, and how their slots change before, so that they stay covered.

A VM goes home with all of its affinity group, or not at all. Slots of theirs that would not count once they are there
are exchanged first: each VM joins, or opens, a slot that counts for it on both hosts, and then leaves the old one. So a
VM may go to the host of its own slot. Only where the VM's own limit of hosts leaves no third host the slot is exchanged
after the move (docs/how-to/policies.md#preferred-hosts). Balance is not looked at. Rules, room, slots and everyone's
coverage must be as good afterwards as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from outlive.failover.analysis.drain.inputs import DrainInput
from outlive.failover.analysis.drain.layout import Layout
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Join, Leave, Open, PlacementOffer
from outlive.failover.slots import ResolvedSize
from outlive.failover.topology import Topology
from outlive.placement import Peers, VmConstraints, VmView, amounts_of, find_companions, judge
from outlive.resources.reasons import FailBackReason, Reason, make_reason, render
from outlive.runtime import Decision

TRIES: Final = 200
"""Pairs of a VM and a host that one plan tries."""
BLOCKED: Final = 100
"""VMs of which one plan says why they do not go back."""


class VmMove(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that goes from one host to another."""

    vm: str
    source: str
    host: str


class FailBackInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fleet, and the VMs that may go back."""

    hosts: tuple[str, ...]
    """Those that VMs may leave or come to."""
    vms: tuple[VmView, ...]
    back: tuple[str, ...] = ()
    """VMs that go back by themselves and prefer a host to their own."""
    willing: tuple[str, ...] = ()
    """VMs that go back by themselves; those of ``back`` as well."""
    required: dict[str, int] = {}
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    sizes: dict[str, ResolvedSize] = {}
    """VM → size of its slots; missing means its own."""
    free: dict[str, dict[str, int]] = {}
    """Host → resource → free after VMs and all reservations. A host that is missing here has no room; an empty table
    limits nothing."""
    places: dict[str, tuple[str, ...]] = {}
    """VM that may move now → hosts that may run it, and hold its slots, if they have room."""
    demands: dict[str, VmConstraints] = {}
    """VM → what it asks of hosts and of other VMs; missing: nothing."""
    topology: Topology = Topology()


class FailBackObstacle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that does not go back to a host that it prefers."""

    vm: str
    host: str
    why: Reason

    def __str__(self) -> str:
        """A sentence."""
        return f"{self.vm} does not go back to {self.host}, which it prefers: {render(self.why).text}"


class FailBackResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is done next: slots are exchanged, then the VMs of one affinity group, or one VM, move."""

    slots: tuple[Action, ...] = ()
    """Each VM joins or opens a slot before it leaves one."""
    moves: tuple[VmMove, ...] = ()
    """All of them happen, or none."""
    blocked: tuple[FailBackObstacle, ...] = ()
    """Of those that were tried, why they stay for now."""


def fail_back(given: FailBackInput) -> FailBackResult:
    """The VM, or the affinity group, that gains most by going to a host that it prefers and that it may go to now."""
    work, blocked = _Homecoming(given), dict[str, FailBackObstacle]()
    hosts, where = {vm.id: vm.host for vm in given.vms}, set(given.hosts)
    gains = [
        (given.demands[vm].preferred[host] - given.demands[vm].preferred.get(hosts[vm], 0), vm, host)
        for vm in given.back
        if vm in hosts and vm in given.demands
        for host in given.demands[vm].preferred
        if host in where
    ]
    better = sorted((one for one in gains if one[0] > 0), key=lambda one: (-one[0], one[1], one[2]))
    for _, vm, host in better[:TRIES]:
        obstacle = work.bring(vm, host)
        if obstacle is None:
            return FailBackResult(slots=work.slots, moves=work.moves, blocked=tuple(blocked.values()))
        if vm not in blocked and len(blocked) < BLOCKED:
            blocked[vm] = FailBackObstacle(vm=vm, host=host, why=obstacle)
    return FailBackResult(blocked=tuple(blocked.values()))


class _Homecoming:
    """The fleet as one try leaves it; a try that fails is undone."""

    def __init__(self, given: FailBackInput) -> None:
        self.slots: tuple[Action, ...] = ()
        self.moves: tuple[VmMove, ...] = ()
        self._given = given
        self._vms = {vm.id: vm for vm in given.vms}
        self._ruled = [one for one in given.demands.values() if one.rules and one.id in self._vms]
        self._peers = Peers()
        for one in self._ruled:
            self._peers.put(one.id, one.rules, (self._vms[one.id].host,))
        offers = {vm: PlacementOffer(hosts=(*hosts, self._vms[vm].host)) for vm, hosts in given.places.items()}
        self._layout = Layout(
            DrainInput(
                drained=(),
                vms=given.vms,
                required=given.required,
                slots=given.slots,
                sizes=given.sizes,
                classes={vm: vm for vm in offers},
                reuse=offers,
                new=offers,
                free=given.free,
                topology=given.topology,
            )
        )

    def bring(self, vm: str, host: str) -> Reason | None:
        """Bring the VM and its affinity group to the host; what prevents it, with nothing changed."""
        group = find_companions(self._demands_of(vm), self._ruled)
        going = [one.id for one in group if self._layout.host_of(one.id) != host and not self._is_down(one.id)]
        if obstacle := self._find_staying(going, vm, host):
            return obstacle
        mark, before = self._layout.mark, self._get_weaknesses()
        for one in group:
            if self._layout.host_of(one.id) != host:
                self._peers.put(one.id, one.rules, ())
        obstacle = next((why for one in going if (why := self._move(one, host, going)) is not None), None)
        if obstacle is None:
            faulty, missing = self._get_weaknesses()
            if not faulty <= before[0] or any(count > before[1].get(one, 0) for one, count in missing.items()):
                obstacle = make_reason(FailBackReason.COVERAGE, host=host)
        if obstacle is None:
            self.moves = tuple(VmMove(vm=one, source=self._vms[one].host, host=host) for one in going)
        else:
            self._layout.undo(mark)
            self.slots = ()
            for one in group:
                self._peers.put(one.id, one.rules, (self._vms[one.id].host,))
        return obstacle

    def _find_staying(self, going: Sequence[str], vm: str, host: str) -> Reason | None:
        """Who of these does not go, whatever the host is like."""
        gain = 0
        for one in going:
            if one not in self._given.willing:
                return make_reason(FailBackReason.GROUP_STAYS, vm=one)
            if one not in self._given.places or self._vms[one].host not in self._given.hosts:
                return make_reason(FailBackReason.NOT_LIVE, vm=one)
            weights = self._demands_of(one).preferred
            gain += weights.get(host, 0) - weights.get(self._vms[one].host, 0)
        return make_reason(FailBackReason.GROUP_PREFERS, vm=vm) if gain <= 0 else None

    def _move(self, vm: str, host: str, going: Sequence[str]) -> Reason | None:
        """Exchange its slots and let it be on the host; what prevents it."""
        layout, demands, source = self._layout, self._demands_of(vm), self._vms[vm].host
        there = judge(demands, host, self._peers)
        leaving = frozenset(self._vms[one].host for one in going)
        if there.refusal is not None or -there.merit[0] > len(judge(demands, source, self._peers).against):
            why = there.refusal or there.against[0]
            return make_reason(FailBackReason.AGAINST_RULE, why=render(why).text)
        if host not in self._given.places[vm] or not layout.fleet.allowed_by_groups(vm, (host,), gone=leaving):
            return make_reason(FailBackReason.NOT_OFFERED, vm=vm, host=host)
        later = []
        for slot in next(layout.find_clashing_slots(vm, (host,)))[1]:
            if not self._exchange(vm, slot, host):
                if not self._vms[vm].host_limit:
                    return make_reason(FailBackReason.SLOT_STAYS, vm=vm, slot=slot)
                later.append(slot)
        if not layout.fleet.has_room(host, amounts_of(self._vms[vm])):
            return make_reason(FailBackReason.NO_ROOM, vm=vm, host=host)
        layout.move(vm, host)
        for slot in later:
            if not self._replace(vm, slot):
                return make_reason(FailBackReason.SLOT_STAYS, vm=vm, slot=slot)
        self._peers.put(vm, demands.rules, (host,))
        return None

    def _exchange(self, vm: str, slot: str, host: str) -> bool:
        """Let the VM have another slot instead of this one, which counts where it is and on the host as well."""
        layout, mark = self._layout, self._layout.mark
        layout.leave(vm, slot)
        other = next(
            (one for one in layout.joinable_slots(vm) if one != slot and not layout.has_clash(vm, one, host)), None
        )
        place = (
            None
            if other
            else next((one for one in layout.openable_hosts(vm) if not layout.share_unit_or_domain(one, host)), None)
        )
        if other is None and place is None:
            layout.undo(mark)
            return False
        self._take(vm, other, place)
        taken = layout.steps[-1]
        assert isinstance(taken, Join | Open), "that is what it has just done"
        self.slots = (*self.slots, taken, Leave(slot=slot, vm=vm))
        return True

    def _replace(self, vm: str, slot: str) -> bool:
        """Let the VM, where it is now, have another slot instead of this one."""
        self._layout.leave(vm, slot)
        other = next(self._layout.joinable_slots(vm), None)
        place = None if other else next(self._layout.openable_hosts(vm), None)
        self._take(vm, other, place)
        return other is not None or place is not None

    def _take(self, vm: str, slot: str | None, place: str | None) -> None:
        if slot is not None:
            self._layout.join(vm, slot)
        elif place is not None:
            self._layout.open(vm, place)

    def _get_weaknesses(self) -> tuple[frozenset[str], Mapping[str, int]]:
        """For whom a rule does not hold, and who misses slots."""
        return frozenset(self._layout.fleet.list_faulty()), dict(self._layout.fleet.missing_slots())

    def _demands_of(self, vm: str) -> VmConstraints:
        return self._given.demands.get(vm) or VmConstraints(id=vm)

    def _is_down(self, vm: str) -> bool:
        view = self._vms[vm]
        return view.stopped and not view.held


def _says_nothing(result: FailBackResult) -> bool:
    return not result.moves and not result.blocked


FAIL_BACK: Final = Decision(
    "failover.failback",
    fail_back,
    FailBackInput,
    FailBackResult,
    "Which VMs go back to a host that they prefer",
    _says_nothing,
)
