"""A story in sentences, for somebody who has never seen the code: what each write of the protocol means.

Every step of the safety protocol is one write of one object, so a story is told by comparing what was there with what
is there now: a host condemned, proven dead, back in a new epoch; a VM given to a slot, seen running; a fault raised.
Whatever is no step (renewals, figures, notes) is not told. The history beside it (``telling``) is for programs and
for violations; this is for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from outlive.base.natural import natural_key
from outlive.base.wording import listing
from outlive.node.health import becomes
from outlive.node.membership.join import is_nobodys
from outlive.resources import Cluster, Degrading, Fault, Hypervisor, Membership, Resource, VirtualMachine
from outlive.resources.vms import MigrationPhase
from outlive.simulation.history import HistoryEvent

TOGETHER_S: Final = 1.5
"""Sentences of one key that follow this closely on the first are told as one."""
TRIES_TOLD: Final = 2
"""Attempts of one fence that are told unless everything is asked for."""
NAMES_SHOWN: Final = 4
"""Names and places that such a sentence lists."""
NAMES_CHARACTERS: Final = 80
"""Longer lists of names are left out: VMs may be named by uuids."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence, and how it reads when it is true of several at about the same time."""

    subject: str
    text: str
    key: str = ""
    """Sentences of one key are told together; empty: this one stands alone."""
    many: str = ""
    """For several: ``{n}`` is their number, ``{where}`` the places of all."""
    where: str = ""
    at_s: float = 0.0
    loud: bool = True
    """Whether it is told unless everything is asked for."""


def narrate(before: Resource | None, after: Resource | None) -> list[Told]:
    """Sentences about one write; often none."""
    known = after if after is not None else before
    teller = _TELLERS.get(type(known).__name__)
    return teller(before, after) if teller is not None else []


def _membership(before: Membership | None, after: Membership | None) -> list[Told]:
    host = (after or before).name  # type: ignore[union-attr]
    if after is None:
        return [Told(subject=host, text=f"the membership of {host} is deleted")]
    if before is None:
        if is_nobodys(after.record):
            return [Told(subject=host, text=f"{host} gets a membership again, which is dead until the host takes it")]
        return [Told(subject=host, text=f"{host} joins", key="join", many="{n} hosts join")]
    old, new = before.record, after.record
    told: list[Told] = []
    if old.state != new.state:
        told.append(_state(host, before, after))
    elif new.epoch > old.epoch:
        told.append(Told(subject=host, text=f"{host} joins again, in epoch {new.epoch}"))
    if new.dead_through > old.dead_through and new.state != "Released":
        told.append(_dead(host, after))
    elif len(new.fence.findings) > len(old.fence.findings):
        found = new.fence.findings[-1]
        told.append(Told(subject=host, text=f"a first proof against {host}, by {found.kind}: {found.evidence}"))
    if new.cut.scope and (new.cut.through, new.cut.scope) != (old.cut.through, old.cut.scope):
        told.append(Told(subject=host, text=f"{host} is shut out of {len(new.cut.scope)} disks and ports"))
    elif old.cut.scope and not new.cut.through:
        told.append(Told(subject=host, text=f"{host} is let in again"))
    told += _fence(host, before, after)
    if new.guard.armed != old.guard.armed:
        word = "armed" if new.guard.armed else "disarmed"
        many = f"the guards of {{n}} hosts are {word}"
        told.append(Told(subject=host, text=f"the guard of {host} is {word}", key=word, many=many))
    if len(new.distrusted) > len(old.distrusted):
        kind = new.distrusted[-1]
        text = f"{host} was proven dead by {kind} and was not: {kind} counts no more for it"
        told.append(Told(subject=host, text=text))
    return told


def _state(host: str, before: Membership, after: Membership) -> Told:
    new = after.record
    if new.state == "Revoked":
        why = f": {new.fence.reason}" if new.fence.reason else ""
        return Told(subject=host, text=f"{host} is condemned by {new.fence.by}{why}")
    if new.state == "Released":
        return Told(subject=host, text=f"{host} leaves in good order")
    how = "with what it still runs" if new.dead_through < new.epoch - 1 else "and is empty"
    epoch = f"in epoch {new.epoch} " if new.epoch > before.record.epoch else ""
    return Told(subject=host, text=f"{host} is back {epoch}{how}")


