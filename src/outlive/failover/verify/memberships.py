"""The state's memberships: which slots list whom, which of them count, and what fails together.

Units of failure are bits of a number, so that a hundred thousand VMs are judged in a fraction of a second. A member
that runs nowhere is where the last slot by name has recorded it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from outlive.failover.verify.findings import Code
from outlive.failover.verify.fleet import FleetSlot, StateFleet


class Memberships:
    """Who is in which slot, with units of failure in place of hosts."""

    def __init__(self, fleet: StateFleet, unit_of: Mapping[str, str]) -> None:
        self._fleet = fleet
        self._unit_of = unit_of
        self.slots_of: dict[str, list[FleetSlot]] = {}
        """VM → the slots that list it, by name."""
        self._hosts: dict[str, str] = {}
        for slot in fleet.slots.values():
            self._hosts.update(slot.allocations)
            for vm in slot.allocations:
                self.slots_of.setdefault(vm, []).append(slot)
        self._hosts.update(fleet.places)

    def counting(self) -> dict[str, list[str]]:
        """Located VM → the slots that count for it, by name."""
        fleet = self._fleet
        return {
            vm: [slot.name for slot in self.slots_of.get(vm, ()) if objection(fleet, vm, slot) is None]
            for vm in fleet.places
        }

    def unit(self, host: str) -> str:
        """What fails as one with the host."""
        return self._unit_of.get(host, host)

    def unit_of_vm(self, vm: str) -> str:
        """The same for a member's host."""
        return self.unit(self._hosts[vm])

    def units(self) -> list[str]:
        """All units that occur, by name."""
        fleet = self._fleet
        hosts = {*fleet.hosts, *self._hosts.values(), *(slot.host for slot in fleet.slots.values())}
        return sorted({self.unit(host) for host in hosts})

    def at_fault(self, vms: Iterable[str]) -> Iterator[str]:
        """Of these VMs those with a count above 1, in the order given."""
        touched, twice = self._touched()
        for vm in vms:
            seen = 0
            for slot in self.slots_of.get(vm, ()):
                both = seen & touched[slot.name]
                if slot.name in twice or both & (both - 1):  # two slots have the VM's own unit in common, and no other
                    yield vm
                    break
                seen |= touched[slot.name]

    def _touched(self) -> tuple[dict[str, int], set[str]]:
        """Slot → its units as bits; and the slots that touch a unit twice."""
        bits = {unit: 1 << at for at, unit in enumerate(self.units())}
        touched, twice = {}, set()
        for slot in self._fleet.slots.values():
            seen = bits[self.unit(slot.host)]
            for vm in slot.allocations:
                bit = bits[self.unit_of_vm(vm)]
                if seen & bit:
                    twice.add(slot.name)
                seen |= bit
            touched[slot.name] = seen
        return touched, twice

    def count(self, vm: str) -> dict[str, int]:
        """Unit → count of the VM, to the letter."""
        return Counter(unit for unit, _ in self._everything(vm))

    def why(self, vm: str, unit: str) -> str:
        """Everything of the VM that is in the unit, in words."""
        return ", ".join(what for where, what in self._everything(vm) if where == unit)

    def _everything(self, vm: str) -> Iterator[tuple[str, str]]:
        """(unit, what): the VM itself, its slots, and the other members of each."""
        yield self.unit_of_vm(vm), "itself"
        for slot in self.slots_of[vm]:
            yield self.unit(slot.host), f"its slot {slot.name}"
            for other in sorted(slot.allocations):
                if other != vm:
                    yield self.unit_of_vm(other), f"{other} in its slot {slot.name}"


def objection(fleet: StateFleet, vm: str, slot: FleetSlot) -> tuple[Code, str] | None:
    """Why the slot does not count for a located VM; ``None`` where it does."""
    place, recorded, spec = fleet.places[vm], slot.allocations.get(vm), fleet.specs[vm]
    if recorded is None:
        return Code.NOT_A_MEMBER, f"does not list VM {vm}"
    if recorded != place:
        return Code.RECORDED_ELSEWHERE, f"lists VM {vm} as on {recorded} and it runs on {place}"
    if not slot.ready:
        return Code.SLOT_NOT_READY, f"is listed for VM {vm} and not ready"
    if spec.host_limit and slot.host not in spec.host_limit:
        return Code.NOT_ALLOWED, f"is listed for VM {vm}, which may not run there by its hostLimit"
    preferred = spec.preferred_hosts
    if preferred.strict and preferred.weights and slot.host not in preferred.weights:
        return Code.NOT_ALLOWED, f"is listed for VM {vm}, which may not run there by its strict preferredHosts"
    cpu, memory = spec.resources.cpu_milli, spec.resources.memory_bytes
    if slot.cpu_milli < cpu or slot.memory_bytes < memory:
        return Code.TOO_SMALL, f"holds {size(slot.cpu_milli, slot.memory_bytes)} and VM {vm} needs {size(cpu, memory)}"
    return None


def size(cpu_milli: int, memory_bytes: int) -> str:
    """Amounts in words."""
    return f"{cpu_milli} milli-cores and {memory_bytes} bytes"
