"""How memory is counted: units of LIQUID, and the one unit of each flavor group.

Info, changes, usage, capacity, quota and the syncer all count a group's memory in its ``GroupUnit``
(docs/reference/commitments.md#units). Inside it is bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from outlive.base import QUANTITY_LIMIT, BadInput
from outlive.commitments.settings import CommitmentSettings
from outlive.placement import MIB, is_valid
from outlive.resources import FlavorGroupSpec

GIB: Final = 2**30
MIB_PER_GIB: Final = 1024
UNLIMITED: Final = -1
"""A quota without a limit; no conversion touches it."""
VIDEO_MEMORY_MIB: Final = 16
"""By how much a flavor may fall short of whole units: its video memory."""
UNIT_LIMIT: Final = 2**64 - 1
"""The largest number in a unit of LIQUID."""

Measure = Literal["", "piece", "B"]
_MEMORY: Final[Mapping[str, int]] = {
    "EiB": 2**60,
    "PiB": 2**50,
    "TiB": 2**40,
    "GiB": 2**30,
    "MiB": 2**20,
    "KiB": 2**10,
    "B": 1,
}
"""The largest first."""
_TEXT = re.compile(r"(?:(\d{1,20}) )?(piece|[KMGTPE]iB|B)\Z", re.ASCII)


class LiquidUnit(msgspec.Struct, frozen=True):
    """A unit of LIQUID."""

    measure: Measure = ""
    """What is counted: bytes, pieces, or nothing that has a name."""
    size: int = 1
    """Of ``measure`` in one unit."""


def parse_unit(text: str) -> LiquidUnit:
    """The unit that a text names: empty, ``piece``, ``GiB``, ``240 GiB``; ``BadInput`` for any other, and for one
    beyond 64 bits. Texts for the same unit give the same unit."""
    if text == "":
        return LiquidUnit()
    match = _TEXT.match(text)
    if match is None:
        raise BadInput(f"{text[:80]!r} is not a unit", remedy="write a unit such as GiB, 240 GiB or piece")
    number, name = int(match[1] or 1), match[2]
    size = number * _MEMORY.get(name, 1)
    if not 1 <= size <= UNIT_LIMIT:
        raise BadInput(f"unit {text!r} is out of range", remedy="1 to 2^64-1")
    return LiquidUnit("piece" if name == "piece" else "B", size)


def format_unit(unit: LiquidUnit) -> str:
    """The text of a unit, with the largest prefix that is exact; a number of 1 is left out."""
    if unit.measure == "":
        return ""
    if unit.measure == "piece":
        return _count_text(unit.size, "piece")
    name, size = next((name, size) for name, size in _MEMORY.items() if unit.size % size == 0)
    return _count_text(unit.size // size, name)


def _count_text(number: int, name: str) -> str:
    return name if number == 1 else f"{number} {name}"


class GroupUnit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The unit in which the memory of one flavor group is counted, everywhere."""

    group: str
    mib: int = MIB_PER_GIB
    fixed: bool = False
    """Whether it is the smallest flavor of a group with a fixed ratio."""

    @property
    def size_bytes(self) -> int:
        """Bytes of one unit."""
        return self.mib * MIB

    @property
    def text(self) -> str:
        """The unit as LIQUID writes it."""
        return format_unit(LiquidUnit("B", self.size_bytes))

    def to_bytes(self, units: int) -> int:
        """Bytes of an amount; ``BadInput`` for one that is negative or beyond 63 bits."""
        found = units * self.size_bytes
        self._check(units, found)
        return found

    def from_bytes(self, size: int) -> int:
        """Whole units in so many bytes."""
        return size // self.size_bytes

    def to_gib(self, units: int) -> int:
        """An amount in GiB, rounded up so that nobody gets less than he was given; unlimited stays unlimited.
        ``BadInput`` for one that is negative or beyond 63 bits."""
        if units == UNLIMITED:
            return UNLIMITED
        found = -(-units * self.mib // MIB_PER_GIB)
        self._check(units, found)
        return found

    def from_gib(self, amount: int) -> int:
        """Whole units in so many GiB; unlimited stays unlimited."""
        if amount == UNLIMITED:
            return UNLIMITED
        if amount < 0:
            raise BadInput(f"{amount} GiB is negative", remedy="write 0 or more, or -1 for no limit")
        return amount * MIB_PER_GIB // self.mib

    def count_vm_units(self, memory_mib: int) -> int:
        """Units that a VM of this size uses. Where the unit is no flavor, up to 16 MiB that are missing for video
        memory count as there."""
        return (memory_mib + (0 if self.fixed else VIDEO_MEMORY_MIB)) // self.mib

    def count_units_of_vms(self, sizes: Iterable[tuple[int, int]]) -> int:
        """Units that VMs use, from (MiB, how many); each VM is rounded by itself, as in the usage report."""
        return sum(self.count_vm_units(memory_mib) * count for memory_mib, count in sizes)

    def count_free_units(self, slots: int, smallest_mib: int, free_bytes: int) -> int:
        """Units that are free: at least what so many VMs of the smallest flavor would use."""
        return max(slots * self.count_vm_units(smallest_mib), self.from_bytes(free_bytes))

    def _check(self, units: int, converted: int) -> None:
        if units < 0:
            raise BadInput(f"an amount of {units} is negative", remedy="write 0 or more")
        if converted > QUANTITY_LIMIT:
            raise BadInput(f"an amount of {units} x {self.text} is too large", remedy="at most 2^63-1 in bytes or GiB")


def group_unit(group: FlavorGroupSpec, configured_gib: int = 0) -> GroupUnit:
    """The unit of a group: its smallest flavor where the ratio is fixed, else what is configured, else 1 GiB.

    ``BadInput`` where another unit is configured than the smallest flavor of a group with a fixed ratio.
    """
    name, smallest = group.group_name, group.smallest_flavor.memory_mb
    if group.ram_core_ratio is None or not is_valid(group) or smallest <= 0:
        return GroupUnit(group=name, mib=(configured_gib or 1) * MIB_PER_GIB)
    unit = GroupUnit(group=name, mib=smallest, fixed=True)
    if configured_gib and configured_gib * MIB_PER_GIB != smallest:
        raise BadInput(
            f"flavor group {name} counts memory in its smallest flavor {group.smallest_flavor.name}, {unit.text}; "
            f"ramUnitGiB says {configured_gib} GiB",
            place=f"commitments.flavorGroupResources.{name}.ram.ramUnitGiB",
            remedy="give the group an entry of its own with that size, or leave ramUnitGiB out",
        )
    return unit


def unit_of(group: FlavorGroupSpec, settings: CommitmentSettings) -> GroupUnit:
    """The unit of a group under these settings; ``BadInput`` where they contradict the group."""
    return group_unit(group, settings.group_settings(group.group_name).ram.ram_unit_gib)