def _dead(host: str, after: Membership) -> Told:
    proof = after.record.proof
    if proof is None:
        return Told(subject=host, text=f"{host} is proven dead")
    if proof.kind == "reboot":
        return Told(subject=host, text=f"{host} has booted: nothing of what it ran before runs on it any more")
    if proof.kind == "self-cleaned":
        return Told(subject=host, text=f"{host} has cleaned up what it ran in epoch {after.record.dead_through}")
    return Told(subject=host, text=f"{host} is proven dead by {proof.kind}: {proof.evidence}")


def _fence(host: str, before: Membership, after: Membership) -> list[Told]:
    old, new = before.record.fence, after.record.fence
    if not old.id or old.id != new.id:
        return []
    told: list[Told] = []
    if old.by != new.by:
        told.append(Told(subject=host, text=f"{new.by} takes the fence of {host} over from {old.by}"))
    if new.attempt > old.attempt:
        text = f"{new.by} sets about proving {host} dead" if new.attempt == 1 else f"{new.by} tries again"
        told.append(Told(subject=host, text=text, loud=new.attempt <= TRIES_TOLD))
    if new.phase == "unconfirmed" != old.phase:
        why = f": {new.reason}" if new.reason else ""
        told.append(Told(subject=host, text=f"nothing proves yet that {host} is dead{why}"))
    return told


def _vm(before: VirtualMachine | None, after: VirtualMachine | None) -> list[Told]:
    vm = (after or before).name  # type: ignore[union-attr]
    if after is None:
        return [Told(subject=vm, text=f"{vm} is deleted")]
    if before is None:
        return [Told(subject=vm, text=f"{vm} is created", key="created", many="{n} VMs are created")]
    told = [*_assigned(vm, before, after), *_rejected(vm, before, after), *_recovery(vm, before, after)]
    told += _order(vm, before, after)
    told += [*_holders(vm, before, after), *_migration(vm, before, after)]
    phase = after.status.phase
    if phase != before.status.phase and phase in ("stop", "disable", "fail"):
        word = {"stop": "is stopped", "disable": "is disabled", "fail": "has failed"}[phase]
        why = f": {after.status.message}" if after.status.message else ""
        told.append(Told(subject=vm, text=f"{vm} {word}{why}"))
    return told


def _assigned(vm: str, before: VirtualMachine, after: VirtualMachine) -> list[Told]:
    old, new = before.status.assigned, after.status.assigned
    if new is None or (old is not None and (old.hypervisor, old.fence) == (new.hypervisor, new.fence)):
        return []
    was, host = old.hypervisor if old is not None else "nowhere", new.hypervisor
    record = after.status.recovery
    there = new.slot is not None and record is not None and record.slot == new.slot.name
    shared, other = (there and record.contested, there and not record.promised) if record is not None else (False,) * 2
    if shared and new.slot is not None:
        one = f"takes its promised slot {new.slot.name} on {host}, to which other VMs had a claim as well"
        many = "take promised slots on {where} to which other VMs had a claim as well"
    elif other and new.slot is not None:
        one = f"takes slot {new.slot.name} on {host}, which was not promised to it"
        many = "take slots on {where} that were not promised to them"
    elif new.slot is not None:
        one, many = f"takes its promised slot {new.slot.name} on {host}", "take their promised slots on {where}"
    elif new.fence and (old is None or old.fence != new.fence):
        one, many = f"has no promised slot left and is placed on {host}", "are placed on {where}, outside of slots"
    else:
        one, many = f"is moved from {was} to {host}", "are moved to {where}"
    return [
        Told(
            subject=vm,
            text=f"{vm} {one}",
            key=f"assigned-{was}-{new.slot is None}-{shared}-{other}-{new.fence}",
            many=f"{{n}} VMs of {was} {many}",
            where=host,
            loud=after.status.migration == before.status.migration,
        )
    ]


def _rejected(vm: str, before: VirtualMachine, after: VirtualMachine) -> list[Told]:
    new = after.status.rejection
    if new is None or new == before.status.rejection:
        return []
    return [Told(subject=vm, text=f"{new.hypervisor} cannot start {vm}: {new.reason}")]


