"""The words of an explanation: what keeps a slot or a host from serving a VM, told once as data and once for people.

A ``Finding`` is the first thing, in the order of docs/reference/failover.md#explanations, that stands against one host
or slot. Sentences are made when somebody reads them: a fleet has thousands of findings and a reader wants a handful.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Final, NamedTuple

import msgspec

from outlive.base.quantity import format_bytes, format_milli
from outlive.failover.sizing import amounts

CAPACITY_WORD = "capacity"
"""Part of the name of every placement step that looks at room."""

WAIT_OR_PLAN: Final = "wait for a cycle, or run `outlive failover plan --apply`"
"""What helps whoever could be served now."""
CLEANED_UP: Final = "wait for the next cycle: its clean-up takes the clash away"
"""What helps where a rule is broken for the VM, and will not be for long."""
NOT_CLEANED_UP: Final = "`outlive failover check` names the broken rule; clean-up does not take it away by itself"
"""The same where it stays, as under the brake."""


class Why(enum.StrEnum):
    """What stands against a host or a slot, in the order in which it is looked for."""

    MEMBER = "already-member"
    NOT_READY = "slot-not-ready"
    TOO_SMALL = "slot-too-small"
    MEMBERS_CLASH = "members-clash"
    RULE = "rule"
    APART = "kept-apart"
    PLACEMENT_ERROR = "placement-unavailable"
    PLACEMENT = "refused-by-placement"
    NO_CAPACITY = "no-capacity"
    ZERO_SIZE = "zero-size"
    OWN_CLASH = "memberships-clash"
    NOTHING = "nothing"


class Clash(enum.Enum):
    """How a rule would be broken: its number, and which two things would meet."""

    OWN_HOST = (1, "{vm} itself runs {there}")
    SLOT_THERE = (2, "its slot {slot} is {there}")
    SAME_HOST = (3, "member {other} runs {there}, as {vm} does")
    CO_USER_THERE = (4, "{other}, which shares slot {slot} with it, runs {there}")
    MEMBER_AT_SLOT = (4, "member {other} runs {there}, where {vm} has slot {slot}")
    AT_MEMBERS_SLOT = (4, "{vm} runs {there}, where member {other} has slot {slot}")
    SHARED_TWICE = (5, "it shares slot {slot} with member {other} already")
    CO_USERS_MEET = (5, "member {other} runs {there}, as does {second}, which shares slot {slot} with it")
    MEETS_CO_USER = (5, "member {other} shares slot {slot} with {second}, which runs {there}, as {vm} does")

    @property
    def rule(self) -> int:
        """1 to 5, as numbered in docs/reference/failover.md#the-five-rules."""
        return self.value[0]


class Finding(NamedTuple):
    """The first thing that stands against one host or slot."""

    why: Why
    clash: Clash | None = None
    vm: str = ""
    """The other VM."""
    second: str = ""
    """The co-user that is met, where a third VM is involved."""
    host: str = ""
    """Where the two things would meet: the host of the one that is there already."""
    slot: str = ""
    """The other slot that is involved."""
    refusal: int = -1
    """Number of placement's refusal."""
    text: str = ""
    """What another part has to say about it, where no words here do."""

    @property
    def word(self) -> str:
        """The stable word."""
        return f"rule-{self.clash.rule}" if self.clash is not None else self.why.value


class Refusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a step of placement says against a host."""

    step: str
    code: str = ""
    message: str = ""

    @property
    def is_capacity(self) -> bool:
        """Whether it is about room."""
        return CAPACITY_WORD in self.step and self.code != Why.ZERO_SIZE


class Reason(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One host or slot in the answer."""

    host: str
    slot: str = ""
    reason: str
    """A stable word, see ``Why``; ``rule-1`` to ``rule-5`` for rules."""
    message: str
    other_vm: str = ""
    other_host: str = ""
    other_slot: str = ""
    step: str = ""
    code: str = ""


