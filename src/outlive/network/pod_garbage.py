"""Rows of VMs of pods that are gone: found at start, and again from time to time.

At start what is in use is known for sure, since every pod was just listed, and what is left over goes at once. Later an
orphan is reported first and deleted one period after, if it is one still. Where suddenly most VMs seem to be gone,
nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import Refused, get_logger
from outlive.network.addresses import SYNC_ADDRESSES, SyncAddressesInput
from outlive.network.cleanup import BRAKE_LEAST, BRAKE_SHARE, is_orphan
from outlive.network.copies import Copy, VmKey, age_key, find_migratable, group_by_vm
from outlive.network.names import (
    DEFAULT_CONTROLLER,
    DEFAULT_NETWORK,
    NAD_KEY,
    OWN_NAMESPACE,
    controller_name,
    port_name,
)
from outlive.network.operations import DHCP, LIMIT, POLICIES, PORTS, ROUTES, Columns, Op, Rows, delete
from outlive.network.owners import delete_rows, external_ids, is_on_cluster_router, vm_in
from outlive.network.pod_addresses import PodAddresses
from outlive.network.pod_cache import PodCache
from outlive.network.pod_facts import PodReports
from outlive.network.pod_rows import PodZone
from outlive.network.pods import attachments_of
from outlive.network.ports import NorthboundDb, OvnFeatures, Scope
from outlive.resources import VirtualNetwork

PORTS_STEP: Final = 100
"""Ports that one operation deletes."""
_log = get_logger("network")


class UseOfNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """What is in use: nothing of it is garbage."""

    vms: dict[str, bool]
    """Every VM of which a copy lives → whether all of these are in this zone."""
    pods: frozenset[str]
    """Living copies, by ``namespace/name``."""
    controllers: tuple[str, ...]
    """Owners of the rows that are looked at."""


class PodGarbage:
    """See the module."""

    def __init__(self, cache: PodCache, northbound: NorthboundDb, addresses: PodAddresses, reports: PodReports) -> None:
        self._cache = cache
        self._nb = northbound
        self._addresses = addresses
        self._reports = reports
        self._reported: frozenset[str] = frozenset()

    async def start(self, zone: PodZone, networks: Sequence[VirtualNetwork]) -> None:
        """Take the addresses in use into the book, and delete what is left of VMs that are gone."""
        copies = self._cache.all_copies()
        given = SyncAddressesInput(
            network=DEFAULT_NETWORK,
            local_hypervisors=zone.local,
            tracked={name: zone.nodes[name].subnets for name in zone.local},
            copies=tuple(copies),
        )
        found = SYNC_ADDRESSES.function(given)
        check_found(found.vms, copies)
        for copy in sorted(copies, key=age_key):  # of two VMs with one address it is the older one's
            if not copy.completed:
                self._addresses.reserve(copy)
        deleted = await self._delete(describe_use(copies, zone, networks), None)
        self._reported = frozenset()
        _log.info("network.started", vms=len(found.vms), reserved=len(found.reserve), deleted=deleted)

    async def sweep(self, zone: PodZone, networks: Sequence[VirtualNetwork]) -> None:
        """Delete orphans that were reported one period ago, and report those that are new."""
        use = describe_use(self._cache.all_copies(), zone, networks)
        deleted = await self._delete(use, self._reported) if self._reported else 0
        orphans = find_orphans(await self._nb.read_rows(), use)
        self._reported = frozenset(orphans)
        self._reports.count_orphans(len(orphans), deleted)
        if orphans or deleted:
            _log.warning("network.orphans", found=len(orphans), deleted=deleted, rows=sorted(orphans)[:20])

    async def _delete(self, use: UseOfNetwork, allowed: frozenset[str] | None) -> int:
        """Delete orphans, of those that are allowed; how many."""
        deleted = [0]

        def plan(rows: Rows, _: OvnFeatures) -> Sequence[Op]:
            orphans = find_orphans(rows, use)
            if is_suspicious(orphans, rows):
                _log.error("network.orphans_kept", rows=len(orphans), named=sorted(orphans)[:20])
                return ()
            chosen = {key: one for key, one in orphans.items() if allowed is None or key in allowed}
            deleted[0] = len(chosen)
            return delete_orphans(list(chosen.values()))[:LIMIT]

        await self._nb.transact(Scope(), plan, comment="rows of VMs that are gone", numbered=False)
        return deleted[0]


def check_found(vms: Mapping[str, bool], copies: Sequence[Copy]) -> None:
    """``Refused`` unless every VM that lives with addresses was found: else its rows would count as garbage."""
    living = {str(one.vm) for one in find_migratable(copies) if not one.completed and DEFAULT_NETWORK in one.networks}
    if living != vms.keys():
        missing = sorted(living ^ vms.keys())
        raise Refused(
            f"{len(vms)} VMs were found at start where {len(living)} live: {', '.join(missing[:6])}",
            remedy="report this: nothing was deleted",
        )


def describe_use(copies: Sequence[Copy], zone: PodZone, networks: Sequence[VirtualNetwork]) -> UseOfNetwork:
    """What the copies use. A VM whose annotation cannot be read is in use all the same."""
    living = [one for one in copies if not one.completed]
    vms = {str(vm): all(map(zone.is_local, group)) for vm, group in group_by_vm(living).items()}
    named = [one.name for one in networks if attachments_of(one)]
    return UseOfNetwork(
        vms=vms,
        pods=frozenset(f"{one.namespace}/{one.name}" for one in living),
        controllers=(DEFAULT_CONTROLLER, *map(controller_name, named)),
    )


def find_orphans(rows: Rows, use: UseOfNetwork) -> dict[str, tuple[str, Columns]]:
    """Rows that were made for VMs that are gone: a text by which each is known again → table and row."""
    found: dict[str, tuple[str, Columns]] = {}
    for table in (ROUTES, POLICIES, DHCP):
        for row in rows.get(table, ()):
            ids = external_ids(row)
            if not is_on_cluster_router(row) or _is_of_own_hosts(row):
                continue
            if any(is_orphan(ids, use.vms, controller) for controller in use.controllers):
                found[f"{table} {msgspec.json.encode(row, order='sorted').decode()}"] = (table, row)
    for row in rows.get(PORTS, ()):
        if not _is_of_own_hosts(row) and _is_orphan_port(row, use):
            found[f"{PORTS} {row['name']}"] = (PORTS, row)
    return found


def _is_of_own_hosts(row: Columns) -> bool:
    vm = vm_in(external_ids(row))
    return vm is not None and vm.namespace == OWN_NAMESPACE


def _is_orphan_port(row: Columns, use: UseOfNetwork) -> bool:
    """True for a port that was made for a copy of a VM, and that copy does not live."""
    ids, name = external_ids(row), row.get("name", "")
    vm: VmKey | None = vm_in(ids)
    if vm is None or ids.get("pod") != "true" or not name:
        return False
    start = port_name(vm.namespace, "", ids.get(NAD_KEY, DEFAULT_NETWORK))
    return not name.startswith(start) or f"{vm.namespace}/{name.removeprefix(start)}" not in use.pods


def is_suspicious(orphans: Mapping[str, tuple[str, Columns]], rows: Rows) -> bool:
    """True if most VMs that have rows seem to be gone: rather the pods are not those of this cloud."""
    gone = {vm_in(external_ids(row)) for _, row in orphans.values()}
    known = {
        vm_in(external_ids(row))
        for table in (ROUTES, POLICIES, DHCP, PORTS)
        for row in rows.get(table, ())
        if not _is_of_own_hosts(row)
    }
    return len(gone) > max(BRAKE_LEAST, BRAKE_SHARE * len(known - {None}))


def delete_orphans(orphans: Sequence[tuple[str, Columns]]) -> list[Op]:
    """The operations that delete these rows."""
    ops: list[Op] = []
    for table in (ROUTES, POLICIES, DHCP):
        ops += delete_rows(table, [row for one, row in orphans if one == table])
    ports = [row["name"] for one, row in orphans if one == PORTS]
    for start in range(0, len(ports), PORTS_STEP):
        ops.append(delete(PORTS, *({"name": name} for name in ports[start : start + PORTS_STEP])))
    return ops
