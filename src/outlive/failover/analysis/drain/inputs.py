"""What emptying hosts is decided from: where placement would take each VM, and where slots may be.

The engine is asked for every VM of the hosts in the order in which they move, each counted where it would land before
the next is asked about. Hosts without room now are asked for as well, after those with room, because steps free some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from outlive.base.errors import OutliveError
from outlive.failover.analysis.drain.steps import DrainInput
from outlive.failover.analysis.whatif.altered import running
from outlive.failover.calls import Caller, forced_hosts, pipeline_for, placement_class
from outlive.failover.planner.actions import Offer
from outlive.failover.protection import restart_order
from outlive.failover.sizes import ResolvedSize
from outlive.failover.snapshot import Snapshot, placement_offers
from outlive.placement.engine import Engine
from outlive.placement.fleet import NEVER, Fleet
from outlive.placement.ranking import why_nowhere
from outlive.placement.request import SILENT, SOURCE_HOST_HINT, Intent, PlacementRequest
from outlive.placement.reservations import CapacityQuery
from outlive.placement.vms import VmView, amounts_of
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT

EMPTY = msgspec.structs.replace(
    SILENT, assume_empty_hosts=True, ignored_reservation_types=(COMMITTED, FAILOVER, IN_FLIGHT)
)
"""Every host counts as empty: whoever is refused now is refused however much room there is."""


async def drain_input(gathered: Snapshot, drained: Sequence[str], *, keep: int | None = None) -> DrainInput:
    """The question for ``failover.drain``."""
    observation = gathered.observation
    needed = {vm.id: gathered.required[vm.id] for vm in observation.vms if vm.id in gathered.required}
    classes, now = await placement_offers(gathered, needed)
    _, ever = await placement_offers(gathered, needed, options=EMPTY)
    return DrainInput(
        drained=tuple(drained),
        vms=observation.vms,
        required=gathered.required,
        slots=observation.slots,
        sizes=gathered.sizes,
        priorities=gathered.priorities,
        destinations=landing_places(gathered, drained),
        classes=classes,
        reuse=_joined(now.reuse, ever.reuse),
        new=_joined(now.new, ever.new),
        free=free_table(gathered.fleet),
        keep=keep,
        topology=gathered.topology,
    )


def _joined(now: dict[str, Offer], ever: dict[str, Offer]) -> dict[str, Offer]:
    """Class → hosts of today's answer, then those that only lack room."""
    found = {}
    for key, offer in now.items():
        more = [host for host in ever[key].hosts if host not in set(offer.hosts)] if not ever[key].error else []
        scores = offer.scores or tuple(float(-at) for at in range(len(offer.hosts)))
        last = min(scores, default=0.0) - 1.0
        found[key] = Offer(
            hosts=(*offer.hosts, *more), scores=(*scores, *(last for _ in more)), error=offer.error and ever[key].error
        )
    return found


def landing_places(gathered: Snapshot, drained: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """VM on these hosts → hosts that may run it if they have room, as placement ranks them."""
    gone = tuple(drained)
    fleet, engine = gathered.fleet, gathered.engine
    moving = restart_order((vm for vm in gathered.vms if vm.host in set(gone)), gathered.priorities)
    ever = possible_places(gathered, moving, gone)
    touched: set[str] = set()
    found: dict[str, tuple[str, ...]] = {}
    for vm in moving:
        best = _hosts(engine, move_request(vm, gone))
        found[vm.id] = (*best, *(host for host in ever[vm.id] if host not in set(best)))
        record = fleet.host(best[0]) if best else None
        if record is not None:
            touched.add(record.name)
            fleet.upsert_host(running(record, vm))
    for host in gathered.observation.hypervisors:
        if host.name in touched:
            fleet.upsert_host(host)
    return found


def possible_places(
    gathered: Snapshot, vms: Iterable[VmView], drained: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """VM → hosts that may run it however little room they have now, as placement ranks them; equal VMs ask once."""
    known: dict[str, tuple[str, ...]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for vm in vms:
        key = f"{vm.host} {_kind(vm)}"
        if key not in known:
            request = msgspec.structs.replace(move_request(vm, drained), options=EMPTY)
            known[key] = _hosts(gathered.engine, request)
        found[vm.id] = known[key]
    return found


def move_request(
    vm: VmView, drained: Sequence[str] = (), *, intent: Intent = Intent.LIVE_MIGRATION
) -> PlacementRequest:
    """What is asked about a VM that leaves its host while it runs, or, with another intent, that begins anew."""
    return PlacementRequest(
        resource_id=vm.id,
        project=vm.project,
        zone=vm.zone,
        need=amounts_of(vm),
        flavor_name=vm.flavor,
        extra_specs=Caller().extra_specs(vm),
        force_hosts=forced_hosts(vm),
        hints={SOURCE_HOST_HINT: vm.host} if intent is Intent.LIVE_MIGRATION else {},
        ignore_hosts=tuple(drained),
        intent=intent,
        options=SILENT,
        pipeline=pipeline_for(vm),
    )


def why_not(gathered: Snapshot, vm: VmView, drained: Sequence[str]) -> str:
    """Why placement would take the VM nowhere else, however much room there were."""
    try:
        request = msgspec.structs.replace(move_request(vm, drained), options=EMPTY)
        return why_nowhere(gathered.engine.rank(request, why=True))
    except OutliveError as error:
        return str(error)


def _hosts(engine: Engine, request: PlacementRequest) -> tuple[str, ...]:
    try:
        return engine.rank(request).hosts
    except OutliveError:
        return ()  # reported as "no host", with the reason of ``why_not``


def _kind(vm: VmView) -> str:
    size = ResolvedSize(flavor_name=repr(amounts_of(vm).wire()), cpu_milli=vm.cpu_milli, memory_bytes=vm.memory_bytes)
    return placement_class(vm, size, with_project=True)


def free_table(fleet: Fleet) -> dict[str, dict[str, int]]:
    """Host → resource → free after VMs and all reservations; a resource whose figure is not known is left out."""
    free = fleet.available(CapacityQuery(intent=Intent.UNKNOWN))
    base = fleet.base(ignore_allocations=False)
    found: dict[str, dict[str, int]] = {}
    for name in fleet.names:
        row = fleet.row(name)
        known, amounts = (base[:, row] != NEVER).tolist(), free[:, row].tolist()
        found[name] = {resource: amounts[at] for resource, at in fleet.resources.items() if known[at]}
    return found
