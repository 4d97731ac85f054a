"""Plan existing slots anew, and switch VM after VM to the new ones, each joining before it leaves.

Slots that were made for one slot a VM touch nearly every host, so that hardly any second slot is left beside them:
raising what VMs need by adding to them fails where a plan from nothing succeeds. So the fleet is planned from nothing,
with the room that the present slots hold, and then a way there is looked for
(docs/design/failover.md#replanning):

* A VM joins at least as many new slots as it has, then leaves all old ones. New slots only have VMs that have switched
  and old ones only those that have not, so that at any time the rules hold for everybody: every part of a valid plan is
  one. While a VM is in both, its own old and new slots may clash with each other, which lowers nobody's tolerance.
* A new slot is opened once its host has room. Old slots are emptied in the order in which that works; what a VM gets
  beyond what it had comes last.

Where slots of a server group are not as its policy asks, those of the VMs concerned are planned anew first, beside all
others, which stay as they are.

Not promised: that everybody switches. Where room for the new slots is only found under old ones that cannot be emptied
first, those VMs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

import msgspec

from outlive.failover.check import CheckInput, ViolationKind, check, find_separation_violations
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.fleet import FleetIndex, FreeAmounts, slot_amounts
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Join, Leave, Open, offered_hosts, open_action
from outlive.failover.planner.plan import PlanInput, PlanResult, plan, shortfalls_of, with_room_of
from outlive.failover.planner.selection import count_present
from outlive.placement import may_run_on
from outlive.resources import MEMORY

PASSES: Final = 50
"""Times that all old slots are looked at, and then all VMs that are still in one, until nobody switches."""
WORTH_SHARE: Final = 0.02
"""Where nobody gains, a plan is only changed if it holds so much less memory."""
MISSING_SHARE: Final = 0.1
"""Where topping up succeeds, planning anew is tried only if so many of all memberships are missing."""


def replan(given: PlanInput, *, keep_going: Callable[[], bool] = lambda: True) -> PlanResult:
    """The better of topping up and planning anew; offers are needed for every VM that needs slots.

    ``given.free`` is what is free beside all slots. Slots that are not ready, and those with members that are unknown
    or have no class, stay as they are.
    """
    added = plan(given, keep_going=keep_going)
    hosts = {vm.id: vm.host for vm in given.vms if vm.id in given.classes}
    old, kept = list[SlotView](), list[SlotView]()
    for slot in sorted(given.slots, key=lambda slot: slot.name):
        mine = slot.ready is not False and not slot.consumer and slot.host in given.free and slot.members
        ours = mine and all(hosts.get(vm) == at for vm, at in slot.members.items())
        (old if ours else kept).append(slot)
    regrouped = _replan_groups(given, old, added.missing)
    if regrouped is not None and shortfalls_of(given, regrouped.slots) <= shortfalls_of(given, added.slots):
        return regrouped
    much_is_missing = added.reused + added.created > MISSING_SHARE * sum(given.required.values())
    if not old or not (added.failed or much_is_missing):
        return added
    bare = msgspec.structs.replace(given, slots=tuple(kept), free=with_room_of(given.free, old))
    target = plan(bare, worded=False, keep_going=keep_going)
    switched = _Switching(given, old, target).switch_all(added.missing)
    if switched is None:
        return added
    after, before = shortfalls_of(given, switched.slots), shortfalls_of(given, added.slots)
    if after != before:
        return switched if after < before else added
    held = sum(slot.memory_bytes for slot in added.slots)
    return switched if sum(slot.memory_bytes for slot in switched.slots) < (1 - WORTH_SHARE) * held else added


def _replan_groups(given: PlanInput, old: Sequence[SlotView], missing: int) -> PlanResult | None:
    """The VMs of server groups whose slots are not as asked change to new slots; ``None`` where that is no plan."""
    against = [
        one
        for one in find_separation_violations(given.vms, given.slots, given.topology, given.required)
        if one.fault is ViolationKind.SERVER_GROUP
    ]
    concerned = {vm for one in against for vm in (one.vm, *one.others)}
    theirs = [slot for slot in old if not concerned.isdisjoint(slot.members)]
    if not theirs:
        return None
    names = {slot.name for slot in theirs}
    kept = [slot for slot in given.slots if slot.name not in names]
    present = count_present(given.vms, kept)
    bare = msgspec.structs.replace(
        given,
        slots=tuple(msgspec.structs.replace(slot, ready=False) for slot in kept),
        required={vm: max(0, need - present.get(vm, 0)) for vm, need in given.required.items()},
        free=with_room_of(given.free, theirs),
    )
    return _Switching(given, theirs, plan(bare, worded=False)).switch_all(missing)


class _Switching:
    """The fleet as the actions so far leave it, and where everybody is to be in the end."""

    def __init__(self, given: PlanInput, old: Sequence[SlotView], target: PlanResult) -> None:
        self._given = given
        self._vms = {vm.id: vm for vm in given.vms}
        self._old = {slot.name: slot for slot in old}
        self._had: dict[str, list[str]] = {}
        for slot in old:
            for vm in slot.members:
                self._had.setdefault(vm, []).append(slot.name)
        opened = {action.slot_key for action in target.actions if isinstance(action, Open)}
        taken = {slot.name for slot in given.slots}
        free_keys = (key for serial in count(1) if (key := f"new-{serial}") not in taken)
        keys = {slot.name: next(free_keys) if slot.name in opened else slot.name for slot in target.slots}
        self._new = {key: msgspec.structs.replace(slot, name=key) for slot in target.slots for key in [keys[slot.name]]}
        """Slots of the target."""
        self._gets: dict[str, list[str]] = {}
        """VM → new slots that it is to have."""
        self._joins_kept: list[Join] = []
        """Who is to join slots that stay: last, because their members may still be in old slots."""
        for action in target.actions:
            if isinstance(action, Open):
                self._gets.setdefault(action.vm, []).append(keys[action.slot_key])
            elif isinstance(action, Join) and action.slot in opened:
                self._gets.setdefault(action.vm, []).append(keys[action.slot])
            elif isinstance(action, Join):
                self._joins_kept.append(action)
        self._may_reuse, self._may_open = offered_hosts(given.reuse), offered_hosts(given.new)
        self._slots = {slot.name: slot for slot in given.slots}
        """As they were given or opened; who is in them now is known to the fleet."""
        self._fleet = FleetIndex.build(given.slots, given.vms, given.required, given.topology)
        self._fleet.set_free(FreeAmounts.from_table(given.free))
        self._actions: list[Action] = []
        self._target = ConflictIndex.build(self._new.values(), given.vms, given.required, given.topology)
        """Where everybody is once all have switched."""

    def switch_all(self, missing: int) -> PlanResult | None:
        """Everything that can be switched is, and the rest is topped up; ``None`` where that is no plan."""
        fleet = self._fleet
        for _ in range(PASSES):
            # The members of each old slot, those slots first that hold most for each member; then single VMs.
            old = sorted(self._old.values(), key=lambda slot: (-slot.memory_bytes / len(slot.members), slot.name))
            changed = [self._switch(fleet.members_of(slot.name)) for slot in old if fleet.has_slot(slot.name)]
            if not any(changed):
                changed = [self._switch([vm]) for vm in sorted(self._unswitched_vms())]
            if not any(changed):
                break
        for vm in sorted(self._gets.keys() - self._unswitched_vms()):
            for name in self._gets[vm]:
                self._join(vm, name)
        if not self._unswitched_vms():
            for join in self._joins_kept:
                fleet.join(join.vm, join.slot)
                self._actions.append(join)
        slots = tuple(
            msgspec.structs.replace(
                slot, members={vm: slot.members.get(vm) or self._vms[vm].host for vm in fleet.members_of(name)}
            )
            for name, slot in sorted(self._slots.items())
            if fleet.has_slot(name)
        )
        checked = CheckInput(
            vms=self._given.vms, slots=slots, required=self._given.required, topology=self._given.topology
        )
        if not check(checked).holds:
            return None
        # What can be added for VMs that still miss slots, and why the others get nothing.
        free = fleet.free_table(self._given.free)
        later = plan(msgspec.structs.replace(self._given, slots=slots, free=free, packing=False, effort_s=0.0))
        return PlanResult.from_actions((*self._actions, *later.actions), later.slots, missing=missing)

    def _unswitched_vms(self) -> set[str]:
        fleet = self._fleet
        return {vm for name in self._old if fleet.has_slot(name) for vm in fleet.members_of(name)}

    def _switch(self, vms: Sequence[str]) -> bool:
        """Let all of these VMs change to new slots, or none."""
        indexes = (self._fleet, self._target)
        marks = [index.set_savepoint() for index in indexes]
        done = all(map(self._change, vms))
        for index, mark in zip(indexes, marks, strict=True):
            if done:
                index.release(mark)
            else:
                index.roll_back(mark)
        return done

    def _change(self, vm: str) -> bool:
        """The VM joins at least as many new slots as it has, those that are open first, then leaves the old ones."""
        fleet = self._fleet
        need = min(len(self._had[vm]), self._given.required.get(vm, 0))
        for name in sorted(self._gets.get(vm, ()), key=lambda name: (not fleet.has_slot(name), name)):
            if need > 0:
                need -= self._join(vm, name)
        if need > 0:
            return False
        for name in self._had[vm]:
            fleet.leave(vm, name)
            self._act(Leave(slot=name, vm=vm))
            if not fleet.members_of(name):
                fleet.close(self._old[name])
        return True

    def _join(self, vm: str, name: str) -> bool:
        """Put the VM into the new slot, which is opened if need be, elsewhere if the plan allows it; whether it is
        there."""
        fleet, host = self._fleet, self._vms[vm].host
        if not fleet.has_slot(name):
            new = self._new[name]
            may_open = new.host in self._offered_hosts(self._may_open, vm)
            if not (may_open and fleet.has_room(new.host, slot_amounts(new))) and not self._relocate(vm, name):
                return False
            slot = self._slots[name] = msgspec.structs.replace(self._new[name], members={})
            fleet.open(slot)
            self._act(open_action(slot, vm, host))
        elif vm not in fleet.members_of(name):
            self._act(Join(slot=name, vm=vm, vm_host=host, host=self._slots[name].host))
        fleet.join(vm, name)
        return True

    def _act(self, action: Action) -> None:
        self._actions.append(action)
        self._fleet.add_undo(self._actions.pop)

    def _relocate(self, vm: str, name: str) -> bool:
        """Plan the new slot on another host, where there is room now and all who are to be in it may have it."""
        index, slot = self._target, self._new[name]
        members = index.members_of(name)
        index.remove_slot(name)
        hosts = self._fleet.hosts_with_room(tuple(self._offered_hosts(self._may_open, vm)), slot_amounts(slot))
        most = dict(zip(hosts, self._fleet.free_of(hosts, MEMORY), strict=True))
        place = next(
            (
                host
                for host in sorted(hosts, key=lambda host: (-most[host], host))
                if all(self._may_be_on(member, host) for member in members)
            ),
            None,
        )
        if place is not None:
            self._new[name] = msgspec.structs.replace(slot, host=place, target_host=place)
            index.add_undo(lambda: self._new.update({name: slot}))
        index.add_slot(msgspec.structs.replace(self._new[name], members={}))
        for member in members:
            index.join(member, name)
        return place is not None

    def _may_be_on(self, vm: str, host: str) -> bool:
        """Whether the VM may have a slot on the host, beside those that it is to have otherwise."""
        allowed = host in self._offered_hosts(self._may_reuse, vm) and may_run_on(self._vms[vm], host)
        return allowed and self._target.may_open(vm, host) and self._target.separation.allows(vm, host)

    def _offered_hosts(self, offers: Mapping[str, frozenset[str]], vm: str) -> frozenset[str]:
        return offers.get(self._given.classes.get(vm, ""), frozenset())
