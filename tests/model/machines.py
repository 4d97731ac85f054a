"""What happens to machines, and by itself: domains appear and end, guards act, hosts stop, boot, pause and are swapped.

A tick is one unit of time for everybody. Whatever a guard or a watchdog must have done by then, it has done: that is
what they promise. A paused host's guard does nothing, and its hardware watchdog runs on.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlive.base import SlowerOf
from outlive.guard import START, Instants, max_elapsed, min_elapsed
from outlive.node.fencing import CondemnView
from outlive.node.membership import RenewView
from outlive.resources import Assigned, Consumer
from tests.model.membership import Found, alive, plain
from tests.model.rules import Rules
from tests.model.state import HOSTS, MEMBER, VM, Daemon, Doc, Fencer, Host, Outside, Slot, Vm, Write, replace
from tests.model.worlds import World

LONGEST = 2
"""Times that are counted go on to so many times their limit: by the slowest of all clocks it is over then."""


def lands(rules: Rules, world: World, n: int, host: Host) -> Iterator[Found]:
    """A create takes effect."""
    if not host.creates or not host.power or host.paused:
        return
    for one in host.creates:
        rest = tuple(each for each in host.creates if each is not one)
        hidden = tuple(run for run in host.hidden if run != one.run)
        after = replace(host, creates=rest, hidden=hidden)
        if host.domain is None:
            yield f"The domain of {one.run} appears on {HOSTS[n]}", "", (replace(after, domain=one),)
        else:
            yield f"The hypervisor of {HOSTS[n]} refuses {one.run}: there is a domain of {VM}", "", (after,)


def fault(outside: Outside, kind: str, world: World) -> Outside | None:
    """One fault less, if it may happen."""
    if kind not in world.kinds or outside.faults <= 0:
        return None
    return replace(outside, faults=outside.faults - 1)


def rebooted(host: Host) -> Host:
    """The host after a reset: empty, unarmed until somebody arms it."""
    return replace(
        host,
        boot=host.boot + 1,
        power=True,
        paused=False,
        domain=None,
        creates=(),
        hidden=(),
        unlisted=(),
        armed=False,
        shut=False,
        closed=False,
        beat=0,
        fed=0,
        guard=True,
    )


def happens_to_host(rules: Rules, world: World, n: int, host: Host, outside: Outside) -> Iterator[Found]:
    """Faults of one machine."""
    name = HOSTS[n]
    if host.power and (left := fault(outside, "reboot", world)) is not None:
        yield f"{name} crashes and boots again", "", (rebooted(host), left)
    if not host.power:
        yield f"{name} is switched on and boots", "", (rebooted(host), outside)
    if host.power and not host.paused and (left := fault(outside, "pause", world)) is not None:
        yield f"{name} freezes, its guard with it", "", (replace(host, paused=True), left)
    if host.paused:
        yield f"{name} runs on", "", (_judged(rules, world, replace(host, paused=False)), outside)
    feeds = host.armed and host.guard and host.power and not host.paused
    if feeds and (left := fault(outside, "guard", world)) is not None:
        fed = host.fed if host.fed > world.watchdog else 0
        dead = replace(host, guard=False, shut=True, fed=fed)
        yield f"The guard of {name} dies; the kernel feeds its watchdog", "", (dead, left)
    if n == 0 and not host.power and (left := fault(outside, "replace", world)) is not None:
        other = replace(rebooted(host), machine="machine-3", remembered=None, used=None)
        yield f"{name} is replaced by another machine", "", (other, left)
    if n == 0 and host.elsewhere is None and (left := fault(outside, "swap", world)) is not None:
        other = replace(rebooted(host), machine="machine-3", remembered=None, used=None, elsewhere=host.domain, cut=())
        yield (
            f"Another machine takes the name {name}; the old one is cut off from the store and runs on",
            "",
            (
                other,
                left,
            ),
        )
    if host.domain is not None and host.power and (left := fault(outside, "guest", world)) is not None:
        yield f"The guest of {host.domain.run} ends by itself", "", (replace(host, domain=None), left)
    if host.creates and (left := fault(outside, "fail", world)) is not None:
        rest = host.creates[1:]
        hidden = tuple(run for run in host.hidden if run != host.creates[0].run)
        yield (
            f"The hypervisor of {name} fails to create {host.creates[0].run}",
            "",
            (
                replace(host, creates=rest, hidden=hidden),
                left,
            ),
        )


def transfers(rules: Rules, world: World, a: Host, b: Host, outside: Outside) -> Iterator[Found]:
    """QEMU hands a VM over, or does not."""
    domain = a.domain
    if domain is None or domain.state != "sending" or not a.power or a.paused:
        return
    target = b.domain
    at, to = HOSTS[world.source], HOSTS[1 - world.source]
    if target is not None and target.state == "incoming" and target.run == domain.peer and b.power and not b.paused:
        handed = replace(a, domain=replace(domain, state="handed"))
        runs = replace(b, domain=replace(target, state="running"))
        yield f"QEMU hands {VM} over: it runs on {to}, and is paused on {at}", "", (handed, runs, outside)
    if (left := fault(outside, "fail", world)) is not None:
        back = replace(a, domain=replace(domain, state="running", peer=""))
        yield f"The transfer fails; {VM} runs on {at} as before", "", (back, b, left)
        lost = replace(a, domain=replace(domain, state="handed"))
        if target is None or target.run != domain.peer:
            yield f"The transfer breaks at its end; {VM} is paused on {at}", "", (lost, b, left)


def users(rules: Rules, world: World, vm: Vm, slot: Slot, outside: Outside) -> Iterator[Found]:
    """What people want changes."""
    if vm.wanted and (left := fault(outside, "unwanted", world)) is not None:
        yield f"Somebody stops {VM}", "", (replace(vm, version=vm.version + 1, wanted=False), slot, left)
    if vm.move and (left := fault(outside, "abort", world)) is not None:
        yield f"The move of {VM} is called off", "", (replace(vm, version=vm.version + 1, move=""), slot, left)
    if slot.consumer is None and (left := fault(outside, "taken", world)) is not None:
        taken = replace(slot, version=slot.version + 1, consumer=Consumer(vm="w", fence="earlier"))
        yield "The slot is claimed for another VM, w", "", (vm, taken, left)
    if not vm.deleted and not vm.gone and (left := fault(outside, "delete", world)) is not None:
        if vm.guarded:
            yield f"{VM} is deleted: it is marked", "", (replace(vm, version=vm.version + 1, deleted=True), slot, left)
        else:
            yield f"{VM} is deleted, and gone", "", (_gone(vm), slot, left)
    if vm.gone:
        new = Vm(version=vm.version + 1, assigned=Assigned(hypervisor=HOSTS[1]), guarded=False)
        yield f"Another {VM} is created on {HOSTS[1]}", "", (new, slot, outside)
    if vm.holders and (left := fault(outside, "recreate", world)) is not None:
        new = Vm(version=vm.version + 1, assigned=Assigned(hypervisor=HOSTS[1]))
        yield f"{VM} is deleted, and made anew on {HOSTS[1]}", "", (new, slot, left)
    if vm.assigned is not None and (left := fault(outside, "reassign", world)) is not None:
        other = Assigned(hypervisor=HOSTS[1])
        yield f"{VM} is assigned to {HOSTS[1]}", "", (replace(vm, version=vm.version + 1, assigned=other), slot, left)


def _gone(vm: Vm) -> Vm:
    return Vm(version=vm.version + 1, gone=True, guarded=False)


def intruder(rules: Rules, world: World, n: int, doc: Doc, outside: Outside) -> Iterator[Found]:
    """A second daemon runs as the host, though a lock should prevent that."""
    record = doc.record
    if record is None or record.state != "Held" or (left := fault(outside, "intruder", world)) is None:
        return
    taken = replace(record, nonce="intruder", seq=record.seq + 1)
    yield (
        f"A second daemon starts on {HOSTS[n]} and takes the membership over (J2)",
        "",
        (
            replace(doc, version=doc.version + 1, record=taken),
            left,
        ),
    )


def other_fencer(rules: Rules, world: World, n: int, doc: Doc, outside: Outside) -> Iterator[Found]:
    """A fencer that is not followed any further condemns a host."""
    record = doc.record
    left = fault(outside, ("condemned", "condemned-2")[n], world)
    if record is None or left is None:
        return
    view = CondemnView(host=HOSTS[n], record=record, unchanged_s=9, silence_s=1, observer="fencer-3")
    outcome = rules.attempt("safety.condemn", view)
    if outcome.refused is None:
        after = replace(doc, version=doc.version + 1, record=plain(outcome.record), age=0)
        yield f"Another fencer condemns {HOSTS[n]} in epoch {record.epoch}", "", (after, left)


def crash(rules: Rules, world: World, n: int, daemon: Daemon, outside: Outside) -> Iterator[Found]:
    """A daemon dies; its domains live on, and so may what it sent."""
    if daemon.phase != "down" and (left := fault(outside, "crash", world)) is not None:
        yield (
            f"The daemon of {HOSTS[n]} dies",
            "",
            (
                Daemon(write=daemon.write, vm_write=daemon.vm_write, renewals=daemon.renewals),
                left,
            ),
        )


def disarm(rules: Rules, world: World, n: int, daemon: Daemon, host: Host, outside: Outside) -> Iterator[Found]:
    """It says that its guard is not armed any more, and has the guard stop once the store has acknowledged that."""
    if not alive(daemon, host) or daemon.phase != "member" or daemon.write is not None or not host.armed:
        return
    if daemon.known is None or daemon.known.record is None:
        return
    if not daemon.known.record.guard.armed:
        yield f"The guard of {HOSTS[n]} is disarmed", "", (daemon, replace(host, armed=False), outside)
        return
    view = RenewView(host=HOSTS[n], record=daemon.known.record, nonce=daemon.nonce)
    outcome = rules.attempt("safety.renew", view)
    left = fault(outside, "disarm", world)
    if outcome.refused is None and left is not None:
        content = replace(daemon.known, record=outcome.record)
        write = Write("renewal", HOSTS[n], MEMBER[n], daemon.known.version, content, nonce=daemon.nonce)
        told = f"The daemon of {HOSTS[n]} sends a renewal that says that it is not armed any more"
        yield told, "", (replace(daemon, write=write), host, left)


def forget(rules: Rules, world: World, a: Doc, b: Doc, vm: Vm, slot: Slot, outside: Outside) -> Iterator[Found]:
    """A backup of the store is made, and restored later."""
    if "restore" in world.kinds and outside.backup is None:
        yield "A backup of the store is made", "", (a, b, vm, slot, replace(outside, backup=(a, b, vm, slot)))
    if outside.backup is not None and (left := fault(outside, "restore", world)) is not None:
        old_a, old_b, old_vm, old_slot = outside.backup
        yield (
            "The store is restored from the backup",
            "",
            (
                replace(old_a, version=a.version + 100, age=0),
                replace(old_b, version=b.version + 100, age=0),
                replace(old_vm, version=vm.version + 100, dropped=()),
                replace(old_slot, version=slot.version + 100),
                replace(left, incarnation=outside.incarnation + 1, unknown_on=""),
            ),
        )
    if a.record is not None and (left := fault(outside, "forget", world)) is not None:
        yield (
            f"Membership/{HOSTS[0]} is deleted",
            "",
            (
                Doc(version=a.version + 1, uid="", record=None),
                b,
                vm,
                slot,
                left,
            ),
        )


# --- time


def host_tick(rules: Rules, world: World, host: Host) -> Host:
    """What a machine has done by the next tick."""
    if not host.power or not host.armed:
        return host
    older = replace(host, beat=min(host.beat + 1, LONGEST * world.timeout))
    return _judged(rules, world, replace(older, fed=host.fed + 1))


def _judged(rules: Rules, world: World, host: Host) -> Host:
    """The guard acts, then the hardware."""
    if not host.armed or not world.guard_works:
        return replace(host, fed=0)
    if host.paused or not host.guard:
        return _reset_in_time(world, host)
    if _guards_elapsed(rules, world, host.beat) >= world.timeout:
        host = replace(host, shut=True, closed=True, domain=None)
    known = len(host.creates) - len(host.hidden)
    if host.fed <= world.watchdog and (not host.shut or not known):
        return replace(host, fed=0)
    return _reset_in_time(world, host)


def _reset_in_time(world: World, host: Host) -> Host:
    """Nothing stops a reset that has begun."""
    return rebooted(host) if host.fed > world.watchdog + world.reset else host


def _guards_elapsed(rules: Rules, world: World, ticks: int) -> float:
    """What has passed for the guard."""
    crystal = ticks * (1 - world.clock_error)
    now = Instants(crystal * world.host_slew, crystal)
    return max_elapsed(START, now) if rules.keeps("guard-counts-the-larger") else min_elapsed(START, now)


def fencers_elapsed(rules: Rules, world: World, ticks: int) -> float:
    """What has passed for a fencer."""
    crystal = ticks * (1 + world.clock_error)
    times = (0.0, crystal), (0.0, crystal * world.fencer_slew)
    if not rules.keeps("fencer-counts-the-smaller"):
        return max(times[0][1], times[1][1])
    first, second = (iter((0.0, *each)) for each in times)
    clock = SlowerOf(lambda: next(first), lambda: next(second))
    began = clock()
    return clock() - began


def daemon_tick(world: World, daemon: Daemon) -> Daemon:
    """What was sent grows older."""
    if daemon.write is None or not world.armed:
        return daemon
    return replace(daemon, write=replace(daemon.write, age=min(daemon.write.age + 1, world.timeout + 1)))


def fencer_tick(world: World, fencer: Fencer) -> Fencer:
    """What was seen grows older."""
    if fencer.known is None:
        return fencer
    limit = max(world.silence, LONGEST * (world.timeout + 2 * world.watchdog + world.reset))
    return replace(fencer, age=min(fencer.age + 1, limit), quiet=min(fencer.quiet + 1, 1))


def doc_tick(world: World, doc: Doc) -> Doc:
    """What was written grows older, as far as anybody asks."""
    return doc if doc.age >= world.silence else replace(doc, age=doc.age + 1)
