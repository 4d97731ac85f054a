"""The input of every decision of the reconciler, made from the cache, in one place.

What a decision sees of the fleet is of the moment when its input is made; placement's answers are a little older.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from outlive.base.errors import Unavailable
from outlive.base.logging import get_logger, global_request_id
from outlive.failover.calls import Caller
from outlive.failover.fleet import FreeAmounts
from outlive.failover.model import HostView, SlotView
from outlive.failover.offers import Offers, claim_of, gather_offers
from outlive.failover.planner.actions import Claim
from outlive.failover.planner.assign import AssignInput
from outlive.failover.planner.cleanup import CleanInput, LeaveInput
from outlive.failover.planner.plan import PlanInput
from outlive.failover.planner.repack import RepackInput, concerned
from outlive.failover.planner.selection import SelectInput
from outlive.failover.reconciler.context import Context
from outlive.failover.reconciler.informers import check_current
from outlive.failover.separation import groups_of
from outlive.failover.sizes import ResolvedSize, enough_for, resolve_size
from outlive.placement.flavor_groups import groups_by_flavor
from outlive.placement.vms import VmView
from outlive.resources import FlavorGroupSpec

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

    def leave(self, vms: Sequence[str]) -> LeaveInput:
        """What these VMs, which give reason to leave a slot, have to leave."""
        cache = self._cache
        return LeaveInput(
            vms=tuple(cache.vms[vm] for vm in vms if vm in cache.vms),
            gone=tuple(vm for vm in vms if vm not in cache.vms),
            slots=tuple(cache.slots_of(vms)),
            now=self._clock.now(),
        )

    def clean(self, slots: Sequence[SlotView], *, memberships: int | None = None) -> CleanInput:
        """What leaves these slots, which are all slots of their members at fault.

        ``memberships``: how many there are; with them the mass-removal brake applies.
        """
        settings, braked = self._settings, memberships is not None
        cache = self._cache
        members = sorted({vm for slot in slots for vm in slot.members})
        active: dict[str, list[str]] = {}
        for vm in members:
            if (host := cache.locations.first(vm)) is not None:
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
            topology=cache.topology(hosts),
        )

    # Giving slots

    def select(self, *, cycle: int, draw: float) -> SelectInput:
        """Who misses slots, and who of them is served: nobody whose host is lost, those are recovered first."""
        cache = self._cache
        missing = [vm for vm in cache.index.missing() if vm in cache.vms]
        vms = [cache.vms[vm] for vm in missing if cache.vms[vm].host not in cache.locations.lost]
        return SelectInput(
            vms=tuple(vms),
            slots=tuple(cache.slots_of(vm.id for vm in vms)),
            required={vm.id: cache.required(vm) for vm in vms},
            priorities=self._priorities(vms),
            limit=self._config.max_vms_to_process,
            rotation=self._config.vm_selection_rotation_interval or 0,
            cycle=cycle,
            draw=draw,
        )

    def claims(self, vms: Iterable[str], needed: Mapping[str, int] | None = None) -> list[Claim]:
        """What these located VMs miss, or ``needed`` of them, with sizes and classes."""
        cache, groups = self._cache, self._groups()
        return [
            claim_of(
                view,
                cache.index.misses(vm) if needed is None else needed.get(vm, 1),
                slot_size(view, groups),
                with_project=cache.pins_projects,
                domain=self._caller.domain_of(view.project),
                places=self._caller.places(view),
            )
            for vm in vms
            if (view := cache.vms.get(vm)) is not None
        ]

    async def offers(self, missing: Sequence[Claim], requests: Mapping[str, str]) -> Offers:
        """Placement's answers for these."""
        return await gather_offers(
            self._placement, self._caller, missing, requests=requests, request_id=global_request_id()
        )

    def assign(self, missing: Sequence[Claim], terms: Terms) -> AssignInput:
        """What these get, asked with the whole fleet."""
        cache, topology = self._cache, self._cache.topology()
        ids = {one.vm.id for one in missing}
        needs = {vm.id: cache.required(vm) for vm in cache.vms.values()} if topology.server_groups else {}
        return AssignInput(
            slots=tuple(cache.slots[name] for name in sorted(cache.slots)),
            vms=tuple(one.vm for one in missing),
            needs=tuple(one.need for one in missing),
            priorities=self._priorities(one.vm for one in missing),
            reuse=terms.offers.reuse,
            new=terms.offers.new,
            free=terms.free.table(),
            hosts=tuple(sorted(cache.locations.names)),
            one_new_per_host=terms.limit_new,
            used_hosts=tuple(terms.used),
            excluded_slots=tuple(sorted(terms.closed)),
            key_prefix=KEY_PREFIX,
            groups=groups_of(cache.vms.values(), needs, ids) if topology.server_groups else (),
            topology=topology,
        )

    async def plan(self, missing: Collection[str], requests: Mapping[str, str]) -> PlanInput:
        """Slots for everybody; beside those that are there also for VMs that miss none, so that these can be planned
        anew: then placement is asked as if there were no slots, because the plan counts their room itself."""
        cache = self._cache
        needing = {vm: need for vm, view in cache.vms.items() if (need := cache.required(view))}
        if not cache.slots:
            needing = {vm: need for vm, need in needing.items() if vm in missing}
        needing = {vm: need for vm, need in needing.items() if cache.vms[vm].host not in cache.locations.lost}
        claims = self.claims(needing, needing)
        caller = msgspec.structs.replace(self._caller, beside_slots=not cache.slots)
        offers = await gather_offers(self._placement, caller, claims, requests=requests, request_id=global_request_id())
        return PlanInput(
            vms=tuple(cache.vms.values()),
            required=needing,
            priorities=self._priorities(cache.vms[vm] for vm in needing if vm in cache.vms),
            slots=tuple(cache.slots[name] for name in sorted(cache.slots)),
            sizes={one.vm.id: one.need.size for one in claims},
            classes={one.vm.id: one.need.offer_class for one in claims},
            reuse=offers.reuse,
            new=offers.new,
            free=self._free().table(),
            hosts=tuple(sorted(cache.locations.names)),
            topology=cache.topology(),
        )

    async def repack(self, *, limit: int, seed: int) -> RepackInput:
        """Which members move so that slots empty."""
        cache = self._cache
        slots = tuple(cache.slots[name] for name in sorted(cache.slots))
        vms = tuple(cache.vms.values())
        required = {vm.id: need for vm in vms if (need := cache.required(vm))}
        members = [vm for vm in concerned(slots) if vm in cache.vms]
        claims = self.claims(members, dict.fromkeys(members, 1))
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
            topology=cache.topology(),
        )

    def _priorities(self, vms: Iterable[VmView]) -> dict[str, int]:
        return {vm.id: priority for vm in vms if (priority := self._cache.priority(vm))}

    def _groups(self) -> Mapping[str, FlavorGroupSpec] | None:
        """Flavor → group; ``None`` where slots are of the VMs' own sizes, as also while groups cannot be read."""
        if not self._config.use_flavor_group_resources:
            return None
        informer = self._cache.informers.groups
        try:
            check_current(informer)
        except Unavailable as error:
            _log.info("groups.unavailable", error=str(error))
            return None
        return groups_by_flavor(group.spec for group in informer.items())


def slot_size(vm: VmView, groups: Mapping[str, FlavorGroupSpec] | None) -> ResolvedSize:
    """The size of the VM's slots; never below the VM's own."""
    size = resolve_size(vm, groups)
    return enough_for(vm, size) if vm.cpu_milli > 0 and vm.memory_bytes > 0 else size
