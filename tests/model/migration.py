"""Both sides of a move, as the model runs them."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.node.membership import MoveView
from outlive.resources import Assigned
from tests.model.membership import Found, here
from tests.model.rules import Rules
from tests.model.state import HOSTS, VM, Daemon, Doc, Host, Outside, Vm, replace
from tests.model.vm_worker import (
    can_work,
    condemned,
    gate_open,
    has_entry,
    me,
    members,
    new_run_id,
    paused,
    reach,
    send_write,
)
from tests.model.worlds import World


def _move_view(
    rules: Rules,
    world: World,
    n: int,
    daemon: Daemon,
    host: Host,
    vm: Vm,
    a: Doc,
    b: Doc,
    run: str,
    *,
    is_paused: bool = False,
) -> MoveView:
    domain = host.domain
    return MoveView(
        vm=VM,
        me=me(n, daemon),
        id=vm.move,
        source=HOSTS[world.source] if vm.move else "",
        target=world.target or HOSTS[1 - world.source] if vm.move else "",
        holders=vm.holders,
        members=members(a, b),
        reach=reach(rules),
        gate_open=gate_open(host),
        run_id=run,
        here=bool(here(rules, host)),
        runs=domain is not None and domain.state == "running",
        paused=is_paused,
        deleting=vm.deleted,
    )


def enter(
    rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, a: Doc, b: Doc, outside: Outside
) -> Iterator[Found]:
    """The target enters itself."""
    if not can_work(daemon, host) or daemon.vm_write is not None or daemon.run or host.runs >= world.runs:
        return
    run, counted = new_run_id(rules, n, host)
    waits = paused(outside, a, b)
    view = _move_view(rules, world, n, daemon, host, vm, a, b, run, is_paused=waits)
    outcome = rules.attempt("safety.move.enter", view)
    if outcome.refused is not None:
        return
    note = condemned(daemon)
    if not vm.move or n == world.source or world.target:
        note = "sense: a host enters itself for a move that nobody asked for"
    elif host.shut:
        note = "sense: a host enters itself for a VM that it knows it must not start"
    elif host.domain is not None:
        note = "sense: a host that has the VM enters itself under another run"
    elif not any(one.hypervisor == HOSTS[world.source] for one in vm.holders):
        note = "sense: a host enters itself for a VM that nobody can send to it"
    elif world.stranger:
        note = "sense: a VM is sent to two hosts at once"
    elif vm.deleted:
        note = "sense: a VM that was deleted is moved"
    elif waits:
        note = "sense: a VM is moved by what a backup says"
    sent = send_write("enter", n, daemon, vm, holders=outcome.holders)
    sent = replace(sent, run=run, incoming=True, holders=None, held_in=str(outside.incarnation))
    if not rules.keeps("entry-before-create"):
        sent = replace(sent, holders=outcome.holders)
    yield f"The daemon of {HOSTS[n]} enters itself for {VM} ({run}, incoming)", note, (sent, counted)


def read(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm) -> Iterator[Found]:
    """An earlier reading, for a source that does without a fresh one."""
    if (
        rules.keeps("fresh-read-before-send")
        or n != world.source
        or not can_work(daemon, host)
        or daemon.read is not None
    ):
        return
    yield f"The daemon of {HOSTS[n]} reads {VM}", "", (replace(daemon, read=vm),)


def send(
    rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, a: Doc, b: Doc, outside: Outside
) -> Iterator[Found]:
    """The source starts the transfer."""
    domain = host.domain
    if not can_work(daemon, host) or domain is None or domain.state != "running" or daemon.vm_write is not None:
        return
    seen = vm if rules.keeps("fresh-read-before-send") else daemon.read
    if seen is None:
        return
    waits = paused(outside, a, b)
    view = _move_view(rules, world, n, daemon, host, seen, a, b, domain.run, is_paused=waits)
    try:
        outcome = rules.attempt("safety.move.send", view)
    except StopIteration:
        yield f"The source {HOSTS[n]} sends {VM} to nobody: the step has no run to name", "undefined", (daemon, host)
        return
    if outcome.refused is not None:
        return
    note = condemned(daemon)
    if not seen.move or n != world.source:
        note = "sense: a host sends a VM away that nobody asked it to"
    elif world.stranger:
        note = "sense: a VM is sent to two hosts at once"
    elif waits:
        note = "sense: a VM is moved by what a backup says"
    sending = replace(host, domain=replace(domain, state="sending", peer=outcome.run_id))
    yield (
        f"The daemon of {HOSTS[n]} starts the transfer to {outcome.run_id}",
        note,
        (
            replace(daemon, read=None),
            sending,
        ),
    )


def adopt(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, a: Doc, b: Doc) -> Iterator[Found]:
    """The target becomes the owner."""
    if not can_work(daemon, host) or daemon.vm_write is not None or n == world.source or host.domain is None:
        return
    if not any(one.role == "incoming" and one.hypervisor == HOSTS[n] for one in vm.holders) and not vm.move:
        return
    run = host.domain.run
    if vm.assigned is not None and vm.assigned.hypervisor == HOSTS[n]:
        return
    outcome = rules.attempt("safety.move.adopt", _move_view(rules, world, n, daemon, host, vm, a, b, run))
    if outcome.refused is not None:
        return
    note = condemned(daemon)
    if host.domain.state == "incoming":
        note = "promise: the VM is assigned to a host to which it was not handed over"
    elif any(one.hypervisor == HOSTS[n] and one.role for one in outcome.holders):
        note = "sense: the owner counts as a mere target for ever, and nobody sees the VM as recovered"
    assigned = Assigned(hypervisor=outcome.assigned)
    yield (
        f"The daemon of {HOSTS[n]} adopts {run}",
        note,
        (send_write("adopt", n, daemon, vm, holders=outcome.holders, assigned=assigned, move=""),),
    )


def decline(rules: Rules, world: World, n: int, daemon: Daemon, host: Host) -> Iterator[Found]:
    """The target gives up what has not begun to run."""
    domain = host.domain
    if not can_work(daemon, host) or domain is None or domain.state != "incoming" or daemon.phase != "member":
        return
    yield (
        f"The daemon of {HOSTS[n]} ends {domain.run}, which never ran",
        "",
        (replace(daemon, declined=domain.run), replace(host, domain=None)),
    )


def resume(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, a: Doc, b: Doc) -> Iterator[Found]:
    """The source of a failed move runs on."""
    domain = host.domain
    if not can_work(daemon, host) or domain is None or domain.state != "handed":
        return
    view = _move_view(rules, world, n, daemon, host, vm, a, b, domain.run)
    outcome = rules.attempt(
        "safety.move.resume",
        replace(
            view,
            source=HOSTS[world.source],
            target=HOSTS[1 - world.source],
            sent_to=domain.peer,
            declined=vm.declined,
        ),
    )
    if outcome.refused is None:
        note = condemned(daemon)
        if not has_entry(vm, n, domain.run):
            note = "sense: a host lets a VM run on that was taken from it"
        yield (
            f"The daemon of {HOSTS[n]} lets {domain.run} run on",
            note,
            (replace(host, domain=replace(domain, state="running", peer="")),),
        )
