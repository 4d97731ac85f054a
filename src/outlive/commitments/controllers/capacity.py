"""Keeps ``FlavorGroupCapacity`` objects current: what each flavor group has in each zone.

All changes wake one key, so that many of them cost one look at the fleet; what changed since the last look is counted
anew, and the rest is kept (docs/reference/commitments.md#capacity). Counting runs where ``offload`` says, so that the
event loop stays free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from msgspec.structs import replace

from outlive.base import Clock, NotFound, Unavailable, as_datetime, as_instant, get_logger
from outlive.commitments.application import swap_cached
from outlive.commitments.capacity import CapacityTable, EngineProbe, GroupCapacity, Place
from outlive.commitments.capacity_status import capacity_status, committed_slots
from outlive.commitments.names import capacity_name
from outlive.commitments.ports import Offload
from outlive.commitments.running_vms import RunningVms
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import confirmed_allocations
from outlive.commitments.state import READY
from outlive.commitments.view import CommitmentView
from outlive.commitments.vm_table import YIELD_EVERY
from outlive.placement import Engine, VmView
from outlive.resources import (
    ZONE_LABEL,
    CommittedResource,
    Condition,
    FlavorGroup,
    FlavorGroupCapacity,
    FlavorGroupCapacitySpec,
    FlavorGroupCapacityStatus,
    FlavorGroupSpec,
    Hypervisor,
    ObjectMeta,
    Pipeline,
    Reservation,
    with_condition,
)
from outlive.runtime import Requeue
from outlive.store import Half, Store

CAPACITY: Final = "capacity"
"""The only key."""
SUCCEEDED: Final = "ReconcileSucceeded"
FAILED: Final = "ReconcileFailed"
NO_VMS_TEXT: Final = "which VMs run is not known yet"
Changed = Iterable[str]
Change = Callable[[FlavorGroupCapacity | None], FlavorGroupCapacity | None]

_log = get_logger("commitments.capacity")


class CapacityController:
    """See the module."""

    name = "flavor-group-capacity"

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        engine: Engine,
        settings: CommitmentSettings,
        *,
        offload: Offload,
        clock: Clock,
    ) -> None:
        self._store = store
        self._view = view
        self._engine = engine
        self._settings = settings
        self._offload = offload
        self._clock = clock
        self._table: CapacityTable | None = None
        self._running = RunningVms()
        self._zones: dict[str, str] = {}
        """Host → its zone, when VMs without a zone of their own were counted there."""
        self._looked_s = float("-inf")

    # What wakes it

    @staticmethod
    def keys_of_group(old: FlavorGroup | None, new: FlavorGroup | None) -> Changed:
        """Another group, or other flavors in one."""
        return _keys_if(old is None or new is None or old.spec != new.spec)

    @staticmethod
    def keys_of_host(old: Hypervisor | None, new: Hypervisor | None) -> Changed:
        """A host in another zone, or with other figures or facts."""
        if old is None or new is None:
            return _keys_if(any(ZONE_LABEL in one.metadata.labels for one in (old, new) if one is not None))
        return _keys_if(_host_figures(old) != _host_figures(new))

    @staticmethod
    def keys_of_reservation(old: Reservation | None, new: Reservation | None) -> Changed:
        """Something else is held."""
        if old is None or new is None:
            return _keys_if(True)
        return _keys_if(
            (old.spec, old.status.host) != (new.spec, new.status.host)
            or confirmed_allocations(old) != confirmed_allocations(new)
        )

    @staticmethod
    def keys_of_pipeline(old: Pipeline | None, new: Pipeline | None) -> Changed:
        """Placement may choose other hosts."""
        return _keys_if(old is None or new is None or old.spec != new.spec)

    @staticmethod
    def keys_of_commitment(old: CommittedResource | None, new: CommittedResource | None) -> Changed:
        """Something else is promised."""
        before, after = ((one.spec, one.status.accepted_spec) if one is not None else None for one in (old, new))
        return _keys_if(before != after)

    def on_vm(self, old: VmView | None, new: VmView | None) -> None:
        """Count a VM that appeared, changed or went."""
        if new is not None:
            self._running.put(new, host_zone=self._view.zone_of(new.host))
        elif old is not None:
            self._running.drop(old.id)

    # What it does

    async def reconcile(self, _key: str) -> Requeue | None:
        """Look at everything, unless that was done a moment ago."""
        settings, now_s = self._settings, self._clock.monotonic()
        wait_s = self._looked_s + settings.capacity_min_reconcile_interval - now_s
        if wait_s > 0:
            return Requeue(wait_s)
        groups = self._view.groups_by_name()
        if groups:  # before the first group there is nothing to spare
            self._looked_s = now_s
        await self._follow_zones()
        table, self._table = self._table, None  # a look that is broken off leaves none
        if table is None:
            total, placeable = settings.capacity_total_pipeline, settings.capacity_placeable_pipeline
            table = CapacityTable(self._engine.fleet, EngineProbe(self._engine, total=total, placeable=placeable))
        refresh = table.begin(tuple(groups.values()))
        while refresh.ask():
            await self._clock.sleep(0)
        found = await self._offload(partial(table.finish, refresh))
        self._table = table
        await self._write(found, groups)
        return Requeue(settings.capacity_reconcile_interval)

    async def _follow_zones(self) -> None:
        """Count VMs without a zone of their own anew where a host is in another zone than before."""
        zones = {one.name: one.metadata.labels.get(ZONE_LABEL, "") for one in self._view.informers.hypervisors.items()}
        if zones == self._zones:
            return
        vms = self._view.vms
        for number, name in enumerate(list(vms.vms_by_id()), 1):
            vm = vms.get(name)
            if vm is not None and not vm.zone:
                self._running.put(vm, host_zone=zones.get(vm.host, ""))
            if number % YIELD_EVERY == 0:
                await self._clock.sleep(0)
        self._zones = zones

    async def _write(self, found: Mapping[Place, GroupCapacity], groups: Mapping[str, FlavorGroupSpec]) -> None:
        """Write what differs, and all of it now and then."""
        informers, now = self._view.informers, self._clock.now()
        committed = committed_slots(informers.commitments.items(), groups.values(), now)
        running: RunningVms | None = self._running
        try:
            self._view.vms.check()
        except Unavailable as error:
            _log.warning("capacity.vms_not_known", error=str(error))
            running = None
        names: set[str] = set()
        for place, one in found.items():
            names.add(capacity_name(*place))
            if one.failed:
                await self._write_failure(one)
            else:
                await self._write_status(one, groups[one.group], committed.get(place, 0), running)
            await self._clock.sleep(0)
        for stale in informers.capacities.items():
            if stale.name not in names:
                await self._delete(stale)

    async def _write_status(
        self, one: GroupCapacity, group: FlavorGroupSpec, committed: int, running: RunningVms | None
    ) -> None:
        name, now = capacity_name(one.group, one.zone), as_datetime(int(self._clock.now()))
        spec = FlavorGroupCapacitySpec(flavor_group=one.group, availability_zone=one.zone)

        def create_missing(found: FlavorGroupCapacity | None) -> FlavorGroupCapacity | None:
            return None if found is not None else FlavorGroupCapacity(metadata=ObjectMeta(name=name), spec=spec)

        def change_status(found: FlavorGroupCapacity | None) -> FlavorGroupCapacity | None:
            if found is None:
                return None
            wanted = capacity_status(one, group, committed_slots=committed, running=running, before=found.status)
            last, interval_s = found.status.last_reconcile_at, self._settings.capacity_reconcile_interval
            if running is None and last is None:
                # nobody may take it for a group without VMs
                return replace(found, status=replace(wanted, conditions=_set_not_ready(found.status, NO_VMS_TEXT, now)))
            wanted = replace(wanted, conditions=_set_ready(found.status, True, SUCCEEDED, "", now))
            if wanted == found.status and last is not None and self._clock.now() - as_instant(last) < interval_s - 1.0:
                return None
            return replace(found, status=replace(wanted, last_reconcile_at=now))

        if self._view.informers.capacities.get(name) is None:
            await self._swap(name, create_missing, "spec")
        await self._swap(name, change_status, "status")

    async def _write_failure(self, one: GroupCapacity) -> None:
        """The object keeps its numbers and is not ready; where there is none, none is made."""
        now = as_datetime(int(self._clock.now()))

        def change_status(found: FlavorGroupCapacity | None) -> FlavorGroupCapacity | None:
            if found is None:
                return None
            conditions = _set_not_ready(found.status, one.failed, now)
            return replace(found, status=replace(found.status, conditions=conditions))

        name = capacity_name(one.group, one.zone)
        if self._view.informers.capacities.get(name) is not None:
            _log.warning("capacity.not_probed", group=one.group, zone=one.zone, why=one.failed)
            await self._swap(name, change_status, "status")

    async def _delete(self, stale: FlavorGroupCapacity) -> None:
        """Nothing is known any more of its group or its zone."""
        try:
            await self._store.delete(stale.ref, uid=stale.metadata.uid)
        except NotFound:
            return
        self._view.informers.capacities.note_deleted(stale.ref)

    async def _swap(self, name: str, change: Change, half: Half) -> None:
        cache = self._view.informers.capacities
        await swap_cached(self._store, FlavorGroupCapacity, name, change, cache, half, clock=self._clock)


def _keys_if(changed: bool) -> Changed:
    return (CAPACITY,) if changed else ()


def _host_figures(host: Hypervisor) -> object:
    status = host.status
    return (
        host.metadata.labels.get(ZONE_LABEL),
        host.spec,
        status.allocation,
        status.effective_capacity,
        status.capacity,
        status.traits,
        status.conditions,
    )


def _set_not_ready(status: FlavorGroupCapacityStatus, message: str, now: datetime) -> tuple[Condition, ...]:
    return _set_ready(status, False, FAILED, message, now)


def _set_ready(
    status: FlavorGroupCapacityStatus, ready: bool, reason: str, message: str, now: datetime
) -> tuple[Condition, ...]:
    new = Condition(
        type=READY, status="True" if ready else "False", reason=reason, message=message, last_transition_time=now
    )
    return with_condition(status.conditions, new)
