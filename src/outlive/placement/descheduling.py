"""VMs that should leave their host: found by detectors, recorded, and moved if that is switched on.

What becomes of a record is a pure function (``judge_descheduling``) of it and of where the VM is. One record for each
VM, kept for a day: so long the VM is left alone, whatever became of it (docs/reference/placement.md#descheduling).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from outlive.base import (
    AlreadyExists,
    Clock,
    Conflict,
    NotFound,
    OutliveError,
    Random,
    as_datetime,
    as_instant,
    get_logger,
)
from outlive.placement.detectors import Detection, merge_detections, moves_in_a_circle
from outlive.placement.pipelines import BuiltPipeline
from outlive.placement.ports import VmLocation, VmMoves
from outlive.placement.records import KnowledgeRecords
from outlive.resources import (
    Condition,
    Descheduling,
    DeschedulingSpec,
    ObjectMeta,
    find_condition,
    object_name,
    with_condition,
)
from outlive.runtime import Informer, Metrics, Periodic, Requeue
from outlive.store import Store

KEPT_S: Final = 86400.0
"""How long a record is kept."""
LOOK_S: Final = 60.0
"""How often detectors look."""
POLL_S: Final = 1.0
"""How often a move is looked at."""
MOVE_LIMIT_S: Final = 3600.0
"""How long a move may take."""
CREATED_LIMIT: Final = 100
"""Records that one look makes."""
OWN, OWN_HOST = "virtualMachine", "hypervisor"
NOVA, NOVA_HOST = "novaServerUUID", "novaComputeHostName"
HOST_TYPES: Final[Mapping[str, str]] = {OWN: OWN_HOST, NOVA: NOVA_HOST}
"""Kind of VM → kind of its hosts."""
_log = get_logger("descheduler")


class DeschedulingVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to do with a record."""

    action: Literal["nothing", "delete", "migrate", "write"] = "nothing"
    """``migrate``: write, and then ask for the move."""
    conditions: tuple[Condition, ...] = ()
    new_host: str = ""
    again_s: float = 0.0


def judge_descheduling(
    record: Descheduling, where: VmLocation | None, now: float, *, dry_run: bool, known: frozenset[str]
) -> DeschedulingVerdict:
    """What becomes of a record. ``where``: of the VM, ``None`` if it does not exist; ``known``: kinds of VMs that
    somebody can move.
    """
    created = record.metadata.creation_timestamp
    left_s = KEPT_S - (now - as_instant(created)) if created is not None else KEPT_S
    if left_s <= 0:
        return DeschedulingVerdict(action="delete")
    ready, progress = (find_condition(record.status.conditions, kind) for kind in ("Ready", "InProgress"))
    if ready is not None and (ready.status == "True" or ready.status == "False"):
        return DeschedulingVerdict(again_s=left_s)
    spec = record.spec
    unfit = _find_unfit(spec, known)
    if unfit is not None:
        return _fail_verdict(*unfit)
    if where is None:
        return DeschedulingVerdict(action="delete")
    if progress is not None and progress.status == "True":
        return _judge_move(spec, where, progress, now)
    if where.host != spec.prev_host:
        return _fail_verdict("VMNotOnExpectedHost", f"it is on {where.host or 'no host'}")
    if where.state != ACTIVE:
        return _fail_verdict("VMNotActive", f"it is {where.state or 'in no known state'}")
    if dry_run:
        said = Condition(type="Ready", status="Unknown", reason="DryRun", message="nothing is moved in a dry run")
        if ready is not None and ready.reason == said.reason:
            return DeschedulingVerdict(again_s=left_s)
        return DeschedulingVerdict(action="write", conditions=(said,), again_s=left_s)
    moving = Condition(type="InProgress", status="True", reason="Migrating")
    return DeschedulingVerdict(action="migrate", conditions=(moving,), again_s=POLL_S)


ACTIVE: Final = "ACTIVE"
ERROR: Final = "ERROR"


