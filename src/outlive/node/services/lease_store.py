"""Leases of the managed networks: what DHCP servers change is written to the store as ``DhcpLease`` objects.

A change stays in the spool of the host until the store has it, so that an outage of the store loses nothing, and
servers that are started meanwhile know it all the same.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import Clock, NotFound, OutliveError, as_datetime, get_logger
from outlive.node.ports.services import DhcpPort
from outlive.node.services.dhcp import (
    LeaseChange,
    ServedLease,
    add_mac,
    is_address,
    lease_name,
    merge_changes,
    view_lease,
)
from outlive.resources import DhcpLease, ObjectMeta
from outlive.runtime import Informer
from outlive.store import Store, compare_and_swap, read

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
        self._changes: dict[int, dict[str, list[LeaseChange]]] = {}
        """By VNI and address, what the store may not have yet."""

    async def read_spool(self) -> bool:
        """Take in what servers have changed; whether that is anything."""
        changes: dict[int, dict[str, list[LeaseChange]]] = {}
        for change in await self._dhcp.take_changes():
            lease = add_mac(change.lease)
            if not is_address(lease.address) or _MAC.fullmatch(lease.mac) is None:
                _log.warning("services.lease_not_understood", vni=change.vni, mac=lease.mac, address=lease.address)
                continue
            own = changes.setdefault(change.vni, {}).setdefault(lease.address, [])
            own.append(msgspec.structs.replace(change, lease=lease))
        self._changes = changes
        return bool(changes)

    def list_leases(self, name: str, vni: int) -> dict[str, ServedLease]:
        """The leases of a network by address, with what the store has not got yet."""
        stored = {one.address: one for one in map(view_lease, self._stored.list_by_index("network", name))}
        changes = itertools.chain.from_iterable(self._changes.get(vni, {}).values())
        merged, now_s = merge_changes(stored, changes), self._clock.now()
        return {address: one for address, one in merged.items() if one.expires == 0 or one.expires > now_s}

    async def write(self, networks: Mapping[int, str]) -> None:
        """Bring the store up to date with what was changed; ``networks``: VNI → name. Errors of the store."""
        if not self._changes:
            return
        written = 0
        for vni, addresses in self._changes.items():
            if vni not in networks:
                continue  # its network is deleted, and its leases with it
            for address, changes in addresses.items():
                if written >= WRITES_MOST:
                    return
                written += await self._write_lease(networks[vni], address, changes)
        await self._dhcp.forget_changes()
        self._changes = {}

    async def _write_lease(self, network: str, address: str, changes: Sequence[LeaseChange]) -> bool:
        """Make the changes of one address; whether anything was written.

        Renewals are compared with what is known of the store, as each server repeats all its leases when it starts.
        """
        name = lease_name(network, address)
        known = self._stored.get(name)
        if known is not None and changes[-1].action != "del" and _merge(known, address, changes) == view_lease(known):
            return False
        found = await read(self._store, DhcpLease, name)
        if found is not None and _merge(found, address, changes) is None:
            with contextlib.suppress(NotFound):  # somebody else has deleted it
                await self._store.delete(found.ref, uid=found.metadata.uid, version=found.metadata.resource_version)
            return True

        def change(found: DhcpLease | None) -> DhcpLease | None:
            lease = _merge(found, address, changes)
            if lease is None:
                return None
            return DhcpLease(
                metadata=found.metadata if found is not None else ObjectMeta(name=name),
                network=network,
                mac=lease.mac,
                address=address,
                hostname=lease.hostname,
                client_id=lease.client_id,
                iaid=lease.iaid,
                expires_at=as_datetime(lease.expires) if lease.expires else None,
            )

        return await compare_and_swap(self._store, DhcpLease, name, change, clock=self._clock) != found

    async def drop_ended(self, networks: Collection[str]) -> None:
        """Delete leases that have ended, and those of networks that are not there; errors of the store are logged.

        ``networks``: all that there are, also those that are not served.
        """
        now_s, dropped = self._clock.now(), 0
        for one in self._stored.items():
            ended = one.expires_at is not None and one.expires_at.timestamp() <= now_s
            if (one.network in networks and not ended) or dropped >= WRITES_MOST:
                continue
            dropped += 1
            try:
                await self._store.delete(one.ref, uid=one.metadata.uid, version=one.metadata.resource_version)
            except OutliveError as error:
                _log.info("services.lease_not_dropped", lease=one.name, why=str(error))
                return


def _merge(found: DhcpLease | None, address: str, changes: Sequence[LeaseChange]) -> ServedLease | None:
    before = {address: view_lease(found)} if found is not None else {}
    return merge_changes(before, changes).get(address)
