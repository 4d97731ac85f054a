"""Why hosts cannot be emptied, where that can be shown without a search.

Each argument holds in every order of steps: it counts only what no step can change. VMs of other hosts stay where they
are, and slots can at most be given up, so what a host could ever hold is what it has free and what its slots hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlive.failover.analysis.drain.inputs import DrainInput, DrainObstacle, Stuck
from outlive.failover.fleet import FleetIndex, FreeAmounts, holding_hosts, slot_amounts
from outlive.failover.planner.actions import PlacementOffer
from outlive.failover.slots import format_amounts
from outlive.placement import VmView, amounts_of


def find_impossibilities(given: DrainInput, floors: dict[str, int], *, lawful: bool) -> list[DrainObstacle]:
    """Everything that shows that there is no order.

    ``floors``: VM → failures that it has to tolerate throughout; ``lawful``: whether all rules hold now, and so ever.
    """
    drained = set(given.drained)
    # What hosts would have free without any slot.
    most = FleetIndex(given.topology)
    most.set_free(FreeAmounts.from_resources(given.free))
    for slot in given.slots:
        for host in holding_hosts(slot):
            most.take(host, slot_amounts(slot), -1)
    moving = [vm for vm in given.vms if vm.host in drained]
    places = {vm.id: [h for h in given.destinations.get(vm.id, ()) if h not in drained] for vm in moving}
    found = []
    for vm in moving:
        hosts = places[vm.id]
        if not hosts:
            detail = "placement would take it on no other host, however much room there were"
            found.append(DrainObstacle(reason=Stuck.NO_HOST, vm=vm.id, host=vm.host, detail=detail))
        elif not most.hosts_with_room(hosts, amounts_of(vm)):
            needs = format_amounts(vm.cpu_milli, vm.memory_bytes)
            detail = f"none of the {len(hosts)} hosts that may run it has room for {needs}, even without any slot"
            found.append(DrainObstacle(reason=Stuck.NO_ROOM, vm=vm.id, host=vm.host, detail=detail))
    found += _find_host_shortage(given, floors, drained, places)
    return found or list(_find_amount_shortage(given, floors, moving, places, most, lawful))


def _find_host_shortage(
    given: DrainInput, floors: dict[str, int], drained: set[str], places: dict[str, list[str]]
) -> Iterator[DrainObstacle]:
    """VMs whose own unit and slots need more units than there are."""
    unit = given.topology.unit_of_host
    units: dict[str, set[str]] = {}
    present: dict[str, set[str]] = {}
    for slot in given.slots:
        if slot.host not in drained:
            for member in slot.members:
                present.setdefault(member, set()).add(unit(slot.host))
    for vm in given.vms:
        floor = floors.get(vm.id, 0)
        if floor <= 0 or not places.get(vm.id, True):
            continue
        key = given.classes.get(vm.id, "")
        if any(offers.get(key, PlacementOffer()).error for offers in (given.reuse, given.new)):
            continue  # nobody knows where its slots may be
        if key not in units:
            offered = [host for offers in (given.reuse, given.new) for host in offers.get(key, PlacementOffer()).hosts]
            units[key] = {unit(host) for host in offered if host not in drained}
        own = {unit(host) for host in places[vm.id]} if vm.id in places else {unit(vm.host)}
        usable = units[key]
        if len(usable) <= floor:
            usable = usable | present.get(vm.id, set())
        if len(usable) <= floor and all(len(usable - {home}) < floor for home in own):
            most = max(len(usable - {home}) for home in own)
            detail = f"it has to keep {floor} slots on as many units of failure besides its own; there are {most}"
            yield DrainObstacle(reason=Stuck.TOO_FEW_HOSTS, vm=vm.id, host=vm.host, detail=detail)


def _find_amount_shortage(
    given: DrainInput,
    floors: dict[str, int],
    moving: list[VmView],
    places: dict[str, list[str]],
    most: FleetIndex,
    lawful: bool,
) -> Iterator[DrainObstacle]:
    """Whether all VMs that move, and the slots that have to be there besides, are more than the hosts hold."""
    if not most.limited or not moving:
        return
    drained = set(given.drained)
    takers = {host for hosts in places.values() for host in hosts}
    staying = {host for host in given.free if host not in drained}
    for name in sorted({name for vm in moving for name in amounts_of(vm)}):
        wanted = sum(amounts_of(vm).get(name, 0) for vm in moving)
        room = sum(max(0, most.free_on(host).get(name, 0)) for host in takers if most.knows_room(host))
        if wanted > room:
            detail = (
                f"all VMs that move need {_format_amount(name, wanted)}, the hosts that may run them have "
                f"{_format_amount(name, room)}"
            )
            yield DrainObstacle(reason=Stuck.TOO_LITTLE, detail=detail + ", even without any slot")
            continue
        held = _least_held(given, floors, drained, name, lawful)
        if not held or not all(most.knows_room(slot.host) for slot in given.slots):
            continue
        # A host that is overbooked now holds what its slots hold, and nothing more.
        free = {host: given.free[host].get(name, 0) for host in staying}
        room = sum(most.free_on(host).get(name, 0) - min(0, amount) for host, amount in free.items())
        if wanted + held > room:
            detail = (
                f"all VMs that move need {_format_amount(name, wanted)}, slots at least {_format_amount(name, held)} "
                "besides, "
                f"and the hosts that stay have {_format_amount(name, room)} for both"
            )
            yield DrainObstacle(reason=Stuck.TOO_LITTLE, detail=detail)


def _least_held(given: DrainInput, floors: dict[str, int], drained: set[str], name: str, lawful: bool) -> int:
    """What slots hold at least while the floors are kept.

    VMs of one host never share a slot. And where all rules hold, own unit, slots and co-users of a VM are all on
    different units, so that the sizes of its f slots add up to U - 1 at most and its share of them, 1/size each, to
    f²/(U - 1) at least; a slot is at least as large as its members on average.
    """
    if name not in ("cpu", "memory"):
        return 0
    held: dict[str, int] = {}
    largest = squares = 0
    for vm in given.vms:
        floor = floors.get(vm.id, 0)
        size = (vm.cpu_milli if name == "cpu" else vm.memory_bytes) * floor
        largest, squares = max(largest, size), squares + size * floor
        if vm.host not in drained:
            held[vm.host] = held.get(vm.host, 0) + size
    unit = given.topology.unit_of_host
    hosts = {*given.free, *held}.union(*({slot.host, *slot.members.values()} for slot in given.slots))
    units = {unit(host) for host in hosts - drained}
    shared = -(-squares // max(1, len(units) - 1)) if lawful else 0
    return max([largest, shared, *held.values()])


def _format_amount(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount / 1000:g} cores"
    return f"{amount / 2**30:,.1f} GiB" if name == "memory" else f"{amount} {name}"
