"""What the reconciler reads: the input of every decision, where VMs are, and whether the cache shows the same.

What a decision sees of the fleet is of the moment when its input is made; placement's answers are a little older.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from outlive.base import Clock, OutliveError, Unavailable, get_logger, global_request_id, split_batches
from outlive.failover.calls import Caller
from outlive.failover.fleet import FreeAmounts
from outlive.failover.model import HostView, SlotView
from outlive.failover.offers import Offers, claim_of, gather_offers
from outlive.failover.planner.actions import Claim
from outlive.failover.planner.assign import AssignInput
from outlive.failover.planner.cleanup import CleanInput, LeaveInput
from outlive.failover.planner.plan import PlanInput
from outlive.failover.planner.repack import RepackInput, movable_vms
from outlive.failover.planner.selection import SelectInput
from outlive.failover.reconciler.cache import VMS_AT_ONCE, FleetCache, check_current
from outlive.failover.reconciler.context import Aborted, Context
from outlive.failover.report.reporter import CycleStep
from outlive.failover.rules import serves
from outlive.failover.separation import groups_of
from outlive.failover.slots import ResolvedSize, enlarge_for_vm, is_slot, resolve_size, slot_view
from outlive.placement import VmList, VmView, groups_by_flavor
from outlive.resources import FlavorGroupSpec, unschedulable_reason

KEY_PREFIX: Final = "+new-"
"""Begins the keys of slots that have no name yet; no name can begin so."""
NO_BRAKE: Final = 2**62
_log = get_logger("failover.inputs")


@dataclass(frozen=True, slots=True)
class Terms:
    """What an assignment rests on beside the fleet."""

    offers: Offers
    free: FreeAmounts
    closed: Collection[str] = ()
    """Slots that nobody joins."""
    limit_new: bool = False
    """At most one new slot a host …"""
    used: Collection[str] = ()
    """… and none on these."""


class Inputs:
    """Makes the inputs."""

    def __init__(self, context: Context) -> None:
        self._cache = context.cache
        self._placement = context.placement
        self._config = context.config
        self._settings = context.settings
        self._free = context.free
        self._caller = Caller(
            profile=context.settings.profile, domain_of=context.domain_of, lost=lambda: self._cache.lost_places
        )
        self._clock = context.clock

    # Cleaning up

    def build_leave(self, vms: Sequence[str]) -> LeaveInput:
        """What these VMs, which give reason to leave a slot, have to leave."""
        cache = self._cache
        return LeaveInput(
            vms=tuple(cache.vms[vm] for vm in vms if vm in cache.vms),
            gone=tuple(vm for vm in vms if vm not in cache.vms),
            slots=tuple(cache.slots_of(vms)),
            now=self._clock.now(),
        )

    def build_clean(self, slots: Sequence[SlotView], *, memberships: int | None = None) -> CleanInput:
        """What leaves these slots, which are all slots of their members at fault.

        ``memberships``: how many there are; with them the mass-removal brake applies.
        """
        settings, braked = self._settings, memberships is not None
        cache = self._cache
        members = sorted({vm for slot in slots for vm in slot.members})
        active: dict[str, list[str]] = {}
        for vm in members:
            if (host := cache.locations.first_host(vm)) is not None:
                active.setdefault(host, []).append(vm)
        hosts = {host for slot in slots for host in (slot.host, *slot.members.values())}
        hosts.update(cache.vms[vm].host for vm in members if vm in cache.vms)
        return CleanInput(
            vms=tuple(cache.vms[vm] for vm in members if vm in cache.vms),
            hosts=tuple(HostView(name=host, active=tuple(vms)) for host, vms in sorted(active.items())),
            slots=tuple(slots),
            memberships=memberships or 0,
            now=self._clock.now(),
            grace_s=settings.grace_pauses * self._config.reconcile_interval_s,
            brake_share=settings.brake_share if braked else 1.0,
            brake_number=settings.brake_number if braked else NO_BRAKE,
            topology=cache.build_topology(hosts),
        )

    # Giving slots

    def build_select(self, *, cycle: int, draw: float) -> SelectInput:
        """Who misses slots, and who of them is served: nobody whose host is lost, those are recovered first."""
        cache = self._cache
        missing = [vm for vm in cache.index.missing_slots() if vm in cache.vms]
        vms = [cache.vms[vm] for vm in missing if cache.vms[vm].host not in cache.locations.lost]
        return SelectInput(
            vms=tuple(vms),
            slots=tuple(cache.slots_of(vm.id for vm in vms)),
            required={vm.id: cache.required_slots(vm) for vm in vms},
            priorities=self._collect_priorities(vms),
            limit=self._config.max_vms_to_process,
            rotation=self._config.vm_selection_rotation_interval or 0,
            cycle=cycle,
            draw=draw,
        )

    def build_claims(self, vms: Iterable[str], needed: Mapping[str, int] | None = None) -> list[Claim]:
        """What these located VMs miss, or ``needed`` of them, with sizes and classes."""
        cache = self._cache
        groups: Mapping[str, FlavorGroupSpec] | None = None
        """Flavor → group; ``None`` if slots are of the VMs' own sizes, as also while groups cannot be read."""
        if self._config.use_flavor_group_resources:
            try:
                check_current(cache.informers.groups)
            except Unavailable as error:
                _log.info("groups.unavailable", error=str(error))
            else:
                groups = groups_by_flavor(group.spec for group in cache.informers.groups.items())
        return [
            claim_of(
                view,
                cache.index.count_missing(vm) if needed is None else needed.get(vm, 1),
                slot_size(view, groups),
                with_project=cache.pins_projects,
                domain=self._caller.domain_of(view.project),
                places=self._caller.lost_places_of(view),
            )
            for vm in vms
            if (view := cache.vms.get(vm)) is not None
        ]

    async def ask_placement(self, missing: Sequence[Claim], requests: Mapping[str, str]) -> Offers:
        """Placement's answers for these."""
        return await gather_offers(
            self._placement, self._caller, missing, requests=requests, request_id=global_request_id()
        )

    def build_assign(self, missing: Sequence[Claim], terms: Terms) -> AssignInput:
        """What these get, asked with the whole fleet."""
        cache, topology = self._cache, self._cache.build_topology()
        ids = {one.vm.id for one in missing}
        needs = {vm.id: cache.required_slots(vm) for vm in cache.vms.values()} if topology.server_groups else {}
        return AssignInput(
            slots=tuple(cache.slots[name] for name in sorted(cache.slots)),
            vms=tuple(one.vm for one in missing),
            needs=tuple(one.need for one in missing),
            priorities=self._collect_priorities(one.vm for one in missing),
            reuse=terms.offers.reuse,
            new=terms.offers.new,
            free=terms.free.to_table(),
            hosts=tuple(sorted(cache.locations.names)),
            one_new_per_host=terms.limit_new,
            used_hosts=tuple(terms.used),
            excluded_slots=tuple(sorted(terms.closed)),
            key_prefix=KEY_PREFIX,
            groups=groups_of(cache.vms.values(), needs, ids) if topology.server_groups else (),
            topology=topology,
        )

    async def build_plan(self, missing: Collection[str], requests: Mapping[str, str]) -> PlanInput:
        """Slots for everybody; beside those that are there also for VMs that miss none, so that these can be planned
        anew: then placement is asked as if there were no slots, because the plan counts their room itself."""
        cache = self._cache
        needing = {vm: need for vm, view in cache.vms.items() if (need := cache.required_slots(view))}
        if not cache.slots:
            needing = {vm: need for vm, need in needing.items() if vm in missing}
        needing = {vm: need for vm, need in needing.items() if cache.vms[vm].host not in cache.locations.lost}
        claims = self.build_claims(needing, needing)
        caller = msgspec.structs.replace(self._caller, beside_slots=not cache.slots)
        offers = await gather_offers(self._placement, caller, claims, requests=requests, request_id=global_request_id())
        return PlanInput(
            vms=tuple(cache.vms.values()),
            required=needing,
            priorities=self._collect_priorities(cache.vms[vm] for vm in needing if vm in cache.vms),
            slots=tuple(cache.slots[name] for name in sorted(cache.slots)),
            sizes={one.vm.id: one.need.size for one in claims},
            classes={one.vm.id: one.need.offer_class for one in claims},
            reuse=offers.reuse,
            new=offers.new,
            free=self._free().to_table(),
            hosts=tuple(sorted(cache.locations.names)),
            topology=cache.build_topology(),
        )

    async def build_repack(self, *, limit: int, seed: int) -> RepackInput:
        """Which members move so that slots empty."""
        cache = self._cache
        slots = tuple(cache.slots[name] for name in sorted(cache.slots))
        vms = tuple(cache.vms.values())
        required = {vm.id: need for vm in vms if (need := cache.required_slots(vm))}
        members = [vm for vm in movable_vms(slots) if vm in cache.vms]
        claims = self.build_claims(members, dict.fromkeys(members, 1))
        offers = await gather_offers(
            self._placement, self._caller, claims, requests={}, request_id=global_request_id(), with_new=False
        )
        return RepackInput(
            slots=slots,
            vms=vms,
            required=required,
            classes={one.vm.id: one.need.offer_class for one in claims},
            reuse=offers.reuse,
            limit=limit,
            seed=seed,
            topology=cache.build_topology(),
        )

    def _collect_priorities(self, vms: Iterable[VmView]) -> dict[str, int]:
        return {vm.id: priority for vm in vms if (priority := self._cache.priority_of(vm))}


