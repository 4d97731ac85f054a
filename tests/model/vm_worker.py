"""The VM worker of a node daemon: holds, creates, releases and re-holds.

A fresh read and the judgement that follows are one step here; what was read may be old by the time that the write
takes effect, which is what its version is for.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlive.guard import GuardState as GuardState
from outlive.guard import Phase
from outlive.node.membership import (
    CreateView,
    HoldView,
    Me,
    MemberView,
    Reach,
    ReholdView,
    ReleaseView,
    RenewView,
    may_run_unknown,
)
from outlive.resources import Holder
from tests.model.membership import Found, alive, guard_of, here, listed
from tests.model.rules import Rules
from tests.model.state import (
    DISK,
    HOSTS,
    MEMBER,
    PORT,
    THE_VM,
    VM,
    Daemon,
    Doc,
    Domain,
    Host,
    Outside,
    Vm,
    Write,
    replace,
)
from tests.model.worlds import World


def reach(rules: Rules) -> Reach:
    return Reach(disks=(DISK,), ports=(PORT,) if rules.keeps("ports-count-in-a-cut") else ())


def members(*docs: Doc) -> tuple[MemberView, ...]:
    """Memberships as steps see them."""
    pairs = zip(HOSTS, docs, strict=False)
    return tuple(MemberView(host=host, uid=doc.uid, record=doc.record) for host, doc in pairs if doc.record is not None)


def me(n: int, daemon: Daemon) -> Me:
    uid = daemon.known.uid if daemon.known else ""
    return Me(host=HOSTS[n], uid=uid, epoch=daemon.epoch, held=daemon.held)


def condemned(daemon: Daemon) -> str:
    """The judge's note where a host acts that knows better."""
    return "" if daemon.held else "sense: a host acts for a VM although it knows that it was condemned"


def can_work(daemon: Daemon, host: Host) -> bool:
    return alive(daemon, host) and daemon.phase in ("member", "join", "look") and daemon.epoch > 0


def send_write(what: str, n: int, daemon: Daemon, vm: Vm, **changes: object) -> Daemon:
    content = replace(vm, **changes)
    return replace(daemon, vm_write=Write(what, HOSTS[n], THE_VM, vm.version, content))


def _send_guard(n: int, daemon: Daemon, vm: Vm) -> Daemon:
    return replace(daemon, vm_write=Write("guard", HOSTS[n], THE_VM, vm.version, vm))


def new_run_id(rules: Rules, n: int, host: Host) -> tuple[str, Host]:
    if not rules.keeps("run-ids-are-new"):
        return f"run-{n + 1}.1", replace(host, runs=1)
    return f"run-{n + 1}.{host.runs + 1}", replace(host, runs=host.runs + 1)


def paused(outside: Outside, *docs: Doc) -> bool:
    """Whether some host has not registered under the store's present incarnation."""
    return any(one.record is not None and one.record.incarnation != str(outside.incarnation) for one in docs)


def gate_open(host: Host) -> bool:
    """What the guard says of the gate, by the product's own reading of its phase."""
    phase = Phase.WATCHING if host.armed else Phase.UNARMED
    if host.shut:
        left = host.domain is not None or len(host.creates) > len(host.hidden)
        phase = Phase.KILLING if left else Phase.EMPTY
    return GuardState(phase=phase).gate_open


def _unknown_run(outside: Outside, *docs: Doc) -> str:
    """What the store has of a run that it did not know, and that may not have ended."""
    if not outside.unknown_on or not may_run_unknown(docs[HOSTS.index(outside.unknown_on)].record):
        return ""
    return f"{outside.unknown_on} runs a {VM} that the store did not know"


