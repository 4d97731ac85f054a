"""Which hosts and slots separation closes to a VM, by number: what the greedy asks beside the rules.

The fast form of module ``eligibility.separation`` (docs/reference/failover.md#separation). It keeps who is in which
server group and where members run, and reads slots from the counters whenever it is asked, so that it follows every
join, opening, move and undo by itself. Where nothing is asked for, it answers at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from outlive.failover.eligibility.counters import Counters
from outlive.failover.eligibility.separation import AFFINITY, ServerGroup, binding_group
from outlive.failover.model import VmView

Ints = NDArray[np.int64]


class _Group:
    """Members of one group, where they run and what they need."""

    def __init__(self, policy: str, need: int = 0) -> None:
        self.policy = policy
        self.members: dict[str, str] = {}
        self.needs: dict[str, int] = {}
        self._need = need

    @property
    def need(self) -> int:
        """The most slots that any member needs; 0: not known."""
        return max(self._need, max(self.needs.values(), default=0))


class Separating:
    """Follows the counters that it is given."""

    def __init__(self, counters: Counters, groups: Iterable[ServerGroup] = ()) -> None:
        """``groups``: those that bind slots, as they are now; without ``topology.server_groups`` none does."""
        self._counters = counters
        self._domains = bool(counters.domains)
        self._groups: dict[tuple[str, str], _Group] = {}
        self._group_of: dict[str, tuple[str, str]] = {}
        self._codes: dict[str, Ints] = {}
        self._coded = (-1, -1)
        if counters.topology.server_groups:
            for group in groups:
                key = (group.name, group.policy)
                kept = self._groups[key] = _Group(group.policy, group.need)
                kept.members.update(group.members)
                self._group_of.update(dict.fromkeys(group.members, key))

    def put(self, vm: VmView, need: int) -> None:
        """The VM is here now and needs so many slots."""
        if not self._counters.topology.server_groups:
            return
        key = binding_group(vm)
        if self._group_of.get(vm.id) != key:
            self.forget(vm.id)
        if key is not None:
            group = self._groups.setdefault(key, _Group(key[1]))
            group.members[vm.id], group.needs[vm.id] = vm.host, need
            self._group_of[vm.id] = key

    def forget(self, vm_id: str) -> None:
        """The VM is in no group any more."""
        key = self._group_of.pop(vm_id, None)
        if key is None:
            return
        group = self._groups[key]
        del group.members[vm_id]
        group.needs.pop(vm_id, None)
        if not group.members:
            del self._groups[key]

    def group(self, vm_id: str) -> ServerGroup | None:
        """The VM's group as plain data; ``None`` where nobody else is in it."""
        found = self._group(vm_id)
        if found is None:
            return None
        name, policy = self._group_of[vm_id]
        return ServerGroup(name=name, policy=policy, members=dict(sorted(found.members.items())), need=found.need)

    def binds(self, vm_id: str) -> bool:
        """Whether anything may be closed to the VM."""
        return self._domains or self._group(vm_id) is not None

    def among(self, vm_id: str, slots: int) -> int:
        """Of these slots, a bit set, those that separation allows the VM to join."""
        counters = self._counters
        if not self._group_of and not self._domains:
            return slots
        if self._domains and slots:
            slots &= ~counters.domains.slots_near(self._own_hosts(vm_id))
        group = self._group(vm_id)
        if group is None or not slots:
            return slots
        if group.policy == AFFINITY:
            used = self._used(group)
            return slots if used is None else slots & counters.placed_on(used)
        return slots & ~counters.placed_on(self._peers(group, vm_id))

    def closed(self, vm_id: str) -> NDArray[np.bool_] | None:
        """By host number, whether separation keeps a slot of the VM off the host; ``None`` where it asks nothing."""
        if not self.binds(vm_id):
            return None
        group = self._group(vm_id)
        counters = self._counters
        # Members may be on hosts that the counters have not met: they get their numbers before anything is sized.
        used = self._used(group) if group is not None and group.policy == AFFINITY else None
        peers = self._peers(group, vm_id) if group is not None and group.policy != AFFINITY else set[int]()
        own = counters.hosts(self._own_hosts(vm_id)) if self._domains else []
        found = np.full(len(counters.host_names), used is not None, dtype=bool)
        if used is not None:
            found[list(used)] = False
        found[list(peers)] = True
        for domain in counters.domains.names:
            codes = self._codes_of(domain)
            for code in {int(codes[host]) for host in own} - {-1}:
                found |= codes == code
        return found

    def allows(self, vm_id: str, host: str) -> bool:
        """Whether the VM may have a further slot on the host, as far as separation goes."""
        number = self._counters.host(host)
        closed = self.closed(vm_id)
        return closed is None or not closed[number]

    def why(self, vm_id: str, host: str) -> str:
        """What closes the host to the VM, in words; empty where nothing does."""
        counters = self._counters
        for domain in counters.domains.names:
            value = counters.domains.value(domain, host)
            for other in self._own_hosts(vm_id) if value is not None else ():
                if counters.domains.value(domain, other) == value:
                    return f"{host} is in {domain} {value} like {other}"
        group = self._group(vm_id)
        if group is None or self.allows(vm_id, host):
            return ""
        name = self._group_of[vm_id][0]
        if group.policy == AFFINITY:
            return f"{host} has no slot of affinity group {name}, which uses {group.need} hosts already"
        return f"{host} has a VM of anti-affinity group {name}, or a slot of one"

    def _group(self, vm_id: str) -> _Group | None:
        key = self._group_of.get(vm_id)
        group = self._groups[key] if key is not None else None
        return group if group is not None and len(group.members) > 1 else None

    def _own_hosts(self, vm_id: str) -> list[str]:
        """Where the VM runs and where its slots are."""
        counters = self._counters
        slots = counters.slot_numbers(counters.vm(vm_id))
        return [counters.location(vm_id), *(counters.host_names[counters.slot_host(slot)] for slot in slots)]

    def _slots_of(self, vm_id: str) -> list[int]:
        counters = self._counters
        return counters.slot_numbers(counters.vm(vm_id)) if counters.has_vm(vm_id) else []

    def _peers(self, group: _Group, vm_id: str) -> set[int]:
        """The hosts where other members run or have slots."""
        counters, found = self._counters, set[int]()
        for peer, host in group.members.items():
            if peer != vm_id:
                found.add(counters.host(host))
                found.update(map(counters.slot_host, self._slots_of(peer)))
        return found

    def _used(self, group: _Group) -> set[int] | None:
        """The hosts with ready slots of the group, or ``None`` while it may use more."""
        counters = self._counters
        ready = counters.open_slots
        slots = {slot for member in group.members for slot in self._slots_of(member) if counters.slot_bit(slot) & ready}
        found = set(map(counters.slot_host, slots))
        return found if group.need and len(found) >= group.need else None

    def _codes_of(self, domain: str) -> Ints:
        """By host number, a number for the host's value; -1: it has none."""
        counters = self._counters
        now = (len(counters.host_names), counters.domains.version)
        if self._coded != now:
            self._codes, self._coded = {}, now
        codes = self._codes.get(domain)
        if codes is None:
            numbers: dict[str, int] = {}
            values = (counters.domains.value(domain, host) for host in counters.host_names)
            codes = np.array(
                [-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64
            )
            self._codes[domain] = codes
        return codes
