"""What is asked for beyond the rules: slots in failure domains of their own, and the policies of server groups.

Three demands (docs/reference/failover-rules.md#separation). With ``keepApart`` a VM's own host and its slots are all in
different domains. Of an anti-affinity group no member has a slot where a peer runs or has a slot. Of an affinity group
all slots that are ready are on no more hosts than the member with the largest need has slots, and on hosts that all
members may run on: recovery starts them together or not at all. A VM may be in several groups, each of which binds new
memberships; those that are there already are only reported, by ``check``.
``SeparationIndex`` is part of the conflict index and follows every join, opening, move and rollback; where nothing is
asked it costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.placement.rules import AFFINITY, HARD
from outlive.placement.vms import VmView

if TYPE_CHECKING:
    from outlive.failover.membership_index import MembershipIndex

Ints = NDArray[np.int64]

GroupKey = tuple[str, str]
"""Group and policy; who says another policy is of another group."""


class ServerGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """VMs that say the same group and the same policy."""

    name: str
    policy: str
    members: dict[str, str]
    """VM → where it runs."""
    need: int = 0
    """The most slots that any member needs; 0: not known, which binds no affinity."""
    limits: dict[str, tuple[str, ...]] = {}
    """VM → the hosts that it may run on, of those with a limit."""


def binding_groups(vm: VmView) -> tuple[GroupKey, ...]:
    """The groups of a VM that bind its slots; of soft policies only placement takes notice."""
    if not vm.affinity:
        return ((vm.server_group, vm.group_policy),) if vm.server_group and vm.group_policy in HARD else ()
    return tuple((rule.group, rule.policy) for rule in vm.rules if rule.policy in HARD)


def groups_of(
    vms: Iterable[VmView], required: Mapping[str, int], among: Collection[str] | None = None
) -> tuple[ServerGroup, ...]:
    """The groups that bind slots, of two members or more, by name. ``required``: VM → slots that it needs.

    ``among``: only the groups of these VMs.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    wanted: set[tuple[str, str]] = set()
    limits: dict[str, tuple[str, ...]] = {}
    for vm in vms:
        for key in binding_groups(vm):
            found.setdefault(key, {})[vm.id] = vm.host
            if vm.host_limit:
                limits[vm.id] = vm.host_limit
            if among is None or vm.id in among:
                wanted.add(key)
    return tuple(
        ServerGroup(
            name=name,
            policy=policy,
            members=dict(sorted(members.items())),
            need=max(required.get(vm, 0) for vm in members),
            limits={vm: limits[vm] for vm in sorted(members) if vm in limits},
        )
        for (name, policy), members in sorted(found.items())
        if len(members) > 1 and (name, policy) in wanted
    )


