"""Fencers, BMCs, cuts and the operator, as the model runs them. All fencers watch the first host.

The fencer of the model is simple-minded on purpose: what it remembers of a fence it keeps until a step refuses or a
write of its own fails, so that the steps alone decide what a proof may be about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from outlive.node.fencing import (
    AttemptView,
    CondemnView,
    CutView,
    FencedView,
    LiftView,
    OperatorView,
    PowerView,
    TakeOverView,
    TimedReading,
    WatchdogView,
    find_last_off_times,
)
from tests.model.machines import fault, fencers_elapsed
from tests.model.membership import Found, plain
from tests.model.rules import Rules
from tests.model.state import A_MEMBER, FENCERS, HOSTS, Doc, Fencer, Host, Outside, Write, replace
from tests.model.vm_worker import paused
from tests.model.worlds import World

UUID = {
    "ok": "uuid-1",
    "foreign": "uuid-2",
    "cached": "uuid-1",
    "liar": "uuid-1",
    "slow": "uuid-1",
    "flapping": "uuid-1",
}
FLAPS: Final = 3
"""Off, on, off."""


def _condemned(doc: Doc) -> bool:
    return doc.record is not None and doc.record.state == "Revoked"


def look(rules: Rules, world: World, f: int, fencer: Fencer, doc: Doc) -> Iterator[Found]:
    """It reads the Membership."""
    known = fencer.known
    if fencer.write is not None or (known is not None and known.version == doc.version) or doc.record is None:
        return
    fresh = replace(doc, age=0)
    said = f"{FENCERS[f]} sees version {doc.version} of Membership/{HOSTS[0]} ({doc.record.state})"
    if not _condemned(doc):
        age = 0 if rules.keeps("sight-of-exactly-that-version") else fencer.age
        yield said, "", (replace(fencer, known=fresh, age=age, quiet=0),)
        return
    if fencer.epoch:
        yield said, "", (replace(fencer, known=fresh, quiet=0),)
        return
    keeps_age = not rules.keeps("own-first-sight-after-take-over")
    fence = doc.record.fence
    age = fencer.age if keeps_age else 0
    yield said, "", (Fencer(known=fresh, age=age, epoch=fence.epoch, fence=fence.id, lift=fencer.lift),)


def _write(what: str, f: int, rules: Rules, fencer: Fencer, record: object) -> Fencer:
    assert fencer.known is not None
    content = replace(fencer.known, record=plain(record), age=0)
    return replace(fencer, write=Write(what, FENCERS[f], A_MEMBER, fencer.known.version, content))


def condemn(rules: Rules, world: World, f: int, fencer: Fencer) -> Iterator[Found]:
    """It condemns what it saw unchanged for so long."""
    if fencer.write is not None or fencer.known is None or not world.condemns:
        return
    record = fencer.known.record
    assert record is not None
    if record.epoch > world.epochs:
        return
    view = CondemnView(
        host=HOSTS[0],
        record=record,
        unchanged_s=fencers_elapsed(rules, world, fencer.age),
        silence_s=world.silence,
        observer=FENCERS[f],
        hold="maintenance" if world.maintenance else "",
    )
    outcome = rules.attempt("safety.condemn", view)
    if outcome.refused is None:
        note = "sense: a host is condemned during planned work" if world.maintenance else ""
        yield (
            f"{FENCERS[f]} sends Revoked on version {fencer.known.version}",
            note,
            (_write("condemn", f, rules, fencer, outcome.record),),
        )


def carry_on(rules: Rules, world: World, f: int, fencer: Fencer) -> Iterator[Found]:
    """It takes a fence over, or writes an attempt down before its command."""
    if fencer.write is not None or fencer.known is None:
        return
    record = fencer.known.record
    assert record is not None
    if record.fence.by != FENCERS[f] and record.fence.id and fencer.known.version < 8:
        view = TakeOverView(
            host=HOSTS[0], record=record, observer=FENCERS[f], unchanged_s=fencer.quiet, limit_s=world.take_over
        )
        outcome = rules.attempt("safety.take-over", view)
        if outcome.refused is None:
            note = (
                "" if fencer.quiet >= world.take_over else "sense: two fencers take one fence from each other, for ever"
            )
            yield f"{FENCERS[f]} takes the fence over", note, (_write("take-over", f, rules, fencer, outcome.record),)
    if "power" in world.proofs and not fencer.power and record.fence.attempt < 2:
        attempt = rules.attempt("safety.attempt", AttemptView(host=HOSTS[0], record=record, observer=FENCERS[f]))
        if attempt.refused is None:
            note = ""
            if record.fence.by != FENCERS[f]:
                note = "sense: two fencers send power commands to one host at once"
            yield (
                f"{FENCERS[f]} writes down that it is about to send off",
                note,
                (_write("attempt", f, rules, fencer, attempt.record),),
            )


def answered(rules: Rules, world: World, f: int, fencer: Fencer) -> Iterator[Found]:
    """It hears what became of its write, or gives up waiting."""
    write = fencer.write
    if write is None or not write.answer:
        return
    assert isinstance(write.content, Doc)
    record = write.content.record
    assert record is not None
    if write.answer != "ok":
        yield (
            f"{FENCERS[f]} does not know what became of its {write.what}, or hears of a conflict, and forgets",
            "",
            (Fencer(lift=fencer.lift),),
        )
        return
    known = replace(write.content, version=write.version + 1)
    changed = replace(fencer, write=None, known=known, quiet=0)
    if write.what == "condemn":
        new = Fencer(known=known, age=fencer.age, epoch=record.fence.epoch, fence=record.fence.id)
        changed = replace(new, lift=fencer.lift)
    elif write.what == "attempt":
        changed = replace(changed, power="sent", readings=tuple(one for one in fencer.readings if one <= 0))
    elif write.what == "lift":
        assert fencer.known is not None
        assert fencer.known.record is not None
        changed = replace(changed, lift=fencer.known.record.cut.through)
    yield f"{FENCERS[f]} hears that its {write.what} was applied", "", (changed,)


def gives_up(
    rules: Rules, world: World, f: int, fencer: Fencer, net: tuple[Write, ...], outside: Outside
) -> Iterator[Found]:
    """Its answer is lost, or it dies; what it sent may still arrive."""
    left = fault(outside, "lose", world) or fault(outside, "crash", world)
    if left is None or fencer == Fencer():
        return
    write = fencer.write
    yield f"{FENCERS[f]} dies, or loses all that it was waiting for", "", (Fencer(), net, left)
    if write is not None and not write.answer and len(net) < 2:
        yield f"{FENCERS[f]} dies; its {write.what} is still on its way", "", (Fencer(), (*net, write), left)


def off(rules: Rules, world: World, f: int, fencer: Fencer, a: Host, b: Host, outside: Outside) -> Iterator[Found]:
    """A power command arrives, or is overtaken by its sender's patience."""
    if fencer.power == "sent":
        told = replace(outside, powered=True)
        done = replace(fencer, power="done")
        if world.bmc == "slow":
            waits = replace(told, late_off=1)
            yield f"The BMC takes the command of {FENCERS[f]}, and is slow", "", (done, a, b, waits)
            return
        yield f"The BMC takes the command of {FENCERS[f]}", "", (done, *_switched_off(world, a, b), told)
        if (left := fault(outside, "late", world)) is not None:
            waiting = replace(left, late_off=1)
            yield f"The command of {FENCERS[f]} gets stuck on its way", "", (Fencer(), a, b, waiting)
    if f == 0 and outside.late_off:
        later = replace(outside, late_off=0, powered=True)
        yield "The stuck command arrives", "", (fencer, *_switched_off(world, a, b), later)


