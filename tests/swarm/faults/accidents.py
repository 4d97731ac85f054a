"""Faults by accident: of machines, networks, stores, daemons and guests.

Lies that one kind of proof cannot survive come only where the host's policy asks for two.
"""

from __future__ import annotations

from typing import Final

from outlive.simulation import PHASES
from tests.swarm.faults.draw import RESTORES, Draw, Kind

SLEW: Final = 0.083
"""By which share a time service makes a clock run faster or slower at most."""
STORE_RATES: Final = (
    "delay",
    "refuse",
    "lose_applied",
    "lose_dropped",
    "lose_late",
    "observer_delay",
    "drop",
    "stale_relist",
    "coalesce",
)
LOCKED_RESTARTS: Final = 0.5
"""Locked disks whose VM is to start again at once."""


def _rack(draw: Draw, at_s: float) -> None:
    racks = sorted({host.rack for host in draw.hosts if host.rack})
    if racks:
        draw.while_(at_s, draw.short(), "power-off", "power-on", domain=f"rack={draw.random.choice(racks)}")


def _replace_machine(draw: Draw, at_s: float) -> None:
    """The old one is gone for good; somebody may say so."""
    if not draw.first("replace-machine", RESTORES):
        return
    host = draw.host().name
    draw.add(at_s, "replace-machine", host=host)
    if draw.random.random() < 0.5:
        draw.add(at_s + draw.random.uniform(8.0, 70.0), "confirm-off", host=host, looks=True, reason="it was scrapped")


def _watchdog(draw: Draw, at_s: float) -> None:
    host = draw.host()
    if host.proofs >= 2:
        draw.add(at_s, "watchdog-broken", hosts=(host.name,))


def _outside_slice(draw: Draw, at_s: float) -> None:
    """Until the host has said so, its guard promises what it cannot keep."""
    host = draw.host()
    if host.proofs >= 2:
        draw.add(at_s, "outside-slice", hosts=(host.name,))


def _clock(draw: Draw, at_s: float) -> None:
    """Of a host, by as much as its crystal may be off, and by as much as a time service may steer."""
    rate, jump = draw.random.uniform(0.9955, 1.0045), draw.random.uniform(-7200.0, 7200.0)
    slew = draw.random.choice((1.0, 1 - SLEW, 1 + SLEW, draw.random.uniform(1 - SLEW, 1 + SLEW)))
    draw.add(at_s, "clock", hosts=draw.one(), rate=rate, slew=slew, jump=jump)


def _bmc(draw: Draw, at_s: float) -> None:
    host = draw.host()
    modes = ["dead", "slow", *(["lying"] if host.proofs >= 2 else [])]
    draw.briefly(at_s, "bmc", {"mode": "ok"}, hosts=(host.name,), mode=draw.random.choice(modes))


def _wired(draw: Draw, at_s: float) -> None:
    host, other = draw.host(), draw.host()
    if host.name != other.name:
        draw.add(at_s, "bmc", hosts=(host.name,), mode="wired-to", to=other.name)
        draw.add(at_s + draw.short(), "bmc", hosts=(host.name,), mode="ok")


def _guard_dies_late(draw: Draw, at_s: float) -> None:
    """While its host cannot renew: before it empties the host, meanwhile, or after it."""
    hosts = draw.one()
    draw.off_network(at_s, "store", hosts, "both")
    draw.add(at_s + draw.random.uniform(3.0, 45.0), "kill-guard", hosts=hosts)


def _second_daemon(draw: Draw, at_s: float) -> None:
    """It is refused, unless the first dies meanwhile: then it is the one."""
    host = draw.host().name
    for_s = draw.short() + 5.0
    draw.add(at_s, "second-daemon", host=host, for_=for_s)
    if draw.random.random() < 0.5:
        draw.add(at_s + draw.random.uniform(0.0, for_s), "kill-daemon", hosts=(host,))


def _cut(network: str) -> Kind:
    def cut(draw: Draw, at_s: float) -> None:
        direction = draw.random.choice(("both", "both", "in", "out"))
        draw.off_network(at_s, network, draw.one(), direction)

    return cut


