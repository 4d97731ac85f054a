"""Kinds of fault that happen to machines, guests, programs, networks and the store.

Lies that one kind of proof cannot survive are only told where the host's policy asks for two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from outlive.simulation.domains import PHASES
from outlive.simulation.drawing import Draw

Kind = Callable[[Draw, float], None]
RESTORES: Final = 2
"""Backups that are put back in one seed at most, and machines that are replaced."""
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


def _power(draw: Draw, at_s: float) -> None:
    draw.while_(at_s, draw.short(), "power-off", "power-on", hosts=(draw.host().name,))


def _rack(draw: Draw, at_s: float) -> None:
    racks = sorted({host.rack for host in draw.hosts if host.rack})
    if racks:
        draw.while_(at_s, draw.short(), "power-off", "power-on", domain=f"rack={draw.random.choice(racks)}")


def _pause_host(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "pause-host", hosts=(draw.host().name,), for_=draw.short())


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


def _clock(draw: Draw, at_s: float) -> None:
    rate, jump = draw.random.uniform(0.9955, 1.0045), draw.random.uniform(-7200.0, 7200.0)
    draw.add(at_s, "clock", hosts=(draw.host().name,), rate=rate, jump=jump)


def _bmc(draw: Draw, at_s: float) -> None:
    host = draw.host()
    modes = ["dead", "slow"]
    if host.proofs >= 2:
        modes += ["lying"]
    draw.add(at_s, "bmc", hosts=(host.name,), mode=draw.random.choice(modes))
    draw.add(at_s + draw.short(), "bmc", hosts=(host.name,), mode="ok")


def _wired(draw: Draw, at_s: float) -> None:
    host, other = draw.host(), draw.host()
    if host.name != other.name:
        draw.add(at_s, "bmc", hosts=(host.name,), mode="wired-to", to=other.name)
        draw.add(at_s + draw.short(), "bmc", hosts=(host.name,), mode="ok")


def _kill_daemon(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "kill-daemon", hosts=(draw.host().name,))


def _pause_daemon(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "pause-daemon", hosts=(draw.host().name,), for_=draw.short())


def _upgrade(draw: Draw, at_s: float) -> None:
    draw.while_(at_s, draw.random.uniform(1.0, 4.0), "stop-daemon", "start-daemon", hosts=(draw.host().name,))


def _second_daemon(draw: Draw, at_s: float) -> None:
    """It is refused, unless the first dies meanwhile: then it is the one."""
    host = draw.host().name
    for_s = draw.short() + 5.0
    draw.add(at_s, "second-daemon", host=host, for_=for_s)
    if draw.random.random() < 0.5:
        draw.add(at_s + draw.random.uniform(0.0, for_s), "kill-daemon", hosts=(host,))


def _kill_guard(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "kill-guard", hosts=(draw.host().name,))


def _kill_controller(draw: Draw, at_s: float) -> None:
    draw.while_(at_s, draw.short(), "kill-controller", "start-controller", names=(draw.controller(),))


def _pause_controller(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "pause-controller", names=(draw.controller(),), for_=draw.short())


def _cut(network: str) -> Kind:
    def cut(draw: Draw, at_s: float) -> None:
        direction = draw.random.choice(("both", "both", "in", "out"))
        hosts = (draw.host().name,)
        draw.add(at_s, "cut", network=network, hosts=hosts, direction=direction)
        draw.add(at_s + draw.short(), "heal", network=network, hosts=hosts)

    return cut


def _cut_controller(draw: Draw, at_s: float) -> None:
    """A controller beside a daemon has its host's way to the store."""
    hosts = (draw.controller().partition("/")[0],)
    direction = draw.random.choice(("both", "in", "out"))
    draw.add(at_s, "cut", network="store", hosts=hosts, direction=direction)
    draw.add(at_s + draw.short(), "heal", network="store", hosts=hosts)


def _split(draw: Draw, at_s: float) -> None:
    """Several hosts at once are off one network."""
    some = draw.random.randint(2, len(draw.hosts))
    hosts = tuple(host.name for host in draw.random.sample(draw.hosts, some))
    network = draw.random.choice(("store", "store", "storage", "bmc"))
    draw.add(at_s, "cut", network=network, hosts=hosts, direction=draw.random.choice(("both", "both", "in", "out")))
    draw.add(at_s + draw.short(), "heal", network=network, hosts=hosts)


def _outage(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "store-outage", for_=draw.short())


def _store_faults(draw: Draw, at_s: float) -> None:
    random = draw.random
    rates = {name: random.choice((0.01, 0.05, 0.2)) for name in STORE_RATES if random.random() < 0.4}
    draw.add(at_s, "store-faults", rates=rates)
    draw.add(at_s + draw.short(), "store-faults", rates={})


def _backup(draw: Draw, at_s: float) -> None:
    """A backup is made and, soon or late, put back; somebody may vouch for it once all hosts have had their time.

    It may lack a host, whose document is then applied again.
    """
    if not draw.first("backup", RESTORES):
        return
    back_s = at_s + draw.short()
    draw.add(at_s, "store-snapshot")
    draw.add(back_s, "store-restore")
    if draw.random.random() < 0.3:
        draw.while_(back_s, draw.short(), "delete-host", "apply-host", host=draw.host().name)