def hold(
    rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, a: Doc, b: Doc, outside: Outside
) -> Iterator[Found]:
    """It makes itself the one that may run the VM."""
    if not can_work(daemon, host) or daemon.vm_write is not None or daemon.run or host.runs >= world.runs:
        return
    if vm.gone:
        return
    if not vm.guarded and vm.assigned is not None and vm.assigned.hypervisor == HOSTS[n]:
        yield f"The daemon of {HOSTS[n]} sets the finalizer of {VM}", "", (_send_guard(n, daemon, vm), host)
    run, counted = new_run_id(rules, n, host)
    view = HoldView(
        vm=VM,
        me=me(n, daemon),
        assigned=vm.assigned.hypervisor if vm.assigned else "",
        wanted=vm.wanted,
        holders=vm.holders,
        members=members(a, b),
        reach=reach(rules),
        gate_open=gate_open(host),
        run_id=run,
        here=bool(here(rules, host)),
        paused=paused(outside, a, b),
        deleting=vm.deleted,
        guarded=vm.guarded,
        unknown_run=_unknown_run(outside, a, b) if not vm.holders else "",
    )
    outcome = rules.attempt("safety.hold", view)
    if outcome.refused is not None:
        return
    note = condemned(daemon)
    if view.assigned != HOSTS[n]:
        note = "promise: a host holds a VM that is assigned elsewhere, and the slot that waits for it stays empty"
    elif vm.deleted:
        note = "sense: a host starts a VM that was deleted"
    elif not vm.wanted:
        note = "sense: a host starts a VM that nobody wants"
    elif host.shut:
        note = "sense: a host holds a VM that it knows it must not start: nobody else can, either"
    elif host.domain is not None:
        note = "sense: a host that has the VM holds it under another run, and will think its own domain a stranger"
    sent = replace(
        send_write("hold", n, daemon, vm, holders=outcome.holders),
        run=run,
        incoming=False,
        holders=None,
        held_in=str(outside.incarnation),
    )
    if not rules.keeps("entry-before-create"):
        sent = replace(sent, holders=outcome.holders)
    yield f"The daemon of {HOSTS[n]} sends its hold of {VM} ({run}, epoch {daemon.epoch})", note, (sent, counted)


def heard(rules: Rules, world: World, n: int, daemon: Daemon, host: Host) -> Iterator[Found]:
    """It hears that its write of the VM was applied."""
    write = daemon.vm_write
    if not can_work(daemon, host) or write is None or write.answer != "ok":
        return
    assert isinstance(write.content, Vm)
    changed = replace(daemon, vm_write=None)
    if write.what in ("hold", "enter") and daemon.run:
        changed = replace(changed, holders=write.content.holders)
    if write.what == "re-hold":
        host = _relabelled(write.content, n, daemon, host)
    yield f"The daemon of {HOSTS[n]} hears that its {write.what} was applied", "", (changed, host)


def _relabelled(vm: Vm, n: int, daemon: Daemon, host: Host) -> Host:
    domain = host.domain
    if domain is None or not has_entry(vm, n, domain.run, daemon.epoch):
        return host
    return replace(host, domain=replace(domain, epoch=daemon.epoch))


def has_entry(vm: Vm, n: int, run: str, epoch: int = 0) -> bool:
    return any(one.hypervisor == HOSTS[n] and one.run_id == run and epoch in (0, one.epoch) for one in vm.holders)


def wondering(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm) -> Iterator[Found]:
    """After a conflict or a lost answer it reads the VM afresh."""
    write = daemon.vm_write
    if not can_work(daemon, host) or write is None or write.answer not in ("conflict", "lost"):
        return
    changed = replace(daemon, vm_write=None)
    if write.what in ("hold", "enter") and daemon.run:
        changed = replace(changed, holders=vm.holders)
    yield f"The daemon of {HOSTS[n]} reads {VM} afresh to see what became of its {write.what}", "", (changed,)


def create(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, outside: Outside) -> Iterator[Found]:
    """It looks at the gate again and creates the domain, or gives the run up."""
    if not can_work(daemon, host) or not daemon.run or daemon.holders is None:
        return
    announced = rules.keeps("create-announced-to-the-guard")
    view = CreateView(
        vm=VM,
        me=me(n, daemon),
        run_id=daemon.run,
        holders=daemon.holders,
        gate_open=gate_open(host),
        held_in=daemon.held_in,
        incarnation=str(outside.incarnation),
    )
    outcome = rules.attempt("safety.create", view)
    after = replace(daemon, run="", holders=None, incoming=False, held_in="")
    if outcome.refused is not None:
        why = outcome.refused.precondition
        yield f"The daemon of {HOSTS[n]} gives {daemon.run} up ({why})", "", (after, host)
        return
    if len(host.creates) > 1:
        return
    new = Domain(run=daemon.run, epoch=daemon.epoch, state="incoming" if daemon.incoming else "running")
    hidden = host.hidden if announced else (*host.hidden, daemon.run)
    asked = replace(host, creates=(*host.creates, new), hidden=hidden)
    said = "lets the hypervisor listen for" if daemon.incoming else "tells the hypervisor to create"
    yield f"The daemon of {HOSTS[n]} {said} {daemon.run}", condemned(daemon), (after, asked)