def _find_unfit(spec: DeschedulingSpec, known: frozenset[str]) -> tuple[str, str] | None:
    """Why nobody can act on this; ``None`` where somebody can."""
    if not spec.ref:
        return "MissingRef", "it does not say which VM"
    if spec.ref_type not in known:
        return "UnsupportedRefType", f"nobody here moves a {spec.ref_type}"
    if spec.prev_host_type != HOST_TYPES.get(spec.ref_type):
        return "UnsupportedPrevHostType", f"a {spec.ref_type} is on no {spec.prev_host_type}"
    return None


def _judge_move(spec: DeschedulingSpec, where: VmLocation, progress: Condition, now: float) -> DeschedulingVerdict:
    """What has become of a move: done only once the VM runs on another host."""
    if where.state == ERROR:
        return _fail_verdict("LiveMigrationFailed", "the VM is in error")
    if where.state == ACTIVE and where.host != spec.prev_host:
        done = Condition(type="Ready", status="True", reason="DeschedulingSucceeded")
        return DeschedulingVerdict(action="write", conditions=(done, _NOT_MOVING), new_host=where.host)
    if where.refusal:
        return _fail_verdict("LiveMigrationFailed", where.refusal)
    since = as_instant(progress.last_transition_time) if progress.last_transition_time is not None else now
    if now - since > MOVE_LIMIT_S:
        return _fail_verdict("LiveMigrationFailed", f"the VM has not moved within {MOVE_LIMIT_S:g} s")
    return DeschedulingVerdict(again_s=POLL_S)


_NOT_MOVING: Final = Condition(type="InProgress", status="False", reason="Ended")


def _fail_verdict(reason: str, message: str) -> DeschedulingVerdict:
    failed = Condition(type="Ready", status="False", reason=reason, message=message)
    return DeschedulingVerdict(action="write", conditions=(failed, _NOT_MOVING))


class DeschedulingController:
    """Carries records out. ``moves``: kind of VM → who moves it."""

    name = "descheduling"

    def __init__(
        self,
        store: Store,
        records: Informer[Descheduling],
        moves: Mapping[str, VmMoves],
        *,
        dry_run: bool,
        clock: Clock,
    ) -> None:
        self._store = store
        self._records = records
        self._moves = moves
        self._dry_run = dry_run
        self._clock = clock

    async def reconcile(self, key: str) -> Requeue | None:
        """One record, by the name of its VM."""
        record = self._records.get(key)
        if record is None:
            return None
        try:
            mover, known = self._moves.get(record.spec.ref_type), frozenset(self._moves)
            where = None
            if mover is not None and record.spec.ref:
                where = await mover.locate(record.spec.ref, record.metadata.uid)
            verdict = judge_descheduling(record, where, self._clock.now(), dry_run=self._dry_run, known=known)
        except OutliveError as error:
            progress = find_condition(record.status.conditions, "InProgress")
            if progress is None or progress.status != "True":
                raise
            verdict = _fail_verdict("GetVMStatusFailed", str(error))
        match verdict.action:
            case "delete":
                try:
                    await self._store.delete(record.ref, uid=record.metadata.uid)
                except (Conflict, NotFound):
                    _log.debug("descheduler.record_gone", vm=record.spec.ref)
                else:
                    self._records.note_deleted(record.ref)
                return None
            case "write":
                await self._write(record, verdict)
            case "migrate":
                record, spec = await self._write(record, verdict), record.spec
                try:
                    await self._moves[spec.ref_type].migrate(spec.ref, record.metadata.uid)
                except OutliveError as error:
                    await self._write(record, _fail_verdict("LiveMigrationFailed", str(error)))
                else:
                    _log.info("descheduler.moves", vm=spec.ref, hypervisor=spec.prev_host, why=spec.reason)
            case "nothing":
                pass
        return Requeue(verdict.again_s) if verdict.again_s else None

    async def _write(self, record: Descheduling, verdict: DeschedulingVerdict) -> Descheduling:
        now, conditions = as_datetime(self._clock.now()), record.status.conditions
        for one in verdict.conditions:
            conditions = with_condition(conditions, msgspec.structs.replace(one, last_transition_time=now))
        moved = {"new_host": verdict.new_host, "new_host_type": HOST_TYPES[record.spec.ref_type]}
        changes = moved if verdict.new_host else {}
        status = msgspec.structs.replace(record.status, conditions=conditions, **changes)
        written = await self._store.replace_status(msgspec.structs.replace(record, status=status))
        self._records.note(written, replaced=record.metadata.resource_version)
        return written


