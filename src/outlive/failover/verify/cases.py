"""Failure sets one by one: who is affected, and which slot each takes. Knows nothing of the theorem.

In a case the units of a set fail together. Every member of a slot that ran in one of them comes to that slot; a VM
takes the first of its certified slots, by name, that counts for it, stands in a unit that lives, and to which nobody
else comes. A VM that finds none in a case of no more failures than it is certified for is lost, which refutes the
certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

import msgspec

from outlive.base.errors import LimitExceeded
from outlive.failover.verify.document import CertifiedState
from outlive.failover.verify.findings import Code, Findings
from outlive.failover.verify.fleet import StateFleet

CASES_LIMIT: Final = 1_000_000
"""Failure sets that are looked at one by one."""


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one VM in one case."""

    failed: tuple[str, ...]
    vm: str
    slot: str | None
    """The slot that it takes; ``None`` where it finds none."""
    host: str | None


class Enumeration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All cases in numbers."""

    failures: int
    """Units that fail together, at most."""
    cases: int
    landed: int
    """VMs that found a slot, over all cases."""
    lost: int
    """VMs that found none though they are certified for as many failures."""
    beyond: int
    """VMs that found none in cases that their need does not cover."""


def enumerate_cases(
    fleet: StateFleet,
    certificate: CertifiedState,
    counts: Mapping[str, Sequence[str]],
    unit_of: Mapping[str, str],
    failures: int,
    found: Findings,
    report: Callable[[Landing], None] | None = None,
) -> Enumeration:
    """Every set of 1 to ``failures`` units; ``LimitExceeded`` where that is too many sets."""
    model = _Model(fleet, certificate, counts, unit_of)
    total = sum(comb(len(model.units), size) for size in range(1, failures + 1))
    if total > CASES_LIMIT:
        raise LimitExceeded(
            f"up to {failures} of {len(model.units)} failing units are {total} sets, more than {CASES_LIMIT}",
            remedy="enumerate fewer failures; the check by counters covers all sets",
        )
    landed = lost = beyond = 0
    for size in range(1, failures + 1):
        for case in combinations(range(len(model.units)), size):
            for vm, slot in model.landings(case):
                if slot >= 0:
                    landed += 1
                elif min(model.need[vm], certificate.k) >= size:
                    lost += 1
                    _lose(model, case, vm, found)
                else:
                    beyond += 1
                if report is not None:
                    report(model.landing(case, vm, slot))
    return Enumeration(failures=failures, cases=total, landed=landed, lost=lost, beyond=beyond)


def _lose(model: _Model, case: tuple[int, ...], vm: int, found: Findings) -> None:
    if found.full():
        found.count(Code.LOST)
        return
    name, failed = model.vms[vm], " and ".join(model.units[unit] for unit in case)
    message = f"in the failure of {failed} VM {name} finds no slot of its own"
    found.add(Code.LOST, message, vm=name, host=model.home[vm])


class _Model:
    """Everything by number."""

    def __init__(
        self,
        fleet: StateFleet,
        certificate: CertifiedState,
        counts: Mapping[str, Sequence[str]],
        unit_of: Mapping[str, str],
    ) -> None:
        location: dict[str, str] = {}
        for one in fleet.slots.values():
            location.update(one.allocations)
        location.update(fleet.places)
        hosts = {*fleet.hosts, *location.values(), *(slot.host for slot in fleet.slots.values())}
        self.units = sorted({unit_of.get(host, host) for host in hosts})
        number = {unit: at for at, unit in enumerate(self.units)}
        unit = {host: number[unit_of.get(host, host)] for host in hosts}
        self.slots = list(fleet.slots.values())
        self.slot_unit = [unit[slot.host] for slot in self.slots]
        self.coming: list[list[int]] = [[] for _ in self.units]
        """Unit → the slots that its members come to, each as often as somebody does."""
        for at, slot in enumerate(self.slots):
            for member in slot.allocations:
                self.coming[unit[location[member]]].append(at)
        by_name = {slot.name: at for at, slot in enumerate(self.slots)}
        self.vms: list[str] = []
        self.home: list[str] = []
        self.need: list[int] = []
        self.own: list[list[int]] = []
        """VM → its slots, by name."""
        self.residents: list[list[int]] = [[] for _ in self.units]
        """Unit → VMs there that need slots."""
        for vm in certificate.vms:
            place = fleet.places.get(vm.id)
            if place is not None and vm.need > 0:
                self.residents[unit[place]].append(len(self.vms))
                self.vms.append(vm.id)
                self.home.append(place)
                self.need.append(vm.need)
                self.own.append(sorted(by_name[name] for name in {*vm.slots} & {*counts.get(vm.id, ())}))

    def landings(self, case: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """(VM, the slot that it takes or -1) for everybody affected."""
        coming: dict[int, int] = {}
        for unit in case:
            for slot in self.coming[unit]:
                coming[slot] = coming.get(slot, 0) + 1
        slot_unit = self.slot_unit
        for unit in case:
            for vm in self.residents[unit]:
                for slot in self.own[vm]:
                    if coming[slot] == 1 and slot_unit[slot] not in case:
                        yield vm, slot
                        break
                else:
                    yield vm, -1

    def landing(self, case: tuple[int, ...], vm: int, slot: int) -> Landing:
        """The same with names."""
        taken = self.slots[slot] if slot >= 0 else None
        return Landing(
            failed=tuple(self.units[unit] for unit in case),
            vm=self.vms[vm],
            slot=taken.name if taken else None,
            host=taken.host if taken else None,
        )
