"""Rows of VMs and networks that are gone: found now and then, told, and deleted one period later.

What is deleted was seen to be an orphan twice, a period apart, and its VM or network is looked at again by the
controller, which deletes what it does not plan. Where suddenly most VMs seem to be gone, the store is more likely to be
wrong than OVN: then nothing is deleted, and somebody is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.network.copies import VmKey
from outlive.network.names import NETWORK_KEY, OWN_CONTROLLER, OWN_NAMESPACE, OWNER_KEY, VM_KEY
from outlive.network.operations import DHCP, PORTS, ROUTER_PORTS, ROUTES, SWITCHES, Columns, Rows
from outlive.network.owners import external_ids, vm_in
from outlive.network.pause import PauseReader
from outlive.network.ports import NorthboundDb
from outlive.runtime.metrics import Gauge

BRAKE_SHARE: Final = 0.5
"""Nothing is deleted while more than this share of the VMs in OVN seem to be gone …"""
BRAKE_LEAST: Final = 10
"""… and more than so many."""
NAMED: Final = 20
"""Orphans that are named in the log."""
_log = get_logger("network.cleanup")


def find_orphans(rows: Rows, vms: Collection[str], networks: Collection[str]) -> tuple[set[str], set[str], int]:
    """Names of VMs and of networks that have rows of ours and are not among these; and how many VMs have rows. Pure."""
    inhabited = {
        external_ids(row).get(NETWORK_KEY) for row in rows.get(PORTS, ()) if VM_KEY in external_ids(row)
    }  # its switches stay as long as VMs have ports there
    owners = {vm.name for table in (PORTS, ROUTES, DHCP) for row in rows.get(table, ()) if (vm := _own_vm(row))}
    parts = {
        external_ids(row)[NETWORK_KEY]
        for table in (SWITCHES, ROUTER_PORTS, PORTS)
        for row in rows.get(table, ())
        if external_ids(row).get(OWNER_KEY) == OWN_CONTROLLER
        and external_ids(row).get(NETWORK_KEY)
        and not external_ids(row).get(VM_KEY)
    }
    return owners - set(vms), parts - set(networks) - inhabited, len(owners)


def _own_vm(row: Columns) -> VmKey | None:
    ids = external_ids(row)
    vm = vm_in(ids) if ids.get(OWNER_KEY) == OWN_CONTROLLER else None
    return vm if vm is not None and vm.namespace == OWN_NAMESPACE else None


class RowCleanup:
    """See the module. ``known``: names of VMs with ports, and of networks; ``look``: has the controller look again;
    ``runs``: true of a VM of the store that may run, of whose rows the controller decides alone; ``runs_unknown``: true
    of one that a host runs and the store does not know."""

    def __init__(
        self,
        northbound: NorthboundDb,
        clock: Clock,
        *,
        period_s: float,
        known: Callable[[], tuple[Collection[str], Collection[str]]],
        look: Callable[[str, str], None],
        pause: PauseReader,
        runs: Callable[[str], bool],
        runs_unknown: Callable[[str], Awaitable[bool]],
        orphans: Gauge,
    ) -> None:
        self._nb = northbound
        self._clock = clock
        self._period_s = period_s
        self._known = known
        self._look = look
        self._pause = pause
        self._runs = runs
        self._runs_unknown = runs_unknown
        self._gauge = orphans
        self._seen: set[tuple[str, str]] = set()
        """Kind and name of what was an orphan the last time."""

    async def run(self) -> None:
        """Look at once, and then each period, until cancelled; an OVN that is away is looked at the next time."""
        while True:
            try:
                await self.look()
            except OutliveError as error:
                _log.warning("network.cleanup_put_off", error=str(error))
            await self._clock.sleep(self._period_s)

    async def look(self) -> None:
        """Find orphans, and have those deleted that were there the last time; none while the cluster is paused."""
        if (await self._pause()).paused:
            self._seen = set()
            return
        vms, networks = self._known()
        gone_vms, gone_networks, have_rows = find_orphans(await self._nb.rows(), vms, networks)
        running = {name for name in gone_vms if self._runs(name)}
        for name in sorted(running):
            self._look("vm", name)
        gone_vms -= running
        found = {("vm", name) for name in gone_vms} | {("network", name) for name in gone_networks}
        self._gauge.set(len(found))
        if len(gone_vms) > max(BRAKE_LEAST, BRAKE_SHARE * have_rows):
            _log.error("network.cleanup_refused", gone=len(gone_vms), of=have_rows, named=sorted(gone_vms)[:NAMED])
            self._seen = set()
            return
        found -= {("vm", name) for name in sorted(gone_vms) if await self._runs_unknown(name)}
        for kind, name in sorted(found - self._seen):
            _log.warning("network.orphan_found", kind=kind, name=name, deleted_after_s=self._period_s)
        for kind, name in sorted(found & self._seen):
            _log.warning("network.orphan_deleted", kind=kind, name=name)
            self._look(kind, name)
        self._seen = found
