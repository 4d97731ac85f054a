"""Puts VMs that placement placed into commitment slots of their project, and says how each placement counts.

The answer counts in the fleet in the turn in which it is given; what has to be written is written by ``run``
(docs/reference/commitments.md#bookkeeping).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.commitments.application import in_parallel, swap_cached
from outlive.commitments.bookkeeping import BookkeepingInput, PlacedVm, record, remaining, with_vm
from outlive.commitments.placer import SlotPlacer
from outlive.commitments.records import BY_PROJECT
from outlive.commitments.slots import slot_allocations
from outlive.commitments.state import is_active
from outlive.commitments.view import OWNER_INDEX, CommitmentView, owner_key
from outlive.placement.ranking import Ranking
from outlive.placement.request import INTERNAL_CALLS
from outlive.placement.reservations import is_ready
from outlive.placement.tracker import Outcome
from outlive.resources import COMMITTED, Reservation
from outlive.runtime.metrics import Metrics
from outlive.store import Store

WAITING_LIMIT: Final = 10_000
"""Slots that wait to be written; VMs for further ones are in no slot, and are counted as dropped."""
TRIES: Final = 5
"""Rounds in which the store does not take a slot before its VMs are in no slot."""
RETRY_S: Final = 1.0
"""The pause after such a round; it doubles."""

_log = get_logger("commitments.tracking")


class SlotTracker:
    """See the module; placement's ``PlacementTracker``."""

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        placer: SlotPlacer,
        *,
        group_keys: tuple[str, ...],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._view = view
        self._placer = placer
        self._keys = group_keys
        self._clock = clock
        self._waiting: dict[str, dict[str, PlacedVm]] = {}
        """Slot → VMs that it is to expect."""
        self._added = asyncio.Event()
        self._dropped = metrics.counter(
            "committed_resource_slot_vms_dropped_total", "VMs that were placed and could not be put into their slot"
        )

    def track(self, ranking: Ranking, hosts: Sequence[str]) -> Outcome | None:
        """How an answer counts; its VM is in the slot that it takes from now on."""
        request = ranking.run.request
        group = request.group_name(self._keys)
        if request.intent in INTERNAL_CALLS or self._view.group(group) is None:
            return None
        project = request.caller_project or request.project
        vm = PlacedVm(id=request.resource_id, memory_bytes=request.need.memory_bytes, cpu_milli=request.need.cpu_milli)
        number, committed, used = self._promised(project, group)
        slots = self._slots(project, group, hosts) if number else ()
        candidates = tuple(hosts) or tuple(ranking.names(ranking.start))
        result = record(
            BookkeepingInput(
                vm=vm,
                commitments=number,
                committed_bytes=committed,
                used_bytes=used,
                hosts=candidates,
                found=bool(hosts),
                slots=tuple(slots),
                free_bytes={} if hosts else self._free(slots),
            )
        )
        if result.slot and vm.id:
            self._take(next(slot for slot in slots if slot.name == result.slot), vm)
        return Outcome(group, result.outcome)

    async def run(self) -> None:
        """Write what waits, until cancelled."""
        failures = 0
        while True:
            await self._added.wait()
            self._added.clear()
            waiting, self._waiting = self._waiting, {}
            try:
                await in_parallel(partial(self._write, slot, vms) for slot, vms in waiting.items())
                failures = 0
            except OutliveError as error:
                failures += 1
                _log.warning("commitment_slot.not_written", slots=len(waiting), error=str(error))
                if failures < TRIES:
                    for slot, vms in waiting.items():
                        self._waiting.setdefault(slot, {}).update(vms)
                    self._added.set()
                    await self._clock.sleep(RETRY_S * 2.0 ** (failures - 1))
                else:
                    failures = 0
                    self._drop(waiting)

    def _promised(self, project: str, group: str) -> tuple[int, int, int]:
        """Active commitments of memory, what they promise together, and what of it is used."""
        now, number, committed, used = self._clock.now(), 0, 0, 0
        for one in self._view.informers.commitments.by_index(BY_PROJECT, project):
            spec = one.status.accepted_spec or one.spec
            if spec.resource_type == "memory" and spec.flavor_group_name == group and is_active(one.spec, now):
                number += 1
                committed += spec.total
                used += one.status.used_resources.memory_bytes if one.status.used_resources is not None else 0
        return number, committed, used

    def _slots(self, project: str, group: str, hosts: Sequence[str]) -> list[Reservation]:
        """Ready slots of the project and group: those on the chosen host, if one of them has room, else all."""
        fleet = self._placer.fleet
        row = fleet.row_of(hosts[0]) if hosts else None
        here = [entry.reservation for entry in fleet.ledger.on_row(row)] if row is not None else []
        own = [slot for slot in here if _owner(slot) == (project, group) and is_ready(slot)]
        if any(remaining(slot) > 0 for slot in own):
            return own
        everywhere = self._view.informers.reservations.by_index(OWNER_INDEX, owner_key(project, group))
        found = [entry.reservation for slot in everywhere if (entry := fleet.ledger.entry(slot.name)) is not None]
        return [slot for slot in found if _owner(slot) == (project, group) and is_ready(slot)]

    def _free(self, slots: Iterable[Reservation]) -> dict[str, int]:
        hosts = {slot.spec.target_host for slot in slots}
        return {host: self._placer.free_memory(host) for host in sorted(hosts)}

    def _take(self, slot: Reservation, vm: PlacedVm) -> None:
        if slot.name not in self._waiting and len(self._waiting) >= WAITING_LIMIT:
            self._dropped.labels().inc()
            return
        self._placer.hold(with_vm(slot, vm, as_datetime(int(self._clock.now()))))
        self._waiting.setdefault(slot.name, {})[vm.id] = vm
        self._added.set()

    async def _write(self, slot: str, vms: dict[str, PlacedVm]) -> None:
        now, project = as_datetime(int(self._clock.now())), ""
        shown = self._view.informers.reservations.get(slot)
        if shown is not None:
            project = _owner(shown)[0]

        def change(found: Reservation | None) -> Reservation | None:
            if found is None or _owner(found)[0] != project:
                return None  # it went, or went to another project, meanwhile
            wanted = found
            for vm in vms.values():
                if vm.id not in slot_allocations(wanted):
                    wanted = with_vm(wanted, vm, now)
            return None if wanted is found else wanted

        cache = self._view.informers.reservations
        await swap_cached(self._store, Reservation, slot, change, cache, "spec", clock=self._clock)
        self._placer.put_back((slot,))

    def _drop(self, waiting: dict[str, dict[str, PlacedVm]]) -> None:
        self._dropped.labels().inc(sum(len(vms) for vms in waiting.values()))
        self._placer.put_back(waiting)


def _owner(slot: Reservation) -> tuple[str, str]:
    details = slot.spec.committed_resource_reservation
    return (
        (details.project_id, details.resource_group)
        if details is not None and slot.spec.type == COMMITTED
        else ("", "")
    )