def release(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm) -> Iterator[Found]:
    """It takes its own entries back: all of them, or those of which nothing is left."""
    if not can_work(daemon, host) or daemon.vm_write is not None or daemon.known is None:
        return
    uid = daemon.known.uid
    own = tuple(
        one.run_id
        for one in vm.holders
        if one.hypervisor == HOSTS[n] and one.member_uid == uid and one.run_id != daemon.run
    )
    under_way = tuple(one.run for one in listed(rules, host))
    backed = {*under_way, *([host.domain.run] if host.domain else [])}
    for runs in {own, tuple(run for run in own if run not in backed)}:
        if not runs:
            continue
        view = ReleaseView(
            vm=VM,
            host=HOSTS[n],
            uid=uid,
            run_ids=runs,
            holders=vm.holders,
            domain_absent=host.domain is None or host.domain.run not in runs,
            creates_under_way=under_way,
        )
        outcome = rules.attempt("safety.release", view)
        if outcome.refused is None:
            yield (
                f"The daemon of {HOSTS[n]} sends the release of {', '.join(runs)}",
                "",
                (_send_release(n, daemon, vm, outcome.holders, runs),),
            )


def _send_release(n: int, daemon: Daemon, vm: Vm, holders: tuple[Holder, ...], runs: tuple[str, ...]) -> Daemon:
    if daemon.declined not in runs:
        return send_write("release", n, daemon, vm, holders=holders)
    sent = send_write("release", n, daemon, vm, holders=holders, declined=daemon.declined)
    return replace(sent, declined="")


def rehold(
    rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, a: Doc, b: Doc, outside: Outside
) -> Iterator[Found]:
    """It takes what runs here into its new epoch, or destroys it."""
    if not can_work(daemon, host) or daemon.vm_write is not None or daemon.known is None:
        return
    domain = host.domain
    old = [one for one in vm.holders if one.hypervisor == HOSTS[n] and one.epoch < daemon.epoch]
    if domain is None:
        if not old or host.creates or daemon.run or old[0].member_uid != daemon.known.uid:
            return
        run, epoch = old[0].run_id, old[0].epoch
    elif domain.epoch >= daemon.epoch:
        return
    else:
        run, epoch = domain.run, domain.epoch
    view = ReholdView(
        vm=VM,
        me=me(n, daemon),
        old_epoch=epoch,
        holders=vm.holders,
        run_id=run,
        runs=domain is not None,
    )
    outcome = rules.attempt("safety.rehold", view)
    if outcome.refused is None:
        note = condemned(daemon) if domain else "sense: an entry of which nothing is left is made new"
        if not has_entry(vm, n, run):
            note = "sense: a host goes on with a run that the VM's document does not know"
        yield (
            f"The daemon of {HOSTS[n]} sends the re-hold of {run} in epoch {daemon.epoch}",
            note,
            (
                send_write("re-hold", n, daemon, vm, holders=outcome.holders),
                host,
            ),
        )
    elif outcome.refused.precondition == "entry-still-mine":
        note = ""
        if vm.wanted and has_entry(vm, n, run, daemon.epoch):
            note = "sense: a host destroys a VM that it runs and holds"
        yield (
            f"The daemon of {HOSTS[n]} destroys {run}, which it does not hold any more",
            note,
            (
                daemon,
                replace(host, domain=None),
            ),
        )


