"""For which VMs a rule does not hold, kept change by change: units that occur more than once for a VM.

Stands on module ``touching``, carries module ``tallies`` (docs/reference/failover.md#counters): a VM's counter of a
unit is the sum over its slots, less what the VM itself brings to each slot but the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlive.failover.eligibility.touching import Touching


class Faults(Touching):
    """Members of slots, and how many units occur more than once for each of them."""

    def __init__(self, units: Mapping[str, str]) -> None:
        super().__init__(units)
        self._vm_unit: list[int] = []
        """By VM: the unit that it runs in."""
        self._slots_of: list[list[int]] = []
        """By VM: the slots that it is a member of."""
        self._faulty: dict[int, int] = {}
        """VMs for which a unit occurs more than once, and how many do."""
        self._faulty_slots: int | None = 0
        """The slots of these, as a bit set; ``None`` while not known."""

    def tally(self, vm: int, unit: int) -> int:
        """How often the unit occurs for the VM."""
        slots, units_of = self._slots_of[vm], self._units_of
        here = self._vm_unit[vm] == unit
        total = here * (1 - len(slots))
        for slot in slots:
            total += units_of[slot].get(unit, 0)
        return total

    def _note_more(self, vms: Iterable[int], unit: int) -> None:
        """The unit occurs once more for each of these VMs, because of one slot that they share."""
        slots_of, units_of, vm_unit = self._slots_of, self._units_of, self._vm_unit
        for vm in vms:
            slots = slots_of[vm]
            total = 1 - len(slots) if vm_unit[vm] == unit else 0  # ``tally``, in line: it runs for every co-user
            for slot in slots:
                total += units_of[slot].get(unit, 0)
            if total == 2:
                self._faulty[vm] = self._faulty.get(vm, 0) + 1
                self._faulty_slots = None

    def _note_less(self, vms: Iterable[int], unit: int) -> None:
        """The unit occurs once less for each of these VMs."""
        for vm in vms:
            if vm in self._faulty and self.tally(vm, unit) == 1:
                self._faulty[vm] -= 1
                self._faulty_slots = None
                if not self._faulty[vm]:
                    del self._faulty[vm]

    def _judge(self, vm: int) -> None:
        """Find out how many units occur more than once for the VM, in whatever way that came about."""
        excess = self._excess(vm)
        if excess or vm in self._faulty:
            self._faulty_slots = None
        if excess:
            self._faulty[vm] = excess
        else:
            self._faulty.pop(vm, None)

    def _excess(self, vm: int) -> int:
        units = [self._units_of[slot] for slot in self._slots_of[vm]]
        distinct = {self._vm_unit[vm]}.union(*units)
        crowded = any(self._crowded[slot] for slot in self._slots_of[vm])
        if not crowded and len(distinct) == 1 + sum(map(len, units)) - len(units):
            return 0
        counts = {self._vm_unit[vm]: 1 - len(units)}
        for touched in units:
            for unit, count in touched.items():
                counts[unit] = counts.get(unit, 0) + count
        return sum(count > 1 for count in counts.values())

    def _slots_at_fault(self) -> int:
        """The slots that have a member for which a rule does not hold, as a bit set."""
        if self._faulty_slots is None:
            self._faulty_slots = 0
            for vm in self._faulty:
                for slot in self._slots_of[vm]:
                    self._faulty_slots |= self._bit[slot]
        return self._faulty_slots
