"""The whole fleet at once: what failover would see, what placement offers, and what a plan from here would do.

Works on any store, a state file included, and changes nothing; ``outlive failover`` asks it. What a plan is made of is
the same as in a cycle (docs/reference/failover.md#cycle), only without the limits of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from outlive.failover.analysis.coverage import CoverageInput, CoverageResult, coverage
from outlive.failover.calls import Caller, pins_projects
from outlive.failover.config import FailoverSettings
from outlive.failover.model import SlotView, VmView
from outlive.failover.observation import Observation, flavor_groups, observe
from outlive.failover.offers import InProcessPlacement, Offers, Wanted, free_capacity, gather_offers, wanted
from outlive.failover.planner.actions import Fail
from outlive.failover.planner.plan import PlanInput, plan
from outlive.failover.planner.repack import RepackInput
from outlive.failover.planner.selection import SelectInput, select
from outlive.failover.portions import whole
from outlive.failover.ports import PlacementPort, VMSource
from outlive.failover.protection import Demands
from outlive.failover.reconciler.overbooking import too_much
from outlive.failover.sizing import ResolvedSize, enough_for, groups_by_flavor, resolve_size
from outlive.failover.topology import Topology
from outlive.placement.engine import Engine
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable
from outlive.placement.ranking import Ranking
from outlive.placement.request import PlacementRequest
from outlive.resources import Hypervisor, Pipeline, Reservation, VirtualMachine
from outlive.resources.reasons import Reason, reason, render
from outlive.store import Store, list_all


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
        return reason(merged.unplaced[vm], host=host, reported=merged.sightings.get(vm) or "no host")


class _Local:
    """The engine as a ranker: nobody else places here, so there is nothing to lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def rank(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        return self._engine.rank(request, why=why)


InFlight = Callable[[VirtualMachine, Callable[[str], Hypervisor | None], Sequence[Reservation]], Iterable[Reservation]]
"""VM, hosts by name, the slots that it uses → blocks for what hosts are to run and do not report yet."""


async def gather(
    store: Store,
    source: VMSource,
    settings: FailoverSettings,
    *,
    k: int | None = None,
    in_flight: InFlight = lambda vm, host, slots: (),
) -> Snapshot:
    """Read everything that a plan or a coverage is made from. ``k`` replaces the required slots of every VM."""
    observation = await observe(store, source, trust_hosts=settings.failover.trust_hypervisor_location)
    demands = Demands(settings.failover.requirements, settings.protection, everybody=k)
    unplaced = tuple(
        msgspec.structs.replace(vm, host_limit=("",))
        for vm in observation.listing.vms
        if vm.id in observation.merged.unplaced
    )
    demanded = whole(demands.among((*observation.vms, *unplaced)))
    grouped = settings.failover.use_flavor_group_resources
    groups = groups_by_flavor(await flavor_groups(store)) if grouped else None
    sizes = {vm.id: enough_for(vm, resolve_size(vm, groups)) for vm in observation.vms}
    fleet = Fleet(settings.scheduler)
    for host in observation.hypervisors:
        fleet.upsert_host(host)
    await _book(store, fleet, in_flight)
    observation = _without_crowded(observation, fleet)
    pipelines = PipelineTable.shipped()
    async for pipeline in list_all(store, Pipeline):
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
        topology=settings.topology_choice.of(observation.hosts),
    )


async def _book(store: Store, fleet: Fleet, in_flight: InFlight) -> None:
    """What reservations hold, and what hosts are to run and do not report yet."""
    consumed: dict[str, list[Reservation]] = {}
    async for reservation in list_all(store, Reservation):
        fleet.upsert_reservation(reservation)
        if reservation.status.consumer is not None:
            consumed.setdefault(reservation.status.consumer.vm, []).append(reservation)
    async for vm in list_all(store, VirtualMachine):
        for block in in_flight(vm, fleet.host, consumed.get(vm.name, ())):
            fleet.upsert_reservation(block)


def _without_crowded(observation: Observation, fleet: Fleet) -> Observation:
    """Of hosts that hold more than they have, as many slots as are too much are not ready."""
    crowded: dict[str, str] = {}
    for name in fleet.names:
        if excess := fleet.overbooked(name):
            on = [observation.objects[slot.name] for slot in observation.slots if slot.host == name]
            crowded.update((one.name, f"{name} holds more than it has") for one in too_much(on, excess))
    if not crowded:
        return observation
    slots = tuple(
        msgspec.structs.replace(slot, ready=False, unready=crowded[slot.name]) if slot.name in crowded else slot
        for slot in observation.slots
    )
    return msgspec.structs.replace(observation, slots=slots)


