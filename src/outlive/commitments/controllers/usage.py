"""Charges a project's VMs to its commitments, all in one pass, and keeps the history of that
(docs/reference/commitments.md#usage and #usage-history)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from outlive.base import Clock, NotFound, OutliveError, Unavailable, as_datetime, as_instant
from outlive.commitments.application import ChangeApplier, StatusChange
from outlive.commitments.history import (
    Charged,
    begin_month,
    charges_by_uuid,
    is_old,
    is_open,
    list_still_charged,
    month_before,
    month_of,
    record_charges,
)
from outlive.commitments.names import history_name
from outlive.commitments.records import BY_PROJECT
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.state import is_active, is_over, summarise
from outlive.commitments.usage import (
    Charge,
    UsageInput,
    UsageStep,
    assign,
    list_accepted,
    set_usage,
    usage_due,
    usage_vms,
    without_usage,
)
from outlive.commitments.view import CommitmentView
from outlive.placement import groups_by_flavor
from outlive.resources import CommittedResource, UsageHistory
from outlive.runtime import Metrics, Requeue
from outlive.store import Store, compare_and_swap, list_all, read

DURATIONS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PROJECTS_LIMIT: Final = 100_000
"""Projects of which it is known what their history says."""
AGES: Final = (30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)


class UsageRecorder:
    """Writes the history of what is charged: after each count what the objects of a project say, if that changed.

    It compares with the document, so a crash between two writes is made up for by the next count.
    """

    def __init__(self, store: Store, settings: CommitmentSettings, *, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._known: dict[str, tuple[str, dict[str, Charged]]] = {}
        """Project → the month and what its document says is charged."""

    async def record(self, project: str, commitments: Iterable[CommittedResource]) -> None:
        """What is charged to these, all commitments of the project."""
        now, found = self._clock.now(), list(commitments)
        month, charged = month_of(now), charges_by_uuid(found, now)
        if self._known.get(project) == (month, charged):
            return
        known = await read(self._store, UsageHistory, history_name(project, month))
        before = None
        ends = {
            one.spec.commitment_uuid: as_instant(one.spec.end_time)
            for one in found
            if one.spec.end_time is not None and is_over(one.spec, now)
        }
        if known is None:
            before = await self._close_month(project, month_before(month), ends)

        def change(history: UsageHistory | None) -> UsageHistory | None:
            made = record_charges(history or begin_month(project, month, before), charged, now, ends)
            return made if made.commitments else None

        await compare_and_swap(
            self._store,
            UsageHistory,
            history_name(project, month),
            change,
            clock=self._clock,
            cache=lambda _name: known,
        )
        self._known[project] = (month, charged)
        while len(self._known) > PROJECTS_LIMIT:
            del self._known[next(iter(self._known))]

    async def _close_month(self, project: str, month: str, ends: Mapping[str, float]) -> UsageHistory | None:
        """The document of a month that is over, with the commitments closed that ended in it."""

        def change(history: UsageHistory | None) -> UsageHistory | None:
            closed = (
                record_charges(history, list_still_charged(history, ends), self._clock.now(), ends) if history else None
            )
            return closed if closed is not history else None

        return await compare_and_swap(
            self._store, UsageHistory, history_name(project, month), change, clock=self._clock
        )

    async def clean(self) -> tuple[str, ...]:
        """Delete documents that are old, and forget what the others say; the projects of which one of this month says
        that something is charged."""
        self._known.clear()
        now, found = self._clock.now(), list[str]()
        async for history in list_all(self._store, UsageHistory):
            if is_old(history, now, self._settings.usage_history_months):
                with contextlib.suppress(NotFound):
                    await self._store.delete(history.ref, uid=history.metadata.uid)
            elif history.month == month_of(now) and is_open(history):
                found.append(history.project_id)
        return tuple(found)


class UsageController:
    """See the module. A key is a project."""

    name = "commitment-usage"

    def __init__(
        self,
        view: CommitmentView,
        applier: ChangeApplier,
        recorder: UsageRecorder,
        settings: CommitmentSettings,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._recorder = recorder
        self._view = view
        self._applier = applier
        self._settings = settings
        self._clock = clock
        self._asked: set[str] = set()
        """Projects that are counted although it is not time."""
        self._seconds = metrics.add_histogram(
            "committed_resource_usage_reconcile_duration_seconds",
            "Time to charge the VMs of one project",
            ("result",),
            buckets=DURATIONS,
        )
        self._ages = metrics.add_histogram(
            "committed_resource_usage_status_age_seconds",
            "Age of a commitment's usage when it is written anew",
            buckets=AGES,
        )
        self._assigned = metrics.add_gauge(
            "committed_resource_usage_assigned_vms_total", "VMs that are charged to commitments", ("project_id",)
        )

    @staticmethod
    def keys_of_commitment(old: CommittedResource | None, new: CommittedResource | None) -> Iterable[str]:
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
        found = self._view.informers.commitments.list_by_index(BY_PROJECT, key)
        dues = [(one, usage_due(one, now=now, cooldown_s=cooldown_s)) for one in found]
        await self._applier.write_statuses({one.name: _clear for one, due in dues if due.step is UsageStep.CLEAR})
        again = [due.again_s for _, due in dues if due.again_s]
        if any(due.step is UsageStep.COUNT for _, due in dues) or key in self._asked:
            await self._count(key, found, now)
            self._asked.discard(key)
            again = [due.again_s for _, due in dues if due.again_s and due.step is UsageStep.NOTHING] + [cooldown_s]
        if not any(due.step in (UsageStep.COUNT, UsageStep.WAIT) for _, due in dues):
            self._assigned.remove(key)
        await self._recorder.record(key, self._view.informers.commitments.list_by_index(BY_PROJECT, key))
        return Requeue(min(again)) if again else None

    async def _count(self, project: str, found: Iterable[CommittedResource], now: float) -> None:
        begun = self._clock.monotonic()
        try:
            commitments = list_accepted(found, now)
            by_flavor = groups_by_flavor(self._view.groups_by_name().values())
            if not by_flavor:
                raise Unavailable("flavor groups are not known yet", remedy="import flavors")
            vms = usage_vms(self._view.vms_of(project), by_flavor, {one.zone for one in commitments})
            assigned = assign(UsageInput(commitments=tuple(commitments), vms=tuple(vms), now=now)).charges
            self._assigned.labels(project).set(len({vm for charge in assigned for vm in charge.vms}))
            charges = {charge.uuid: charge for charge in assigned}
            changes: dict[str, StatusChange] = {}
            for one in found:
                charge = charges.pop(one.spec.commitment_uuid, None)  # a uuid counts once
                if charge is not None:
                    last = one.status.last_usage_reconcile_at
                    if last is not None:
                        self._ages.labels().observe(max(0.0, now - as_instant(last)))
                    changes[one.name] = partial(self._record_charge, charge, one.metadata.generation, now)
                elif one.status.assigned_instances or one.status.used_resources:
                    changes[one.name] = _clear  # nothing that was accepted of it is active, so others have its VMs
            await self._applier.write_statuses(changes)
        except OutliveError:
            self._seconds.labels("error").observe(self._clock.monotonic() - begun)
            raise
        self._seconds.labels("success").observe(self._clock.monotonic() - begun)

    def _record_charge(
        self, charge: Charge, generation: int, now: float, found: CommittedResource | None
    ) -> CommittedResource | None:
        if found is None or not is_active(found.spec, now):
            return None
        status = set_usage(found.status, charge, generation=generation, now=as_datetime(int(now)))
        found = replace(found, status=status)
        return replace(found, status=replace(status, status_summary=summarise(found, now)))


def _clear(found: CommittedResource | None) -> CommittedResource | None:
    return None if found is None else replace(found, status=without_usage(found.status))
