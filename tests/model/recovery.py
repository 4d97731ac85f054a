"""The recovery controller, and how writes arrive: claim the slot, then assign the VM, each on the version looked at."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.node.membership import NOBODYS, is_fenced
from outlive.recovery import AssignView, ClaimView, RemoveView
from tests.model.machines import fault
from tests.model.membership import Found
from tests.model.rules import Rules
from tests.model.state import (
    A_MEMBER,
    B_MEMBER,
    HOSTS,
    SLOT,
    THE_SLOT,
    THE_VM,
    VM,
    Daemon,
    Doc,
    Host,
    Outside,
    Recovery,
    Slot,
    Vm,
    Write,
    replace,
)
from tests.model.vm_worker import members, paused, reach
from tests.model.worlds import World

NAMES = {A_MEMBER: f"Membership/{HOSTS[0]}", B_MEMBER: f"Membership/{HOSTS[1]}", THE_VM: VM, THE_SLOT: SLOT}


def look(
    rules: Rules, world: World, recovery: Recovery, vm: Vm, slot: Slot, a: Doc, b: Doc, outside: Outside
) -> Iterator[Found]:
    """It sees a VM with a holder that is fenced, or condemned."""
    if not world.recovery or vm.gone or recovery.write is not None or recovery.vm is not None or not vm.holders:
        return
    if vm.assigned is not None and vm.assigned.hypervisor == HOSTS[1]:
        return
    views = members(a, b)
    where = reach(rules)
    condemned = {one.host for one in views if one.record.state == "Revoked"}
    touched = [one for one in vm.holders if one.hypervisor in condemned or is_fenced(one, views, where)]
    if not touched:
        return
    first = next(one for one in views if one.host == touched[0].hypervisor)
    fence = first.record.fence.id or f"{first.host}.reboot"
    waits = paused(outside, a, b) or (world.missed and a.record is None)
    seen = Recovery(
        vm=replace(vm, dropped=()),
        members=(replace(a, version=0, age=0), replace(b, version=0, age=0)),
        slot=slot,
        fence=fence,
        paused=waits,
    )
    yield f"Recovery reads {VM}, its slot and the memberships", "", (seen,)


def _assign_view(rules: Rules, recovery: Recovery, target: str, slot: Slot | None) -> AssignView:
    """What the steps look at that move the VM, or end it; ``slot``: that was claimed for it, if any."""
    vm = recovery.vm
    assert vm is not None
    return AssignView(
        vm=VM,
        fence=recovery.fence,
        wanted=vm.is_wanted,
        holders=vm.holders,
        assigned=vm.assigned,
        members=members(*recovery.members),
        reach=reach(rules),
        target=target,
        slot=SLOT if slot is not None else "",
        consumer=slot.consumer if slot is not None else None,
        paused=recovery.paused,
    )


def claim(rules: Rules, world: World, recovery: Recovery) -> Iterator[Found]:
    """The slot gets its consumer, if the VM could be assigned, as yet to no slot."""
    if recovery.write is not None or recovery.vm is None or recovery.slot is None:
        return
    if rules.attempt("safety.assign", _assign_view(rules, recovery, HOSTS[1], None)).refused is not None:
        return
    consumer = recovery.slot.consumer
    if consumer is not None and (consumer.vm, consumer.fence) == (VM, recovery.fence):
        return
    b = recovery.members[1].record
    view = ClaimView(
        vm=VM,
        fence=recovery.fence,
        slot=SLOT,
        members={VM: HOSTS[0]} if world.promised else {"w": HOSTS[0]},
        consumer=consumer,
        host_held=b is not None and b.state == "Held",
    )
    outcome = rules.attempt("safety.claim", view)
    if outcome.refused is not None:
        return
    note = ""
    if not world.promised:
        note = "promise: a slot goes to a VM that it was not promised to, and is missing for the one it was"
    elif consumer is not None and consumer.vm != VM:
        note = "promise: a slot is taken from the VM that was let into it"
    elif not view.host_held:
        note = "sense: a slot on a host that is condemned itself is chosen"
    content = replace(recovery.slot, consumer=outcome.consumer)
    write = Write("claim", "recovery", THE_SLOT, recovery.slot.version, content)
    yield f"Recovery sends its claim of {SLOT}", note, (replace(recovery, write=write),)


def assign(rules: Rules, world: World, recovery: Recovery) -> Iterator[Found]:
    """The VM leaves its fenced holders."""
    vm = recovery.vm
    if recovery.write is not None or vm is None or recovery.slot is None:
        return
    outcome = rules.attempt("safety.assign", _assign_view(rules, recovery, HOSTS[1], recovery.slot))
    if outcome.refused is not None:
        return
    note = ""
    if not vm.is_wanted:
        note = "sense: a VM that nobody wants takes a slot"
    elif recovery.slot.consumer is None or recovery.slot.consumer.vm != VM:
        note = "promise: a VM goes where its slot is not claimed for it, and another may go there as well"
    elif recovery.paused:
        note = "sense: a VM is moved because of an entry that a backup brought back"
    content = replace(vm, assigned=outcome.assigned, holders=())
    write = Write("assignment", "recovery", THE_VM, vm.version, content)
    yield f"Recovery sends: {VM} has no holders and is assigned to {HOSTS[1]}", note, (replace(recovery, write=write),)


def drop(rules: Rules, world: World, recovery: Recovery) -> Iterator[Found]:
    """A VM that nobody wants loses its fenced holders."""
    vm = recovery.vm
    if recovery.write is not None or vm is None:
        return
    if rules.attempt("safety.drop", _assign_view(rules, recovery, "", None)).refused is None:
        note = "sense: a VM that is wanted loses its holders and goes nowhere" if vm.is_wanted else ""
        if recovery.paused and not vm.is_wanted:
            note = "sense: a VM loses its holders by what a backup says"
        write = Write("drop", "recovery", THE_VM, vm.version, replace(vm, holders=()))
        yield f"Recovery sends: {VM}, which nobody wants, has no holders", note, (replace(recovery, write=write),)


def remove(
    rules: Rules,
    world: World,
    recovery: Recovery,
    vm: Vm,
    a: Doc,
    b: Doc,
    a_host: Host,
    b_host: Host,
    outside: Outside,
) -> Iterator[Found]:
    """A VM that was deleted goes: recovery takes the finalizer from the version that it has just read."""
    if recovery.write is not None or recovery.vm is not None or not vm.deleted or vm.gone:
        return
    view = RemoveView(vm=VM, holders=vm.holders, paused=paused(outside, a, b))
    if rules.attempt("safety.remove", view).refused is None:
        gone = Vm(version=vm.version, gone=True, guarded=False, dropped=vm.dropped)
        write = Write("removal", "recovery", THE_VM, vm.version, gone)
        runs = [name for name, host in zip(HOSTS, (a_host, b_host), strict=True) if host.domain is not None]
        known = [name for name in runs if name != outside.unknown_on]
        note = ""
        if known and not vm.holders:
            note = f"sense: {VM}, which was deleted, runs on {known[0]}, and once it is gone nobody ends it"
        yield f"Recovery sends the removal of {VM}", note, (replace(recovery, write=write),)


def heard(rules: Rules, world: World, recovery: Recovery) -> Iterator[Found]:
    """It hears what became of its write."""
    write = recovery.write
    if write is None or not write.answer:
        return
    if write.answer == "ok" and write.what == "claim":
        assert isinstance(write.content, Slot)
        slot = replace(write.content, version=write.version + 1)
        yield "Recovery hears that its claim was applied", "", (replace(recovery, write=None, slot=slot),)
    else:
        said = "was applied" if write.answer == "ok" else "was not applied, or nobody knows"
        yield f"Recovery hears that its {write.what} {said}, and starts over", "", (Recovery(),)


def gives_up(
    rules: Rules, world: World, recovery: Recovery, net: tuple[Write, ...], outside: Outside
) -> Iterator[Found]:
    """It dies; what it sent may still arrive."""
    left = fault(outside, "lose", world) or fault(outside, "crash", world)
    if left is None or recovery.vm is None:
        return
    write = recovery.write
    yield "Recovery dies, and another one starts over", "", (Recovery(), net, left)
    if write is not None and not write.answer and len(net) < 2:
        yield f"Recovery dies; its {write.what} is still on its way", "", (Recovery(), (*net, write), left)


# --- how writes arrive


def arrives(rules: Rules, world: World, holder: object, doc: Doc | Vm | Slot, field: str, slot: int) -> Iterator[Found]:
    """A write of a process takes effect, or loses its compare-and-swap."""
    write = getattr(holder, field)
    if write is None or write.answer or not write.on_its_way or write.slot != slot:
        return
    applied, note = _applied(rules, world, write, doc)
    name = NAMES[slot]
    if applied is None:
        yield (
            f"The {write.what} of {write.by} comes too late for version {write.version} of {name}",
            "",
            (
                replace(holder, **{field: replace(write, answer="conflict", on_its_way=False)}),
                doc,
            ),
        )
        return
    yield (
        f"The {write.what} of {write.by} takes effect on {name}",
        note,
        (
            replace(holder, **{field: replace(write, answer="ok", on_its_way=False)}),
            applied,
        ),
    )


def orphan_arrives(
    rules: Rules, world: World, net: tuple[Write, ...], a: Doc, b: Doc, vm: Vm, slot: Slot
) -> Iterator[Found]:
    """A write whose writer is gone takes effect, or loses its compare-and-swap."""
    docs = {A_MEMBER: a, B_MEMBER: b, THE_VM: vm, THE_SLOT: slot}
    for write in net:
        rest = tuple(one for one in net if one is not write)
        applied, note = _applied(rules, world, write, docs[write.slot])
        if applied is None:
            yield f"The late {write.what} of {write.by} comes too late", "", (rest, a, b, vm, slot)
        else:
            after = {**docs, write.slot: applied}
            yield (
                f"The late {write.what} of {write.by} takes effect on {NAMES[write.slot]}",
                note,
                (rest, *after.values()),
            )


def _applied(rules: Rules, world: World, write: Write, doc: Doc | Vm | Slot) -> tuple[Doc | Vm | Slot | None, str]:
    """The document afterwards; ``None`` for a conflict; and what the judge of transitions says."""
    if doc.version != write.version and rules.keeps("cas-on-the-version-seen"):
        return None, ""
    content = write.content
    if isinstance(content, Vm):
        assert isinstance(doc, Vm)
        if doc.gone:
            return None, ""
        if write.what == "guard":
            return (None if doc.deleted else replace(doc, version=doc.version + 1, guarded=True)), ""
        if write.what == "removal":
            return replace(content, version=doc.version + 1), ""
        kept = {one.run_id for one in content.holders}
        gone = tuple(
            one.run_id
            for one in doc.holders
            if one.run_id not in kept and one.hypervisor != write.by and one.run_id not in doc.dropped
        )
        kept_half = {"wanted": doc.wanted, "guarded": doc.guarded, "deleted": doc.deleted}
        return replace(content, version=doc.version + 1, dropped=(*doc.dropped, *gone), **kept_half), ""
    if isinstance(content, Slot):
        return replace(content, version=doc.version + 1), ""
    assert isinstance(doc, Doc)
    return replace(content, version=doc.version + 1, age=0), _writer(world, write, doc, content)


def _writer(world: World, write: Write, before: Doc, after: Doc) -> str:
    """Who may change a membership, how it may change, and what a condemnation needs."""
    old, new = before.record, after.record
    assert new is not None
    if old is None:
        return ""
    if old.machine_id not in (NOBODYS, new.machine_id):
        return "writer: a membership changes its machine"
    if new.dead_through < old.dead_through or new.epoch < old.epoch:
        return "monotone: deadThrough, or an epoch, falls"
    if write.by in HOSTS:
        joins = write.what.startswith("J")
        if joins and old.state == "Revoked" and new.epoch == old.epoch:
            return "writer: an epoch that was condemned is held again"
        if not joins and (old.state != "Held" or old.nonce != write.nonce):
            return "writer: a daemon goes on in a membership that it does not hold"
        return ""
    if write.what == "condemn":
        if before.age < world.silence:
            return "sense: a host is condemned that has just renewed"
        return "writer: a host is condemned that is not held" if old.state != "Held" else ""
    if write.what in ("lift", "word"):
        return ""
    return "writer: a fencer changes the membership of a host that nobody condemned" if old.state != "Revoked" else ""


def loses(rules: Rules, world: World, daemon: Daemon, net: tuple[Write, ...], outside: Outside) -> Iterator[Found]:
    """A daemon's answer is lost: it knows nothing of its write, which may have been applied, or still may be."""
    left = fault(outside, "lose", world)
    if left is None or daemon.phase == "down":
        return
    for field in ("write", "vm_write"):
        write = getattr(daemon, field)
        if write is None or write.answer in ("lost", "conflict"):
            continue
        lost = replace(daemon, **{field: replace(write, answer="lost", on_its_way=False)})
        yield f"{write.by} gives up waiting for the answer to its {write.what}", "", (lost, net, left)
        if not write.answer and len(net) < 2:
            yield (
                f"{write.by} gives up waiting for its {write.what}, which is still on its way",
                "",
                (
                    lost,
                    (*net, write),
                    left,
                ),
            )


__all__ = ["arrives", "assign", "claim", "gives_up", "heard", "look", "loses", "orphan_arrives"]
