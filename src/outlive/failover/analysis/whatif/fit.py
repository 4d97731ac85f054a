"""How many more VMs of a flavor fit with every promise kept, zone by zone, and what limits it.

The promises are those of the one account: what failover slots and commitment slots hold is not free, unless the VMs are
of a project whose commitments these are; and the new VMs get slots themselves, as many as protection asks for. Nobody's
coverage suffers, because a new VM only joins slots whose members need no other slot, or gets a new one. VMs that have
too few slots now get them first.

It stands here and not with commitments because failover knows all of it: commitments are reservations in the ledger
like any other. Counting is ``failover.analysis.compute_fit``; what may be where is asked of placement, once for each
zone.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base import NotFound, OutliveError
from outlive.failover.analysis.drain.inputs import EMPTY, move_request
from outlive.failover.analysis.fit import FitInput, FitResult, FitUnit, count_fitting_vms, fit_in_grids, limit_vms
from outlive.failover.calls import Caller
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Fail
from outlive.failover.planner.plan import plan
from outlive.failover.planner.replan import replan
from outlive.failover.slots import ResolvedSize, enlarge_for_vm, resolve_size
from outlive.failover.snapshot import Snapshot, coverage_of, plan_input
from outlive.placement import (
    CapacityQuery,
    Intent,
    PlacementRequest,
    VmView,
    amounts_of,
    capacity_query,
    explain_nowhere,
    may_run_on,
)
from outlive.resources import COMMITTED, CPU, FAILOVER, MEMORY, FlavorGroupSpec

Ints = NDArray[np.int64]


class Limit(enum.StrEnum):
    """Why no more VMs fit."""

    PLACEMENT = "placement"
    """Placement allows no host at all, whatever room there is."""
    UNITS = "units"
    """There are not as many units of failure as a VM and its slots need."""
    UNCOVERED = "uncovered"
    """VMs that are there already have too few slots, and no plan gives them all."""
    MEMORY = "memory"
    CPU = "cpu"
    OTHER = "other"
    """A resource besides memory and cores is used up first."""


class ZoneFit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many fit in one zone."""

    zone: str
    vms: int
    """So many fit for certain."""
    at_most: int
    """And not more than so many. Equal: the number is exact."""
    new_slots: int
    """Slots of failover that are made for them."""
    hosts: int
    """Hosts that may take them."""
    without_slots: int
    """How many would fit if they needed no slots."""
    held_by_commitments: int
    """How many more would have room, without slots of their own, if commitments held nothing here …"""
    held_by_failover: int
    """… or if failover held nothing."""
    limit: Limit
    detail: str = ""
    """Why placement allows no host."""


