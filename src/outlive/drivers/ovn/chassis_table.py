"""The table of chassis as the store and OVN have it now, with which hosts are proven to be off and which take part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from outlive.network import ChassisTable, HostChassis, SouthboundDb, chassis_name
from outlive.node.membership import is_dead
from outlive.resources import Hypervisor, MemberRecord, Membership
from outlive.store import Store, list_all

OFF: Final = frozenset({"power", "watchdog", "operator"})
"""Proofs after which a host does not forward packets: one that has cleaned up what it ran still does."""


def chassis_table(store: Store, southbound: SouthboundDb) -> Callable[[], Awaitable[ChassisTable]]:
    """What reads the table anew."""

    async def read() -> ChassisTable:
        registered = await southbound.list_chassis()
        members = {member.name: member.record async for member in list_all(store, Membership, whole=True)}
        found: dict[str, HostChassis] = {}
        async for host in list_all(store, Hypervisor, whole=True):
            if host.status.chassis == "" and not host.spec.chassis:
                continue
            said, record = host.status.chassis or "", members.get(host.name)
            found[host.name] = HostChassis(
                name=host.spec.chassis or said or chassis_name(host.name, registered),
                reported=said,
                is_expected=bool(host.spec.chassis or said) and record is not None and _takes_part(record),
                is_off=record is not None and is_dead(record) and record.proof is not None and record.proof.kind in OFF,
            )
        return ChassisTable(hosts=found)

    return read


def _takes_part(record: MemberRecord) -> bool:
    return record.state != "Released" and record.cut.through <= record.dead_through
