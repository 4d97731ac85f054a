"""Rules of VMs that no hosts can meet together: found when they are written, and reported where they came another way.

Only hard rules are looked at. VMs of an affinity group are on one host, and so are those of all affinity groups that
have a VM in common; two of them that are to be apart, that have no host in common, or that are of two zones contradict
each other. The VMs of an anti-affinity group need a host each out of those where they may run. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from outlive.placement.rules import AFFINITY, ANTI_AFFINITY, HARD, VmConstraints
from outlive.resources import NOWHERE, AffinityRule
from outlive.resources.reasons import Reason, RuleConflict, Value, make_reason

MATCHED: Final = 256
"""Members of an anti-affinity group of which it is worked out exactly whether each can have a host."""
NAMED_PAIRS: Final = 8
"""VMs of one group among which the pair is sought that a message names."""
UNLIMITED: Final = 1 << 30
"""Hosts that a VM may run on where nobody says which there are."""
Zones = Mapping[str, str]
"""Host → its zone; empty where it has none."""


class HardGroups:
    """VMs by the hard rules that tie them to others."""

    def __init__(self, vms: Iterable[VmConstraints] = ()) -> None:
        self._members: dict[AffinityRule, dict[str, VmConstraints]] = {}
        self._vms: dict[str, VmConstraints] = {}
        for vm in vms:
            self.put(vm)

    def put(self, vm: VmConstraints) -> None:
        """As the VM is from now on."""
        before = self._vms.pop(vm.id, None)
        for rule in _hard_rules(before) if before is not None else ():
            del self._members[rule][vm.id]
        for rule in _hard_rules(vm):
            self._vms[vm.id] = self._members.setdefault(rule, {})[vm.id] = vm

    def find_tied(self, vm: VmConstraints) -> list[VmConstraints]:
        """The VM, and those of the others that hard rules tie to it, directly or by way of further ones."""
        found, left, seen = {vm.id: vm}, [vm], set[AffinityRule]()
        while left:
            for rule in _hard_rules(left.pop()):
                if rule in seen:
                    continue
                seen.add(rule)
                for one in self._members.get(rule, {}).values():
                    if one.id not in found:
                        found[one.id] = one
                        left.append(one)
        return list(found.values())


def find_contradictions(vms: Collection[VmConstraints], zones: Zones) -> list[Reason]:
    """Everything that these VMs ask for and cannot have, by VM and group; ``zones``: all hosts that are known."""
    by_id = {vm.id: vm for vm in sorted(vms, key=lambda one: one.id)}
    groups: dict[AffinityRule, list[str]] = {}
    for vm in by_id.values():
        for rule in _hard_rules(vm):
            groups.setdefault(rule, []).append(vm.id)
    nowhere = [vm for vm in by_id.values() if vm.host_limit == NOWHERE]
    found = [make_reason(RuleConflict.NO_ALLOWED_HOST, vm=vm.id) for vm in nowhere]
    for block in _find_blocks(groups):
        found += _find_conflicts_within({name: by_id[name] for name in block})
    rooms = Counter(zones.values())
    for rule, members in sorted(groups.items(), key=lambda one: one[0].group):
        if rule.policy == ANTI_AFFINITY:
            apart = [by_id[name] for name in members]
            if any(_count_choices(vm, zones, rooms) < len(apart) for vm in apart):
                found += _find_crowded_groups(rule.group, apart, zones)
    return found


def concerned_vm(conflict: Reason) -> str:
    """The VM that a contradiction is reported of: the first that it names."""
    vms = conflict.fields.get("vms")
    return vms[0] if isinstance(vms, tuple) else str(conflict.fields["vm"])


def _hard_rules(vm: VmConstraints) -> Iterator[AffinityRule]:
    return (rule for rule in vm.rules if rule.policy in HARD)


def _find_blocks(groups: Mapping[AffinityRule, Sequence[str]]) -> Iterator[list[str]]:
    """VMs that are to be on one host, by way of affinity groups that have VMs in common."""
    block_of: dict[str, list[str]] = {}
    for rule, members in groups.items():
        if rule.policy != AFFINITY:
            continue
        merged: dict[str, None] = {}
        for name in members:
            merged.update(dict.fromkeys(block_of.get(name, [name])))
        block = list(merged)
        block_of.update(dict.fromkeys(block, block))
    seen: set[int] = set()
    for block in block_of.values():
        if id(block) not in seen and len(block) > 1:
            seen.add(id(block))
            yield sorted(block)


def _find_conflicts_within(block: Mapping[str, VmConstraints]) -> Iterator[Reason]:
    """What VMs that are to be on one host ask for besides."""
    groups: dict[str, list[str]] = {}
    for vm in block.values():
        for rule in vm.rules:
            if rule.policy == ANTI_AFFINITY:
                groups.setdefault(rule.group, []).append(vm.id)
    for group, inside in sorted(groups.items()):
        if len(inside) > 1:
            # Two that are to be apart and together; that share an affinity group rather than that others tie.
            pairs = combinations(inside[:NAMED_PAIRS], 2)
            paths = {(one, two): _find_path(block[one], block[two], block.values()) for one, two in pairs}
            (one, two), ties = min(paths.items(), key=lambda path: len(path[1]))
            if len(ties) == 1:
                yield make_reason(RuleConflict.BOTH_POLICIES, vm=one, other=two, group=ties[0], apart=group)
            else:
                yield make_reason(RuleConflict.CHAINED, vm=one, other=two, groups=ties, apart=group)
    limited = [vm for vm in block.values() if vm.host_limit not in ((), NOWHERE)]
    clash = next(((a, b) for a, b in combinations(limited, 2) if not set(a.host_limit) & set(b.host_limit)), None)
    if clash is None and limited and not set[str].intersection(*(set(vm.host_limit) for vm in limited)):
        clash = limited[0], limited[-1]
    if clash is not None:
        a, b = clash
        yield _tied_conflict(RuleConflict.NO_COMMON_HOST, a, b, block, hosts=a.host_limit, others=b.host_limit)
    zoned = [vm for vm in block.values() if vm.zone]
    other = next((vm for vm in zoned if vm.zone != zoned[0].zone), None)
    if other is not None:
        yield _tied_conflict(RuleConflict.ZONES_DIFFER, zoned[0], other, block, zone=zoned[0].zone, zones=other.zone)


def _tied_conflict(
    code: RuleConflict, vm: VmConstraints, other: VmConstraints, block: Mapping[str, VmConstraints], **values: Value
) -> Reason:
    """Two that affinity ties to one host, on which these values of theirs do not agree."""
    return make_reason(code, vm=vm.id, other=other.id, **values, groups=_find_path(vm, other, block.values()))


def _find_path(vm: VmConstraints, other: VmConstraints, vms: Iterable[VmConstraints]) -> tuple[str, ...]:
    """The shortest chain of affinity groups from one to the other."""
    members: dict[str, list[VmConstraints]] = {}
    for one in vms:
        for rule in one.rules:
            if rule.policy == AFFINITY:
                members.setdefault(rule.group, []).append(one)
    left: list[tuple[VmConstraints, tuple[str, ...]]] = [(vm, ())]
    seen = {vm.id}
    while left:
        one, path = left.pop(0)
        if one.id == other.id:
            return path
        for group in sorted(rule.group for rule in one.rules if rule.policy == AFFINITY):
            for following in members.pop(group, ()):
                if following.id not in seen:
                    seen.add(following.id)
                    left.append((following, (*path, group)))
    return ()


def _find_crowded_groups(group: str, members: Sequence[VmConstraints], zones: Zones) -> Iterator[Reason]:
    """Members that have fewer hosts together than they are."""
    options = {
        vm.id: vm.host_limit or tuple(host for host, zone in zones.items() if not vm.zone or zone == vm.zone)
        for vm in members
        if vm.host_limit != NOWHERE and (zones or vm.host_limit)
    }
    holder: dict[str, str] = {}
    for vm in sorted(options, key=lambda name: len(options[name]))[:MATCHED]:
        reached = _give(vm, options, holder)
        if reached is not None:
            crowd = sorted({vm, *(holder[host] for host in reached)})
            hosts = tuple(sorted(reached)) or ("no host",)
            yield make_reason(
                RuleConflict.TOO_MANY_MEMBERS, group=group, count=len(crowd), hosts=hosts, vms=tuple(crowd)
            )
            return


def _count_choices(vm: VmConstraints, zones: Zones, rooms: Mapping[str, int]) -> int:
    """How many hosts it may run on, as far as is known."""
    if vm.host_limit or not zones:
        return len(vm.host_limit) if vm.host_limit not in ((), NOWHERE) else UNLIMITED
    return rooms.get(vm.zone, 0) if vm.zone else len(zones)


def _give(vm: str, options: Mapping[str, Sequence[str]], holder: dict[str, str]) -> set[str] | None:
    """Give the VM a host, others moving on where they can; else all hosts that it and those in its way could have."""
    came: dict[str, str] = {}
    left = [vm]
    while left:
        one = left.pop()
        for host in options[one]:
            if host in came:
                continue
            came[host] = one
            if host in holder:
                left.append(holder[host])
            else:
                _move_on(host, vm, came, holder)
                return None
    return set(came)


def _move_on(free: str, vm: str, came: Mapping[str, str], holder: dict[str, str]) -> None:
    """Each on the way takes the host that it was seen to have as well, and leaves its own to the one before it."""
    had = {one: host for host, one in holder.items()}
    host, mover = free, came[free]
    while True:
        holder[host] = mover
        if mover == vm:
            return
        host = had[mover]
        mover = came[host]
