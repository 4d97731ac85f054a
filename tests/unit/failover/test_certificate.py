"""Certificates: what is claimed of a state, what is not, and in which form."""

from __future__ import annotations

import json

import msgspec
from tests.support.certified import certified, documents, fleet, planned, resources, settings

from outlive.base import Random
from outlive.failover import (
    Certificate,
    CertifyInput,
    CertifyResult,
    LackReason,
    SlotView,
    Topology,
    certify,
    encode_certificate,
)
from outlive.placement import VmView
from outlive.resources import CoveredBy


def vm(name: str, host: str, cpu: int = 1000) -> VmView:
    return VmView(id=name, host=host, cpu_milli=cpu, memory_bytes=2**30)


def slot(name: str, host: str, members: dict[str, str], cpu: int = 1000, ready: bool | None = True) -> SlotView:
    return SlotView(name=name, host=host, members=members, cpu_milli=cpu, memory_bytes=2**30, ready=ready)


VMS = (vm("p", "h1"), vm("q", "h2"))
SLOTS = (slot("a", "h3", {"p": "h1", "q": "h2"}), slot("b", "h4", {"p": "h1"}), slot("c", "h5", {"q": "h2"}))


def made(**given: object) -> CertifyResult:
    base = {
        "state_digest": "sha256:x",
        "hosts": ("h5", "h1", "h2", "h3", "h4"),
        "vms": VMS,
        "required": {"p": 2, "q": 2},
        "slots": SLOTS,
    }
    return certify(CertifyInput(**{**base, **given}))  # type: ignore[arg-type]


def lacks(result: CertifyResult) -> list[tuple[str, int, LackReason]]:
    assert result.certificate is None
    return [(one.vm, one.certified, one.reason) for one in result.uncertified]


def sure(result: CertifyResult) -> Certificate:
    assert result.certificate is not None, result.uncertified
    return result.certificate


def test_the_form_is_the_pinned_one() -> None:
    document = json.loads(encode_certificate(sure(made())))
    assert list(document) == ["version", "stateDigest", "k", "hosts", "vms", "slots"]
    assert (document["version"], document["stateDigest"], document["k"]) == (1, "sha256:x", 2)
    assert document["hosts"] == ["h1", "h2", "h3", "h4", "h5"]
    assert document["vms"][0] == {"id": "p", "host": "h1", "need": 2, "slots": ["a", "b"]}
    assert document["slots"][0] == {
        "name": "a",
        "host": "h3",
        "cpuMilli": 1000,
        "memoryBytes": 2**30,
        "allocations": {"p": "h1", "q": "h2"},
    }


def test_each_certified_vm_says_by_what_it_is_covered_and_one_of_which_nothing_is_claimed_does_not() -> None:
    by = {"h1": CoveredBy.RECOVERABLE, "h2": CoveredBy.RESERVED}
    lines = {one.id: one.by for one in sure(made(covered_by=by, required={"p": 2})).vms}
    assert lines == {"p": CoveredBy.RECOVERABLE, "q": None}


def test_each_vm_and_each_slot_has_a_line_of_its_own() -> None:
    raw = encode_certificate(sure(made()))
    assert len(raw.splitlines()) == 3 + len(VMS) + 2 + len(SLOTS)
    assert msgspec.json.decode(encode_certificate(sure(made(vms=(), slots=(), required={}))))["vms"] == []


def test_equal_states_have_equal_certificates() -> None:
    assert encode_certificate(sure(made())) == encode_certificate(sure(made(vms=VMS[::-1], slots=SLOTS[::-1])))


def test_vms_that_need_nothing_are_listed_as_well() -> None:
    lines = sure(made(required={"q": 2})).vms
    assert [(line.id, line.need, line.slots) for line in lines] == [("p", 0, ("a", "b")), ("q", 2, ("a", "c"))]


def test_k_is_the_largest_need_unless_less_is_asked_for() -> None:
    assert sure(made(required={"p": 1, "q": 2})).k == 2
    assert sure(made(k=1)).k == 1
    assert sure(made(k=9)).k == 2
    assert sure(made(required={})).k == 0