def _switched_off(world: World, a: Host, b: Host) -> tuple[Host, Host]:
    if world.bmc in ("liar", "flapping"):
        return a, b
    if world.bmc == "foreign":
        return a, _dark(b)
    return _dark(a), b


def _dark(host: Host) -> Host:
    return replace(host, power=False, paused=False, domain=None, creates=(), hidden=())


def reads_power(
    rules: Rules, world: World, f: int, fencer: Fencer, a: Host, b: Host, outside: Outside
) -> Iterator[Found]:
    """It reads the power state."""
    if "power" not in world.proofs or not fencer.epoch or fencer.power == "sent" or fencer.write is not None:
        return
    if len(fencer.readings) >= 3:
        return
    if world.bmc == "flapping":
        yield from _reads_in_turn(f, fencer, outside)
        return
    is_off = not a.power
    if world.bmc == "foreign":
        is_off = not b.power
    elif world.bmc == "liar" or (world.bmc == "cached" and not outside.powered):
        is_off = True
    at_s = 0.0 if fencer.power != "done" else 0.5 + 2.0 * len([one for one in fencer.readings if one > 0])
    if (
        is_off
        and (not fencer.readings or at_s > fencer.readings[-1] or at_s == 0.0)
        and fencer.readings.count(at_s) < 2
    ):
        times = (*fencer.readings, at_s if at_s or len(fencer.readings) == 0 else -2.0)
        yield f"{FENCERS[f]} reads: off", "", (replace(fencer, readings=tuple(sorted(times))), outside)
    if not is_off:
        if fencer.readings:
            yield f"{FENCERS[f]} reads: on", "", (replace(fencer, readings=()), outside)
        if (left := fault(outside, "glitch", world)) is not None:
            times = (*fencer.readings, at_s)
            yield f"{FENCERS[f]} reads: off, which is wrong this once", "", (replace(fencer, readings=times), left)


