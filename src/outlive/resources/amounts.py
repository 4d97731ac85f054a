"""Amounts of resources: what a host has, a VM needs, a slot holds.

On the wire a map of quantities (``{"cpu": "7500m", "memory": "16Gi", "gpu": "1"}``); inside whole numbers:
milli-cores for ``cpu``, bytes for ``memory``, and whole units for whatever else an inventory brings.
Any number of resources is allowed everywhere; only slots are restricted, by a rule of failover.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from outlive.base import BadInput, format_bytes, format_milli, parse_bytes, parse_milli

CPU = "cpu"
MEMORY = "memory"
MOST: Final[Mapping[str, int]] = {CPU: 8_192_000, MEMORY: 2**50}
"""The most that a host or VM may have: 8,192 cores, and 1 PiB; of any other resource ``MOST_OF_OTHERS``."""
MOST_OF_OTHERS: Final = 2**50
MOST_DISK_GIB: Final = 2**20
"""The most that the disks of a VM or a flavor may have: 1 PiB."""
LEAST_MEMORY: Final = 2**20
"""The least memory of a host or VM: what has less was written in another unit."""


class Amounts(Mapping[str, int]):
    """An immutable map from resource name to a whole amount, missing names counting as 0 in sums."""

    __slots__ = ("_amounts", "_wire")

    def __init__(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        self._amounts: dict[str, int] = {**(amounts or {}), **named}
        self._wire: dict[str, str] | None = None

    @classmethod
    def parse(cls, raw: object) -> Amounts:
        """From quantities as on the wire; ``BadInput`` names the resource and the value."""
        if type(raw) is not dict and not isinstance(raw, Mapping):
            raise BadInput(f"{raw!r} is not a map of quantities", remedy='write {"cpu": "4", "memory": "16Gi"}')
        for value in raw.values():
            if type(value) is not str:
                return cls(_parse_items(raw.items()))
        return _cached_amounts(tuple(raw.items()))

    def to_wire(self) -> dict[str, str]:
        """As quantities, cpu and memory first. The map is shared: it is for reading only."""
        if self._wire is None:
            order = sorted(self._amounts, key=_wire_order)
            self._wire = {name: _format(name, self._amounts[name]) for name in order}
        return self._wire

    @property
    def cpu_milli(self) -> int:
        """Milli-cores, 0 when absent."""
        return self._amounts.get(CPU, 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory, 0 when absent."""
        return self._amounts.get(MEMORY, 0)

    def __getitem__(self, name: str) -> int:
        return self._amounts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts({name: self.get(name, 0) + other.get(name, 0) for name in {**self._amounts, **other._amounts}})

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts({name: self.get(name, 0) - other.get(name, 0) for name in {**self._amounts, **other._amounts}})

    def __eq__(self, other: object) -> bool:
        return self._amounts == other._amounts if isinstance(other, Amounts) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._amounts.items())))

    def __repr__(self) -> str:
        return f"Amounts({self.to_wire()!r})"


def size_problems(amounts: Amounts, *, memory_least: int = LEAST_MEMORY) -> Iterator[tuple[str, str, str]]:
    """What is impossible about the size of a host, a VM or a flavor: resource, problem (to follow "it has"), remedy.

    The one rule for imports, ``outlive apply`` and the API. A resource that is left out is no problem here.
    """
    for name, amount in amounts.items():
        shown, most = amounts.to_wire()[name], MOST.get(name, MOST_OF_OTHERS)
        if amount < 0:
            yield name, f"a negative {name}: {shown}", "correct the value or its unit"
        elif amount > most:
            yield (
                name,
                f"{name} {shown}, more than any machine",
                f"at most {Amounts({name: most}).to_wire()[name]}; " + UNIT,
            )
        elif name in MOST and amount == 0:
            yield name, f"no {name}", "give a size above 0"
        elif name == MEMORY and amount < memory_least:
            yield name, f"memory {shown}, less than any machine", f"at least {format_bytes(memory_least)}; " + UNIT


UNIT: Final = "check the unit"


def disk_problem(disk_gib: int) -> tuple[str, str] | None:
    """What is impossible about the size of the disks of a VM or a flavor: problem, remedy. No disk is fine."""
    if disk_gib < 0:
        return f"a negative diskGib: {disk_gib}", "correct the value or its unit"
    if disk_gib > MOST_DISK_GIB:
        return f"diskGib {disk_gib}, more than any machine", f"at most {MOST_DISK_GIB}; {UNIT}"
    return None


@lru_cache(maxsize=4096)
def _cached_amounts(items: tuple[tuple[str, str], ...]) -> Amounts:
    """A cluster has many objects of few sizes: they share one instance, which is parsed and formatted once."""
    return Amounts(_parse_items(items))


def _parse_items(items: Iterable[tuple[object, object]]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, value in items:
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise BadInput(f"{name!r}: {value!r} is not a quantity", remedy='write a number such as "16Gi"')
        try:
            amounts[name] = parse_milli(value) if name == CPU else parse_bytes(value)
        except BadInput as error:
            raise BadInput(f"{name}: {error.message}", remedy=error.remedy) from None
    return amounts


def _wire_order(name: str) -> tuple[int, str]:
    return (0 if name == CPU else 1 if name == MEMORY else 2, name)


def _format(name: str, amount: int) -> str:
    if name == CPU:
        return format_milli(amount)
    return format_bytes(amount) if name == MEMORY else str(amount)


Size = Annotated[Amounts, msgspec.Meta(extra_json_schema={"minimum": 0})]
"""The size of a VM, a flavor or a slot. The published schema refuses negative amounts and admission impossible ones
(``size_problems``); decoding takes what an older version has stored."""
DiskGib = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": MOST_DISK_GIB})]
"""The same of disks, by ``disk_problem``."""
