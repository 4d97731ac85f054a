"""``Coverage/<vm>``: whether each VM has the slots that it needs, written where that changed, and added up.

What is true of a VM is decided by ``assurance.coverage``. An object is written only when what it says changed, and
deleted with its VM. It is a report: nothing is decided from it, and it may be late by one write. Nobody leaves it: a VM
of which it cannot be said where it is counts as uncovered, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists, Conflict, Invalid, NotFound, OutliveError, Unknown
from outlive.base.logging import get_logger
from outlive.failover.report.forecast import Forecast
from outlive.resources import Coverage, CoverageStatus, CoveredBy, ObjectMeta, check_name
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Store, list_all
from outlive.store.access import swap

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
            self.listener.published(wanted, gone)
        wanted = {vm: self._with_ground(status) for vm, status in wanted.items()}
        self._unreported.update(dict.fromkeys((*wanted, *gone)))
        known = await self._all()
        changed = [vm for vm in sorted(wanted) if not _says(known.get(vm), wanted[vm]) and vm not in self._refused]
        away = [vm for vm in sorted(gone) if vm in known]
        failed: dict[str, None] = {}
        work = iter([*changed, *away])

        async def worker() -> None:
            for vm in work:
                try:
                    await (self._write(vm, wanted[vm]) if vm in wanted else self._delete(vm))
                except OutliveError as error:
                    failed[vm] = None
                    _log.warning("coverage.not_written", vm=vm, error=str(error))

        async with OrderedTaskGroup() as group:
            for number in range(min(WRITES_AT_ONCE, len(changed) + len(away))):
                group.create_task(worker(), name=f"coverage {number}")
        for vm in (*wanted, *gone):
            if vm not in failed or vm in self._refused:
                self._unreported.pop(vm, None)
        return len(failed)

    def _with_ground(self, status: CoverageStatus) -> CoverageStatus:
        """With by what it is covered, where it needs slots and has them."""
        has = status.covered and status.required > 0
        return msgspec.structs.replace(status, covered_by=self._covered_by(status.host) if has else None)

    async def retract(self, wanted: Mapping[str, CoverageStatus]) -> None:
        """Of these publish only those that were published as covered and are not."""
        known = await self._all()
        away = [vm for vm, status in wanted.items() if not status.covered and vm in known]
        if away:
            await self.publish({vm: wanted[vm] for vm in away if known[vm].status.covered})

    async def published(self) -> tuple[str, ...]:
        """The VMs about which something was published."""
        return tuple(await self._all())

    def last(self, vm: str) -> CoverageStatus | None:
        """What was last published about the VM, as far as it is remembered."""
        known = self._known.get(vm)
        return known.status if known is not None else None

    async def _all(self) -> dict[str, Coverage]:
        now, source = self._clock.monotonic(), self._store_is()
        if now - self._read_at > REREAD_S or source != self._read_from:
            found = {one.name: one async for one in list_all(self._store, Coverage)}
            changed = (vm for vm, last in self._known.items() if not _says(found.get(vm), _said(last)))
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
    return there is not None and _said(there) == wanted


def _said(there: Coverage) -> CoverageStatus:
    return msgspec.structs.replace(there.status, changed_at=None)