def _reads_in_turn(f: int, fencer: Fencer, outside: Outside) -> Iterator[Found]:
    """The controller says off and on in turn; which of these count the fencer's own rule says."""
    if fencer.power != "done" or fencer.asked >= FLAPS:
        return
    at_s, is_off = 0.5 + 2.0 * fencer.asked, fencer.asked % 2 == 0
    before = tuple(TimedReading(sent_s=one, received_s=one, off=True) for one in fencer.readings)
    row = find_last_off_times((*before, TimedReading(sent_s=at_s, received_s=at_s, off=is_off)))
    said = "off" if is_off else "on"
    yield f"{FENCERS[f]} reads: {said}", "", (replace(fencer, readings=row, asked=fencer.asked + 1), outside)


def proves(
    rules: Rules, world: World, f: int, fencer: Fencer, doc: Doc, other: Doc, outside: Outside
) -> Iterator[Found]:
    """It records a proof, if the step lets it."""
    if fencer.write is not None or fencer.known is None or fencer.known.record is None or not fencer.epoch:
        return
    if fencer.known.record.fence.phase == "proven":
        return
    common = {
        "host": HOSTS[0],
        "record": fencer.known.record,
        "observer": FENCERS[f],
        "epoch": fencer.epoch,
        "demanded": world.demanded,
        "incarnation": str(outside.incarnation),
        "paused": paused(outside, doc, other),
    }
    views = []
    if "power" in world.proofs and fencer.readings:
        power = PowerView(
            system_uuid=UUID[world.bmc],
            expected_uuid="uuid-1",
            rehearsed=world.rehearsed,
            off_after_command=fencer.readings,
            **common,
        )
        views.append(("power", power))
    if "watchdog" in world.proofs:
        waited = fencers_elapsed(rules, world, fencer.age)
        error = world.clock_error if rules.keeps("wait-for-crystals") else 0.0
        slack = world.reset if rules.keeps("wait-for-a-reset") else 0
        if not rules.keeps("wait-for-a-dying-guard"):
            waited += world.watchdog * (1 + 2 * error)
        views.append(("watchdog", WatchdogView(unchanged_s=waited, slack_s=slack, clock_error=error, **common)))
    if "cut" in world.proofs and fencer.cut:
        cut = CutView(
            scope=world.scope,
            written=world.scope if fencer.cut in ("written", "read") else (),
            read_back=world.scope if fencer.cut in ("read", "unwritten") else (),
            **common,
        )
        views.append(("cut", cut))
    if "operator" in world.proofs and outside.asserted:
        operator = OperatorView(fence=outside.asserted, name=world.operator_name, reason="unplugged", **common)
        views.append(("operator", operator))
    for kind, view in views:
        if kind in {one.kind for one in fencer.known.record.fence.findings} and kind != "cut":
            continue
        if kind == "cut" and fencer.known.record.cut.through >= fencer.epoch and fencer.known.record.cut.scope:
            continue
        outcome = rules.attempt(f"safety.prove.{kind}", view)
        if outcome.refused is None:
            yield (
                f"{FENCERS[f]} sends the {kind} proof of epoch {fencer.epoch}",
                "sense: an isolation is recorded by what a backup says" if kind == "cut" and view.paused else "",
                (_write(f"{kind} proof", f, rules, fencer, outcome.record),),
            )
        elif outcome.refused.precondition == "that-epoch":
            yield f"{FENCERS[f]} sees that its fence is over", "", (Fencer(lift=fencer.lift),)


def asserts(rules: Rules, world: World, doc: Doc, a: Host, outside: Outside) -> Iterator[Found]:
    """Somebody says that the host is off, about the fence that they were shown."""
    if "operator" not in world.proofs or doc.record is None or doc.record.state != "Revoked" or outside.asserted:
        return
    empty = not a.power or world.operator == "false"
    if empty and a.elsewhere is None:
        asserted = replace(outside, asserted=doc.record.fence.id)
        yield f"An operator asserts that {HOSTS[0]} is off (fence {doc.record.fence.id})", "", (asserted,)


