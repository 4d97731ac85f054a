"""What stands against many hosts or slots, by kind: counted and ordered without a finding for each of them.

A fleet has thousands of hosts and slots and few kinds of obstacles. Names have the number of their kind; who wants to
know more about one of them asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nsmallest

from outlive.failover.explaining.words import Finding, Why

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
