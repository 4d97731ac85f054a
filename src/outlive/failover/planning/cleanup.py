"""Take out of slots what no longer belongs there, the culprits first, and delete slots that are empty.

Pure: the steps of docs/reference/failover.md#cleaning-up on views. Nothing is written here, and capacity is not looked
at: a slot whose host shrank is found by validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from outlive.failover.eligibility.culprits import Culprit, find_culprits, without
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.planning.leaving import Cause, Deletion, Drop, departure, emptied
from outlive.failover.topology import Topology

__all__ = ["Brake", "Cause", "CleanInput", "CleanResult", "Deletion", "Drop", "LeaveInput", "clean", "leave"]


class Brake(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """So many memberships would have been dropped that none was."""

    would_drop: int
    memberships: int
    causes: dict[str, int]


class CleanInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One observation of the world."""

    vms: tuple[VmView, ...]
    hosts: tuple[HostView, ...] = ()
    """Their ``active`` lists feed the data-loss guard."""
    slots: tuple[SlotView, ...] = ()
    """All, or at least those of ``planning.suspects``."""
    memberships: int = 0
    """Of all slots, where ``slots`` are a part of them; 0: those of ``slots``."""
    now: float = 0.0
    """Seconds since 1970."""
    grace_s: float = 60.0
    """How old a slot without a failover status must be to be deleted."""
    brake_share: float = 0.20
    brake_number: int = 50
    topology: Topology = Topology()


class CleanResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The slots after clean-up, and what changed."""

    slots: tuple[SlotView, ...] = ()
    """Without the deleted ones; changed ones have ``last_changed`` = now and no acknowledgement."""
    dropped: tuple[Drop, ...] = ()
    deleted: tuple[Deletion, ...] = ()
    changed: tuple[str, ...] = ()
    """Names of slots whose members changed and that still have some, in name order."""
    updated: int = 0
    """The figure of the summary: a slot changed by both steps counts twice, deleted ones included."""
    guarded: tuple[tuple[str, str], ...] = ()
    """(slot, VM) kept although no source lists the VM, because a host reports it as active."""
    waiting: tuple[str, ...] = ()
    """Slots without a failover status that are still in their grace period."""
    brake: Brake | None = None


class LeaveInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A few VMs that a change concerned, and the slots that list them."""

    vms: tuple[VmView, ...] = ()
    """Those that are somewhere, as they are now."""
    gone: tuple[str, ...] = ()
    """Those that no source lists and no host reports."""
    slots: tuple[SlotView, ...] = ()
    """Other members are not judged."""
    now: float = 0.0


_CAUSE_OF_RULE = {1: Cause.OWN_HOST, 2: Cause.SAME_HOST}


def clean(given: CleanInput) -> CleanResult:
    """Drop members that are gone, moved, outgrew their slot or clash; then delete empty slots.

    Without the brake, the rules hold afterwards for every member, except between members that no source lists.
    """
    listed = tuple(sorted(given.slots, key=lambda slot: slot.name))
    active = {vm for host in given.hosts for vm in host.active}
    drops, guarded = _departures(listed, {vm.id: vm for vm in given.vms}, active)
    first_changed = {drop.slot for drop in drops}
    rest = without(listed, [(drop.slot, drop.vm) for drop in drops])
    clashes = _clashes(rest, given)
    second_changed = {drop.slot for drop in clashes}
    drops = sorted([*drops, *clashes], key=lambda drop: (drop.slot, drop.vm))
    brake = _brake(given, drops)
    if brake is not None:
        drops, first_changed, second_changed, rest = [], set(), set(), list(listed)
    else:
        rest = without(rest, [(drop.slot, drop.vm) for drop in clashes])
    deleted, waiting = _empty(rest, given, {drop.slot for drop in drops})
    gone = {deletion.slot for deletion in deleted}
    changed = first_changed | second_changed
    return CleanResult(
        slots=tuple(_stamped(slot, changed, given.now) for slot in rest if slot.name not in gone),
        dropped=tuple(drops),
        deleted=tuple(deleted),
        changed=tuple(sorted(changed - gone)),
        updated=len(first_changed) + len(second_changed),
        guarded=tuple(guarded),
        waiting=tuple(waiting),
        brake=brake,
    )


