"""Charges a project's VMs to its commitments, all in one pass (docs/reference/commitments.md#usage)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from msgspec.structs import replace

from outlive.base.clock import Clock, as_datetime, as_instant
from outlive.base.errors import OutliveError, Unavailable
from outlive.commitments.application import ChangeApplier, StatusChange
from outlive.commitments.records import BY_PROJECT
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.state import is_active, summary
from outlive.commitments.usage import (
    Charge,
    UsageInput,
    UsageStep,
    accepted,
    assign,
    usage_due,
    usage_vms,
    with_usage,
    without_usage,
)
from outlive.commitments.view import CommitmentView
from outlive.placement.flavor_groups import groups_by_flavor
from outlive.resources import CommittedResource
from outlive.runtime.controller import Requeue
from outlive.runtime.metrics import Metrics

DURATIONS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
AGES: Final = (30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)


class UsageController:
    """See the module. A key is a project."""

    name = "commitment-usage"

    def __init__(
        self,
        view: CommitmentView,
        applier: ChangeApplier,
        settings: CommitmentSettings,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._applier = applier
        self._settings = settings
        self._clock = clock
        self._asked: set[str] = set()
        """Projects that are counted although it is not time."""
        self._seconds = metrics.histogram(
            "committed_resource_usage_reconcile_duration_seconds",
            "Time to charge the VMs of one project",
            ("result",),
            buckets=DURATIONS,
        )
        self._ages = metrics.histogram(
            "committed_resource_usage_status_age_seconds",
            "Age of a commitment's usage when it is written anew",
            buckets=AGES,
        )
        self._assigned = metrics.gauge(
            "committed_resource_usage_assigned_vms_total", "VMs that are charged to commitments", ("project_id",)
        )

    @staticmethod
    def of_commitment(old: CommittedResource | None, new: CommittedResource | None) -> Iterable[str]:
        """The project of a commitment of which something else is promised or said; its usage alone wakes nobody."""
        if (
            old is not None
            and new is not None
            and (old.spec, old.status.conditions)
            == (
                new.spec,
                new.status.conditions,
            )
        ):
            return ()
        return dict.fromkeys(one.spec.project_id for one in (old, new) if one is not None)

    def ask(self, project: str) -> None:
        """Count the project the next time, whenever it was counted last."""
        self._asked.add(project)

    async def reconcile(self, key: str) -> Requeue | None:
        """One project."""
        now, cooldown_s = self._clock.now(), self._settings.usage_cooldown_interval
        found = self._view.informers.commitments.by_index(BY_PROJECT, key)
        dues = [(one, usage_due(one, now=now, cooldown_s=cooldown_s)) for one in found]
        await self._applier.write_statuses({one.name: _clear for one, due in dues if due.step is UsageStep.CLEAR})
        again = [due.again_s for _, due in dues if due.again_s]
        if any(due.step is UsageStep.COUNT for _, due in dues) or key in self._asked:
            await self._count(key, found, now)
            self._asked.discard(key)
            again = [due.again_s for _, due in dues if due.again_s and due.step is UsageStep.NOTHING] + [cooldown_s]
        if not any(due.step in (UsageStep.COUNT, UsageStep.WAIT) for _, due in dues):
            self._assigned.remove(key)
        return Requeue(min(again)) if again else None

    async def _count(self, project: str, found: Iterable[CommittedResource], now: float) -> None:
        begun = self._clock.monotonic()
        try:
            charges = self._charges(project, found, now)
            changes: dict[str, StatusChange] = {}
            for one in found:
                charge = charges.pop(one.spec.commitment_uuid, None)  # a uuid counts once
                if charge is not None:
                    self._observe_age(one, now)
                    changes[one.name] = partial(self._charged, charge, one.metadata.generation, now)
                elif one.status.assigned_instances or one.status.used_resources:
                    changes[one.name] = _clear  # nothing that was accepted of it is active, so others have its VMs
            await self._applier.write_statuses(changes)
        except OutliveError:
            self._seconds.labels("error").observe(self._clock.monotonic() - begun)
            raise
        self._seconds.labels("success").observe(self._clock.monotonic() - begun)

    def _charges(self, project: str, found: Iterable[CommittedResource], now: float) -> dict[str, Charge]:
        commitments = accepted(found, now)
        by_flavor = groups_by_flavor(self._view.groups().values())
        if not by_flavor:
            raise Unavailable("flavor groups are not known yet", remedy="import flavors")
        zones = {one.zone for one in commitments}
        vms = usage_vms(self._view.vms_of(project), by_flavor, zones)
        charges = assign(UsageInput(commitments=tuple(commitments), vms=tuple(vms), now=now)).charges
        self._assigned.labels(project).set(len({vm for charge in charges for vm in charge.vms}))
        return {charge.uuid: charge for charge in charges}

    def _charged(
        self, charge: Charge, generation: int, now: float, found: CommittedResource | None
    ) -> CommittedResource | None:
        if found is None or not is_active(found.spec, now):
            return None
        status = with_usage(found.status, charge, generation=generation, now=as_datetime(int(now)))
        found = replace(found, status=status)
        return replace(found, status=replace(status, status_summary=summary(found, now)))

    def _observe_age(self, one: CommittedResource, now: float) -> None:
        last = one.status.last_usage_reconcile_at
        if last is not None:
            self._ages.labels().observe(max(0.0, now - as_instant(last)))


def _clear(found: CommittedResource | None) -> CommittedResource | None:
    return None if found is None else replace(found, status=without_usage(found.status))
