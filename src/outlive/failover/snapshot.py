"""The whole fleet at once: what failover would see, what placement offers, and what a plan from here would do.

Works on any store, a state file included, and changes nothing; ``outlive failover`` asks it. What a plan is made of is
the same as in a cycle (docs/design/failover.md#cycle), only without the limits of one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from outlive.failover.analysis.coverage import CoverageInput, CoverageResult, compute_coverage
from outlive.failover.calls import Caller, pins_projects, places_lost
from outlive.failover.config import FailoverSettings
from outlive.failover.locations import OnHypervisors, merge
from outlive.failover.model import HostView, SlotView, host_view, names_on
from outlive.failover.offers import InProcessPlacement, Offers, claim_of, free_capacity, gather_offers
from outlive.failover.planner.actions import Fail
from outlive.failover.planner.greedy import build_fail
from outlive.failover.planner.plan import PlanInput, plan
from outlive.failover.planner.repack import RepackInput
from outlive.failover.planner.selection import SelectInput, select
from outlive.failover.protection import Demands
from outlive.failover.slots import (
    ResolvedSize,
    apply_closed_hosts,
    choose_excess_slots,
    enlarge_for_vm,
    is_slot,
    resolve_size,
    slot_view,
    unschedulable_hosts,
)
from outlive.failover.topology import Topology
from outlive.placement import (
    Engine,
    Fleet,
    PipelineTable,
    PlacementOptions,
    PlacementRequest,
    Ranking,
    VmList,
    VmView,
    groups_by_flavor,
    list_resources,
)
from outlive.resources import FlavorGroup, Hypervisor, Pipeline, Reservation, VirtualMachine
from outlive.resources.reasons import Reason, make_reason
from outlive.store import Store, list_all


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    hypervisors: tuple[Hypervisor, ...] = ()
    hosts: tuple[HostView, ...] = ()
    vms: tuple[VmView, ...] = ()
    """Those whose location is known; of the others ``merged.unplaced`` says why it is not."""
    slots: tuple[SlotView, ...] = ()
    objects: dict[str, Reservation] = {}
    """Slot name → the object that its view was made from, which is what a write replaces."""
    listing: VmList = VmList()
    merged: OnHypervisors = OnHypervisors()

    @property
    def closed(self) -> dict[str, str]:
        """Host on which no slot can be used → why not; of unknown hosts those that slots are on."""
        return unschedulable_hosts(self.hosts, self.slots)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a cluster: what is there, what is needed, and the hosts as placement has them."""

    observation: Observation
    required: dict[str, int]
    """VM → slots that it needs; VMs that need none are left out."""
    priorities: dict[str, int]
    """VM → priority, larger is earlier; VMs of priority 0 are left out."""
    unknown_levels: dict[str, str]
    """VM → the protection level that it names and that there is not."""
    demands: Demands
    """What any VM needs by these settings."""
    sizes: dict[str, ResolvedSize]
    """VM → size of its slots."""
    fleet: Fleet
    engine: Engine
    settings: FailoverSettings
    topology: Topology = Topology()
    """Units of failure and separation of these hosts, as the settings ask for them."""

    unplaced: tuple[VmView, ...] = ()
    """VMs that are to run and of which it cannot be said where: counted, and covered by nothing. No slot counts for
    such a view, since the host limit that it has allows none."""

    @property
    def vms(self) -> tuple[VmView, ...]:
        """All VMs whose location is known."""
        return self.observation.vms

    @property
    def counted(self) -> tuple[VmView, ...]:
        """All VMs that are counted: also those whose location is not known."""
        return (*self.observation.vms, *self.unplaced)

    def unplaced_reason(self, vm: str) -> Reason:
        """Why it cannot be said where this VM is."""
        merged = self.observation.merged
        host = next(one.host for one in self.unplaced if one.id == vm)
        return make_reason(merged.unplaced[vm], host=host, reported=merged.reporting.get(vm) or "no host")


