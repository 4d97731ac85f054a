"""The fleet that a state describes, read from resources alone: hosts, VMs with their places, slots, and room.

Where a VM is: it is assigned to a host and that host reports it as active. Where the state's own settings trust the
hosts, it is where a host reports it as active, as long as it is assigned anywhere at all; of several the first by name
of those that are not lost and may run it. A VM that no host reports as active, except hosts that are lost or may not
run it, is where it is to run if it is being started, restarted or moved; any other, for example a stopped one, is not
in the fleet (docs/reference/failover-certificate.md#certificate-checks).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from outlive.base import BadInput
from outlive.resources import (
    COMMITTED,
    CPU,
    DOMAIN_LABEL_PREFIX,
    FAILOVER,
    IN_FLIGHT,
    MEMORY,
    RESERVATION_TYPE_LABEL,
    TYPE_LABEL_VALUES,
    Cluster,
    Facts,
    Hypervisor,
    Membership,
    Reservation,
    Resource,
    VirtualMachine,
    facts_type,
    find_condition,
)

SETTINGS_ANNOTATION: Final = "outlive.dev/settings"
"""On ``Cluster/default``: settings of the server that wrote the state, as JSON."""
COMING_UP: Final = frozenset({"start", "restart", "migrate", "migrate-live", "unmigrate"})
"""Phases of a VM that is to run and may have no domain for a while."""
DOWN: Final = frozenset({"stop", "shutdown", "disable", "fail"})
"""Phases of a VM that nobody is to start …"""
ENDED_BY_SPEC: Final = "stopped-by-spec"
"""… unless only its spec had stopped it, which says otherwise by now."""
WORKING: Final = (("Ready", "True"), ("HypervisorDisabled", "False"), ("Terminating", "False"))
"""Conditions of a host whose slots can be used; one that is absent is well."""
Room = tuple[int, int]
"""Milli-cores and bytes."""


class FleetSlot(msgspec.Struct, frozen=True):
    """A slot of the state."""

    name: str
    host: str
    cpu_milli: int
    memory_bytes: int
    allocations: dict[str, str]
    ready: bool
    """Whether it is not said to be otherwise, and its host takes VMs."""


class KeptLevel(msgspec.Struct, frozen=True):
    """A protection level."""

    slots: int | None = None
    priority: int = 0


class KeptProtection(msgspec.Struct, frozen=True):
    """Section ``protection``."""

    levels: dict[str, KeptLevel] = {}
    default: str = ""
    flavors: dict[str, str] = {}
    projects: dict[str, str] = {}


class KeptFailover(msgspec.Struct, frozen=True, rename="camel"):
    """Section ``failover``."""

    trust_hypervisor_location: bool | None = None
    flavor_failover_requirements: dict[str, int] | None = None


class KeptSettings(msgspec.Struct, frozen=True):
    """What the server that wrote the state kept of its settings with it, as far as the check needs them."""

    failover: KeptFailover = KeptFailover()
    protection: KeptProtection = KeptProtection()


class StateFleet:
    """What a state says of hosts, VMs and slots."""

    def __init__(self, facts: Iterable[Facts]) -> None:
        kinds: dict[type, list[Facts]] = {}
        for item in facts:
            kinds.setdefault(type(item), []).append(item)

        def facts_of(kind: type[Resource]) -> list[Facts]:
            return kinds.get(facts_type(kind), [])

        hosts, vms = facts_of(Hypervisor), facts_of(VirtualMachine)
        kept = [_read_settings(cluster) for cluster in facts_of(Cluster) if cluster.metadata.name == "default"]
        self.settings = kept[0] if kept else None
        """``None`` where the state keeps none."""
        trusting = self.settings is not None and bool(self.settings.failover.trust_hypervisor_location)
        self.reservations: dict[str, Facts] = {found.metadata.name: found for found in facts_of(Reservation)}
        self.hosts = {host.metadata.name: host for host in sorted(hosts, key=lambda one: one.metadata.name)}
        self.members: dict[str, Facts] = {one.metadata.name: one for one in facts_of(Membership)}
        """Host with our daemon → its Membership."""
        self.specs: dict[str, Facts] = {}
        """Located VM → what it asks for."""
        self.places = self._locate_vms(vms, trusting)
        """Located VM → its host."""
        self.unplaced = {vm.metadata.name: vm for vm in vms if self._is_unplaced(vm)}
        """VMs that are to run and of which it cannot be said where."""
        self.deleted = frozenset(vm.metadata.name for vm in vms if _is_deleted(vm))
        """VMs that go once nobody may run them: none of them needs slots."""
        self.slots = {
            name: self._to_slot(found)
            for name, found in sorted(self.reservations.items())
            if explain_no_slot(found) is None
        }

    def _to_slot(self, found: Facts) -> FleetSlot:
        resources, status = found.spec.resources, found.status
        members = status.failover_reservation if status.consumer is None else None
        host = self.hosts.get(status.host)
        return FleetSlot(
            name=found.metadata.name,
            host=status.host,
            cpu_milli=resources.cpu_milli,
            memory_bytes=resources.memory_bytes,
            allocations=members.allocations if members is not None else {},
            ready=_is_ready(found) is not False and status.consumer is None and (not status.host or _is_usable(host)),
        )

    def _locate_vms(self, vms: list[Facts], trusting: bool) -> dict[str, str]:
        active = {name: [one.id for one in host.status.instances if one.active] for name, host in self.hosts.items()}
        first: dict[str, str] = {}
        """VM → the first host that reports it as active."""
        for name in sorted(active, key=lambda one: (bool(self.hosts[one].status.lost), one), reverse=True):
            first.update(dict.fromkeys(active[name], name))
        further: dict[str, list[str]] = {}
        if len(first) != sum(map(len, active.values())):
            for one, name in ((one, name) for name, ids in active.items() for one in ids if first[one] != name):
                further.setdefault(one, []).append(name)
        self._reported = first.keys()
        places: dict[str, str] = {}
        for vm in vms:
            name, assigned = vm.metadata.name, vm.status.assigned
            seen = first.get(name)
            if assigned is None or not assigned.hypervisor:
                continue
            if seen is None and not _comes_up(vm):
                continue
            host = _place_of(vm.status)
            reporting = () if seen is None else (seen, *further.get(name, ()))
            if trusting and seen is not None:
                present = [one for one in reporting if not self._is_past(vm, host, one)]
                host = min(present, default=host if _comes_up(vm) else seen)
            if host in reporting or (_comes_up(vm) and all(self._is_past(vm, host, one) for one in reporting)):
                places[name] = host
                self.specs[name] = vm.spec
        return places

    def _is_past(self, vm: Facts, place: str, reporting: str) -> bool:
        """Whether a VM that counts at the place cannot be where it is reported: that host is lost, or may not run it.

        Its holders may, if the place is one of them; where it has none, the host that it is assigned to, if anybody is
        to start it there.
        """
        holders = {one.hypervisor for one in vm.status.holders}
        may_run = holders or {vm.status.assigned.hypervisor}
        ended = vm.spec.power_state == "stopped" or _is_deleted(vm) or _is_down(vm.status)
        known = place in holders if holders else not ended
        return bool(self.hosts[reporting].status.lost) or (known and reporting not in may_run)

    def _is_unplaced(self, vm: Facts) -> bool:
        name, assigned = vm.metadata.name, vm.status.assigned
        if name in self.places or assigned is None or not assigned.hypervisor:
            return False
        if name in self._reported:
            return True
        host = self.hosts.get(_place_of(vm.status))
        if vm.spec.power_state != "running" or _is_deleted(vm) or _is_down(vm.status):
            return False
        return host is None or all(one.id != name for one in host.status.instances)

    def units_by_host(self, unit: str) -> dict[str, str]:
        """Host → what fails as one with it. A host without the label is a unit of its own."""
        if unit == "host":
            return {}
        label = f"{DOMAIN_LABEL_PREFIX}{unit}"
        return {
            name: f"{unit}={value}"
            for name, host in self.hosts.items()
            if (value := host.metadata.labels.get(label, ""))
        }

    def has_guard(self, host: str) -> bool:
        """Whether a guard is armed there."""
        return host in self.members and bool(self.members[host].record.guard.armed)

    def compute_room(self) -> dict[str, Room | None]:
        """Host → what is left there after its VMs and everything that is reserved; ``None`` where that is unknown."""
        blocked: dict[str, list[int]] = {}
        arrived = {name: {one.id for one in host.status.instances} for name, host in self.hosts.items()}
        for reservation in self.reservations.values():
            cpu, memory = _room_of(reservation, arrived.get(reservation.status.host, set()))
            hosts = {reservation.spec.target_host, reservation.status.host} - {""}
            if reservation.spec.type == COMMITTED and not reservation.spec.target_host:
                continue  # it was evicted
            if len(hosts) == 1 and _awaited_vm(reservation) in arrived.get(min(hosts), ()):
                continue
            for host in hosts:
                there = blocked.setdefault(host, [0, 0])
                there[0] += cpu
                there[1] += memory
        running = {name: [0, 0] for name, host in self.hosts.items() if host.status.allocation is None}
        for vm, place in self.places.items() if running else ():
            if place in running:
                running[place][0] += self.specs[vm].resources.cpu_milli
                running[place][1] += self.specs[vm].resources.memory_bytes
        left: dict[str, Room | None] = {}
        for name, facts in self.hosts.items():
            status = facts.status
            capacity = status.effective_capacity if status.effective_capacity is not None else status.capacity
            if status.lost or capacity is None or CPU not in capacity or MEMORY not in capacity:
                left[name] = None
                continue
            reported = status.allocation
            used = running[name] if reported is None else (reported.cpu_milli, reported.memory_bytes)
            held = blocked.get(name, (0, 0))
            left[name] = (capacity[CPU] - used[0] - held[0], capacity[MEMORY] - used[1] - held[1])
        return left


def explain_no_slot(reservation: Facts | None) -> str | None:
    """Why this is no slot; ``None`` for one."""
    if reservation is None:
        return "the state has no such reservation"
    if reservation.spec.type != FAILOVER:
        return f"it is a {reservation.spec.type}"
    if reservation.metadata.labels.get(RESERVATION_TYPE_LABEL) != TYPE_LABEL_VALUES[FAILOVER]:
        return f"it lacks the label {RESERVATION_TYPE_LABEL}={TYPE_LABEL_VALUES[FAILOVER]}"
    return None


def _is_usable(host: Facts | None) -> bool:
    """Whether slots on the host can be used: it is known, not lost, not being emptied, and in working condition."""
    if host is None or host.status.lost or host.status.domain_state in ("flush", "flushed") or host.spec.drain:
        return False
    said = {one.type: one.status for one in host.status.conditions}
    return all(said.get(name, good) == good for name, good in WORKING)


def _comes_up(vm: Facts) -> bool:
    return vm.spec.power_state == "running" and not _is_deleted(vm) and vm.status.phase in COMING_UP


def _is_down(status: Facts) -> bool:
    """Whether a user, a drain or a failed start has ended it, and nobody has asked for it since."""
    return status.phase in DOWN and status.reason != ENDED_BY_SPEC


def _is_deleted(vm: Facts) -> bool:
    return vm.metadata.deletion_timestamp is not None


def _place_of(status: Facts) -> str:
    """Where the source has the VM: where it was lost, until it is seen running where it is assigned."""
    recovery, assigned = status.recovery, str(status.assigned.hypervisor)
    running = {one.hypervisor for one in status.holders if one.seen == "running" and not one.role}
    if recovery is None or not recovery.origin or assigned in running:
        return assigned
    return str(recovery.origin) if recovery.phase in ("waiting", "held", "claimed", "assigned") else assigned


def _is_ready(found: Facts) -> bool | None:
    said = find_condition(found.status.conditions, "Ready")
    return None if said is None else said.status == "True"


def _room_of(found: Facts, reported: set[str]) -> Room:
    """What it holds beside the VMs that run; what the VMs of a commitment use already is inside these, as long as its
    host reports them."""
    spec = found.spec
    size = (max(0, spec.resources.cpu_milli), max(0, spec.resources.memory_bytes))
    if spec.type != COMMITTED:
        return size
    details, seen = spec.committed_resource_reservation, found.status.committed_resource_reservation
    if _is_ready(found) is True and (details is None or not details.resource_group):
        return (0, 0)
    if details is None or not details.allocations or spec.target_host != found.status.host:
        return size
    confirmed, pending = [0, 0], [0, 0]
    for vm, allocation in details.allocations.items():
        sums = confirmed if seen is not None and vm in seen.allocations and vm in reported else pending
        sums[0] += allocation.resources.cpu_milli
        sums[1] += allocation.resources.memory_bytes
    return (max(size[0] - confirmed[0], pending[0], 0), max(size[1] - confirmed[1], pending[1], 0))


def _awaited_vm(found: Facts) -> str | None:
    """The VM that becomes what it holds, once its host reports it; one that only gets another size is there already."""
    if found.status.consumer is not None:
        return str(found.status.consumer.vm)
    details = found.spec.in_flight_reservation
    if found.spec.type != IN_FLIGHT or details is None or details.instances != 1:
        return None
    return None if details.intent in ("resize", "rebuild") else str(details.vm_id)


def _read_settings(cluster: Facts) -> KeptSettings | None:
    kept = cluster.metadata.annotations.get(SETTINGS_ANNOTATION, "")
    if not kept:
        return None
    try:
        return msgspec.json.decode(kept, type=KeptSettings)
    except msgspec.MsgspecError:
        place = f"Cluster/{cluster.metadata.name}: annotation {SETTINGS_ANNOTATION}"
        raise BadInput(
            "is not what a server writes", place=place, remedy="start outlive up once and dump again"
        ) from None
