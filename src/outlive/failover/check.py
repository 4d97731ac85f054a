"""Verify every allocation from scratch: is each VM where its slots believe, and do all rules hold?

Independent of how memberships came about. The rules are judged by a new conflict index, and every
fault is named (docs/reference/failover-rules.md#checking-and-coverage).
Memberships that are not as far apart as asked are faults here, although no clean-up removes them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

import msgspec

from outlive.failover.breaches import Breach
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.culprits import removals
from outlive.failover.model import SlotView, VmView
from outlive.failover.rules import fits, may_run_on
from outlive.failover.separation import Separation, separations
from outlive.failover.topology import Topology


class Fault(enum.StrEnum):
    """What is wrong with an allocation."""

    GONE = "vm-gone"
    MOVED = "vm-moved"
    TOO_SMALL = "slot-too-small"
    NOT_ALLOWED = "host-not-allowed"
    RULE_1 = "rule-1"
    RULE_2 = "rule-2"
    RULE_3 = "rule-3"
    RULE_4 = "rule-4"
    RULE_5 = "rule-5"
    DOMAIN = "domain"
    SERVER_GROUP = "server-group"


class Violation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One fault with everybody involved."""

    fault: Fault
    vm: str
    slots: tuple[str, ...]
    host: str = ""
    """Where two things meet; for a VM that moved, where it runs."""
    others: tuple[str, ...] = ()
    """Other VMs that are involved."""
    message: str = ""


class CheckInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The VMs as they are and the slots as they are written."""

    vms: tuple[VmView, ...]
    slots: tuple[SlotView, ...]
    required: dict[str, int] = {}
    """VM → slots that it needs; affinity groups are not judged without."""
    topology: Topology = Topology()


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All faults, and what clean-up would remove."""

    allocations: int
    slots: int
    holds: bool
    violations: tuple[Violation, ...] = ()
    remove: dict[str, list[str]] = {}
    """Slot → members that the eligibility check would remove, by id; VMs that are gone are not its business."""


def check(given: CheckInput) -> CheckResult:
    """Look at every allocation. Rules are judged with current locations, recorded ones where a VM is unknown."""
    views = {vm.id: vm for vm in given.vms}
    locations = {vm.id: vm.host for vm in given.vms}
    topology = given.topology
    index = ConflictIndex.build(given.slots, topology=topology, locations=locations)
    found = [
        *_stale(given.slots, views),
        *(_violation(breach) for breach in index.breaches()),
        *(_apart(one) for one in separations(given.vms, given.slots, topology, given.required)),
    ]
    return CheckResult(
        allocations=sum(len(slot.members) for slot in given.slots),
        slots=len(given.slots),
        holds=not found,
        violations=tuple(found),
        remove=removals(given.slots, locations, topology) if found else {},
    )


def _stale(slots: tuple[SlotView, ...], views: Mapping[str, VmView]) -> Iterator[Violation]:
    for slot in slots:
        for member, recorded in slot.members.items():
            vm = views.get(member)
            if vm is None:
                text = f"VM {member} in slot {slot.name} is not known"
                yield Violation(fault=Fault.GONE, vm=member, slots=(slot.name,), host=recorded, message=text)
                continue
            if vm.host != recorded:
                text = f"VM {member} runs on {vm.host}, slot {slot.name} believes on {recorded}"
                yield Violation(fault=Fault.MOVED, vm=member, slots=(slot.name,), host=vm.host, message=text)
            if not fits(vm, slot):
                text = f"VM {member} does not fit into slot {slot.name}"
                yield Violation(fault=Fault.TOO_SMALL, vm=member, slots=(slot.name,), host=slot.host, message=text)
            if not may_run_on(vm, slot.host):
                text = f"VM {member} may not run on {slot.host}, where slot {slot.name} is"
                yield Violation(fault=Fault.NOT_ALLOWED, vm=member, slots=(slot.name,), host=slot.host, message=text)


def _apart(one: Separation) -> Violation:
    return Violation(
        fault=Fault(one.why),
        vm=one.vm,
        slots=(one.slot,),
        host=one.host,
        others=one.others,
        message=one.detail,
    )


def _violation(breach: Breach) -> Violation:
    return Violation(
        fault=Fault(f"rule-{breach.rule}"),
        vm=breach.vm,
        slots=breach.slots,
        host=breach.host,
        others=breach.others,
        message=breach.sentence(),
    )
