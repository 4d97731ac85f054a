"""Does every VM have the slots that it is said to have, and is there room where they are?"""

from __future__ import annotations

from collections.abc import Sequence

from outlive.base.patterns import Pattern
from outlive.failover.verify.columns import Memberships
from outlive.failover.verify.comparing import size
from outlive.failover.verify.document import CertifiedState, CertifiedVm
from outlive.failover.verify.findings import Code, Findings
from outlive.failover.verify.fleet import Room, StateFleet


def check_room(fleet: StateFleet, certificate: CertifiedState, found: Findings) -> frozenset[str]:
    """Hosts without room for all that is reserved there; a violation for each that holds somebody's slot."""
    left = fleet.room()
    full = frozenset(host for host in {slot.host for slot in fleet.slots.values()} if not _has_room(left.get(host)))
    leaning = _leaning(fleet, certificate) if full else {}
    for host in sorted(full & leaning.keys()):
        room, vm = left.get(host), leaning[host]
        if room is None:
            what = "does not say its capacity" if host in left else "is no host of the state"
            if host in fleet.hosts and fleet.hosts[host].status.lost:
                what = "is lost"
            message = f"{host or 'the empty host'} holds a slot of VM {vm} and {what}"
            found.add(Code.CAPACITY_UNKNOWN, message, vm=vm, host=host)
        else:
            lacking = size(max(0, -room[0]), max(0, -room[1]))
            message = f"{host} holds a slot of VM {vm}; for its VMs and all that is reserved there it lacks {lacking}"
            found.add(Code.OVER_CAPACITY, message, vm=vm, host=host)
    return full


def _leaning(fleet: StateFleet, certificate: CertifiedState) -> dict[str, str]:
    """Host → the first VM that is certified a slot there."""
    leaning: dict[str, str] = {}
    for vm in certificate.vms:
        for name in vm.slots:
            slot = fleet.slots.get(name)
            if slot is not None:
                leaning.setdefault(slot.host, vm.id)
    return leaning


def _has_room(room: Room | None) -> bool:
    return room is not None and room[0] >= 0 and room[1] >= 0


def check_promises(
    fleet: StateFleet,
    certificate: CertifiedState,
    inside: Memberships,
    full: frozenset[str],
    found: Findings,
) -> None:
    """Each VM's slots are exactly those that count for it (on hosts with room), and as many as it needs."""
    if not full and inside.as_certified(certificate):
        return
    counts = inside.counting()
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
        else:
            _say_why_not(fleet, vm, name, found)
    for name in real:
        slot = fleet.slots[name]
        if name not in vm.slots and slot.host not in full:
            message = f"slot {name} on {slot.host} counts for VM {vm.id} and is not listed for it"
            found.add(Code.UNLISTED, message, vm=vm.id, slot=name, host=slot.host)
    return len(good)


def _say_why_not(fleet: StateFleet, vm: CertifiedVm, name: str, found: Findings) -> None:
    slot = fleet.slots.get(name)
    if slot is None:
        found.add(Code.SLOT_UNKNOWN, f"slot {name}, listed for VM {vm.id}, is none of the state's", vm=vm.id, slot=name)
        return
    place, needed = fleet.places[vm.id], fleet.sizes[vm.id]
    recorded = slot.allocations.get(vm.id)
    code = Code.TOO_SMALL
    why = f"holds {size(slot.cpu_milli, slot.memory_bytes)} and VM {vm.id} needs {size(*needed)}"
    if recorded is None:
        code, why = Code.NOT_A_MEMBER, f"does not list VM {vm.id}"
    elif recorded != place:
        code, why = Code.RECORDED_ELSEWHERE, f"lists VM {vm.id} as on {recorded} and it runs on {place}"
    elif not slot.ready:
        code, why = Code.SLOT_NOT_READY, f"is listed for VM {vm.id} and not ready"
    elif slot.host not in fleet.limits.get(vm.id, (slot.host,)):
        code, why = Code.NOT_ALLOWED, f"is listed for VM {vm.id}, which may not run there by its hostLimit"
    found.add(code, f"slot {name} on {slot.host} {why}", vm=vm.id, slot=name, host=slot.host)


def check_needs(certificate: CertifiedState, found: Findings) -> None:
    """``k`` is the need of somebody, or at least not more than that."""
    largest = max((vm.need for vm in certificate.vms), default=0)
    if certificate.k > largest:
        found.add(Code.K, f"k is {certificate.k} and no VM needs more than {largest} slots")
    elif certificate.k == 0 and largest:
        found.add(Code.K, f"k is 0, which claims nothing, and VMs need up to {largest} slots")


def check_required(
    fleet: StateFleet, certificate: CertifiedState, required: Sequence[tuple[Pattern, str, int]], found: Findings
) -> None:
    """Nobody needs less than the patterns of flavors ask for."""
    if not required:
        return
    least: dict[str, tuple[int, str]] = {}
    for flavor in set(fleet.flavors.values()):
        wanted = [(count, text) for pattern, text, count in required if flavor and pattern.fullmatch(flavor)]
        least[flavor] = max(wanted, default=(0, ""))
    for vm in certificate.vms:
        count, text = least.get(fleet.flavors.get(vm.id, ""), (0, ""))
        if vm.need < count:
            message = f"VM {vm.id} of flavor {fleet.flavors[vm.id]} has need {vm.need}, and {text} asks for {count}"
            found.add(Code.BELOW_REQUIRED, message, vm=vm.id, host=vm.host)
