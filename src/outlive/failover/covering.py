"""``Coverage/<vm>``: telling each VM whether it has the slots that it needs, and keeping that told.

A VM is covered when at least as many slots as it needs count for it and all rules hold for it. What counts is what
``outlive.failover.select`` counts: slots that are ready and large enough. An object is written only when what it says
changed, and deleted with its VM. It is a report: nothing is decided from it, and it may be late by one write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists, Conflict, Invalid, NotFound, OutliveError, Unknown
from outlive.base.logging import get_logger
from outlive.failover.actions import Fail
from outlive.failover.columns import Columns
from outlive.failover.compat import Compat
from outlive.failover.model import SlotView, VmView
from outlive.failover.reasons import Reason
from outlive.failover.rules import fits
from outlive.resources import Amounts, Coverage, CoverageStatus, ObjectMeta, check_name
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Store, list_all

WRITES_AT_ONCE = 8
"""Coverage objects that are written at the same time."""
TRIES = 3
"""Times that an object is read again because somebody else changed it."""

_log = get_logger("failover.coverage")


def counting_slots(
    vms: Iterable[VmView], slots: Iterable[SlotView], *, compat: Compat = Compat()
) -> dict[str, list[str]]:
    """VM → names of the slots that count for it, in name order."""
    views = {vm.id: vm for vm in vms}
    literal = compat.reverted("D10")
    found: dict[str, list[str]] = {}
    for slot in sorted(slots, key=lambda one: one.name):
        if slot.ready is False and not literal:
            continue
        for member in slot.members:
            vm = views.get(member)
            if vm is not None and (literal or fits(vm, slot)):
                found.setdefault(member, []).append(slot.name)
    return found


def rules_broken(vms: Iterable[VmView], slots: Sequence[SlotView]) -> frozenset[str]:
    """The VMs for which some rule does not hold, at their current locations."""
    columns = Columns(list(slots), {vm.id: vm.host for vm in vms})
    return frozenset(columns.vm_ids[number] for number in columns.at_fault().tolist())


def assess(
    vms: Iterable[VmView],
    required: Mapping[str, int],
    counting: Mapping[str, Sequence[str]],
    *,
    broken: Collection[str],
    fails: Mapping[str, Fail],
) -> dict[str, CoverageStatus]:
    """VM → what is to be told about it. ``fails`` has the last reason of those that could not be served."""
    return {
        vm.id: status_of(
            vm, required.get(vm.id, 0), counting.get(vm.id, ()), broken=vm.id in broken, fail=fails.get(vm.id)
        )
        for vm in vms
    }


def status_of(vm: VmView, required: int, slots: Sequence[str], *, broken: bool, fail: Fail | None) -> CoverageStatus:
    """What is to be told about one VM; the time of the change is set when it is written."""
    covered = required <= 0 or (len(slots) >= required and not broken)
    status = CoverageStatus(
        required=required, slots=tuple(slots), covered=covered, host=vm.host, also_needs=Amounts(vm.also_needs)
    )
    if covered:
        return status
    if broken:
        return msgspec.structs.replace(
            status,
            reason=Reason.MEMBERSHIPS_CLASH.value,
            message="a rule does not hold for the VM, so its slots promise nothing",
            remedy="the next cycle takes out who is at fault; see the event RemovalBrake if it does not",
        )
    if fail is not None:
        return msgspec.structs.replace(status, reason=str(fail.reason), message=fail.detail, remedy=fail.remedy)
    return msgspec.structs.replace(
        status,
        reason=Reason.WAITING.value,
        message=f"{len(slots)} of {required} slots; it has not been its turn",
        remedy="wait for a cycle, or raise failover.maxVMsToProcess",
    )


class CoverageWriter:
    """Keeps the objects as told. It remembers what it wrote, and reads all of them once before its first write."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, Coverage] | None = None
        self._refused: set[str] = set()

    async def tell(self, wanted: Mapping[str, CoverageStatus], *, gone: Collection[str] = ()) -> int:
        """Write what changed, delete ``gone``; the number of objects that could not be written."""
        known = await self._all()
        changed = [vm for vm in sorted(wanted) if not _says(known.get(vm), wanted[vm]) and vm not in self._refused]
        away = [vm for vm in sorted(gone) if vm in known]
        failed: list[str] = []
        work = iter([*changed, *away])

        async def worker() -> None:
            for vm in work:
                try:
                    await (self._write(vm, wanted[vm]) if vm in wanted else self._delete(vm))
                except OutliveError as error:
                    failed.append(vm)
                    _log.warning("coverage.not_written", vm=vm, error=str(error))

        async with OrderedTaskGroup() as group:
            for number in range(min(WRITES_AT_ONCE, len(changed) + len(away))):
                group.create_task(worker(), name=f"coverage {number}")
        return len(failed)

    async def told(self) -> frozenset[str]:
        """The VMs about which something was told."""
        return frozenset(await self._all())

    async def _all(self) -> dict[str, Coverage]:
        if self._known is None:
            self._known = {one.name: one async for one in list_all(self._store, Coverage)}
        return self._known

    async def _write(self, vm: str, status: CoverageStatus) -> None:
        stamped = msgspec.structs.replace(status, changed_at=as_datetime(self._clock.now()))
        known = await self._all()
        for _ in range(TRIES):
            old = known.get(vm)
            try:
                if old is None:
                    known[vm] = await self._create(vm, stamped)
                else:
                    known[vm] = await self._store.replace(msgspec.structs.replace(old, status=stamped))
            except (AlreadyExists, Conflict, NotFound, Unknown):
                if await self._reread(vm, status):
                    return
                continue
            return
        raise Conflict(f"Coverage/{vm} kept changing", remedy="the next cycle tells it again")

    async def _create(self, vm: str, status: CoverageStatus) -> Coverage:
        try:
            check_name(vm)
        except Invalid:
            self._refused.add(vm)
            raise
        return await self._store.create(Coverage(metadata=ObjectMeta(name=vm), status=status))

    async def _reread(self, vm: str, status: CoverageStatus) -> bool:
        """Look at what is there; whether it says what was to be said."""
        known = await self._all()
        try:
            known[vm] = await self._store.get(Coverage, vm, fresh=True)
        except NotFound:
            known.pop(vm, None)
        return _says(known.get(vm), status)

    async def _delete(self, vm: str) -> None:
        known = await self._all()
        with contextlib.suppress(NotFound):
            await self._store.delete(known[vm].ref, uid=known[vm].metadata.uid)
        known.pop(vm, None)


def _says(there: Coverage | None, wanted: CoverageStatus) -> bool:
    return there is not None and msgspec.structs.replace(there.status, changed_at=None) == wanted
