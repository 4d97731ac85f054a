"""Does the certificate describe this state? Hosts, VMs and slots, one by one, both ways.

Nothing of the certificate is believed further than this: whatever it says of the state is held against the state, so
that the rules are judged on the state alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlive.failover.verify.document import CertifiedSlot, CertifiedState
from outlive.failover.verify.findings import Code, Findings
from outlive.failover.verify.fleet import FleetSlot, StateFleet, why_no_slot


def compare_hosts(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> None:
    """The same hosts in both."""
    seen = set(certificate.hosts)
    if len(seen) < len(certificate.hosts):
        for host in _repeated(certificate.hosts):
            found.add(Code.HOST_REPEATED, f"host {host} is there twice", host=host)
    for host in sorted(seen - fleet.hosts.keys()):
        found.add(Code.HOST_UNKNOWN, f"the state has no host {host}", host=host)
    for host in sorted(fleet.hosts.keys() - seen):
        found.add(Code.HOST_OMITTED, f"the certificate leaves out host {host}", host=host)


def compare_vms(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> None:
    """The same VMs in both, at the same hosts."""
    places = fleet.places
    stated = {vm.id: vm.host for vm in certificate.vms}
    if len(stated) < len(certificate.vms):
        for name in _repeated(vm.id for vm in certificate.vms):
            found.add(Code.VM_REPEATED, f"VM {name} is there twice", vm=name)
    if stated == places:
        return
    for name, host in stated.items():
        place = places.get(name)
        if place is None:
            found.add(Code.VM_UNKNOWN, f"in the state VM {name} runs nowhere, not on {host}", vm=name, host=host)
        elif place != host:
            found.add(Code.VM_ELSEWHERE, f"VM {name} runs on {place}, not on {host}", vm=name, host=host)
    for name in sorted(places.keys() - stated.keys()):
        message = f"the certificate leaves out VM {name}, which runs on {places[name]}"
        found.add(Code.VM_OMITTED, message, vm=name, host=places[name])


def compare_slots(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> None:
    """Every certified slot as it is in the state, and no slot with members left out unless it is not ready."""
    seen = {slot.name for slot in certificate.slots}
    if len(seen) < len(certificate.slots):
        for name in _repeated(slot.name for slot in certificate.slots):
            found.add(Code.SLOT_REPEATED, f"slot {name} is there twice", slot=name)
    for stated in certificate.slots:
        slot = fleet.slots.get(stated.name)
        if slot is None:
            why = why_no_slot(fleet.reservations.get(stated.name))
            found.add(Code.SLOT_UNKNOWN, f"{stated.name} is no slot: {why}", slot=stated.name)
        else:
            _compare_slot(slot, stated, found)
    for name in sorted(fleet.slots.keys() - seen):
        slot = fleet.slots[name]
        if slot.ready and slot.allocations:
            message = f"the certificate leaves out slot {name}, which lists {len(slot.allocations)} VMs"
            found.add(Code.SLOT_OMITTED, message, slot=name, host=slot.host)


def _compare_slot(slot: FleetSlot, stated: CertifiedSlot, found: Findings) -> None:
    name = slot.name
    if slot.host != stated.host:
        message = f"slot {name} is on {slot.host or 'no host'}, not on {stated.host or 'no host'}"
        found.add(Code.SLOT_HOST, message, slot=name, host=stated.host)
    if (slot.cpu_milli, slot.memory_bytes) != (stated.cpu_milli, stated.memory_bytes):
        message = f"slot {name} holds {size(slot.cpu_milli, slot.memory_bytes)}, not "
        found.add(Code.SLOT_SIZE, message + size(stated.cpu_milli, stated.memory_bytes), slot=name, host=slot.host)
    if slot.allocations != stated.allocations:
        _compare_allocations(slot, stated, found)
    if not slot.ready:
        found.add(Code.SLOT_NOT_READY, f"slot {name} is not ready", slot=name, host=slot.host)


def _compare_allocations(slot: FleetSlot, stated: CertifiedSlot, found: Findings) -> None:
    for vm in sorted(slot.allocations.keys() | stated.allocations.keys()):
        there, said = slot.allocations.get(vm), stated.allocations.get(vm)
        if there == said:
            continue
        if said is None:
            what = f"lists VM {vm}, which the certificate leaves out"
        elif there is None:
            what = f"does not list VM {vm}"
        else:
            what = f"lists VM {vm} as on {there}, not on {said}"
        found.add(Code.SLOT_ALLOCATIONS, f"slot {slot.name} {what}", vm=vm, slot=slot.name, host=slot.host)


def size(cpu_milli: int, memory_bytes: int) -> str:
    """Amounts in words."""
    return f"{cpu_milli} milli-cores and {memory_bytes} bytes"


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({name for name in names if name in seen or seen.add(name)})  # type: ignore[func-returns-value]
