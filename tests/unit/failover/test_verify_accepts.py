"""The checker of certificates accepts what the product plans, also after a failure."""

from __future__ import annotations

from json import dumps

import msgspec
import pytest
from tests.support.certified import (
    NEEDS,
    certificate_document,
    certified,
    fleet,
    planned,
    resources,
    settings,
    state_file,
)
from tests.support.tampered import CONSISTENT, Case, Doc, judged, members

from outlive.base import Random
from outlive.failover import Certificate
from outlive.failover.verify import CertifiedState, VerifyOptions, verify
from outlive.failover.verify.check import check
from outlive.resources import (
    Assigned,
    Cluster,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Resource,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    state_digest,
    state_facts,
)


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
def test_a_partial_certificate_is_accepted_where_it_is_allowed_and_says_who_is_short() -> None:
    for seed in range(20):
        case = Case(seed)
        random = Random(seed).fork("break")
        for _ in range(3):
            random.choice(CONSISTENT)(case)
        objects = resources(case.state)
        made = certified(objects, partial=True).certificate
        assert made is not None
        document = certificate_document(made)
        verdict = judged(objects, document, failures=0, allow_partial=True)
        assert verdict.accepted, verdict.violation
        short = [vm["id"] for vm in document["vms"] if "required" in vm]
        strict = judged(objects, document)
        assert strict.accepted == (not short)
        assert set(strict.counts) == ({"partial"} if short else set())
        assert [one.vm for one in strict.shortfall.vms] == short if strict.shortfall else not short


def without_a_slot(seed: int) -> tuple[list[Resource], Doc]:
    """A state in which one slot is gone, and the partial certificate of it."""
    case = Case(seed)
    case.state.remove(case.slot())
    objects = resources(case.state)
    made = certified(objects, partial=True).certificate
    assert made is not None
    return objects, certificate_document(made)


@pytest.mark.parametrize("seed", range(4))
def test_a_partial_certificate_is_refused_unless_it_is_allowed(seed: int) -> None:
    objects, document = without_a_slot(seed)
    short = [vm["id"] for vm in document["vms"] if "required" in vm]
    assert short
    verdict = judged(objects, document)
    assert not verdict.accepted
    assert set(verdict.counts) == {"partial"}
    assert verdict.violation is not None
    assert verdict.shortfall
    assert f"{len(short)} of {verdict.shortfall.required} VMs" in verdict.violation.message
    assert [one.vm for one in verdict.shortfall.vms] == short
    allowed = judged(objects, document, allow_partial=True)
    assert allowed.accepted
    assert allowed.shortfall == verdict.shortfall


def test_the_settings_of_the_state_say_what_a_partial_certificate_leaves_unsaid() -> None:
    kept = {"failover": {"flavorFailoverRequirements": NEEDS}}
    objects, _ = without_a_slot(1)
    objects.append(Cluster(metadata=ObjectMeta(name="default", annotations={"outlive.dev/settings": dumps(kept)})))
    made = certified(objects, partial=True).certificate
    assert made is not None
    document = certificate_document(made)
    short = {vm["id"] for vm in document["vms"] if vm.pop("required", 0)}
    verdict = judged(objects, document)
    assert set(verdict.counts) == {"partial"}
    assert verdict.shortfall
    assert {one.vm for one in verdict.shortfall.vms} == short


@pytest.mark.parametrize(
    ("vm", "required"),
    [
        ({"flavor": "f1"}, 2),
        ({"flavor": "x"}, 0),
        ({"flavor": "f1", "protection": "high"}, 3),
        ({"flavor": "f1", "protection": "no-such"}, 2),
        ({"flavor": "f1", "project": "p-7"}, 1),
        ({"flavor": "both"}, 3),
    ],
)
def test_levels_of_the_state_decide_what_is_needed(vm: dict[str, str], required: int) -> None:
    levels = {"high": {"slots": 3, "priority": 9}, "low": {"slots": 1}, "plain": {"slots": None}}
    flavors = {"b*": "low", "bo*": "high"}
    protection = {"levels": levels, "projects": {"p-*": "low"}, "flavors": flavors, "default": "plain"}
    kept = {"failover": {"flavorFailoverRequirements": NEEDS}, "protection": protection}
    objects: list[Resource] = [
        Cluster(metadata=ObjectMeta(name="default", annotations={"outlive.dev/settings": dumps(kept)})),
        Hypervisor(metadata=ObjectMeta(name="h"), status=HypervisorStatus(instances=(Instance(id="v"),))),
        VirtualMachine(
            metadata=ObjectMeta(name="v"),
            spec=VirtualMachineSpec(**vm),  # type: ignore[arg-type]
            status=VirtualMachineStatus(assigned=Assigned(hypervisor="h")),
        ),
    ]
    document = {
        "version": 1,
        "stateDigest": state_digest(objects),
        "k": 3,
        "hosts": ["h"],
        "vms": [{"id": "v", "host": "h", "need": 0, "slots": []}],
        "slots": [],
    }
    found = judged(objects, document).shortfall
    assert [one.required for one in (found.vms if found else ())] == ([required] if required else [])


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
    verdict = check(state_facts(objects), claimed, VerifyOptions(failures=0))
    assert {"count", "lost"} <= set(verdict.counts)