def _order(vm: str, before: VirtualMachine, after: VirtualMachine) -> list[Told]:
    """For whom it waits, told once, and without whom it starts."""
    old, new = before.status.start_order, after.status.start_order
    if (
        new is None
        or not new.detail
        or (old is not None and (old.waits_for, old.without) == (new.waits_for, new.without))
    ):
        return []
    return [
        Told(
            subject=vm,
            text=f"{vm} {new.detail}",
            key=f"order-{new.waits_for}-{new.without}",
            many=f"{{n}} VMs wait for {', '.join(new.waits_for)}" if new.waits_for else "{n} VMs start without others",
        )
    ]


def _recovery(vm: str, before: VirtualMachine, after: VirtualMachine) -> list[Told]:
    old, new = before.status.recovery, after.status.recovery
    if new is None or not new.reason:
        return []
    if old is not None and (old.phase, old.reason) == (new.phase, new.reason):
        return []
    remedy = f" ({new.remedy})" if new.remedy else ""
    return [
        Told(
            subject=vm,
            text=f"{vm} waits: {new.message}{remedy}",
            key=f"waits-{new.phase}-{new.origin}",
            many=f"{{n}} VMs of {new.origin} wait: {new.message}{remedy}",
        )
    ]


def _holders(vm: str, before: VirtualMachine, after: VirtualMachine) -> list[Told]:
    running = {one.hypervisor for one in before.status.holders if one.seen == "running" and not one.role}
    return [
        Told(
            subject=vm,
            text=f"{vm} runs on {one.hypervisor}",
            key="runs",
            many="{n} VMs run on {where}",
            where=one.hypervisor,
        )
        for one in after.status.holders
        if one.seen == "running" and not one.role and one.hypervisor not in running
    ]


_MOVES: Final[Mapping[MigrationPhase, tuple[str, str]]] = {
    MigrationPhase.REQUESTED: ("{vm} is to move from {source} to {target}", "{{n}} VMs are to move away from {source}"),
    MigrationPhase.TARGET_READY: ("{target} waits for {vm}", ""),
    MigrationPhase.TRANSFERRING: ("{source} sends {vm} to {target}", "{source} sends {{n}} VMs away"),
    MigrationPhase.STOPPING: ("{source} stops {vm}, which then starts on {target}", "{source} stops {{n}} VMs"),
    MigrationPhase.ABORTED: ("the move of {vm} to {target} is off", "{{n}} moves from {source} are off"),
}
"""Phase of a move → what is told of one, and of several."""


def _migration(vm: str, before: VirtualMachine, after: VirtualMachine) -> list[Told]:
    old, new = before.status.migration, after.status.migration
    if new is None or (old is not None and (old.id, old.phase) == (new.id, new.phase)) or new.phase not in _MOVES:
        return []
    one, many = _MOVES[new.phase]
    why = f": {new.message}" if new.message else ""
    return [
        Told(
            subject=vm,
            text=one.format(vm=vm, source=new.source, target=new.target) + why,
            key=f"move-{new.phase}-{new.source}" if many else "",
            many=many.format(source=new.source),
            loud=new.phase is not MigrationPhase.TARGET_READY,
        )
    ]


def _hypervisor(before: Hypervisor | None, after: Hypervisor | None) -> list[Told]:
    if before is None or after is None:
        return []
    host, old, new = after.name, before.status, after.status
    told: list[Told] = []
    if old.domain_state != new.domain_state:
        word = {"flush": "is being emptied", "flushed": "is empty", "unflush": "gets its VMs back"}
        said = word.get(new.domain_state, "takes VMs again" if old.domain_state else "")
        if said:
            told.append(Told(subject=host, text=f"{host} {said}"))
    if old.lost and not new.lost:
        told.append(Told(subject=host, text=f"{host} counts as a host again"))
    told += _degrading(host, old.degrading, new.degrading)
    for one in new.spared:
        if one not in old.spared:
            told.append(Told(subject=host, text=f"{host} would have been condemned but for {one.under}: {one.why}"))
    return told


def _degrading(host: str, old: Degrading | None, new: Degrading | None) -> list[Told]:
    """What becomes of the VMs of a host that gets slow; that it does is told by its fault."""
    if new is None:
        return [] if old is None else [Told(subject=host, text=f"{host} does well again")]
    if old is None or (old.leaving, old.why) == (new.leaving, new.why):
        return []
    said = becomes(new)
    return [
        Told(subject=host, text=f"{host}: {said}", key=f"degrading-{said}", many=f"{{n}} hosts that degrade: {said}")
    ]