def destroy(
    rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, outside: Outside
) -> Iterator[Found]:
    """It destroys what has no business here."""
    domain = host.domain
    if not can_work(daemon, host) or domain is None or daemon.phase != "member":
        return
    if daemon.known is None or paused(outside, daemon.known):
        return
    why = ""
    if not vm.wanted or (vm.deleted and not vm.move):
        why = "nobody wants it"
    elif domain.state == "handed" and vm.assigned is not None and vm.assigned.hypervisor != HOSTS[n]:
        why = "the target owns it now"
    elif domain.state == "incoming" and not vm.move:
        why = "the move is off"
    elif not has_entry(vm, n, domain.run):
        why = "it is not held"
    elif vm.assigned is not None and vm.assigned.hypervisor != HOSTS[n] and not vm.move and domain.state == "running":
        why = "it is assigned elsewhere"
    if why:
        yield f"The daemon of {HOSTS[n]} destroys {domain.run}: {why}", "", (replace(host, domain=None),)


def register(
    rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, outside: Outside
) -> Iterator[Found]:
    """After a backup was restored it says what runs here, and then that it has said so."""
    known = daemon.known
    if not can_work(daemon, host) or daemon.phase != "member" or known is None or known.record is None:
        return
    now = str(outside.incarnation)
    if daemon.vm_write is not None or daemon.write is not None or known.record.incarnation == now:
        return
    if host.creates or host.cut:  # who joins a store that went back asks whether it is isolated, and stays out then
        return
    domain = host.domain
    unknown = domain is not None and daemon.unknown == (domain.run, outside.incarnation)
    reported = outside.unknown_on == HOSTS[n] or not rules.keeps("unknown-run-reported-before-registered")
    if domain is not None and vm.gone and not unknown:
        looked = replace(daemon, unknown=(domain.run, outside.incarnation))
        yield f"The daemon of {HOSTS[n]} finds no {VM} in the store for {domain.run}", "", (looked, host)
        return
    if domain is not None and not vm.gone and not has_entry(vm, n, domain.run, daemon.epoch):
        yield from _register(rules, n, daemon, host, domain, vm)
        if not unknown:
            return
    if unknown and not reported:
        return
    renewing = RenewView(
        host=HOSTS[n], record=known.record, nonce=daemon.nonce, guard=guard_of(world, host), incarnation=now
    )
    outcome = rules.attempt("safety.renew", renewing)
    if outcome.refused is None:
        write = Write(
            "renewal", HOSTS[n], MEMBER[n], known.version, replace(known, record=outcome.record), nonce=daemon.nonce
        )
        yield (
            f"The daemon of {HOSTS[n]} says that all its VMs are registered in the restored store",
            "",
            (replace(daemon, write=write), host),
        )


def _register(rules: Rules, n: int, daemon: Daemon, host: Host, domain: Domain, vm: Vm) -> Iterator[Found]:
    """A VM that the store knows gets the entry of the run that is here."""
    if not vm.guarded and not vm.deleted:
        yield f"The daemon of {HOSTS[n]} sets the finalizer of {VM}", "", (_send_guard(n, daemon, vm), host)
        return
    view = ReholdView(
        vm=VM,
        me=me(n, daemon),
        old_epoch=domain.epoch,
        holders=vm.holders,
        run_id=domain.run,
        runs=True,
        register=True,
    )
    outcome = rules.attempt("safety.rehold", view)
    if outcome.refused is None:
        yield (
            f"The daemon of {HOSTS[n]} registers {domain.run} again",
            "",
            (send_write("re-hold", n, daemon, vm, holders=outcome.holders), host),
        )


def report(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, outside: Outside) -> Iterator[Found]:
    """The store gets its report of a run that it did not know, and later that this is over."""
    if not can_work(daemon, host):
        return
    name, domain = HOSTS[n], host.domain
    theirs = (
        vm.assigned is not None
        and vm.assigned.hypervisor != name
        and not any(one.hypervisor == name for one in vm.holders)
    )  # of a VM that it has nothing to do with a host reports nothing that it has not reported before
    unknown = domain is not None and daemon.unknown == (domain.run, outside.incarnation)
    if unknown and outside.unknown_on != name and not theirs:
        yield (
            f"{name} reports that it runs a {VM} that the store did not know",
            "",
            (replace(outside, unknown_on=name),),
        )
    ended = domain is None and not host.creates
    if outside.unknown_on == name and (ended or (domain is not None and has_entry(vm, n, domain.run))):
        yield f"{name} reports that this is over", "", (replace(outside, unknown_on=""),)