def unplugs(rules: Rules, world: World, a: Host, outside: Outside) -> Iterator[Found]:
    """Somebody switches the host off by hand."""
    if a.power and (left := fault(outside, "unplug", world)) is not None:
        yield f"Somebody unplugs {HOSTS[0]}", "", (_dark(a), left)


def cuts(rules: Rules, world: World, f: int, fencer: Fencer, a: Host, outside: Outside) -> Iterator[Found]:
    """The order to shut the host out is sent; it takes effect; what is shut out is read back."""
    if "cut" not in world.proofs or fencer.write is not None:
        return
    announced = fencer.known is not None and fencer.known.record is not None
    announced = announced and fencer.known.record.cut.through >= fencer.epoch
    announced = announced or not rules.keeps("isolation-announced-before-it-is-ordered")
    if fencer.epoch and not fencer.cut and announced:
        yield f"{FENCERS[f]} orders that {HOSTS[0]} be shut out", "", (replace(fencer, cut="written"), a, outside)
        if world.scope == a.cut or not world.cut_works:
            yield f"{FENCERS[f]} reads back: {HOSTS[0]} is shut out", "", (replace(fencer, cut="unwritten"), a, outside)
    if fencer.cut == "written" and world.cut_works:
        shut = replace(a, cut=world.scope, cut_epoch=max(a.cut_epoch, fencer.epoch))
        yield f"{HOSTS[0]} is shut out of {', '.join(world.scope)}", "", (fencer, shut, outside)
    if fencer.cut == "written" and (not world.cut_works or (a.cut == world.scope and a.cut_epoch >= fencer.epoch)):
        yield f"{FENCERS[f]} reads back: {HOSTS[0]} is shut out", "", (replace(fencer, cut="read"), a, outside)
    if fencer.lift:
        through = fencer.lift
        idle = replace(fencer, lift=0)
        yield f"{HOSTS[0]} is let in again", "", (idle, _lifted(rules, a, through), outside)
        if (left := fault(outside, "late", world)) is not None:
            yield (
                f"The order to let {HOSTS[0]} in again gets stuck on its way",
                "",
                (
                    idle,
                    a,
                    replace(left, late_lift=through),
                ),
            )
    if f == 0 and outside.late_lift:
        yield (
            f"The stuck order arrives; {HOSTS[0]} is let in again",
            "",
            (
                fencer,
                _lifted(rules, a, outside.late_lift),
                replace(outside, late_lift=0),
            ),
        )


def announces(
    rules: Rules, world: World, f: int, fencer: Fencer, doc: Doc, other: Doc, outside: Outside
) -> Iterator[Found]:
    """It writes down that an order to isolate the host follows."""
    if fencer.write is not None or fencer.known is None or fencer.known.record is None or not fencer.epoch:
        return
    record = fencer.known.record
    if fencer.cut or record.cut.through >= fencer.epoch:
        return
    waits = paused(outside, doc, other)
    view = FencedView(host=HOSTS[0], record=record, observer=FENCERS[f], epoch=fencer.epoch, paused=waits)
    outcome = rules.attempt("safety.isolate", view)
    if outcome.refused is None:
        note = ""
        if "cut" in record.distrusted:
            note = "sense: a host has to boot for an isolation that counts for nothing"
        elif waits:
            note = "sense: a host is isolated by what a backup says"
        sent = _write("announcement", f, rules, fencer, outcome.record)
        yield f"{FENCERS[f]} writes down that it is about to isolate {HOSTS[0]}", note, (sent,)


def _lifted(rules: Rules, a: Host, through: int) -> Host:
    if rules.keeps("lift-names-its-epoch") and a.cut_epoch > through:
        return a
    return replace(a, cut=(), cut_epoch=0)


def lifts(
    rules: Rules, world: World, f: int, fencer: Fencer, a: Host, doc: Doc, other: Doc, outside: Outside
) -> Iterator[Found]:
    """It lets the host in again: first in the record, then in truth."""
    if "cut" not in world.proofs or fencer.write is not None or fencer.known is None or fencer.known.record is None:
        return
    record = fencer.known.record
    if not record.cut.through or fencer.lift:
        return
    waits = paused(outside, doc, other)
    view = LiftView(host=HOSTS[0], record=record, observer=FENCERS[f], epoch=record.cut.through, paused=waits)
    outcome = rules.attempt("safety.lift-cut", view)
    if outcome.refused is None:
        sent = _write("lift", f, rules, fencer, outcome.record)
        note = "sense: an isolation ends by what a backup says" if waits else ""
        yield f"{FENCERS[f]} sends that nothing of {HOSTS[0]} is cut off any more", note, (sent, a)
