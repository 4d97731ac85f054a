"""Which faults a seed brings, and when: a schedule of verbs, drawn once and the same for ever.

Each seed turns a random subset of the kinds on, at random rates; so some seeds have only one kind, often, and others
have all. A kind says what happens from a moment on, and ends itself what lasts; what has not ended when the faults are
over is healed then. Lies that one kind of proof cannot survive come only where the host's policy asks for two. What
users and operators do is legal at any moment and breaks no promise: whoever says that a host is off has pulled its cord
first, and looks before he says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from outlive.base.random import Random
from outlive.simulation.hypervisors import PHASES
from outlive.simulation.spec import HostSpec, VmSpec, WorldSpec, hosts_of, vms_of

FROM_S: Final = 20.0
"""The cluster has started and placed its slots by then."""
UNTIL_S: Final = 120.0
"""No fault begins later."""
SLEW: Final = 0.083
"""By which share a time service makes a clock run faster or slower at most."""
AROUND_SILENCE_S: Final = (0.5, 2.0, 4.0, 6.0, 8.0, 12.0, 20.0, 45.0)
"""Durations, most of them near the limits at which hosts are condemned and guards kill."""


class Fault(NamedTuple):
    """One entry of the schedule."""

    at_s: float
    verb: str
    arguments: dict[str, Any]


class Draw:
    """See the module."""

    def __init__(self, random: Random, spec: WorldSpec) -> None:
        self.random = random
        self.spec = spec
        self.hosts = hosts_of(spec)
        self.vms = vms_of(spec)
        self.faults: list[Fault] = []
        self._counts: dict[str, int] = {}

    def host(self) -> HostSpec:
        """Any host."""
        return self.random.choice(self.hosts)

    def one(self) -> tuple[str]:
        """Its name, as verbs take hosts."""
        return (self.host().name,)

    def vm(self) -> VmSpec:
        """Any VM."""
        return self.random.choice(self.vms)

    def controller(self) -> str:
        """Any controller: on a machine of its own, or beside the daemon of a coordinator."""
        if isinstance(self.spec.controllers, int):
            return f"ctl-{self.random.randint(1, max(1, self.spec.controllers))}"
        coordinators = [host.name for host in self.hosts if host.mode == "coordinator"]
        return f"{self.random.choice(coordinators)}/controller"

    def first(self, what: str, times: int) -> bool:
        """Whether this happens for at most the ``times``-th time in this seed."""
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what] <= times

    def add(self, at_s: float, verb: str, /, **arguments: Any) -> None:
        """Write down, unless the faults are over by then."""
        if at_s < UNTIL_S:
            self.faults.append(Fault(at_s, verb, {name.rstrip("_"): value for name, value in arguments.items()}))

    def while_(self, at_s: float, for_s: float, verb: str, back: str, /, **arguments: Any) -> None:
        """Write down, and what ends it."""
        self.add(at_s, verb, **arguments)
        self.add(at_s + for_s, back, **arguments)

    def briefly(self, at_s: float, verb: str, back: Mapping[str, Any], /, **arguments: Any) -> None:
        """Write down, and that these arguments are ``back`` after a duration around the limits of silence."""
        self.add(at_s, verb, **arguments)
        self.add(at_s + self.short(), verb, **{**arguments, **back})

    def slowly(self, at_s: float, verb: str, back: Mapping[str, Any], /, **arguments: Any) -> None:
        """The same, for so long that something comes of it."""
        self.add(at_s, verb, **arguments)
        self.add(at_s + self.random.uniform(20.0, 90.0), verb, **{**arguments, **back})

    def off_network(self, at_s: float, network: str, hosts: tuple[str, ...], direction: str) -> None:
        """These hosts are off a network for a short time."""
        self.add(at_s, "cut", network=network, hosts=hosts, direction=direction)
        self.add(at_s + self.short(), "heal", network=network, hosts=hosts)

    def short(self) -> float:
        """A duration around the limits of silence."""
        return self.random.choice(AROUND_SILENCE_S) * self.random.uniform(0.7, 1.3)


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
ASKED: Final = 4
"""VMs of one dead host of which users want something."""
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
"""Without anybody's will."""


def _move(draw: Draw, at_s: float) -> None:
    live = draw.random.random() < 0.7
    if draw.random.random() < 0.3:
        draw.add(at_s, "migration-fails", hosts=draw.one(), phase=draw.random.choice(PHASES))
    draw.add(at_s, "move", vm=draw.vm().name, to=draw.host().name, live=live)


