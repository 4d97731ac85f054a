"""Sets of slots as whole numbers used as bit sets, and the fullest slot of a set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_


def bits(number: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    text = bin(number)[:1:-1]
    position = text.find("1")
    while position >= 0:
        yield position
        position = text.find("1", position + 1)


def union(sets: Iterable[int]) -> int:
    """The slots that are in any of these sets."""
    return reduce(or_, sets, 0)


class ByCount:
    """Slots by their number of members, in a binary tree: a node is the union of the groups under it.

    Changing a count by one touches two nodes on average, and finding the fullest group takes one step a level.
    """

    def __init__(self) -> None:
        self._levels: list[list[int]] = [[0]]
        """Node ``i`` of level ``n`` holds the counts from ``i << n`` up to, not including, ``(i + 1) << n``."""

    def add(self, bit: int, count: int) -> None:
        """Put a slot that is in no group into the group of ``count``."""
        while count >= 1 << (len(self._levels) - 1):
            self._levels.append([self._levels[-1][0]])
        for level, nodes in enumerate(self._levels):
            node = count >> level
            if node >= len(nodes):
                nodes.extend([0] * (node + 1 - len(nodes)))
            nodes[node] |= bit

    def remove(self, bit: int, count: int) -> None:
        """Take a slot out of the group of ``count``."""
        for level, nodes in enumerate(self._levels):
            nodes[count >> level] &= ~bit

    def move(self, bit: int, before: int, after: int) -> None:
        """Put a slot from one group into another."""
        while after >= 1 << (len(self._levels) - 1):
            self._levels.append([self._levels[-1][0]])
        for nodes in self._levels:
            if before == after:
                return
            nodes[before] &= ~bit
            if after >= len(nodes):
                nodes.extend([0] * (after + 1 - len(nodes)))
            nodes[after] |= bit
            before >>= 1
            after >>= 1

    def highest(self, wanted: int) -> int:
        """The wanted slots of the fullest group that has any; 0 when no group has."""
        found = wanted & self._levels[-1][0]
        if not found:
            return 0
        node = 0
        for nodes in reversed(self._levels[:-1]):
            node = node * 2 + 1
            upper = found & nodes[node] if node < len(nodes) else 0
            if upper:
                found = upper
            else:
                node -= 1
        return found
