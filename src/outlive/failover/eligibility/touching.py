"""Which slots touch which units of failure, how often, and which slots have members in common: by number.

The ground that module ``tallies`` stands on. A slot touches the unit of the host that it is on and the units of the
hosts that its members run on (docs/reference/failover.md#units-of-failure). Hosts and units have numbers of their own;
as long as every host is a unit by itself they are the same. Sets of slots are whole numbers used as bit sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Touching:
    """Counts of (slot, unit), the same seen from units, and pairs of slots."""

    def __init__(self, units: Mapping[str, str]) -> None:
        """``units``: host → its unit of failure, where that is not the host itself."""
        self.host_names: list[str] = []
        self.unit_names: list[str] = []
        self.has_units = bool(units)
        """Whether any host belongs to a unit with another name than its own."""
        self._units = dict(units)
        self._host_number: dict[str, int] = {}
        self._unit_number: dict[str, int] = {}
        self._unit_of: list[int] = []
        """By host: its unit."""
        self._unit_array: Ints | None = None
        """The same as an array, as far as it is known."""
        self._touching: list[int] = []
        """By unit: the slots that touch it, as a bit set."""
        self._slots_at: list[dict[int, None]] = []
        """The same as numbers."""
        self._placed_on: list[int] = []
        """By host: the slots that are on it, as a bit set."""
        self._units_of: list[dict[int, int]] = []
        """By slot: unit → how often the slot touches it."""
        self._crowded: list[int] = []
        """By slot: how many units it touches more than once."""
        self._near: list[int] = []
        """By slot: itself and the slots that it has a member in common with."""
        self._meeting: list[int | None] = []
        """By slot: the slots that touch a unit which it touches; ``None`` while not known."""
        self._bit: list[int] = []
        self._shared: dict[tuple[int, int], int] = {}
        """Pairs of slots with more than one member in common, and how many; only where rules are broken."""

    def host(self, name: str) -> int:
        """The number of a host; a new name gets a new one."""
        number = self._host_number.get(name)
        if number is None:
            number = self._host_number[name] = len(self.host_names)
            self.host_names.append(name)
            self._unit_of.append(self._unit(self._units.get(name, name)))
            self._placed_on.append(0)
        return number

    def _unit(self, name: str) -> int:
        """The number of a unit; a new name gets a new one."""
        number = self._unit_number.get(name)
        if number is None:
            number = self._unit_number[name] = len(self.unit_names)
            self.unit_names.append(name)
            self._touching.append(0)
            self._slots_at.append({})
        return number

    def unit_of(self, host: int) -> int:
        """The number of a host's unit of failure."""
        return self._unit_of[host]

    def units_at(self, hosts: Ints) -> Ints:
        """The numbers of these hosts' units."""
        if not self.has_units:
            return hosts
        if self._unit_array is None or len(self._unit_array) != len(self._unit_of):
            self._unit_array = np.array(self._unit_of, dtype=np.int64)
        units: Ints = self._unit_array[hosts]
        return units

    def hosts(self, names: Sequence[str]) -> list[int]:
        """The numbers of hosts."""
        found = list(map(self._host_number.get, names))
        if None in found:
            return [self.host(name) for name in names]
        return cast("list[int]", found)

    def _grow(self, slot: int) -> None:
        """Make room for one more slot, which has the next number."""
        self._units_of.append({})
        self._crowded.append(0)
        self._bit.append(1 << slot)
        self._near.append(1 << slot)
        self._meeting.append(1 << slot)

    def _count(self, slot: int, unit: int) -> None:
        units = self._units_of[slot]
        count = units.get(unit, 0)
        units[unit] = count + 1
        if count == 0:
            self._meet(slot, unit)
            self._touching[unit] |= self._bit[slot]
            self._slots_at[unit][slot] = None
        elif count == 1:
            self._crowded[slot] += 1

    def _uncount(self, slot: int, unit: int) -> None:
        units = self._units_of[slot]
        count = units[unit]
        if count == 1:
            del units[unit]
            self._touching[unit] &= ~self._bit[slot]
            del self._slots_at[unit][slot]
            self._meeting[slot] = None
            for other in self._slots_at[unit]:
                self._meeting[other] = None
            return
        units[unit] = count - 1
        if count == 2:
            self._crowded[slot] -= 1

    def _meet(self, slot: int, unit: int) -> None:
        """The slot begins to touch the unit, and so meets all slots that do."""
        meeting, bit = self._meeting, self._bit[slot]
        known = meeting[slot]
        if known is not None:
            meeting[slot] = known | self._touching[unit]
        for other in self._slots_at[unit]:
            known = meeting[other]
            if known is not None:
                meeting[other] = known | bit

    def _meeting_slots(self, slot: int) -> int:
        """The slots that touch a unit which this one touches. Known until one of them lets go of a unit."""
        known = self._meeting[slot]
        if known is None:
            known = self._bit[slot]
            for unit in self._units_of[slot]:
                known |= self._touching[unit]
            self._meeting[slot] = known
        return known

    def _link(self, slot: int, other: int) -> None:
        """The two slots have one more member in common."""
        if self._near[slot] & self._bit[other]:
            pair = (slot, other) if slot < other else (other, slot)
            self._shared[pair] = self._shared.get(pair, 1) + 1
        else:
            self._near[slot] |= self._bit[other]
            self._near[other] |= self._bit[slot]

    def _unlink(self, slot: int, other: int) -> None:
        pair = (slot, other) if slot < other else (other, slot)
        shared = self._shared.pop(pair, 1)
        if shared > 2:
            self._shared[pair] = shared - 1
        elif shared == 1:
            self._near[slot] &= ~self._bit[other]
            self._near[other] &= ~self._bit[slot]

    def _forget_meetings(self) -> None:
        """Slots got members without being counted one by one."""
        self._meeting = [None] * len(self._meeting)


def bits(number: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    text = bin(number)[:1:-1]
    position = text.find("1")
    while position >= 0:
        yield position
        position = text.find("1", position + 1)
