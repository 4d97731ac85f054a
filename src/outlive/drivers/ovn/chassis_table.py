"""Which chassis of OVN each host is, and which hosts are proven to be off: what isolation from ports goes by.

A chassis is known by its name alone, and whoever isolates a wrong one isolates nobody. So what the record of a host
says has to agree with what the host says itself, and no two hosts may be one chassis.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Final

import msgspec

from outlive.base.errors import NotFound
from outlive.network.ports import SouthboundDb, chassis_name
from outlive.node.membership.states import is_dead
from outlive.resources import Hypervisor, MemberRecord, Membership
from outlive.store import Store, list_all

OFF: Final = frozenset({"power", "watchdog", "operator"})
"""Proofs after which a host does not forward packets: one that has cleaned up what it ran still does."""


class HostChassis(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the chassis of one host."""

    name: str
    """As its record names it, else as the host says itself, else as OVN knows a host of that name."""
    reported: str = ""
    """As the host says itself; empty: it does not say."""
    is_expected: bool = False
    """Whether OVN has to know it: the host runs OVN, takes part, and is not itself being isolated."""
    is_off: bool = False
    """Whether the host is proven to be off, and has not come back."""


class ChassisTable(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts that may run OVN, by name."""

    hosts: Mapping[str, HostChassis]

    def find(self, host: str) -> str:
        """The chassis of a host; ``NotFound`` where that is not known for sure."""
        found = self.hosts.get(host)
        if found is None or not found.name:
            raise NotFound(f"{host} is no chassis of OVN", remedy=f"see status.chassis of Hypervisor {host}")
        if found.reported not in ("", found.name):
            raise NotFound(
                f"{host} says that it is chassis {found.reported}, and its record that it is {found.name}",
                remedy=f"correct spec.chassis of Hypervisor {host}, or leave it out",
            )
        if other := next((name for name, one in self.hosts.items() if name != host and one.name == found.name), ""):
            raise NotFound(
                f"{found.name} is the chassis of {host} and of {other}",
                remedy="give each host a system-id of its own in Open vSwitch, and correct spec.chassis",
            )
        return found.name

    def names(self, host: str) -> frozenset[str]:
        """All names that the host may have in rows of OVN, and nobody else."""
        found = self.hosts[host]
        return frozenset({host, found.name, found.reported}) - {""} - self.others(host)

    def others(self, host: str) -> frozenset[str]:
        """The chassis of all hosts but this one."""
        return frozenset(one.name for name, one in self.hosts.items() if name != host and one.name)

    def off(self, host: str) -> frozenset[str]:
        """The chassis of other hosts that have no power: they confirm nothing, and nobody is reached through them."""
        others = [one for name, one in self.hosts.items() if name != host]
        on = {one.name for one in others if not one.is_off} | {self.hosts[host].name}
        return frozenset(one.name for one in others if one.name not in on)

    def expected(self, host: str) -> Set[str]:
        """The chassis of other hosts that OVN has to know; a database that was restored may not, for a while.

        Those of hosts that are isolated were removed, and those of hosts that left in good order have ended.
        """
        found = {one.name for name, one in self.hosts.items() if name != host and one.is_expected}
        return found - self.off(host)


def chassis_table(store: Store, southbound: SouthboundDb) -> Callable[[], Awaitable[ChassisTable]]:
    """What reads the table anew."""

    async def read() -> ChassisTable:
        registered = await southbound.chassis()
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
                is_off=record is not None and _is_off(record),
            )
        return ChassisTable(hosts=found)

    return read


def _is_off(record: MemberRecord) -> bool:
    return is_dead(record) and record.proof is not None and record.proof.kind in OFF


def _takes_part(record: MemberRecord) -> bool:
    return record.state != "Released" and record.cut.through <= record.dead_through
