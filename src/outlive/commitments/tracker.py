"""Puts VMs that placement placed into commitment slots of their project, and says how each placement counts.

The answer counts in the fleet in the turn in which it is given; what has to be written is written by ``run``, for a
slot that is decided and not in the store yet once it is there (docs/design/commitment-rules.md#bookkeeping).
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from outlive.base import Clock, OutliveError, as_datetime, get_logger, set_within
from outlive.commitments.application import run_parallel, swap_cached
from outlive.commitments.bookkeeping import BookkeepingInput, PlacedVm, add_vm, pick_slot, record, unused_memory
from outlive.commitments.open_changes import OpenChanges
from outlive.commitments.placer import SlotPlacer
from outlive.commitments.records import BY_PROJECT
from outlive.commitments.slots import slot_allocations
from outlive.commitments.state import is_active
from outlive.commitments.view import CommitmentView
from outlive.placement import FAILED, INTERNAL_CALLS, Ranking, TrackingOutcome, is_locked
from outlive.resources import COMMITTED, CommittedResourceSpec, Reservation
from outlive.runtime import Metrics
from outlive.store import Store

WAITING_LIMIT: Final = 10_000
"""Slots that wait to be written; VMs for further ones are in no slot, and are counted as dropped."""
TRIES: Final = 5
"""How often in a row the store does not take a slot before its VMs are in no slot."""
RETRY_S: Final = 1.0
"""The pause of the slot after that; it doubles."""

Owner = tuple[str, str]
"""Project and flavor group."""

_log = get_logger("commitments.tracking")


class _Entrant(msgspec.Struct, frozen=True):
    """A VM that was sent to a slot's host and is to be in the slot."""

    vm: PlacedVm
    owner: Owner
    host: str
    at: datetime

    @property
    def decider(self) -> Hashable:
        """The key of the decision that the slot expects the VM."""
        return "tracker", self.vm.id

    def join(self, slot: Reservation | None) -> Reservation | None:
        """The slot that expects the VM. Not one that went, that is somebody else's, or that is elsewhere by now."""
        if slot is None or _owner_of(slot) != self.owner or slot.spec.target_host != self.host:
            return slot
        return slot if self.vm.id in slot_allocations(slot) else add_vm(slot, self.vm, self.at)