class Descheduler:
    """Has the detectors look every minute. ``kind_of``: what kind of VM that is."""

    def __init__(
        self,
        store: Store,
        pipelines: Callable[[], Sequence[BuiltPipeline]],
        records: KnowledgeRecords,
        moves: Mapping[str, VmMoves],
        kind_of: Callable[[str], str],
        existing: Callable[[str], Descheduling | None],
        *,
        metrics: Metrics,
        clock: Clock,
        random: Random,
    ) -> None:
        self._store = store
        self._pipelines = pipelines
        self._records = records
        self._moves = moves
        self._kind_of = kind_of
        self._existing = existing
        self._clock = clock
        self._random = random
        self._step_seconds = metrics.add_histogram(
            "detector_pipeline_step_run_duration_seconds", "Time of a detector", ("step",)
        )
        self._detections = metrics.add_gauge(
            "detector_pipeline_step_detections", "VMs that a detector found", ("step",)
        )
        self._run_seconds = metrics.add_histogram(
            "detector_pipeline_run_duration_seconds", "Time of a look", ("error",)
        )

    async def run(self) -> None:
        """Look until cancelled; what fails is looked at again a minute later."""
        await Periodic(
            self._detect, lambda: LOOK_S * self._random.uniform(0.9, 1.1), clock=self._clock, wait_first=True
        ).run()

    async def _detect(self) -> None:
        start, failed = self._clock.monotonic(), False
        try:
            await self.detect_once()
        except OutliveError as error:
            failed = True
            _log.warning("descheduler.look_failed", error=str(error))
        self._run_seconds.labels(str(failed).lower()).observe(self._clock.monotonic() - start)

    async def detect_once(self) -> int:
        """Record the VMs that should leave their hosts; how many there were. Errors of a port end the look."""
        made = 0
        for one in self.detect():
            if made >= CREATED_LIMIT:
                break
            name = object_name(one.vm)
            if self._existing(name) is not None:
                continue
            kind = self._kind_of(one.vm)
            mover = self._moves.get(kind)
            if mover is not None and moves_in_a_circle(await mover.list_moves(one.vm)):
                _log.info("descheduler.circle", vm=one.vm, hypervisor=one.host)
                continue
            spec = DeschedulingSpec(
                ref=one.vm, ref_type=kind, prev_host=one.host, prev_host_type=HOST_TYPES[kind], reason=one.reason
            )
            try:
                await self._store.create(Descheduling(metadata=ObjectMeta(name=name), spec=spec))
            except AlreadyExists:
                continue
            _log.info("descheduler.found", vm=one.vm, hypervisor=one.host, why=one.reason)
            made += 1
        return made

    def detect(self) -> tuple[Detection, ...]:
        """What all detectors of all pipelines say together; one that fails says nothing."""
        found: list[tuple[str, Sequence[Detection]]] = []
        for pipeline in self._pipelines():
            for bound in pipeline.detectors:
                start = self._clock.monotonic()
                try:
                    detections = bound.step.detect(self._records)
                except (OutliveError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                    _log.warning("descheduler.step_failed", step=bound.step.name, error=str(error))
                    continue
                self._step_seconds.labels(bound.step.name).observe(self._clock.monotonic() - start)
                self._detections.labels(bound.step.name).set(len(detections))
                found.append((bound.step.name, detections))
        return merge_detections(found)