def _dead_storage(draw: Draw, at_s: float) -> None:
    """One host, or several, are off the storage for as long as it takes to do something about it."""
    some = draw.random.choice((1, 1, 1, 2, len(draw.hosts)))
    hosts = tuple(host.name for host in draw.random.sample(draw.hosts, min(some, len(draw.hosts))))
    guests = draw.random.choice(("stall", "pause", "hang"))
    draw.add(at_s, "cut", network="storage", hosts=hosts, guests=guests)
    draw.add(at_s + draw.random.uniform(15.0, 90.0), "heal", network="storage", hosts=hosts)


def _cut_controller(draw: Draw, at_s: float) -> None:
    """A controller beside a daemon has its host's way to the store."""
    hosts = (draw.controller().partition("/")[0],)
    draw.off_network(at_s, "store", hosts, draw.random.choice(("both", "in", "out")))


def _split(draw: Draw, at_s: float) -> None:
    """Several hosts at once are off one network."""
    some = draw.random.randint(2, len(draw.hosts))
    hosts = tuple(host.name for host in draw.random.sample(draw.hosts, some))
    network = draw.random.choice(("store", "store", "storage", "bmc"))
    draw.off_network(at_s, network, hosts, draw.random.choice(("both", "both", "in", "out")))


def _store_faults(draw: Draw, at_s: float) -> None:
    random = draw.random
    rates = {name: random.choice((0.01, 0.05, 0.2)) for name in STORE_RATES if random.random() < 0.4}
    draw.briefly(at_s, "store-faults", {"rates": {}}, rates=rates)


def _backup(draw: Draw, at_s: float) -> None:
    """A backup is made and, soon or late, put back; somebody may confirm it once all hosts have had their time.

    It may lack a host, whose document is then applied again.
    """
    if not draw.first("backup", RESTORES):
        return
    back_s = at_s + draw.short()
    draw.add(at_s, "store-snapshot")
    draw.add(back_s, "store-restore")
    if draw.random.random() < 0.3:
        draw.while_(back_s, draw.short(), "delete-host", "apply-host", host=draw.host().name)


def _migration_fails(draw: Draw, at_s: float) -> None:
    """A move from the host of a VM, that fails."""
    vm = draw.vm()
    draw.add(at_s, "migration-fails", hosts=(vm.host,), phase=draw.random.choice(PHASES))
    draw.add(at_s, "move", vm=vm.name, to=draw.host().name, live=True)


def _lock_disks(draw: Draw, at_s: float) -> None:
    """Somebody has a disk open, or a host has left a lock there; the VM is to be started then, one time in two."""
    vm = draw.vm()
    by = draw.random.choice(("a-backup", draw.host().name))
    draw.add(at_s, "lock-disks", vms=(vm.name,), by=by)
    draw.add(at_s + draw.short(), "unlock-disks", vms=(vm.name,))
    if draw.random.random() < LOCKED_RESTARTS:
        draw.add(at_s + 1.0, "guest-crash", vms=(vm.name,))


def _slow_store(draw: Draw, at_s: float) -> None:
    """For one host, or for everybody."""
    hosts = {"hosts": draw.one()} if draw.random.random() < 0.6 else {}
    draw.slowly(at_s, "slow-store", {"by": 0.0}, by=draw.random.choice((0.3, 0.5)), **hosts)


