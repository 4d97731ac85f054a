"""The rules literally, as the oracle of tests: who is a member of what, where, as five plain maps.

The small and literal form of the state that eligibility is judged in (docs/reference/failover-rules.md#eligibility). It
answers one question at a time and says which rule is broken by whom; the product uses ``conflicts``,
and tests hold the two against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from outlive.failover import HOSTS_ALONE, Breach, SlotView, Topology


def with_hosts(
    found: Iterable[Breach], slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology
) -> Iterator[Breach]:
    """The breaches with the hosts behind each unit. ``locations``: VM → host, wins over what slots have recorded."""
    if not topology.units:
        yield from found
        return
    breaches, units = list(found), set(topology.units.values())
    on = {slot.name: slot.host for slot in slots} if breaches else {}
    at = {vm: host for slot in slots for vm, host in slot.members.items()} | dict(locations) if breaches else {}
    for breach in breaches:
        if breach.host not in units:
            yield breach
            continue
        involved = {at[vm] for vm in (breach.vm, *breach.others) if vm in at} | {on[slot] for slot in breach.slots}
        hosts = sorted(host for host in involved if topology.unit_of_host(host) == breach.host)
        yield msgspec.structs.replace(breach, hosts=tuple(hosts))


class DependencyGraph:
    """VM → slots, VM → host, VM → slot hosts, slot → VMs, slot → host.

    Hosts are there as units of failure, by name; without ``topology.units`` these are the hosts themselves. Empty
    entries and absent ones mean the same.
    """

    def __init__(self, *, topology: Topology = HOSTS_ALONE) -> None:
        self._unit = topology.unit_of_host
        self.vm_slots: dict[str, set[str]] = {}
        self.vm_host: dict[str, str] = {}
        self.vm_slot_hosts: dict[str, Counter[str]] = {}
        self.slot_vms: dict[str, set[str]] = {}
        self.slot_host: dict[str, str] = {}

    @classmethod
    def build(
        cls, slots: Iterable[SlotView], *, locations: Mapping[str, str] | None = None, topology: Topology = HOSTS_ALONE
    ) -> DependencyGraph:
        """The graph of these slots.

        A VM's host is the one in ``locations``, else the one recorded by the last slot in the list.
        """
        graph = cls(topology=topology)
        known = locations or {}
        for slot in slots:
            graph.slot_vms.setdefault(slot.name, set())
            graph.slot_host[slot.name] = graph._unit(slot.host)
            for vm, host in slot.members.items():
                graph.add(vm, known.get(vm, host), slot.name, slot.host)
        return graph

    def add(self, vm: str, vm_host: str, slot: str, slot_host: str) -> None:
        """Make the VM a member; its host becomes ``vm_host`` in the whole graph."""
        vm_host, slot_host = self._unit(vm_host), self._unit(slot_host)
        hosts = self.vm_slot_hosts.setdefault(vm, Counter())
        if slot not in self.vm_slots.setdefault(vm, set()) or slot_host not in hosts:
            hosts[slot_host] = hosts[slot_host] + 1
        self.vm_slots[vm].add(slot)
        self.vm_host[vm] = vm_host
        self.slot_vms.setdefault(slot, set()).add(vm)
        self.slot_host[slot] = slot_host

    def remove(self, vm: str, slot: str, slot_host: str) -> None:
        """Take the VM out of the slot; nothing happens when it is no member."""
        if slot not in self.vm_slots.get(vm, ()):
            return
        slot_host = self._unit(slot_host)
        self.vm_slots[vm].discard(slot)
        self.slot_vms[slot].discard(vm)
        hosts = self.vm_slot_hosts[vm]
        hosts[slot_host] -= 1
        if hosts[slot_host] <= 0:
            del hosts[slot_host]

    def couser_slots(self, vm: str) -> dict[str, list[str]]:
        """Co-user → the slots that it shares with the VM, both in name order."""
        shared: dict[str, list[str]] = {}
        for slot in sorted(self.vm_slots.get(vm, ())):
            for other in self.slot_vms[slot]:
                if other != vm:
                    shared.setdefault(other, []).append(slot)
        return dict(sorted(shared.items()))

    def breaches(self, vm: str) -> Iterator[Breach]:
        """Every rule that does not hold for this VM, literally as the rules are written."""
        own, hosts = self.vm_host.get(vm, ""), self.vm_slot_hosts.get(vm, Counter())
        slots = sorted(self.vm_slots.get(vm, ()))
        if slots and own in hosts:
            on_own = tuple(slot for slot in slots if self.slot_host[slot] == own)
            yield Breach(rule=1, vm=vm, host=own, slots=on_own)
        yield from self._shared_slot_hosts(vm, slots, hosts)
        shared = self.couser_slots(vm)
        by_host: dict[str, list[str]] = {}
        for other, via in shared.items():
            place = self.vm_host[other]
            by_host.setdefault(place, []).append(other)
            if place == own:
                yield Breach(rule=3, vm=vm, host=own, slots=tuple(via), others=(other,))
            elif place in hosts:
                there = tuple(slot for slot in slots if self.slot_host[slot] == place)
                yield Breach(rule=4, vm=vm, host=place, slots=there, others=(other,))
            if len(via) > 1:
                yield Breach(rule=5, vm=vm, host=place, slots=tuple(via), others=(other,))
        for place, others in sorted(by_host.items()):
            if len(others) > 1:
                via_all = sorted({slot for other in others for slot in shared[other]})
                yield Breach(rule=5, vm=vm, host=place, slots=tuple(via_all), others=tuple(others))

    def _shared_slot_hosts(self, vm: str, slots: list[str], hosts: Counter[str]) -> Iterator[Breach]:
        for host, count in sorted(hosts.items()):
            if count > 1:
                there = tuple(slot for slot in slots if self.slot_host[slot] == host)
                yield Breach(rule=2, vm=vm, host=host, slots=there)

    def holds_for(self, vm: str) -> bool:
        """Whether all five rules hold for this VM."""
        return next(self.breaches(vm), None) is None

    def holds_in(self, slot: str) -> bool:
        """Whether all five rules hold for every member of the slot."""
        return all(self.holds_for(vm) for vm in self.slot_vms.get(slot, ()))

    def count(self, vm: str, host: str) -> int:
        """How often the host occurs for the VM: as its own, as a slot's, as a co-user's, each pair counted."""
        pairs = sum(len(via) for other, via in self.couser_slots(vm).items() if self.vm_host[other] == host)
        return (self.vm_host.get(vm) == host) + self.vm_slot_hosts.get(vm, Counter())[host] + pairs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DependencyGraph):
            return NotImplemented
        return self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]

    def _content(self) -> tuple[dict[str, object], ...]:
        placed = {vm: host for vm, host in self.vm_host.items() if self.vm_slots.get(vm)}
        return (
            {vm: slots for vm, slots in self.vm_slots.items() if slots},
            dict(placed),
            {vm: dict(+hosts) for vm, hosts in self.vm_slot_hosts.items() if +hosts},
            {slot: vms for slot, vms in self.slot_vms.items() if vms},
        )