class _Group:
    """One server group, counted."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.members: dict[str, str] = {}
        """VM → where it runs."""
        self.needs: dict[str, int] = {}
        self.least_need = 0
        self.uses: dict[int, int] = {}
        """Host → members that run there, and memberships of members in slots that are there."""
        self.slots: dict[int, int] = {}
        """Slot → members of the group in it."""
        self.limits: dict[str, frozenset[int]] = {}
        """VM → the hosts that it may run on, of those with a limit."""

    def open_hosts(self) -> frozenset[int] | None:
        """The hosts that all members may run on; ``None``: any."""
        limits = self.limits.values()
        return frozenset.intersection(*limits) if limits else None

    @property
    def need(self) -> int:
        """The most slots that any member needs; 0: not known."""
        return max(self.least_need, max(self.needs.values(), default=0))


class SeparationIndex:
    """Which hosts and slots separation closes to a VM."""

    def __init__(self, index: MembershipIndex) -> None:
        self._index = index
        self._binds_groups = index.topology.server_groups
        self._value = {domain: dict(values) for domain, values in index.topology.apart.items()}
        """Domain → host → value."""
        self._groups: dict[tuple[str, str], _Group] = {}
        self._keys_of: dict[str, tuple[GroupKey, ...]] = {}
        self._version = 0
        self._codes: dict[str, Ints] = {}
        self._coded = (-1, -1)

    def take(self, groups: Iterable[ServerGroup]) -> None:
        """These groups, as they are; without ``topology.server_groups`` none binds."""
        for given in groups if self._binds_groups else ():
            for vm, host in given.members.items():
                self._put(vm, (given.name, given.policy), host)
            group = self._groups[given.name, given.policy]
            group.limits.update((vm, frozenset(self._index.hosts(limit))) for vm, limit in given.limits.items())
            group.least_need = max(group.least_need, given.need)

    def put(self, vm: VmView, need: int) -> None:
        """The VM is here now, in these groups or in none, and needs so many slots."""
        keys = binding_groups(vm) if self._binds_groups else ()
        for key in self._keys_of.get(vm.id, ()):
            if key not in keys:
                self._forget(vm.id, key)
        for key in keys:
            self._put(vm.id, key, vm.host)
            self._groups[key].needs[vm.id] = need
            self._groups[key].limits.pop(vm.id, None)
            if vm.host_limit:
                self._groups[key].limits[vm.id] = frozenset(self._index.hosts(vm.host_limit))

    def move(self, vm: str, host: str) -> None:
        """The VM runs on that host now, in the groups that it is in, if any."""
        for key in self._keys_of.get(vm, ()):
            self._put(vm, key, host)

    def forget(self, vm: str) -> None:
        """The VM is in no group any more."""
        for key in self._keys_of.get(vm, ()):
            self._forget(vm, key)

    def _forget(self, vm: str, key: GroupKey) -> None:
        group = self._groups[key]
        for slot in self._index.slots_by_name(vm):
            self._left(group, slot)
        _less(group.uses, self._index.host(group.members.pop(vm)))
        group.needs.pop(vm, None)
        group.limits.pop(vm, None)
        left = tuple(one for one in self._keys_of[vm] if one != key)
        if left:
            self._keys_of[vm] = left
        else:
            del self._keys_of[vm]
        if not group.members:
            del self._groups[key]

    def groups(self, vm: str) -> tuple[ServerGroup, ...]:
        """The VM's groups where anybody else is in, as plain data, by name."""
        return tuple(
            ServerGroup(
                name=name,
                policy=policy,
                members=dict(sorted(group.members.items())),
                need=group.need,
                limits={one: self._names(hosts) for one, hosts in sorted(group.limits.items())},
            )
            for (name, policy), group in sorted(self._found(vm), key=lambda one: one[0])
        )

    def among(self, vm: str, slots: int) -> int:
        """Of these slots, a bit set, those that separation allows the VM to join."""
        if not self._keys_of and not self._value:
            return slots
        if self._value and slots:
            slots &= ~self._index.placed_on(np.flatnonzero(self._in_own_domains(vm)).tolist())
        for _, group in self._found(vm) if slots else ():
            if group.policy != AFFINITY:
                slots &= ~self._index.placed_on(self._peers(vm, group))
            elif (open_hosts := self._open_hosts(group)) is not None:
                slots &= self._index.placed_on(open_hosts)
        return slots

    def closed(self, vm: str) -> NDArray[np.bool_] | None:
        """By host number, whether separation keeps a slot of the VM off the host; ``None`` where it asks nothing."""
        groups = self._found(vm)
        if not groups and not self._value:
            return None
        found = self._in_own_domains(vm)
        for _, group in groups:
            if group.policy != AFFINITY:
                found[list(self._peers(vm, group))] = True
            elif (open_hosts := self._open_hosts(group)) is not None:
                others = np.ones(len(found), dtype=bool)
                others[list(open_hosts)] = False
                found |= others
        return found

    def allows(self, vm: str, host: str) -> bool:
        """Whether the VM may have a further slot on the host, as far as separation goes."""
        number = self._index.host(host)
        closed = self.closed(vm)
        return closed is None or not closed[number]

    def in_one_domain(self, host: str, other: str) -> bool:
        """Whether a VM's host and its slot's may not be these two, because of a domain that is kept apart."""
        return any(host in values and values[host] == values.get(other) for values in self._value.values())

    def why(self, vm: str, host: str) -> str:
        """What closes the host to the VM, in words; empty where nothing does."""
        for domain, values in self._value.items():
            value = values.get(host)
            for other in self._own_hosts(vm) if value is not None else ():
                if values.get(other) == value:
                    return f"{host} is in {domain} {value} like {other}"
        number = self._index.host(host)
        for (name, _), group in self._found(vm):
            if group.policy != AFFINITY:
                if number in self._peers(vm, group):
                    return f"{host} has a VM of anti-affinity group {name}, or a slot of one"
            elif (limit := group.open_hosts()) is not None and number not in limit:
                if not limit:
                    return f"the VMs of affinity group {name} have no host in common that their host limits name"
                other = min(one for one, hosts in group.limits.items() if number not in hosts)
                return f"{host} is not for {other} of affinity group {name}, which starts together or not at all"
            elif (used := self._used(group)) is not None and number not in used:
                return f"{host} has no slot of affinity group {name}, which uses {group.need} hosts already"
        return ""

    # What the conflict index reports

    def joined(self, vm: str, slot: int) -> None:
        """The VM is a member of the slot now."""
        for key in self._keys_of.get(vm, ()):
            self._joined(self._groups[key], slot)

    def left(self, vm: str, slot: int) -> None:
        """The VM is a member of the slot no more."""
        for key in self._keys_of.get(vm, ()):
            self._left(self._groups[key], slot)

    def _joined(self, group: _Group, slot: int) -> None:
        host = self._index.slot_host(slot)
        group.uses[host] = group.uses.get(host, 0) + 1
        group.slots[slot] = group.slots.get(slot, 0) + 1

    def _left(self, group: _Group, slot: int) -> None:
        _less(group.uses, self._index.slot_host(slot))
        _less(group.slots, slot)

    def relabel(self, host: str, values: Mapping[str, str]) -> bool:
        """The host is in these domains now; whether that is new."""
        if all(known.get(host) == values.get(domain) for domain, known in self._value.items()):
            return False
        for domain, known in self._value.items():
            known.pop(host, None)
            if domain in values:
                known[host] = values[domain]
        self._version += 1
        return True

    def _put(self, vm: str, key: GroupKey, host: str) -> None:
        """The VM is in the group, besides those that it is in, and runs on the host."""
        group = self._groups.setdefault(key, _Group(key[1]))
        before = group.members.get(vm)
        if before == host:
            return
        place = self._index.host(host)
        if before is not None:
            _less(group.uses, self._index.host(before))
        group.uses[place] = group.uses.get(place, 0) + 1
        group.members[vm] = host
        if before is None:
            self._keys_of[vm] = (*self._keys_of.get(vm, ()), key)
            for slot in self._index.slots_by_name(vm):
                self._joined(group, slot)

    def _found(self, vm: str) -> list[tuple[GroupKey, _Group]]:
        """The VM's groups where anybody else is in."""
        keys = self._keys_of.get(vm)
        if keys is None:
            return []
        return [(key, group) for key in keys if len((group := self._groups[key]).members) > 1]

    def _peers(self, vm: str, group: _Group) -> set[int]:
        """The hosts where other members of the VM's group run or have slots."""
        own = {self._index.host(group.members[vm]): 1}
        for slot in self._index.slots_by_name(vm):
            host = self._index.slot_host(slot)
            own[host] = own.get(host, 0) + 1
        return {host for host, count in group.uses.items() if count > own.get(host, 0)}

    def _used(self, group: _Group) -> set[int] | None:
        """The hosts with ready slots of an affinity group, or ``None`` while it may use more."""
        index = self._index
        found = {index.slot_host(slot) for slot in group.slots if index.slot_ready(slot)}
        return found if group.need and len(found) >= group.need else None

    def _open_hosts(self, group: _Group) -> Collection[int] | None:
        """The hosts where members of an affinity group may have slots; ``None``: any."""
        used, limit = self._used(group), group.open_hosts()
        return limit if used is None else used if limit is None else used & limit

    def _names(self, hosts: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted(self._index.host_names[host] for host in hosts))

    def _own_hosts(self, vm: str) -> list[str]:
        """Where the VM runs and where its slots are."""
        index = self._index
        return [index.location(vm), *(index.host_names[index.slot_host(slot)] for slot in index.slots_by_name(vm))]

    def _in_own_domains(self, vm: str) -> NDArray[np.bool_]:
        """By host number, whether the host is in a domain with the VM's own host or with one of its slots."""
        index = self._index
        own = index.hosts(self._own_hosts(vm))
        found = np.zeros(len(index.host_names), dtype=bool)
        for domain in self._value:
            codes = self.codes_of(domain)
            for code in {int(codes[host]) for host in own} - {-1}:
                found |= codes == code
        return found

    def codes_of(self, domain: str) -> Ints:
        """By host number, a number for the host's value; -1: it has none."""
        names = self._index.host_names
        if self._coded != (len(names), self._version):
            self._codes, self._coded = {}, (len(names), self._version)
        codes = self._codes.get(domain)
        if codes is None:
            numbers: dict[str, int] = {}
            values = map(self._value[domain].get, names)
            found = [-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values]
            codes = self._codes[domain] = np.array(found, dtype=np.int64)
        return codes


def _less(counts: dict[int, int], key: int) -> None:
    if counts[key] > 1:
        counts[key] -= 1
    else:
        del counts[key]