_TOLD_OTHERWISE: Final = ("host-dead", "fence-unconfirmed", "vm-held")
"""Faults whose beginning is told by another sentence already."""


def _fault(before: Fault | None, after: Fault | None) -> list[Told]:
    if after is None or (before is not None and before.ended == after.ended):
        return []
    if after.ended:
        return [Told(subject=after.subject.name, text=f"over: {after.message}", loud=False)]
    remedy = f" ({after.remedy})" if after.remedy else ""
    return [
        Told(
            subject=after.subject.name,
            text=f"fault {after.code}: {after.message}{remedy}",
            key=f"fault-{after.code}",
            many=f"{{n}} faults {after.code}, such as: {after.message}{remedy}",
            loud=after.code not in _TOLD_OTHERWISE,
        )
    ]


_GUARD: Final[Mapping[str, tuple[str, str]]] = {
    "close-gate": (
        "the guard of {host} lets nothing start and kills its VMs: {why}",
        "the guards of {n} hosts let nothing start and kill their VMs: {why}",
    ),
    "verified": ("{host} is verified empty, and lives on", "{n} hosts are verified empty, and live on"),
    "give-up": (
        "the guard of {host} cannot empty it, and lets the watchdog reset it",
        "the guards of {n} hosts cannot empty them, and let the watchdog reset them",
    ),
    "open-gate": ("the guard of {host} lets VMs start again", "the guards of {n} hosts let VMs start again"),
}
"""What a guard did → what is told of one, and of several."""


def narrate_guard(event: HistoryEvent) -> Told:
    """What a guard did, which nobody writes into a store."""
    one, many = _GUARD[event.fields["action"]]
    why = f"no renewal was acknowledged for {event.fields['timeoutS']:g} s"
    return Told(
        subject=event.subject,
        text=one.format(host=event.subject, why=why),
        key=f"guard-{event.fields['action']}",
        many=many.replace("{why}", why),
    )


_MACHINE: Final[Mapping[str, str]] = {
    "was switched off": "{n} hosts were switched off",
    "was reset by its watchdog": "{n} hosts were reset by their watchdogs",
}
"""What happened to a machine and stands nowhere else → what is told of several. Other events of machines are asides."""


def narrate_machine(event: HistoryEvent) -> Told:
    """What happened to a machine or a program."""
    many = _MACHINE.get(event.text, f"{{n}} x {event.text}")
    return Told(
        subject=event.subject,
        text=f"{event.subject} {event.text}",
        key=f"{event.kind}-{event.text}",
        many=many,
        loud=event.text in _MACHINE,
    )


def _cluster(before: Cluster | None, after: Cluster | None) -> list[Told]:
    if before is None or after is None:
        return []
    old, new = before.status.store_incarnation, after.status.store_incarnation
    if old and new and old != new:
        return [Told(subject="store", text="the store is another one than before: a backup was restored")]
    return []


_TELLERS: Final[Mapping[str, Callable[[Any, Any], list[Told]]]] = {
    "Membership": _membership,
    "VirtualMachine": _vm,
    "Hypervisor": _hypervisor,
    "Fault": _fault,
    "Cluster": _cluster,
}


def grouped(told: list[Told]) -> list[Told]:
    """Sentences of one key that follow closely on the first become one, at the place of the first."""
    groups: list[list[Told]] = []
    open_groups: dict[str, list[Told]] = {}
    for one in told:
        group = open_groups.get(one.key) if one.key else None
        if group is not None and one.at_s - group[0].at_s <= TOGETHER_S:
            group.append(one)
            continue
        group = [one]
        groups.append(group)
        if one.key:
            open_groups[one.key] = group
    return [_one_of(group) for group in groups]


def _one_of(group: list[Told]) -> Told:
    first = group[0]
    names = list(dict.fromkeys(one.subject for one in group))
    if len(names) == 1:
        return first
    names.sort(key=natural_key)
    places = sorted({one.where for one in group if one.where}, key=natural_key)
    where = listing(places) if 0 < len(places) <= NAMES_SHOWN else f"{len(places)} hosts"
    text = first.many.replace("{n}", str(len(names))).replace("{where}", where)
    if len(names) <= NAMES_SHOWN and len("".join(names)) <= NAMES_CHARACTERS:
        text += f": {', '.join(names)}" if ": " not in text else f" [{', '.join(names)}]"
    return msgspec.structs.replace(first, text=text)
