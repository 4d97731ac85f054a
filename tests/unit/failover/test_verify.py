"""The checker of certificates: it accepts what the product plans, and notices whatever was tampered with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import pytest
from tests.support.certified import (
    certificate_document,
    certified,
    documents,
    fleet,
    planned,
    resources,
    settings,
    state_file,
)

from outlive.base.errors import BadInput, LimitExceeded, Usage
from outlive.base.random import Random
from outlive.failover.assurance.tolerance import ToleranceInput, tolerance
from outlive.failover.decisions import DECISIONS
from outlive.failover.keeping.observe import is_slot, slot_view
from outlive.failover.verify import cases
from outlive.failover.verify.cases import Landing
from outlive.failover.verify.checking import Verdict, Wishes, check, verify
from outlive.failover.verify.columns import Memberships
from outlive.failover.verify.counting import Counters
from outlive.failover.verify.document import CertifiedState, read_certificate
from outlive.failover.verify.fleet import StateFleet
from outlive.failover.vms import host_view, list_resources
from outlive.failover.whereabouts import on_hypervisors
from outlive.resources import Hypervisor, Reservation, Resource, VirtualMachine
from outlive.resources.digest import Facts
from outlive.resources.state import state_digest, state_facts
from outlive.runtime.decisions import DecisionTable

Doc = dict[str, Any]


@lru_cache(maxsize=64)
def _planned_and_certified(seed: int, hosts: int, vms: int) -> tuple[list[Doc], Doc]:
    objects = planned(fleet(Random(seed), hosts, vms), seed=seed)
    made = certified(objects).certificate
    assert made is not None
    return documents(objects), certificate_document(made)


class Case:
    """A state and its certificate as plain JSON; tampering goes on in place."""

    def __init__(self, seed: int, *, hosts: int = 12, vms: int = 24) -> None:
        self.random = Random(seed)
        state, certificate = _planned_and_certified(seed, hosts, vms)
        self.state, self.certificate = copy.deepcopy(state), copy.deepcopy(certificate)

    def of(self, kind: str) -> list[Doc]:
        return [one for one in self.state if one["kind"] == kind]

    def named(self, kind: str, name: str) -> Doc:
        return next(one for one in self.of(kind) if one["metadata"]["name"] == name)

    def slot(self) -> Doc:
        """Any slot that two VMs share, where there is one."""
        slots = self.of("Reservation")
        shared = [one for one in slots if len(members(one)) > 1]
        return self.random.choice(shared or slots)

    def certified_vm(self) -> Doc:
        """Any VM that is certified for something."""
        return self.random.choice([one for one in self.certificate["vms"] if one["need"] > 0])

    def line(self) -> Doc:
        """Any slot of the certificate."""
        return self.random.choice(self.certificate["slots"])

    def move(self, vm: str, to: str) -> None:
        """The VM runs elsewhere now."""
        found = self.named("VirtualMachine", vm)
        before = self.named("Hypervisor", found["status"]["assigned"]["hypervisor"])
        before["status"]["instances"] = [one for one in before["status"]["instances"] if one["id"] != vm]
        self.named("Hypervisor", to)["status"].setdefault("instances", []).append({"id": vm})
        found["status"]["assigned"]["hypervisor"] = to

    def redigest(self) -> None:
        """Pretend that the certificate is about this state."""
        self.certificate["stateDigest"] = state_digest(resources(self.state))

    def forge(self) -> None:
        """A certificate as somebody would write it who has seen the state, knows no rule, and keeps the needs."""
        needs = {vm["id"]: vm["need"] for vm in self.certificate["vms"]}
        seen = StateFleet(self.facts())
        slots = [slot for slot in seen.slots.values() if slot.ready]
        counting = Memberships(seen).counting()
        self.certificate = {
            "version": 1,
            "stateDigest": "",
            "k": max([0, *(needs.get(vm, 0) for vm in seen.places)]),
            "hosts": list(seen.hosts),
            "vms": [
                {"id": vm, "host": host, "need": needs.get(vm, 0), "slots": counting[vm]}
                for vm, host in seen.places.items()
            ],
            "slots": [
                {
                    "name": slot.name,
                    "host": slot.host,
                    "cpuMilli": slot.cpu_milli,
                    "memoryBytes": slot.memory_bytes,
                    "allocations": dict(slot.allocations),
                }
                for slot in slots
            ],
        }
        self.redigest()

    def verdict(self, **wishes: Any) -> Verdict:
        return check(self.facts(), msgspec.convert(self.certificate, CertifiedState), Wishes(**wishes))

    def facts(self) -> tuple[Facts, ...]:
        return state_facts(resources(self.state))

    def codes(self, **wishes: Any) -> set[str]:
        return set(self.verdict(**wishes).counts)


def judged(objects: list[Resource], certificate: Doc, heard: list[Landing] | None = None, **wishes: Any) -> Verdict:
    claimed = msgspec.convert(certificate, CertifiedState)
    return check(state_facts(objects), claimed, Wishes(**wishes), tell=None if heard is None else heard.append)


def members(slot: Doc) -> dict[str, str]:
    found: dict[str, str] = slot["status"]["failoverReservation"].setdefault("allocations", {})
    return found


# What the product plans is accepted


@pytest.mark.parametrize("seed", range(12))
def test_what_the_product_plans_is_accepted(seed: int) -> None:
    random = Random(seed)
    objects = planned(fleet(random, random.randint(9, 16), random.randint(0, 40)), seed=seed)
    result = certified(objects)
    assert result.certificate is not None
    verdict = judged(objects, certificate_document(result.certificate))
    assert verdict.accepted, verdict.violation
    assert verdict.violation is None
    assert (verdict.k, verdict.vms) == (result.certificate.k, len(result.certificate.vms))


def test_a_state_file_and_a_certificate_file_are_accepted() -> None:
    case = Case(1)
    raw = state_file(resources(case.state))
    assert verify(raw, msgspec.json.encode(case.certificate)).accepted


def test_an_empty_state_is_accepted() -> None:
    result = certified([])
    assert result.certificate is not None
    assert check((), msgspec.convert(certificate_document(result.certificate), CertifiedState)).accepted


@pytest.mark.slow
def test_a_partial_certificate_is_accepted() -> None:
    for seed in range(20):
        case = Case(seed)
        random = Random(seed).fork("break")
        for _ in range(3):
            random.choice(CONSISTENT)(case)
        objects = resources(case.state)
        made = certified(objects, partial=True).certificate
        assert made is not None
        verdict = judged(objects, certificate_document(made), failures=0)
        assert verdict.accepted, verdict.violation


def test_a_plan_by_racks_is_accepted_by_racks() -> None:
    by_rack = settings(unit="rack")
    objects = planned(fleet(Random(4), 18, 20, racks=9), by_rack)
    made = certified(objects, by_rack).certificate
    assert made is not None
    verdict = judged(objects, certificate_document(made), failures=0)
    assert verdict.accepted, verdict.violation
    assert verdict.unit == "rack"
    assert verdict.enumeration is not None
    assert verdict.enumeration.cases == 9 + 9 * 8 // 2


def test_a_plan_by_hosts_is_not_accepted_by_racks() -> None:
    objects = planned(fleet(Random(5), 12, 24, racks=3))
    made = certified(objects).certificate
    assert made is not None
    claimed = msgspec.convert({**certificate_document(made), "unit": "rack"}, CertifiedState)
    verdict = check(state_facts(objects), claimed, Wishes(failures=0))
    assert {"count", "lost"} <= set(verdict.counts)


# Tampering with the state or with the certificate

Tampering = Callable[[Case], set[str]]


def _host_of_slot(case: Case) -> set[str]:
    slot = case.slot()
    slot["status"]["host"] = other_host(case, slot["status"]["host"])
    return {"slot-host"}


def _membership(case: Case) -> set[str]:
    source = case.slot()
    target = case.random.choice([one for one in case.of("Reservation") if one is not source])
    vm = case.random.choice(sorted(members(source)))
    members(target)[vm] = members(source).pop(vm)
    return {"slot-allocations"}


def _allocation_added(case: Case) -> set[str]:
    members(case.slot())["stranger"] = case.of("Hypervisor")[0]["metadata"]["name"]
    return {"slot-allocations"}


def _allocation_removed(case: Case) -> set[str]:
    slot = case.slot()
    del members(slot)[case.random.choice(sorted(members(slot)))]
    return {"slot-allocations"}


def _record(case: Case) -> set[str]:
    slot = case.slot()
    vm = case.random.choice(sorted(members(slot)))
    members(slot)[vm] = other_host(case, members(slot)[vm])
    return {"slot-allocations"}


def _location(case: Case) -> set[str]:
    vm = case.certified_vm()
    case.move(vm["id"], other_host(case, vm["host"]))
    return {"vm-elsewhere"}


def _vm_gone(case: Case) -> set[str]:
    case.state.remove(case.named("VirtualMachine", case.certified_vm()["id"]))
    return {"vm-unknown"}


def _vm_stopped(case: Case) -> set[str]:
    vm = case.certified_vm()
    for instance in case.named("Hypervisor", vm["host"])["status"]["instances"]:
        if instance["id"] == vm["id"]:
            instance["active"] = False
    return {"vm-unknown"}


def _vm_new(case: Case) -> set[str]:
    vm = copy.deepcopy(case.named("VirtualMachine", case.certified_vm()["id"]))
    vm["metadata"] = {"name": "new"}
    case.state.append(vm)
    case.named("Hypervisor", vm["status"]["assigned"]["hypervisor"])["status"]["instances"].append({"id": "new"})
    return {"vm-omitted"}


def _vm_grown(case: Case) -> set[str]:
    case.named("VirtualMachine", case.certified_vm()["id"])["spec"]["resources"]["memory"] = "1Ti"
    return {"slot-too-small", "too-few-slots"}


def _slot_shrunk(case: Case) -> set[str]:
    case.slot()["spec"]["resources"]["memory"] = "1Gi"
    return {"slot-size"}


def _slot_unready(case: Case) -> set[str]:
    case.slot()["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    return {"slot-not-ready"}


def _slot_unlabelled(case: Case) -> set[str]:
    case.slot()["metadata"]["labels"] = {}
    return {"slot-unknown"}


def _slot_other_type(case: Case) -> set[str]:
    case.slot()["spec"]["type"] = "InFlightReservation"
    return {"slot-unknown"}


def _slot_gone(case: Case) -> set[str]:
    case.state.remove(case.slot())
    return {"slot-unknown"}


def _slot_new(case: Case) -> set[str]:
    slot = copy.deepcopy(case.slot())
    slot["metadata"]["name"] = "failover-new"
    case.state.append(slot)
    return {"slot-omitted"}


def _capacity_cut(case: Case) -> set[str]:
    case.named("Hypervisor", case.slot()["status"]["host"])["status"]["capacity"]["cpu"] = "1"
    return {"over-capacity"}


def _allocation_grown(case: Case) -> set[str]:
    case.named("Hypervisor", case.slot()["status"]["host"])["status"]["allocation"] = {"memory": "1600Gi"}
    return {"over-capacity"}


def _capacity_gone(case: Case) -> set[str]:
    del case.named("Hypervisor", case.slot()["status"]["host"])["status"]["capacity"]
    return {"capacity-unknown"}


def _host_gone(case: Case) -> set[str]:
    case.state.remove(case.random.choice(case.of("Hypervisor")))
    return {"host-unknown"}


def _host_new(case: Case) -> set[str]:
    case.state.append({"kind": "Hypervisor", "metadata": {"name": "new"}})
    return {"host-omitted"}


STATE: tuple[Tampering, ...] = (
    _host_of_slot,
    _membership,
    _allocation_added,
    _allocation_removed,
    _record,
    _location,
    _vm_gone,
    _vm_stopped,
    _vm_new,
    _vm_grown,
    _slot_shrunk,
    _slot_unready,
    _slot_unlabelled,
    _slot_other_type,
    _slot_gone,
    _slot_new,
    _capacity_cut,
    _allocation_grown,
    _capacity_gone,
    _host_gone,
    _host_new,
)


def _digest(case: Case) -> set[str]:
    case.certificate["stateDigest"] = "sha256:" + "0" * 64
    return {"digest"}


def _version(case: Case) -> set[str]:
    case.certificate["version"] = 2
    return {"version"}


def _k(case: Case) -> set[str]:
    case.certificate["k"] = case.random.choice((0, case.certificate["k"] + 1))
    return {"k"}


def _certified_host(case: Case) -> set[str]:
    case.certificate["hosts"][0] = "elsewhere"
    return {"host-unknown", "host-omitted"}


def _certified_host_twice(case: Case) -> set[str]:
    case.certificate["hosts"].append(case.certificate["hosts"][0])
    return {"host-repeated"}


def _certified_place(case: Case) -> set[str]:
    vm = case.certified_vm()
    vm["host"] = other_host(case, vm["host"])
    return {"vm-elsewhere"}


def _certified_vm_gone(case: Case) -> set[str]:
    case.certificate["vms"].remove(case.random.choice(case.certificate["vms"]))
    return {"vm-omitted"}


def _certified_vm_twice(case: Case) -> set[str]:
    case.certificate["vms"].append(case.certified_vm())
    return {"vm-repeated"}


def _certified_vm_new(case: Case) -> set[str]:
    case.certificate["vms"].append({"id": "new", "host": case.certificate["hosts"][0], "need": 0, "slots": []})
    return {"vm-unknown"}


def _need_raised(case: Case) -> set[str]:
    vm = case.certified_vm()
    vm["need"] = len(vm["slots"]) + 1
    return {"too-few-slots"}


def _need_of_nobody(case: Case) -> set[str]:
    without = [vm for vm in case.certificate["vms"] if not vm["slots"]]
    if not without:
        return _need_raised(case)
    case.random.choice(without)["need"] = 1
    return {"too-few-slots"}


def _own_slot_dropped(case: Case) -> set[str]:
    case.certified_vm()["slots"].pop()
    return {"slot-unlisted"}


def _own_slot_swapped(case: Case) -> set[str]:
    vm = case.certified_vm()
    strangers = [line["name"] for line in case.certificate["slots"] if vm["id"] not in line["allocations"]]
    vm["slots"][0] = case.random.choice(strangers)
    return {"not-a-member"}


def _own_slot_invented(case: Case) -> set[str]:
    case.certified_vm()["slots"][0] = "invented"
    return {"slot-not-certified"}


def _own_slot_twice(case: Case) -> set[str]:
    vm = case.certified_vm()
    vm["slots"].append(vm["slots"][0])
    return {"listed-twice"}


def _line_gone(case: Case) -> set[str]:
    case.certificate["slots"].remove(case.line())
    return {"slot-omitted"}


def _line_twice(case: Case) -> set[str]:
    case.certificate["slots"].append(case.line())
    return {"slot-repeated"}


def _line_invented(case: Case) -> set[str]:
    case.certificate["slots"].append({**case.line(), "name": "invented"})
    return {"slot-unknown"}


def _line_host(case: Case) -> set[str]:
    line = case.line()
    line["host"] = other_host(case, line["host"])
    return {"slot-host"}


def _line_size(case: Case) -> set[str]:
    case.line()[case.random.choice(("cpuMilli", "memoryBytes"))] += case.random.choice((-1, 1))
    return {"slot-size"}


def _line_allocation(case: Case) -> set[str]:
    allocations = case.line()["allocations"]
    vm = case.random.choice(sorted(allocations))
    case.random.choice(
        (lambda: allocations.pop(vm), lambda: allocations.update({vm: "x"}), lambda: allocations.update(x="h00"))
    )()
    return {"slot-allocations"}


CERTIFICATE: tuple[Tampering, ...] = (
    _digest,
    _version,
    _k,
    _certified_host,
    _certified_host_twice,
    _certified_place,
    _certified_vm_gone,
    _certified_vm_twice,
    _certified_vm_new,
    _need_raised,
    _need_of_nobody,
    _own_slot_dropped,
    _own_slot_swapped,
    _own_slot_invented,
    _own_slot_twice,
    _line_gone,
    _line_twice,
    _line_invented,
    _line_host,
    _line_size,
    _line_allocation,
)


def other_host(case: Case, host: str) -> str:
    return case.random.choice(
        [one["metadata"]["name"] for one in case.of("Hypervisor") if one["metadata"]["name"] != host]
    )


ROUNDS = 8


@pytest.mark.parametrize("tamper", STATE, ids=lambda tamper: tamper.__name__.strip("_"))
def test_a_state_that_was_tampered_with_is_noticed(tamper: Tampering) -> None:
    for seed in range(ROUNDS):
        case = Case(seed)
        fitting = tamper(case)
        found = case.codes()
        assert "digest" in found, seed
        assert fitting & found, (seed, found)
        case.redigest()
        verdict = case.verdict()
        assert not verdict.accepted, seed
        assert fitting <= set(verdict.counts) or len(fitting) > 1, (seed, verdict.counts)
        assert verdict.violation is not None
        assert verdict.violation.code != "digest"


@pytest.mark.parametrize("tamper", CERTIFICATE, ids=lambda tamper: tamper.__name__.strip("_"))
def test_a_certificate_that_was_tampered_with_is_noticed(tamper: Tampering) -> None:
    for seed in range(ROUNDS):
        case = Case(seed)
        fitting = tamper(case)
        assert fitting <= case.codes(), (seed, case.verdict())


def test_a_need_that_was_lowered_is_noticed_when_it_is_asked_for() -> None:
    for seed in range(ROUNDS):
        case = Case(seed)
        asked = {"f*": 2, "one*": 1}
        assert case.codes(require=asked) == set()
        case.certified_vm()["need"] -= 1
        assert case.codes(require=asked) - {"k"} == {"need-below-required"}


def test_any_other_fact_that_changed_is_another_state() -> None:
    case = Case(2)
    case.of("VirtualMachine")[0]["spec"]["displayName"] = "renamed"
    assert case.codes() == {"digest"}


# Tampering with both, so that only the rules can notice


def _move_membership(case: Case) -> None:
    _membership(case)


def _share_another(case: Case) -> None:
    slot, vm = case.slot(), case.certified_vm()
    members(slot)[vm["id"]] = vm["host"]


def _move_slot(case: Case) -> None:
    _host_of_slot(case)


def _move_vm_with_records(case: Case) -> None:
    vm = case.certified_vm()
    to = other_host(case, vm["host"])
    case.move(vm["id"], to)
    for slot in case.of("Reservation"):
        if vm["id"] in members(slot):
            members(slot)[vm["id"]] = to


def _leave(case: Case) -> None:
    _allocation_removed(case)


def _stale_member(case: Case) -> None:
    members(case.slot())[f"gone{case.random.randint(0, 2)}"] = other_host(case, "")


def _second_condition(case: Case) -> None:
    case.slot()["status"]["conditions"] = [
        {"type": "Ready", "status": case.random.choice(("True", "False", "Unknown"))}
    ]


def _no_condition(case: Case) -> None:
    case.slot()["status"].pop("conditions", None)


def _coming_up(case: Case) -> None:
    """Its host has booted, and has not started it again."""
    vm = case.named("VirtualMachine", case.certified_vm()["id"])
    vm["status"]["phase"] = "start"
    status = case.named("Hypervisor", vm["status"]["assigned"]["hypervisor"])["status"]
    status["instances"] = [one for one in status["instances"] if one["id"] != vm["metadata"]["name"]]


def _limit(case: Case) -> None:
    hosts = [one["metadata"]["name"] for one in case.of("Hypervisor")]
    vm = case.named("VirtualMachine", case.certified_vm()["id"])
    vm["spec"]["hostLimit"] = case.random.sample(hosts, case.random.randint(1, len(hosts)))


def _size(case: Case) -> None:
    case.slot()["spec"]["resources"]["memory"] = f"{4 * case.random.choice((1, 2, 4))}Gi"


def _room(case: Case) -> None:
    host = case.named("Hypervisor", other_host(case, ""))
    host["status"]["capacity"]["memory"] = case.random.choice(("16Gi", "40Gi", "1600Gi"))


def _wanted_elsewhere(case: Case) -> None:
    case.slot()["spec"]["targetHost"] = other_host(case, "")


CONSISTENT: tuple[Callable[[Case], object], ...] = (
    _move_membership,
    _share_another,
    _move_slot,
    _move_vm_with_records,
    _leave,
    _stale_member,
    _second_condition,
    _no_condition,
    _coming_up,
    _limit,
    _size,
    _room,
    _wanted_elsewhere,
    _vm_stopped,
    _location,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(240))
def test_a_forged_certificate_is_accepted_exactly_if_the_maker_would_have_made_it(seed: int) -> None:
    case = Case(seed % 24)
    case.random = Random(seed)
    for _ in range(case.random.randint(1, 3)):
        case.random.choice(CONSISTENT)(case)
    case.forge()
    verdict = case.verdict()
    made = certified(resources(case.state))
    assert verdict.accepted == (made.certificate is not None), (verdict.counts, made.uncertified)
    rules = {"count", "too-few-slots", "over-capacity", "capacity-unknown", "slot-not-ready"}
    assert set(verdict.counts) <= rules


@pytest.mark.slow
def test_a_move_to_another_valid_slot_is_another_plan() -> None:
    moved = 0
    for seed in range(60):
        case = Case(seed % 12)
        case.random = Random(seed)
        _move_membership(case)
        assert "digest" in case.codes()
        case.forge()
        moved += case.verdict().accepted
    assert moved > 0


# Theorem and enumeration


@pytest.mark.slow
def test_enumeration_agrees_with_the_theorem_and_with_tolerance_in_any_state() -> None:
    lost = 0
    for seed in range(120):
        case = Case(seed % 12)
        case.random = Random(seed)
        for _ in range(case.random.randint(0, 4)):
            case.random.choice(CONSISTENT)(case)
        case.forge()
        heard: list[Landing] = []
        objects, certificate = resources(case.state), msgspec.convert(case.certificate, CertifiedState)
        verdict = check(state_facts(objects), certificate, Wishes(failures=0), tell=heard.append)
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
    merged = on_hypervisors(listing.vms, hosts, trust_hosts=False)
    slots = [slot_view(one) for one in objects if isinstance(one, Reservation) and is_slot(one)]
    return tolerance(ToleranceInput(vms=merged.vms, required=need, slots=tuple(slots))).vms


def test_counters_on_bits_are_the_formula_to_the_letter() -> None:
    for seed in range(40):
        case = Case(seed % 8)
        case.random = Random(seed)
        for _ in range(4):
            case.random.choice(CONSISTENT)(case)
        inside = Memberships(StateFleet(case.facts()))
        counters = Counters(inside, {})
        literal = [vm for vm in inside.vms if max(counters.count(vm).values()) > 1]
        assert counters.at_fault(inside.vms) == literal


def test_a_landing_names_the_slot_that_stands_and_that_nobody_else_comes_to() -> None:
    case = Case(7)
    heard: list[Landing] = []
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
    monkeypatch.setattr(cases, "CASES_LIMIT", 50)
    with pytest.raises(LimitExceeded, match="enumerate fewer failures"):
        Case(1).verdict(failures=2)
    assert Case(1).verdict(failures=1).accepted


# Where a VM is


def test_without_trust_a_vm_is_where_it_is_assigned_and_reported() -> None:
    case = Case(3)
    vm = case.certified_vm()
    case.named("VirtualMachine", vm["id"])["status"]["assigned"]["hypervisor"] = other_host(case, vm["host"])
    assert case.codes() >= {"vm-unknown"}


def test_the_settings_that_the_state_carries_say_whom_to_trust() -> None:
    for trusting, place in ((True, "h00"), (False, "h05")):
        state = [
            {
                "kind": "Cluster",
                "metadata": {
                    "name": "default",
                    "annotations": {
                        "outlive.dev/settings": msgspec.json.encode(
                            {"failover": {"trustHypervisorLocation": trusting}}
                        ).decode()
                    },
                },
            },
            {"kind": "Hypervisor", "metadata": {"name": "h05"}, "status": {"instances": [{"id": "v"}]}},
            {"kind": "Hypervisor", "metadata": {"name": "h00"}, "status": {"instances": [{"id": "v"}]}},
            {"kind": "VirtualMachine", "metadata": {"name": "v"}, "status": {"assigned": {"hypervisor": "h05"}}},
        ]
        assert StateFleet(state_facts(resources(state))).places == {"v": place}


@pytest.mark.parametrize("trusting", [True, False])
def test_vms_are_located_as_the_product_does(trusting: bool) -> None:
    for seed in range(30):
        random = Random(seed)
        plain = documents(fleet(random, 6, 20))
        hosts = [one for one in plain if one["kind"] == "Hypervisor"]
        for _ in range(8):
            random.choice(hosts)["status"].setdefault("instances", []).append({"id": f"v{random.randint(0, 25):03}"})
        random.choice(hosts)["status"]["instances"] = []
        for vm in (one for one in plain if one["kind"] == "VirtualMachine"):
            vm["status"]["phase"] = random.choice(("ACTIVE", "start", "restart", "migrate", "stop", "fail", ""))
            vm["spec"]["powerState"] = random.choice(("running", "running", "stopped"))
        kept = msgspec.json.encode({"failover": {"trustHypervisorLocation": trusting}}).decode()
        cluster = {"kind": "Cluster", "metadata": {"name": "default", "annotations": {"outlive.dev/settings": kept}}}
        objects = resources([cluster, *plain])
        views = [host_view(one) for one in objects if isinstance(one, Hypervisor)]
        listing = list_resources(one for one in objects if isinstance(one, VirtualMachine))
        merged = on_hypervisors(listing.vms, views, trust_hosts=trusting)
        assert StateFleet(state_facts(objects)).places == {vm.id: vm.host for vm in merged.vms}


# Files that cannot be read


@pytest.mark.parametrize(
    ("raw", "place", "words"),
    [
        (b"", "c.json:1", "not JSON"),
        (b'{"version": 1,\n"k": ', "c.json:2", "not JSON"),
        (b"[]", "c.json", "not a certificate"),
        (b'{"version": 1}', "c.json", "stateDigest"),
        (
            b'{"version":1,"stateDigest":"","k":0,"hosts":[],"slots":[],'
            b'"vms":[{"id":"v","host":"h","need":-1,"slots":[]}]}',
            "c.json",
            r"vms\[0\].need",
        ),
    ],
)
def test_a_file_that_is_no_certificate_is_refused_with_its_place(raw: bytes, place: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        read_certificate(raw, "c.json")
    assert caught.value.place == place
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        (b'"k":2', b'"k":1,"k":2'),
        (b'"need":2', b'"need":1,"need":2'),
        (b'"v":"h"', b'"v":"g","v":"h"'),
        (b'"k":2', b'"k":18446744073709551616,"k":99999999999999999999'),
    ],
)
def test_a_member_that_is_there_twice_is_refused(once: bytes, twice: bytes) -> None:
    """Another reader might believe the first one, and read another claim."""
    raw = (
        b'{"version":1,"stateDigest":"","k":2,"hosts":["g","h"],"vms":[{"id":"v","host":"h","need":2,"slots":[]}],'
        b'"slots":[{"name":"r","host":"g","cpuMilli":1,"memoryBytes":1,"allocations":{"v":"h"}}]}'
    )
    assert read_certificate(raw) == read_certificate(msgspec.json.format(raw, indent=3))
    with pytest.raises(BadInput, match="is there twice"):
        read_certificate(raw.replace(once, twice))


@pytest.mark.parametrize("unit", ["power", ""])
def test_a_domain_that_no_host_is_in_certifies_nothing(unit: str) -> None:
    """Else single hosts would pass for power feeds."""
    case = Case(1)
    case.certificate["unit"] = unit
    assert case.codes() == {"unit"}


def test_amounts_beyond_64_bits_are_survived() -> None:
    case = Case(1)
    vm = case.certified_vm()
    case.named("VirtualMachine", vm["id"])["spec"]["resources"]["cpu"] = str(2**63 - 1)
    case.redigest()
    assert {"slot-too-small", "too-few-slots"} <= case.codes()


# As a decision


def test_the_check_is_a_decision_on_plain_json() -> None:
    table = DecisionTable(DECISIONS)
    case = Case(1)

    def decide(**more: Any) -> Doc:
        given = {"objects": case.state, "certificate": case.certificate, **more}
        answer: Doc = msgspec.json.decode(table.decide_json("failover.verify", msgspec.json.encode(given)))
        return answer

    assert decide(wishes={"failures": 1})["enumeration"]["lost"] == 0
    _slot_shrunk(case)
    verdict = decide()
    assert (verdict["accepted"], verdict["violation"]["code"]) == (False, "digest")
    assert verdict["counts"]["slot-size"] == 1
    case.state.append({"kind": "Nothing"})
    assert decide() == {"error": "bad-input"}


# After a failure


def consumed(case: Case) -> Doc:
    """A slot that counts for somebody gets a consumer, one of its members."""
    slot = case.named("Reservation", case.certified_vm()["slots"][0])
    slot["status"]["consumer"] = {"vm": sorted(members(slot))[0], "fence": "f"}
    return slot


@pytest.mark.parametrize("seed", range(4))
def test_a_certificate_that_counts_a_consumed_slot_is_refused(seed: int) -> None:
    case = Case(seed)
    consumed(case)
    case.redigest()
    assert case.codes() & {"not-certified", "slot-not-ready", "not-a-member", "count"}


@pytest.mark.parametrize("seed", range(4))
def test_a_new_certificate_leaves_a_consumed_slot_out_and_is_accepted(seed: int) -> None:
    case = Case(seed)
    slot = consumed(case)
    objects = resources(case.state)
    made = certified(objects, partial=True).certificate
    assert made is not None
    assert slot["metadata"]["name"] not in {one.name for one in made.slots}
    verdict = judged(objects, certificate_document(made), failures=0)
    assert verdict.accepted, verdict.violation


@pytest.mark.parametrize("seed", range(4))
def test_slots_on_a_lost_host_are_no_promise_to_either_side(seed: int) -> None:
    case = Case(seed)
    slot = case.named("Reservation", case.certified_vm()["slots"][0])
    case.named("Hypervisor", slot["status"]["host"])["status"]["lost"] = "f"
    case.redigest()
    assert not case.verdict().accepted
    objects = resources(case.state)
    made = certified(objects, partial=True).certificate
    assert made is not None
    verdict = judged(objects, certificate_document(made), failures=0)
    assert verdict.accepted, verdict.violation


@pytest.mark.parametrize("seed", range(4))
def test_a_vm_in_recovery_is_where_it_was_lost_for_both_sides(seed: int) -> None:
    case = Case(seed)
    vm = case.named("VirtualMachine", case.certified_vm()["id"])
    origin = vm["status"]["assigned"]["hypervisor"]
    slot = case.named(
        "Reservation", next(one["slots"][0] for one in case.certificate["vms"] if one["id"] == vm["metadata"]["name"])
    )
    case.named("Hypervisor", origin)["status"]["lost"] = "f"
    vm["status"]["assigned"]["hypervisor"] = slot["status"]["host"]
    vm["status"]["recovery"] = {"fence": "f", "phase": "assigned", "origin": origin}
    slot["status"]["consumer"] = {"vm": vm["metadata"]["name"], "fence": "f"}
    objects = resources(case.state)
    made = certified(objects, partial=True).certificate
    assert made is not None
    assert {one.host for one in made.vms if one.id == vm["metadata"]["name"]} == {origin}
    verdict = judged(objects, certificate_document(made), failures=0)
    assert verdict.accepted, verdict.violation