class FlavorFit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer."""

    flavor: str
    project: str
    slots_each: int
    """Slots that each VM needs."""
    vms: int
    at_most: int
    exact: bool
    zones: tuple[ZoneFit, ...]
    topped_up: int = 0
    """Slots and memberships that a plan adds first, for VMs that are there already and have too few."""


class _Promises(msgspec.Struct, frozen=True, kw_only=True):
    """The slots that count, and what is left beside them."""

    slots: tuple[SlotView, ...]
    taken: dict[str, tuple[int, int]]
    """Host → milli-cores and bytes of slots that are planned and not there yet."""
    added: int
    kept: bool
    """Whether everybody has the slots that they need."""


async def count_further_vms(
    gathered: Snapshot, like: VmView, *, groups: Mapping[str, FlavorGroupSpec] | None = None, limit_zone: str = ""
) -> FlavorFit:
    """How many more VMs like this one fit; ``like`` has no host and no zone. With 5,000 hosts this takes seconds.

    ``groups``: flavor name → group, where slots have the size of the group's largest flavor. ``limit_zone``: only this
    zone; ``NotFound`` where no host is in it.
    """
    size = enlarge_for_vm(like, resolve_size(like, groups))
    zones = sorted({host.zone for host in gathered.observation.hosts})
    if limit_zone:
        if limit_zone not in zones:
            raise NotFound(f"there is no zone {limit_zone!r}", remedy=f"zones are: {', '.join(filter(None, zones))}")
        zones = [limit_zone]
    promises = await _gather_promises(gathered)
    needed = gathered.demands.required_slots(like)
    found = tuple(
        _FitZone(gathered, promises, msgspec.structs.replace(like, zone=zone), size, needed).compute_fit()
        for zone in zones
    )
    return FlavorFit(
        flavor=like.flavor,
        project=like.project,
        slots_each=needed,
        vms=sum(one.vms for one in found),
        at_most=sum(one.at_most for one in found),
        exact=all(one.vms == one.at_most for one in found),
        zones=found,
        topped_up=promises.added,
    )


async def _gather_promises(gathered: Snapshot) -> _Promises:
    """What is promised already; where somebody has too few slots, with what a plan adds for them."""
    slots = gathered.observation.slots
    lost = sum(gathered.required.get(vm.id, 0) > 0 for vm in gathered.unplaced)
    now = coverage_of(gathered, slots)
    if now.covered == now.required - lost:
        return _Promises(slots=slots, taken={}, added=0, kept=True)
    given = await plan_input(gathered)
    result = plan(msgspec.structs.replace(given, packing=False))
    if result.failed:
        result = replan(await plan_input(gathered, anew=True))
    taken: dict[str, list[int]] = {}
    for sign, some in ((1, result.slots), (-1, slots)):
        for slot in some:
            held = taken.setdefault(slot.host, [0, 0])
            held[0] += sign * slot.cpu_milli
            held[1] += sign * slot.memory_bytes
    after = coverage_of(gathered, result.slots, [one for one in result.actions if isinstance(one, Fail)])
    return _Promises(
        slots=result.slots,
        taken={host: (held[0], held[1]) for host, held in taken.items() if any(held)},
        added=len(result.actions),
        kept=after.covered == after.required - lost,
    )


class _FitZone:
    """One zone, for VMs of one size."""

    def __init__(self, gathered: Snapshot, promises: _Promises, vm: VmView, size: ResolvedSize, needed: int) -> None:
        self._gathered, self._promises, self._vm, self._size, self._needed = gathered, promises, vm, size, needed
        self._fleet = gathered.fleet
        self._hosts = [host.name for host in gathered.observation.hosts if host.zone == vm.zone]
        self._request = move_request(vm, intent=Intent.CREATE)
        self._query = capacity_query(self._request, self._fleet.settings)
        self._why = ""
        caller = Caller(profile=gathered.settings.upkeep.profile)
        self._vm_hosts = self._answered_hosts(msgspec.structs.replace(self._request, options=EMPTY), why=True)
        self._slot_hosts = (
            self._answered_hosts(caller.build_new_call(vm, size, ignore=()).request) if needed else frozenset()
        )
        self._reuse_hosts = (
            self._answered_hosts(caller.build_reuse_call(vm, size, ignore=()).request) if needed else frozenset()
        )

    def compute_fit(self) -> ZoneFit:
        room = self._count_vm_room(self._query)
        homes = sum(room.values())
        low, high = self._count(room) if self._promises.kept else (FitResult(vms=0), FitResult(vms=0))
        return ZoneFit(
            zone=self._vm.zone,
            vms=low.vms,
            at_most=max(low.vms, high.vms),
            new_slots=low.slots,
            hosts=len(self._vm_hosts),
            without_slots=homes,
            held_by_commitments=self._count_more_without(COMMITTED, homes),
            held_by_failover=self._count_more_without(FAILOVER, homes),
            limit=self._find_limit(),
            detail=self._why if not self._vm_hosts else "",
        )

    def _answered_hosts(self, request: PlacementRequest, *, why: bool = False) -> frozenset[str]:
        """The hosts of the zone that placement answers; with ``why`` it is kept why it answers none."""
        engine = self._gathered.engine
        try:
            hosts = engine.rank(request).hosts
            if why and not hosts:
                self._why = explain_nowhere(engine.rank(request, why=True))
        except OutliveError as error:
            hosts = ()
            if why:
                self._why = str(error)
        here = frozenset(self._hosts)
        return frozenset(host for host in hosts if host in here and may_run_on(self._vm, host))

    # -- room ------------------------------------------------------------------------------------------

    def _free_amounts(self, query: CapacityQuery) -> Ints:
        """(resources, rows): free for this request, with what gives way to it, and without what is planned."""
        fleet = self._fleet
        free = fleet.available_amounts(query).copy()
        width = len(fleet.resources)
        for bucket in fleet.ledger.unlocked_buckets(query):
            rows, used, _ = bucket.as_arrays(width)
            for resource in range(width):
                np.add.at(free[resource], rows, used[resource])
        for host, held in self._promises.taken.items():
            row = fleet.find_row(host)
            if row is not None:
                free[:2, row] -= np.array(held, dtype=np.int64)
        return np.maximum(free, 0)

    def _count_vm_room(self, query: CapacityQuery, only: Sequence[str] = ()) -> dict[str, int]:
        """Host → VMs that have room there, by all resources or by these."""
        free, fleet = self._free_amounts(query), self._fleet
        needs = {name: amount for name, amount in amounts_of(self._vm).items() if amount > 0}
        return {
            host: min((int(free[fleet.resources[name], row]) if name in fleet.resources else 0) // needs[name]
                      for name in needs if not only or name in only)
            for host in sorted(self._vm_hosts)
            if (row := fleet.find_row(host)) is not None
        }  # fmt: skip

    def _count_more_without(self, kind: str, homes: int) -> int:
        """How many more would have room if reservations of this type held nothing."""
        without = msgspec.structs.replace(self._query, ignored_types=self._query.ignored_types | {kind})
        return max(0, sum(self._count_vm_room(without).values()) - homes)

    # -- the count -------------------------------------------------------------------------------------

    def _count(self, room: Mapping[str, int]) -> tuple[FitResult, FitResult]:
        """So many fit for certain, and no more than so many."""
        if not self._needed:
            fits = FitResult(vms=sum(room.values()))
            return fits, fits
        vm, size, free = self._vm, self._size, self._free_amounts(_LOCKED)
        slots: dict[str, int] = {}
        """Host → slots that have room there, beside all that is held."""
        for host in sorted(self._slot_hosts):
            row = self._fleet.find_row(host)
            if row is not None:
                by_cpu = int(free[0, row]) // max(1, size.cpu_milli)
                slots[host] = min(by_cpu, int(free[1, row]) // max(1, size.memory_bytes))
        # How many VMs have no room because of a slot: at least, and at most.
        ratios = [(size.memory_bytes, max(1, vm.memory_bytes)), (size.cpu_milli, max(1, vm.cpu_milli))]
        least = max(1, min(has // needs for has, needs in ratios))
        largest = max(1, *(-(-has // needs) for has, needs in ratios))
        sure = FitInput(units=self._build_units(room, slots, largest, sure=True), weight=largest, needed=self._needed)
        possible = FitInput(units=self._build_units(room, slots, least, sure=False), weight=least, needed=self._needed)
        if self._needed == 1:
            return count_fitting_vms(sure), count_fitting_vms(possible)
        there = sum(slot.host in self._reuse_hosts for slot in self._promises.slots)
        return fit_in_grids(sure), limit_vms(possible, slots_there=there)

    def _build_units(
        self, room: Mapping[str, int], slots: Mapping[str, int], weight: int, *, sure: bool
    ) -> tuple[FitUnit, ...]:
        """Every unit of failure of the zone. To be ``sure``, hosts of one domain that is kept apart count as one."""
        name = self._groups_of(self._hosts) if sure else {host: self._unit_of(host) for host in self._hosts}
        vms, on, beside = dict[str, int](), dict[str, int](), dict[str, int]()
        for host in self._hosts:
            unit, homes, places = name[host], room.get(host, 0), slots.get(host, 0)
            shared = min(places, self._joint[host] // weight) if homes else 0
            # Slots for which there is room if another resource, such as gpu, keeps VMs from using it.
            left = max(0, self._joint.get(host, 0) - homes)
            spare = left // weight if sure else -(-left // weight)
            vms[unit] = vms.get(unit, 0) + homes
            apart = min(places, spare) if homes else places
            on[unit] = on.get(unit, 0) + min(max(0, shared - apart), homes // weight)
            beside[unit] = beside.get(unit, 0) + apart
        joinable = self._count_joinable(name, sure=sure)
        return tuple(
            FitUnit(vms=vms[unit], slots=on[unit], slots_beside=beside[unit], joinable=joinable.get(unit, 0))
            for unit in sorted(vms)
        )

    @cached_property
    def _joint(self) -> dict[str, int]:
        """Host → VMs that have room there by memory and cores alone, whatever else they need."""
        return self._count_vm_room(self._query, (CPU, MEMORY))

    def _unit_of(self, host: str) -> str:
        return self._gathered.topology.unit_of_host(host)

    def _groups_of(self, hosts: Iterable[str]) -> dict[str, str]:
        """Host → a name for all hosts that share its unit, or the value of a domain that slots keep apart."""
        root: dict[str, str] = {}

        def find(key: str) -> str:
            while root.setdefault(key, key) != key:
                key = root[key]
            return key

        for host in hosts:
            for domain, values in self._gathered.topology.apart.items():
                if host in values:
                    root[find(self._unit_of(host))] = find(f"{domain}={values[host]}")
        return {host: find(self._unit_of(host)) for host in hosts}

    def _count_joinable(self, name: Mapping[str, str], *, sure: bool) -> dict[str, int]:
        """Unit → slots that are there and that a new VM of the unit may join.

        To be ``sure``, only slots whose members are where the slot records them and need no second slot: then joining
        one of them says nothing about any other.
        """
        required, hosts = self._gathered.required, {vm.id: vm.host for vm in self._gathered.vms}
        memberships: dict[str, int] = {}
        for slot in self._promises.slots:
            for vm in slot.members:
                memberships[vm] = memberships.get(vm, 0) + 1
        found: dict[str, int] = {}
        total = 0
        for slot in self._promises.slots:
            large = slot.cpu_milli >= self._vm.cpu_milli and slot.memory_bytes >= self._vm.memory_bytes
            if not large or slot.ready is False or slot.consumer or slot.host not in self._reuse_hosts:
                continue
            at = {slot.host, *slot.members.values(), *(hosts.get(vm, "") for vm in slot.members)}
            plain = all(
                hosts.get(vm) == where and required.get(vm, 0) <= 1 and memberships[vm] == 1
                for vm, where in slot.members.items()
            )
            if sure and not plain:
                continue
            total += 1
            for unit in {name.get(host, self._unit_of(host)) for host in at if host}:
                found[unit] = found.get(unit, 0) - 1
        return {unit: total + found.get(unit, 0) for unit in set(name.values())}

    # -- why -------------------------------------------------------------------------------------------

    def _find_limit(self) -> Limit:
        """What is used up first."""
        if not self._promises.kept:
            return Limit.UNCOVERED
        if not self._vm_hosts:
            return Limit.PLACEMENT
        units = {self._unit_of(host) for host in self._vm_hosts | self._slot_hosts | self._reuse_hosts}
        if len(units) <= self._needed:
            return Limit.UNITS
        by = {name: sum(self._count_vm_room(self._query, (name,)).values()) for name in amounts_of(self._vm)}
        least = min(by, key=lambda name: (by[name], name != MEMORY)) if by else MEMORY
        return {MEMORY: Limit.MEMORY, CPU: Limit.CPU}.get(least, Limit.OTHER)


_LOCKED: Final = CapacityQuery(intent=Intent.RESERVE_FOR_FAILOVER, locked=True)