class _Local:
    """The engine as a ranker, perhaps with other options: nobody else places here, so there is nothing to lock."""

    def __init__(self, engine: Engine, options: PlacementOptions | None) -> None:
        self._engine, self._options = engine, options

    async def rank(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        if self._options is not None:
            request = msgspec.structs.replace(request, options=self._options)
        return self._engine.rank(request, why=why)


InFlight = Callable[[VirtualMachine, Callable[[str], Hypervisor | None], Sequence[Reservation]], Iterable[Reservation]]
"""VM, hosts by name, the slots that it uses → blocks for what hosts are to run and do not report yet."""
ListVms = Callable[[], Awaitable[VmList]]
"""Who lists the VMs, where they are not our own objects; asked after the hosts and slots are read."""


class Documents(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a snapshot is made from."""

    hypervisors: tuple[Hypervisor, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    vms: tuple[VirtualMachine, ...] = ()
    groups: tuple[FlavorGroup, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()


async def gather(
    store: Store,
    settings: FailoverSettings,
    *,
    list_vms: ListVms | None = None,
    k: int | None = None,
    in_flight: InFlight = lambda vm, host, slots: (),
) -> Snapshot:
    """Read everything that a plan or a coverage is made from.

    Reading is all or nothing, but not of one moment. ``k`` replaces the required slots of every VM.
    """
    hypervisors = tuple([host async for host in list_all(store, Hypervisor)])
    reservations = tuple([one async for one in list_all(store, Reservation)])
    listing = await list_vms() if list_vms is not None else None
    documents = Documents(
        hypervisors=hypervisors,
        reservations=reservations,
        vms=tuple([vm async for vm in list_all(store, VirtualMachine)]),
        groups=tuple([one async for one in list_all(store, FlavorGroup)]),
        pipelines=tuple([one async for one in list_all(store, Pipeline)]),
    )
    return snapshot_of(documents, settings, listing=listing, k=k, in_flight=in_flight)


def snapshot_of(
    documents: Documents,
    settings: FailoverSettings,
    *,
    listing: VmList | None = None,
    k: int | None = None,
    in_flight: InFlight = lambda vm, host, slots: (),
) -> Snapshot:
    """What these objects say; with 100,000 VMs this takes seconds. ``listing``: of VMs that are not our objects."""
    listed = list_resources(documents.vms) if listing is None else listing
    observation = _observe(documents, listed, trust_hosts=settings.failover.trust_hypervisor_location)
    demands = Demands(settings.failover.requirements, settings.protection, everybody=k)
    unplaced = tuple(
        msgspec.structs.replace(vm, host_limit=("",))
        for vm in observation.listing.vms
        if vm.id in observation.merged.unplaced
    )
    demanded = demands.collect_demands((*observation.vms, *unplaced))
    grouped = settings.failover.use_flavor_group_resources
    groups = groups_by_flavor([one.spec for one in documents.groups]) if grouped else None
    sizes = {vm.id: enlarge_for_vm(vm, resolve_size(vm, groups)) for vm in observation.vms}
    fleet = Fleet(settings.scheduler)
    for host in observation.hypervisors:
        fleet.upsert_host(host)
    _book(documents, fleet, in_flight)
    observation = _without_crowded(observation, fleet)
    pipelines = PipelineTable.with_shipped()
    for pipeline in documents.pipelines:
        pipelines.put(pipeline)
    return Snapshot(
        observation=observation,
        unplaced=unplaced,
        required=demanded.required,
        priorities=demanded.priorities,
        unknown_levels=demanded.unknown,
        demands=demands,
        sizes=sizes,
        fleet=fleet,
        engine=Engine(fleet, pipelines),
        settings=settings,
        topology=settings.topology_choice.topology_of(observation.hosts),
    )


def _observe(documents: Documents, listing: VmList, *, trust_hosts: bool) -> Observation:
    hosts, slots = documents.hypervisors, [one for one in documents.reservations if is_slot(one)]
    views = tuple(map(host_view, hosts))
    names = {vm: name for host in hosts for vm, name in names_on(host).items()}
    merged = merge(listing.vms, views, trust_hosts=trust_hosts, names=names)
    written = tuple(map(slot_view, slots))
    closed = unschedulable_hosts(views, written)
    return Observation(
        hypervisors=hosts,
        hosts=views,
        vms=merged.vms,
        slots=tuple(apply_closed_hosts(slot, closed) for slot in written),
        objects={slot.name: slot for slot in slots},
        listing=listing,
        merged=merged,
    )


def _book(documents: Documents, fleet: Fleet, in_flight: InFlight) -> None:
    """What reservations hold, and what hosts are to run and do not report yet."""
    consumed: dict[str, list[Reservation]] = {}
    for reservation in documents.reservations:
        fleet.upsert_reservation(reservation)
        if reservation.status.consumer is not None:
            consumed.setdefault(reservation.status.consumer.vm, []).append(reservation)
    for vm in documents.vms:
        for block in in_flight(vm, fleet.find_host, consumed.get(vm.name, ())):
            fleet.upsert_reservation(block)


def _without_crowded(observation: Observation, fleet: Fleet) -> Observation:
    """Of hosts that hold more than they have, as many slots as are too much are not ready."""
    crowded: dict[str, str] = {}
    for name in fleet.names:
        if excess := fleet.overbooked_amounts(name):
            on = [observation.objects[slot.name] for slot in observation.slots if slot.host == name]
            crowded.update((one.name, f"{name} holds more than it has") for one in choose_excess_slots(on, excess))
    if not crowded:
        return observation
    slots = tuple(
        msgspec.structs.replace(slot, ready=False, unready=crowded[slot.name]) if slot.name in crowded else slot
        for slot in observation.slots
    )
    return msgspec.structs.replace(observation, slots=slots)


async def plan_input(gathered: Snapshot, *, anew: bool = False) -> PlanInput:
    """The input of the plan: every VM that misses slots with its class, and what placement offers each class.

    ``anew``: where anybody misses slots, all VMs that
    need slots, and what placement would offer them if there were no slots, as ``replan`` needs it.
    """
    observation = gathered.observation
    # As the plan counts it.
    missing = select(
        SelectInput(
            vms=observation.vms,
            slots=observation.slots,
            required=gathered.required,
            priorities=gathered.priorities,
        )
    ).missing
    needed = {one.vm: one.needed for one in missing}
    if anew and missing:
        needed = {vm.id: needed.get(vm.id, 0) for vm in observation.vms if gathered.required.get(vm.id, 0) > 0}
    classes, offers = await placement_offers(gathered, needed, beside_slots=not anew)
    return PlanInput(
        vms=observation.vms,
        required=gathered.required,
        priorities=gathered.priorities,
        slots=observation.slots,
        sizes=gathered.sizes,
        classes=classes,
        reuse=offers.reuse,
        new=offers.new,
        free=free_capacity(gathered.fleet),
        hosts=gathered.fleet.names,
        topology=gathered.topology,
    )


async def find_refusals(gathered: Snapshot) -> tuple[Fail, ...]:
    """Whom a cycle without limits could not serve, and why: a plain plan, since packing would only add time."""
    plain = msgspec.structs.replace(await plan_input(gathered), packing=False)
    return tuple(one for one in plan(plain).actions if isinstance(one, Fail))


async def repack_input(gathered: Snapshot, *, limit: int, effort_s: float, seed: int) -> RepackInput:
    """The input of repacking: every member of a slot with its class, and which hosts' slots each class may join."""
    observation = gathered.observation
    known = {vm.id for vm in observation.vms}
    members = sorted({vm for slot in observation.slots for vm in slot.members} & known)
    classes, offers = await placement_offers(gathered, dict.fromkeys(members, 1), with_new=False)
    return RepackInput(
        slots=observation.slots,
        vms=observation.vms,
        required=gathered.required,
        classes=classes,
        reuse=offers.reuse,
        limit=limit,
        effort_s=effort_s,
        seed=seed,
        topology=gathered.topology,
    )


async def placement_offers(
    gathered: Snapshot,
    needed: Mapping[str, int],
    *,
    options: PlacementOptions | None = None,
    beside_slots: bool = True,
    with_new: bool = True,
) -> tuple[dict[str, str], Offers]:
    """VM → class, and what placement offers each class; ``needed``: VM → slots. The engine over what was
    gathered is asked, with these ``options`` if any."""
    with_project = pins_projects(gathered.observation.hypervisors)
    lost = places_lost(gathered.observation.hypervisors)
    caller = Caller(profile=gathered.settings.upkeep.profile, lost=lambda: lost, beside_slots=beside_slots)
    views = {vm.id: vm for vm in gathered.vms}
    claims = [
        claim_of(
            views[vm], count, gathered.sizes[vm], with_project=with_project, places=caller.lost_places_of(views[vm])
        )
        for vm, count in needed.items()
    ]
    offers = await gather_offers(
        InProcessPlacement(_Local(gathered.engine, options), gathered.fleet),
        caller,
        claims,
        requests={},
        request_id="",
        with_new=with_new,
    )
    return {one.vm.id: one.need.offer_class for one in claims}, offers


def coverage_of(gathered: Snapshot, slots: Iterable[SlotView], fails: Iterable[Fail] = ()) -> CoverageResult:
    """The coverage that these slots give. ``fails`` has the reasons of VMs that a plan could not serve."""
    given = CoverageInput(
        vms=gathered.counted,
        required=gathered.required,
        slots=tuple(slots),
        hosts=gathered.observation.hosts,
        fails=(
            *fails,
            *(
                build_fail(vm.id, gathered.unplaced_reason(vm.id), gathered.required.get(vm.id, 0))
                for vm in gathered.unplaced
            ),
        ),
        topology=gathered.topology,
    )
    return compute_coverage(given)