def _asked_after_a_death(draw: Draw, at_s: float) -> None:
    """A host dies, for good as far as anybody knows, and users want something of the VMs that were on it."""
    host = draw.host().name
    draw.add(at_s, "power-off", hosts=(host,))
    for vm in [one.name for one in draw.vms if one.host == host][:ASKED]:
        asked_s, verb = at_s + draw.short(), draw.random.choice(("start", "stop", "shutdown", "restart", "move"))
        if verb == "move":
            draw.add(asked_s, "move", vm=vm, to=draw.host().name, live=draw.random.random() < 0.5)
        else:
            draw.add(asked_s, "request", vm=vm, verb=verb)


def _request(draw: Draw, at_s: float) -> None:
    vm = draw.vm().name
    verb = draw.random.choice(("stop", "shutdown", "restart"))
    draw.add(at_s, "request", vm=vm, verb=verb)
    if verb != "restart":
        draw.add(at_s + draw.short(), "request", vm=vm, verb="start")


def _maintenance(draw: Draw, at_s: float) -> None:
    """Of everything, of a host, or of the power controller of a host."""
    whose: dict[str, Any] = {"hosts": draw.one()} if draw.random.random() < 0.6 else {}
    if whose and draw.random.random() < 0.3:
        whose["power"] = True
    draw.briefly(at_s, "maintenance", {"on": False}, on=True, **whose)


def _going_down(draw: Draw, at_s: float) -> None:
    """A host is stopped in order for work on it, its VMs left alone or taken down; it comes back, or stays away."""
    host = draw.host().name
    leave = draw.random.random() < 0.5
    draw.add(at_s, "stop-daemon", hosts=(host,), leaveVms=leave, goingDown=not leave)
    off_s = at_s + draw.random.uniform(2.0, 20.0)
    if draw.random.random() < 0.5:
        draw.add(off_s, "power-off", hosts=(host,))
        if draw.random.random() < 0.5:
            return
        draw.add(off_s + draw.short(), "power-on", hosts=(host,))
    draw.add(off_s + draw.short(), "start-daemon", hosts=(host,))


def _fence(draw: Draw, at_s: float) -> None:
    """With the cord pulled and that said as well, or called off again, or neither."""
    host = draw.host().name
    draw.add(at_s, "fence", host=host)
    if draw.random.random() < 0.3:
        draw.add(at_s + 2.0, "power-off", hosts=(host,))
        draw.add(at_s + draw.random.uniform(2.5, 8.0), "confirm-off", host=host, looks=True, reason="cord pulled")
    elif draw.random.random() < 0.4:
        draw.add(at_s + draw.short(), "call-off-fence", host=host)


def _confirm(draw: Draw, at_s: float) -> None:
    """Somebody pulls the cord and says so, once the host is condemned."""
    host = draw.host().name
    draw.add(at_s, "power-off", hosts=(host,))
    draw.add(at_s + draw.random.uniform(8.0, 20.0), "confirm-off", host=host, looks=True, reason="cord pulled")


def _policy(draw: Draw, at_s: float) -> None:
    random = draw.random
    change = random.choice(
        (
            {"stormFraction": random.choice((0.3, 0.5, 1.0))},
            {"fencesLimit": random.choice((1, 2, 10))},
            {"powerOnAfter": random.random() < 0.5},
            {"profile": random.choice(("", "fast", "steady"))},
        )
    )
    draw.add(at_s, "set-policy", policy=change)


def _delete_membership(draw: Draw, at_s: float) -> None:
    """Of a host that runs on, or that is then switched off, of which somebody says so."""
    if not draw.first("delete-membership", RESTORES):
        return
    host = draw.host().name
    draw.add(at_s, "delete-membership", host=host)
    if draw.random.random() < 0.5:
        off_s = at_s + draw.random.uniform(0.0, 10.0)
        draw.add(off_s, "power-off", hosts=(host,))
        draw.add(off_s + draw.random.uniform(0.5, 10.0), "confirm-off", host=host, looks=True, reason="cord pulled")
        draw.add(off_s + draw.short(), "power-on", hosts=(host,))


ASKED_FOR: Final[dict[str, Kind]] = {
    "move": _move,
    "request": _request,
    "asked-after-a-death": _asked_after_a_death,
    "create": lambda draw, at_s: draw.add(at_s, "create-vm", vm=f"new-{len(draw.faults)}", host=draw.host().name),
    "delete": lambda draw, at_s: draw.add(at_s, "delete-vm", vm=draw.vm().name),
    "drain": lambda draw, at_s: draw.while_(at_s, draw.short() + 10.0, "drain", "ready", host=draw.host().name),
    "maintenance": _maintenance,
    "going-down": _going_down,
    "arm": lambda draw, at_s: draw.add(at_s, draw.random.choice(("arm", "disarm")), hosts=draw.one()),
    "fence": _fence,
    "confirm": _confirm,
    "policy": _policy,
    "release": lambda draw, at_s: draw.add(at_s, "release"),
    "delete-membership": _delete_membership,
}
"""By somebody's will."""


