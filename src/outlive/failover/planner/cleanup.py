"""What leaves its slot, and which slots go.

A membership ends by itself when the VM is gone, runs elsewhere, outgrew the slot, may not run on its host or is out of
protection; what clashes by a rule leaves as well, the culprits first; slots that are empty are deleted
(docs/design/failover.md#cleaning-up). Pure: nothing is written here, and capacity is not looked at, because
a slot whose host shrank is found by validation.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from outlive.failover.culprits import find_culprits, remove_memberships
from outlive.failover.model import HostView, SlotView
from outlive.failover.rules import is_large_enough
from outlive.failover.slots import format_amounts
from outlive.failover.topology import Topology
from outlive.placement import VmView, may_run_on

DETAIL_LIMIT = 300
"""Letters of a detail that names hosts."""


class Cause(enum.StrEnum):
    """Why a VM leaves a slot, or why a slot goes."""

    GONE = "vm-gone"
    MOVED = "vm-moved"
    OUTGROWN = "outgrown"
    NOT_ALLOWED = "host-not-allowed"
    NOT_PROTECTED = "not-protected"
    OWN_HOST = "slot-on-own-host"
    SAME_HOST = "two-slots-on-one-host"
    CLASH = "clash"
    EMPTY = "slot-empty"
    NEVER_INITIALISED = "slot-never-initialised"
    CONSUMED = "consumer-arrived"
    CONSUMER_GONE = "consumer-gone"
    HOST_LOST = "host-lost"


class Drop(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM leaves a slot."""

    slot: str
    vm: str
    cause: Cause
    detail: str = ""
    """One sentence with the VM, the other VM, the hosts and the slots."""
    rule: int = 0
    """The rule that is broken, 1 to 5; 0 where none is."""
    other_vm: str = ""
    host: str = ""


