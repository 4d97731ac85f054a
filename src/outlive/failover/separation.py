"""What is asked for beyond the rules: slots in failure domains of their own, and the policies of server groups.

Three demands (docs/reference/failover-rules.md#separation). With ``keepApart`` a VM's own host and its slots are all in
different domains. Of an anti-affinity group no member has a slot where a peer runs or has a slot. Of an affinity group
all slots that are ready are on no more hosts than the member with the largest need has slots, and on hosts that all
members may run on: recovery starts them together or not at all. Affinity groups with a member in common are one in
this, and what anti-affinity closes to one of their members it closes to all. A VM may be in several groups, each of
which binds new memberships; those that are there already are only reported, by ``check``.
``SeparationIndex`` is part of the conflict index and follows every join, opening, move and rollback; where nothing is
asked it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base import count_of, join_parts
from outlive.placement import AFFINITY, HARD, VmView, bound_together

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


class Bond(NamedTuple):
    """A VM with all that affinity groups keep together with it, and the groups that bear on where they have slots."""

    members: frozenset[str]
    together: tuple[GroupKey, ...]
    """The affinity groups that keep them together, by name."""
    apart: tuple[GroupKey, ...]
    """The anti-affinity groups of any of them."""
    beyond: tuple[GroupKey, ...]
    """The affinity groups of others in ``apart``, and of all whom these are kept together with."""


def bond_of(
    vm: str, keys_of: Callable[[str], Iterable[GroupKey]], members_of: Callable[[GroupKey], Iterable[str]]
) -> Bond:
    """What affinity binds to the VM, also by way of further groups; ``keys_of``: VM → its groups."""

    def affinity_of(one: str) -> list[GroupKey]:
        return [key for key in keys_of(one) if key[1] == AFFINITY]

    members = bound_together(vm, affinity_of, members_of)
    keys = {key for one in members for key in keys_of(one)}
    together = {key for key in keys if key[1] == AFFINITY}
    apart = keys - together
    beyond = set[GroupKey]()
    for peer in {peer for key in apart for peer in members_of(key)} - members:
        if not beyond.issuperset(affinity_of(peer)):
            beyond.update(key for one in bound_together(peer, affinity_of, members_of) for key in affinity_of(one))
    return Bond(frozenset(members), tuple(sorted(together)), tuple(sorted(apart)), tuple(sorted(beyond)))


def groups_of(
    vms: Iterable[VmView], required: Mapping[str, int], among: Collection[str] | None = None
) -> tuple[ServerGroup, ...]:
    """The groups that bind slots, of two members or more, by name. ``required``: VM → slots that it needs.

    ``among``: only the groups that bear on these VMs (``bond_of``).
    """
    found: dict[GroupKey, dict[str, str]] = {}
    keys_of: dict[str, tuple[GroupKey, ...]] = {}
    limits: dict[str, tuple[str, ...]] = {}
    for vm in vms:
        if keys := binding_groups(vm):
            keys_of[vm.id] = keys
            if vm.host_limit:
                limits[vm.id] = vm.host_limit
        for key in keys:
            found.setdefault(key, {})[vm.id] = vm.host
    wanted = set(found) if among is None else set[GroupKey]()
    done = set[str]()
    for one in sorted(among or ()):
        if one not in done and one in keys_of:
            bond = bond_of(one, lambda vm: keys_of.get(vm, ()), found.__getitem__)
            done |= bond.members
            wanted.update(bond.together, bond.apart, bond.beyond)
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


def keys_by_vm(groups: Iterable[ServerGroup]) -> dict[str, list[GroupKey]]:
    """VM → its groups, of these."""
    found: dict[str, list[GroupKey]] = {}
    for group in groups:
        for vm in group.members:
            found.setdefault(vm, []).append((group.name, group.policy))
    return found


class _CountedGroup:
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
        self._groups: dict[tuple[str, str], _CountedGroup] = {}
        self._keys_of: dict[str, tuple[GroupKey, ...]] = {}
        self._bonds: dict[str, Bond] = {}
        """By VM, of those that were asked for since a group got or lost a member."""
        self._version = 0
        self._codes: dict[str, Ints] = {}
        self._coded = (-1, -1)

    def take(self, groups: Iterable[ServerGroup]) -> None:
        """These groups, as they are; without ``topology.server_groups`` none binds."""
        for given in groups if self._binds_groups else ():
            for vm, host in given.members.items():
                self._put(vm, (given.name, given.policy), host)
            group = self._groups[given.name, given.policy]
            group.limits.update((vm, frozenset(self._index.host_numbers(limit))) for vm, limit in given.limits.items())
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
                self._groups[key].limits[vm.id] = frozenset(self._index.host_numbers(vm.host_limit))

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
            self._count_leave(group, slot)
        _decrement(group.uses, self._index.host_number(group.members.pop(vm)))
        group.needs.pop(vm, None)
        group.limits.pop(vm, None)
        self._bonds.clear()
        left = tuple(one for one in self._keys_of[vm] if one != key)
        if left:
            self._keys_of[vm] = left
        else:
            del self._keys_of[vm]
        if not group.members:
            del self._groups[key]

    @property
    def has_groups(self) -> bool:
        """Whether any VM is in a group that binds slots."""
        return bool(self._keys_of)

    def shared_groups(self, vm: str) -> tuple[ServerGroup, ...]:
        """The VM's groups where anybody else is in, as plain data, by name."""
        return self._to_server_groups(key for key, _ in self._find_groups(vm))

    def related_groups(self, vm: str) -> tuple[ServerGroup, ...]:
        """All groups that bear on where the VM has slots, as plain data, by name."""
        bond = self._find_bond(vm)
        return self._to_server_groups({*bond.together, *bond.apart, *bond.beyond}) if bond is not None else ()

    def find_companions(self, vm: str) -> frozenset[str]:
        """The VM and all that affinity groups keep together with it, also by way of further ones; empty: nobody."""
        bond = self._find_bond(vm)
        return bond.members if bond is not None and bond.together else frozenset()

    def allowed_slots(self, vm: str, slots: int) -> int:
        """Of these slots, a bit set, those that separation allows the VM to join."""
        if not self._keys_of and not self._value:
            return slots
        if self._value and slots:
            slots &= ~self._index.placed_on(np.flatnonzero(self._mask_own_domains(vm)).tolist())
        bond = self._find_bond(vm) if slots else None
        if bond is not None:
            slots &= ~self._index.placed_on(self._kept_off(vm, bond))
            if (open_hosts := self._open_hosts(vm, bond)) is not None:
                slots &= self._index.placed_on(open_hosts)
        return slots

    def closed_hosts(self, vm: str) -> NDArray[np.bool_] | None:
        """By host number, whether separation keeps a slot of the VM off the host; ``None`` where it asks nothing."""
        bond = self._find_bond(vm) if self._keys_of else None
        if bond is None and not self._value:
            return None
        found = self._mask_own_domains(vm)
        if bond is not None:
            found[list(self._kept_off(vm, bond))] = True
            if (open_hosts := self._open_hosts(vm, bond)) is not None:
                others = np.ones(len(found), dtype=bool)
                others[list(open_hosts)] = False
                found |= others
        return found

    def allows(self, vm: str, host: str) -> bool:
        """Whether the VM may have a further slot on the host, as far as separation goes."""
        number = self._index.host_number(host)
        closed = self.closed_hosts(vm)
        return closed is None or not closed[number]

    def share_domain(self, host: str, other: str) -> bool:
        """Whether a VM's host and its slot's may not be these two, because of a domain that is kept apart."""
        return any(host in values and values[host] == values.get(other) for values in self._value.values())

    def explain_closed(self, vm: str, host: str) -> str:
        """What closes the host to the VM, in words; empty where nothing does."""
        for domain, values in self._value.items():
            value = values.get(host)
            for other in self._own_hosts(vm) if value is not None else ():
                if values.get(other) == value:
                    return f"{host} is in {domain} {value} like {other}"
        bond = self._find_bond(vm)
        if bond is None:
            return ""
        number = self._index.host_number(host)
        for key in bond.apart:
            mine = vm in self._groups[key].members
            if number in self._hosts_of_others(self._groups[key], {vm} if mine else bond.members):
                whom = next((one for one in sorted(bond.members) if one in self._groups[key].members), "")
                with_it = "" if mine else f"; {whom} of that group is to be with {vm}"
                return f"{host} has a VM of anti-affinity group {key[0]}, or a slot of one{with_it}"
        if number in self._slots_beyond(bond):
            names = join_parts([key[0] for key in bond.apart])
            return f"{host} has a slot of a VM that is to be with one of anti-affinity group {names}"
        limits = self._collect_limits(bond)
        if any(number not in hosts for hosts in limits.values()):
            names = render_groups(bond.together)
            if not frozenset.intersection(*limits.values()):
                return f"the VMs of {names} have no host in common that their host limits name"
            other = min(one for one, hosts in limits.items() if number not in hosts)
            return f"{host} is not for {other} of {names}, whose VMs start together or not at all"
        for keys in self._used_together(vm, bond):
            used = self._used_hosts(keys)
            if used is not None and number not in used:
                need = count_of(self._needed_hosts(keys), "host")
                return f"{host} has no slot of {render_groups(keys)}, whose VMs use {need} already"
        return ""

    # What the conflict index reports

    def record_join(self, vm: str, slot: int) -> None:
        """The VM is a member of the slot now."""
        for key in self._keys_of.get(vm, ()):
            self._count_join(self._groups[key], slot)

    def record_leave(self, vm: str, slot: int) -> None:
        """The VM is a member of the slot no more."""
        for key in self._keys_of.get(vm, ()):
            self._count_leave(self._groups[key], slot)

    def _count_join(self, group: _CountedGroup, slot: int) -> None:
        host = self._index.slot_host(slot)
        group.uses[host] = group.uses.get(host, 0) + 1
        group.slots[slot] = group.slots.get(slot, 0) + 1

    def _count_leave(self, group: _CountedGroup, slot: int) -> None:
        _decrement(group.uses, self._index.slot_host(slot))
        _decrement(group.slots, slot)

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
        group = self._groups.setdefault(key, _CountedGroup(key[1]))
        before = group.members.get(vm)
        if before == host:
            return
        place = self._index.host_number(host)
        if before is not None:
            _decrement(group.uses, self._index.host_number(before))
        group.uses[place] = group.uses.get(place, 0) + 1
        group.members[vm] = host
        if before is None:
            self._bonds.clear()
            self._keys_of[vm] = (*self._keys_of.get(vm, ()), key)
            for slot in self._index.slots_by_name(vm):
                self._count_join(group, slot)

    def _find_groups(self, vm: str) -> list[tuple[GroupKey, _CountedGroup]]:
        """The VM's groups where anybody else is in."""
        keys = self._keys_of.get(vm)
        if keys is None:
            return []
        return [(key, group) for key in keys if len((group := self._groups[key]).members) > 1]

    def _to_server_groups(self, keys: Iterable[GroupKey]) -> tuple[ServerGroup, ...]:
        """These groups as plain data, by name."""
        names = self._index.host_names
        return tuple(
            ServerGroup(
                name=key[0],
                policy=key[1],
                members=dict(sorted(group.members.items())),
                need=group.need,
                limits={
                    one: tuple(sorted(names[host] for host in hosts)) for one, hosts in sorted(group.limits.items())
                },
            )
            for key in sorted(keys)
            for group in [self._groups[key]]
        )

    def _find_bond(self, vm: str) -> Bond | None:
        """What affinity binds to the VM; ``None`` where it is in no group with anybody else."""
        if not self._find_groups(vm):
            return None
        bond = self._bonds.get(vm)
        if bond is None:
            bond = bond_of(
                vm, lambda one: (key for key, _ in self._find_groups(one)), lambda key: self._groups[key].members
            )
            self._bonds.update(dict.fromkeys(bond.members, bond))
        return bond

    def _kept_off(self, vm: str, bond: Bond) -> set[int]:
        """The hosts that anti-affinity closes to the VM, or to one that is to be with it."""
        found = self._slots_beyond(bond)
        for key in bond.apart:
            group = self._groups[key]
            found |= self._hosts_of_others(group, {vm} if vm in group.members else bond.members)
        return found

    def _hosts_of_others(self, group: _CountedGroup, vms: Collection[str]) -> set[int]:
        """The hosts where other members of the group than these run or have slots."""
        own: dict[int, int] = {}
        for vm in vms:
            if vm in group.members:
                hosts = [
                    self._index.host_number(group.members[vm]),
                    *map(self._index.slot_host, self._index.slots_by_name(vm)),
                ]
                for host in hosts:
                    own[host] = own.get(host, 0) + 1
        return {host for host, count in group.uses.items() if count > own.get(host, 0)}

    def _slots_beyond(self, bond: Bond) -> set[int]:
        """The hosts with slots of VMs that are to be with one whom anti-affinity keeps off."""
        slots = {slot for key in bond.beyond for slot in self._groups[key].slots}
        return {self._index.slot_host(slot) for slot in slots}

    def _collect_limits(self, bond: Bond) -> dict[str, frozenset[int]]:
        """VM → the hosts that it may run on, of those that are to be together and have a limit."""
        return {vm: hosts for key in bond.together for vm, hosts in self._groups[key].limits.items()}

    def _used_together(self, vm: str, bond: Bond) -> list[tuple[GroupKey, ...]]:
        """The affinity groups whose hosts are counted for the VM: each of its own, and all with a common member."""
        own: list[tuple[GroupKey, ...]] = [(key,) for key in bond.together if vm in self._groups[key].members]
        return own if len(bond.together) < 2 else [*own, bond.together]

    def _needed_hosts(self, keys: Iterable[GroupKey]) -> int:
        return max(self._groups[key].need for key in keys)

    def _used_hosts(self, keys: Collection[GroupKey]) -> set[int] | None:
        """The hosts with ready slots of affinity groups, or ``None`` while they may use more."""
        index, need = self._index, self._needed_hosts(keys)
        slots = {slot for key in keys for slot in self._groups[key].slots}
        found = {index.slot_host(slot) for slot in slots if index.slot_ready(slot)}
        return found if need and len(found) >= need else None

    def _open_hosts(self, vm: str, bond: Bond) -> Collection[int] | None:
        """The hosts where the VM's affinity groups may have its slots; ``None``: any."""
        sets: list[Collection[int]] = list(self._collect_limits(bond).values())
        sets += [used for keys in self._used_together(vm, bond) if (used := self._used_hosts(keys)) is not None]
        return set(sets[0]).intersection(*sets[1:]) if sets else None

    def _own_hosts(self, vm: str) -> list[str]:
        """Where the VM runs and where its slots are."""
        index = self._index
        return [index.location_of(vm), *(index.host_names[index.slot_host(slot)] for slot in index.slots_by_name(vm))]

    def _mask_own_domains(self, vm: str) -> NDArray[np.bool_]:
        """By host number, whether the host is in a domain with the VM's own host or with one of its slots."""
        index = self._index
        own = index.host_numbers(self._own_hosts(vm))
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


def _decrement(counts: dict[int, int], key: int) -> None:
    if counts[key] > 1:
        counts[key] -= 1
    else:
        del counts[key]


def render_groups(keys: Collection[GroupKey]) -> str:
    """Affinity groups in a sentence."""
    names = [name for name, _ in keys]
    return f"affinity group{'s' if len(names) > 1 else ''} {join_parts(names)}"
