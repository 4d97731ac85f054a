"""The verdict on a certificate: everything is checked in a fixed order, and the first violation is reported in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from outlive.base.errors import BadInput, Usage
from outlive.base.garbage import collector_paused
from outlive.base.patterns import Pattern, compile_pattern
from outlive.failover.verify.cases import Enumeration, Landing, enumerate_cases
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
from outlive.failover.verify.document import UNIT_OF_HOSTS, VERSION, CertifiedState, read_certificate
from outlive.failover.verify.findings import Code, Findings, Violation
from outlive.failover.verify.fleet import StateFleet
from outlive.failover.verify.memberships import Memberships
from outlive.failover.verify.needs import Shortfall, check_shortfall, check_unplaced, shortfall
from outlive.resources.digest import Facts, digest_of
from outlive.resources.state import read_facts


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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
    violation: Violation | None
    """The first one."""
    further: tuple[Violation, ...]
    """More of them; some of many."""
    counts: dict[str, int]
    """Code → violations."""
    enumeration: Enumeration | None = None
    shortfall: Shortfall | msgspec.UnsetType = msgspec.UNSET
    """VMs that are certified for fewer failures than they need slots; absent where there are none."""


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is asked for beyond what the certificate claims."""

    require: dict[str, int] = {}
    """Pattern of flavor names → the least need of such VMs."""
    failures: int | None = None
    """Enumerate all sets of up to so many failures; 0: as many as the certificate is for."""
    allow_partial: bool = False
    """Accept a certificate in which VMs are certified for fewer failures than they need slots."""


def verify(state: bytes, certificate: bytes, options: Options | None = None) -> Verdict:
    """The verdict on two files; ``BadInput`` where one cannot be read."""
    with collector_paused():
        return check(read_facts(state, "state"), read_certificate(certificate), options)


def check(
    facts: Iterable[Facts],
    certificate: CertifiedState,
    options: Options | None = None,
    *,
    report: Callable[[Landing], None] | None = None,
) -> Verdict:
    """The verdict on the facts of a state and a certificate.

    ``report`` gets what becomes of every affected VM in every case that is enumerated.
    """
    options = options or Options()
    required = _required(options.require)
    failures = _failures(options, certificate)
    facts, found = list(facts), Findings()
    enumeration = None
    with collector_paused():
        fleet = StateFleet(facts)
        unit_of = fleet.units(certificate.unit)
        _check_heads(facts, certificate, found)
        _check_unit(fleet, certificate, unit_of, found)
        compare_hosts(fleet, certificate, found)
        compare_vms(fleet, certificate, found)
        compare_slots(fleet, certificate, found)
        full = check_room(fleet, certificate, found)
        inside = Memberships(fleet, unit_of)
        counts = inside.counting()
        check_promises(fleet, certificate, counts, full, found)
        check_required(fleet, certificate, required, found)
        short = shortfall(fleet, certificate)
        if not options.allow_partial:
            check_shortfall(short, found)
            check_unplaced(fleet, found)
        check_grounds(fleet, certificate, found)
        _check_counters(inside, certificate, found)
        if failures:
            enumeration = enumerate_cases(fleet, certificate, inside, counts, failures, found, report)
    return Verdict(
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
    for vm in inside.at_fault(vm.id for vm in certificate.vms if vm.need > 0):
        if found.full():
            found.count(Code.COUNT)
            continue
        unit = min(unit for unit, count in inside.count(vm).items() if count > 1)
        message = f"for VM {vm} on {hosts[vm]} the failure of {unit or 'the empty host'} counts more than once: "
        found.add(Code.COUNT, message + inside.why(vm, unit), vm=vm, host=unit)


def _required(patterns: Mapping[str, int]) -> list[tuple[Pattern, str, int]]:
    for pattern, count in patterns.items():
        if count < 0:
            raise BadInput(f"{pattern}={count}: a need is not negative", remedy="write PATTERN=N")
    return [(compile_pattern(pattern), pattern, count) for pattern, count in sorted(patterns.items())]


def _failures(options: Options, certificate: CertifiedState) -> int:
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
    wishes: Options = Options()


def decide(given: VerifyInput) -> Verdict:
    """The verdict; ``BadInput`` names the object that is none."""
    wire = {"takenAt": "1970-01-01T00:00:00Z", "objects": given.objects}
    return check(read_facts(msgspec.json.encode(wire), "input"), given.certificate, given.wishes)
