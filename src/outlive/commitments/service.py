"""What the LIQUID interface answers: the catalogue, batches of changes, reports, quota.

The service knows nothing of HTTP. Errors carry the texts of the contract; the edge gives them their status:
``BadInput`` 400, ``Conflict`` 409, ``Unavailable`` 503, any other 500 (docs/reference/commitments.md#liquid). What is
behind an error is logged and not told: a caller learns nothing of the store or the network.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeVar

from msgspec import UNSET

from outlive.base import (
    BadInput,
    Clock,
    Conflict,
    OutliveError,
    Unavailable,
    count_of,
    deadline,
    get_logger,
    join_parts,
)
from outlive.commitments.answers import Answered, digest_of
from outlive.commitments.batch import (
    NOT_READY_TEXT,
    Batch,
    CommitmentRequest,
    ProjectRequest,
    ResourceRequest,
    dry_run_timeout_text,
    timeout_text,
    version_text,
)
from outlive.commitments.catalogue import Catalogue
from outlive.commitments.decision import BatchRefusal
from outlive.commitments.liquid import (
    CapacityReport,
    ChangeAnswer,
    ChangeRequest,
    ProjectMetadata,
    QuotaRequest,
    ResourceChange,
    ServiceInfo,
    UsageReport,
)
from outlive.commitments.liquid_metrics import LiquidMetrics
from outlive.commitments.names import quota_name, resource_name
from outlive.commitments.quota_intake import QuotaIntake, QuotaPush, public_cause, pushed_quota
from outlive.commitments.records import InformedRecords
from outlive.commitments.reports import Offer, capacity_report, service_info, usage_report
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.units import MIB_PER_GIB
from outlive.resources import ObjectRef
from outlive.runtime import EventRecorder
from outlive.store import Store

WAITING_LIMIT: Final = 64
"""Changes that wait for the one that is being decided, and as many pushes of quota."""
BATCH_LIMIT: Final = 10_000
"""Commitments of one batch."""
CHANGES_LOGGED: Final = 20
"""Commitments of a batch, its projects, and zones of a push, that the log names."""
OUTCOME_CHARACTERS: Final = 500
"""What is recorded of a refusal."""
PUSH_TURN_S: Final = 30.0
"""How long a push of quota waits for those before it."""
ACCEPTED: Final = "accepted"
"""The outcome of what was done."""
CHANGED: Final = "CommitmentsChanged"
NOT_CHANGED: Final = "CommitmentsNotChanged"
IN_DOUBT: Final = "CommitmentsInDoubt"
"""Events of batches; of the last nobody here can say what became of it. Its ``CommitmentChange`` says it, if there is
one."""
REQUEST_PREFIX: Final = "committed-resource-"
"""Before the caller's request id, ours."""

TOO_MANY_TEXT: Final = "too many requests wait, please retry later"

T = TypeVar("T")

_log = get_logger("commitments")


class Interface(enum.StrEnum):
    """Parts that can be switched off, as the contract names them."""

    CHANGE = "change-commitments API"
    CAPACITY = "report-capacity API"
    USAGE = "report-usage API"
    QUOTA = "Quota API"


class Late(OutliveError):
    """The turn of a request did not come in time."""


