"""The theorem, the counters and the enumeration of failures agree."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.certified import resources
from tests.support.tampered import CONSISTENT, Case, judged, members

from outlive.base import LimitExceeded, Random, Usage
from outlive.failover import apply_closed_hosts, host_view, is_slot, merge, slot_view, unschedulable_hosts
from outlive.failover.analysis import ToleranceInput, compute_tolerance
from outlive.failover.verify import CaseLanding, CertifiedState, Memberships, StateFleet, VerifyOptions
from outlive.failover.verify.check import check
from outlive.placement import list_resources
from outlive.resources import Hypervisor, Reservation, Resource, VirtualMachine, state_facts


@pytest.mark.slow
def test_enumeration_agrees_with_the_theorem_and_with_tolerance_in_any_state() -> None:
    lost = 0
    for seed in range(120):
        case = Case(seed % 12)
        case.random = Random(seed)
        for _ in range(case.random.randint(0, 4)):
            case.random.choice(CONSISTENT)(case)
        case.forge()
        heard: list[CaseLanding] = []
        objects, certificate = resources(case.state), msgspec.convert(case.certificate, CertifiedState)
        verdict = check(state_facts(objects), certificate, VerifyOptions(failures=0), report=heard.append)
        need = {vm.id: vm.need for vm in certificate.vms}
        unlanded = {one.vm for one in heard if one.slot is None and len(one.failed) <= need[one.vm]}
        assert bool(unlanded) == ("lost" in verdict.counts)
        if not {"count", "too-few-slots"} & set(verdict.counts):
            assert not unlanded
        assert unlanded == {vm for vm, level in levels(objects, need).items() if level < need[vm]}
        lost += bool(unlanded)
    assert 10 < lost < 110


def levels(objects: list[Resource], need: dict[str, int]) -> dict[str, int]:
    """Tolerance of all VMs that need slots, as the product works it out."""
    hosts = [host_view(one) for one in objects if isinstance(one, Hypervisor)]
    listing = list_resources(one for one in objects if isinstance(one, VirtualMachine))
    merged = merge(listing.vms, hosts, trust_hosts=False)
    slots = [slot_view(one) for one in objects if isinstance(one, Reservation) and is_slot(one)]
    closed = unschedulable_hosts(hosts, slots)
    slots = [apply_closed_hosts(slot, closed) for slot in slots]
    return compute_tolerance(ToleranceInput(vms=merged.vms, required=need, slots=tuple(slots))).vms


@pytest.mark.slow
def test_counters_on_bits_are_the_formula_to_the_letter() -> None:
    for seed in range(40):
        case = Case(seed % 8)
        case.random = Random(seed)
        for _ in range(4):
            case.random.choice(CONSISTENT)(case)
        inside = Memberships(StateFleet(case.facts()), {})
        literal = [vm for vm in inside.slots_of if max(inside.count_units(vm).values()) > 1]
        assert list(inside.find_faulty(inside.slots_of)) == literal


def test_a_landing_names_the_slot_that_stands_and_that_nobody_else_comes_to() -> None:
    case = Case(7)
    heard: list[CaseLanding] = []
    objects = resources(case.state)
    verdict = judged(objects, case.certificate, heard, failures=0)
    assert verdict.accepted
    assert verdict.enumeration is not None
    assert verdict.enumeration.landed + verdict.enumeration.beyond == len(heard) > 0
    taken: dict[tuple[str, ...], list[str]] = {}
    for one in heard:
        if one.slot is not None:
            assert one.host not in one.failed
            assert one.vm in members(case.named("Reservation", one.slot))
            taken.setdefault(one.failed, []).append(one.slot)
    assert all(len(slots) == len(set(slots)) for slots in taken.values())


def test_enumerating_more_than_is_certified_is_refused() -> None:
    with pytest.raises(Usage, match="3 failures"):
        Case(1).verdict(failures=3)


def test_enumerating_too_many_sets_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.failover.verify.check.CASES_LIMIT", 50)
    with pytest.raises(LimitExceeded, match="enumerate fewer failures"):
        Case(1).verdict(failures=2)
    assert Case(1).verdict(failures=1).accepted
