"""The state's memberships: which slots list a VM, which of them count, what fails together, and how many it needs.

Units of failure are bits of a number, so that a hundred thousand VMs are judged in a fraction of a second. A member
that runs nowhere is where the last slot by name has recorded it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from outlive.base import Pattern, compile_pattern
from outlive.failover.verify.document import SHOWN, CertifiedState, Code, Findings
from outlive.failover.verify.fleet import FleetSlot, KeptSettings, StateFleet
from outlive.resources import Facts


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

    def counting_slots(self) -> dict[str, list[str]]:
        """Located VM → the slots that count for it, by name."""
        fleet = self._fleet
        return {
            vm: [slot.name for slot in self.slots_of.get(vm, ()) if find_objection(fleet, vm, slot) is None]
            for vm in fleet.places
        }

    def unit_of_host(self, host: str) -> str:
        """What fails as one with the host."""
        return self._unit_of.get(host, host)

    def unit_of_vm(self, vm: str) -> str:
        """The same for a member's host."""
        return self.unit_of_host(self._hosts[vm])

    def list_units(self) -> list[str]:
        """All units that occur, by name."""
        fleet = self._fleet
        hosts = {*fleet.hosts, *self._hosts.values(), *(slot.host for slot in fleet.slots.values())}
        return sorted({self.unit_of_host(host) for host in hosts})

    def find_faulty(self, vms: Iterable[str]) -> Iterator[str]:
        """Of these VMs those with a count above 1, in the order given."""
        bits = {unit: 1 << at for at, unit in enumerate(self.list_units())}
        touched: dict[str, int] = {}
        """Slot → its units as bits."""
        twice: set[str] = set()
        """The slots that touch a unit twice."""
        for slot in self._fleet.slots.values():
            units = bits[self.unit_of_host(slot.host)]
            for vm in slot.allocations:
                bit = bits[self.unit_of_vm(vm)]
                if units & bit:
                    twice.add(slot.name)
                units |= bit
            touched[slot.name] = units
        for vm in vms:
            seen = 0
            for slot in self.slots_of.get(vm, ()):
                both = seen & touched[slot.name]
                if slot.name in twice or both & (both - 1):  # two slots have the VM's own unit in common, and no other
                    yield vm
                    break
                seen |= touched[slot.name]

    def count_units(self, vm: str) -> dict[str, int]:
        """Unit → count of the VM, to the letter."""
        return Counter(unit for unit, _ in self._iter_occurrences(vm))

    def describe_unit(self, vm: str, unit: str) -> str:
        """Everything of the VM that is in the unit, in words."""
        return ", ".join(what for where, what in self._iter_occurrences(vm) if where == unit)

    def _iter_occurrences(self, vm: str) -> Iterator[tuple[str, str]]:
        """(unit, what): the VM itself, its slots, and the other members of each."""
        yield self.unit_of_vm(vm), "itself"
        for slot in self.slots_of[vm]:
            yield self.unit_of_host(slot.host), f"its slot {slot.name}"
            for other in sorted(slot.allocations):
                if other != vm:
                    yield self.unit_of_vm(other), f"{other} in its slot {slot.name}"


def find_objection(fleet: StateFleet, vm: str, slot: FleetSlot) -> tuple[Code, str] | None:
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
        return (
            Code.TOO_SMALL,
            f"holds {format_size(slot.cpu_milli, slot.memory_bytes)} and VM {vm} needs {format_size(cpu, memory)}",
        )
    return None


def format_size(cpu_milli: int, memory_bytes: int) -> str:
    """Amounts in words."""
    return f"{cpu_milli} milli-cores and {memory_bytes} bytes"


# How many slots each VM needs, by what the certificate says of itself and by the settings that the state keeps.
#
# A certificate for part of the fleet lowers the needs of VMs. It names what these VMs need, and the settings of the
# server that wrote the state are read once more here, so that neither can be passed over: a VM is *short* where it is
# certified for fewer failures than it needs slots. The settings count up to ``k``, since a certificate for fewer
# failures says so there.

