"""Does the certificate describe this state? Hosts, VMs and slots, one by one, both ways.

Nothing of the certificate is believed further than this: whatever it says of the state is held against the state, so
that the rules are judged on the state alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from outlive.base import Pattern
from outlive.failover.verify.document import CertifiedSlot, CertifiedState, CertifiedVm, Code, Findings
from outlive.failover.verify.fleet import FleetSlot, Room, StateFleet, explain_no_slot
from outlive.failover.verify.memberships import find_objection, format_size


def compare_hosts(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> None:
    """The same hosts in both."""
    seen = set(certificate.hosts)
    if len(seen) < len(certificate.hosts):
        for host in _find_repeated(certificate.hosts):
            found.add(Code.HOST_REPEATED, f"host {host} is there twice", host=host)
    for host in sorted(seen - fleet.hosts.keys()):
        found.add(Code.HOST_UNKNOWN, f"the state has no host {host}", host=host)
    for host in sorted(fleet.hosts.keys() - seen):
        found.add(Code.HOST_OMITTED, f"the certificate leaves out host {host}", host=host)


def compare_vms(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> None:
    """The same VMs in both, at the same hosts."""
    places = fleet.places
    claimed = {vm.id: vm.host for vm in certificate.vms}
    if len(claimed) < len(certificate.vms):
        for name in _find_repeated(vm.id for vm in certificate.vms):
            found.add(Code.VM_REPEATED, f"VM {name} is there twice", vm=name)
    if claimed == places:
        return
    for name, host in claimed.items():
        place = places.get(name)
        if place is None:
            found.add(Code.VM_UNKNOWN, f"in the state VM {name} runs nowhere, not on {host}", vm=name, host=host)
        elif place != host:
            found.add(Code.VM_ELSEWHERE, f"VM {name} runs on {place}, not on {host}", vm=name, host=host)
    for name in sorted(places.keys() - claimed.keys()):
        message = f"the certificate leaves out VM {name}, which runs on {places[name]}"
        found.add(Code.VM_OMITTED, message, vm=name, host=places[name])


def compare_slots(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> None:
    """Every certified slot as it is in the state, and no slot with members left out unless it is not ready."""
    seen = {slot.name for slot in certificate.slots}
    if len(seen) < len(certificate.slots):
        for name in _find_repeated(slot.name for slot in certificate.slots):
            found.add(Code.SLOT_REPEATED, f"slot {name} is there twice", slot=name)
    for claimed in certificate.slots:
        slot = fleet.slots.get(claimed.name)
        if slot is None:
            why = explain_no_slot(fleet.reservations.get(claimed.name))
            found.add(Code.SLOT_UNKNOWN, f"{claimed.name} is no slot: {why}", slot=claimed.name)
        else:
            _compare_slot(slot, claimed, found)
    for name in sorted(fleet.slots.keys() - seen):
        slot = fleet.slots[name]
        if slot.ready and slot.allocations:
            message = f"the certificate leaves out slot {name}, which lists {len(slot.allocations)} VMs"
            found.add(Code.SLOT_OMITTED, message, slot=name, host=slot.host)


def _compare_slot(slot: FleetSlot, claimed: CertifiedSlot, found: Findings) -> None:
    name = slot.name
    if slot.host != claimed.host:
        message = f"slot {name} is on {slot.host or 'no host'}, not on {claimed.host or 'no host'}"
        found.add(Code.SLOT_HOST, message, slot=name, host=claimed.host)
    if (slot.cpu_milli, slot.memory_bytes) != (claimed.cpu_milli, claimed.memory_bytes):
        message = f"slot {name} holds {format_size(slot.cpu_milli, slot.memory_bytes)}, not "
        found.add(
            Code.SLOT_SIZE, message + format_size(claimed.cpu_milli, claimed.memory_bytes), slot=name, host=slot.host
        )
    if slot.allocations != claimed.allocations:
        for vm in sorted(slot.allocations.keys() | claimed.allocations.keys()):
            there, said = slot.allocations.get(vm), claimed.allocations.get(vm)
            if there == said:
                continue
            if said is None:
                what = f"lists VM {vm}, which the certificate leaves out"
            elif there is None:
                what = f"does not list VM {vm}"
            else:
                what = f"lists VM {vm} as on {there}, not on {said}"
            found.add(Code.SLOT_ALLOCATIONS, f"slot {name} {what}", vm=vm, slot=name, host=slot.host)
    if not slot.ready:
        found.add(Code.SLOT_NOT_READY, f"slot {name} is not ready", slot=name, host=slot.host)


def _find_repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({name for name in names if name in seen or seen.add(name)})  # type: ignore[func-returns-value]


def check_room(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> frozenset[str]:
    """Hosts without room for all that is reserved there; a violation for each that holds somebody's slot."""
    left = fleet.compute_room()
    full = frozenset(host for host in {slot.host for slot in fleet.slots.values()} if not _has_room(left.get(host)))
    leaning: dict[str, str] = {}
    """Host → the first VM that is certified a slot there."""
    for certified in certificate.vms if full else ():
        for name in certified.slots:
            slot = fleet.slots.get(name)
            if slot is not None:
                leaning.setdefault(slot.host, certified.id)
    for host in sorted(full & leaning.keys()):
        room, vm = left.get(host), leaning[host]
        if room is None:
            what = "does not say its capacity" if host in left else "is no host of the state"
            if host in fleet.hosts and fleet.hosts[host].status.lost:
                what = "is lost"
            message = f"{host or 'the empty host'} holds a slot of VM {vm} and {what}"
            found.add(Code.CAPACITY_UNKNOWN, message, vm=vm, host=host)
        else:
            lacking = format_size(max(0, -room[0]), max(0, -room[1]))
            message = f"{host} holds a slot of VM {vm}; for its VMs and all that is reserved there it lacks {lacking}"
            found.add(Code.OVER_CAPACITY, message, vm=vm, host=host)
    return full


