"""How many slots a VM needs, by the name of its flavor (docs/reference/failover.md#patterns)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlive.base.errors import BadInput
from outlive.base.patterns import compile_pattern
from outlive.failover.model import VmView
from outlive.failover.portions import Portions, portioned

FLAVORS_REMEMBERED = 10_000
"""Flavor names whose count is remembered; beyond it everything is forgotten and computed again."""


class Requirements:
    """Patterns and their counts, compiled once. A malformed pattern never matches; ``malformed`` says which and why."""

    def __init__(self, patterns: Mapping[str, int]) -> None:
        self.malformed: dict[str, str] = {}
        self._compiled = []
        for pattern, count in patterns.items():
            try:
                self._compiled.append((compile_pattern(pattern), count))
            except BadInput as error:
                self.malformed[pattern] = error.message
        self._remembered: dict[str, int] = {}

    def required(self, flavor: str) -> int:
        """Slots that a VM of this flavor needs: the largest count of any pattern that matches, never below 0."""
        known = self._remembered.get(flavor)
        if known is None:
            known = self._count(flavor)
            if len(self._remembered) >= FLAVORS_REMEMBERED:
                self._remembered.clear()
            self._remembered[flavor] = known
        return known

    def of(self, vms: Iterable[VmView]) -> Portions[dict[str, int]]:
        """VM → slots that it needs, by the view's flavor; those that need none are left out."""
        found: dict[str, int] = {}
        for portion in portioned(vms):
            found.update((vm.id, count) for vm in portion if (count := self.required(vm.flavor)) > 0)
            yield
        return found

    def _count(self, flavor: str) -> int:
        if not flavor:
            return 0
        return max([0, *(count for regex, count in self._compiled if regex.fullmatch(flavor))])


def required(flavor: str, patterns: Mapping[str, int]) -> int:
    """Slots that a VM of this flavor needs under the patterns (glob → count)."""
    return Requirements(patterns).required(flavor)
