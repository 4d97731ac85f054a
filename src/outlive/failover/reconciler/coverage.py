"""``Coverage/<vm>``: whether each VM has the slots that it needs, written where that changed, and added up.

What is true of a VM is decided by ``analysis.coverage``. An object is written only when what it says changed, and
deleted with its VM. It is a report: nothing is decided from it, and it may be late by one write. Nobody leaves it: a VM
of which it cannot be said where it is counts as uncovered, with the reason.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from outlive.base import (
    AlreadyExists,
    Clock,
    Conflict,
    Invalid,
    NotFound,
    OutliveError,
    Unknown,
    as_datetime,
    get_logger,
    split_batches,
)
from outlive.failover.analysis.costs import CostTable
from outlive.failover.analysis.coverage import reduce_to_slots, status_of
from outlive.failover.analysis.tolerance import judge_broken, sum_tolerances
from outlive.failover.planner.actions import Fail
from outlive.failover.report.forecast import Forecast
from outlive.resources import Coverage, CoverageStatus, CoveredBy, ObjectMeta, ObjectRef, check_name
from outlive.resources.reasons import CoverageReason, FaultCode, Reason, render
from outlive.runtime import ActiveFault, OrderedTaskGroup
from outlive.store import Store, list_all, swap

if TYPE_CHECKING:
    from outlive.failover.reconciler.context import Context


WRITES_AT_ONCE = 8
"""Coverage objects that are written at the same time."""
REREAD_S = 600.0
"""How long the memory of what was published is believed."""

_log = get_logger("failover.coverage")


class CoverageWriter:
    """Writes the objects.

    It remembers what it wrote, and reads all of them before its first write, whenever it has to ``forget``, when
    the store may be another one than it was, and every ``REREAD_S``: somebody else may have led meanwhile, or deleted
    some. It writes over nothing but what it knows: where somebody else has written meanwhile, it may lead no more, and
    if it does, it reads all of them and reports again. VMs of which the store then says otherwise than was published
    have to be reported again, also where nothing of them changed: a restored store may bring back a promise of which
    nothing is left.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        store_is: Callable[[], object] = lambda: None,
        covered_by: Callable[[str], CoveredBy | None] = lambda host: None,
    ) -> None:
        """``store_is`` answers otherwise once the store may have been restored from a backup; ``covered_by`` says of a
        host by what its covered VMs are covered."""
        self._store = store
        self._covered_by = covered_by
        self._clock = clock
        self._store_is = store_is
        self._read_from: object = None
        self._known: dict[str, Coverage] = {}
        self._read_at = float("-inf")
        self._refused: set[str] = set()
        self._unreported: dict[str, None] = {}
        self.listener: Forecast | None = None
        """Gets the same as is written, whether or not writing succeeds."""

    @property
    def unreported(self) -> tuple[str, ...]:
        """VMs whose last report did not get through, or is not in the store any more: what is published of them may not
        be true."""
        return tuple(self._unreported)

    @property
    def outdated(self) -> bool:
        """Whether the store may be another one than that of which is remembered what was published."""
        return self._read_at > float("-inf") and self._store_is() != self._read_from

    def forget(self) -> None:
        """What is remembered may be out of date: this process did not lead."""
        self._known = {}
        self._read_at = float("-inf")
        self._refused.clear()
        self._unreported.clear()
        if self.listener is not None:
            self.listener.forget()

    async def publish(self, wanted: Mapping[str, CoverageStatus], *, gone: Collection[str] = ()) -> int:
        """Write what changed, delete ``gone``; the number of objects that could not be written."""
        if self.listener is not None:
            self.listener.record_statuses(wanted, gone)
        wanted = {vm: self._with_covered_by(status) for vm, status in wanted.items()}
        self._unreported.update(dict.fromkeys((*wanted, *gone)))
        known = await self._read_all()
        changed = [vm for vm in sorted(wanted) if not _says(known.get(vm), wanted[vm]) and vm not in self._refused]
        away = [vm for vm in sorted(gone) if vm in known]
        failed: dict[str, None] = {}
        work = iter([*changed, *away])

        async def run_worker() -> None:
            for vm in work:
                try:
                    await (self._write(vm, wanted[vm]) if vm in wanted else self._delete(vm))
                except OutliveError as error:
                    failed[vm] = None
                    _log.warning("coverage.not_written", vm=vm, error=str(error))

        async with OrderedTaskGroup() as group:
            for number in range(min(WRITES_AT_ONCE, len(changed) + len(away))):
                group.create_task(run_worker(), name=f"coverage {number}")
        for vm in (*wanted, *gone):
            if vm not in failed or vm in self._refused:
                self._unreported.pop(vm, None)
        return len(failed)

    def _with_covered_by(self, status: CoverageStatus) -> CoverageStatus:
        """With by what it is covered, where it needs slots and has them."""
        has = status.covered and status.required > 0
        return msgspec.structs.replace(status, covered_by=self._covered_by(status.host) if has else None)

    async def retract(self, wanted: Mapping[str, CoverageStatus]) -> None:
        """Of these publish only those that were published as covered and are not."""
        known = await self._read_all()
        away = [vm for vm, status in wanted.items() if not status.covered and vm in known]
        if away:
            await self.publish({vm: wanted[vm] for vm in away if known[vm].status.covered})

    async def published_vms(self) -> tuple[str, ...]:
        """The VMs about which something was published."""
        return tuple(await self._read_all())

    def last_status(self, vm: str) -> CoverageStatus | None:
        """What was last published about the VM, as far as it is remembered."""
        known = self._known.get(vm)
        return known.status if known is not None else None

    async def _read_all(self) -> dict[str, Coverage]:
        now, source = self._clock.monotonic(), self._store_is()
        if now - self._read_at > REREAD_S or source != self._read_from:
            found = {one.name: one async for one in list_all(self._store, Coverage)}
            changed = (vm for vm, last in self._known.items() if not _says(found.get(vm), _status_without_time(last)))
            self._unreported.update(dict.fromkeys(changed))
            self._known, self._read_at, self._read_from = found, now, source
        return self._known

    async def _write(self, vm: str, status: CoverageStatus) -> None:
        stamped = msgspec.structs.replace(status, changed_at=as_datetime(self._clock.now()))

        known = self._known.get(vm)
        if _says(known, status):
            return
        try:
            if known is None:
                self._known[vm] = await self._create(Coverage(metadata=ObjectMeta(name=vm), status=stamped))
            else:
                self._known[vm] = await swap(self._store, msgspec.structs.replace(known, status=stamped))
        except (AlreadyExists, Conflict, NotFound, Unknown):
            self._read_at = float("-inf")
            raise

    async def _create(self, wanted: Coverage) -> Coverage:
        try:
            check_name(wanted.name)
        except Invalid:
            self._refused.add(wanted.name)
            raise
        return await self._store.create(wanted)

    async def _delete(self, vm: str) -> None:
        there = self._known.get(vm)
        if there is None:
            return
        with contextlib.suppress(NotFound):
            await self._store.delete(there.ref, uid=there.metadata.uid)
        self._known.pop(vm, None)


