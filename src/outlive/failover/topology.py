"""What fails together and what has to stay apart: units of failure, failure domains, server groups.

The rules count *units* (docs/reference/failover-rules.md#units-of-failure). A unit is a host unless the settings name a
failure domain: then all hosts of one rack, say, are one unit, and whoever satisfies the rules survives the failure of
any k racks. Apart from that, slots may be asked to avoid the domain of their VM and of each other, and the policies of
server groups bind slots as they bind VMs (docs/reference/failover-rules.md#separation). Plain data and pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from outlive.failover.model import HostView

HOST_UNIT = "host"
"""The unit of failure unless a domain is named."""


class Topology(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a decision has to know of failure domains and groups."""

    units: dict[str, str] = {}
    """Host → its unit of failure; a host that is missing here is a unit of its own, so empty means: hosts."""
    apart: dict[str, dict[str, str]] = {}
    """Domain name → host → its value, for domains in which no two of a VM's own host and its slots may be. A host
    without a value is in nobody's domain."""
    server_groups: bool = True
    """Whether the policies of server groups bind slots."""

    def unit(self, host: str) -> str:
        """The unit of failure of a host."""
        return self.units.get(host, host)


HOSTS_ALONE = Topology()
"""Every host is a unit, no domain is kept apart."""


class TopologyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings ask for: ``failureUnit``, ``keepApart`` and ``serverGroups``."""

    unit: str = HOST_UNIT
    apart: tuple[str, ...] = ()
    server_groups: bool = True

    @property
    def domains(self) -> bool:
        """Whether the failure domains of hosts matter."""
        return self.unit != HOST_UNIT or bool(self.apart)

    def of(self, hosts: Iterable[HostView]) -> Topology:
        """The topology of these hosts: all hosts with the same value of the domain ``unit`` are one unit."""
        return self.of_domains({host.name: host.domains for host in hosts} if self.domains else {})

    def of_domains(self, hosts: Mapping[str, Mapping[str, str]]) -> Topology:
        """The same of hosts with these failure domains (host → domain → value)."""
        units = {host: name for host, domains in hosts.items() if (name := unit_of(domains, self.unit)) is not None}
        apart = {
            one: {host: domains[one] for host, domains in hosts.items() if one in domains}
            for one in sorted(set(self.apart))
        }
        return Topology(units=units, apart=apart, server_groups=self.server_groups)


def unit_of(domains: Mapping[str, str], domain: str) -> str | None:
    """The unit of a host with these failure domains, or ``None`` where it is a unit of its own.

    The unit's name, ``rack=r3``, cannot be a host's.
    """
    return f"{domain}={domains[domain]}" if domain != HOST_UNIT and domain in domains else None