def slot_size(vm: VmView, groups: Mapping[str, FlavorGroupSpec] | None) -> ResolvedSize:
    """The size of the VM's slots; never below the VM's own."""
    size = resolve_size(vm, groups)
    return enlarge_for_vm(vm, size) if vm.cpu_milli > 0 and vm.memory_bytes > 0 else size


# Who says which VMs there are and where: the caches, and a database of VMs where there is one.
#
# Read at the beginning of each tick, which ends where it cannot be read; between ticks VMs that only hosts report are
# looked up one by one.

LOOKUPS: Final = 50
"""VMs that one pass looks up in the VM source."""

_reconciler_log = get_logger("failover.reconciler")


class Sources:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache = context.cache
        self._listing = VmList()
        self._listed = False
        """Whether a tick has brought the listing of a database; before that everybody would be a stranger."""
        self._looked_up: set[str] = set()
        """VMs that were looked up since the last tick."""

    async def observe(self) -> None:
        """See to it that the cache is current; ``Aborted`` names what cannot be read."""
        context, cache = self._context, self._cache
        informers = cache.informers
        self._looked_up.clear()
        with _abort_on_error(CycleStep.HYPERVISORS):
            check_current(informers.hypervisors)
        with _abort_on_error(CycleStep.SLOTS):
            check_current(informers.reservations)
        with _abort_on_error(CycleStep.VMS):
            if context.source is None:
                check_current(informers.vms)
            else:
                self._listing = await context.source.list_vms()
        with _abort_on_error(CycleStep.SLOTS):
            await cache.follow()
        if context.source is None:
            self._listing = VmList(without_host=len(informers.vms) - len(cache.known))
            return
        await cache.put_listing(self._listing.vms, but=self._looked_up)
        self._listed = True

    async def find_strangers(self) -> bool:
        """Ask a database about VMs that hosts report and that it did not list, or listed elsewhere.

        Whether more of them can be asked about at once. After an error they wait for the next change or tick.
        """
        cache, source = self._cache, self._context.source
        if source is None:
            cache.strangers.clear()
            return False
        if not self._listed:
            return False
        for vm_id in sorted(cache.strangers)[:LOOKUPS]:
            try:
                view = await source.get_vm(vm_id)
            except OutliveError as error:
                _reconciler_log.warning("vm.not_looked_up", vm=vm_id, error=str(error), waiting=len(cache.strangers))
                return False
            cache.strangers.discard(vm_id)
            self._looked_up.add(vm_id)
            if view is not None and view != cache.known.get(vm_id):
                cache.put_vm(vm_id, view)
        return bool(cache.strangers)

    async def locate(self, vm_id: str) -> VmView | None:
        """Where the VM is, as ticks and passes believe."""
        await self._cache.follow()
        known = self._cache.vms.get(vm_id)
        source = self._context.source
        if known is not None and source is None:
            return known
        view = await source.get_vm(vm_id) if source is not None else self._cache.known.get(vm_id)
        return self._cache.locations.locate_vm(view)

    async def report(self) -> None:
        """What sources and hosts disagree about, to metrics and faults."""
        cache, reporter = self._cache, self._context.reporter
        merged = await cache.find_disagreements()
        reporter.report_agreement(self._listing, merged)
        reporter.unknown_levels(cache.unknown_levels)


