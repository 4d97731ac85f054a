"""Plan a whole fleet: from nothing, or topping up what is there.

The greedy order of upkeep (docs/design/failover.md#packing) without the limits of a cycle: every VM is
served, and a host may receive any number of new slots. For ``failover plan``, a cold start and forecasts; nothing is
written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from outlive.failover.analysis.bound import BoundInput, compute_bound
from outlive.failover.fleet import FleetIndex, FreeAmounts, slot_amounts
from outlive.failover.model import HostView, SlotView
from outlive.failover.planner.actions import (
    Action,
    Claim,
    Fail,
    Join,
    Need,
    Open,
    PlanInput,
    new_slot,
    offered_hosts,
    open_action,
)
from outlive.failover.planner.assign import result_of
from outlive.failover.planner.greedy import Greedy
from outlive.failover.planner.packing import pack, pack_in_layers
from outlive.failover.planner.selection import Missing, SelectInput, count_present, select, serve_all
from outlive.failover.rules import serves
from outlive.failover.separation import ServerGroup, groups_of

__all__ = ["PlanInput", "PlanResult", "Reserves", "plan", "shortfalls_of", "sum_reserves", "with_room_of"]

SLOTS_OVER_BOUND = 1.9
"""The estimate of the best size of slots assumes so many times the slots of the lower bound."""
SMALL_MEMBERSHIPS = 5_000
"""Up to so many missing memberships several sizes are tried, and no limit as well."""
MIDDLE_MEMBERSHIPS = 30_000
"""Up to so many two sizes are tried, beyond it one."""


class Reserves(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What slots hold together."""

    slots: int
    cpu_milli: int
    memory_bytes: int


class PlanResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to do, in order, and the slots that result."""

    actions: tuple[Action, ...] = ()
    slots: tuple[SlotView, ...] = ()
    missing: int = 0
    """VMs that missed slots before."""
    reused: int = 0
    created: int = 0
    failed: int = 0
    cut_short: bool = False
    """Whether the search was ended before its effort was spent."""
    without_search: Reserves | None = None
    """What the plan that the search began with reserves; only where there was a search."""

    @classmethod
    def from_actions(cls, actions: Sequence[Action], slots: Sequence[SlotView], *, missing: int) -> PlanResult:
        """These actions, counted, and what they lead to."""
        kinds = Counter(map(type, actions))
        return cls(
            actions=tuple(actions),
            slots=tuple(slots),
            missing=missing,
            reused=kinds[Join],
            created=kinds[Open],
            failed=kinds[Fail],
        )


def plan(given: PlanInput, *, worded: bool = True, keep_going: Callable[[], bool] = lambda: True) -> PlanResult:
    """Serve every VM that misses slots, in the order of service.

    With ``packing`` the plan is made with several limits on the members of a slot, and the best one is returned: by
    priority from the highest down the fewest VMs without any slot and the fewest slots missing, then the fewest VMs
    that miss any, then the least reserved memory, then the fewest slots. With ``effort_s`` it is improved by search,
    until ``keep_going`` says that it is enough. ``worded`` as for ``Greedy.serve``.
    """
    slots = sorted(given.slots, key=lambda slot: slot.name)
    chosen = select(
        SelectInput(
            vms=given.vms,
            slots=tuple(slots),
            required=given.required,
            priorities=given.priorities,
        )
    ).selected
    vms = {vm.id: vm for vm in given.vms}
    claims = [
        Claim(
            vm=vms[one.vm],
            need=Need(
                vm=one.vm,
                needed=one.needed,
                size=given.size_of(vms[one.vm]),
                offer_class=given.classes.get(one.vm, ""),
            ),
            present=one.present,
            priority=given.priorities.get(one.vm, 0),
        )
        for one in chosen
    ]
    layered = _plan_layers(given, slots, claims)
    if layered is not None and _is_minimal(given, layered):
        return layered
    tried = [_greedy_plan(given, slots, claims, most, worded=worded) for most in _limits_to_try(given, chosen)]

    def cost_of(one: PlanResult) -> Any:
        return (
            shortfalls_of(given, one.slots),
            one.failed,
            sum(slot.memory_bytes for slot in one.slots),
            len(one.slots),
        )

    best = min(tried, key=cost_of)
    if layered is not None:
        return min(layered, best, key=cost_of)
    if given.effort_s <= 0 or not _may_pack(given, claims):
        return best
    better, cut_short = pack(given, slots, best.slots, still=_bound_vms(given), keep_going=keep_going)
    promised = Counter(member for slot in best.slots for member in slot.members)
    packed = _carried_out(given, slots, better, claims, promised) if better else None
    least = min(best, packed, key=cost_of) if packed is not None else best
    return msgspec.structs.replace(least, cut_short=cut_short, without_search=sum_reserves(best.slots))


def sum_reserves(slots: Iterable[SlotView]) -> Reserves:
    """What these slots hold together."""
    held = list(slots)
    return Reserves(
        slots=len(held),
        cpu_milli=sum(slot.cpu_milli for slot in held),
        memory_bytes=sum(slot.memory_bytes for slot in held),
    )


def with_room_of(free: Mapping[str, tuple[int, int]], slots: Iterable[SlotView]) -> dict[str, tuple[int, int]]:
    """What would be free if there were not these slots; hosts that are not in the table stay out of it."""
    found = dict(free)
    for slot in slots:
        if slot.host in found:
            cpu, memory = found[slot.host]
            found[slot.host] = (cpu + slot.cpu_milli, memory + slot.memory_bytes)
    return found


def shortfalls_of(given: PlanInput, slots: Iterable[SlotView]) -> tuple[tuple[int, int], ...]:
    """By priority, the highest first: the VMs without any slot, and the slots that are missing."""
    present = count_present(given.vms, slots)
    found: dict[int, tuple[int, int]] = {}
    for vm, needed in given.required.items():
        bare, missing = found.get(given.priorities.get(vm, 0), (0, 0))
        has = min(needed, present.get(vm, 0))
        found[given.priorities.get(vm, 0)] = (bare + (needed > has == 0), missing + needed - has)
    return tuple(found[priority] for priority in sorted(found, reverse=True))


def _may_pack(given: PlanInput, claims: Sequence[Claim]) -> bool:
    """Whether packing knows everything that binds this plan."""
    return given.packing and not given.one_new_per_host and bool(claims)


def _plan_layers(given: PlanInput, slots: list[SlotView], claims: Sequence[Claim]) -> PlanResult | None:
    """The plan in layers, where nobody needs more than one slot and everybody gets it this way."""
    if not _may_pack(given, claims) or any(claim.need.needed > 1 or claim.present for claim in claims):
        return None
    members = {member for slot in slots for member in slot.members}
    if _bound_vms(given) or any(claim.vm.id in members for claim in claims):
        return None
    found = pack_in_layers(given, slots, [claim.vm for claim in claims])
    return _carried_out(given, slots, found, claims, {claim.vm.id: 1 for claim in claims}) if found else None


def _is_minimal(given: PlanInput, result: PlanResult) -> bool:
    """Whether no plan can reserve less memory."""
    hosts = tuple(HostView(name=host) for host in given.hosts)
    topology = given.topology
    least = compute_bound(BoundInput(vms=given.vms, required=given.required, hosts=hosts, topology=topology))
    return sum(slot.memory_bytes for slot in result.slots) <= least.memory_bytes


def _bound_vms(given: PlanInput) -> frozenset[str]:
    """The members of server groups that bind: packing leaves their memberships as they are."""
    return frozenset(member for group in _server_groups(given) for member in group.members)


def _server_groups(given: PlanInput) -> tuple[ServerGroup, ...]:
    return groups_of(given.vms, given.required) if given.topology.server_groups else ()


def _carried_out(
    given: PlanInput,
    before: Sequence[SlotView],
    found: Sequence[SlotView],
    claims: Sequence[Claim],
    promised: Mapping[str, int],
) -> PlanResult | None:
    """The plan that leads to the slots that packing found, with one more try for those whom it gave too little.

    Memberships of a valid plan may be added in any order, because taking some away never breaks a rule. ``None`` where
    an action is refused by the rules, separation, room or placement, or where anybody has less than ``promised``.
    """
    work = _Execution(given, before)
    if not all(map(work.fill, found)) or work.fleet.list_faulty():
        return None
    slots = work.list_slots()
    has = Counter(vm for slot in slots for vm in slot.members)
    if any(has[vm] < count for vm, count in promised.items()):
        return None
    got = Counter(action.vm for action in work.actions)
    left = [claim.subtract(got[claim.vm.id]) for claim in claims if claim.need.needed > got[claim.vm.id]]
    later = PlanResult(slots=tuple(slots))
    if left:
        later = _greedy_plan(msgspec.structs.replace(given, free=work.fleet.free_table(given.free)), slots, left, 0)
    return PlanResult.from_actions((*work.actions, *later.actions), later.slots, missing=len(claims))


class _Execution:
    """The fleet as the actions so far leave it."""

    def __init__(self, given: PlanInput, before: Iterable[SlotView]) -> None:
        self.actions: list[Join | Open] = []
        self._given = given
        self._vms = {vm.id: vm for vm in given.vms}
        self._before = {slot.name: slot for slot in before}
        self._slots = dict(self._before)
        self._members = {name: dict(slot.members) for name, slot in self._slots.items()}
        self._reuse, self._new = offered_hosts(given.reuse), offered_hosts(given.new)
        self.fleet = FleetIndex.build(self._slots.values(), given.vms, given.required, given.topology)
        self.fleet.set_free(FreeAmounts.from_table(given.free))
        self._serial = 0

    def list_slots(self) -> list[SlotView]:
        """All slots with their members, those that were there before first."""
        return [msgspec.structs.replace(slot, members=self._members[name]) for name, slot in self._slots.items()]

    def fill(self, found: SlotView) -> bool:
        """Let its members join the slot, which is opened if it was not there before; whether that was possible."""
        slot = self._before.get(found.name)
        if slot is None:
            return not found.members or self._open(found)
        return all(self._join(vm, slot) for vm in found.members if vm not in slot.members)

    def _join(self, vm: str, slot: SlotView) -> bool:
        view, fleet = self._vms[vm], self.fleet
        number, place = fleet.vm_number(vm), fleet.slot_number(slot.name)
        if not self._is_offered(self._reuse, vm, slot.host) or not serves(view, slot):
            return False
        if not fleet.separation.allowed_slots(vm, fleet.admissible_slots(number) & fleet.slot_bit(place)):
            return False
        fleet.join_slot(number, place, proven=True)
        self._members[slot.name][vm] = view.host
        self.actions.append(Join(slot=slot.name, vm=vm, vm_host=view.host, host=slot.host))
        return True

    def _open(self, found: SlotView) -> bool:
        """The first of its members that placement lets open it there does so, and the others join it."""
        fleet, host = self.fleet, found.host
        opener = next((vm for vm in found.members if self._is_offered(self._new, vm, host)), None)
        if opener is None or not fleet.has_room(host, slot_amounts(found)):
            return False
        view = self._vms[opener]
        size = msgspec.structs.replace(
            self._given.size_of(view), cpu_milli=found.cpu_milli, memory_bytes=found.memory_bytes
        )
        self._serial += 1
        while f"new-{self._serial}" in self._slots:
            self._serial += 1
        slot = new_slot(f"new-{self._serial}", host, view, size)
        if not (fleet.may_open(opener, host) and fleet.separation.allows(opener, host) and serves(view, slot)):
            return False
        fleet.open(slot)
        fleet.join(opener, slot.name)
        self._slots[slot.name], self._members[slot.name] = slot, {opener: view.host}
        self.actions.append(open_action(slot, opener, view.host))
        return all(self._join(vm, slot) for vm in found.members if vm != opener)

    def _is_offered(self, offers: Mapping[str, frozenset[str]], vm: str, host: str) -> bool:
        return host in offers.get(self._given.classes.get(vm, ""), ())


def _limits_to_try(given: PlanInput, chosen: Sequence[Missing]) -> list[int]:
    """Limits on the members of a slot to try; 0 is none.

    Filling slots as far as the rules allow makes a VM's first slot meet nearly every host, so that hardly any slot
    is left for its second one. Slots of an even, middling size do with far fewer; which size is best is found by trying
    around an estimate from the lower bound.
    """
    memberships = sum(one.needed for one in chosen)
    if not given.packing or max((one.required for one in chosen), default=0) < 2:
        return [0]
    hosts = tuple(HostView(name=host) for host in given.hosts)
    least = compute_bound(BoundInput(vms=given.vms, required=given.required, hosts=hosts)).slots
    middle = memberships / (SLOTS_OVER_BOUND * max(1, least))
    if memberships <= SMALL_MEMBERSHIPS:
        factors: tuple[float, ...] = (0.7, 0.85, 1.0, 1.2, 1.45, 1.75)
    else:
        factors = (1.0,) if memberships > MIDDLE_MEMBERSHIPS else (1.0, 1.3)
    limits = sorted({max(2, round(middle * factor)) for factor in factors})
    return [0, *limits] if memberships <= SMALL_MEMBERSHIPS else limits


def _greedy_plan(
    given: PlanInput, slots: Sequence[SlotView], claims: Sequence[Claim], most_members: int, *, worded: bool = True
) -> PlanResult:
    """``most_members``: nobody joins a slot that has so many; 0: no limit."""
    ranked, groups = sorted(slots, key=lambda slot: slot.name), _server_groups(given)

    def begin() -> Greedy:
        fleet = FleetIndex.build(ranked, topology=given.topology)
        fleet.separation.take(groups)
        greedy = Greedy(
            fleet,
            reuse=given.reuse,
            new=given.new,
            free=given.free,
            hosts=given.hosts,
            one_new_per_host=given.one_new_per_host,
            most_members=most_members,
        )
        greedy.expect(claim.need for claim in claims)
        return greedy

    greedy, actions = serve_all(claims, begin, worded=worded)
    return PlanResult.from_actions(actions, result_of(slots, actions, greedy.opened).slots, missing=len(claims))