def _start_fails(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "start-fails", hosts=(draw.host().name,), reason="no memory", times=draw.random.randint(1, 3))


def _slow_starts(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "slow-starts", hosts=(draw.host().name,), for_=draw.random.uniform(0.0, 15.0))


def _hanging_starts(draw: Draw, at_s: float) -> None:
    """Longer than anybody waits for one."""
    host = draw.host().name
    draw.add(at_s, "slow-starts", hosts=(host,), for_=draw.random.uniform(40.0, 200.0))
    draw.add(at_s + draw.short(), "slow-starts", hosts=(host,), for_=0.0)


def _lost_answers(draw: Draw, at_s: float) -> None:
    host = draw.host().name
    draw.add(at_s, "lost-answers", hosts=(host,), rate=draw.random.choice((0.1, 0.5, 1.0)))
    draw.add(at_s + draw.short(), "lost-answers", hosts=(host,), rate=0.0)


def _migration_fails(draw: Draw, at_s: float) -> None:
    """A move from the host of a VM, that fails."""
    vm = draw.vm()
    draw.add(at_s, "migration-fails", hosts=(vm.host,), phase=draw.random.choice(PHASES))
    draw.add(at_s, "move", vm=vm.name, to=draw.host().name, live=True)


def _crash(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "guest-crash", vms=(draw.vm().name,))


def _ignores(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "guest-ignores-shutdown", vms=(draw.vm().name,))


def _unkillable(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "unkillable", vms=(draw.vm().name,))


def _lock_disks(draw: Draw, at_s: float) -> None:
    """Somebody has a disk open, or a host has left a lock there; the VM is to be started then, one time in two."""
    vm = draw.vm()
    by = draw.random.choice(("a-backup", draw.host().name))
    draw.add(at_s, "lock-disks", vms=(vm.name,), by=by)
    draw.add(at_s + draw.short(), "unlock-disks", vms=(vm.name,))
    if draw.random.random() < LOCKED_RESTARTS:
        draw.add(at_s + 1.0, "guest-crash", vms=(vm.name,))


def _slow_disk(draw: Draw, at_s: float) -> None:
    hosts = (draw.host().name,)
    draw.add(at_s, "slow-disk", hosts=hosts, stall=draw.random.choice((0.4, 0.7, 1.0)))
    draw.add(at_s + _while_slow(draw), "slow-disk", hosts=hosts, stall=0.0)


def _laggy_hypervisor(draw: Draw, at_s: float) -> None:
    hosts = (draw.host().name,)
    draw.add(at_s, "laggy-hypervisor", hosts=hosts, by=draw.random.choice((3.0, 6.0)))
    draw.add(at_s + _while_slow(draw), "laggy-hypervisor", hosts=hosts, by=0.0)


def _slow_store(draw: Draw, at_s: float) -> None:
    """For one host, or for everybody."""
    hosts = {"hosts": (draw.host().name,)} if draw.random.random() < 0.6 else {}
    draw.add(at_s, "slow-store", by=draw.random.choice((0.3, 0.5)), **hosts)
    draw.add(at_s + _while_slow(draw), "slow-store", by=0.0, **hosts)


def _set_degrading(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "set-degrading", policy={"action": draw.random.choice(("leave", "leave", "tell", "off"))})


def _while_slow(draw: Draw) -> float:
    return draw.random.uniform(20.0, 90.0)


GRAY: Final[dict[str, Kind]] = {
    "slow-disk": _slow_disk,
    "laggy-hypervisor": _laggy_hypervisor,
    "slow-store": _slow_store,
    "set-degrading": _set_degrading,
}
"""What makes hosts slow and no more, and what is made of that."""
BREAKING: Final[dict[str, Kind]] = {
    "power": _power,
    "rack": _rack,
    "pause-host": _pause_host,
    "replace-machine": _replace_machine,
    "watchdog": _watchdog,
    "clock": _clock,
    "bmc": _bmc,
    "wired": _wired,
    "kill-daemon": _kill_daemon,
    "pause-daemon": _pause_daemon,
    "upgrade": _upgrade,
    "second-daemon": _second_daemon,
    "kill-guard": _kill_guard,
    "kill-controller": _kill_controller,
    "pause-controller": _pause_controller,
    "cut-store": _cut("store"),
    "cut-storage": _cut("storage"),
    "cut-bmc": _cut("bmc"),
    "cut-vm": _cut("vm"),
    "cut-controller": _cut_controller,
    "split": _split,
    "outage": _outage,
    "store-faults": _store_faults,
    "backup": _backup,
    "start-fails": _start_fails,
    "slow-starts": _slow_starts,
    "hanging-starts": _hanging_starts,
    "lost-answers": _lost_answers,
    "migration-fails": _migration_fails,
    "crash": _crash,
    "ignores-shutdown": _ignores,
    "unkillable": _unkillable,
    "lock-disks": _lock_disks,
}
"""Without anybody's will."""
