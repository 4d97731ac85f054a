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

from outlive.placement.rules import AFFINITY, ANTI_AFFINITY, HARD, Demands
from outlive.resources.policies import NOWHERE, AffinityRule
from outlive.resources.reasons import Reason, RuleConflict, reason
from outlive.resources.reasons.model import Value

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

    def __init__(self, vms: Iterable[Demands] = ()) -> None:
        self._members: dict[AffinityRule, dict[str, Demands]] = {}
        self._vms: dict[str, Demands] = {}
        for vm in vms:
            self.put(vm)

    def put(self, vm: Demands) -> None:
        """As the VM is from now on."""
        before = self._vms.pop(vm.id, None)
        for rule in _hard(before) if before is not None else ():
            del self._members[rule][vm.id]
        for rule in _hard(vm):
            self._vms[vm.id] = self._members.setdefault(rule, {})[vm.id] = vm

    def concerned(self, vm: Demands) -> list[Demands]:
        """The VM, and those of the others that hard rules tie to it, directly or by way of further ones."""
        found, left, seen = {vm.id: vm}, [vm], set[AffinityRule]()
        while left:
            for rule in _hard(left.pop()):
                if rule in seen:
                    continue
                seen.add(rule)
                for one in self._members.get(rule, {}).values():
                    if one.id not in found:
                        found[one.id] = one
                        left.append(one)
        return list(found.values())


def contradictions(vms: Collection[Demands], zones: Zones) -> list[Reason]:
    """Everything that these VMs ask for and cannot have, by VM and group; ``zones``: all hosts that are known."""
    by_id = {vm.id: vm for vm in sorted(vms, key=lambda one: one.id)}
    groups: dict[AffinityRule, list[str]] = {}
    for vm in by_id.values():
        for rule in _hard(vm):
            groups.setdefault(rule, []).append(vm.id)
    nowhere = [vm for vm in by_id.values() if vm.host_limit == NOWHERE]
    found = [reason(RuleConflict.NO_ALLOWED_HOST, vm=vm.id) for vm in nowhere]
    for block in _blocks(groups):
        found += _within({name: by_id[name] for name in block})
    rooms = Counter(zones.values())
    for rule, members in sorted(groups.items(), key=lambda one: one[0].group):
        if rule.policy == ANTI_AFFINITY:
            apart = [by_id[name] for name in members]
            if any(_choices(vm, zones, rooms) < len(apart) for vm in apart):
                found += _too_many(rule.group, apart, zones)
    return found


def concerned_vm(conflict: Reason) -> str:
    """The VM that a contradiction is reported of: the first that it names."""
    vms = conflict.fields.get("vms")
    return vms[0] if isinstance(vms, tuple) else str(conflict.fields["vm"])


def _hard(vm: Demands) -> Iterator[AffinityRule]:
    return (rule for rule in vm.rules if rule.policy in HARD)


def _blocks(groups: Mapping[AffinityRule, Sequence[str]]) -> Iterator[list[str]]:
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


def _within(block: Mapping[str, Demands]) -> Iterator[Reason]:
    """What VMs that are to be on one host ask for besides."""
    groups: dict[str, list[str]] = {}
    for vm in block.values():
        for rule in vm.rules:
            if rule.policy == ANTI_AFFINITY:
                groups.setdefault(rule.group, []).append(vm.id)
    for group, inside in sorted(groups.items()):
        if len(inside) > 1:
            yield _both(group, inside, block)
    limited = [vm for vm in block.values() if vm.host_limit not in ((), NOWHERE)]
    clash = next(((a, b) for a, b in combinations(limited, 2) if not set(a.host_limit) & set(b.host_limit)), None)
    if clash is None and limited and not set[str].intersection(*(set(vm.host_limit) for vm in limited)):
        clash = limited[0], limited[-1]
    if clash is not None:
        a, b = clash
        yield _tied(RuleConflict.NO_COMMON_HOST, a, b, block, hosts=a.host_limit, others=b.host_limit)
    zoned = [vm for vm in block.values() if vm.zone]
    other = next((vm for vm in zoned if vm.zone != zoned[0].zone), None)
    if other is not None:
        yield _tied(RuleConflict.ZONES_DIFFER, zoned[0], other, block, zone=zoned[0].zone, zones=other.zone)


def _tied(code: RuleConflict, vm: Demands, other: Demands, block: Mapping[str, Demands], **values: Value) -> Reason:
    """Two that affinity ties to one host, on which these values of theirs do not agree."""
    return reason(code, vm=vm.id, other=other.id, **values, groups=_path(vm, other, block.values()))


def _both(apart: str, inside: Sequence[str], vms: Mapping[str, Demands]) -> Reason:
    """Two that are to be apart and together; those that share an affinity group before those that others tie."""
    paths = {pair: _path(vms[pair[0]], vms[pair[1]], vms.values()) for pair in combinations(inside[:NAMED_PAIRS], 2)}
    (vm, other), groups = min(paths.items(), key=lambda one: len(one[1]))
    if len(groups) == 1:
        return reason(RuleConflict.BOTH_POLICIES, vm=vm, other=other, group=groups[0], apart=apart)
    return reason(RuleConflict.CHAINED, vm=vm, other=other, groups=groups, apart=apart)


def _path(vm: Demands, other: Demands, vms: Iterable[Demands]) -> tuple[str, ...]:
    """The shortest chain of affinity groups from one to the other."""
    members: dict[str, list[Demands]] = {}
    for one in vms:
        for rule in one.rules:
            if rule.policy == AFFINITY:
                members.setdefault(rule.group, []).append(one)
    left: list[tuple[Demands, tuple[str, ...]]] = [(vm, ())]
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


def _too_many(group: str, members: Sequence[Demands], zones: Zones) -> Iterator[Reason]:
    """Members that have fewer hosts together than they are."""
    options = {vm.id: _options(vm, zones) for vm in members if vm.host_limit != NOWHERE and (zones or vm.host_limit)}
    holder: dict[str, str] = {}
    for vm in sorted(options, key=lambda name: len(options[name]))[:MATCHED]:
        reached = _give(vm, options, holder)
        if reached is not None:
            crowd = sorted({vm, *(holder[host] for host in reached)})
            hosts = tuple(sorted(reached)) or ("no host",)
            yield reason(RuleConflict.TOO_MANY_MEMBERS, group=group, count=len(crowd), hosts=hosts, vms=tuple(crowd))
            return


def _choices(vm: Demands, zones: Zones, rooms: Mapping[str, int]) -> int:
    """How many hosts it may run on, as far as is known."""
    if vm.host_limit or not zones:
        return len(vm.host_limit) if vm.host_limit not in ((), NOWHERE) else UNLIMITED
    return rooms.get(vm.zone, 0) if vm.zone else len(zones)


def _options(vm: Demands, zones: Zones) -> tuple[str, ...]:
    if vm.host_limit:
        return vm.host_limit
    return tuple(host for host, zone in zones.items() if not vm.zone or zone == vm.zone)


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
