"""Plan existing slots anew, and switch VM after VM to the new ones, each joining before it leaves.

Slots that were made for one slot a VM touch nearly every host, so that hardly any second slot is left beside them:
raising what VMs need by adding to them fails where a plan from nothing succeeds. So the fleet is planned from nothing,
with the room that the present slots hold, and then a way there is looked for
(docs/reference/failover-planning.md#replanning):

* A VM joins at least as many new slots as it has, then leaves all old ones. New slots only have VMs that have switched
  and old ones only those that have not, so that at any time the rules hold for everybody: every part of a valid plan is
  one. While a VM is in both, its own old and new slots may clash with each other, which lowers nobody's tolerance.
* A new slot is opened once its host has room. Old slots are emptied in the order in which that works; what a VM gets
  beyond what it had comes last.

Not promised: that everybody switches. Where room for the new slots is only found under old ones that cannot be emptied
first, those VMs stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.failover.check import CheckInput, check
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail, Join, Leave, Open, opening
from outlive.failover.planner.plan import PlanInput, PlanResult, plan, shortfalls_of
from outlive.failover.rules import may_run_on
from outlive.failover.separation import groups_of

PASSES: Final = 50
"""Times that all old slots are looked at, until no pass empties another."""
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
    old, kept = _divided(given)
    if not old or not (added.failed or _much_is_missing(given, added)):
        return added
    target = plan(
        msgspec.structs.replace(given, slots=kept, free=_with_room_of(given.free, old)), keep_going=keep_going
    )
    switched = _Switching(given, old, kept, _renamed(target, given.slots)).result(added.missing)
    if switched is None:
        return added
    return switched if _is_better(given, switched, added) else added


def _divided(given: PlanInput) -> tuple[tuple[SlotView, ...], tuple[SlotView, ...]]:
    """The slots that may be replaced, and those that stay."""
    hosts = {vm.id: vm.host for vm in given.vms if vm.id in given.classes}
    old, kept = list[SlotView](), list[SlotView]()
    for slot in sorted(given.slots, key=lambda slot: slot.name):
        mine = slot.ready is not False and not slot.consumer and slot.host in given.free and slot.members
        ours = mine and all(hosts.get(vm) == at for vm, at in slot.members.items())
        (old if ours else kept).append(slot)
    return tuple(old), tuple(kept)


def _much_is_missing(given: PlanInput, added: PlanResult) -> bool:
    return added.reused + added.created > MISSING_SHARE * sum(given.required.values())


def _with_room_of(free: Mapping[str, tuple[int, int]], slots: Iterable[SlotView]) -> dict[str, tuple[int, int]]:
    found = dict(free)
    for slot in slots:
        cpu, memory = found[slot.host]
        found[slot.host] = (cpu + slot.cpu_milli, memory + slot.memory_bytes)
    return found


def _renamed(target: PlanResult, slots: Sequence[SlotView]) -> PlanResult:
    """With keys for its new slots that no slot has as its name."""
    opened = {action.slot_key for action in target.actions if isinstance(action, Open)}
    taken = {slot.name for slot in slots}
    serial, keys = 0, dict[str, str]()
    for slot in target.slots:
        if slot.name in opened:
            serial += 1
            while f"new-{serial}" in taken:
                serial += 1
            keys[slot.name] = f"new-{serial}"
    return msgspec.structs.replace(
        target,
        actions=tuple(_with_key(action, keys) for action in target.actions),
        slots=tuple(
            msgspec.structs.replace(slot, name=keys[slot.name]) if slot.name in keys else slot for slot in target.slots
        ),
    )


def _with_key(action: Action, keys: Mapping[str, str]) -> Action:
    if isinstance(action, Open):
        return msgspec.structs.replace(action, slot_key=keys[action.slot_key])
    if isinstance(action, Join) and action.slot in keys:
        return msgspec.structs.replace(action, slot=keys[action.slot])
    return action


def _is_better(given: PlanInput, switched: PlanResult, added: PlanResult) -> bool:
    after, before = shortfalls_of(given, switched.slots), shortfalls_of(given, added.slots)
    if after != before:
        return after < before
    held = sum(slot.memory_bytes for slot in added.slots)
    return sum(slot.memory_bytes for slot in switched.slots) < (1 - WORTH_SHARE) * held


class _Switching:
    """The state on the way from the old slots to the new ones."""

    def __init__(self, given: PlanInput, old: Sequence[SlotView], kept: Sequence[SlotView], target: PlanResult) -> None:
        self._given = given
        self._kept = kept
        self._old = {slot.name: slot for slot in old}
        self._vms = {vm.id: vm for vm in given.vms}
        self._free = dict(given.free)
        self._left = {slot.name: dict(slot.members) for slot in old}
        self._had: dict[str, list[str]] = {}
        for slot in old:
            for vm in slot.members:
                self._had.setdefault(vm, []).append(slot.name)
        self._gets: dict[str, list[str]] = {}
        """VM → new slots that it is to have."""
        self._joins_kept: list[Join] = []
        """Who is to join slots that stay: last, because their members may still be in old slots."""
        stay = {slot.name for slot in kept}
        for action in target.actions:
            if isinstance(action, Join) and action.slot in stay:
                self._joins_kept.append(action)
            elif isinstance(action, Join | Open):
                name = action.slot if isinstance(action, Join) else action.slot_key
                self._gets.setdefault(action.vm, []).append(name)
        self._new = {slot.name: msgspec.structs.replace(slot, members={}) for slot in target.slots}
        self._members: dict[str, dict[str, str]] = {slot.name: dict(slot.members) for slot in kept}
        self._actions: list[Action] = []
        self._switched: set[str] = set()
        self._target = ConflictIndex.build(target.slots, given.vms, given.required, given.topology)
        """Where everybody is once all have switched."""
        if given.topology.server_groups:
            self._target.separation.take(groups_of(given.vms, given.required))
        self._offered = {key: frozenset(() if one.error else one.hosts) for key, one in given.new.items()}

    def result(self, missing: int) -> PlanResult | None:
        """Everything that can be switched is, and the rest is topped up; ``None`` where that is no plan."""
        for _ in range(PASSES):
            self._empty_slots()
            if not sum(map(self._switch_alone, sorted(self._had.keys() - self._switched))):
                break
        waiting = {vm for vm in self._had if vm not in self._switched}
        for vm in sorted(self._gets.keys() - waiting):
            for slot in self._gets[vm]:
                if vm in self._members.get(slot, ()):
                    continue
                if self._fits([(vm, slot)]) or self._relocate(vm, slot, ()):
                    self._join(vm, slot)
        if not any(self._left.values()):
            for join in self._joins_kept:
                self._join(join.vm, join.slot)
        slots = self._slots()
        checked = CheckInput(
            vms=self._given.vms, slots=slots, required=self._given.required, topology=self._given.topology
        )
        if not check(checked).holds:
            return None
        return self._topped_up(slots, missing)

    def _empty_slots(self) -> None:
        """Empty old slots, those first that hold most for each member, as long as one can be emptied."""
        worth = {
            name: slot.memory_bytes / max(1, len(slot.members)) for name, slot in self._old.items() if slot.members
        }
        waiting = sorted(worth, key=lambda name: (-worth[name], name))
        for _ in range(PASSES):
            left = [name for name in waiting if not self._switch(sorted(self._left[name]))]
            if len(left) == len(waiting):
                return
            waiting = left

    def _switch(self, vms: Sequence[str]) -> bool:
        """Let all of these VMs change to new slots, or none."""
        joins: list[tuple[str, str]] = []
        opened: set[str] = set()
        for vm in vms:
            need = min(len(self._had[vm]), self._given.required.get(vm, 0))
            mine = self._gets.get(vm, [])
            if vm in self._switched or len(mine) < need:
                return False
            there = sorted(mine, key=lambda slot: slot not in self._members and slot not in opened)[:need]
            opened.update(there)
            joins += [(vm, slot) for slot in there]
        if not self._fits(joins):
            return False
        for vm in vms:
            for member, slot in joins:
                if member == vm:
                    self._join(vm, slot)
            self._leave(vm)
        return True

    def _switch_alone(self, vm: str) -> bool:
        """Let the VM change to new slots, those that are open already first; slots that have no room where they are
        planned are opened elsewhere, if the plan allows it."""
        need = min(len(self._had[vm]), self._given.required.get(vm, 0))
        chosen: list[tuple[str, str]] = []
        mark = self._target.savepoint()
        was = {name: self._new[name] for name in self._gets.get(vm, ())}
        for name in sorted(was, key=lambda name: (name not in self._members, name)):
            if len(chosen) < need and (self._fits([*chosen, (vm, name)]) or self._relocate(vm, name, chosen)):
                chosen.append((vm, name))
        if len(chosen) < need:
            self._target.rollback(mark)
            self._new |= was
            return False
        self._target.release(mark)
        for _, name in chosen:
            self._join(vm, name)
        self._leave(vm)
        return True

    def _relocate(self, vm: str, name: str, chosen: Sequence[tuple[str, str]]) -> bool:
        """Plan the new slot on another host, where there is room now and all who are to be in it may have it."""
        index, slot = self._target, self._new[name]
        members = index.members(name)
        index.remove_slot(name)
        offered = self._offered.get(self._given.classes.get(vm, ""), frozenset())
        for host in sorted(offered, key=lambda host: (-self._free.get(host, (0, 0))[1], host)):
            self._new[name] = msgspec.structs.replace(slot, host=host, target_host=host)
            if not self._fits([*chosen, (vm, name)]):
                continue
            if all(self._may_be_on(member, host) for member in members):
                index.add_slot(self._new[name])
                for member in members:
                    index.join(member, name)
                return True
        index.add_slot(slot)
        for member in members:
            index.join(member, name)
        self._new[name] = slot
        return False

    def _may_be_on(self, vm: str, host: str) -> bool:
        """Whether the VM may have a slot on the host, beside those that it is to have otherwise."""
        offer = self._given.reuse.get(self._given.classes.get(vm, ""))
        offered = offer is not None and not offer.error and host in offer.hosts
        allowed = offered and may_run_on(self._vms[vm], host)
        return allowed and self._target.may_open(vm, host) and self._target.separation.allows(vm, host)

    def _fits(self, joins: Iterable[tuple[str, str]]) -> bool:
        """Whether there is room now for the slots that have to be opened, and somebody who may open each."""
        taken = Counter[tuple[str, int]]()
        opening: dict[str, bool] = {}
        for vm, name in joins:
            if name not in self._members:
                if name not in opening:
                    taken[self._new[name].host, 0] += self._new[name].cpu_milli
                    taken[self._new[name].host, 1] += self._new[name].memory_bytes
                opening[name] = opening.get(name, self._may_open(vm, name))
        return all(opening.values()) and all(
            amount <= self._free.get(host, (0, 0))[resource] for (host, resource), amount in taken.items()
        )

    def _may_open(self, vm: str, slot: str) -> bool:
        return self._new[slot].host in self._offered.get(self._given.classes.get(vm, ""), ())

    def _join(self, vm: str, name: str) -> None:
        slot, host = self._new[name], self._vms[vm].host
        if name in self._members:
            self._actions.append(Join(slot=name, vm=vm, vm_host=host, host=slot.host))
            self._members[name][vm] = host
            return
        self._members[name] = {vm: host}
        cpu, memory = self._free[slot.host]
        self._free[slot.host] = (cpu - slot.cpu_milli, memory - slot.memory_bytes)
        self._actions.append(opening(slot, vm, host))

    def _leave(self, vm: str) -> None:
        self._switched.add(vm)
        for name in self._had[vm]:
            self._actions.append(Leave(slot=name, vm=vm))
            del self._left[name][vm]
            if not self._left[name]:
                slot = self._old[name]
                cpu, memory = self._free[slot.host]
                self._free[slot.host] = (cpu + slot.cpu_milli, memory + slot.memory_bytes)

    def _slots(self) -> tuple[SlotView, ...]:
        """The slots as they are now."""
        old = [
            msgspec.structs.replace(self._old[name], members=members) for name, members in self._left.items() if members
        ]
        new = [msgspec.structs.replace(self._new[name], members=members) for name, members in self._members.items()]
        return tuple(sorted([*old, *new], key=lambda slot: slot.name))

    def _topped_up(self, slots: tuple[SlotView, ...], missing: int) -> PlanResult:
        """With what can be added for those who still miss slots, and why the others get nothing."""
        later = plan(msgspec.structs.replace(self._given, slots=slots, free=self._free, packing=False, effort_s=0.0))
        actions = (*self._actions, *later.actions)
        return PlanResult(
            actions=actions,
            slots=later.slots,
            missing=missing,
            reused=sum(isinstance(one, Join) for one in actions),
            created=sum(isinstance(one, Open) for one in actions),
            failed=sum(isinstance(one, Fail) for one in actions),
        )
