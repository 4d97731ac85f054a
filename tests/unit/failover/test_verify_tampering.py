"""The checker of certificates notices whatever was tampered with in the state or in the certificate."""

from __future__ import annotations

import copy

import pytest
from tests.support.tampered import (
    Case,
    Tampering,
    allocation_removed,
    host_of_slot,
    location,
    members,
    membership,
    other_host,
    slot_shrunk,
    vm_stopped,
)


def _allocation_added(case: Case) -> set[str]:
    members(case.slot())["stranger"] = case.of("Hypervisor")[0]["metadata"]["name"]
    return {"slot-allocations"}


def _record(case: Case) -> set[str]:
    slot = case.slot()
    vm = case.random.choice(sorted(members(slot)))
    members(slot)[vm] = other_host(case, members(slot)[vm])
    return {"slot-allocations"}


def _vm_gone(case: Case) -> set[str]:
    case.state.remove(case.named("VirtualMachine", case.certified_vm()["id"]))
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


def _vm_limited(case: Case) -> set[str]:
    vm = case.certified_vm()
    case.named("VirtualMachine", vm["id"])["spec"]["hostLimit"] = [vm["host"]]
    return {"host-not-allowed", "too-few-slots"}


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
    host_of_slot,
    membership,
    _allocation_added,
    allocation_removed,
    _record,
    location,
    _vm_gone,
    vm_stopped,
    _vm_new,
    _vm_grown,
    _vm_limited,
    slot_shrunk,
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


def _ground_claimed(case: Case) -> set[str]:
    """The hosts of these states are another system's, which Outlive neither fences nor restarts VMs of."""
    case.certified_vm()["by"] = case.random.choice(("recoverable", "unproven"))
    return {"covered-by"}


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
    _ground_claimed,
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


ROUNDS = 8


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("tamper", CERTIFICATE, ids=lambda tamper: tamper.__name__.strip("_"))
def test_a_certificate_that_was_tampered_with_is_noticed(tamper: Tampering) -> None:
    for seed in range(ROUNDS):
        case = Case(seed)
        fitting = tamper(case)
        assert fitting <= case.codes(), (seed, case.verdict())


@pytest.mark.slow
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
