"""The verdict on a certificate: everything is checked in a fixed order, and the first violation is reported in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from math import comb
from typing import Any, Final

import msgspec

from outlive.base import BadInput, LimitExceeded, Pattern, Usage, collector_paused, compile_pattern
from outlive.failover.verify.claims import (
    check_grounds,
    check_needs,
    check_promises,
    check_required,
    check_room,
    compare_hosts,
    compare_slots,
    compare_vms,
)
from outlive.failover.verify.document import (
    UNIT_OF_HOSTS,
    VERSION,
    CertificateViolation,
    CertifiedState,
    CertifiedVm,
    Code,
    Findings,
    read_certificate,
)
from outlive.failover.verify.fleet import FleetSlot, StateFleet
from outlive.failover.verify.memberships import (
    Memberships,
    Shortfall,
    check_unplaced,
    compute_shortfall,
)
from outlive.resources import Facts, digest_of, read_facts

# Failure sets one by one: who is affected, and which slot each takes. Knows nothing of the theorem.
#
# In a case the units of a set fail together. Every member of a slot that ran in one of them comes to that slot; a VM
# takes the first of its certified slots, by name, that counts for it, is in a unit that lives, and to which nobody
# else comes. A VM that finds none in a case of no more failures than it is certified for is lost, which refutes the
# certificate.

CASES_LIMIT: Final = 1_000_000
"""Failure sets that are looked at one by one."""


class CaseLanding(msgspec.Struct, frozen=True, kw_only=True):
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
    report: Callable[[CaseLanding], None] | None = None,
) -> Enumeration:
    """Every set of 1 to ``failures`` units; ``LimitExceeded`` where that is too many sets."""
    units = inside.list_units()
    total = sum(comb(len(units), size) for size in range(1, failures + 1))
    if total > CASES_LIMIT:
        raise LimitExceeded(
            f"up to {failures} of {len(units)} failing units are {total} sets, more than {CASES_LIMIT}",
            remedy="enumerate fewer failures; the check by counters covers all sets",
        )
    landings = _Landings(fleet, certificate, inside, counts)
    landed = lost = beyond = 0
    for case in chain.from_iterable(combinations(units, size) for size in range(1, failures + 1)):
        for vm, slot in landings.iter_landings(case):
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
                report(CaseLanding(failed=case, vm=vm.id, slot=name, host=host))
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
        self._unit = inside.unit_of_host
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
                self._residents.setdefault(inside.unit_of_host(place), []).append((line, own))

    def iter_landings(self, case: tuple[str, ...]) -> Iterator[tuple[CertifiedVm, FleetSlot | None]]:
        """Everybody affected, with the slot that it takes."""
        coming = Counter(chain.from_iterable(self._coming.get(unit, ()) for unit in case))
        for unit in case:
            for vm, own in self._residents.get(unit, ()):
                free = (slot for slot in own if coming[slot.name] == 1 and self._unit(slot.host) not in case)
                yield vm, next(free, None)


class CertificateVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether a certificate is accepted, and if not, why."""

    accepted: bool
    k: int
    unit: str
    hosts: int
    vms: int
    needing: int
    """VMs that are certified for any failure."""
    by: dict[str, int]
    """By what → how many of them, where the certificate says so."""
    slots: int
    violation: CertificateViolation | None
    """The first one."""
    further: tuple[CertificateViolation, ...]
    """More of them; some of many."""
    counts: dict[str, int]
    """Code → violations."""
    enumeration: Enumeration | None = None
    shortfall: Shortfall | msgspec.UnsetType = msgspec.UNSET
    """VMs that are certified for fewer failures than they need slots; absent where there are none."""


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is asked for beyond what the certificate claims."""

    require: dict[str, int] = {}
    """Pattern of flavor names → the least need of such VMs."""
    failures: int | None = None
    """Enumerate all sets of up to so many failures; 0: as many as the certificate is for."""
    allow_partial: bool = False
    """Accept a certificate in which VMs are certified for fewer failures than they need slots."""


def verify(state: bytes, certificate: bytes, options: VerifyOptions | None = None) -> CertificateVerdict:
    """The verdict on two files; ``BadInput`` where one cannot be read."""
    with collector_paused():
        return check(read_facts(state, "state"), read_certificate(certificate), options)


def check(
    facts: Iterable[Facts],
    certificate: CertifiedState,
    options: VerifyOptions | None = None,
    *,
    report: Callable[[CaseLanding], None] | None = None,
) -> CertificateVerdict:
    """The verdict on the facts of a state and a certificate.

    ``report`` gets what becomes of every affected VM in every case that is enumerated.
    """
    options = options or VerifyOptions()
    required = _compile_patterns(options.require)
    failures = _failures_to_check(options, certificate)
    facts, found = list(facts), Findings()
    enumeration = None
    with collector_paused():
        fleet = StateFleet(facts)
        unit_of = fleet.units_by_host(certificate.unit)
        _check_heads(facts, certificate, found)
        _check_unit(fleet, certificate, unit_of, found)
        compare_hosts(fleet, certificate, found)
        compare_vms(fleet, certificate, found)
        compare_slots(fleet, certificate, found)
        full = check_room(fleet, certificate, found)
        inside = Memberships(fleet, unit_of)
        counts = inside.counting_slots()
        check_promises(fleet, certificate, counts, full, found)
        check_required(fleet, certificate, required, found)
        short = compute_shortfall(fleet, certificate)
        if not options.allow_partial:
            if short.short:
                text = f"{short.describe()}; --allow-partial accepts what is claimed of the others"
                found.add(Code.PARTIAL, text)
            check_unplaced(fleet, found)
        check_grounds(fleet, certificate, found)
        _check_counters(inside, certificate, found)
        if failures:
            enumeration = enumerate_cases(fleet, certificate, inside, counts, failures, found, report)
    return CertificateVerdict(
        accepted=not found.counts,
        k=certificate.k,
        unit=certificate.unit,
        hosts=len(fleet.hosts),
        vms=len(fleet.places),
        needing=sum(vm.need > 0 for vm in certificate.vms),
        by=dict(sorted(Counter(vm.by for vm in certificate.vms if vm.by is not None).items())),
        slots=len(certificate.slots),
        violation=found.shown[0] if found.shown else None,
        further=tuple(found.shown[1:]),
        counts=found.counts,
        enumeration=enumeration,
        shortfall=short if short.short else msgspec.UNSET,
    )


def _check_heads(facts: Iterable[Facts], certificate: CertifiedState, found: Findings) -> None:
    if certificate.version != VERSION:
        found.add(Code.VERSION, f"the certificate is of version {certificate.version}; this checks version {VERSION}")
    digest = digest_of(facts)
    if digest != certificate.state_digest:
        message = (
            f"the certificate is about the state {certificate.state_digest or 'without a digest'}, this is {digest}"
        )
        found.add(Code.DIGEST, message)
    check_needs(certificate, found)


def _check_unit(fleet: StateFleet, certificate: CertifiedState, unit_of: Mapping[str, str], found: Findings) -> None:
    """A domain that no host is in would make single hosts look like racks."""
    if certificate.unit != UNIT_OF_HOSTS and fleet.hosts and not unit_of:
        found.add(Code.UNIT, f"no host of the state is in a failure domain {certificate.unit[:80]!r}")


def _check_counters(inside: Memberships, certificate: CertifiedState, found: Findings) -> None:
    hosts = {vm.id: vm.host for vm in certificate.vms}
    for vm in inside.find_faulty(vm.id for vm in certificate.vms if vm.need > 0):
        if found.is_full():
            found.count(Code.COUNT)
            continue
        unit = min(unit for unit, count in inside.count_units(vm).items() if count > 1)
        message = f"for VM {vm} on {hosts[vm]} the failure of {unit or 'the empty host'} counts more than once: "
        found.add(Code.COUNT, message + inside.describe_unit(vm, unit), vm=vm, host=unit)


def _compile_patterns(patterns: Mapping[str, int]) -> list[tuple[Pattern, str, int]]:
    for pattern, count in patterns.items():
        if count < 0:
            raise BadInput(f"{pattern}={count}: a need is not negative", remedy="write PATTERN=N")
    return [(compile_pattern(pattern), pattern, count) for pattern, count in sorted(patterns.items())]


def _failures_to_check(options: VerifyOptions, certificate: CertifiedState) -> int:
    if options.failures is None:
        return 0
    if options.failures > certificate.k or options.failures < 0:
        raise Usage(
            f"{options.failures} failures are to be enumerated, and the certificate is for {certificate.k}",
            remedy=f"at most {certificate.k}",
        )
    return options.failures or certificate.k


class VerifyInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A state and a certificate."""

    objects: tuple[dict[str, Any], ...]
    """The state's objects as JSON, as in a state file."""
    certificate: CertifiedState
    wishes: VerifyOptions = VerifyOptions()


def decide(given: VerifyInput) -> CertificateVerdict:
    """The verdict; ``BadInput`` names the object that is none."""
    wire = {"takenAt": "1970-01-01T00:00:00Z", "objects": given.objects}
    return check(read_facts(msgspec.json.encode(wire), "input"), given.certificate, given.wishes)
