"""Leases of the managed networks: what DHCP servers have told is written to the store as ``DhcpLease`` objects.

What was told stays in the spool of the host until the store has it, so that an outage of the store loses nothing, and
servers that are started meanwhile know it all the same.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.node.ports.services import DhcpPort
from outlive.node.services.dhcp import Lease, LeaseChange, drop_expired, lease_name, merge_changes, view_lease
from outlive.resources import DhcpLease, ObjectMeta
from outlive.runtime.informer import Informer
from outlive.store import Store, compare_and_swap

WRITES_MOST: Final = 500
"""Leases that are written in one go; the others follow at the next look."""
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")

_log = get_logger("services")


class LeaseStore:
    """See the module. ``stored``: the leases as the store has them."""

    def __init__(self, store: Store, dhcp: DhcpPort, stored: Informer[DhcpLease], clock: Clock) -> None:
        self._store = store
        self._dhcp = dhcp
        self._stored = stored
        self._clock = clock
        self._changes: dict[int, list[LeaseChange]] = {}
        """By VNI, what the store may not have yet."""

    async def read_spool(self) -> None:
        """Take in what servers have told."""
        self._changes = {}
        for change in await self._dhcp.take_changes():
            if _MAC.fullmatch(change.lease.mac):
                self._changes.setdefault(change.vni, []).append(change)

    def of_network(self, name: str, vni: int) -> dict[str, Lease]:
        """The leases of a network by MAC, with what the store has not got yet."""
        stored = {one.mac: one for one in map(view_lease, self._stored.by_index("network", name))}
        merged = merge_changes(stored, self._changes.get(vni, ()))
        return drop_expired(merged, self._clock.now())

    async def write(self, networks: Mapping[int, str]) -> None:
        """Bring the store up to date with what was told; ``networks``: VNI → name. Errors of the store."""
        if not self._changes:
            return
        written = 0
        for vni, changes in self._changes.items():
            if vni in networks:
                written += await self._write_network(networks[vni], changes, WRITES_MOST - written)
            if written >= WRITES_MOST:
                return
        await self._dhcp.forget_changes()
        self._changes = {}

    async def _write_network(self, name: str, changes: Sequence[LeaseChange], most: int) -> int:
        stored = {one.mac: one for one in map(view_lease, self._stored.by_index("network", name))}
        wanted = merge_changes(stored, changes)
        written = 0
        for mac in sorted({change.lease.mac for change in changes} | (stored.keys() - wanted.keys())):
            if written >= most:
                break
            if wanted.get(mac) == stored.get(mac):
                continue
            await self._write_lease(name, mac, wanted.get(mac))
            written += 1
        return written

    async def _write_lease(self, network: str, mac: str, lease: Lease | None) -> None:
        name = lease_name(network, mac)
        if lease is None:
            found = self._stored.get(name)
            if found is not None:
                with contextlib.suppress(NotFound):  # somebody else has deleted it
                    await self._store.delete(found.ref)
            return

        def change(found: DhcpLease | None) -> DhcpLease:
            return DhcpLease(
                metadata=found.metadata if found is not None else ObjectMeta(name=name),
                network=network,
                mac=mac,
                address=lease.address,
                hostname=lease.hostname,
                client_id=lease.client_id,
                iaid=lease.iaid,
                expires_at=as_datetime(lease.expires) if lease.expires else None,
            )

        await compare_and_swap(self._store, DhcpLease, name, change, clock=self._clock)

    async def drop_ended(self, networks: Mapping[int, str]) -> None:
        """Delete leases that have ended, and those of networks that are not there; errors of the store are logged."""
        names, now_s, dropped = set(networks.values()), self._clock.now(), 0
        for one in self._stored.items():
            ended = one.expires_at is not None and one.expires_at.timestamp() <= now_s
            if (one.network in names and not ended) or dropped >= WRITES_MOST:
                continue
            dropped += 1
            try:
                await self._store.delete(one.ref)
            except OutliveError as error:
                _log.info("services.lease_not_dropped", lease=one.name, why=str(error))
                return
