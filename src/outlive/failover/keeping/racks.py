"""Which failure domains hosts are in, kept current host by host, as far as the settings ask for them.

Labels of hosts change rarely, but hosts change all the time, so that only a change of a domain that matters is handed
on (docs/reference/failover.md#units-of-failure).
"""

from __future__ import annotations

from collections.abc import Iterable

from outlive.failover.conflicts import ConflictIndex
from outlive.failover.topology import Topology, TopologyChoice, unit_of
from outlive.failover.vms import failure_domains
from outlive.resources import Hypervisor


class Racks:
    """Host → its values of the domains that matter."""

    def __init__(self, choice: TopologyChoice) -> None:
        self._choice = choice
        self._matter = frozenset({choice.unit, *choice.apart}) if choice.domains else frozenset[str]()
        self._domains: dict[str, dict[str, str]] = {}

    def see(self, name: str, host: Hypervisor | None) -> bool:
        """The host looks like this now, or is gone; whether it is in other domains than before."""
        if not self._matter:
            return False
        now: dict[str, str] = {}
        if host is not None:
            now = {key: value for key, value in failure_domains(host).items() if key in self._matter}
        if now == self._domains.get(name, {}):
            return False
        if now:
            self._domains[name] = now
        else:
            del self._domains[name]
        return True

    def tell(self, name: str, counters: ConflictIndex) -> None:
        """Let the counters know where the host is."""
        domains = self._domains.get(name, {})
        counters.relabel(name, unit_of(domains, self._choice.unit), domains)

    def topology(self, hosts: Iterable[str] | None = None) -> Topology:
        """The topology of these hosts, or of all."""
        choice, named = self._choice, self._domains.keys() if hosts is None else {*hosts} & self._domains.keys()
        if not self._matter:
            return Topology(server_groups=choice.server_groups)
        domains = {name: self._domains[name] for name in sorted(named)}
        units = {name: unit for name, values in domains.items() if (unit := unit_of(values, choice.unit)) is not None}
        return Topology(
            units=units,
            apart={
                one: {name: values[one] for name, values in domains.items() if one in values} for one in choice.apart
            },
            server_groups=choice.server_groups,
        )