def leave(given: LeaveInput) -> CleanResult:
    """The part of ``clean`` that rests on these VMs alone; rules are not looked at."""
    views: dict[str, VmView | None] = {vm.id: vm for vm in given.vms}
    views.update(dict.fromkeys(given.gone))
    slots = sorted(given.slots, key=lambda slot: slot.name)
    drops = [
        drop
        for slot in slots
        for vm in sorted(views.keys() & slot.members.keys())
        if (drop := departure(vm, slot, views[vm], active=False)) is not None
    ]
    touched = {drop.slot for drop in drops}
    rest = without((slot for slot in slots if slot.name in touched), [(drop.slot, drop.vm) for drop in drops])
    return CleanResult(
        slots=tuple(_stamped(slot, touched, given.now) for slot in rest if slot.members),
        dropped=tuple(drops),
        deleted=tuple(emptied(slot.name) for slot in rest if not slot.members),
        changed=tuple(slot.name for slot in rest if slot.members),
        updated=len(touched),
    )


def _departures(
    slots: Iterable[SlotView], views: Mapping[str, VmView], active: Collection[str]
) -> tuple[list[Drop], list[tuple[str, str]]]:
    """Members that no longer are what the slot believes, and those that the data-loss guard keeps."""
    drops: list[Drop] = []
    guarded: list[tuple[str, str]] = []
    for slot in slots:
        for vm in slot.members:
            view = views.get(vm)
            drop = departure(vm, slot, view, active=vm in active)
            if drop is not None:
                drops.append(drop)
            elif view is None:
                guarded.append((slot.name, vm))
    return drops, sorted(guarded)


def _clashes(slots: Sequence[SlotView], given: CleanInput) -> list[Drop]:
    locations = {vm.id: vm.host for vm in given.vms}
    return [_drop_of(culprit) for culprit in find_culprits(slots, locations, given.topology)]


def _drop_of(culprit: Culprit) -> Drop:
    breach = culprit.breach
    if breach is None:
        return Drop(slot=culprit.slot, vm=culprit.vm, cause=Cause.CLASH)
    others = [vm for vm in (breach.vm, *breach.others) if vm != culprit.vm]
    return Drop(
        slot=culprit.slot,
        vm=culprit.vm,
        cause=_CAUSE_OF_RULE.get(breach.rule, Cause.CLASH),
        detail=breach.sentence(),
        rule=breach.rule,
        other_vm=others[0] if others else "",
        host=breach.host,
    )


def _brake(given: CleanInput, drops: Sequence[Drop]) -> Brake | None:
    memberships = given.memberships or sum(len(slot.members) for slot in given.slots)
    if len(drops) <= given.brake_number or len(drops) <= given.brake_share * memberships:
        return None
    causes = Counter(str(drop.cause) for drop in drops)
    return Brake(would_drop=len(drops), memberships=memberships, causes=dict(sorted(causes.items())))


def _empty(slots: Sequence[SlotView], given: CleanInput, left: set[str]) -> tuple[list[Deletion], list[str]]:
    """Slots to delete, and slots whose status may still be on its way."""
    deleted: list[Deletion] = []
    waiting: list[str] = []
    for slot in slots:
        if slot.members or slot.consumer:
            continue
        if slot.initialised:
            nobody = Deletion(slot=slot.name, cause=Cause.EMPTY, detail="it has no member")
            deleted.append(emptied(slot.name) if slot.name in left else nobody)
        elif given.now - slot.created_at >= given.grace_s:
            detail = f"no failover status {given.now - slot.created_at:.0f} s after its creation"
            deleted.append(Deletion(slot=slot.name, cause=Cause.NEVER_INITIALISED, detail=detail))
        else:
            waiting.append(slot.name)
    return deleted, waiting


def _stamped(slot: SlotView, changed: set[str], now: float) -> SlotView:
    if slot.name not in changed:
        return slot
    return msgspec.structs.replace(slot, last_changed=now, acknowledged_at=None)
