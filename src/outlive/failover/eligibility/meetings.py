"""Where things meet that must not: every unit that occurs more than once for a VM, and what brings it there.

Found on columns, told by name. A *meeting* is one VM and one unit of failure, as a rule one host, in which two or more
of these are: the VM itself, its slots, its co-users. All five rules hold for a VM that has none
(docs/reference/failover.md#counters), and each broken rule can be read off a meeting. Tests hold this against the
literal rules of ``outlive.failover.eligibility.graph``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from outlive.failover.breaches import Breach
from outlive.failover.eligibility.columns import Columns
from outlive.failover.model import SlotView
from outlive.failover.topology import HOSTS_ALONE, Topology


class Meeting(NamedTuple):
    """What is in one unit in the eyes of one VM."""

    vm: str
    host: str
    """The unit's name, which is a host's where that is a unit by itself."""
    own: bool
    """The VM itself runs there."""
    slots: tuple[str, ...]
    """Its slots that are there."""
    shared: tuple[tuple[str, str], ...]
    """(slot of the VM, other member that runs there), in that order."""

    def breaches(self) -> Iterator[Breach]:
        """The rules that are broken by this meeting."""
        via: dict[str, list[str]] = {}
        for slot, other in self.shared:
            via.setdefault(other, []).append(slot)
        if self.own and self.slots:
            yield self._breach(1, self.slots)
        if len(self.slots) > 1:
            yield self._breach(2, self.slots)
        for other, slots in sorted(via.items()):
            if self.own:
                yield self._breach(3, slots, other)
            elif self.slots:
                yield self._breach(4, self.slots, other)
            if len(slots) > 1:
                yield self._breach(5, slots, other)
        if len(via) > 1:
            yield self._breach(5, sorted({slot for slot, _ in self.shared}), *sorted(via))

    def _breach(self, rule: int, slots: Sequence[str], *others: str) -> Breach:
        return Breach(rule=rule, vm=self.vm, host=self.host, slots=tuple(slots), others=others)


def find_meetings(
    slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology = HOSTS_ALONE
) -> list[Meeting]:
    """All meetings, by VM and unit. ``locations``: VM → host, wins over what slots have recorded."""
    columns = Columns(slots, locations, topology)
    vms, hosts = columns.meetings()
    if not len(vms):
        return []
    slots_of = _slots_of(columns, set(vms.tolist()))
    placed: dict[int, dict[int, list[str]]] = {}
    found = []
    for vm, host in zip(vms.tolist(), hosts.tolist(), strict=True):
        name = columns.vm_ids[vm]
        shared: list[tuple[str, str]] = []
        for slot in slots_of[vm]:
            if slot not in placed:
                placed[slot] = columns.members_by_host(slot)
            shared.extend((slots[slot].name, other) for other in placed[slot].get(host, ()) if other != name)
        found.append(
            Meeting(
                vm=name,
                host=columns.host_names[host],
                own=int(columns.location[vm]) == host,
                slots=tuple(sorted(slots[slot].name for slot in slots_of[vm] if int(columns.slot_host[slot]) == host)),
                shared=tuple(sorted(shared)),
            )
        )
    return sorted(found, key=lambda one: (one.vm, one.host))


def _slots_of(columns: Columns, vms: set[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {vm: [] for vm in vms}
    for vm, slot in zip(columns.member_vm.tolist(), columns.member_slot.tolist(), strict=True):
        if vm in found:
            found[vm].append(slot)
    return found
