"""The membership keeper of a node daemon, as the model runs it: joins, renews, looks after lost answers, leaves.

Every write is sent, takes effect or not, and is answered or not; between any two of these everything else may happen.
A daemon that is paused is one that takes no step; one that crashed leaves its writes on their way.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlive.node.membership import (
    CleanedView,
    JoinView,
    LeaseState,
    LeaseView,
    LeaveView,
    RememberedMembership,
    RenewView,
    claim_membership,
    close_lost_membership,
    lease_state,
    take_membership,
    takes_nobodys,
)
from outlive.resources import GuardRecord
from tests.model.rules import Rules
from tests.model.state import HOSTS, MEMBER, VM, Daemon, Doc, Domain, Host, Outside, Vm, Write, replace
from tests.model.worlds import World

Found = tuple[str, str, tuple[object, ...]]
"""A sentence, the violation that taking the step is, if any, and the new parts."""


def alive(daemon: Daemon, host: Host) -> bool:
    """Whether the daemon can take a step."""
    return daemon.phase != "down" and daemon.boot == host.boot and host.power and not host.paused


def here(rules: Rules, host: Host) -> tuple[str, ...]:
    """What counts as a domain on the host."""
    return (VM,) if host.domain is not None or listed(rules, host) else ()


def listed(rules: Rules, host: Host) -> tuple[Domain, ...]:
    """Creates under way that count as domains."""
    if not rules.keeps("creates-count-as-domains"):
        return ()
    return tuple(one for one in host.creates if one.run not in host.unlisted)


def guard_of(world: World, host: Host) -> GuardRecord:
    """What the guard says of itself."""
    if not host.armed or not host.guard:
        return GuardRecord()
    return GuardRecord(armed=True, timeout_s=world.timeout, watchdog_s=world.watchdog)


def beaten(host: Host, age: int, world: World) -> Host:
    """The guard hears of a renewal that was sent so many ticks ago."""
    if not host.armed or not host.guard or age >= host.beat:
        return host
    empty = host.domain is None and len(host.hidden) == len(host.creates)
    opens = host.shut and empty and age < world.timeout
    return replace(host, beat=age, shut=host.shut and not opens)


def start(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, net: tuple[Write, ...]) -> Iterator[Found]:
    """The service manager starts the daemon."""
    if not host.power or host.paused or (daemon.phase != "down" and daemon.boot == host.boot):
        return
    left = tuple(
        one for one in (daemon.write, daemon.vm_write) if one is not None and one.on_its_way and not one.answer
    )
    fresh = Daemon(phase="look", boot=host.boot, nonce=f"d{n + 1}.{host.daemons + 1}", renewals=daemon.renewals)
    started = replace(host, daemons=host.daemons + 1)
    if not rules.keeps("creates-of-earlier-daemons-count"):
        started = replace(started, unlisted=tuple(one.run for one in host.creates))
    said = f"The daemon of {HOSTS[n]} starts"
    yield said, "", (fresh, started, net)
    if left and len(net) + len(left) <= 2:
        yield f"{said}; what its predecessor had sent is still on its way", "", (fresh, started, (*net, *left))


def look(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, doc: Doc) -> Iterator[Found]:
    """It reads its Membership."""
    if not alive(daemon, host) or daemon.phase != "look":
        return
    epoch = doc.record.epoch if doc.record else 0
    domain = host.domain
    was_running = daemon.was_running
    if daemon.first_look:
        was_running = domain is not None and domain.epoch == epoch
    changed = replace(daemon, phase="join", known=doc, first_look=False, was_running=was_running)
    yield f"The daemon of {HOSTS[n]} reads Membership/{HOSTS[n]}", "", (changed,)


def join(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, outside: Outside) -> Iterator[Found]:
    """It takes the row whose case it is."""
    if not alive(daemon, host) or daemon.phase != "join" or daemon.write is not None:
        return
    assert daemon.known is not None
    record = daemon.known.record
    view = JoinView(
        host=HOSTS[n],
        record=daemon.known.record,
        uid=daemon.known.uid,
        machine_id=host.machine,
        boot_id=f"{HOSTS[n]}.boot-{host.boot}",
        nonce=daemon.nonce,
        remembered=host.remembered,
        domains=here(rules, host),
        gate_closed=host.closed,
        was_running=daemon.was_running,
        isolated=host.cut != () and record is not None and record.incarnation != str(outside.incarnation),
        guard=guard_of(world, host),
    )
    if not rules.keeps("destroy-verified-before-rejoin"):
        view = replace(view, domains=())
    nobodys = takes_nobodys(view)
    view = take_membership(view) if nobodys else claim_membership(view)
    try:
        outcome = rules.join(view)
    except (AssertionError, AttributeError) as error:
        yield (
            f"The daemon of {HOSTS[n]} joins and {type(error).__name__}: it looks at what is not there",
            "undefined",
            (),
        )
        return
    if outcome.destroy_first:
        if host.domain is not None:
            needless = ""
            record = daemon.known.record
            if record is not None and record.state == "Held" and record.boot_id == view.boot_id and record.epoch == 1:
                needless = "sense: it destroys running VMs that its own epoch, alive and held, covers"
            yield (
                f"The daemon of {HOSTS[n]} destroys all domains before it joins",
                needless,
                (
                    daemon,
                    replace(host, domain=None),
                ),
            )
        return
    if outcome.refused is not None:
        yield (
            f"The daemon of {HOSTS[n]} may not join ({outcome.refused.precondition})",
            "",
            (
                replace(daemon, phase="refused", held=False),
                host,
            ),
        )
        return
    assert outcome.record is not None
    needless = ""
    if outcome.contradicted == "self-cleaned" and not daemon.was_running:
        needless = "sense: a host that left cleanly gets a fault that its own proof was wrong"
    uid = daemon.known.uid or f"uid-{n + 1}.{host.daemons}"
    record = close_lost_membership(outcome.record, host.remembered, HOSTS[n]) if nobodys else outcome.record
    content = Doc(version=0, uid=uid, record=plain(record))
    write = Write(outcome.row, HOSTS[n], MEMBER[n], daemon.known.version, content, nonce=daemon.nonce)
    yield (
        f"The daemon of {HOSTS[n]} sends {outcome.row} (epoch {outcome.record.epoch})",
        needless,
        (
            replace(daemon, write=write),
            host,
        ),
    )


def plain(record):
    """Without words, which would make states differ that are the same."""
    proof = record.proof and replace(
        record.proof, evidence=record.proof.evidence if record.proof.kind == "operator" else ""
    )
    findings = tuple(replace(one, evidence="") for one in record.fence.findings)
    cut = replace(record.cut, proof=record.cut.proof and replace(record.cut.proof, evidence=""))
    former = tuple(replace(one, proof=replace(one.proof, evidence="")) for one in record.former)
    fence = replace(record.fence, reason="", findings=findings)
    return replace(record, proof=proof, cut=cut, fence=fence, former=former)


def renew(rules: Rules, world: World, n: int, daemon: Daemon, host: Host) -> Iterator[Found]:
    """It renews."""
    if not alive(daemon, host) or daemon.phase != "member" or daemon.write is not None or not daemon.renewals:
        return
    assert daemon.known is not None
    if daemon.known.record is None:
        return
    outcome = rules.attempt("safety.renew", _renew_view(world, n, daemon, host))
    if outcome.refused is None:
        content = replace(daemon.known, record=outcome.record)
        write = Write("renewal", HOSTS[n], MEMBER[n], daemon.known.version, content, nonce=daemon.nonce)
        yield (
            f"The daemon of {HOSTS[n]} sends a renewal",
            "",
            (replace(daemon, write=write, renewals=daemon.renewals - 1),),
        )


def _renew_view(world: World, n: int, daemon: Daemon, host: Host) -> RenewView:
    assert daemon.known is not None
    assert daemon.known.record is not None
    return RenewView(host=HOSTS[n], record=daemon.known.record, nonce=daemon.nonce, guard=guard_of(world, host))


def self_clean(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, doc: Doc) -> Iterator[Found]:
    """After J3 it says that nothing is left of the old epoch."""
    if not alive(daemon, host) or daemon.phase != "member" or daemon.write is not None or daemon.known is None:
        return
    record = doc.record
    old = daemon.old or daemon.epoch - 1
    if record is None or old <= 0 or (record.dead_through == old):
        return
    left = [one for one in (host.domain, *listed(rules, host)) if one is not None and one.epoch <= old]
    view = CleanedView(host=HOSTS[n], record=record, nonce=daemon.nonce, old_epoch=old, left=(VM,) if left else ())
    outcome = rules.attempt("safety.self-clean", view)
    if outcome.refused is None:
        content = replace(doc, record=plain(outcome.record), age=0)
        write = Write("self-cleaned", HOSTS[n], MEMBER[n], doc.version, content, nonce=daemon.nonce)
        yield f"The daemon of {HOSTS[n]} says that nothing is left of epoch {old}", "", (replace(daemon, write=write),)


def leave(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, vm: Vm, outside: Outside) -> Iterator[Found]:
    """It stops for good."""
    if "leave" not in world.kinds or not alive(daemon, host) or daemon.phase != "member" or daemon.write is not None:
        return
    if daemon.known is None or daemon.known.record is None:
        return
    holds = tuple(VM for one in vm.holders if one.hypervisor == HOSTS[n])
    under_way = int(daemon.vm_write is not None or daemon.run != "")
    view = LeaveView(
        host=HOSTS[n],
        record=daemon.known.record,
        nonce=daemon.nonce,
        domains=here(rules, host),
        holds=holds,
        under_way=under_way,
        incarnation=str(outside.incarnation),
    )
    outcome = rules.attempt("safety.leave", view)
    if outcome.refused is None:
        note = "sense: a host leaves that holds a VM, which is then recovered for nothing" if holds else ""
        content = replace(daemon.known, record=plain(outcome.record))
        write = Write("leave", HOSTS[n], MEMBER[n], daemon.known.version, content, nonce=daemon.nonce)
        yield (
            f"The daemon of {HOSTS[n]} stops for good and sends Released",
            note,
            (replace(daemon, write=write, held=False),),
        )


def answered(rules: Rules, world: World, n: int, daemon: Daemon, host: Host) -> Iterator[Found]:
    """It hears that a write of its Membership was applied."""
    write = daemon.write
    if not alive(daemon, host) or write is None or write.answer != "ok":
        return
    assert isinstance(write.content, Doc)
    record = write.content.record
    assert record is not None
    known = replace(write.content, version=write.version + 1, age=0)
    changed = replace(daemon, write=None, known=known)
    age = write.age if rules.keeps("beat-counts-from-sending") else 0
    said = f"The daemon of {HOSTS[n]} hears that its {write.what} was applied"
    if write.what.startswith("J"):
        note = _begun_twice(write.what, known, host)
        isolated = host.cut != () and host.cut_epoch == record.epoch - (write.what != "J2")
        if write.what in ("J2", "J3", "J4") and isolated and "restore" not in world.kinds:  # else it may be on its way
            note = f"sense: {HOSTS[n]} is a member again in the boot in which it was isolated"
        if write.what == "J0" and host.domain is not None:
            note = "sense: a host registers with a domain that nobody else knows of"
        yield said, note, _joined(rules, world, write, changed, host, age)
    elif write.what == "leave":
        yield said, "", (replace(changed, phase="refused", held=False), host)
    elif write.what == "renewal":
        yield said, "", (changed, beaten(host, age, world))
    else:
        yield said, "", (changed, host)


def _begun_twice(row: str, known: Doc, host: Host) -> str:
    before = host.used
    assert known.record is not None
    if before is None:
        return ""
    if before.uid != known.uid:
        if any(one.uid == before.uid for one in known.record.former):
            return ""  # somebody has spoken for that one
        return "sense: it was a member before, the store lost it, and no fault says so"
    if known.record.epoch < before.epoch or (row != "J2" and known.record.epoch == before.epoch):
        return f"sense: {row} takes up epoch {known.record.epoch}, and epoch {before.epoch} was used before"
    return ""


def _joined(rules: Rules, world: World, write: Write, daemon: Daemon, host: Host, age: int) -> tuple[Daemon, Host]:
    assert daemon.known is not None
    record = daemon.known.record
    assert record is not None
    old = record.epoch - 1 if write.what == "J3" else daemon.old
    joined = replace(daemon, phase="member", epoch=record.epoch, held=True, was_running=False, old=old)
    host = beaten(host, age, world)
    if write.what != "J2":
        host = replace(host, closed=host.shut)
    if rules.keeps("remember-before-use"):
        host = replace(host, remembered=RememberedMembership(uid=daemon.known.uid, epoch=record.epoch))
    return joined, replace(host, used=RememberedMembership(uid=daemon.known.uid, epoch=record.epoch))


def unsure(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, doc: Doc) -> Iterator[Found]:
    """After a conflict or a lost answer it reads afresh."""
    write = daemon.write
    if not alive(daemon, host) or write is None or write.answer not in ("conflict", "lost"):
        return
    if write.what.startswith("J"):
        yield (
            f"The daemon of {HOSTS[n]} does not know what became of its {write.what} and starts over",
            "",
            (
                replace(daemon, write=None, phase="look", held=False),
                host,
            ),
        )
        return
    assert isinstance(write.content, Doc)
    assert write.content.record is not None
    assert daemon.known is not None
    view = LeaseView(
        sent=write.content.record,
        acknowledged_seq=daemon.known.record.seq if daemon.known.record else 0,
        uid=daemon.known.uid,
        found=doc.record,
        found_uid=doc.uid,
    )
    case = lease_state(view).state
    changed = replace(daemon, write=None, known=doc)
    said = f"The daemon of {HOSTS[n]} reads afresh and finds: {case}"
    if case is LeaseState.MINE and write.what == "renewal":
        age = write.age if rules.keeps("beat-counts-from-sending") else 0
        yield said, "", (changed, beaten(host, age, world))
        return
    if case is LeaseState.MINE and write.what == "leave":
        yield said, "", (replace(changed, phase="refused", held=False), host)
        return
    renewing = rules.attempt("safety.renew", _renew_view(world, n, changed, host)) if doc.record else None
    if case is LeaseState.ROLLED_BACK and "restore" in world.kinds and doc.record and doc.record.epoch == daemon.epoch:
        yield said, "", (changed, host)
    elif renewing is not None and renewing.refused is None and case is not LeaseState.ROLLED_BACK:
        held = case in (LeaseState.MINE, LeaseState.NOT_YET)
        if write.what == "leave" and rules.keeps("no-hold-after-leave"):
            held = False
        yield said, "", (replace(changed, held=held and (daemon.held or write.what == "leave")), host)
    elif case in (LeaseState.REVOKED, LeaseState.DEAD):
        yield said, "", (replace(changed, phase="join", held=False, was_running=_runs(host, doc)), host)
    else:
        yield said, "", (replace(changed, phase="refused", held=False), host)


def _runs(host: Host, doc: Doc) -> bool:
    return host.domain is not None and doc.record is not None and host.domain.epoch == doc.record.epoch
