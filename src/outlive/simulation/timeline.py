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
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from outlive.base.duration import parse_duration
from outlive.base.errors import BadInput
from outlive.resources.documents import Problems
from outlive.simulation.states import States, read_states, shown
from outlive.simulation.verbs import VERBS, Argument, Kind

FENCER_OF, HOST_OF, LEADER = "fencer-of:", "host-of:", "leader"
"""Names by what somebody does."""
WITHIN_S: Final = 120.0
"""How long an act waits for what it wants to see, unless it says otherwise."""
LATEST_S: Final = 24 * 3600.0
"""The latest time of an act or expectation."""


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
