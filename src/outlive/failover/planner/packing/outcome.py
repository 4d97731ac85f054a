"""What a search found as a plan again: slots, and actions in an order in which every beginning is a valid plan.

Memberships of a valid plan may be added in any order, because taking some away never breaks a rule. Of each new slot
the member that placement lets open it there comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from outlive.failover.check import CheckInput, check
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail, Join, Offer, Open
from outlive.failover.planner.packing.board import Saved
from outlive.failover.planner.packing.problem import Ground, Ints, Problem
from outlive.failover.rules import serves
from outlive.failover.sizing import resolve_size, resource_group


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The slots after it, those that were there before first, and how to get there."""

    slots: tuple[SlotView, ...]
    actions: tuple[Action, ...]


def outcome(
    problem: Problem, saved: Saved, before: Sequence[SlotView], found: Sequence[SlotView], ground: Ground, prefix: str
) -> Outcome | None:
    """The plan that the search ended with, or ``None`` where a slot has nobody who may open it."""
    were = {slot.name: slot for slot in before}
    slots: list[SlotView] = []
    actions: list[Action] = []
    serial = 0
    for number, slot in enumerate(found):
        names = [problem.vm_names[vm] for vm in _members(problem, saved, number)]
        if slot.name in were:
            slots.append(joined(were[slot.name], names, ground, actions))
        elif names:
            serial += 1
            while f"{prefix}{serial}" in were:
                serial += 1
            host, size = problem.hosts[saved.slot_host[number]], saved.slot_size[number].tolist()
            new = opened(host, (size[0], size[1]), names, f"{prefix}{serial}", ground, actions)
            if new is None:
                return None
            slots.append(new)
    return Outcome(slots=tuple(slots), actions=tuple(actions))


def _members(problem: Problem, saved: Saved, slot: int) -> list[int]:
    """Largest first, so that the slot is as large as the member that opens it, if possible."""
    vms: Ints = np.nonzero((saved.slots_of == slot).any(axis=1))[0]
    size = problem.vm_size
    return sorted(vms.tolist(), key=lambda vm: (-int(size[vm, 1]), -int(size[vm, 0]), problem.vm_names[vm]))


def joined(was: SlotView, names: Sequence[str], ground: Ground, actions: list[Action]) -> SlotView:
    """The slot with these members as well."""
    more = {name: ground.vms[name].host for name in names if name not in was.members}
    actions.extend(Join(slot=was.name, vm=name, vm_host=at, host=was.host) for name, at in more.items())
    return msgspec.structs.replace(was, members={**was.members, **more}) if more else was


def opened(
    host: str, size: tuple[int, int], names: Sequence[str], key: str, ground: Ground, actions: list[Action]
) -> SlotView | None:
    """The slot on this host, opened by the first member that placement lets open it there."""
    opener = next((name for name in names if _may_open(name, host, ground)), None)
    if opener is None:
        return None
    vm = ground.vms[opener]
    slot = SlotView(
        name=key,
        host=host,
        target_host=host,
        zone=vm.zone,
        group=resource_group(vm, ground.sizes.get(opener) or resolve_size(vm)),
        cpu_milli=size[0],
        memory_bytes=size[1],
        ready=True,
        members={name: ground.vms[name].host for name in (opener, *names)},
    )
    actions.append(
        Open(
            slot_key=key,
            vm=opener,
            vm_host=vm.host,
            host=host,
            cpu_milli=size[0],
            memory_bytes=size[1],
            group=slot.group,
            zone=slot.zone,
        )
    )
    actions.extend(
        Join(slot=key, vm=name, vm_host=at, host=host) for name, at in slot.members.items() if name != opener
    )
    return slot


def _may_open(vm: str, host: str, ground: Ground) -> bool:
    offer = ground.new.get(ground.classes.get(vm, ""))
    return offer is not None and not offer.error and host in offer.hosts


def is_sound(
    made: Outcome, before: Sequence[SlotView], promised: Mapping[str, int], required: Mapping[str, int], ground: Ground
) -> bool:
    """Whether everything holds, and each VM has as many memberships as ``promised``."""
    return (
        _keeps(made, before)
        and _serves(made, promised)
        and _allowed(made, ground)
        and _room(made, ground)
        and check(
            CheckInput(
                vms=tuple(ground.vms.values()), slots=made.slots, required=dict(required), topology=ground.topology
            )
        ).holds
    )


def _keeps(made: Outcome, before: Sequence[SlotView]) -> bool:
    """Slots that were there are there with all that they had."""
    after = {slot.name: slot for slot in made.slots}
    return all(
        (now := after.get(slot.name)) is not None
        and (now.host, now.cpu_milli, now.memory_bytes) == (slot.host, slot.cpu_milli, slot.memory_bytes)
        and slot.members.items() <= now.members.items()
        for slot in before
    )


def _serves(made: Outcome, promised: Mapping[str, int]) -> bool:
    got = Counter(member for slot in made.slots for member in slot.members)
    told = Counter(action.vm for action in made.actions if not isinstance(action, Fail))
    return all(got[vm] >= count for vm, count in promised.items()) and told.total() <= got.total()


def _allowed(made: Outcome, ground: Ground) -> bool:
    """Each member is where placement offers it a place, in a slot that serves it."""
    reuse, new = _offered(ground.reuse), _offered(ground.new)
    slots = {slot.name: slot for slot in made.slots}
    for action in made.actions:
        if not isinstance(action, Open | Join):
            continue
        offered = (new if isinstance(action, Open) else reuse).get(ground.classes.get(action.vm, ""), frozenset())
        slot = slots[action.slot if isinstance(action, Join) else action.slot_key]
        if action.host not in offered or slot.host != action.host:
            return False
        if not serves(ground.vms[action.vm], slot):
            return False
    return True


def _offered(offers: Mapping[str, Offer]) -> dict[str, frozenset[str]]:
    return {key: frozenset(() if offer.error else offer.hosts) for key, offer in offers.items()}


def _room(made: Outcome, ground: Ground) -> bool:
    taken = Counter[tuple[str, int]]()
    for action in made.actions:
        if isinstance(action, Open):
            taken[action.host, 0] += action.cpu_milli
            taken[action.host, 1] += action.memory_bytes
    if not ground.free:
        return True
    return all(
        host in ground.free and amount <= ground.free[host][resource] for (host, resource), amount in taken.items()
    )