def test_a_vm_with_too_few_slots_is_named_and_nothing_is_certified() -> None:
    assert lacks(made(required={"p": 2, "q": 3})) == [("q", 2, LackReason.TOO_FEW)]


def test_slots_that_do_not_count_are_told_with_the_reason() -> None:
    assert lacks(made(slots=(*SLOTS[1:], slot("a", "h3", SLOTS[0].members, ready=False)))) == [
        ("p", 1, LackReason.NOT_READY),
        ("q", 1, LackReason.NOT_READY),
    ]
    assert lacks(made(vms=(VMS[0], vm("q", "h2", cpu=2000))))[0] == ("q", 0, LackReason.TOO_SMALL)
    assert lacks(made(vms=(VMS[0], vm("q", "h1")))) == [("p", 0, LackReason.CLASH), ("q", 0, LackReason.CLASH)]
    assert lacks(made(vms=(vm("p", "h6"), VMS[1]))) == [("p", 0, LackReason.ELSEWHERE)]
    assert lacks(made(without_room={"h4": "is full"})) == [("p", 1, LackReason.NO_ROOM)]


def test_a_slot_without_a_condition_counts() -> None:
    assert sure(made(slots=(*SLOTS[1:], slot("a", "h3", SLOTS[0].members, ready=None)))).k == 2


def test_a_partial_certificate_claims_what_holds() -> None:
    result = made(required={"p": 2, "q": 3}, partial=True)
    assert [(line.id, line.need) for line in sure(result).vms] == [("p", 2), ("q", 2)]
    assert [(one.vm, one.required, one.certified) for one in result.uncertified] == [("q", 3, 2)]


def test_nothing_is_claimed_for_a_vm_whose_rules_are_broken() -> None:
    clash = (*SLOTS, slot("d", "h1", {"q": "h2"}), slot("e", "h2", {"q": "h2"}))
    result = made(slots=clash, partial=True)
    assert [(line.id, line.need) for line in sure(result).vms] == [("p", 2), ("q", 0)]


def test_unready_slots_are_left_out_but_still_clash() -> None:
    shared = slot("d", "h6", {"p": "h1", "q": "h2"}, ready=False)
    result = made(slots=(*SLOTS, shared), partial=True)
    assert [line.name for line in sure(result).slots] == ["a", "b", "c"]
    assert {one.reason for one in result.uncertified} == {LackReason.CLASH}


def test_units_of_failure_are_named_and_judged() -> None:
    apart = Topology(units={f"h{number}": f"rack=r{number}" for number in range(1, 6)})
    assert json.loads(encode_certificate(sure(made(unit="rack", topology=apart))))["unit"] == "rack"
    together = Topology(units={"h3": "rack=r", "h4": "rack=r"})
    assert lacks(made(unit="rack", topology=together)) == [("p", 0, LackReason.CLASH)]


def test_a_host_without_room_certifies_nobody() -> None:
    objects = planned(fleet(Random(3), 10, 30))
    assert sure(certified(objects)).k == 2
    plain = documents(objects)
    held = next(one["status"]["host"] for one in plain if one["kind"] == "Reservation")
    host = next(one for one in plain if one["kind"] == "Hypervisor" and one["metadata"]["name"] == held)
    host["status"]["capacity"]["cpu"] = "1"
    assert {one.reason for one in certified(resources(plain)).uncertified} == {LackReason.NO_ROOM}
    del host["status"]["capacity"]
    assert {one.reason for one in certified(resources(plain)).uncertified} == {LackReason.NO_ROOM}


def test_a_plan_by_racks_is_certified_by_racks() -> None:
    by_rack = settings(unit="rack")
    objects = planned(fleet(Random(4), 18, 20, racks=9), by_rack)
    certificate = sure(certified(objects, by_rack))
    assert (certificate.unit, certificate.k) == ("rack", 2)
