"""Where the members of each server group run and have slots: counted by host, kept change by change.

Part of the counted state (module ``tallies``), so that a large group costs no more to ask than the hosts that it uses.
As long as nobody is in a group it costs nothing (docs/reference/failover.md#separation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.failover.eligibility.separation import ServerGroup, binding_group
from outlive.failover.model import VmView

if TYPE_CHECKING:
    from outlive.failover.eligibility.tallies import Tallies

Key = tuple[str, str]
"""Name and policy."""


class Group:
    """One group, counted."""

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

    @property
    def need(self) -> int:
        """The most slots that any member needs; 0: not known."""
        return max(self.least_need, max(self.needs.values(), default=0))


class Groups:
    """The groups whose policies bind slots."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies
        self._groups: dict[Key, Group] = {}
        self._key_of: dict[str, Key] = {}

    def __bool__(self) -> bool:
        return bool(self._key_of)

    def find(self, vm: str) -> Group | None:
        """The VM's group, if there is anybody else in it."""
        key = self._key_of.get(vm)
        group = self._groups[key] if key is not None else None
        return group if group is not None and len(group.members) > 1 else None

    def plain(self, vm: str) -> ServerGroup | None:
        """The same as plain data."""
        group = self.find(vm)
        if group is None:
            return None
        name, policy = self._key_of[vm]
        return ServerGroup(name=name, policy=policy, members=dict(sorted(group.members.items())), need=group.need)

    def name(self, vm: str) -> str:
        """What the VM's group is called."""
        return self._key_of[vm][0]

    def take(self, given: ServerGroup) -> None:
        """This group, as it is."""
        for vm, host in given.members.items():
            self._put(vm, (given.name, given.policy), host)
            group = self._groups[given.name, given.policy]
            group.least_need = max(group.least_need, given.need)

    def put(self, vm: VmView, need: int) -> None:
        """The VM is here now, in this group or in none, and needs so many slots."""
        key = binding_group(vm)
        if key is None:
            self.forget(vm.id)
            return
        self._put(vm.id, key, vm.host)
        self._groups[key].needs[vm.id] = need

    def forget(self, vm: str) -> None:
        """The VM is in no group any more."""
        key = self._key_of.get(vm)
        if key is None:
            return
        for slot in self._slots_of(vm):
            self.left(vm, slot)
        group = self._groups[key]
        _less(group.uses, self._tallies.host(group.members.pop(vm)))
        group.needs.pop(vm, None)
        del self._key_of[vm]
        if not group.members:
            del self._groups[key]

    def joined(self, vm: str, slot: int) -> None:
        """The VM is a member of the slot now."""
        key = self._key_of.get(vm)
        if key is not None:
            group, host = self._groups[key], self._tallies.slot_host(slot)
            group.uses[host] = group.uses.get(host, 0) + 1
            group.slots[slot] = group.slots.get(slot, 0) + 1

    def left(self, vm: str, slot: int) -> None:
        """The VM is a member of the slot no more."""
        key = self._key_of.get(vm)
        if key is not None:
            group = self._groups[key]
            _less(group.uses, self._tallies.slot_host(slot))
            _less(group.slots, slot)

    def peers(self, vm: str) -> set[int]:
        """The hosts where other members of the VM's group run or have slots."""
        group, tallies = self._groups[self._key_of[vm]], self._tallies
        own = {tallies.host(group.members[vm]): 1}
        for slot in self._slots_of(vm):
            host = tallies.slot_host(slot)
            own[host] = own.get(host, 0) + 1
        return {host for host, count in group.uses.items() if count > own.get(host, 0)}

    def used(self, group: Group) -> set[int] | None:
        """The hosts with ready slots of an affinity group, or ``None`` while it may use more."""
        tallies = self._tallies
        found = {tallies.slot_host(slot) for slot in group.slots if tallies.slot_ready(slot)}
        need = group.need
        return found if need and len(found) >= need else None

    def _put(self, vm: str, key: Key, host: str) -> None:
        if self._key_of.get(vm) != key:
            self.forget(vm)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key[1])
        before = group.members.get(vm)
        if before == host:
            return
        place = self._tallies.host(host)
        if before is not None:
            _less(group.uses, self._tallies.host(before))
        group.uses[place] = group.uses.get(place, 0) + 1
        group.members[vm] = host
        if before is None:
            self._key_of[vm] = key
            for slot in self._slots_of(vm):
                self.joined(vm, slot)

    def _slots_of(self, vm: str) -> list[int]:
        return self._tallies.slots_by_name(vm)


def _less(counts: dict[int, int], key: int) -> None:
    if counts[key] > 1:
        counts[key] -= 1
    else:
        del counts[key]
