"""Who says which VMs there are and where: the caches, and a database of VMs where there is one.

Read at the beginning of each tick, which ends where it cannot be read; between ticks VMs that only hosts report are
looked up one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from outlive.base.errors import OutliveError, Unavailable
from outlive.base.logging import get_logger
from outlive.failover.reconciler.context import Context
from outlive.failover.reconciler.decider import Aborted
from outlive.failover.reconciler.informers import check_current
from outlive.failover.report.reporter import Step
from outlive.placement.vms import VmList, VmView

LOOKUPS: Final = 50
"""VMs that one pass looks up in the VM source."""

_log = get_logger("failover.reconciler")


class Sources:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache = context.cache
        self._listing = VmList()
        self._listed = False
        """Whether a tick has brought the listing of a database; before that everybody would be a stranger."""
        self._looked_up: set[str] = set()
        """VMs that were looked up since the last tick."""

    async def observe(self) -> None:
        """See to it that the cache is current; ``Aborted`` names what cannot be read."""
        context, cache = self._context, self._cache
        informers = cache.informers
        self._looked_up.clear()
        with _aborting(Step.HYPERVISORS):
            check_current(informers.hypervisors)
        with _aborting(Step.SLOTS):
            check_current(informers.reservations)
        with _aborting(Step.VMS):
            if context.source is None:
                check_current(informers.vms)
            else:
                self._listing = await context.source.list_vms()
        with _aborting(Step.SLOTS):
            await cache.follow()
        if context.source is None:
            self._listing = VmList(without_host=len(informers.vms) - len(cache.known))
            return
        await cache.put_listing(self._listing.vms, but=self._looked_up)
        self._listed = True

    async def look_up_strangers(self) -> bool:
        """Ask a database about VMs that hosts report and that it did not list, or listed elsewhere.

        Whether more of them can be asked about at once. After an error they wait for the next change or tick.
        """
        cache, source = self._cache, self._context.source
        if source is None:
            cache.strangers.clear()
            return False
        if not self._listed:
            return False
        for vm_id in sorted(cache.strangers)[:LOOKUPS]:
            try:
                view = await source.get_vm(vm_id)
            except OutliveError as error:
                _log.warning("vm.not_looked_up", vm=vm_id, error=str(error), waiting=len(cache.strangers))
                return False
            cache.strangers.discard(vm_id)
            self._looked_up.add(vm_id)
            if view is not None and view != cache.known.get(vm_id):
                cache.put_vm(vm_id, view)
        return bool(cache.strangers)

    async def locate(self, vm_id: str) -> VmView | None:
        """Where the VM is, as ticks and passes believe."""
        await self._cache.follow()
        known = self._cache.vms.get(vm_id)
        source = self._context.source
        if known is not None and source is None:
            return known
        view = await source.get_vm(vm_id) if source is not None else self._cache.known.get(vm_id)
        return self._cache.locations.located(view)

    async def report(self) -> None:
        """What sources and hosts disagree about, to metrics and faults."""
        cache, reporter = self._cache, self._context.reporter
        merged = await cache.disagreements()
        reporter.observed(self._listing, merged)
        reporter.unknown_levels(cache.unknown_levels)


@contextmanager
def _aborting(step: Step) -> Iterator[None]:
    """Whatever goes wrong inside ends the tick: others answer there."""
    try:
        yield
    except OutliveError as error:
        raise Aborted(step, error) from error
    except Exception as error:
        _log.error("cycle.unexpected", step=step.value, error=repr(error), exc_info=True)
        odd = Unavailable(f"unexpected answer: {type(error).__name__}: {error}", remedy="see the log, and report it")
        raise Aborted(step, odd) from error