def _has_room(room: Room | None) -> bool:
    return room is not None and room[0] >= 0 and room[1] >= 0


def check_promises(
    fleet: StateFleet,
    certificate: CertifiedState,
    counts: Mapping[str, Sequence[str]],
    full: frozenset[str],
    found: Findings,
) -> None:
    """Each VM's slots are exactly those that count for it (on hosts with room), and as many as it needs."""
    certified = {slot.name for slot in certificate.slots}
    for vm in certificate.vms:
        real = counts.get(vm.id)
        if real is None:
            continue
        good = _check_slots(fleet, vm, real, certified, full, found)
        if good < vm.need:
            message = f"VM {vm.id} on {vm.host} needs {vm.need} slots and has {good}"
            found.add(Code.TOO_FEW, message, vm=vm.id, host=vm.host)


def _check_slots(
    fleet: StateFleet,
    vm: CertifiedVm,
    real: Sequence[str],
    certified: set[str],
    full: frozenset[str],
    found: Findings,
) -> int:
    """One VM in detail; how many of its slots are good."""
    good: set[str] = set()
    for name in vm.slots:
        if name in good:
            found.add(Code.LISTED_TWICE, f"slot {name} is listed twice for VM {vm.id}", vm=vm.id, slot=name)
        elif name not in certified:
            message = f"slot {name} is listed for VM {vm.id} and not among the certificate's slots"
            found.add(Code.NOT_CERTIFIED, message, vm=vm.id, slot=name)
        elif name in real:
            good.add(name)
        elif name not in fleet.slots:
            message = f"slot {name}, listed for VM {vm.id}, is none of the state's"
            found.add(Code.SLOT_UNKNOWN, message, vm=vm.id, slot=name)
        elif (why := find_objection(fleet, vm.id, fleet.slots[name])) is not None:
            host = fleet.slots[name].host
            found.add(why[0], f"slot {name} on {host} {why[1]}", vm=vm.id, slot=name, host=host)
    for name in real:
        slot = fleet.slots[name]
        if name not in vm.slots and slot.host not in full:
            message = f"slot {name} on {slot.host} counts for VM {vm.id} and is not listed for it"
            found.add(Code.UNLISTED, message, vm=vm.id, slot=name, host=slot.host)
    return len(good)


def check_needs(certificate: CertifiedState, found: Findings) -> None:
    """``k`` is the need of somebody, or at least not more than that."""
    largest = max((vm.need for vm in certificate.vms), default=0)
    if certificate.k > largest:
        found.add(Code.K, f"k is {certificate.k} and no VM needs more than {largest} slots")
    elif certificate.k == 0 and largest:
        found.add(Code.K, f"k is 0, which claims nothing, and VMs need up to {largest} slots")


def check_grounds(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> None:
    """What is claimed of the death of a VM's host: nobody but the system that manages it restarts what is reserved
    only, and nothing is recovered from a host that neither a rehearsed BMC nor an armed guard would prove dead."""
    for vm in certificate.vms:
        host = fleet.hosts.get(vm.host)
        if vm.by is None or host is None:
            continue
        ours = host.spec.management == "node" or vm.host in fleet.members
        provable = host.status.rehearsed == "ok" or fleet.has_guard(vm.host)
        if (vm.by == "reserved") is ours or (vm.by == "recoverable" and not provable):
            is_so = "not proven dead by anything" if ours else f"managed by {host.spec.management}"
            message = f"VM {vm.id} is said to be covered as {vm.by}, and its host {vm.host} is {is_so}"
            found.add(Code.GROUND, message, vm=vm.id, host=vm.host)


def check_required(
    fleet: StateFleet, certificate: CertifiedState, required: Sequence[tuple[Pattern, str, int]], found: Findings
) -> None:
    """Nobody needs less than the patterns of flavors ask for."""
    if not required:
        return
    least: dict[str, tuple[int, str]] = {}
    for flavor in {spec.flavor for spec in fleet.specs.values()}:
        wanted = [(count, text) for pattern, text, count in required if flavor and pattern.fullmatch(flavor)]
        least[flavor] = max(wanted, default=(0, ""))
    for vm in certificate.vms:
        flavor = fleet.specs[vm.id].flavor if vm.id in fleet.specs else ""
        count, text = least.get(flavor, (0, ""))
        if vm.need < count:
            message = f"VM {vm.id} of flavor {flavor} has need {vm.need}, and {text} asks for {count}"
            found.add(Code.BELOW_REQUIRED, message, vm=vm.id, host=vm.host)