NAMED = 3
"""Short VMs that the sentence names."""


class ShortVm(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that is certified for fewer failures than it needs slots."""

    vm: str
    certified: int
    required: int


class Shortfall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many VMs are short, and of how many that need slots."""

    required: int
    """VMs that need slots."""
    short: int
    vms: tuple[ShortVm, ...] = ()
    """The first of them."""

    def describe(self) -> str:
        """The same in words."""
        named = ", ".join(f"{one.vm} ({one.certified} of {one.required})" for one in self.vms[:NAMED])
        more = f" and {self.short - NAMED} more" if self.short > NAMED else ""
        return f"{self.short} of {self.required} VMs that need slots have fewer than they need: {named}{more}"


def compute_shortfall(fleet: StateFleet, certificate: CertifiedState) -> Shortfall:
    """Who is certified for less than it needs."""
    needs = _Needs(fleet.settings) if fleet.settings is not None else None
    known: dict[tuple[str, str, str, str], int] = {}
    needing, short = 0, []
    for vm in certificate.vms:
        required = max(vm.required, vm.need)
        spec = fleet.specs.get(vm.id)
        if needs is not None and spec is not None and vm.id not in fleet.deleted:
            kind = (spec.protection, spec.project, spec.flavor, spec.recovery.mode)
            if kind not in known:
                known[kind] = needs.required_slots(spec)
            required = max(required, min(known[kind], certificate.k))
        needing += required > 0
        if vm.need < required:
            short.append(ShortVm(vm=vm.id, certified=vm.need, required=required))
    return Shortfall(required=needing, short=len(short), vms=tuple(short[:SHOWN]))


def check_unplaced(fleet: StateFleet, findings: Findings) -> None:
    """A violation for each VM that is to run, may need slots, and is nowhere for certain."""
    needs = _Needs(fleet.settings) if fleet.settings is not None else None
    for name, vm in fleet.unplaced.items():
        if needs is None or needs.required_slots(vm.spec) > 0:
            host = vm.status.assigned.hypervisor
            message = f"VM {name} is to run and is recorded on {host}, and no report of that host confirms it"
            findings.add(Code.UNPLACED, message, vm=name, host=host)


class _Needs:
    """The settings of the state, compiled."""

    def __init__(self, settings: KeptSettings) -> None:
        patterns = settings.failover.flavor_failover_requirements
        protection = settings.protection
        self._slots = [(compile_pattern(text), count) for text, count in (patterns or {}).items()]
        self._levels = protection.levels
        self._default = protection.default
        self._projects = [(compile_pattern(text), level) for text, level in protection.projects.items()]
        self._flavors = [(compile_pattern(text), level) for text, level in protection.flavors.items()]

    def required_slots(self, vm: Facts) -> int:
        """Slots of the VM's level where that names any, else the largest count of the patterns for its flavor.

        None of a VM that was taken out of protection.
        """
        if vm.recovery.mode == "ignore":
            return 0
        level = self._levels.get(self._level_of(vm))
        if level is not None and level.slots is not None:
            return level.slots
        return max([0, *(count for pattern, count in self._slots if vm.flavor and pattern.fullmatch(vm.flavor))])

    def _level_of(self, vm: Facts) -> str:
        """The level that the VM names, else that of its project, else the strongest of its flavor, else the default."""
        if vm.protection in self._levels:
            return str(vm.protection)
        by_project = self._matching_levels(self._projects, vm.project)
        if by_project:
            return by_project[0]
        by_flavor = self._matching_levels(self._flavors, vm.flavor)
        return min(by_flavor, key=self._strongest_first) if by_flavor else self._default

    def _matching_levels(self, patterns: Sequence[tuple[Pattern, str]], text: str) -> list[str]:
        return [level for pattern, level in patterns if text and level in self._levels and pattern.fullmatch(text)]

    def _strongest_first(self, name: str) -> tuple[int, int, str]:
        level = self._levels[name]
        return (-level.priority, -(level.slots or 0), name)
