"""What happened, in sentences for somebody who has never seen the code: the one place that makes them.

Every step of the safety protocol is one write of one object, so ``narrate`` compares what was there with what is
there now: a host condemned, proven dead, back in a new epoch; a VM given to a slot, seen running; a fault raised.
Renewals and figures that change every few seconds are not recorded. Loud events make the story; the others are only in
the history, which violations quote.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from outlive.base import count_of, join_parts
from outlive.node import ROLE as PRIMARY
from outlive.node import describe_outcome
from outlive.node.membership import is_nobodys
from outlive.node.vm import deletion_of
from outlive.resources import (
    Cluster,
    CommitmentChange,
    CommittedResource,
    Coverage,
    Election,
    ElectionRecord,
    Fault,
    Hypervisor,
    Membership,
    MigrationPhase,
    Reservation,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    find_condition,
)
from outlive.simulation.history import NAMES_SHOWN, HistoryEvent
from outlive.simulation.stores import Author

TRIES_PRINTED: Final = 2
"""Attempts of one fence that are printed unless everything is asked for."""

Event = HistoryEvent


def narrate(before: Resource | None, after: Resource | None, author: Author) -> list[Event]:
    """What one write says; often nothing."""
    report = _NARRATORS.get(type(after if after is not None else before))
    return report(before, after, author) if report is not None else []


def _narrate_membership(before: Membership | None, after: Membership | None, author: Author) -> list[Event]:
    host = (after or before).name  # type: ignore[union-attr]
    events: list[Event] = []

    def report(kind: str, text: str, *, loud: bool = True, key: str = "", many: str = "") -> None:
        events.append(Event(kind=kind, subject=host, text=text, loud=loud, key=key, many=many))

    if after is None:
        report("join", f"the membership of {host} is deleted by {author.process}")
        return events
    if before is None:
        if is_nobodys(after.record):
            report("join", f"{host} gets a membership again, which is dead until the host takes it")
        else:
            report("join", f"{host} joins", key="join", many="{n} hosts join")
        return events
    old, new = before.record, after.record
    if old.state != new.state:
        if new.state == "Revoked":
            report("fence", f"{host} is condemned by {new.fence.by}{_format_reason(new.fence.reason)}")
        elif new.state == "Released":
            report("join", f"{host} leaves cleanly")
        else:
            epoch = f"in epoch {new.epoch} " if new.epoch > old.epoch else ""
            report("join", f"{host} is back {epoch}{_describe_rest(after)}")
    elif new.epoch > old.epoch:
        report("join", f"{host} joins again, in epoch {new.epoch}")
    elif old.nonce != new.nonce:
        report("join", f"another daemon of {host} holds epoch {new.epoch}", loud=False)
    if new.dead_through > old.dead_through:
        report("proof", _describe_death(host, after), loud=new.state != "Released")
    elif len(new.fence.findings) > len(old.fence.findings):
        found = new.fence.findings[-1]
        report("fence", f"a first proof against {host}, by {found.kind}: {found.evidence}")
    if new.cut.scope and (new.cut.through, new.cut.scope) != (old.cut.through, old.cut.scope):
        report("fence", f"{host} is shut out of {len(new.cut.scope)} disks and ports")
    elif old.cut.scope and not new.cut.through:
        report("fence", f"{host} is not isolated any more")
    if old.fence.id and old.fence.id == new.fence.id:
        if old.fence.by != new.fence.by:
            report("fence", f"{new.fence.by} takes the fence of {host} over from {old.fence.by}")
        if new.fence.attempt > old.fence.attempt:
            first = new.fence.attempt == 1
            text = f"{new.fence.by} {f'looks for a proof that {host} is dead' if first else 'tries again'}"
            report("fence", text, loud=new.fence.attempt <= TRIES_PRINTED)
        if new.fence.phase == "unconfirmed" != old.fence.phase:
            report("fence", f"nothing proves yet that {host} is dead{_format_reason(new.fence.unproven_why)}")
    if new.guard.armed != old.guard.armed:
        word = "armed" if new.guard.armed else "disarmed"
        report("guard", f"the guard of {host} is {word}", key=word, many=f"the guards of {{n}} hosts are {word}")
    if len(new.distrusted) > len(old.distrusted):
        kind = new.distrusted[-1]
        report("proof", f"{host} was proven dead by {kind} and was not: {kind} counts no more for it")
    return events


def _describe_rest(after: Membership) -> str:
    return "with what it still runs" if after.record.dead_through < after.record.epoch - 1 else "and is empty"


def _describe_death(host: str, after: Membership) -> str:
    proof, through = after.record.proof, after.record.dead_through
    if proof is None:
        return f"{host} is proven dead"
    if proof.kind == "reboot":
        return f"{host} has booted: nothing of what it ran before runs on it any more"
    if proof.kind == "self-cleaned":
        return f"{host} has cleaned up what it ran in epoch {through}"
    return f"{host} is proven dead by {proof.kind}: {proof.evidence}"


def _narrate_vm(before: VirtualMachine | None, after: VirtualMachine | None, author: Author) -> list[Event]:
    vm = (after or before).name  # type: ignore[union-attr]
    events: list[Event] = []

    def report(kind: str, text: str, *, loud: bool = True, **how: Any) -> None:
        events.append(Event(kind=kind, subject=vm, text=f"{vm} {text}", loud=loud, **how))

    if after is None:
        waited = before is not None and before.deleting
        report("vm", "is gone, and its name is free" if waited else f"is deleted by {author.process}")
        return events
    if before is None:
        report("vm", "is created", key="created", many="{n} VMs are created")
        return events
    if after.deleting and not before.deleting:
        events.append(Event(kind="vm", subject=vm, text=deletion_of(after).text, loud=True))
    old, new = before.status, after.status
    if old is new:
        return events
    if old.assigned != new.assigned and new.assigned is not None:
        events += _narrate_assignment(before, after)
    if new.rejection is not None and new.rejection != old.rejection:
        report("reject", f"is rejected by {new.rejection.hypervisor}: {new.rejection.message}")
    if new.recovery is not None and new.recovery != old.recovery:
        events += _narrate_recovery(before, after)
    order = new.start_order
    if order is not None and order != old.start_order:
        known = old.start_order
        waits = ", ".join(order.waits_for)
        report(
            "order",
            order.detail,
            loud=order.detail != ""
            and (known is None or (known.waits_for, known.without) != (order.waits_for, order.without)),
            key=f"order-{order.waits_for}-{order.without}",
            many=f"{{n}} VMs wait for {waits}" if waits else "{n} VMs start without others",
        )
    if old.holders != new.holders:
        events += _narrate_holders(before, after, author)
    move = new.migration
    if move is not None and (old.migration is None or (old.migration.id, old.migration.phase) != (move.id, move.phase)):
        many = _MOVES.get(move.phase, "")
        report(
            "move",
            f"moves {move.mode} from {move.source} to {move.target}: {move.phase}{_format_reason(move.message)}",
            loud=move.phase in _MOVES,
            key=f"move-{move.phase}-{move.source}" if many else "",
            many=many.format(source=move.source),
        )
    if old.phase != new.phase or old.reason != new.reason:
        word = {"stop": "is stopped", "disable": "is disabled", "fail": "has failed"}.get(new.phase)
        loud = word is not None and old.phase != new.phase
        said = word if loud else f"is in phase {new.phase or 'none'}"
        report("vm", f"{said}{_format_reason(new.message)}", loud=loud)
    return events


_MOVES: Final[Mapping[MigrationPhase, str]] = {
    MigrationPhase.REQUESTED: "{{n}} VMs are to move away from {source}",
    MigrationPhase.TRANSFERRING: "{source} sends {{n}} VMs away",
    MigrationPhase.STOPPING: "{source} stops {{n}} VMs",
    MigrationPhase.ABORTED: "{{n}} moves from {source} are off",
}
"""Phases of a move that are loud → the sentence for several; ``{n}`` is for ``_one_of``."""


def _narrate_assignment(before: VirtualMachine, after: VirtualMachine) -> list[Event]:
    old, new, record = before.status.assigned, after.status.assigned, after.status.recovery
    assert new is not None
    was, host = old.hypervisor if old is not None else "nowhere", new.hypervisor
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
    elif record is not None and record.unfinished and record.wanted_there:
        one, many = f"is placed on {host}, where a user wants it", "are placed on {where}, where users want them"
    elif new.fence and (old is None or old.fence != new.fence):
        one, many = f"has no promised slot left and is placed on {host}", "are placed on {where}, outside of slots"
    else:
        one, many = f"is moved from {was} to {host}", "are moved to {where}"
    same = old is not None and (old.hypervisor, old.fence) == (host, new.fence)
    return [
        Event(
            kind="assign",
            subject=after.name,
            text=f"{after.name} {one}",
            key=f"assigned-{was}-{new.slot is None}-{shared}-{other}-{new.fence}",
            many=f"{{n}} VMs of {was} {many}",
            where=host,
            loud=not same and after.status.migration == before.status.migration,
        )
    ]


def _narrate_recovery(before: VirtualMachine, after: VirtualMachine) -> list[Event]:
    old, new = before.status.recovery, after.status.recovery
    assert new is not None
    if old is not None and (old.phase, old.reason) == (new.phase, new.reason):
        return []
    if not new.reason:
        where = f" on {new.host}" if new.host else ""
        return [Event(kind="recovery", subject=after.name, text=f"recovery of {after.name}: {new.phase}{where}")]
    waits = f"{new.reason}: {new.message}{_format_remedy(new.remedy)}"
    return [
        Event(
            kind="recovery",
            subject=after.name,
            text=f"{after.name} waits, {waits}",
            key=f"waits-{new.phase}-{new.origin}-{new.reason}",
            many=f"{{n}} VMs of {new.origin} wait, {waits}",
            loud=True,
        )
    ]


def _narrate_holders(before: VirtualMachine, after: VirtualMachine, author: Author) -> list[Event]:
    """Who holds it, and where it is newly seen running."""
    vm, old, new = after.name, before.status.holders, after.status.holders
    words = [
        f"{one.hypervisor} epoch {one.epoch}{' incoming' if one.role else ''}{' ' + one.seen if one.seen else ''}"
        for one in new
    ]
    text = f"{vm} is held by {', '.join(words) or 'nobody'} (by {author.process})"
    also = tuple(one.hypervisor for one in (*old, *new))
    running = {one.hypervisor for one in old if one.seen == "running" and not one.role}
    return [
        Event(kind="hold", subject=vm, text=text, also=also),
        *(
            Event(
                kind="runs",
                subject=vm,
                text=f"{vm} runs on {one.hypervisor}",
                key="runs",
                many="{n} VMs run on {where}",
                where=one.hypervisor,
                loud=True,
            )
            for one in new
            if one.seen == "running" and not one.role and one.hypervisor not in running
        ),
    ]


def _narrate_slot(before: Reservation | None, after: Reservation | None, author: Author) -> list[Event]:
    name = (after or before).name  # type: ignore[union-attr]
    if after is None:
        text = f"deleted by {author.process}"
    elif before is None:
        text = f"made on {after.spec.target_host}"
    elif before.status.consumer != after.status.consumer:
        consumer = after.status.consumer
        text = f"given to {consumer.vm}" if consumer is not None else "free again"
    else:
        return []
    return [Event(kind="slot", subject=name, text=text)]


def _narrate_coverage(before: Coverage | None, after: Coverage | None, author: Author) -> list[Event]:
    if after is None or (before is None and not after.status.required):
        return []
    old, new = before.status if before is not None else None, after.status
    if old is not None and (old.covered, old.reason) == (new.covered, new.reason):
        return []
    text = "covered" if new.covered else f"uncovered: {new.reason}"
    return [Event(kind="coverage", subject=after.name, text=text)]


def _narrate_port(before: VirtualMachinePort | None, after: VirtualMachinePort | None, author: Author) -> list[Event]:
    """Where it is active, and what is in the way of that."""
    if before is None or after is None:
        return []
    old, new, port = before.status, after.status, after.name
    events: list[Event] = []

    def report(text: str) -> None:
        event = Event(kind="network", subject=port, text=f"{port} {text}", also=(after.spec.vm,))
        events.append(event)

    if new.active_on != old.active_on:
        report(f"is active on {new.active_on} ({', '.join(new.addresses) or after.spec.mac})")
    for kind in ("Programmed", "Bound"):
        was, now = find_condition(old.conditions, kind), find_condition(new.conditions, kind)
        if now is not None and (was.status if was is not None else "True") != now.status:
            report(f"is {kind.lower()} again" if now.status == "True" else f"is not {kind.lower()}: {now.message}")
    move = new.migration
    if move is not None and move != old.migration:
        report("is prepared at the target" if move.prepared else f"is not prepared at the target: {move.message}")
    return events


def _narrate_host(before: Hypervisor | None, after: Hypervisor | None, author: Author) -> list[Event]:
    if before is None or after is None or before.status is after.status:
        return []
    host, old, new = after.name, before.status, after.status
    events: list[Event] = []

    def report(text: str, *, loud: bool = True, **how: Any) -> None:
        events.append(Event(kind="host", subject=host, text=f"{host} {text}", loud=loud, **how))

    if old.lost != new.lost:
        report(f"is lost by fence {new.lost}" if new.lost else "counts as a host again", loud=not new.lost)
    if old.domain_state != new.domain_state:
        word = {"flush": "is being emptied", "flushed": "is empty", "unflush": "gets its VMs back"}
        said = word.get(new.domain_state, "is schedulable again")
        report(said, loud=said in word.values() or old.domain_state != "")
    if old.rehearsed != new.rehearsed:
        report(f"has its BMC rehearsed: {new.rehearsed}", loud=False)
    if old.degrading != new.degrading:
        if new.degrading is None:
            report("does well again")
        else:
            said = describe_outcome(new.degrading)
            known = old.degrading
            report(
                f"degrades ({', '.join(new.degrading.causes)}, score {new.degrading.score}): {said}",
                loud=known is not None and (known.leaving, known.why) != (new.degrading.leaving, new.degrading.why),
                key=f"degrading-{said}",
                many=f"{{n}} hosts that degrade: {said}",
            )
    if old.storage_lost is not None and new.storage_lost is None:
        report("has the storage of its VMs again")
    for one in new.spared:
        if one not in old.spared:
            report(f"would have been condemned but for {one.under}: {one.why}")
    return events


_SAID_OTHERWISE: Final = ("host-dead", "fence-unconfirmed", "vm-held")
"""Faults that begin with an event that has its own sentence."""


def _narrate_fault(before: Fault | None, after: Fault | None, author: Author) -> list[Event]:
    if after is None or (before is not None and (before.ended, before.message) == (after.ended, after.message)):
        return []
    subject, begins = after.subject.name, before is None or before.ended
    if after.ended:
        return [Event(kind="trouble", subject=subject, text=f"over: {after.code}: {after.message}")]
    said = f"{after.message}{_format_remedy(after.remedy)}"
    return [
        Event(
            kind="trouble",
            subject=subject,
            text=f"fault {after.code}: {said}",
            key=f"fault-{after.code}",
            many=f"{{n}} faults {after.code}, such as: {said}",
            loud=begins and after.code not in _SAID_OTHERWISE,
        )
    ]


def _narrate_cluster(before: Cluster | None, after: Cluster | None, author: Author) -> list[Event]:
    if before is None or after is None:
        return []
    old, new = before.status.store_incarnation, after.status.store_incarnation
    if not old or not new or old == new:
        return []
    text = "the store is another one than before: a backup was restored"
    return [Event(kind="store", subject="store", text=text, loud=True)]


def _narrate_election(before: Election | None, after: Election | None, _author: Author) -> list[Event]:
    """Of the primary coordinator; other roles are work that nobody sees."""
    if after is None or after.name != PRIMARY:
        return []
    old, new = before.record if before is not None else ElectionRecord(), after.record
    if (old.holder, old.phase, old.term) == (new.holder, new.phase, new.term):
        return []
    who, kind = new.holder or old.holder, "primary"
    if not new.holder:
        text = f"{who} has given up the role of the primary"
    elif new.phase == "relinquish":
        text = f"{who} gives up the role of the primary{f' to {new.to}' if new.to else ''}"
    elif new.phase == "takeover" or new.term != old.term:
        text = f"{who} takes the role of the primary over{f' after {new.previous}' if new.previous else ''}"
    else:
        text = f"{who} is the primary coordinator (term {new.term})"
    return [Event(kind=kind, subject=who, text=text, loud=True)]


def _narrate_batch(before: CommitmentChange | None, after: CommitmentChange | None, author: Author) -> list[Event]:
    if after is None or after.part_of or (before is not None and before.phase == after.phase):
        return []
    said = count_of(len(after.steps), "commitment") + (" and more" if after.parts else "")
    text = f"{after.request_id or after.name} is {after.phase} ({said}) by {author.process}"
    return [Event(kind="batch", subject=after.name, text=text, loud=after.phase != "withdrawn")]


def _narrate_commitment(
    before: CommittedResource | None, after: CommittedResource | None, author: Author
) -> list[Event]:
    if after is None:
        assert before is not None
        return [Event(kind="batch", subject=before.spec.commitment_uuid, text=f"{before.name} is deleted")]
    old = find_condition(before.status.conditions, "Ready") if before is not None else None
    new, spec = find_condition(after.status.conditions, "Ready"), after.spec
    if new is None or (old is not None and (old.reason, old.message) == (new.reason, new.message)):
        return []
    text = (
        f"{after.name} of {spec.project_id}, {spec.state} with {spec.amount}: {new.reason}{_format_reason(new.message)}"
    )
    return [Event(kind="batch", subject=spec.commitment_uuid, text=text, loud=old is None or old.reason != new.reason)]


_NARRATORS: Final[Mapping[type, Callable[[Any, Any, Author], list[Event]]]] = {
    CommitmentChange: _narrate_batch,
    CommittedResource: _narrate_commitment,
    Membership: _narrate_membership,
    VirtualMachine: _narrate_vm,
    VirtualMachinePort: _narrate_port,
    Reservation: _narrate_slot,
    Coverage: _narrate_coverage,
    Hypervisor: _narrate_host,
    Fault: _narrate_fault,
    Cluster: _narrate_cluster,
    Election: _narrate_election,
}


def _format_reason(text: str) -> str:
    return f": {text}" if text else ""


def _format_remedy(text: str) -> str:
    return f" ({text})" if text else ""


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
"""What a guard does → the sentence for one, and for several. What else it does is not printed."""


def narrate_guard(host: str, action: str, timeout_s: float) -> list[Event]:
    """What a guard did, which nobody writes into a store."""
    if action not in _GUARD:
        return []
    one, many = _GUARD[action]
    why = f"no renewal was acknowledged for {timeout_s:g} s"
    text = one.format(host=host, why=why)
    return [
        Event(kind="guard", subject=host, text=text, key=f"guard-{action}", many=many.replace("{why}", why), loud=True)
    ]


_ENDS: Final[Mapping[str, str]] = {
    "was switched off": "{n} hosts were switched off",
    "was reset by its watchdog": "{n} hosts were reset by their watchdogs",
}
"""Ends of a machine that stand nowhere else → the sentence for several."""


def narrate_end(host: str, how: str) -> Event:
    """A machine has ended."""
    return Event(
        kind="machine", subject=host, text=f"{host} {how}", key=how, many=_ENDS.get(how, ""), loud=how in _ENDS
    )


def format_sentence(template: str, given: Mapping[str, Any], hosts: Sequence[str]) -> str:
    """What somebody does to these hosts, or to others than hosts; arguments that its sentence leaves out follow."""
    domain = given.get("domain", "")
    who = format_names(hosts, "host")
    words = {
        "who": domain.replace("=", " ") if domain else who,
        "s": "" if len(hosts) > 1 and not domain else "s",
        "vms": format_names(given.get("vms", (given["vm"],) if "vm" in given else ()), "VM"),
        "for": f" for {given['for']:g} s" if "for" in given else "",
        "details": _format_details(given),
        **{key: given.get(key, "") for key in ("to", "mode", "network", "reason", "name")},
    }
    used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    text = template.format(**words).rstrip(": ")
    if domain:
        text += f": {who}"
    shown = {*used, *_SHOWN}
    rest = {} if "details" in used else {key: value for key, value in given.items() if key not in shown}
    return f"{text} ({_format_details(rest)})" if rest else text


_SHOWN: Final = ("host", "hosts", "domain", "vm", "vms")
"""Arguments that a sentence names as those whom it is about."""


def _format_details(given: Mapping[str, Any]) -> str:
    said = {
        key: join_parts([str(one) for one in value]) if isinstance(value, tuple) else str(value)
        for key, value in given.items()
    }
    return ", ".join(f"{key} {value}" for key, value in said.items())


def format_names(of: Iterable[str], noun: str) -> str:
    """A few names, or their number."""
    some = list(of)
    if not some:
        return f"no {noun}"
    return join_parts(some) if len(some) <= NAMES_SHOWN else f"{count_of(len(some), noun)} ({some[0]}, {some[1]}, …)"
