"""Takes commitment slots from hosts that hold more than they have, one at a time; VMs are never touched.

docs/design/commitment-rules.md#oversubscription.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from outlive.base import Clock, get_logger
from outlive.commitments.application import swap_cached
from outlive.commitments.oversubscription import CheckOutcome, HostCheck, HostWatch, LeftHosts, check_host, evict_slot
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.view import CommitmentView
from outlive.placement import CapacityQuery, Fleet, Intent, blocked_hosts
from outlive.resources import CPU, IN_FLIGHT, ZONE_LABEL, Hypervisor, Reservation, find_condition
from outlive.runtime import Metrics, Requeue
from outlive.store import Store

_LASTING: Final = CapacityQuery(intent=Intent.UNKNOWN, ignored_types=frozenset({IN_FLIGHT}))
"""What stays on a host: room in flight lies in slots of its VM's own project as well, and ends by itself."""

_log = get_logger("commitments.oversubscription")


class Departures:
    """Which hosts slots left, so that they do not come straight back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = LeftHosts()

    def avoided_hosts(self, slot: str) -> tuple[str, ...]:
        """Hosts that are not chosen for the slot now."""
        return self._left.avoided_hosts(slot, self._clock.monotonic())

    def leave(self, slot: str, host: str) -> None:
        """The slot leaves the host."""
        self._left = self._left.add_left(slot, host, self._clock.monotonic())

    def forget(self, slot: str) -> None:
        """The slot is gone."""
        if slot in self._left.slots:
            self._left = self._left.remove_slot(slot)


class OversubscriptionController:
    """See the module. Keys are hosts."""

    name = "oversubscription"

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        fleet: Fleet,
        departures: Departures,
        settings: CommitmentSettings,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._view = view
        self._fleet = fleet
        self._departures = departures
        self._settings = settings
        self._clock = clock
        self._watches: dict[str, HostWatch] = {}
        self._shown: dict[str, set[tuple[str, str, str]]] = {}
        """Host → labels of the gauge that it has."""
        self._excess = metrics.add_gauge(
            "committed_resource_host_oversubscribed",
            "How much more than it has a host holds: cores, or bytes of memory",
            ("host", "az", "resource"),
        )
        self._evicted = metrics.add_counter(
            "committed_resource_host_oversubscribed_evicted_reservations_total",
            "Commitment slots that left a host which held too much",
            ("az",),
        )

    def keys_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> Iterable[str]:
        """A host whose figures changed."""
        if old is not None and new is not None and _host_figures(old) == _host_figures(new):
            return ()
        host = new if new is not None else old
        return () if host is None else (host.name,)

    @staticmethod
    def keys_of_slot(old: Reservation | None, new: Reservation | None) -> Iterable[str]:
        """The hosts of a slot that changed, before and after."""
        found: dict[str, None] = {}
        for slot in (old, new):
            found.update(dict.fromkeys(blocked_hosts(slot) if slot is not None else ()))
        return found

    async def reconcile(self, key: str) -> Requeue | None:
        """One host."""
        host = self._view.informers.hypervisors.get(key)
        if host is None or not self._settings.enable_oversubscription_check:
            self._watches.pop(key, None)
            for labels in self._shown.pop(key, set()):
                self._excess.remove(*labels)
            return None
        excess = dict(self._fleet.overbooked_amounts(key, _LASTING))
        self._show(host, excess)
        ready = find_condition(host.status.conditions, "Ready")
        row = self._fleet.row_of(key)
        entries = self._fleet.ledger.entries_on_row(row) if row is not None else []
        verdict = check_host(
            HostCheck(
                host=key,
                watch=self._watches.get(key, HostWatch()),
                known=(ready is None or ready.status == "True") and not host.status.lost,
                excess=excess,
                slots=tuple(entry.reservation for entry in entries),
                evicts=self._settings.enable_oversubscription_eviction,
                now=self._clock.monotonic(),
                grace_s=self._settings.oversubscription_grace_period,
                min_interval_s=self._settings.oversubscription_min_check_interval,
            )
        )
        self._watches[key] = verdict.watch
        if verdict.outcome is CheckOutcome.EVICTED:
            await self._evict(host, verdict.slot)
        return Requeue(verdict.again_s) if verdict.again_s else None

    async def _evict(self, host: Hypervisor, name: str) -> None:
        def change(found: Reservation | None) -> Reservation | None:
            return None if found is None or found.spec.target_host != host.name else evict_slot(found)

        self._departures.leave(name, host.name)  # known before placement looks for another host
        cache = self._view.informers.reservations
        found = await swap_cached(self._store, Reservation, name, change, cache, "spec", clock=self._clock)
        if found is None or found.spec.target_host:
            return  # it was deleted, or had moved already
        self._evicted.labels(host.metadata.labels.get(ZONE_LABEL, "")).inc()
        _log.info("commitment_slot.evicted", slot=name, host=host.name)

    def _show(self, host: Hypervisor, excess: dict[str, int]) -> None:
        zone = host.metadata.labels.get(ZONE_LABEL, "")
        shown = {(host.name, zone, resource) for resource in excess}
        for labels in self._shown.get(host.name, set()) - shown:
            self._excess.remove(*labels)
        for resource, amount in excess.items():
            self._excess.labels(host.name, zone, resource).set(amount / 1000 if resource == CPU else float(amount))
        self._shown[host.name] = shown


def _host_figures(host: Hypervisor) -> object:
    status = host.status
    return (status.instances, status.allocation, status.effective_capacity, status.capacity, status.conditions)
