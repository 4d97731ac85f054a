"""Rows of VMs and networks that are gone: found now and then, reported, and deleted one period later.

What is deleted was seen to be an orphan twice, a period apart, and its VM or network is looked at again by the
controller, which deletes what it does not plan. Where suddenly most VMs seem to be gone, the store is more likely to be
wrong than OVN: then nothing is deleted, and somebody is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from outlive.base import Clock, get_logger
from outlive.network.copies import VmKey
from outlive.network.informers import NetworkInformers
from outlive.network.names import (
    DEFAULT_CONTROLLER,
    LOCAL,
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    VM_KEY,
    ZONE_KEY,
)
from outlive.network.operations import (
    DHCP,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTES,
    SWITCHES,
    Columns,
    Rows,
    RowsChange,
    RowsDraft,
)
from outlive.network.owners import delete_rows, external_ids, is_on_cluster_router, vm_in
from outlive.network.ports import NorthboundDb
from outlive.resources import CLUSTER, Cluster, Fault, Membership, ObjectRef, VirtualMachinePort, is_lost
from outlive.resources.reasons import FaultCode
from outlive.runtime import Decision, Gauge, Periodic, fault_name, log_errors
from outlive.store import Store, list_all, read

# Rows of VMs that are gone: which they are, and the operations that delete them.
#
# At start, and again from time to time, every row that names a VM is compared with the VMs that exist. A row that
# names another controller, or has no zone key, belongs to somebody else
# (docs/design/network-decisions.md#routes-and-garbage).


def is_orphan(ids: Mapping[str, str], vms: Mapping[str, bool], controller: str) -> bool:
    """True if a row with these external ids was made for a VM that is gone, or is left from another zone of it.

    ``vms``: ``namespace/name`` to whether the VM is local. A row that names no owner is the default controller's.
    """
    if ZONE_KEY not in ids or (ids.get(OWNER_KEY) or DEFAULT_CONTROLLER) != controller:
        return False
    vm = vm_in(ids)
    if vm is None:
        return False
    is_local = vms.get(str(vm))
    return is_local is None or (is_local and ids[ZONE_KEY] != LOCAL)


class OrphanInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.orphan`` gets."""

    external_ids: dict[str, str] = msgspec.field(name="external_ids", default_factory=dict)
    """Of one row."""
    vms: dict[str, bool] = {}
    """``namespace/name`` of every VM to whether it is local."""
    controller: str
    """That asks, and deletes only rows of its own."""


class OrphanResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether a row goes."""

    delete: bool


class SweepInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.sweep`` gets."""

    controller: str
    vms: dict[str, bool] = {}
    rows: Rows = {}


def sweep(given: SweepInput) -> RowsChange:
    """Delete all routes, policies and DHCP rows that are orphans."""
    draft = RowsDraft(given.rows)
    for table in (ROUTES, POLICIES, DHCP):
        orphans = [
            row
            for row in draft.table_rows(table)
            if is_on_cluster_router(row) and is_orphan(external_ids(row), given.vms, given.controller)
        ]
        draft.add(*delete_rows(table, orphans))
    return draft.change()


ORPHAN: Final[Decision[OrphanInput, OrphanResult]] = Decision(
    "network.orphan",
    lambda given: OrphanResult(delete=is_orphan(given.external_ids, given.vms, given.controller)),
    OrphanInput,
    OrphanResult,
    "Whether a row was made for a VM that is gone",
    nulls_are_absent=True,
)
SWEEP: Final = Decision(
    "network.sweep",
    sweep,
    SweepInput,
    RowsChange,
    "The rows of VMs that are gone",
    nulls_are_absent=True,
)


# The pause of a cluster whose store went back, as the network sees it (docs/concepts/safety.md#restored).
#
# What such a store says of VMs may be old: those that it lacks run, and others run elsewhere. As long as the cluster
# is paused, rows of OVN that exist stay as they are. The pause is read fresh, after what is planned by was read. Once
# it is over a host may still run a VM that the store lacks, which Outlive does not stop: its rows stay as well.


class ClusterPause(NamedTuple):
    """Whether the cluster is paused now, and what the store calls itself."""

    paused: bool
    incarnation: str


PauseReader = Callable[[], Awaitable[ClusterPause]]
"""Reads the store; raises its errors."""


async def read_pause(store: Store) -> ClusterPause:
    """Read whether the cluster is paused. Errors of the store."""
    cluster = await read(store, Cluster, CLUSTER)
    if cluster is not None and cluster.status.store_incarnation:
        return ClusterPause(cluster.paused, cluster.status.store_incarnation)
    members = [one.record async for one in list_all(store, Membership, whole=True)]
    return ClusterPause(is_lost(cluster, members), "")


async def runs_unknown(store: Store, vm: str) -> bool:
    """True if a host reports that it runs a VM of this name which the store does not know. Errors of the store."""
    about = ObjectRef(kind="VirtualMachine", name=vm)
    fault = await read(store, Fault, fault_name(FaultCode.UNKNOWN_VM, about))
    return fault is not None and not fault.ended


# Ports that somebody was seen deleting.
#
# A store that was restored may lack ports of VMs that run, and a listing that lacks a port does not say that somebody
# deleted it. So a VM that runs loses the rows of an interface only for a deletion that was seen in the store as it is
# now, while the cluster was not paused. What was deleted while nobody looked stays until the VM is down.

DELETIONS_KEPT: Final = 10_000
"""Ports of which is remembered that they were deleted."""


class PortDeletions:
    """See the module. Begins when it is made, and goes on while other controllers lead."""

    def __init__(self, informers: NetworkInformers) -> None:
        self._informers = informers
        self._incarnations: dict[str, str] = {}
        """Port → the store's incarnation in which it was deleted."""
        informers.ports.subscribe(self._note, replay=False)

    def has_seen(self, port: str, pause: ClusterPause) -> bool:
        """Whether the port was seen being deleted from the store as it is now; ``pause``: as it was just read."""
        return not pause.paused and self._incarnations.get(port) == pause.incarnation

    def _note(self, old: VirtualMachinePort | None, new: VirtualMachinePort | None) -> None:
        name = (new or old).name  # type: ignore[union-attr]
        self._incarnations.pop(name, None)
        cluster = self._informers.clusters.get(CLUSTER)
        is_paused = cluster is not None and cluster.paused
        if new is None and not is_paused and not self._informers.ports.in_doubt:
            self._incarnations[name] = cluster.status.store_incarnation if cluster is not None else ""
            while len(self._incarnations) > DELETIONS_KEPT:
                self._incarnations.pop(next(iter(self._incarnations)))


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
        failed = log_errors(_log, "network.cleanup_put_off")
        await Periodic(self.run_once, self._period_s, clock=self._clock, failed=failed).run()

    async def run_once(self) -> None:
        """Find orphans, and have those deleted that were there the last time; none while the cluster is paused."""
        if (await self._pause()).paused:
            self._seen = set()
            return
        vms, networks = self._known()
        gone_vms, gone_networks, have_rows = find_orphans(await self._nb.read_rows(), vms, networks)
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
