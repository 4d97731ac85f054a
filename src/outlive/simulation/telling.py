"""Makes events of the history out of writes: what changed of a host's standing, a VM's holders, a slot, a fault.

Renewals and figures that change every few seconds are not told.
"""

from __future__ import annotations

from typing import Final

from outlive.resources import (
    Coverage,
    Degrading,
    Fault,
    Hypervisor,
    MemberRecord,
    Membership,
    Reservation,
    Resource,
    VirtualMachine,
)
from outlive.simulation.history import History
from outlive.simulation.stores import Author

_BECOMES: Final = {"waits": "may leave soon", "leaves": "leave", "stays": "stay"}


def tell(history: History, before: Resource | None, after: Resource | None, author: Author) -> None:
    """What this write says, if anything."""
    match after or before:
        case Membership() as one:
            old = before.record if isinstance(before, Membership) else None
            _membership(history, one.name, old, after.record if isinstance(after, Membership) else None, author)
        case VirtualMachine() as one:
            _vm(history, one.name, before, after, author)
        case Reservation() as one:
            _slot(history, one.name, before, after, author)
        case Fault() as one:
            _fault(history, one, before, after)
        case Coverage() as one:
            _coverage(history, one, before)
        case Hypervisor() as one:
            _host(history, one, before, author)
        case _:
            return


def _membership(
    history: History, host: str, old: MemberRecord | None, new: MemberRecord | None, author: Author
) -> None:
    if new is None:
        history.add("join", host, f"its membership was deleted by {author.process}")
        return
    if old is None or old.epoch != new.epoch:
        since = f", epoch {new.dead_through} proven dead" if new.dead_through else ""
        history.add("join", host, f"member in epoch {new.epoch}{since}", epoch=new.epoch)
    elif old.state != new.state:
        reason = f": {new.fence.reason}" if new.state == "Revoked" else ""
        history.add("fence" if new.state == "Revoked" else "join", host, f"{new.state} by {author.process}{reason}")
    elif old.nonce != new.nonce:
        history.add("join", host, f"another daemon holds epoch {new.epoch}")
    if old is None:
        return
    if new.fence.attempt != old.fence.attempt and new.fence.id == old.fence.id:
        history.add("fence", host, f"{new.fence.by} tries, attempt {new.fence.attempt}")
    if new.fence.by != old.fence.by and old.fence.by and new.fence.id == old.fence.id:
        history.add("fence", host, f"{new.fence.by} takes over from {old.fence.by}")
    if new.fence.phase == "unconfirmed" != old.fence.phase:
        history.add("fence", host, f"unconfirmed: {new.fence.unproven_why}")
    if new.cut != old.cut:
        history.add("fence", host, f"cut off through epoch {new.cut.through}" if new.cut.through else "let in again")
    if new.dead_through != old.dead_through and new.proof is not None:
        text = f"epoch {new.dead_through} is dead, {new.proof.kind}: {new.proof.evidence}"
        history.add("proof", host, text, proof=new.proof.kind, epoch=new.dead_through)


def _vm(history: History, vm: str, before: Resource | None, after: Resource | None, author: Author) -> None:
    if not isinstance(after, VirtualMachine):
        history.add("vm", vm, f"deleted by {author.process}")
        return
    old = before.status if isinstance(before, VirtualMachine) else None
    new = after.status
    if old is None:
        return
    if old.holders != new.holders:
        words = [
            f"{one.hypervisor} epoch {one.epoch}{' incoming' if one.role else ''}{' ' + one.seen if one.seen else ''}"
            for one in new.holders
        ]
        also = tuple(one.hypervisor for one in (*old.holders, *new.holders))
        history.add("hold", vm, f"held by {', '.join(words) or 'nobody'} (by {author.process})", also=also)
    if old.assigned != new.assigned and new.assigned is not None:
        slot = f" in slot {new.assigned.slot.name}" if new.assigned.slot is not None else ""
        history.add("assign", vm, f"assigned to {new.assigned.hypervisor}{slot} by {author.process}")
    if new.rejection is not None and new.rejection != old.rejection:
        history.add("reject", vm, f"rejected by {new.rejection.hypervisor}: {new.rejection.message}")
    if new.start_order is not None and new.start_order != old.start_order:
        history.add("order", vm, new.start_order.detail)
    if old.phase != new.phase or old.reason != new.reason:
        history.add("vm", vm, f"phase {new.phase or 'none'}{': ' + new.message if new.message else ''}")
    if new.migration is not None and (old.migration is None or old.migration.phase != new.migration.phase):
        move = new.migration
        history.add(
            "move", vm, f"{move.mode} from {move.source} to {move.target}: {move.phase} {move.message}".rstrip()
        )
    if new.recovery is not None and (
        old.recovery is None or (old.recovery.phase, old.recovery.reason) != (new.recovery.phase, new.recovery.reason)
    ):
        one = new.recovery
        why = f": {one.reason}: {one.message}" if one.reason else ""
        where = f" on {one.host}" if one.host else ""
        history.add("recovery", vm, f"{one.phase}{where}{why}", phase=one.phase, promised=one.promised)


def _slot(history: History, name: str, before: Resource | None, after: Resource | None, author: Author) -> None:
    if not isinstance(after, Reservation):
        history.add("slot", name, f"deleted by {author.process}")
        return
    old = before.status if isinstance(before, Reservation) else None
    if old is None:
        history.add("slot", name, f"made on {after.spec.target_host}")
    elif old.consumer != after.status.consumer:
        consumer = after.status.consumer
        history.add("slot", name, f"given to {consumer.vm}" if consumer is not None else "free again")


def _fault(history: History, one: Fault, before: Resource | None, after: Resource | None) -> None:
    old = before if isinstance(before, Fault) else None
    if after is None:
        return
    if old is None or (old.ended and not one.ended) or old.message != one.message:
        history.add("trouble", one.subject.name, f"{one.code}: {one.message}", code=one.code)
    elif one.ended and not old.ended:
        history.add("trouble", one.subject.name, f"{one.code} is over", code=one.code)


def _coverage(history: History, one: Coverage, before: Resource | None) -> None:
    old = before.status if isinstance(before, Coverage) else None
    if old is not None and old.covered == one.status.covered and old.reason == one.status.reason:
        return
    word = "covered" if one.status.covered else f"uncovered: {one.status.reason}"
    if one.status.required or old is not None:
        history.add("coverage", one.name, word)


def _host(history: History, one: Hypervisor, before: Resource | None, author: Author) -> None:
    old = before.status if isinstance(before, Hypervisor) else None
    if old is None:
        return
    if old.lost != one.status.lost:
        history.add("host", one.name, f"lost by fence {one.status.lost}" if one.status.lost else "back again")
    if old.domain_state != one.status.domain_state:
        history.add("host", one.name, f"{one.status.domain_state or 'unknown'} (by {author.process})")
    if old.rehearsed != one.status.rehearsed:
        history.add("host", one.name, f"power controller rehearsed: {one.status.rehearsed}")
    if old.degrading != one.status.degrading:
        history.add("host", one.name, _degrading(one.status.degrading))
    if old.spared != one.status.spared:
        history.add("host", one.name, "would have been condemned but for maintenance")


def _degrading(found: Degrading | None) -> str:
    if found is None:
        return "does well again"
    why = f" ({found.why})" if found.why else ""
    return f"degrades ({', '.join(found.causes)}, score {found.score}): its VMs {_BECOMES[found.leaving]}{why}"
