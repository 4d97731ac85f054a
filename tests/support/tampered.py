"""A planned state and its certificate as plain JSON, and what may be done to them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from outlive.base import Random
from outlive.failover.verify import (
    CaseLanding,
    CertificateVerdict,
    CertifiedState,
    Memberships,
    StateFleet,
    VerifyOptions,
)
from outlive.failover.verify.check import check
from outlive.resources import Facts, Resource, state_digest, state_facts
from tests.support.certified import certificate_document, certified, documents, fleet, planned, resources

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
        counting = Memberships(seen, {}).counting_slots()
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

    def verdict(self, **options: Any) -> CertificateVerdict:
        return check(self.facts(), msgspec.convert(self.certificate, CertifiedState), VerifyOptions(**options))

    def facts(self) -> tuple[Facts, ...]:
        return state_facts(resources(self.state))

    def codes(self, **options: Any) -> set[str]:
        return set(self.verdict(**options).counts)


def judged(
    objects: list[Resource], certificate: Doc, heard: list[CaseLanding] | None = None, **options: Any
) -> CertificateVerdict:
    claimed = msgspec.convert(certificate, CertifiedState)
    return check(
        state_facts(objects), claimed, VerifyOptions(**options), report=None if heard is None else heard.append
    )


def members(slot: Doc) -> dict[str, str]:
    found: dict[str, str] = slot["status"]["failoverReservation"].setdefault("allocations", {})
    return found


def other_host(case: Case, host: str) -> str:
    names: list[str] = [one["metadata"]["name"] for one in case.of("Hypervisor")]
    return case.random.choice([name for name in names if name != host])


# One thing that was tampered with, and the codes of which one has to be found

Tampering = Callable[[Case], set[str]]


def host_of_slot(case: Case) -> set[str]:
    slot = case.slot()
    slot["status"]["host"] = other_host(case, slot["status"]["host"])
    return {"slot-host"}


def membership(case: Case) -> set[str]:
    source = case.slot()
    target = case.random.choice([one for one in case.of("Reservation") if one is not source])
    vm = case.random.choice(sorted(members(source)))
    members(target)[vm] = members(source).pop(vm)
    return {"slot-allocations"}


def allocation_removed(case: Case) -> set[str]:
    slot = case.slot()
    del members(slot)[case.random.choice(sorted(members(slot)))]
    return {"slot-allocations"}


def vm_stopped(case: Case) -> set[str]:
    vm = case.certified_vm()
    for instance in case.named("Hypervisor", vm["host"])["status"]["instances"]:
        if instance["id"] == vm["id"]:
            instance["active"] = False
    return {"vm-unknown"}


def location(case: Case) -> set[str]:
    vm = case.certified_vm()
    case.move(vm["id"], other_host(case, vm["host"]))
    return {"vm-elsewhere"}


def slot_shrunk(case: Case) -> set[str]:
    case.slot()["spec"]["resources"]["memory"] = "1Gi"
    return {"slot-size"}


# Changes of a state after which somebody may write a certificate anew


def _share_another(case: Case) -> None:
    slot, vm = case.slot(), case.certified_vm()
    members(slot)[vm["id"]] = vm["host"]


def _move_vm_with_records(case: Case) -> None:
    vm = case.certified_vm()
    to = other_host(case, vm["host"])
    case.move(vm["id"], to)
    for slot in case.of("Reservation"):
        if vm["id"] in members(slot):
            members(slot)[vm["id"]] = to


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


def _emptied(case: Case) -> None:
    host = case.named("Hypervisor", case.slot()["status"]["host"])
    host.setdefault("spec", {})["drain"] = True


def _wanted_elsewhere(case: Case) -> None:
    case.slot()["spec"]["targetHost"] = other_host(case, "")


CONSISTENT: tuple[Callable[[Case], object], ...] = (
    membership,
    _share_another,
    host_of_slot,
    _move_vm_with_records,
    allocation_removed,
    _stale_member,
    _second_condition,
    _no_condition,
    _coming_up,
    _limit,
    _size,
    _room,
    _emptied,
    _wanted_elsewhere,
    vm_stopped,
    location,
)
