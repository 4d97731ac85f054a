"""Which faults a seed brings, and when: a schedule of verbs, drawn once and the same for ever.

Each seed turns a random subset of the kinds on, at random rates; so some seeds have only one kind, often, and others
have all. A fault that lasts is taken back in its schedule; what is left is healed at the end of the faults. Lies that
one kind of proof cannot survive are only told where the host's policy asks for two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from outlive.base.random import Random
from outlive.simulation.domains import PHASES
from outlive.simulation.spec import HostSpec, VmSpec, WorldSpec, hosts_of, vms_of

FROM_S: Final = 20.0
"""The cluster has started and placed its slots by then."""
UNTIL_S: Final = 120.0
"""No fault begins later."""
RATES: Final = (0.01, 0.03, 0.08)
"""Faults of one kind a second."""


class Fault(NamedTuple):
    """One entry of the schedule."""

    at_s: float
    verb: str
    arguments: dict[str, Any]


class _Draw:
    """What the kinds draw from, and where they write."""

    def __init__(self, random: Random, spec: WorldSpec) -> None:
        self.random = random
        self.spec = spec
        self.hosts = hosts_of(spec)
        self.vms = vms_of(spec)
        self.faults: list[Fault] = []
        self.snapshot = False

    def host(self) -> HostSpec:
        """Any host."""
        return self.random.choice(self.hosts)

    def vm(self) -> VmSpec:
        """Any VM."""
        return self.random.choice(self.vms)

    def add(self, at_s: float, verb: str, /, **arguments: Any) -> None:
        """Write down."""
        self.faults.append(Fault(at_s, verb, {name.rstrip("_"): value for name, value in arguments.items()}))

    def while_(self, at_s: float, for_s: float, verb: str, back: str, /, **arguments: Any) -> None:
        """Write down, and that it is taken back."""
        self.add(at_s, verb, **arguments)
        if at_s + for_s < UNTIL_S:
            self.add(at_s + for_s, back, **arguments)

    def short(self) -> float:
        """A duration around the limits of silence."""
        return self.random.choice((0.5, 2.0, 4.0, 6.0, 8.0, 12.0, 20.0, 45.0)) * self.random.uniform(0.7, 1.3)


def schedule(random: Random, spec: WorldSpec) -> list[Fault]:
    """All faults, in the order of their times."""
    draw = _Draw(random, spec)
    some = random.choice((1, 2, 3, 4, 6, 8, len(KINDS)))
    for name in random.sample(list(KINDS), some):
        rate = random.choice(RATES)
        at_s = FROM_S + random.expovariate(rate)
        while at_s < UNTIL_S:
            KINDS[name](draw, at_s)
            at_s += random.expovariate(rate)
    draw.faults.sort(key=lambda fault: fault.at_s)
    return draw.faults


def _power(draw: _Draw, at_s: float) -> None:
    draw.while_(at_s, draw.short(), "power-off", "power-on", hosts=(draw.host().name,))


def _rack(draw: _Draw, at_s: float) -> None:
    racks = sorted({host.rack for host in draw.hosts if host.rack})
    if racks:
        draw.while_(at_s, draw.short(), "power-off", "power-on", domain=f"rack={draw.random.choice(racks)}")


def _pause_host(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "pause-host", hosts=(draw.host().name,), for_=draw.short())


def _kill_daemon(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "kill-daemon", hosts=(draw.host().name,))


def _pause_daemon(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "pause-daemon", hosts=(draw.host().name,), for_=draw.short())


def _kill_guard(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "kill-guard", hosts=(draw.host().name,))


def _cut(network: str) -> Callable[[_Draw, float], None]:
    def cut(draw: _Draw, at_s: float) -> None:
        direction = draw.random.choice(("both", "both", "in", "out"))
        hosts = (draw.host().name,)
        draw.add(at_s, "cut", network=network, hosts=hosts, direction=direction)
        for_s = draw.short()
        if at_s + for_s < UNTIL_S:
            draw.add(at_s + for_s, "heal", network=network, hosts=hosts)

    return cut


def _cut_controller(draw: _Draw, at_s: float) -> None:
    if isinstance(draw.spec.controllers, int):
        name = f"ctl-{draw.random.randint(1, max(1, draw.spec.controllers))}"
        for_s = draw.short()
        draw.add(at_s, "cut", network="store", hosts=(name,), direction=draw.random.choice(("both", "in", "out")))
        if at_s + for_s < UNTIL_S:
            draw.add(at_s + for_s, "heal", network="store", hosts=(name,))


def _kill_controller(draw: _Draw, at_s: float) -> None:
    if isinstance(draw.spec.controllers, int):
        name = f"ctl-{draw.random.randint(1, max(1, draw.spec.controllers))}"
        draw.while_(at_s, draw.short(), "kill-controller", "start-controller", names=(name,))


def _outage(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "store-outage", for_=draw.short())


def _store_faults(draw: _Draw, at_s: float) -> None:
    random = draw.random
    kinds = ("delay", "refuse", "lose_applied", "lose_dropped", "lose_late", "observer_delay", "drop", "stale_relist")
    rates = {name: random.choice((0.01, 0.05, 0.2)) for name in kinds if random.random() < 0.4}
    draw.add(at_s, "store-faults", rates=rates)
    draw.add(at_s + draw.short(), "store-faults", rates={})


def _bmc(draw: _Draw, at_s: float) -> None:
    host = draw.host()
    modes = ["dead", "slow"]
    if host.proofs >= 2:
        modes += ["lying"]
    draw.add(at_s, "bmc", hosts=(host.name,), mode=draw.random.choice(modes))
    draw.add(at_s + draw.short(), "bmc", hosts=(host.name,), mode="ok")


def _wired(draw: _Draw, at_s: float) -> None:
    host, other = draw.host(), draw.host()
    if host.name != other.name:
        draw.add(at_s, "bmc", hosts=(host.name,), mode="wired-to", to=other.name)
        draw.add(at_s + draw.short(), "bmc", hosts=(host.name,), mode="ok")


def _watchdog(draw: _Draw, at_s: float) -> None:
    host = draw.host()
    if host.proofs >= 2:
        draw.add(at_s, "watchdog-broken", hosts=(host.name,))


def _clock(draw: _Draw, at_s: float) -> None:
    rate, jump = draw.random.uniform(0.9955, 1.0045), draw.random.uniform(-7200.0, 7200.0)
    draw.add(at_s, "clock", hosts=(draw.host().name,), rate=rate, jump=jump)


def _start_fails(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "start-fails", hosts=(draw.host().name,), reason="no memory", times=draw.random.randint(1, 3))


def _slow_starts(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "slow-starts", hosts=(draw.host().name,), for_=draw.random.uniform(0.0, 15.0))


def _crash(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "guest-crash", vms=(draw.vm().name,))


def _ignores(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "guest-ignores-shutdown", vms=(draw.vm().name,))


def _lost_answers(draw: _Draw, at_s: float) -> None:
    host = draw.host().name
    draw.add(at_s, "lost-answers", hosts=(host,), rate=draw.random.choice((0.1, 0.5, 1.0)))
    draw.add(at_s + draw.short(), "lost-answers", hosts=(host,), rate=0.0)


def _unkillable(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "unkillable", vms=(draw.vm().name,))


def _move(draw: _Draw, at_s: float) -> None:
    live = draw.random.random() < 0.7
    if draw.random.random() < 0.3:
        draw.add(at_s, "migration-fails", hosts=(draw.host().name,), phase=draw.random.choice(PHASES))
    draw.add(at_s, "move", vm=draw.vm().name, to=draw.host().name, live=live)


def _request(draw: _Draw, at_s: float) -> None:
    vm = draw.vm().name
    verb = draw.random.choice(("stop", "shutdown", "restart"))
    draw.add(at_s, "request", vm=vm, verb=verb)
    if verb != "restart":
        draw.add(at_s + draw.short(), "request", vm=vm, verb="start")


def _drain(draw: _Draw, at_s: float) -> None:
    draw.while_(at_s, draw.short() + 10.0, "drain", "ready", host=draw.host().name)


def _maintenance(draw: _Draw, at_s: float) -> None:
    hosts = {"hosts": (draw.host().name,)} if draw.random.random() < 0.6 else {}
    draw.add(at_s, "maintenance", on=True, **hosts)
    draw.add(at_s + draw.short(), "maintenance", on=False, **hosts)


def _arm(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, draw.random.choice(("arm", "disarm")), hosts=(draw.host().name,))


def _fence(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "fence", host=draw.host().name)


def _confirm(draw: _Draw, at_s: float) -> None:
    """Somebody pulls the cord and says so, once the host is condemned."""
    host = draw.host().name
    draw.add(at_s, "power-off", hosts=(host,))
    draw.add(at_s + draw.random.uniform(8.0, 20.0), "confirm-off", host=host, name="op", reason="cord pulled")


def _create(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "create-vm", vm=f"new-{len(draw.faults)}", host=draw.host().name)


def _delete(draw: _Draw, at_s: float) -> None:
    draw.add(at_s, "delete-vm", vm=draw.vm().name)


def _upgrade(draw: _Draw, at_s: float) -> None:
    draw.while_(at_s, draw.random.uniform(1.0, 4.0), "stop-daemon", "start-daemon", hosts=(draw.host().name,))


KINDS: Final[dict[str, Callable[[_Draw, float], None]]] = {
    "power": _power,
    "rack": _rack,
    "pause-host": _pause_host,
    "kill-daemon": _kill_daemon,
    "pause-daemon": _pause_daemon,
    "kill-guard": _kill_guard,
    "cut-store": _cut("store"),
    "cut-storage": _cut("storage"),
    "cut-bmc": _cut("bmc"),
    "cut-vm": _cut("vm"),
    "cut-controller": _cut_controller,
    "kill-controller": _kill_controller,
    "outage": _outage,
    "store-faults": _store_faults,
    "bmc": _bmc,
    "wired": _wired,
    "watchdog": _watchdog,
    "clock": _clock,
    "start-fails": _start_fails,
    "slow-starts": _slow_starts,
    "crash": _crash,
    "ignores-shutdown": _ignores,
    "lost-answers": _lost_answers,
    "unkillable": _unkillable,
    "move": _move,
    "request": _request,
    "drain": _drain,
    "maintenance": _maintenance,
    "arm": _arm,
    "fence": _fence,
    "confirm": _confirm,
    "create": _create,
    "delete": _delete,
    "upgrade": _upgrade,
}
"""All kinds of fault; the order is part of what a seed means."""