GRAY: Final[dict[str, Kind]] = {
    "slow-disk": lambda draw, at_s: draw.slowly(
        at_s, "slow-disk", {"stall": 0.0}, hosts=draw.one(), stall=draw.random.choice((0.4, 0.7, 1.0))
    ),
    "laggy-hypervisor": lambda draw, at_s: draw.slowly(
        at_s, "laggy-hypervisor", {"by": 0.0}, hosts=draw.one(), by=draw.random.choice((3.0, 6.0))
    ),
    "slow-store": _slow_store,
    "set-degrading": lambda draw, at_s: draw.add(
        at_s, "set-degrading", policy={"action": draw.random.choice(("leave", "leave", "tell", "off"))}
    ),
}
"""What makes hosts slow and no more, and what is made of that."""
ACCIDENTAL: Final[dict[str, Kind]] = {
    "power": lambda draw, at_s: draw.while_(at_s, draw.short(), "power-off", "power-on", hosts=draw.one()),
    "rack": _rack,
    "pause-host": lambda draw, at_s: draw.add(at_s, "pause-host", hosts=draw.one(), for_=draw.short()),
    "suspend-host": lambda draw, at_s: draw.add(at_s, "suspend-host", hosts=draw.one(), for_=draw.short()),
    "replace-machine": _replace_machine,
    "watchdog": _watchdog,
    "clock": _clock,
    "bmc": _bmc,
    "wired": _wired,
    "kill-daemon": lambda draw, at_s: draw.add(at_s, "kill-daemon", hosts=draw.one()),
    "pause-daemon": lambda draw, at_s: draw.add(at_s, "pause-daemon", hosts=draw.one(), for_=draw.short()),
    "upgrade": lambda draw, at_s: draw.while_(
        at_s, draw.random.uniform(1.0, 4.0), "stop-daemon", "start-daemon", hosts=draw.one()
    ),
    "second-daemon": _second_daemon,
    "kill-guard": lambda draw, at_s: draw.add(at_s, "kill-guard", hosts=draw.one()),
    "guard-dies-late": _guard_dies_late,
    "guard-lacks": lambda draw, at_s: draw.briefly(
        at_s, "guard-lacks", {"what": ""}, hosts=draw.one(), what="not on cgroup v2"
    ),
    "kill-controller": lambda draw, at_s: draw.while_(
        at_s, draw.short(), "kill-controller", "start-controller", names=(draw.controller(),)
    ),
    "pause-controller": lambda draw, at_s: draw.add(
        at_s, "pause-controller", names=(draw.controller(),), for_=draw.short()
    ),
    "cut-store": _cut("store"),
    "cut-storage": _cut("storage"),
    "dead-storage": _dead_storage,
    "cut-bmc": _cut("bmc"),
    "cut-vm": _cut("vm"),
    "cut-controller": _cut_controller,
    "split": _split,
    "outage": lambda draw, at_s: draw.add(at_s, "store-outage", for_=draw.short()),
    "store-faults": _store_faults,
    "backup": _backup,
    "start-fails": lambda draw, at_s: draw.add(
        at_s, "start-fails", hosts=draw.one(), reason="no memory", times=draw.random.randint(1, 3)
    ),
    "slow-starts": lambda draw, at_s: draw.add(
        at_s, "slow-starts", hosts=draw.one(), for_=draw.random.uniform(0.0, 15.0)
    ),
    "hanging-starts": lambda draw, at_s: draw.briefly(  # longer than anybody waits for one
        at_s, "slow-starts", {"for_": 0.0}, hosts=draw.one(), for_=draw.random.uniform(40.0, 200.0)
    ),
    "lost-answers": lambda draw, at_s: draw.briefly(
        at_s, "lost-answers", {"rate": 0.0}, hosts=draw.one(), rate=draw.random.choice((0.1, 0.5, 1.0))
    ),
    "migration-fails": _migration_fails,
    "crash": lambda draw, at_s: draw.add(at_s, "guest-crash", vms=(draw.vm().name,)),
    "ignores-shutdown": lambda draw, at_s: draw.add(at_s, "guest-ignores-shutdown", vms=(draw.vm().name,)),
    "unkillable": lambda draw, at_s: draw.add(at_s, "unkillable", vms=(draw.vm().name,)),
    "lock-disks": _lock_disks,
    "lose-track": lambda draw, at_s: draw.add(at_s, "lose-track", vms=(draw.vm().name,)),
    "outside-slice": _outside_slice,
    "slow-cuts": lambda draw, at_s: draw.add(at_s, "slow-cuts", by=draw.random.choice((0.3, 2.0, 8.0, 15.0))),
}
"""Faults by accident."""