async def plan_input(gathered: Snapshot, placement: PlacementPort | None = None, *, anew: bool = False) -> PlanInput:
    """The input of the plan: every VM that misses slots with its class, and what placement offers each class.

    Without ``placement`` the engine over what was gathered is asked. ``anew``: where anybody misses slots, all VMs that
    need slots, and what placement would offer them if there were no slots, as ``replan`` needs it.
    """
    observation, settings = gathered.observation, gathered.settings
    wishes = _wishes(gathered, everybody=anew)
    offers = Offers(reuse={}, new={})
    if wishes:
        offers = await gather_offers(
            placement or InProcessPlacement(_Local(gathered.engine), gathered.fleet),
            Caller(profile=settings.upkeep.profile, beside_slots=not anew),
            wishes,
            requests={},
            request_id="",
        )
    return PlanInput(
        vms=observation.vms,
        required=gathered.required,
        priorities=gathered.priorities,
        slots=observation.slots,
        sizes=gathered.sizes,
        classes={wish.vm.id: wish.offer_class for wish in wishes},
        reuse=offers.reuse,
        new=offers.new,
        free=free_capacity(gathered.fleet),
        hosts=gathered.fleet.names,
        topology=gathered.topology,
    )


async def refusals(gathered: Snapshot) -> tuple[Fail, ...]:
    """Whom a cycle without limits could not serve, and why: a plain plan, since packing would only add time."""
    plain = msgspec.structs.replace(await plan_input(gathered), packing=False)
    return tuple(one for one in plan(plain).actions if isinstance(one, Fail))


async def repack_input(gathered: Snapshot, *, limit: int, effort_s: float, seed: int) -> RepackInput:
    """The input of repacking: every member of a slot with its class, and which hosts' slots each class may join."""
    observation, settings = gathered.observation, gathered.settings
    views = {vm.id: vm for vm in observation.vms}
    members = sorted({vm for slot in observation.slots for vm in slot.members if vm in views})
    with_project = pins_projects(observation.hypervisors)
    wishes = [wanted(views[vm], 1, gathered.sizes[vm], with_project=with_project) for vm in members]
    offers = Offers(reuse={}, new={})
    if wishes:
        offers = await gather_offers(
            InProcessPlacement(_Local(gathered.engine), gathered.fleet),
            Caller(profile=settings.upkeep.profile),
            wishes,
            requests={},
            request_id="",
            with_new=False,
        )
    return RepackInput(
        slots=observation.slots,
        vms=observation.vms,
        required=gathered.required,
        classes={wish.vm.id: wish.offer_class for wish in wishes},
        reuse=offers.reuse,
        limit=limit,
        effort_s=effort_s,
        seed=seed,
        topology=gathered.topology,
    )


def _wishes(gathered: Snapshot, *, everybody: bool = False) -> list[Wanted]:
    """Who misses slots, counted as the plan counts it; with ``everybody`` all who need slots, if anybody misses any."""
    observation = gathered.observation
    missing = select(
        SelectInput(
            vms=observation.vms,
            slots=observation.slots,
            required=gathered.required,
            priorities=gathered.priorities,
        )
    ).missing
    views = {vm.id: vm for vm in observation.vms}
    with_project = pins_projects(observation.hypervisors)
    needed = {one.vm: one.needed for one in missing}
    if everybody and missing:
        needed = {vm.id: needed.get(vm.id, 0) for vm in observation.vms if gathered.required.get(vm.id, 0) > 0}
    return [wanted(views[vm], count, gathered.sizes[vm], with_project=with_project) for vm, count in needed.items()]


def coverage_of(gathered: Snapshot, slots: Iterable[SlotView], fails: Iterable[Fail] = ()) -> CoverageResult:
    """The coverage that these slots give. ``fails`` has the reasons of VMs that a plan could not serve."""
    given = CoverageInput(
        vms=gathered.counted,
        required=gathered.required,
        slots=tuple(slots),
        hosts=gathered.observation.hosts,
        fails=(*fails, *(_unplaced_fail(gathered, vm) for vm in gathered.unplaced)),
        topology=gathered.topology,
    )
    return coverage(given)


def _unplaced_fail(gathered: Snapshot, vm: VmView) -> Fail:
    why = gathered.unplaced_reason(vm.id)
    said = render(why)
    missing = gathered.required.get(vm.id, 0)
    return Fail(vm=vm.id, reason=why.code, detail=said.text, remedy=said.remedy, missing=missing)
