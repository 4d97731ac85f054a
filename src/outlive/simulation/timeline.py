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

from outlive.resources import Problems
from outlive.runtime import Duration
from outlive.simulation.spec import FromFile, read_as
from outlive.simulation.states import States, check_facts
from outlive.simulation.verbs import VERBS
from outlive.simulation.verbs.table import WHERE, Verb

FENCER_OF, HOST_OF, LEADER = "fencer-of:", "host-of:", "leader"
"""Names by what somebody does."""
WITHIN_S: Final = 120.0
"""How long an act waits for what it wants to see, unless it says otherwise."""


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
        named = [name for name in self._argument_names("host", "hosts", "to", "target") if not name.startswith(HOST_OF)]
        return tuple(name.removeprefix(FENCER_OF) for name in named)

    @property
    def vms(self) -> tuple[str, ...]:
        """VMs that it names, also those that other names refer to."""
        named = self._argument_names("host", "hosts", "to", "target")
        by_vm = tuple(name.removeprefix(HOST_OF) for name in named if name.startswith(HOST_OF))
        return (*self._argument_names("vm", "vms"), *by_vm)

    def _argument_names(self, *arguments: str) -> tuple[str, ...]:
        given = [self.arguments[name] for name in arguments if name in self.arguments]
        return tuple(name for one in given for name in ((one,) if isinstance(one, str) else one))


class _Times(FromFile, frozen=True, kw_only=True):
    at: Duration | None = None
    when: States | None = None
    after: Duration | None = None
    within: Duration | None = None


def read_timeline(value: Any, place: str, problems: Problems, verbs: Mapping[str, Verb] = VERBS) -> tuple[Act, ...]:
    """The acts of a timeline, in its order, by the verbs of its kind of world; what is wrong goes to ``problems``."""
    remedy = "write entries such as - {at: 12s, power-off: {hosts: [kvm-1]}}"
    entries = read_as(value or [], list[dict[str, Any]], place, problems, remedy) or []
    found = (_read_act(entry, f"{place}: entry {number}", problems, verbs) for number, entry in enumerate(entries, 1))
    return tuple(act for act in found if act is not None)


def _read_act(entry: dict[str, Any], place: str, problems: Problems, known: Mapping[str, Verb]) -> Act | None:
    verbs = [key for key in entry if key not in _Times.__struct_fields__]
    if len(verbs) != 1:
        said = ", ".join(verbs) or "none"
        problems.add(place, f"an entry has one verb, and this has {said}", f"verbs are {', '.join(known)}")
        return None
    verb = verbs[0]
    if verb not in known:
        near = difflib.get_close_matches(verb, list(known), n=1)
        problems.add(place, f"{verb!r} is no verb", f"do you mean {near[0]}?" if near else f"verbs: {', '.join(known)}")
        return None
    arguments = _read_arguments(known[verb], entry[verb] or {}, f"{place}: {verb}", problems)
    written = {key: value for key, value in entry.items() if key != verb}
    times = read_as(written, _Times, place, problems, "write at: 12s, or when: with what must be seen first")
    if times is None:
        return None
    if (times.at is None) == (times.when is None):
        said = "has no time" if times.at is None else "has both at and when"
        problems.add(place, said, "write at: 12s, or when: with what must be seen first, and after: for a time after")
    if times.when is None:
        if times.after is not None or times.within is not None:
            problems.add(place, "after and within go with when", "leave them out, or write when")
        return Act(verb=verb, arguments=arguments, at_s=times.at or 0.0, place=place)
    check_facts(times.when, f"{place}: when", problems)
    within_s = WITHIN_S if times.within is None else times.within
    return Act(verb=verb, arguments=arguments, at_s=times.after or 0.0, when=times.when, within_s=within_s, place=place)


def _read_arguments(known: Verb, given: Any, place: str, problems: Problems) -> dict[str, Any]:
    """As the world takes them: seconds for durations, tuples for lists."""
    fields = msgspec.structs.fields(known.arguments)
    read = read_as(given, known.arguments, place, problems, known.usage)
    if read is None:
        return {}
    if known.each_host and sum(name in given for name in WHERE) != 1:
        problems.add(place, f"needs one of {', '.join(WHERE)}", "write exactly one of them")
    return {field.encode_name: getattr(read, field.name) for field in fields if field.encode_name in given}
