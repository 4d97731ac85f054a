"""What emptying hosts is decided from, and the steps that are the answer.

The engine is asked for every VM of the hosts in the order in which they move, each counted where it would land before
the next is asked about. Hosts without room now are asked for as well, after those with room, because steps free some.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from outlive.base import OutliveError
from outlive.failover.analysis.whatif.altered import add_running_vm
from outlive.failover.calls import Caller, forced_hosts, pipeline_for, placement_class
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Join, Leave, Open, PlacementOffer
from outlive.failover.protection import restart_order
from outlive.failover.slots import ResolvedSize
from outlive.failover.snapshot import Snapshot, placement_offers
from outlive.failover.topology import Topology
from outlive.placement import (
    SILENT,
    SOURCE_HOST_HINT,
    CapacityQuery,
    Engine,
    Fleet,
    Intent,
    PlacementRequest,
    VmView,
    amounts_of,
    explain_nowhere,
)
from outlive.placement.fleet import NEVER
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT

# What is asked about emptying hosts, and what is answered: steps of which every prefix is a state that holds.
#
# A step is the smallest change that somebody can carry out by itself. Their order is the answer: after each of them
# the rules hold, no host holds more than it can, and every VM tolerates as many failures as was asked for
# (docs/design/failover.md#what-if).

SEARCHED_CHANGES = 30_000
"""Changes from one arrangement to another that a search looks at."""


class Close(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="close", tag_field="action"):
    """Give up an empty slot; what it held is free from here on."""

    slot: str
    host: str


class Move(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="move", tag_field="action"):
    """Bring the VM to another host; it holds capacity on both while that goes on, and stays in its slots."""

    vm: str
    source: str
    host: str


Step = Join | Open | Leave | Close | Move


class Stuck(enum.StrEnum):
    """Why something cannot leave its host."""

    NO_HOST = "no-host"
    """Placement would take the VM nowhere else, however much room there were."""
    NO_ROOM = "no-room"
    """No host is left that could ever hold it."""
    TOO_LITTLE = "too-little-capacity"
    """The hosts that stay have too little for all of it together."""
    TOO_FEW_HOSTS = "too-few-hosts"
    """The VM's slots need more units of failure than are left."""
    NO_ORDER = "no-order"
    """All orders were looked through, and none keeps what was asked for."""
    NOT_FOUND = "none-found"
    """No order was found within the named limits; there may be one."""


class DrainObstacle(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that cannot leave, and why."""

    reason: Stuck
    vm: str = ""
    slot: str = ""
    host: str = ""
    detail: str = ""


class DrainInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fleet, the hosts to empty, and what placement says of their VMs and of slots."""

    drained: tuple[str, ...]
    """Hosts to empty; nothing is put on them."""
    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    sizes: dict[str, ResolvedSize] = {}
    """VM → size of its slots; missing means its own."""
    priorities: dict[str, int] = {}
    destinations: dict[str, tuple[str, ...]] = {}
    """VM on a drained host → hosts that may run it if they have room, best first."""
    classes: dict[str, str] = {}
    """VM → key of its offers; missing means the empty key."""
    reuse: dict[str, PlacementOffer] = {}
    new: dict[str, PlacementOffer] = {}
    """Class → hosts that may hold slots for such VMs if they have room."""
    free: dict[str, dict[str, int]] = {}
    """Host → resource → free after VMs and all reservations. A host that is missing here has no room; an empty table
    limits nothing."""
    keep: int | None = None
    """Failures that every VM tolerates throughout, or what it tolerates now if that is less; ``None``: what it
    tolerates now, at most the slots that it needs."""
    topology: Topology = Topology()
    search_limit: int = SEARCHED_CHANGES
    """Changes that a complete search may look at."""


class DrainResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The order in which the hosts can be emptied, or what stands in the way."""

    possible: bool
    proven: bool = True
    """Of a no: whether it is certain that there is no order."""
    steps: tuple[Step, ...] = ()
    vms: tuple[VmView, ...] = ()
    """All VMs afterwards."""
    slots: tuple[SlotView, ...] = ()
    """All slots afterwards, new ones named by their key."""
    obstacles: tuple[DrainObstacle, ...] = ()
    weaker: dict[str, int] = {}
    """VM → failures that it tolerates at the beginning, where that is less than was asked for; it keeps that."""
    limit: str = ""
    """The limit that ended the search, where nothing is proven."""


EMPTY = msgspec.structs.replace(
    SILENT, assume_empty_hosts=True, ignored_reservation_types=(COMMITTED, FAILOVER, IN_FLIGHT)
)
"""Every host counts as empty: a host that is refused now is refused however much room it has."""


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
        reuse=_join_offers(now.reuse, ever.reuse),
        new=_join_offers(now.new, ever.new),
        free=free_table(gathered.fleet),
        keep=keep,
        topology=gathered.topology,
    )


def _join_offers(now: dict[str, PlacementOffer], ever: dict[str, PlacementOffer]) -> dict[str, PlacementOffer]:
    """Class → hosts of today's answer, then those that only lack room."""
    found = {}
    for key, offer in now.items():
        more = [host for host in ever[key].hosts if host not in set(offer.hosts)] if not ever[key].error else []
        scores = offer.scores or tuple(float(-at) for at in range(len(offer.hosts)))
        last = min(scores, default=0.0) - 1.0
        found[key] = PlacementOffer(
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
        best = _rank_hosts(engine, move_request(vm, gone))
        found[vm.id] = (*best, *(host for host in ever[vm.id] if host not in set(best)))
        record = fleet.find_host(best[0]) if best else None
        if record is not None:
            touched.add(record.name)
            fleet.upsert_host(add_running_vm(record, vm))
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
        wire = repr(amounts_of(vm).to_wire())
        size = ResolvedSize(flavor_name=wire, cpu_milli=vm.cpu_milli, memory_bytes=vm.memory_bytes)
        key = f"{vm.host} {placement_class(vm, size, with_project=True)}"
        if key not in known:
            request = msgspec.structs.replace(move_request(vm, drained), options=EMPTY)
            known[key] = _rank_hosts(gathered.engine, request)
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


def explain_no_host(gathered: Snapshot, vm: VmView, drained: Sequence[str]) -> str:
    """Why placement would take the VM nowhere else, however much room there were."""
    try:
        request = msgspec.structs.replace(move_request(vm, drained), options=EMPTY)
        return explain_nowhere(gathered.engine.rank(request, why=True))
    except OutliveError as error:
        return str(error)


def _rank_hosts(engine: Engine, request: PlacementRequest) -> tuple[str, ...]:
    try:
        return engine.rank(request).hosts
    except OutliveError:
        return ()  # reported as "no host", with the reason of ``explain_no_host``


def free_table(fleet: Fleet) -> dict[str, dict[str, int]]:
    """Host → resource → free after VMs and all reservations; a resource whose figure is not known is left out."""
    free = fleet.available_amounts(CapacityQuery(intent=Intent.UNKNOWN))
    base = fleet.base_free(ignore_allocations=False)
    found: dict[str, dict[str, int]] = {}
    for name in fleet.names:
        row = fleet.find_row(name)
        known, amounts = (base[:, row] != NEVER).tolist(), free[:, row].tolist()
        found[name] = {resource: amounts[at] for resource, at in fleet.resources.items() if known[at]}
    return found