UNPROTECT_SHARE: Final = 0.2
"""Of the seeds, in so many VMs are taken out of protection, and some of them back."""
DISARM_SHARE: Final = 0.15
"""Of the seeds, in so many somebody disarms the cluster for a while besides everything else."""
STAYING_OFF_SHARE: Final = 0.25
"""Of the seeds, so many have hosts that never come back."""
GRAY_SHARE: Final = 0.3
"""Of the seeds, so many have hosts that get slow besides everything else."""
GRAY_UNTIL_S: Final = 60.0
"""No host gets slow later: it takes its time until something comes of it."""
RATES: Final = (0.01, 0.03, 0.08)
"""Faults of one kind a second."""
KINDS: Final[dict[str, Kind]] = {**ACCIDENTAL, **ASKED_FOR}
"""All kinds of fault; the order is part of what a seed means."""


def kinds(random: Random) -> list[str]:
    """Which kinds come up."""
    some = random.choice((1, 2, 3, 4, 6, 8, len(KINDS)))
    return random.sample(list(KINDS), some)


def schedule(random: Random, spec: WorldSpec) -> list[Fault]:
    """All faults, in the order of their times."""
    draw = Draw(random, spec)
    for name in kinds(random):
        rate = random.choice(RATES)
        at_s = FROM_S + random.expovariate(rate)
        while at_s < UNTIL_S:
            KINDS[name](draw, at_s)
            at_s += random.expovariate(rate)
    for host, off_s in staying_off(random.fork("staying-off"), draw.hosts).items():
        draw.add(off_s, "power-off", hosts=(host,))
    gray(random.fork("gray"), draw)
    disarm(random.fork("disarm"), draw)
    unprotect(random.fork("unprotect"), draw)
    draw.faults.sort(key=lambda fault: fault.at_s)
    return draw.faults


def staying_off(random: Random, hosts: tuple[HostSpec, ...]) -> dict[str, float]:
    """Hosts that lose power for good in this seed, and when; drawn by itself. One coordinator always comes back."""
    if random.random() >= STAYING_OFF_SHARE:
        return {}
    back = random.choice([host.name for host in hosts if host.mode == "coordinator"])
    some = random.sample([host.name for host in hosts if host.name != back], random.choice((1, 1, 2)))
    return {name: random.uniform(FROM_S, UNTIL_S - 1.0) for name in some}


def gray(random: Random, draw: Draw) -> None:
    """Hosts that get slow, in some seeds: drawn by themselves, so that all other faults of a seed are as they were."""
    if random.random() >= GRAY_SHARE:
        return
    drawn = Draw(random, draw.spec)
    for _ in range(random.randint(1, 5)):
        GRAY[random.choice(list(GRAY))](drawn, random.uniform(FROM_S, GRAY_UNTIL_S))
    draw.faults += drawn.faults


def disarm(random: Random, draw: Draw) -> None:
    """The cluster is disarmed for a while, in some seeds: drawn by itself, as grayness is."""
    if random.random() >= DISARM_SHARE:
        return
    drawn = Draw(random, draw.spec)
    at_s, mode = random.uniform(FROM_S, GRAY_UNTIL_S), random.choice(("freeze", "ignore"))
    limit = {"for_": 60.0} if random.random() < 0.3 else {}
    drawn.add(at_s, "disarm-cluster", mode=mode, **limit)
    drawn.add(at_s + drawn.short() + random.uniform(0.0, 60.0), "arm-cluster")
    draw.faults += drawn.faults


def unprotect(random: Random, draw: Draw) -> None:
    """VMs are taken out of protection, and some of them back or to be held: drawn by itself, as grayness is."""
    if random.random() >= UNPROTECT_SHARE:
        return
    drawn = Draw(random, draw.spec)
    for _ in range(random.randint(1, 4)):
        at_s, vm = random.uniform(FROM_S, UNTIL_S), drawn.vm().name
        drawn.add(at_s, "unprotect", vm=vm)
        back_s = at_s + drawn.short() + random.uniform(0.0, 60.0)
        if random.random() < 0.7 and back_s < UNTIL_S:
            drawn.add(back_s, "protect", vm=vm, hold=random.random() < 0.5)
    draw.faults += drawn.faults