# After a failure


def agreed(case: Case) -> Certificate:
    """What the maker still certifies of the state, which the checker accepts."""
    objects = resources(case.state)
    made = certified(objects, partial=True).certificate
    assert made is not None
    verdict = judged(objects, certificate_document(made), failures=0, allow_partial=True)
    assert verdict.accepted, verdict.violation
    return made


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
    made = agreed(case)
    assert slot["metadata"]["name"] not in {one.name for one in made.slots}


UNUSABLE: dict[str, Doc] = {
    "lost": {"status": {"lost": "f"}},
    "not ready": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "ready unknown": {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
    "disabled": {"status": {"conditions": [{"type": "HypervisorDisabled", "status": "True"}]}},
    "terminating": {"status": {"conditions": [{"type": "Terminating", "status": "True"}]}},
    "being emptied": {"status": {"domainState": "flush"}},
    "to be emptied": {"spec": {"drain": True}},
}


@pytest.mark.parametrize("how", UNUSABLE)
def test_slots_on_a_host_that_takes_nobody_are_no_promise_to_either_side(how: str) -> None:
    case = Case(len(how) % 4)
    slot = case.named("Reservation", case.certified_vm()["slots"][0])
    host = case.named("Hypervisor", slot["status"]["host"])
    for part, change in UNUSABLE[how].items():
        host.setdefault(part, {}).update(change)
    case.redigest()
    assert not case.verdict().accepted
    agreed(case)


@pytest.mark.parametrize("seed", range(4))
def test_slots_on_a_host_that_holds_more_than_it_has_are_named_and_promise_nothing(seed: int) -> None:
    case = Case(seed)
    slot = case.named("Reservation", case.certified_vm()["slots"][0])
    host = case.named("Hypervisor", slot["status"]["host"])
    host["status"]["capacity"] = {**host["status"]["allocation"]}
    made = agreed(case)
    name = slot["metadata"]["name"]
    assert name in {one.name for one in made.slots}
    assert all(name not in vm.slots for vm in made.vms)


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
    made = agreed(case)
    assert {one.host for one in made.vms if one.id == vm["metadata"]["name"]} == {origin}


@pytest.mark.parametrize("seed", range(4))
def test_a_vm_that_came_to_its_target_before_its_source_was_lost_is_there_for_both_sides(seed: int) -> None:
    case = Case(seed)
    vm = case.named("VirtualMachine", case.certified_vm()["id"])
    target = vm["status"]["assigned"]["hypervisor"]
    vm["status"]["holders"] = [
        {"hypervisor": "gone", "memberUid": "u", "epoch": 1, "runId": "r1", "seen": "running"},
        {"hypervisor": target, "memberUid": "u", "epoch": 1, "runId": "r2", "seen": "running"},
    ]
    vm["status"]["recovery"] = {"fence": "f", "phase": "held", "origin": "gone"}
    made = agreed(case)
    assert {one.host for one in made.vms if one.id == vm["metadata"]["name"]} == {target}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case_of", ["nobody holds it", "its host holds it", "the other is lost", "the other holds it"])
def test_a_vm_that_is_due_is_where_it_is_to_run_for_both_sides_though_another_host_had_listed_it(
    seed: int, case_of: str
) -> None:
    case = Case(seed)
    vm = case.named("VirtualMachine", case.certified_vm()["id"])
    name, own = vm["metadata"]["name"], vm["status"]["assigned"]["hypervisor"]
    other = next(one.name for one in resources(case.state) if isinstance(one, Hypervisor) and one.name != own)
    here, there = case.named("Hypervisor", own)["status"], case.named("Hypervisor", other)["status"]
    there["instances"] = [*there.get("instances", []), *(one for one in here["instances"] if one["id"] == name)]
    here["instances"] = [one for one in here["instances"] if one["id"] != name]
    vm["spec"]["powerState"], vm["status"]["phase"] = "running", "start"
    holders = {"its host holds it": [own], "the other holds it": [own, other]}.get(case_of, [])
    vm["status"]["holders"] = [
        {"hypervisor": one, "memberUid": "u", "epoch": 1, "runId": f"r-{one}"} for one in holders
    ]
    if case_of == "the other is lost":
        there["lost"] = "f"
    made = agreed(case)
    assert {one.host for one in made.vms if one.id == name} <= {own}