@contextmanager
def _abort_on_error(step: CycleStep) -> Iterator[None]:
    """Whatever goes wrong inside ends the tick: others answer there."""
    try:
        yield
    except OutliveError as error:
        raise Aborted(step, error) from error
    except Exception as error:
        _reconciler_log.error("cycle.unexpected", step=step.value, error=repr(error), exc_info=True)
        odd = Unavailable(f"unexpected answer: {type(error).__name__}: {error}", remedy="see the log, and report it")
        raise Aborted(step, odd) from error


# Whether the cache shows what a rebuild out of the informers would: all names at each tick, and some objects in turn.
#
# A difference is a defect of following. It is reported, and the cache is built anew.

COMPARED: Final = 300
"""Hosts, slots and VMs that one comparison looks at; the next one goes on behind them."""
COMPARED_AT_ONCE: Final = 30


class CacheComparison:
    """See the module."""

    def __init__(self, cache: FleetCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._rest: dict[str, list[str]] = {}

    async def find_differences(self) -> list[str]:
        """What differs, in words: of all names, and of ``COMPARED`` hosts, slots and VMs, the next time of others."""
        cache = self._cache
        hosts, slots = cache.informers.hypervisors, cache.informers.reservations
        differences = [f"host {name}" for name in sorted({one.name for one in hosts.items()} ^ cache.locations.names)]
        listed: set[str] = set()
        for reservations in split_batches(slots.items(), VMS_AT_ONCE):
            listed.update(slot.name for slot in reservations if is_slot(slot))
            await self._clock.sleep(0)
        there = [(name, slots.get(name)) for name in listed ^ cache.slots.keys()]
        missing = [name for name, slot in there if (slot is not None and is_slot(slot)) != (name in cache.slots)]
        differences += [f"slot {name}" for name in sorted(missing)]
        checks: tuple[tuple[str, Callable[[], Iterable[str]], Callable[[str], bool]], ...] = (
            ("VMs on host", lambda: sorted(cache.locations.names), self._host_differs),
            ("slot", lambda: cache.slots, self._slot_differs),
            ("VM", self._vm_names, self._vm_differs),
        )
        for what, names, differs in checks:
            rest = self._rest.get(what) or list(names())
            now, self._rest[what] = rest[:COMPARED], rest[COMPARED:]
            for some in split_batches(now, COMPARED_AT_ONCE):
                differences += [f"{what} {name}" for name in some if differs(name)]
                await self._clock.sleep(0)
        return differences

    def _vm_names(self) -> list[str]:
        cache = self._cache
        return [*cache.known, *(vm for vm in cache.index.names if vm not in cache.known)]

    def _host_differs(self, name: str) -> bool:
        cache = self._cache
        host = cache.informers.hypervisors.get(name)
        if host is None or name not in cache.locations.names:
            return False  # it came or went since
        reported = {instance.id for instance in host.status.instances if instance.active}
        return cache.locations.vms_on(name) != reported or cache.locations.closed.get(name, "") != unschedulable_reason(
            host
        )

    def _slot_differs(self, name: str) -> bool:
        cache = self._cache
        slot = cache.informers.reservations.get(name)
        if slot is None or not is_slot(slot) or name not in cache.slots:
            return False
        view = cache.apply_host_state(slot_view(slot))
        return cache.slots[name] != view or cache.index.members_of(name) != sorted(view.members)

    def _vm_differs(self, vm_id: str) -> bool:
        cache = self._cache
        now = cache.locations.locate_vm(cache.known.get(vm_id))
        if now != cache.vms.get(vm_id):
            return True
        if not cache.index.has_vm(vm_id):
            return now is not None
        mine = cache.index.slots_of(vm_id)
        if any(vm_id not in cache.slots[name].members for name in mine if name in cache.slots):
            return True
        if now is None:
            return False
        counting = sum(serves(now, cache.slots[name]) for name in mine if name in cache.slots)
        return cache.index.count_missing(vm_id) != max(0, cache.required_slots(now) - counting) or self._rules_differ(
            now, mine
        )

    def _rules_differ(self, vm: VmView, mine: Sequence[str]) -> bool:
        """The counter formula, literally: no unit occurs twice."""
        cache = self._cache
        hosts = [vm.host]
        for slot in (cache.slots[name] for name in mine if name in cache.slots):
            others = [other for other in slot.members if other != vm.id and cache.index.has_vm(other)]
            hosts += [slot.host, *map(cache.index.location_of, others)]
        units = set(map(cache.build_topology(hosts).unit_of_host, hosts))
        return cache.index.holds_for(vm.id) != (len(units) == len(hosts))
