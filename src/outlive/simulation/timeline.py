"""What happens in a story, and when: ``timeline.yaml`` read into acts, each one verb with its arguments.

An act has a time (``at: 12s``), or it waits for something that is to be seen first (``when:`` with states as in
``expect.yaml``, and ``within:`` how long it may take). Everything is checked here, before the world is built, so that
a mistake of spelling does not make a story pass because nothing happened. Whether the hosts and VMs that an act names
exist is checked by the scenario, which knows the cluster.

A host may be named by what it does at that moment: ``fencer-of:HOST`` is who carries the fence of that host, and
``host-of:VM`` the host that the VM is assigned to; ``leader`` is the controller that recovers.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from outlive.base.duration import parse_duration
from outlive.base.errors import BadInput
from outlive.resources.documents import Problems
from outlive.simulation.states import States, read_states, shown

FENCER_OF, HOST_OF, LEADER = "fencer-of:", "host-of:", "leader"
"""Names by what somebody does."""
WITHIN_S: Final = 120.0
"""How long an act waits for what it wants to see, unless it says otherwise."""
LATEST_S: Final = 24 * 3600.0
"""The latest time of an act or expectation."""


class Kind(enum.StrEnum):
    """What an argument is."""

    HOST = "the name of a host"
    HOSTS = "a list of hosts"
    VM = "the name of a VM"
    VMS = "a list of VMs"
    NAMES = "a list of names"
    TEXT = "text"
    FLAG = "true or false"
    NUMBER = "a number"
    DURATION = 'a duration, such as "30s"'
    JUMP = 'a duration forward or back, such as "1h" or "-1h"'
    DOMAIN = 'a failure domain, such as "rack=r3"'
    CHOICE = "one of its words"
    MAPPING = "keys and values"


class Argument(NamedTuple):
    """One argument of a verb."""

    kind: Kind
    required: bool = False
    words: tuple[str, ...] = ()
    least: float = -inf
    most: float = inf
    """Limits of a number."""


class Verb(NamedTuple):
    """A verb: its arguments, and what it does."""

    arguments: Mapping[str, Argument]
    doc: str
    one_of: tuple[str, ...] = ()
    """Exactly one of these arguments must be there."""


_HOSTS: Final = Argument(Kind.HOSTS, True)
_SOME_HOSTS: Final = Argument(Kind.HOSTS)
_HOST: Final = Argument(Kind.HOST, True)
_VM: Final = Argument(Kind.VM, True)
_VMS: Final = Argument(Kind.VMS, True)
_FOR: Final = Argument(Kind.DURATION)
_JUMP: Final = Argument(Kind.JUMP)
_DOMAIN: Final = Argument(Kind.DOMAIN)
_TEXT: Final = Argument(Kind.TEXT)
_NETWORK: Final = Argument(Kind.CHOICE, True, ("store", "storage", "bmc", "vm"))
_WHERE: Final = ("hosts", "domain")

VERBS: Final[Mapping[str, Verb]] = {
    "power-off": Verb({"hosts": _SOME_HOSTS, "domain": _DOMAIN}, "Hosts lose power.", _WHERE),
    "power-on": Verb({"hosts": _SOME_HOSTS, "domain": _DOMAIN}, "Hosts get power, and boot.", _WHERE),
    "pause-host": Verb({"hosts": _HOSTS, "for": _FOR}, "The whole machine stands still, but for its watchdog."),
    "resume-host": Verb({"hosts": _HOSTS}, "A machine that stood still goes on."),
    "kill-daemon": Verb({"hosts": _HOSTS}, "The node daemon dies; its service manager starts it again."),
    "stop-daemon": Verb(
        {"hosts": _HOSTS, "leaveVms": Argument(Kind.FLAG), "goingDown": Argument(Kind.FLAG)},
        "The node daemon is stopped, cleanly.",
    ),
    "start-daemon": Verb({"hosts": _HOSTS}, "The node daemon is started."),
    "pause-daemon": Verb({"hosts": _HOSTS, "for": _FOR}, "The node daemon is stopped by a signal."),
    "hog-daemon": Verb({"hosts": _HOSTS, "for": _FOR}, "The node daemon computes and answers nobody."),
    "resume-daemon": Verb({"hosts": _HOSTS}, "A daemon that stood still goes on."),
    "migration-fails": Verb(
        {"hosts": _HOSTS, "phase": Argument(Kind.CHOICE, True, ("precopy", "paused", "sent", "last"))},
        "The next live move from these hosts fails in that phase.",
    ),
    "lost-answers": Verb(
        {"hosts": _HOSTS, "rate": Argument(Kind.NUMBER, True, least=0, most=1)},
        "Hypervisors do as told and do not say so.",
    ),
    "unkillable": Verb({"vms": _VMS}, "The processes of guests hang in the kernel: no signal ends them."),
    "kill-guard": Verb({"hosts": _HOSTS}, "The guard dies; its service manager starts it again, unarmed."),
    "cut": Verb(
        {"network": _NETWORK, "hosts": _HOSTS, "direction": Argument(Kind.CHOICE, words=("both", "in", "out"))},
        "Hosts do not reach a network any more.",
    ),
    "heal": Verb({"network": _NETWORK, "hosts": _HOSTS}, "Hosts reach a network again."),
    "bmc": Verb(
        {
            "hosts": _HOSTS,
            "mode": Argument(Kind.CHOICE, True, ("ok", "dead", "lying", "slow", "wired-to")),
            "to": Argument(Kind.HOST),
        },
        "Power controllers behave in another way.",
    ),
    "store-outage": Verb({"for": _FOR}, "Nobody reaches the store."),
    "store-heal": Verb({}, "Everybody reaches the store again."),
    "store-faults": Verb({"rates": Argument(Kind.MAPPING, True)}, "The store loses or delays some answers."),
    "slow-store": Verb(
        {"hosts": _SOME_HOSTS, "by": Argument(Kind.DURATION, True)},
        "The store answers more slowly, some hosts or everybody, by so much each way.",
    ),
    "store-snapshot": Verb({}, "Somebody makes a backup of the store."),
    "store-restore": Verb({}, "Somebody restores the last backup of the store."),
    "clock": Verb(
        {"hosts": _HOSTS, "rate": Argument(Kind.NUMBER, least=0.5, most=2), "jump": _JUMP},
        "Clocks go wrong: by rate, or by a jump of the wall clock.",
    ),
    "start-fails": Verb(
        {
            "hosts": _SOME_HOSTS,
            "vms": Argument(Kind.VMS),
            "reason": _TEXT,
            "times": Argument(Kind.NUMBER, least=1, most=1_000_000),
        },
        "Hypervisors refuse to start VMs.",
    ),
    "slow-starts": Verb({"hosts": _HOSTS, "for": Argument(Kind.DURATION, True)}, "VMs take so long to start."),
    "slow-disk": Verb(
        {"hosts": _HOSTS, "stall": Argument(Kind.NUMBER, True, least=0, most=1)},
        "Disks of hosts make everything wait, for that share of the time.",
    ),
    "laggy-hypervisor": Verb(
        {"hosts": _HOSTS, "by": Argument(Kind.DURATION, True)}, "Hypervisors take so much longer for everything."
    ),
    "guest-ignores-shutdown": Verb({"vms": _VMS}, "Guests do not react when they are asked to end."),
    "guest-crash": Verb({"vms": _VMS}, "Guests crash."),
    "lock-disks": Verb({"vms": _VMS, "by": _TEXT}, "Somebody who is no host has disks open."),
    "unlock-disks": Verb({"vms": _VMS}, "Disks are closed again."),
    "watchdog-broken": Verb({"hosts": _HOSTS}, "The watchdog does not reset the machine."),
    "kill-controller": Verb({"names": Argument(Kind.NAMES, True)}, "Controllers die."),
    "start-controller": Verb({"names": Argument(Kind.NAMES, True)}, "Controllers are started."),
    "pause-controller": Verb({"names": Argument(Kind.NAMES, True), "for": _FOR}, "Controllers stand still."),
    "resume-controller": Verb({"names": Argument(Kind.NAMES, True)}, "Controllers go on."),
    "move": Verb({"vm": _VM, "to": Argument(Kind.HOST), "live": Argument(Kind.FLAG)}, "Somebody moves a VM."),
    "request": Verb(
        {
            "vm": _VM,
            "verb": Argument(
                Kind.CHOICE,
                True,
                ("start", "stop", "shutdown", "restart", "disable", "migrate", "unmigrate", "move"),
            ),
            "target": Argument(Kind.HOST),
            "force": Argument(Kind.FLAG),
            "forceLive": Argument(Kind.FLAG),
        },
        "A user asks for something.",
    ),
    "drain": Verb({"host": _HOST}, "Somebody empties a host."),
    "ready": Verb({"host": _HOST}, "A host may take VMs again."),
    "maintenance": Verb(
        {"on": Argument(Kind.FLAG, True), "for": _FOR, "hosts": _SOME_HOSTS, "power": Argument(Kind.FLAG)},
        "Work is announced, or it is over; with power, on the power controllers of these hosts alone.",
    ),
    "arm": Verb({"hosts": _HOSTS}, "Guards are armed."),
    "disarm": Verb({"hosts": _HOSTS}, "Guards are disarmed."),
    "confirm-off": Verb(
        {
            "host": _HOST,
            "name": _TEXT,
            "reason": _TEXT,
            "fence": _TEXT,
            "looks": Argument(Kind.FLAG),
            "lost": Argument(Kind.FLAG),
        },
        "Somebody asserts that a host is off, or (lost) that what its lost memberships ran is.",
    ),
    "fence": Verb({"host": _HOST}, "Somebody condemns a host."),
    "call-off-fence": Verb({"host": _HOST}, "Somebody takes back that a host is to be fenced."),
    "create-vm": Verb(
        {
            "vm": Argument(Kind.TEXT, True),
            "host": Argument(Kind.HOST),
            "cpu": _TEXT,
            "memory": _TEXT,
            "priority": Argument(Kind.NUMBER),
            "autostart": Argument(Kind.FLAG),
        },
        "A new VM.",
    ),
    "delete-vm": Verb({"vm": _VM}, "A VM goes for good."),
    "delete-membership": Verb({"host": _HOST}, "Somebody deletes the membership of a host."),
    "delete-host": Verb({"host": _HOST}, "Somebody deletes a host from the store, with its membership."),
    "apply-host": Verb({"host": _HOST}, "Somebody applies the document of a deleted host again."),
    "forget-membership": Verb({"host": _HOST}, "Somebody deletes what a host remembers of its membership."),
    "replace-machine": Verb({"host": _HOST}, "Another machine is put up under the name of a host."),
    "accept-machine": Verb({"host": _HOST}, "Somebody accepts the machine that is there now."),
    "second-daemon": Verb({"host": _HOST, "for": _FOR}, "A second daemon is started on a host."),
    "set-policy": Verb({"policy": Argument(Kind.MAPPING, True)}, "The policy of fencing changes."),
    "set-degrading": Verb({"policy": Argument(Kind.MAPPING, True)}, "What is made of hosts that get slow changes."),
    "confirm-incarnation": Verb({}, "Somebody vouches for the restored store."),
    "release": Verb({}, "Somebody lets fencing go on."),
}
"""All verbs."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a timeline."""

    verb: str
    arguments: dict[str, Any] = {}
    at_s: float = 0.0
    """When, in virtual seconds; with ``when``, how long after it was seen."""
    when: States | None = None
    """What must be seen first."""
    within_s: float = WITHIN_S
    place: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that it names, in order, also those that other names refer to."""
        named = [name for name in self._named(Kind.HOST, Kind.HOSTS) if not name.startswith(HOST_OF)]
        return tuple(name.removeprefix(FENCER_OF) for name in named)

    @property
    def vms(self) -> tuple[str, ...]:
        """VMs that it names, also those that other names refer to."""
        named = self._named(Kind.HOST, Kind.HOSTS)
        by_vm = tuple(name.removeprefix(HOST_OF) for name in named if name.startswith(HOST_OF))
        return (*self._named(Kind.VM, Kind.VMS), *by_vm)

    def _named(self, one: Kind, many: Kind) -> tuple[str, ...]:
        found: list[str] = []
        for name, argument in VERBS[self.verb].arguments.items():
            if name in self.arguments and argument.kind is one:
                found.append(self.arguments[name])
            elif name in self.arguments and argument.kind is many:
                found.extend(self.arguments[name])
        return tuple(found)


def read_timeline(value: Any, place: str, problems: Problems) -> tuple[Act, ...]:
    """The acts of a timeline, in its order; what is wrong goes to ``problems``."""
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.add(place, f"holds {shown(value)}, not a list", "write entries such as - {at: 12s, release: {}}")
        return ()
    found = (_act(entry, f"{place}: entry {number}", problems) for number, entry in enumerate(value, 1))
    return tuple(act for act in found if act is not None)


def _act(entry: Any, place: str, problems: Problems) -> Act | None:
    if not isinstance(entry, dict):
        problems.add(place, f"{shown(entry)} is no entry", "write one such as {at: 12s, power-off: {hosts: [kvm-1]}}")
        return None
    verbs = [key for key in entry if key not in ("at", "when", "within", "after")]
    if len(verbs) != 1:
        said = ", ".join(map(str, verbs)) or "none"
        problems.add(place, f"an entry has one verb, and this has {said}", f"verbs are {', '.join(VERBS)}")
        return None
    verb = str(verbs[0])
    if verb not in VERBS:
        problems.add(place, f"{verb!r} is no verb", _nearest(verb, VERBS))
        return None
    arguments = _arguments(verb, entry[verb], f"{place}: {verb}", problems)
    if "when" in entry:
        if "at" in entry:
            problems.add(place, "has both at and when", "write after: for the time that passes after when")
        return Act(
            verb=verb,
            arguments=arguments,
            at_s=duration_of(entry.get("after", 0), f"{place}: after", problems),
            when=read_states(entry["when"], f"{place}: when", problems),
            within_s=duration_of(entry.get("within", "120s"), f"{place}: within", problems),
            place=place,
        )
    for key in ("after", "within"):
        if key in entry:
            problems.add(f"{place}: {key}", "goes with when", "leave it out, or write when")
    if "at" not in entry:
        problems.add(place, "has no time", "write at: 12s, or when: with what must be seen first")
        return None
    at_s = duration_of(entry["at"], f"{place}: at", problems)
    return Act(verb=verb, arguments=arguments, at_s=at_s, place=place)


def _arguments(verb: str, value: Any, place: str, problems: Problems) -> dict[str, Any]:
    known = VERBS[verb]
    if value is None:
        value = {}
    if not isinstance(value, dict):
        wanted = ", ".join(known.arguments) or "none"
        problems.add(place, f"{shown(value)} stands where arguments belong", f"arguments of {verb}: {wanted}")
        return {}
    checked: dict[str, Any] = {}
    for raw, given in value.items():
        # YAML 1.1 reads a bare on as true.
        name = "on" if raw is True else str(raw)
        argument = known.arguments.get(name)
        if argument is None:
            problems.add(place, f"{verb} has no argument {name!r}", _nearest(name, known.arguments))
            continue
        checked[name] = _checked(argument, given, f"{place}: {name}", problems)
    for name, argument in known.arguments.items():
        if argument.required and name not in checked:
            problems.add(place, f"{name} is missing", f"it is {argument.kind}")
    if known.one_of and sum(name in checked for name in known.one_of) != 1:
        problems.add(place, f"needs one of {' and '.join(known.one_of)}", "write exactly one of them")
    return checked


def _checked(argument: Argument, value: Any, place: str, problems: Problems) -> Any:
    """The argument as the world takes it: seconds for durations, tuples for lists."""
    match argument.kind:
        case Kind.HOST | Kind.VM | Kind.TEXT if isinstance(value, str) and value:
            return value
        case Kind.TEXT if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        case Kind.HOSTS | Kind.VMS | Kind.NAMES if isinstance(value, list) and value:
            if all(isinstance(one, str) and one for one in value):
                return tuple(value)
        case Kind.FLAG if isinstance(value, bool):
            return value
        case Kind.NUMBER if isinstance(value, int | float) and not isinstance(value, bool):
            if not argument.least <= value <= argument.most:
                problems.add(place, f"{value} is out of range", f"write {argument.least:g} to {argument.most:g}")
            return value
        case Kind.DURATION:
            return duration_of(value, place, problems)
        case Kind.JUMP:
            return duration_of(value, place, problems, negative=True)
        case Kind.DOMAIN if isinstance(value, str) and all(value.partition("=")):
            return value
        case Kind.CHOICE:
            if value in argument.words:
                return value
            problems.add(place, f"{shown(value)} is none of its words", f"one of {', '.join(argument.words)}")
            return value
        case Kind.MAPPING if isinstance(value, dict):
            return value
    problems.add(place, f"is {shown(value)}", f"write {argument.kind}")
    return value


def duration_of(value: Any, place: str, problems: Problems, *, negative: bool = False) -> float:
    """Seconds; 0 where it is no duration, which goes to ``problems``."""
    try:
        seconds = parse_duration(value if isinstance(value, str | int | float) else str(value))
    except BadInput as error:
        problems.take(place, error)
        return 0.0
    if (seconds < 0 and not negative) or seconds > LATEST_S:
        problems.add(place, f"{value} is out of range", "write 0 to 24h")
        return 0.0
    return seconds


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"do you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