class BoundedLock:
    """One at a time, in the order in which they came; no more than ``limit`` wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = 0
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def acquire(self, within_s: float) -> AsyncIterator[None]:
        """The turn. ``Unavailable`` where too many wait already, ``Late`` where it does not come in time."""
        if self._waiting >= self._limit:
            raise Unavailable(TOO_MANY_TEXT)
        self._waiting += 1
        try:
            with deadline(within_s):
                await self._lock.acquire()
        except TimeoutError:
            raise Late("too many requests were before this one") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


class BatchHandler(Protocol):
    """Who decides batches, one at a time."""

    async def recall(self, request_id: str, digest: str) -> Answered | None:
        """What a request was answered before, if that is known. ``Conflict``: another one had the same name."""
        ...

    async def change(
        self, batch: Batch, *, request_id: str, requested_by: str, digest: str = ""
    ) -> BatchRefusal | None:
        """Decide and commit a batch; ``None``: it is accepted, and all of it counts from now on.

        If the caller is cancelled before the commit, nothing is done; after it, the batch is carried out all the same.
        A batch that is not decided within ``settings.watch_timeout`` is refused, and the refusal says so.
        ``Unavailable``: nothing was done. ``Unknown``: nobody can say whether it was committed.
        ``digest``: of what is asked for, where the caller named the request.
        """
        ...

    async def dry_run(self, batch: Batch, *, request_id: str) -> BatchRefusal | None:
        """Whether the batch would be accepted; nothing is done."""
        ...


class CommitmentService:
    """See the module."""

    def __init__(
        self,
        store: Store,
        *,
        catalogue: Catalogue,
        records: InformedRecords,
        changes: BatchHandler,
        settings: CommitmentSettings,
        metrics: LiquidMetrics,
        events: EventRecorder,
        clock: Clock,
    ) -> None:
        self.metrics = metrics
        self._catalogue = catalogue
        self._records = records
        self._changes = changes
        self._settings = settings
        self._events = events
        self._clock = clock
        self._intake = QuotaIntake(store, records, clock=clock)
        self._changing = BoundedLock(WAITING_LIMIT)
        self._pushing = BoundedLock(WAITING_LIMIT)

    def check_enabled(self, interface: Interface) -> None:
        """``Unavailable`` if the settings switch this part off."""
        settings = self._settings
        match interface:
            case Interface.CHANGE:
                enabled = settings.enable_change_commitments
            case Interface.CAPACITY:
                enabled = settings.enable_report_capacity
            case Interface.USAGE:
                enabled = settings.enable_report_usage
            case Interface.QUOTA:
                enabled = settings.enable_quota
        if not enabled:
            raise Unavailable(f"{interface} is disabled")

    # -- reports ---------------------------------------------------------------------------------------

    async def read_info(self) -> ServiceInfo:
        """The catalogue; ``Unavailable`` while it is not known."""
        try:
            offered = await self._catalogue.read()
            return service_info(offered.offers, offered.version)
        except Unavailable as error:
            raise Unavailable(f"Service temporarily unavailable: {error.message}") from None

    async def report_capacity(self, zones: Sequence[str]) -> CapacityReport:
        """Capacity in these zones; ``Unavailable`` where it is not known or not up to date."""
        try:
            offered = await self._catalogue.read()
            report = capacity_report(offered.offers, self._records.list_capacities(), zones, offered.version)
        except Unavailable as error:
            raise Unavailable(f"Failed to calculate capacity: {error.message}") from None
        for name, resource in report.resources.items():
            size = unit_size(name, offered.offers)
            for zone, found in resource.per_az.items():
                self.metrics.reported.labels(name, zone, size).set(found.capacity)
        return report

    async def report_usage(self, project: str, zones: Sequence[str]) -> UsageReport:
        """Usage of a project in these zones; ``OutliveError`` where it cannot be told."""
        try:
            offered = await self._catalogue.read()
            return usage_report(
                offered.offers,
                vms=await self._records.list_vms(project),
                commitments=self._records.commitments_of(project),
                quotas=self._records.quotas_of(project),
                zones=zones,
                version=offered.version,
            )
        except OutliveError as error:
            _log.error("usage.not_reported", project=project, code=error.code, error=str(error))
            raise OutliveError(f"Failed to generate usage report: {public_cause(error)}") from None

    # -- changes ---------------------------------------------------------------------------------------

    async def change(
        self, request: ChangeRequest, *, request_id: str, requested_by: str, named: bool = False
    ) -> ChangeAnswer:
        """Decide a batch, one at a time. Empty: it is accepted; else the answer says why not, and nothing was done.

        ``named``: the caller chose the request's id, so one that is sent again is answered as before.
        ``BadInput`` without a zone, ``Conflict`` for another version of the catalogue and for an id of another batch,
        ``Unavailable`` where nothing could be decided. If it is cancelled before the commit, nothing is done.
        """
        if not request.az:
            raise BadInput("availability zone is required")
        if request.commitments > BATCH_LIMIT:
            raise BadInput(f"Invalid request body: {request.commitments} commitments, at most {BATCH_LIMIT}")
        limit_s = float(self._settings.watch_timeout)
        try:
            async with self._changing.acquire(limit_s):
                digest = digest_of(request) if named and not request.dry_run else ""
                return await self._decide(request, REQUEST_PREFIX + request_id, requested_by, digest)
        except Late:
            text = dry_run_timeout_text if request.dry_run else timeout_text
            refusal = BatchRefusal(reason=text(limit_s, request.commitments), timed_out=True)
            return self._answer(refusal, dry_run=request.dry_run)

    async def _decide(self, request: ChangeRequest, request_id: str, requested_by: str, digest: str) -> ChangeAnswer:
        if digest:
            known = await self._translate_errors(self._changes.recall(request_id, digest))
            if known is not None:
                _log.info("commitments.repeated", request=request_id, by=requested_by)
                return _answer(known.refusal)
        try:
            offered = await self._catalogue.read()
        except Unavailable:
            if request.dry_run:
                return ChangeAnswer(rejection_reason=f"dry run: {NOT_READY_TEXT}")
            raise Unavailable(NOT_READY_TEXT) from None
        if request.info_version != offered.version:
            raise Conflict(version_text(request.info_version, offered.version))
        if request.dry_run:
            return self._answer(await self._ask(request, request_id), dry_run=True)
        event, outcome = IN_DOUBT, "failed"
        try:
            work = self._changes.change(
                batch_of(request), request_id=request_id, requested_by=requested_by, digest=digest
            )
            refusal = await self._translate_errors(work)
            event, outcome = (CHANGED, ACCEPTED) if refusal is None else (NOT_CHANGED, f"refused: {refusal.reason}")
        except asyncio.CancelledError:
            outcome = "the caller went away before the answer"
            raise
        except (Unavailable, Conflict) as error:
            event, outcome = NOT_CHANGED, error.message
            raise
        except OutliveError as error:
            outcome = error.message
            raise
        finally:
            self._record_change(request, request_id, requested_by, event, outcome)
        return self._answer(refusal, dry_run=False)

    async def _ask(self, request: ChangeRequest, request_id: str) -> BatchRefusal | None:
        try:
            return await self._changes.dry_run(batch_of(request), request_id=request_id)
        except Unavailable as error:
            _log.warning("commitments.not_asked", error=str(error))
            return BatchRefusal(reason=f"dry run: {NOT_READY_TEXT}")
        except OutliveError as error:
            _log.error("commitments.not_asked", code=error.code, error=str(error))
            raise OutliveError(f"Failed to judge commitments: {public_cause(error)}") from None

    async def _translate_errors(self, work: Awaitable[T]) -> T:
        """The result, with errors in the words of the contract."""
        try:
            return await work
        except Conflict:
            raise
        except Unavailable as error:
            _log.warning("commitments.not_decided", error=str(error))
            raise Unavailable(NOT_READY_TEXT) from None
        except OutliveError as error:
            _log.error("commitments.not_decided", code=error.code, error=str(error))
            raise OutliveError(f"Failed to change commitments: {public_cause(error)}") from None

    def _answer(self, refusal: BatchRefusal | None, *, dry_run: bool) -> ChangeAnswer:
        if refusal is not None and refusal.timed_out:
            self.metrics.count_timeout(dry_run=dry_run)
        return _answer(refusal)

    def _record_change(
        self, request: ChangeRequest, request_id: str, requested_by: str, event: str, outcome: str
    ) -> None:
        """Who changed what, and what became of it: in the log and as an event."""
        projects = sorted(request.by_project or {})
        changed = [
            f"{one.uuid}: {one.old_status} to {one.new_status}, {one.amount}" for one in request.iterate_commitments()
        ]
        result = " ".join(outcome.split())[:OUTCOME_CHARACTERS]
        _log.info(
            "commitments.change",
            request=request_id,
            by=requested_by,
            zone=request.az,
            projects=projects[:CHANGES_LOGGED],
            commitments=changed[:CHANGES_LOGGED],
            count=len(changed),
            outcome=result,
        )
        what = f"{count_of(len(changed), 'commitment')} of {count_of(len(projects), 'project')} in {request.az}"
        self._events.emit(
            ObjectRef(kind="CommitmentChange", name=request_id),
            event,
            f"{requested_by} changed {what} (request {request_id}): {result}",
            type="Normal" if event == CHANGED else "Warning",
            action="change",
        )

    # -- quota -----------------------------------------------------------------------------------------

    async def put_quota(self, project: str, request: QuotaRequest, *, request_id: str, requested_by: str) -> None:
        """Keep the quota of a project. ``BadInput`` for another project's and for numbers that are too large,
        ``Unavailable`` while flavor groups are not known, ``OutliveError`` where it cannot be written."""
        metadata = request.project_metadata or ProjectMetadata()
        if metadata.uuid not in ("", project):
            raise BadInput(f'Project UUID mismatch: URL has "{project}" but metadata has "{metadata.uuid}"')
        try:
            offers = self._catalogue.list_offers()
        except Unavailable as error:
            raise Unavailable(f"flavor groups not available: {error.message}") from None
        zones = pushed_quota(request, offers, self._settings.quota_served_availability_zones)
        outcome = "failed"
        push = QuotaPush()
        try:
            async with self._pushing.acquire(PUSH_TURN_S):
                await self._intake.write(project, zones, metadata, push)
            outcome = ACCEPTED
        except Late:
            raise Unavailable(TOO_MANY_TEXT) from None
        except OutliveError as error:
            outcome = error.message
            raise
        finally:
            self._record_quota(project, zones, push, request_id, requested_by, outcome)

    def _record_quota(
        self,
        project: str,
        zones: Mapping[str, Mapping[str, int]],
        push: QuotaPush,
        request_id: str,
        requested_by: str,
        outcome: str,
    ) -> None:
        """Who set which quota, and what became of it; a push that changed nothing is only logged."""
        known = {**push.changed, **push.deleted}
        _log.info(
            "quota.push",
            request=request_id,
            by=requested_by,
            project=project,
            quota={zone: zones[zone] for zone in sorted(push.changed)[:CHANGES_LOGGED]},
            before={zone: known[zone] for zone in sorted(known)[:CHANGES_LOGGED]},
            changed=tuple(push.changed),
            deleted=tuple(push.deleted),
            outcome=outcome,
        )
        if outcome == ACCEPTED and not known:
            return
        result = outcome
        if outcome != ACCEPTED and known:
            result = f"{outcome}; written are {join_parts(sorted(known), most=CHANGES_LOGGED)}"
        where = join_parts(sorted({*zones, *push.deleted}) or ["no zone"], most=CHANGES_LOGGED)
        self._events.emit(
            ObjectRef(
                kind="ProjectQuota", name=quota_name(project, next(iter({**zones, **dict.fromkeys(push.deleted)}), ""))
            ),
            "QuotaSet" if outcome == ACCEPTED else "QuotaNotSet",
            f"{requested_by} set the quota of project {project} in {where} (request {request_id}): {result}",
            type="Normal" if outcome == ACCEPTED else "Warning",
            action="set",
        )


def _answer(refusal: BatchRefusal | None) -> ChangeAnswer:
    if refusal is None:
        return ChangeAnswer()
    return ChangeAnswer(rejection_reason=refusal.reason, retry_at=refusal.retry_at or UNSET)


def unit_size(resource: str, offers: Sequence[Offer]) -> str:
    """The label of a resource's unit in metrics: GiB for memory, else 1."""
    unit = next((offer.unit for offer in offers if resource == resource_name(offer.name, "ram")), None)
    return f"{unit.mib / MIB_PER_GIB:g}" if unit is not None else "1"


def batch_of(request: ChangeRequest) -> Batch:
    """The request as a batch, which knows nothing of the wire."""
    return Batch(
        zone=request.az,
        dry_run=request.dry_run,
        projects=tuple(
            ProjectRequest(
                project=project,
                domain=change.project_metadata.domain.uuid if change.project_metadata is not None else "",
                domain_name=change.project_metadata.domain.name if change.project_metadata is not None else "",
                resources=tuple(_convert_resource(name, one) for name, one in (change.by_resource or {}).items()),
            )
            for project, change in (request.by_project or {}).items()
        ),
    )


def _convert_resource(name: str, change: ResourceChange) -> ResourceRequest:
    return ResourceRequest(
        name=name,
        confirmed_before=change.total_confirmed_before,
        confirmed_after=change.total_confirmed_after,
        guaranteed_before=change.total_guaranteed_before,
        guaranteed_after=change.total_guaranteed_after,
        commitments=tuple(
            CommitmentRequest(
                uuid=one.uuid,
                old_status=one.old_status,
                new_status=one.new_status,
                amount=one.amount,
                confirm_by=one.confirm_by,
                expires_at=one.expires_at,
                old_expires_at=one.old_expires_at,
            )
            for one in change.commitments or ()
        ),
    )