def _says(there: Coverage | None, wanted: CoverageStatus) -> bool:
    return there is not None and _status_without_time(there) == wanted


def _status_without_time(there: Coverage) -> CoverageStatus:
    return msgspec.structs.replace(there.status, changed_at=None)


# What is true of every VM now, reported VM by VM and in sums: coverage, tolerance, levels, VMs without a location.
#
# Statuses are made from the living index at the moment of the report, under the reconciler's lock, so that no report
# is older than the one before it.

TOGETHER = 200
"""VMs whose coverage is reported in one turn."""
SLOTS_TOGETHER = 20
"""Slots whose members are looked at in one turn."""
FAULT_AFTER_S = 60.0
"""How long the location of a VM must be unknown before that is a fault: a move takes a while."""
FAULTS = 50
"""VMs of which a fault is raised at most; all of them are counted."""

_report_log = get_logger("failover.report")


class CoverageReport:
    """Reports for the reconciler."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache = context.cache
        self._writer = context.coverage
        self._reporter = context.reporter
        self._clock = context.clock
        self._lock = context.lock
        self._unplaced_since: dict[str, float] = {}
        self._fails: dict[str, Fail] = {}
        """VM → why it has not got what it misses, as last decided."""
        self._faulty: list[str] = []
        """VMs for which a rule did not hold at the last report, as where another member of their slots moved and the
        brake holds: they are reported again, also once it holds again."""

    def note_fails(self, vms: Iterable[str], fails: Mapping[str, Fail]) -> None:
        """Remember why, for the coverage of these VMs; an event and a log line only for another reason than before."""
        for vm in sorted(vms):
            before, fail = self._fails.pop(vm, None), fails.get(vm)
            if fail is None:
                continue
            self._fails[vm] = fail
            if before is None or before.reason != fail.reason:
                _report_log.info("vm.without_slot", vm=vm, reason=fail.reason, detail=fail.detail, remedy=fail.remedy)
                self._reporter.vm_without_slot(fail)

    def status_of(self, vm_id: str) -> CoverageStatus | None:
        """What is true of a VM that the source lists and that is to run; of others ``None``."""
        known, status = self._cache.known.get(vm_id), self._judge(vm_id)
        if status is None or known is None or known.name in ("", vm_id):
            return status
        return msgspec.structs.replace(status, display_name=known.name)

    def _judge(self, vm_id: str) -> CoverageStatus | None:
        cache = self._cache
        vm = cache.vms.get(vm_id)
        if vm is not None:
            counting, idle = cache.split_by_counting(vm)
            fail = self._fails.get(vm_id)
            broken = cache.is_faulty(vm_id)
            return status_of(vm, cache.required_slots(vm), counting, broken=broken, fail=fail, idle=idle)
        why = cache.unplaced.get(vm_id)
        if why is None:
            return None
        known = cache.known[vm_id]
        required = cache.required_slots(known)
        if required <= 0:
            return CoverageStatus(required=0, covered=True, host=known.host)
        return _uncovered_status(required, known.host, Reason(why, self._location_fields(vm_id)))

    def _location_fields(self, vm: str) -> dict[str, str]:
        """Where it is recorded, and who reports it."""
        return {"host": self._cache.known[vm].host, "reported": self._cache.locations.first_host(vm) or "no host"}

    async def retract(self, vms: Iterable[str]) -> None:
        """Report those that are not covered any more, before they are given anything: giving takes time, and this
        process may lose its lead meanwhile."""
        found = self._collect_statuses(vms)[0]
        try:
            await self._writer.retract({vm: status for vm, status in found.items() if not status.covered})
        except OutliveError as error:
            _report_log.warning("coverage.not_written", error=str(error))

    async def report(self, vms: Iterable[str], *, again: int = 0) -> None:
        """Report these, those for whom a rule is or was broken, and ``again`` whose last report did not get through."""
        faulty = [vm for vm in self._cache.index.list_faulty() if vm in self._cache.vms]
        concerned = dict.fromkeys((*vms, *self._faulty, *faulty, *self._writer.unreported[:again]))
        self._faulty = faulty
        statuses, gone = self._collect_statuses(concerned)
        try:
            await self._writer.publish(statuses, gone=gone)
        except OutliveError as error:
            _report_log.warning("coverage.not_written", error=str(error))

    def _collect_statuses(self, vms: Iterable[str]) -> tuple[dict[str, CoverageStatus], list[str]]:
        """What is true of these, and those of them that are gone."""
        found: dict[str, CoverageStatus] = {}
        gone: list[str] = []
        for vm in vms:
            status = self.status_of(vm) or self._guarded_status(vm)
            if status is not None:
                found[vm] = status
            elif vm not in self._cache.locations:
                gone.append(vm)
        return found, gone

    def _guarded_status(self, vm: str) -> CoverageStatus | None:
        """What is left of the promise to a VM that hosts report and no source lists; ``None`` where all of it is."""
        cache, last = self._cache, self._writer.last_status(vm)
        host = cache.locations.first_host(vm)
        if host is None or last is None or not last.covered:
            return None
        if last.host and last.host != host:
            fields = {"reported": host, "host": last.host}
            return _uncovered_status(last.required, host, Reason(CoverageReason.UNLISTED_AND_MOVED, fields))
        left = [name for name in last.slots if name in cache.slots and vm in cache.slots[name].members]
        return reduce_to_slots(last, left) if len(left) < len(last.slots) else None

    async def report_all(self, *, braked: bool) -> None:
        """Report all VMs and what they add up to; nobody is forgotten that a host reports, or while the brake holds."""
        cache = self._cache
        for vm in [vm for vm in self._fails if vm not in cache.vms]:
            del self._fails[vm]
        broken = frozenset(vm for vm in cache.index.list_faulty() if vm in cache.vms)
        required = {vm: cache.required_slots(cache.vms[vm]) for vm in broken}
        exact = judge_broken(broken, required, cache.vms, cache.slots, cache.index, cache.build_topology())
        survived: list[tuple[str, int]] = []
        reasons = Counter[str]()
        covered: list[str] = []
        known = protected = 0
        try:
            for some in split_batches([*cache.vms, *cache.unplaced], TOGETHER):
                await self._clock.sleep(0)
                async with self._lock:
                    statuses = {vm: status for vm in some if (status := self.status_of(vm)) is not None}
                    survived += [
                        (
                            (cache.vms.get(vm) or cache.known[vm]).zone,
                            exact.get(vm, 0) if vm in broken else len(status.slots),
                        )
                        for vm, status in statuses.items()
                        if status.required > 0
                    ]
                    reasons.update(status.reason for status in statuses.values() if not status.covered)
                    covered += [vm for vm, status in statuses.items() if status.required > 0 and status.covered]
                    known += len(statuses)
                    protected += sum(status.required > 0 for status in statuses.values())
                    await self._writer.publish(statuses)
            self._reporter.report_uncovered(reasons)
            self._reporter.report_tolerance(sum_tolerances(self._context.settings.topology_choice.unit, survived))
            self._reporter.report_counts(known=known, protected=protected, covered=len(covered))
            await self._report_levels(covered)
            await self._forget(braked=braked)
            await self._record_faults()
        except OutliveError as error:
            _report_log.warning("coverage.not_written", error=str(error))

    async def _record_faults(self) -> None:
        """A fault for each VM that needs slots and whose location has not been known for a while."""
        cache, now = self._cache, self._clock.monotonic()
        self._unplaced_since = {vm: self._unplaced_since.get(vm, now) for vm in cache.unplaced}
        if self._context.faults is None:
            return
        lasting = [vm for vm, since in self._unplaced_since.items() if now - since >= FAULT_AFTER_S]
        active: list[ActiveFault] = []
        for vm in sorted(vm for vm in lasting if cache.required_slots(cache.known[vm]) > 0)[:FAULTS]:
            said = render(Reason(cache.unplaced[vm], self._location_fields(vm)))
            fields = {"why": said.text, "remedy": said.remedy}
            subject = ObjectRef(kind="VirtualMachine", name=vm)
            active.append(ActiveFault(code=FaultCode.VM_LOCATION_UNKNOWN, subject=subject, fields=fields))
        await self._context.faults.record(active)

    async def _report_levels(self, covered: list[str]) -> None:
        """What each protection level covers and costs, where there are any."""
        levels = self._context.protection.levels
        if not levels:
            return
        cache, served = self._cache, frozenset(covered)
        table = CostTable({name: level.priority for name, level in levels.items()})
        for vms in split_batches([*cache.vms.values(), *(cache.known[vm] for vm in cache.unplaced)], TOGETHER):
            for vm in vms:
                table.add_vm(vm, cache.level_of(vm), cache.required_slots(vm), covered=vm.id in served)
            await self._clock.sleep(0)
        for slots in split_batches(list(cache.slots.values()), SLOTS_TOGETHER):
            for slot in slots:
                table.add_slot(slot)
            await self._clock.sleep(0)
        self._reporter.report_levels(table.get_result())

    async def _forget(self, *, braked: bool) -> None:
        """Correct or delete what was published of VMs that are neither listed nor to run any more."""
        for names in split_batches(() if braked else await self._writer.published_vms(), TOGETHER):
            await self._clock.sleep(0)
            async with self._lock:
                others = [vm for vm in names if vm not in self._cache.vms and vm not in self._cache.unplaced]
                statuses, gone = self._collect_statuses(others)
                await self._writer.publish(statuses, gone=gone)


def _uncovered_status(required: int, host: str, reason: Reason) -> CoverageStatus:
    said = render(reason)
    return CoverageStatus(
        required=required, covered=False, host=host, reason=reason.code, message=said.text, remedy=said.remedy
    )
