"""Says of every project with quota what it uses and what of it no commitment covers.

Usage is followed VM by VM and counted anew now and then (docs/reference/commitments.md#payg).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace
from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import Clock, OutliveError, as_datetime
from outlive.commitments.application import run_parallel, swap_cached
from outlive.commitments.names import quota_name
from outlive.commitments.quota import Account, Sizes, Usage, UsageCounter, committed_usage, quota_status, says_the_same
from outlive.commitments.records import BY_PROJECT
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.view import CommitmentView
from outlive.commitments.vm_table import YIELD_EVERY
from outlive.placement import VmView
from outlive.resources import CommittedResource, FlavorGroup, ProjectQuota
from outlive.runtime import Metrics, Requeue
from outlive.store import Store

EVERYTHING: Final = "*"
"""The key that counts everything anew; the others are names of ``ProjectQuota``."""
DURATIONS: Final = tuple(0.1 * 2**n for n in range(10))


class QuotaController:
    """See the module."""

    name = "project-quotas"

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        settings: CommitmentSettings,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._view = view
        self._settings = settings
        self._clock = clock
        self._counter: UsageCounter | None = None
        """Absent until everything was counted once."""
        self._covered: dict[str, Usage] = {}
        """``ProjectQuota`` → what commitments covered of it the last time."""
        self._seconds = metrics.add_histogram(
            "quota_reconcile_duration_seconds", "Time to count usage: of one project, or of all", buckets=DURATIONS
        )
        self._results = metrics.add_counter("quota_reconcile_total", "Counts of usage, by their result", ("result",))
        metrics.register_collector(self._collect)

    @staticmethod
    def keys_of_quota(old: ProjectQuota | None, new: ProjectQuota | None) -> Iterable[str]:
        """A quota that somebody else changed."""
        if old is not None and new is not None and old.metadata.generation == new.metadata.generation:
            return ()
        return dict.fromkeys(one.name for one in (old, new) if one is not None)

    @staticmethod
    def keys_of_commitment(old: CommittedResource | None, new: CommittedResource | None) -> Iterable[str]:
        """The quota whose usage a commitment covers otherwise than before."""
        before, after = (_coverage_key(one) if one is not None else None for one in (old, new))
        specs = [one.status.accepted_spec or one.spec for one in (old, new) if one is not None]
        names = dict.fromkeys(quota_name(spec.project_id, spec.availability_zone) for spec in specs)
        return names if before != after else ()

    @staticmethod
    def keys_of_group(old: FlavorGroup | None, new: FlavorGroup | None) -> Iterable[str]:
        """Flavors are counted otherwise than before."""
        return () if old is not None and new is not None and old.spec == new.spec else (EVERYTHING,)

    def keys_of_vm(self, old: VmView | None, new: VmView | None) -> Iterable[str]:
        """Count a VM that appeared, changed or went; the quotas of whose usage that changes something."""
        if self._counter is None or not self._settings.enable_hypervisor_diff:
            return ()
        if new is not None:
            touched = self._counter.put(new, self._view.zone_of_vm(new))
        else:
            touched = self._counter.drop(old.id) if old is not None else ()
        return [quota_name(project, zone) for project, zone in touched]

    async def reconcile(self, key: str) -> Requeue | None:
        """One quota, or all of them."""
        begun = self._clock.monotonic()
        again: Requeue | None = None
        try:
            quota = self._view.informers.quotas.get(key)
            if key == EVERYTHING:
                again = await self._count_all()
            elif quota is None:
                self._covered.pop(key, None)
            elif self._counter is not None:
                await self._write(quota, self._counter, full=False)
        except OutliveError:
            self._results.labels("error").inc()
            raise
        self._results.labels("success").inc()
        self._seconds.labels().observe(self._clock.monotonic() - begun)
        return again

    async def _count_all(self) -> Requeue:
        """Count every VM anew, and write every quota, whatever the store says of another one."""
        view = self._view
        view.vms.check()
        units = view.units_by_group(self._settings)
        sizes = Sizes((group for name, group in view.groups_by_name().items() if name in units), units)
        counter = UsageCounter(sizes)
        # from now on changes of VMs are counted as well, so that none is missed while the others are counted
        self._counter = counter
        for number, vm in enumerate(list(view.vms.vms_by_id()), 1):
            now = view.vms.get(vm)
            if now is not None:
                counter.put(now, view.zone_of_vm(now))
            if number % YIELD_EVERY == 0:
                await self._clock.sleep(0)
        quotas = view.informers.quotas.items()
        await run_parallel((partial(self._write, quota, counter, full=True) for quota in quotas), to_the_end=True)
        return Requeue(self._settings.quota_full_reconcile_interval)

    async def _write(self, quota: ProjectQuota, counter: UsageCounter, *, full: bool) -> None:
        spec, now = quota.spec, self._clock.now()
        account: Account = (spec.project_id, spec.availability_zone)
        units, informers = counter.sizes.units, self._view.informers
        commitments = informers.commitments.list_by_index(BY_PROJECT, spec.project_id)
        states = self._settings.quota_state_filter
        covered = committed_usage(commitments, counter, now=now, states=states).get(account, {})
        total = counter.sum_usage(account)
        self._covered[quota.name] = covered

        def change(found: ProjectQuota | None) -> ProjectQuota | None:
            if found is None:
                return None
            status = quota_status(found, total, covered, units, now=as_datetime(int(now)), full=full)
            return None if says_the_same(status, found.status) else replace(found, status=status)

        await swap_cached(self._store, ProjectQuota, quota.name, change, informers.quotas, "status", clock=self._clock)

    def _collect(self) -> Iterator[Metric]:
        labels = ("project_id", "availability_zone", "resource")
        total = GaugeMetricFamily("quota_total_usage", "What a project uses", labels=labels)
        payg = GaugeMetricFamily("quota_payg_usage", "What of it no commitment covers", labels=labels)
        covered = GaugeMetricFamily("quota_cr_usage", "What commitments cover", labels=labels)
        for quota in self._view.informers.quotas.items():
            spec, status = quota.spec, quota.status
            for family, usage in (
                (total, status.total_usage),
                (payg, status.payg_usage),
                (covered, self._covered.get(quota.name, {})),
            ):
                for resource, amount in usage.items():
                    family.add_metric((spec.project_id, spec.availability_zone, resource), amount)
        yield from (total, payg, covered)


def _coverage_key(one: CommittedResource) -> object:
    """What of a commitment covers usage."""
    spec, status = one.status.accepted_spec or one.spec, one.status
    place = (spec.project_id, spec.availability_zone, spec.flavor_group_name, spec.state, one.spec.state)
    return place, status.used_resources, status.assigned_instances