class Deletion(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A slot goes."""

    slot: str
    cause: Cause
    detail: str = ""


def find_departure(vm: str, slot: SlotView, view: VmView | None, *, active: bool) -> Drop | None:
    """Why the member leaves the slot, or ``None`` where it stays; ``KeyError`` for a VM that is no member."""
    recorded = slot.members[vm]
    if view is None:
        if active:
            return None
        detail = f"VM {vm} is neither listed nor active on any host"
        return Drop(slot=slot.name, vm=vm, cause=Cause.GONE, detail=detail, host=recorded)
    if view.host != recorded:
        detail = f"VM {vm} runs on {view.host}, not on {recorded}"
        return Drop(slot=slot.name, vm=vm, cause=Cause.MOVED, detail=detail, host=view.host)
    if not is_large_enough(view, slot):
        needs, holds = (
            format_amounts(view.cpu_milli, view.memory_bytes),
            format_amounts(slot.cpu_milli, slot.memory_bytes),
        )
        detail = f"VM {vm} needs {needs}, the slot holds {holds}"
        return Drop(slot=slot.name, vm=vm, cause=Cause.OUTGROWN, detail=detail, host=slot.host)
    if not may_run_on(view, slot.host):
        detail = f"VM {vm} may not run on {slot.host}, only on {', '.join(view.host_limit)}"[:DETAIL_LIMIT]
        return Drop(slot=slot.name, vm=vm, cause=Cause.NOT_ALLOWED, detail=detail, host=slot.host)
    if view.unprotected:
        detail = f"VM {vm} is out of protection: {view.unprotected_why or 'nobody said why'}"[:DETAIL_LIMIT]
        return Drop(slot=slot.name, vm=vm, cause=Cause.NOT_PROTECTED, detail=detail, host=slot.host)
    return None


def empty_deletion(slot: str) -> Deletion:
    """A slot that goes because nobody is left in it."""
    return Deletion(slot=slot, cause=Cause.EMPTY, detail="its last member left")


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
    """All, or at least those without members and all slots of members that have to leave, or that clash."""
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


def clean(given: CleanInput, *, peaceful: bool = False) -> CleanResult:
    """Drop members that are gone, moved, outgrew their slot or clash; then delete empty slots.

    Without the brake, the rules hold afterwards for every member, except between members that no source lists.
    ``peaceful``: it is known that no rule is broken as things are.
    """
    listed = tuple(sorted(given.slots, key=lambda slot: slot.name))
    active = {vm for host in given.hosts for vm in host.active}
    drops, guarded = _find_departures(listed, {vm.id: vm for vm in given.vms}, active)
    first_changed = {drop.slot for drop in drops}
    rest = remove_memberships(listed, [(drop.slot, drop.vm) for drop in drops])
    clashes = [] if peaceful and not drops else _find_clashes(rest, given)
    second_changed = {drop.slot for drop in clashes}
    drops = sorted([*drops, *clashes], key=lambda drop: (drop.slot, drop.vm))
    memberships = given.memberships or sum(len(slot.members) for slot in given.slots)
    brake = None
    if len(drops) > given.brake_number and len(drops) > given.brake_share * memberships:
        causes = Counter(str(drop.cause) for drop in drops)
        brake = Brake(would_drop=len(drops), memberships=memberships, causes=dict(sorted(causes.items())))
        drops, first_changed, second_changed, rest = [], set(), set(), list(listed)
    else:
        rest = remove_memberships(rest, [(drop.slot, drop.vm) for drop in clashes])
    deleted, waiting = _find_empty(rest, given, {drop.slot for drop in drops})
    gone = {deletion.slot for deletion in deleted}
    changed = first_changed | second_changed
    return CleanResult(
        slots=tuple(_stamp(slot, changed, given.now) for slot in rest if slot.name not in gone),
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
        if (drop := find_departure(vm, slot, views[vm], active=False)) is not None
    ]
    touched = {drop.slot for drop in drops}
    rest = remove_memberships(
        (slot for slot in slots if slot.name in touched), [(drop.slot, drop.vm) for drop in drops]
    )
    return CleanResult(
        slots=tuple(_stamp(slot, touched, given.now) for slot in rest if slot.members),
        dropped=tuple(drops),
        deleted=tuple(empty_deletion(slot.name) for slot in rest if not slot.members),
        changed=tuple(slot.name for slot in rest if slot.members),
        updated=len(touched),
    )


def _find_departures(
    slots: Iterable[SlotView], views: Mapping[str, VmView], active: Collection[str]
) -> tuple[list[Drop], list[tuple[str, str]]]:
    """Members that no longer are what the slot believes, and those that the data-loss guard keeps."""
    drops: list[Drop] = []
    guarded: list[tuple[str, str]] = []
    for slot in slots:
        for vm in slot.members:
            view = views.get(vm)
            drop = find_departure(vm, slot, view, active=vm in active)
            if drop is not None:
                drops.append(drop)
            elif view is None:
                guarded.append((slot.name, vm))
    return drops, sorted(guarded)


def _find_clashes(slots: Sequence[SlotView], given: CleanInput) -> list[Drop]:
    locations = {vm.id: vm.host for vm in given.vms}
    drops = []
    for culprit in find_culprits(slots, locations, given.topology):
        breach = culprit.breach
        if breach is None:
            drops.append(Drop(slot=culprit.slot, vm=culprit.vm, cause=Cause.CLASH))
            continue
        others = [vm for vm in (breach.vm, *breach.others) if vm != culprit.vm]
        drops.append(
            Drop(
                slot=culprit.slot,
                vm=culprit.vm,
                cause=_CAUSE_OF_RULE.get(breach.rule, Cause.CLASH),
                detail=breach.describe(),
                rule=breach.rule,
                other_vm=others[0] if others else "",
                host=breach.host,
            )
        )
    return drops


def _find_empty(slots: Sequence[SlotView], given: CleanInput, left: set[str]) -> tuple[list[Deletion], list[str]]:
    """Slots to delete, and slots whose status may still be on its way."""
    deleted: list[Deletion] = []
    waiting: list[str] = []
    for slot in slots:
        if slot.members or slot.consumer:
            continue
        if slot.initialised:
            nobody = Deletion(slot=slot.name, cause=Cause.EMPTY, detail="it has no member")
            deleted.append(empty_deletion(slot.name) if slot.name in left else nobody)
        elif given.now - slot.created_at >= given.grace_s:
            detail = f"no failover status {given.now - slot.created_at:.0f} s after its creation"
            deleted.append(Deletion(slot=slot.name, cause=Cause.NEVER_INITIALISED, detail=detail))
        else:
            waiting.append(slot.name)
    return deleted, waiting


def _stamp(slot: SlotView, changed: set[str], now: float) -> SlotView:
    if slot.name not in changed:
        return slot
    return msgspec.structs.replace(slot, last_changed=now, acknowledged_at=None)
