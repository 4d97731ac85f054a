"""Keeps our commitments as Limes has them: fetch, plan (``sync``), and one step after the other through a writer.

A run fails as a whole if Keystone or Limes does not answer, or says what nobody understands: then nothing is written. A
step that fails is counted and does not stop the others; the next run plans it again. Before the flavor groups are known
a run does nothing, and they are looked for again soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import Clock, OutliveError, Random, as_datetime, deadline, get_logger
from outlive.commitments.ports import CommitmentSource, Offload, ProjectSource, StepWriter, run_inline
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.state import Commitment, ListedCommitment, from_spec
from outlive.commitments.sync import SkipReason, SyncPlan, judge, plan, skip_counts
from outlive.placement import is_valid
from outlive.resources import (
    CLUSTER,
    COMMITTED,
    CommitmentChange,
    CommitmentStep,
    CommittedResource,
    FlavorGroup,
    FlavorGroupSpec,
    ObjectRef,
    Reservation,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import ActiveFault, FaultRecorder, Metrics
from outlive.store import Store, list_all

DURATIONS: Final = (0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0)
FAILED_AGAIN_S: Final = 60.0
"""The first time between two runs where the last one failed; it doubles up to ``commitments.syncInterval``. Also the
time between two looks for flavor groups."""
LATE_RUNS: Final = 3
"""Times ``commitments.syncInterval`` without a whole run after which a fault says so."""
NOT_READY: Final = "flavor groups are not known yet"
ASKED_S: Final = 30.0
"""The shortest time between two runs, also where somebody asks for one."""
STEPS_AT_ONCE: Final = 20
"""Steps after which others on the event loop get their turn."""
SHOWN: Final = 20
"""Commitments that one line of the log names."""
PREFIX: Final = "committed_resource_syncer_"

_log = get_logger("commitments-sync")


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has, as one picture that is not older than the moment of asking."""

    groups: Mapping[str, FlavorGroupSpec] | None
    """Flavor groups by name; ``None``: not known yet."""
    commitments: tuple[CommittedResource, ...] = ()
    slots: tuple[Reservation, ...] = ()
    changes: tuple[CommitmentChange, ...] = ()
    """All that are kept, the further documents of large ones included."""


async def read_store(store: Store) -> StoreState:
    """The picture from a store: slots first, so that the commitment of a slot that is seen is seen as well."""
    slots = [one async for one in list_all(store, Reservation) if one.spec.type == COMMITTED]
    commitments = [one async for one in list_all(store, CommittedResource)]
    changes = [one async for one in list_all(store, CommitmentChange)]
    groups = [one.spec async for one in list_all(store, FlavorGroup)]
    return StoreState(
        groups={group.group_name: group for group in groups if is_valid(group)} if groups else None,
        commitments=tuple(commitments),
        slots=tuple(slots),
        changes=tuple(changes),
    )


