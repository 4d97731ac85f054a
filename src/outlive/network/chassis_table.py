"""Which chassis of OVN each host is: what isolation from ports goes by. Pure.

A chassis is known by its name alone, and whoever isolates a wrong one isolates nobody. So what the record of a host
says has to agree with what the host says itself, and no two hosts may be one chassis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set

import msgspec

from outlive.base.errors import NotFound


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

    def find_names(self, host: str) -> frozenset[str]:
        """All names that the host may have in rows of OVN, and nobody else."""
        found = self.hosts[host]
        return frozenset({host, found.name, found.reported}) - {""} - self.find_others(host)

    def find_others(self, host: str) -> frozenset[str]:
        """The chassis of all hosts but this one."""
        return frozenset(one.name for name, one in self.hosts.items() if name != host and one.name)

    def find_off(self, host: str) -> frozenset[str]:
        """The chassis of other hosts that have no power: they confirm nothing, and nobody is reached through them."""
        others = [one for name, one in self.hosts.items() if name != host]
        on = {one.name for one in others if not one.is_off} | {self.hosts[host].name}
        return frozenset(one.name for one in others if one.name not in on)

    def find_expected(self, host: str) -> Set[str]:
        """The chassis of other hosts that OVN has to know; a database that was restored may not, for a while.

        Those of hosts that are isolated were removed, and those of hosts that left in good order have ended.
        """
        found = {one.name for name, one in self.hosts.items() if name != host and one.is_expected}
        return found - self.find_off(host)

    def find_unclear(self) -> Iterator[tuple[str, NotFound]]:
        """Hosts that run OVN and whose chassis is not known for sure, each with why."""
        counts = Counter(one.name for one in self.hosts.values())
        for host, one in self.hosts.items():
            if counts[one.name] > 1 or one.reported not in ("", one.name):
                try:
                    self.find(host)
                except NotFound as error:
                    yield host, error
