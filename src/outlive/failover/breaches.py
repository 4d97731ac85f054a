"""Rules that do not hold, with everybody involved: what the conflict index answers about VMs at fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec


class Breach(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One rule that does not hold for one VM, and the parties."""

    rule: int
    """1 to 5, as numbered in docs/reference/failover-rules.md#the-five-rules."""
    vm: str
    host: str
    """The host on which two things meet; where units have names of their own, the unit."""
    hosts: tuple[str, ...] = ()
    """Where ``host`` is a unit of several hosts: those on which the things are that meet, by name."""
    slots: tuple[str, ...] = ()
    """The slots of the VM that are involved, in name order."""
    others: tuple[str, ...] = ()
    """The other VMs that are involved, by id."""

    def sentence(self) -> str:
        """What is wrong, in one sentence."""
        slots, others = " and ".join(self.slots), " and ".join(self.others)
        at = f"in {self.host} (on {' and '.join(self.hosts)})" if self.hosts else f"on {self.host}"
        match self.rule:
            case 1:
                return f"slot {slots} of VM {self.vm} is {at}, where the VM runs"
            case 2:
                return f"slots {slots} of VM {self.vm} are both {at}"
            case 3:
                return f"VMs {self.vm} and {others} both run {at} and are members of slot {slots}"
            case 4:
                return f"VM {others} runs {at}, where its fellow member {self.vm} has slot {slots}"
        if len(self.others) == 1:
            return f"VMs {self.vm} and {others} share more than one slot: {slots}"
        return f"VMs {others} both run {at} and share slots {slots} with VM {self.vm}"


class Meeting(NamedTuple):
    """One VM and one unit of failure in which two or more of these are: the VM itself, its slots, its co-users.

    All five rules hold for a VM that has none, and each broken rule can be read off a meeting.
    """

    vm: str
    host: str
    """The unit's name, which is a host's where that is a unit by itself."""
    own: bool
    """The VM itself runs there."""
    slots: tuple[str, ...]
    """Its slots that are there."""
    shared: tuple[tuple[str, str], ...]
    """(slot of the VM, other member that runs there), in that order."""
    vm_hosts: Mapping[str, str] = {}
    """VM that runs there → its host."""
    slot_hosts: Mapping[str, str] = {}
    """Slot of the VM that is there → its host."""

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
        involved = {self.vm_hosts[vm] for vm in (self.vm, *others) if vm in self.vm_hosts}
        involved.update(self.slot_hosts[slot] for slot in slots if slot in self.slot_hosts)
        hosts = () if involved <= {self.host} else tuple(sorted(involved))
        return Breach(rule=rule, vm=self.vm, host=self.host, hosts=hosts, slots=tuple(slots), others=others)