class CommitmentSyncer:
    """See the module. ``known`` reads the store; ``write`` is a ``StepWriter``."""

    def __init__(
        self,
        projects: ProjectSource,
        limes: CommitmentSource,
        known: Callable[[], Awaitable[StoreState]],
        write: StepWriter,
        settings: CommitmentSettings,
        *,
        clock: Clock,
        random: Random,
        metrics: Metrics,
        faults: FaultRecorder,
        offload: Offload = run_inline,
    ) -> None:
        self._offload = offload
        self._faults = faults
        self._projects = projects
        self._limes = limes
        self._known = known
        self._write = write
        self._settings = settings
        self._clock = clock
        self._random = random
        self._last: tuple[dict[str, Commitment], tuple[str, ...]] | None = None
        self.asked_at = 0.0
        """When Limes was asked for the last whole list, in seconds since 1970."""
        self._wanted = asyncio.Event()
        self._errors = metrics.add_counter(f"{PREFIX}errors_total", "Runs and steps of the syncer that failed")
        self._creates = metrics.add_counter(f"{PREFIX}cr_creates_total", "Commitments that the syncer created")
        self._updates = metrics.add_counter(f"{PREFIX}cr_updates_total", "Commitments that the syncer updated")
        self._deletes = metrics.add_counter(f"{PREFIX}cr_deletes_total", "Commitments that the syncer deleted")
        self._duration = metrics.add_histogram(
            f"{PREFIX}duration_seconds", "How long a run of the syncer takes", buckets=DURATIONS
        )
        self._active = metrics.add_gauge(
            f"{PREFIX}limes_commitments_active", "Commitments of Limes that are taken over"
        )
        self._unmatched = metrics.add_gauge(f"{PREFIX}crd_unmatched", "Our commitments that Limes does not list")
        self._skipped = metrics.add_counter(
            f"{PREFIX}commitments_skipped_total", "Commitments of Limes that are not taken over", ("reason",)
        )
        for reason in SkipReason:
            self._skipped.labels(reason.value)

    def last_listing(self) -> tuple[dict[str, Commitment], tuple[str, ...]] | None:
        """Uuid → commitment of the last list, and uuids that it has and that could not be read; ``None`` before one."""
        return self._last

    def request_sync(self) -> None:
        """Run again soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Run at once and then every ``commitments.syncInterval``, until cancelled; sooner after a run that failed."""
        self._faults.forget()
        failures, since, whole_at = 0, "the start", self._clock.monotonic()
        while True:
            why = ""
            pause = float(self._settings.sync_interval)
            try:
                if await self.sync() is None:
                    why, pause = NOT_READY, min(FAILED_AGAIN_S, pause)
                failures = 0
            except OutliveError as error:
                failures, why = failures + 1, str(error)
                _log.warning("commitments.sync_failed", error=str(error), failures=failures)
            if not why:
                since = as_datetime(self._clock.now()).isoformat(timespec="seconds")
                whole_at = self._clock.monotonic()
            late = self._clock.monotonic() - whole_at > LATE_RUNS * float(self._settings.sync_interval)
            cluster, fields = ObjectRef(kind="Cluster", name=CLUSTER), {"since": since, "why": why}
            await self._faults.record([ActiveFault(FaultCode.COMMITMENTS_NOT_SYNCED, cluster, fields)] if late else ())
            if failures:
                pause = self._random.backoff_seconds(failures, min(FAILED_AGAIN_S, pause), pause)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """So long, or until somebody asks for a run, though never less than ``ASKED_S``."""
        await self._clock.sleep(min(seconds, ASKED_S))
        try:
            with deadline(max(0.0, seconds - ASKED_S)):
                await self._wanted.wait()
        except TimeoutError:
            pass
        self._wanted.clear()

    async def sync(self) -> SyncPlan | None:
        """One run, carried out; ``None`` where the flavor groups are not known yet. Raises what the sources raise."""
        began = self._clock.monotonic()
        try:
            if (await self._known()).groups is None:
                _log.info("commitments.sync_skipped", why=NOT_READY)
                return None
            asked_at = self._clock.now()
            listed = await self._limes.list_commitments(await self._projects.list_projects())
            # What we have is read after the list, which takes minutes: what was made meanwhile is there to be compared.
            known = await self._known()
            if known.groups is None:
                return None
            found = await self._compare(listed, known, known.groups, asked_at)
        except OutliveError:
            self._errors.inc()
            raise
        self._report(found)
        for number, step in enumerate(found.steps):
            await self._carry_out(step)
            if number % STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._duration.observe(self._clock.monotonic() - began)
        return found

    async def _compare(
        self,
        listed: Sequence[ListedCommitment],
        known: StoreState,
        groups: Mapping[str, FlavorGroupSpec],
        asked_at: float,
    ) -> SyncPlan:
        """The plan. Limes may list tens of thousands, so this is no work for the event loop."""
        now = self._clock.now()

        def work() -> tuple[dict[str, Commitment], tuple[str, ...], SyncPlan]:
            listing = judge(listed, groups, self._settings)
            taken = {uuid: from_spec(spec) for uuid, spec in listing.specs.items()}
            found = plan(listing, known.commitments, known.slots, known.changes, asked_at=asked_at, now=now)
            return taken, tuple(sorted(listing.listed - taken.keys())), found

        taken, unreadable, found = await self._offload(work)
        self._last, self.asked_at = (taken, unreadable), asked_at
        return found

    async def _carry_out(self, step: CommitmentStep) -> None:
        try:
            await self._write(step)
        except OutliveError as error:
            self._errors.inc()
            _log.warning("commitments.step_failed", commitment=step.uuid, error=str(error))
            return
        match step.before, step.after:
            case None, None:
                _log.info("commitments.orphans_deleted", commitment=step.uuid, slots=len(step.slots))
            case None, _:
                self._creates.inc()
            case _, None:
                self._deletes.inc()
            case _:
                self._updates.inc()

    def _report(self, found: SyncPlan) -> None:
        self._active.set(found.active)
        self._unmatched.set(len(found.unmatched))
        for reason, count in skip_counts(found.skipped).items():
            self._skipped.labels(reason.value).inc(count)
        shown = [one for one in found.skipped if one.reason is not SkipReason.NON_COMPUTE][:SHOWN]
        for one in shown:
            _log.warning("commitments.skipped", commitment=one.uuid, reason=one.reason.value, said=one.said)
        _log.info(
            "commitments.synced",
            active=found.active,
            steps=len(found.steps),
            skipped=len(found.skipped),
            unmatched=len(found.unmatched),
            not_listed=found.unmatched[:SHOWN],
        )
