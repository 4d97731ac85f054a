"""What is true of every VM now, reported VM by VM and in sums: coverage, tolerance, levels, VMs without a location.

Statuses are made from the living index at the moment of the report, under the reconciler's lock, so that no report is
older than the one before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from outlive.base.batches import batches
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.failover.analysis.costs import CostTable
from outlive.failover.analysis.coverage import left_of, status_of
from outlive.failover.analysis.tolerance import judge_broken, tolerated
from outlive.failover.planner.actions import Fail
from outlive.failover.reconciler.context import Context
from outlive.resources import CoverageStatus, ObjectRef
from outlive.resources.reasons import Reason, render
from outlive.resources.reasons.coverage import CoverageReason
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.faults import ActiveFault

TOGETHER = 200
"""VMs whose coverage is reported in one turn."""
SLOTS_TOGETHER = 20
"""Slots whose members are looked at in one turn."""
FAULT_AFTER_S = 60.0
"""How long the location of a VM must be unknown before that is a fault: a move takes a while."""
FAULTS = 50
"""VMs of which a fault is raised at most; all of them are counted."""

_log = get_logger("failover.report")


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
                _log.info("vm.without_slot", vm=vm, reason=fail.reason, detail=fail.detail, remedy=fail.remedy)
                self._reporter.vm_without_slot(fail)

    def status(self, vm_id: str) -> CoverageStatus | None:
        """What is true of a VM that the source lists and that is to run; of others ``None``."""
        known, status = self._cache.known.get(vm_id), self._judge(vm_id)
        if status is None or known is None or known.name in ("", vm_id):
            return status
        return msgspec.structs.replace(status, display_name=known.name)

    def _judge(self, vm_id: str) -> CoverageStatus | None:
        cache = self._cache
        vm = cache.vms.get(vm_id)
        if vm is not None:
            counting, idle = cache.counting(vm)
            fail = self._fails.get(vm_id)
            broken = cache.at_fault(vm_id)
            return status_of(vm, cache.required(vm), counting, broken=broken, fail=fail, idle=idle)
        why = cache.unplaced.get(vm_id)
        if why is None:
            return None
        known = cache.known[vm_id]
        required = cache.required(known)
        if required <= 0:
            return CoverageStatus(required=0, covered=True, host=known.host)
        return _uncovered(required, known.host, Reason(why, self._where(vm_id)))

    def _where(self, vm: str) -> dict[str, str]:
        """Where it is recorded, and who reports it."""
        return {"host": self._cache.known[vm].host, "reported": self._cache.locations.first(vm) or "no host"}

    async def retract(self, vms: Iterable[str]) -> None:
        """Report those that are not covered any more, before they are given anything: giving takes time, and this
        process may lose its lead meanwhile."""
        found = self._statuses(vms)[0]
        try:
            await self._writer.retract({vm: status for vm, status in found.items() if not status.covered})
        except OutliveError as error:
            _log.warning("coverage.not_written", error=str(error))

    async def report(self, vms: Iterable[str], *, again: int = 0) -> None:
        """Report these, those for whom a rule is or was broken, and ``again`` whose last report did not get through."""
        faulty = [vm for vm in self._cache.index.faulty() if vm in self._cache.vms]
        concerned = dict.fromkeys((*vms, *self._faulty, *faulty, *self._writer.unreported[:again]))
        self._faulty = faulty
        statuses, gone = self._statuses(concerned)
        try:
            await self._writer.publish(statuses, gone=gone)
        except OutliveError as error:
            _log.warning("coverage.not_written", error=str(error))

    def _statuses(self, vms: Iterable[str]) -> tuple[dict[str, CoverageStatus], list[str]]:
        """What is true of these, and those of them that are gone."""
        found: dict[str, CoverageStatus] = {}
        gone: list[str] = []
        for vm in vms:
            status = self.status(vm) or self._guarded(vm)
            if status is not None:
                found[vm] = status
            elif vm not in self._cache.locations:
                gone.append(vm)
        return found, gone

    def _guarded(self, vm: str) -> CoverageStatus | None:
        """What is left of the promise to a VM that hosts report and no source lists; ``None`` where all of it is."""
        cache, last = self._cache, self._writer.last(vm)
        host = cache.locations.first(vm)
        if host is None or last is None or not last.covered:
            return None
        if last.host and last.host != host:
            fields = {"reported": host, "host": last.host}
            return _uncovered(last.required, host, Reason(CoverageReason.UNLISTED_AND_MOVED, fields))
        left = [name for name in last.slots if name in cache.slots and vm in cache.slots[name].members]
        return left_of(last, left) if len(left) < len(last.slots) else None

    async def everybody(self, *, braked: bool) -> None:
        """Report all VMs and what they add up to; nobody is forgotten that a host reports, or while the brake holds."""
        cache = self._cache
        for vm in [vm for vm in self._fails if vm not in cache.vms]:
            del self._fails[vm]
        broken = frozenset(vm for vm in cache.index.faulty() if vm in cache.vms)
        required = {vm: cache.required(cache.vms[vm]) for vm in broken}
        exact = judge_broken(broken, required, cache.vms, cache.slots, cache.index, cache.topology())
        survived: list[tuple[str, int]] = []
        reasons = Counter[str]()
        covered: list[str] = []
        known = protected = 0
        try:
            for some in batches([*cache.vms, *cache.unplaced], TOGETHER):
                await self._clock.sleep(0)
                async with self._lock:
                    statuses = {vm: status for vm in some if (status := self.status(vm)) is not None}
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
            self._reporter.uncovered(reasons)
            self._reporter.tolerated(tolerated(self._context.settings.topology_choice.unit, survived))
            self._reporter.counted(known=known, protected=protected, covered=len(covered))
            await self._levels(covered)
            await self._forget(braked=braked)
            await self._record_faults()
        except OutliveError as error:
            _log.warning("coverage.not_written", error=str(error))

    async def _record_faults(self) -> None:
        """A fault for each VM that needs slots and whose location has not been known for a while."""
        cache, now = self._cache, self._clock.monotonic()
        self._unplaced_since = {vm: self._unplaced_since.get(vm, now) for vm in cache.unplaced}
        if self._context.faults is None:
            return
        lasting = [vm for vm, since in self._unplaced_since.items() if now - since >= FAULT_AFTER_S]
        active: list[ActiveFault] = []
        for vm in sorted(vm for vm in lasting if cache.required(cache.known[vm]) > 0)[:FAULTS]:
            said = render(Reason(cache.unplaced[vm], self._where(vm)))
            fields = {"why": said.text, "remedy": said.remedy}
            subject = ObjectRef(kind="VirtualMachine", name=vm)
            active.append(ActiveFault(code=FaultCode.VM_LOCATION_UNKNOWN, subject=subject, fields=fields))
        await self._context.faults.record(active)

    async def _levels(self, covered: list[str]) -> None:
        """What each protection level covers and costs, where there are any."""
        levels = self._context.protection.levels
        if not levels:
            return
        cache, served = self._cache, frozenset(covered)
        table = CostTable({name: level.priority for name, level in levels.items()})
        for vms in batches([*cache.vms.values(), *(cache.known[vm] for vm in cache.unplaced)], TOGETHER):
            for vm in vms:
                table.add_vm(vm, cache.level(vm), cache.required(vm), covered=vm.id in served)
            await self._clock.sleep(0)
        for slots in batches(list(cache.slots.values()), SLOTS_TOGETHER):
            for slot in slots:
                table.add_slot(slot)
            await self._clock.sleep(0)
        self._reporter.levels(table.result())

    async def _forget(self, *, braked: bool) -> None:
        """Correct or delete what was published of VMs that are neither listed nor to run any more."""
        for names in batches(() if braked else await self._writer.published(), TOGETHER):
            await self._clock.sleep(0)
            async with self._lock:
                others = [vm for vm in names if vm not in self._cache.vms and vm not in self._cache.unplaced]
                statuses, gone = self._statuses(others)
                await self._writer.publish(statuses, gone=gone)


def _uncovered(required: int, host: str, reason: Reason) -> CoverageStatus:
    said = render(reason)
    return CoverageStatus(
        required=required, covered=False, host=host, reason=reason.code, message=said.text, remedy=said.remedy
    )