class Tally(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hosts or slots with the same thing against them."""

    reason: str
    count: int
    text: str
    """As it stands in a sentence after the number."""
    example: str = ""
    """The first of them, by name."""


def in_unit(host: str, units: Mapping[str, str]) -> str:
    """A host with its unit of failure, where that is not the host itself."""
    unit = units.get(host)
    return host if unit is None else f"{host} ({unit})"


def rule_sentence(vm: str, finding: Finding, at: str, units: Mapping[str, str]) -> str:
    """Which rule the VM would break; ``at`` is the host that is asked about."""
    assert finding.clash is not None
    same = finding.host == at and units.get(at) is None
    there = "there" if same else f"on {in_unit(finding.host, units)}"
    number, pattern = finding.clash.value
    text = pattern.format(vm=vm, other=finding.vm, second=finding.second, slot=finding.slot, there=there)
    return f"rule {number}: {text}"


def capacity_sentence(needs: tuple[int, int], room: tuple[int, int] | None) -> str:
    """What is needed against what is free."""
    wanted = amounts(*needs)
    if room is None:
        return f"needs {wanted}; how much is free there is not known"
    return f"needs {wanted}, has {amounts(max(0, room[0]), max(0, room[1]))} free"


_PHRASES: Mapping[str, str] = {
    "bad-condition": "are not ready ({message})",
    "not-forced": "are none of those that the VM may run on",
    "no-high-availability": "take no slots (highAvailability is off)",
    "in-maintenance": "are in maintenance",
    "project-not-allowed": "are for other projects",
    "aggregate-reserved": "are in aggregates of other projects",
    "unmapped-hypervisor": "have a hypervisor type that is not known",
    "no-accelerators": "have no accelerators",
    "excluded": "are excluded by the pipeline",
}


def refusal_phrase(refusal: Refusal, zone: str) -> str:
    """A refusal as it stands in a sentence after a number of hosts."""
    words = refusal.message.split()
    match refusal.code:
        case "missing-trait":
            return f"lack trait {words[1]}"
        case "forbidden-trait":
            return f"have the forbidden trait {words[1]}"
        case "wrong-zone":
            return f"are not in zone {zone}"
        case code if code in _PHRASES:
            return _PHRASES[code].format(message=refusal.message)
        case _:
            return f"are refused by {refusal.step}{f' ({refusal.message})' if refusal.message else ''}"


def part_amounts(cpu_milli: int, memory_bytes: int) -> str:
    """An amount for people, without what is zero of it."""
    if not memory_bytes:
        return f"{format_milli(cpu_milli)} cpu"
    return amounts(cpu_milli, memory_bytes) if cpu_milli else f"{format_bytes(memory_bytes)} memory"


_PLACE = {why: place for place, why in enumerate(Why)}


class Kinds:
    """Kinds of findings by number, and who is of which."""

    def __init__(self) -> None:
        self.kinds: list[Finding] = []
        self.of: dict[str, int] = {}
        """Name → number of its kind, by name."""
        self._numbers: dict[Finding, int] = {}

    def number(self, finding: Finding) -> int:
        """The number of a kind."""
        number = self._numbers.get(finding)
        if number is None:
            number = self._numbers[finding] = len(self.kinds)
            self.kinds.append(finding)
        return number

    def kind(self, name: str) -> Finding:
        """The kind of one host or slot."""
        return self.kinds[self.of[name]]

    def counted(self) -> Iterator[tuple[Finding, int, str]]:
        """(kind, how many, the first by name), in the order in which kinds are looked for."""
        counts = Counter(self.of.values())
        first: dict[int, str] = {}
        for name, number in self.of.items():
            if number not in first:
                first[number] = name
                if len(first) == len(counts):
                    break
        for number in sorted(counts, key=lambda one: (*_rank(self.kinds[one]), -counts[one], one)):
            yield self.kinds[number], counts[number], first[number]

    def named(self, wanted: Iterable[Why]) -> Iterator[str]:
        """The names of these kinds."""
        reasons = frozenset(wanted)
        numbers = {number for number, kind in enumerate(self.kinds) if kind.why in reasons}
        return (name for name, number in self.of.items() if number in numbers)

    def closest(self, count: int | None) -> list[str]:
        """All names as they come; or so many, those first against which the last thing in the order stands.

        Of everything that stands against some there are examples, as evenly as there are names for it: else one
        refusal that many share would hide the others.
        """
        if count is None:
            return list(self.of)
        by_kind: list[list[str]] = [[] for _ in self.kinds]
        for name, number in self.of.items():
            by_kind[number].append(name)
        alike: dict[tuple[int, int], list[str]] = {}
        for number, names in enumerate(by_kind):
            alike.setdefault(_rank(self.kinds[number]), []).extend(names)
        groups = [nsmallest(count, alike[rank]) for rank in sorted(alike, reverse=True)]
        taken = [0] * len(groups)
        left = min(count, sum(map(len, groups)))
        while left > 0:
            for at, group in enumerate(groups):
                if left > 0 and taken[at] < len(group):
                    taken[at] += 1
                    left -= 1
        return [name for group, some in zip(groups, taken, strict=True) for name in group[:some]]


def _rank(kind: Finding) -> tuple[int, int]:
    return (_PLACE[kind.why], kind.clash.rule if kind.clash is not None else 0)