class SlotTracker:
    """See the module; placement's ``PlacementTracker``."""

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        placer: SlotPlacer,
        opened: OpenChanges,
        *,
        group_keys: tuple[str, ...],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._view = view
        self._placer = placer
        self._opened = opened
        self._keys = group_keys
        self._clock = clock
        self._waiting: dict[str, dict[str, _Entrant]] = {}
        """Slot → VMs that it is to expect."""
        self._again_s: dict[str, float] = {}
        """Slot → before when it is not tried again (monotonic)."""
        self._failures: dict[str, int] = {}
        """Slot → how often in a row the store did not take it."""
        self._added = asyncio.Event()
        self._dropped = metrics.add_counter(
            "committed_resource_slot_vms_dropped_total", "VMs that were placed and could not be put into their slot"
        )

    def track(self, ranking: Ranking, hosts: Sequence[str]) -> TrackingOutcome | None:
        """How an answer counts; its VM is in the slot that it takes from now on."""
        request = ranking.run.request
        group = request.group_name(self._keys)
        if request.intent in INTERNAL_CALLS or not group:
            return None
        if self._view.find_group(group) is None:
            return FAILED
        project = request.caller_project or request.project
        vm = PlacedVm(id=request.resource_id, memory_bytes=request.need.memory_bytes, cpu_milli=request.need.cpu_milli)
        number, committed, used = self._sum_promised(project, group)
        slots = self._find_slots(project, group, hosts) if number or hosts else []
        candidates = tuple(hosts) or tuple(ranking.names_at(ranking.start))
        full = [] if hosts else sorted({slot.spec.target_host for slot in slots})
        result = record(
            BookkeepingInput(
                vm=vm,
                commitments=number,
                committed_bytes=committed,
                used_bytes=used,
                hosts=candidates,
                found=bool(hosts),
                slots=tuple(slots),
                free_bytes={host: self._placer.free_memory(host) for host in full},
            )
        )
        name = result.slot or self._pick_slot_with_room(slots, hosts, vm)
        if name and vm.id:
            self._take(name, vm, (project, group), hosts[0])
        return TrackingOutcome(group, result.outcome)

    def _pick_slot_with_room(self, slots: Iterable[Reservation], hosts: Sequence[str], vm: PlacedVm) -> str:
        """The name of a slot on the chosen host that has reserved memory left, or "".

        Placement let the VM use the capacity of its project's slots. Outside of all slots the VM would count a second
        time. It could also use the capacity of VMs that a slot expects and that never come, so the slot may expect
        more than it has for a while.
        """
        here = [slot for slot in slots if hosts and slot.spec.target_host == hosts[0]]
        if any(vm.id in slot_allocations(slot) for slot in here):
            return ""
        if name := pick_slot(vm.memory_bytes, here):
            return name
        held = [(amount, slot.name) for slot in here if (amount := self._placer.reserved_memory(slot.name)) > 0]
        return min(held, key=lambda one: (-one[0], one[1]))[1] if held else ""

    async def run(self) -> None:
        """Write what waits, each slot when its pause is over, until cancelled."""
        while True:
            self._added.clear()
            now_s = self._clock.monotonic()
            pauses_s = [self._again_s.get(slot, now_s) - now_s for slot in self._waiting]
            if not pauses_s:
                await self._added.wait()
            elif min(pauses_s) > 0:
                await set_within(self._added, min(pauses_s))
            now_s = self._clock.monotonic()
            due = [slot for slot in self._waiting if self._again_s.get(slot, now_s) <= now_s]
            for slot in due:
                self._again_s.pop(slot, None)
            taken = {slot: self._waiting.pop(slot) for slot in due}
            await run_parallel(partial(self._try, slot, vms) for slot, vms in taken.items())

    async def _try(self, slot: str, vms: dict[str, _Entrant]) -> None:
        """Write one slot; an error of the store is of this slot alone."""
        try:
            await self._write(slot, vms)
        except OutliveError as error:
            failures = self._failures.pop(slot, 0) + 1
            _log.warning("commitment_slot.not_written", slot=slot, failures=failures, error=str(error))
            if failures == TRIES:
                self._dropped.labels().inc(len(vms))
                self._settle(slot, vms)
                return
            self._failures[slot] = failures
            self._requeue_slot(slot, vms, RETRY_S * 2.0 ** (failures - 1))
        else:
            self._failures.pop(slot, None)

    def _sum_promised(self, project: str, group: str) -> tuple[int, int, int]:
        """Active commitments of memory, what they promise together, and what of it is used."""
        now, found = self._clock.now(), dict[str, tuple[CommittedResourceSpec, int, bool]]()
        for one in self._view.informers.commitments.list_by_index(BY_PROJECT, project):
            used = one.status.used_resources.memory_bytes if one.status.used_resources is not None else 0
            spec = one.status.accepted_spec or one.spec
            found[one.spec.commitment_uuid] = (spec, used, is_active(one.spec, now))
        for step in self._opened.iterate_steps():  # what is decided counts like what is stored
            _, used, _ = found.pop(step.uuid, (None, 0, False))
            if step.after is not None and step.accepted and step.after.project_id == project:
                found[step.uuid] = (step.after, used, is_active(step.after, now))
        counted = [
            (spec.total, used)
            for spec, used, active in found.values()
            if active and spec.resource_type == "memory" and spec.flavor_group_name == group
        ]
        return len(counted), sum(total for total, _ in counted), sum(used for _, used in counted)

    def _find_slots(self, project: str, group: str, hosts: Sequence[str]) -> list[Reservation]:
        """Ready slots of the project and group, as they count: those on the chosen host, if one of them has room, else
        all."""
        ledger, fleet = self._placer.fleet.ledger, self._placer.fleet
        row = fleet.row_of(hosts[0]) if hosts else None
        here = [entry for entry in ledger.entries_on_row(row) if entry.ready] if row is not None else []
        here = [entry for entry in here if not is_locked(entry.reservation)]
        own = [entry.reservation for entry in here if _owner_of(entry.reservation) == (project, group)]
        if any(unused_memory(slot) > 0 for slot in own):
            return own
        bucket = ledger.open_commitments.get((project, group))
        return [bucket.entries[name].reservation for name in sorted(bucket.entries)] if bucket is not None else []

    def _take(self, slot: str, vm: PlacedVm, owner: Owner, host: str) -> None:
        if slot not in self._waiting and len(self._waiting) >= WAITING_LIMIT:
            self._dropped.labels().inc()
            return
        entrant = _Entrant(vm, owner, host, as_datetime(int(self._clock.now())))
        self._placer.fleet.decide(slot, entrant.decider, entrant.join)
        self._waiting.setdefault(slot, {})[vm.id] = entrant
        self._added.set()

    async def _write(self, slot: str, vms: dict[str, _Entrant]) -> None:
        def change(found: Reservation | None) -> Reservation | None:
            wanted = found
            for entrant in vms.values():
                wanted = entrant.join(wanted)
            return None if wanted is found else wanted

        cache = self._view.informers.reservations
        written = await swap_cached(self._store, Reservation, slot, change, cache, "spec", clock=self._clock)
        stored = slot_allocations(written) if written is not None else {}
        counted = self._placer.fleet.counted_reservation(slot)
        decided = slot_allocations(counted) if counted is not None else {}
        # what is decided about the slot, its creation or its hand-over, somebody else is to write first
        waits = {vm: entrant for vm, entrant in vms.items() if vm not in stored and vm in decided}
        if waits:
            self._requeue_slot(slot, waits, RETRY_S)
        self._settle(slot, {vm: entrant for vm, entrant in vms.items() if vm not in waits})

    def _requeue_slot(self, slot: str, vms: Mapping[str, _Entrant], pause_s: float) -> None:
        self._waiting[slot] = {**vms, **self._waiting.get(slot, {})}
        self._again_s[slot] = self._clock.monotonic() + pause_s

    def _settle(self, slot: str, vms: Mapping[str, _Entrant]) -> None:
        for name, entrant in vms.items():
            if name not in self._waiting.get(slot, {}):  # else it came again meanwhile
                self._placer.fleet.settle(slot, entrant.decider)


def _owner_of(slot: Reservation) -> tuple[str, str]:
    details = slot.spec.committed_resource_reservation
    return (
        (details.project_id, details.resource_group)
        if details is not None and slot.spec.type == COMMITTED
        else ("", "")
    )
