"""Failure sets one by one: who is affected, and which slot each takes. Knows nothing of the theorem.

In a case the units of a set fail together. Every member of a slot that ran in one of them comes to that slot; a VM
takes the first of its certified slots, by name, that counts for it, is in a unit that lives, and to which nobody
else comes. A VM that finds none in a case of no more failures than it is certified for is lost, which refutes the
certificate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from math import comb
from typing import Final

import msgspec

from outlive.base.errors import LimitExceeded
from outlive.failover.verify.document import CertifiedState, CertifiedVm
from outlive.failover.verify.findings import Code, Findings
from outlive.failover.verify.fleet import FleetSlot, StateFleet
from outlive.failover.verify.memberships import Memberships

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
    inside: Memberships,
    counts: Mapping[str, Sequence[str]],
    failures: int,
    found: Findings,
    report: Callable[[Landing], None] | None = None,
) -> Enumeration:
    """Every set of 1 to ``failures`` units; ``LimitExceeded`` where that is too many sets."""
    units = inside.units()
    total = sum(comb(len(units), size) for size in range(1, failures + 1))
    if total > CASES_LIMIT:
        raise LimitExceeded(
            f"up to {failures} of {len(units)} failing units are {total} sets, more than {CASES_LIMIT}",
            remedy="enumerate fewer failures; the check by counters covers all sets",
        )
    landings = _Landings(fleet, certificate, inside, counts)
    landed = lost = beyond = 0
    for case in chain.from_iterable(combinations(units, size) for size in range(1, failures + 1)):
        for vm, slot in landings.of(case):
            if slot is not None:
                landed += 1
            elif min(vm.need, certificate.k) >= len(case):
                lost += 1
                message = f"in the failure of {' and '.join(case)} VM {vm.id} finds no slot of its own"
                found.add(Code.LOST, message, vm=vm.id, host=fleet.places[vm.id])
            else:
                beyond += 1
            if report is not None:
                name, host = (slot.name, slot.host) if slot is not None else (None, None)
                report(Landing(failed=case, vm=vm.id, slot=name, host=host))
    return Enumeration(failures=failures, cases=total, landed=landed, lost=lost, beyond=beyond)


class _Landings:
    """Who is on which unit, and where everybody goes when it fails."""

    def __init__(
        self,
        fleet: StateFleet,
        certificate: CertifiedState,
        inside: Memberships,
        counts: Mapping[str, Sequence[str]],
    ) -> None:
        self._unit = inside.unit
        self._coming: dict[str, list[str]] = {}
        """Unit → the slots that its members come to, each as often as somebody does."""
        for vm, slots in inside.slots_of.items():
            self._coming.setdefault(inside.unit_of_vm(vm), []).extend(slot.name for slot in slots)
        self._residents: dict[str, list[tuple[CertifiedVm, list[FleetSlot]]]] = {}
        """Unit → VMs there that need slots, with their slots by name."""
        for line in certificate.vms:
            place = fleet.places.get(line.id)
            if place is not None and line.need > 0:
                own = [fleet.slots[name] for name in sorted({*line.slots} & {*counts[line.id]})]
                self._residents.setdefault(inside.unit(place), []).append((line, own))

    def of(self, case: tuple[str, ...]) -> Iterator[tuple[CertifiedVm, FleetSlot | None]]:
        """Everybody affected, with the slot that it takes."""
        coming = Counter(chain.from_iterable(self._coming.get(unit, ()) for unit in case))
        for unit in case:
            for vm, own in self._residents.get(unit, ()):
                free = (slot for slot in own if coming[slot.name] == 1 and self._unit(slot.host) not in case)
                yield vm, next(free, None)
