"""Verify every allocation from scratch: is each VM where its slots believe, and do all rules hold?

Independent of how memberships came about. The rules are judged by a new conflict index, and every
fault is named (docs/reference/failover-rules.md#checking-and-coverage).
Memberships that are not as far apart as asked are faults here, although no clean-up removes them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import join_parts
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.culprits import find_removals
from outlive.failover.model import SlotView
from outlive.failover.rules import is_large_enough
from outlive.failover.separation import ServerGroup, bond_of, groups_of, keys_by_vm, render_groups
from outlive.failover.topology import Topology
from outlive.placement import AFFINITY, ANTI_AFFINITY, VmView, may_run_on

REPLAN: Final = "outlive failover plan --apply"
"""The command that gives the VMs of server groups slots that are as their policies ask (``planner.replan``)."""


class ViolationKind(enum.StrEnum):
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

    fault: ViolationKind
    vm: str
    slots: tuple[str, ...]
    host: str = ""
    """Where two things meet; for a VM that moved, where it runs."""
    others: tuple[str, ...] = ()
    """Other VMs that are involved."""
    message: str = ""
    remedy: str = ""
    """The command, or what to change; empty where the planner repairs it or nothing is known."""


class CheckInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The VMs as they are and the slots as they are written."""

    vms: tuple[VmView, ...]
    slots: tuple[SlotView, ...]
    required: dict[str, int] = {}
    """VM → slots that it needs; without it only the host limits of affinity groups are judged."""
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
        *_find_stale(given.slots, views),
        *(
            Violation(
                fault=ViolationKind(f"rule-{breach.rule}"),
                vm=breach.vm,
                slots=breach.slots,
                host=breach.host,
                others=breach.others,
                message=breach.describe(),
            )
            for breach in index.find_breaches()
        ),
        *find_separation_violations(given.vms, given.slots, topology, given.required),
    ]
    return CheckResult(
        allocations=sum(len(slot.members) for slot in given.slots),
        slots=len(given.slots),
        holds=not found,
        violations=tuple(found),
        remove=find_removals(given.slots, locations, topology) if found else {},
    )


def _find_stale(slots: tuple[SlotView, ...], views: Mapping[str, VmView]) -> Iterator[Violation]:
    for slot in slots:
        for member, recorded in slot.members.items():
            vm = views.get(member)
            if vm is None:
                text = f"VM {member} in slot {slot.name} is not known"
                yield Violation(fault=ViolationKind.GONE, vm=member, slots=(slot.name,), host=recorded, message=text)
                continue
            if vm.host != recorded:
                text = f"VM {member} runs on {vm.host}, slot {slot.name} believes on {recorded}"
                yield Violation(fault=ViolationKind.MOVED, vm=member, slots=(slot.name,), host=vm.host, message=text)
            if not is_large_enough(vm, slot):
                text = f"VM {member} does not fit into slot {slot.name}"
                yield Violation(
                    fault=ViolationKind.TOO_SMALL, vm=member, slots=(slot.name,), host=slot.host, message=text
                )
            if not may_run_on(vm, slot.host):
                text = f"VM {member} may not run on {slot.host}, where slot {slot.name} is"
                yield Violation(
                    fault=ViolationKind.NOT_ALLOWED, vm=member, slots=(slot.name,), host=slot.host, message=text
                )


def find_separation_violations(
    vms: Iterable[VmView], slots: Sequence[SlotView], topology: Topology, required: Mapping[str, int]
) -> list[Violation]:
    """The memberships that are not as asked, by VM and slot, each once for each reason.

    Where two of a VM's slots are too near to each other, the later one by name is reported. Without ``required``
    of affinity only host limits are judged, because it is not known how many hosts a group may use.
    """
    views = {vm.id: vm for vm in vms}
    groups = groups_of(tuple(views.values()), required) if topology.server_groups else ()
    if not groups and not topology.apart:
        return []
    concerned = views.keys() if topology.apart else {vm for group in groups for vm in group.members}
    mine: dict[str, list[SlotView]] = {}
    for slot in sorted(slots, key=lambda one: one.name):
        for member in slot.members:
            if member in concerned:
                mine.setdefault(member, []).append(slot)
    found = list(_find_shared_domains(views, mine, topology)) if topology.apart else []
    for group in groups:
        found += (
            _find_crowded_slots(group, mine) if group.policy == ANTI_AFFINITY else _find_scattered_slots(group, mine)
        )
    found += _find_closed_slots(groups, mine)
    return sorted(found, key=lambda one: (one.vm, one.slots, one.fault, one.message))


