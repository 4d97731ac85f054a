"""Which hosts and slots separation closes to a VM, by number: what the greedy asks beside the rules.

The fast form of module ``eligibility.separation`` (docs/reference/failover.md#separation). It rests on what the
counters keep of domains and groups, so that it follows every join, opening, move and undo by itself. Where nothing is
asked for, it answers at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from outlive.failover.eligibility.counters import Counters
from outlive.failover.eligibility.separation import AFFINITY, ServerGroup
from outlive.failover.model import VmView

Ints = NDArray[np.int64]


class Separating:
    """What the counters know of domains and groups, as answers."""

    def __init__(self, counters: Counters, groups: Iterable[ServerGroup] = ()) -> None:
        """``groups``: those that bind slots, as they are now; without ``topology.server_groups`` none does."""
        self._counters = counters
        self._groups = counters.groups
        self._domains = bool(counters.domains)
        self._codes: dict[str, Ints] = {}
        self._coded = (-1, -1)
        if counters.topology.server_groups:
            for group in groups:
                self._groups.take(group)

    def put(self, vm: VmView, need: int) -> None:
        """The VM is here now and needs so many slots."""
        if self._counters.topology.server_groups:
            self._groups.put(vm, need)

    def forget(self, vm_id: str) -> None:
        """The VM is in no group any more."""
        self._groups.forget(vm_id)

    def group(self, vm_id: str) -> ServerGroup | None:
        """The VM's group as plain data; ``None`` where nobody else is in it."""
        return self._groups.plain(vm_id)

    def binds(self, vm_id: str) -> bool:
        """Whether anything may be closed to the VM."""
        return self._domains or self._groups.find(vm_id) is not None

    def among(self, vm_id: str, slots: int) -> int:
        """Of these slots, a bit set, those that separation allows the VM to join."""
        counters = self._counters
        if not self._groups and not self._domains:
            return slots
        if self._domains and slots:
            slots &= ~counters.domains.slots_near(self._own_hosts(vm_id))
        group = self._groups.find(vm_id)
        if group is None or not slots:
            return slots
        if group.policy == AFFINITY:
            used = self._groups.used(group)
            return slots if used is None else slots & counters.placed_on(used)
        return slots & ~counters.placed_on(self._groups.peers(vm_id))

    def closed(self, vm_id: str) -> NDArray[np.bool_] | None:
        """By host number, whether separation keeps a slot of the VM off the host; ``None`` where it asks nothing."""
        if not self.binds(vm_id):
            return None
        group, counters = self._groups.find(vm_id), self._counters
        used = self._groups.used(group) if group is not None and group.policy == AFFINITY else None
        peers = self._groups.peers(vm_id) if group is not None and group.policy != AFFINITY else set[int]()
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
        group = self._groups.find(vm_id)
        if group is None or self.allows(vm_id, host):
            return ""
        name = self._groups.name(vm_id)
        if group.policy == AFFINITY:
            return f"{host} has no slot of affinity group {name}, which uses {group.need} hosts already"
        return f"{host} has a VM of anti-affinity group {name}, or a slot of one"

    def _own_hosts(self, vm_id: str) -> list[str]:
        """Where the VM runs and where its slots are."""
        counters = self._counters
        slots = counters.slot_numbers(counters.vm(vm_id))
        return [counters.location(vm_id), *(counters.host_names[counters.slot_host(slot)] for slot in slots)]

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