def _find_shared_domains(
    views: Mapping[str, VmView], mine: Mapping[str, Sequence[SlotView]], topology: Topology
) -> Iterator[Violation]:
    for vm, slots in mine.items():
        for domain, values in topology.apart.items():
            seen: dict[str, str] = {}
            own = values.get(views[vm].host)
            if own is not None:
                seen[own] = f"where the VM runs on {views[vm].host}"
            for slot in slots:
                value = values.get(slot.host)
                if value is None:
                    continue
                if value in seen:
                    detail = f"slot {slot.name} of VM {vm} on {slot.host} is in {domain} {value}, {seen[value]}"
                    yield Violation(
                        fault=ViolationKind.DOMAIN, vm=vm, slots=(slot.name,), host=slot.host, message=detail
                    )
                seen.setdefault(value, f"like its slot {slot.name} on {slot.host}")


def _find_crowded_slots(group: ServerGroup, mine: Mapping[str, Sequence[SlotView]]) -> Iterator[Violation]:
    """Of an anti-affinity group: slots where a peer runs, or has a slot."""
    runs: dict[str, list[str]] = {}
    holds: dict[str, list[str]] = {}
    for member, at in group.members.items():
        runs.setdefault(at, []).append(member)
        for host in sorted({slot.host for slot in mine.get(member, ())}):
            holds.setdefault(host, []).append(member)
    for member in group.members:
        for slot in mine.get(member, ()):
            near = [peer for peer in runs.get(slot.host, ()) if peer != member]
            also = [peer for peer in holds[slot.host] if peer != member]
            what = [
                f"{' and '.join(peers)} of its anti-affinity group {word}"
                for peers, word in ((near, "runs"), (also, "has a slot"))
                if peers
            ]
            if what:
                yield Violation(
                    vm=member,
                    slots=(slot.name,),
                    fault=ViolationKind.SERVER_GROUP,
                    host=slot.host,
                    others=tuple(sorted({*near, *also})),
                    message=f"slot {slot.name} of VM {member} is on {slot.host}, where {', and '.join(what)}",
                    remedy=REPLAN,
                )


def _find_scattered_slots(group: ServerGroup, mine: Mapping[str, Sequence[SlotView]]) -> Iterator[Violation]:
    """Of an affinity group: slots on hosts beyond as many as the largest need, those that fewest members use."""
    users: dict[str, set[str]] = {}
    for member in group.members:
        for slot in mine.get(member, ()):
            if slot.ready is not False:
                users.setdefault(slot.host, set()).add(member)
    if not group.need or len(users) <= group.need:
        return
    kept = set(sorted(users, key=lambda host: (-len(users[host]), host))[: group.need])
    for member in group.members:
        for slot in mine.get(member, ()):
            if slot.ready is not False and slot.host not in kept:
                yield Violation(
                    vm=member,
                    slots=(slot.name,),
                    fault=ViolationKind.SERVER_GROUP,
                    host=slot.host,
                    others=tuple(vm for vm in group.members if vm != member),
                    remedy=REPLAN,
                    message=f"slot {slot.name} of VM {member} is on {slot.host}; its affinity group has slots on "
                    f"{len(users)} hosts and needs {group.need}, so that its VMs would not land together",
                )


def _find_closed_slots(groups: Sequence[ServerGroup], mine: Mapping[str, Sequence[SlotView]]) -> Iterator[Violation]:
    """Slots of VMs that affinity groups keep together, on hosts that the host limit of another of them leaves out."""
    by_key = {(group.name, group.policy): group for group in groups if group.policy == AFFINITY}
    keys_of = keys_by_vm(by_key.values())
    for vm in sorted(keys_of):
        bond = bond_of(vm, lambda one: keys_of.get(one, ()), lambda key: by_key[key].members)
        limits = {one: hosts for key in bond.together for one, hosts in by_key[key].limits.items()}
        for slot in mine.get(vm, ()) if limits else ():
            closing = sorted(one for one, hosts in limits.items() if one != vm and slot.host not in hosts)
            if slot.ready is False or not closing:
                continue
            common = set.intersection(*map(set, limits.values()))
            yield Violation(
                vm=vm,
                slots=(slot.name,),
                fault=ViolationKind.SERVER_GROUP,
                host=slot.host,
                others=tuple(closing),
                message=f"slot {slot.name} of VM {vm} is on {slot.host}, where {join_parts(closing)} of "
                f"{render_groups(bond.together)} may not run, so that recovery starts none of them",
                remedy=REPLAN if common else f"give {join_parts(sorted(limits))} a host in common in their host limits",
            )
