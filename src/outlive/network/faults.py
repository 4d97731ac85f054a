"""What is wrong with the network, as faults; and which chassis of OVN each host is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from typing import Any, Final

import msgspec

from outlive.base import (
    Clock,
    Conflict,
    Instant,
    LimitExceeded,
    NotFound,
    Refused,
    Unavailable,
    Unknown,
    as_instant,
    join_parts,
)
from outlive.network.informers import NetworkInformers
from outlive.network.inspection import find_row_conflicts
from outlive.network.ports import NorthboundDb, SouthboundDb, last_change
from outlive.network.views import host_chassis
from outlive.resources import CLUSTER, Hypervisor, ObjectRef, VirtualMachinePort, find_condition
from outlive.resources.reasons import FaultCode, NetworkReason, Value
from outlive.runtime import ActiveFault, FaultRecorder, Periodic

# Which chassis of OVN each host is: what isolation from ports goes by. Pure.
#
# A chassis is known by its name alone, and isolating a wrong one isolates no host. So what the record of a host
# says has to agree with what the host says itself, and no two hosts may be one chassis.


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

        Those of hosts that are isolated were removed, and those of hosts that left cleanly have ended.
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


EVERY_S: Final = 5.0
"""How often this is inspected."""
AWAY_S: Final = 30.0
"""How long a database may be away before that is a fault."""
REFUSED_S: Final = 60.0
"""How long a port may be not programmed."""
SILENT_S: Final = 30.0
"""How long a chassis may be behind the same change."""
CONFLICTS_S: Final = 60.0
"""How often all rows are read for contradictions."""
CONFLICTS_REPORTED: Final = 20
THE_CLUSTER: Final = ObjectRef(kind="Cluster", name=CLUSTER)
NOT_ANSWERED: Final = (Unavailable, Unknown, Refused, Conflict, LimitExceeded)


class NetworkFaults:
    """Finds and records them; ``run`` until cancelled."""

    def __init__(
        self,
        informers: NetworkInformers,
        northbound: NorthboundDb,
        southbound: SouthboundDb,
        recorder: FaultRecorder,
        clock: Clock,
        emit: Any,
        offload: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        """``offload``: runs what takes long without the event loop."""
        self._informers = informers
        self._nb = northbound
        self._sb = southbound
        self._recorder = recorder
        self._clock = clock
        self._emit = emit
        self._offload = offload
        self._away_s: dict[str, float] = {}
        """Database → since when it does not answer."""
        self._told_away: set[str] = set()
        self._behind: dict[str, tuple[int, float]] = {}
        """Chassis → the last change that it has, and since when it has no later one though there is."""
        self._conflicts: tuple[ActiveFault, ...] = ()
        self._conflicts_s = float("-inf")

    async def run(self) -> None:
        """Until cancelled; may be called again, when somebody else has led meanwhile."""
        self._recorder.forget()
        self._away_s.clear()
        self._behind.clear()
        await Periodic(self.record, EVERY_S, clock=self._clock).run()

    async def record(self) -> None:
        """Record what is so now; of a database that does not answer, the rest is left as it is recorded."""
        away = tuple(self._find_databases_away())
        found = [*away, *refused_ports(self._informers.ports.items(), self._clock.now())]
        found += unclear_chassis(self._informers.hosts.items())
        undetermined: tuple[str, ...] = ()
        try:
            found += [*await self._find_silent_chassis(), *await self._find_conflicts()]
        except NOT_ANSWERED:
            undetermined = (FaultCode.CHASSIS_SILENT, FaultCode.NETWORK_CONFLICT)
        await self._recorder.record(found, undetermined=undetermined)

    def _find_databases_away(self) -> Iterator[ActiveFault]:
        """The databases that have been away for long, as one fault; and events of those that went and came."""
        now_s = self._clock.monotonic()
        away: dict[str, str] = {}
        for name, why in (("northbound", self._nb.explain_unhealthy()), ("southbound", self._sb.explain_unhealthy())):
            if not why:
                self._away_s.pop(name, None)
                if name in self._told_away:
                    self._told_away.discard(name)
                    self._emit(THE_CLUSTER, "OvnBack", f"OVN's {name} database answers again", action="Connect")
            elif now_s - self._away_s.setdefault(name, now_s) >= AWAY_S:
                away[name] = why
                if name not in self._told_away:
                    self._told_away.add(name)
                    note = f"OVN's {name} database does not answer: {why}"
                    self._emit(THE_CLUSTER, "OvnAway", note, type="Warning", action="Connect")
        if away:
            fields = {"names": join_parts(list(away)), "why": "; ".join(dict.fromkeys(away.values()))}
            yield ActiveFault(FaultCode.NETWORK_AWAY, THE_CLUSTER, fields)

    async def _find_silent_chassis(self) -> list[ActiveFault]:
        """Chassis of living hosts with guests that have been behind the same change for long."""
        change, chassis = await last_change(self._nb), await self._sb.list_chassis()
        active = {port.status.active_on for port in self._informers.ports.items()}
        hosts = {
            host_chassis(host, host.name, chassis): host
            for host in self._informers.hosts.items()
            if host.name in active and not host.status.lost
        }
        now_s = self._clock.monotonic()
        behind: dict[str, tuple[int, float]] = {}
        for one in chassis:
            if one.name in hosts and one.nb_cfg < change:
                known = self._behind.get(one.name)
                behind[one.name] = known if known is not None and known[0] == one.nb_cfg else (one.nb_cfg, now_s)
        self._behind = behind
        return [
            silent_chassis(hosts[name], name, has, change)
            for name, (has, since_s) in behind.items()
            if now_s - since_s >= SILENT_S
        ]

    async def _find_conflicts(self) -> tuple[ActiveFault, ...]:
        now_s = self._clock.monotonic()
        if now_s - self._conflicts_s >= CONFLICTS_S:
            rows = await self._nb.read_rows()
            self._conflicts_s = now_s
            found: dict[str, ActiveFault] = {}
            for one in await self._offload(lambda: list(find_row_conflicts(rows))):
                kind, _, name = one.about.partition("/")
                if kind in ("VirtualMachine", "VirtualNetwork") and len(found) < CONFLICTS_REPORTED:
                    fields = {"why": one.text, "remedy": one.remedy}
                    fault = ActiveFault(FaultCode.NETWORK_CONFLICT, ObjectRef(kind=kind, name=name), fields)
                    found.setdefault(fault.name, fault)
            self._conflicts = tuple(found.values())
        return self._conflicts


def refused_ports(ports: Iterable[VirtualMachinePort], now: Instant) -> Iterator[ActiveFault]:
    """Ports that have not been programmed for long; one whose VM is on no host waits for that."""
    for port in ports:
        found = find_condition(port.status.conditions, "Programmed")
        if found is None or found.status == "True" or found.reason == NetworkReason.NO_HOST:
            continue
        since = found.last_transition_time
        if since is not None and now - as_instant(since) >= REFUSED_S:
            about = ObjectRef(kind="VirtualMachinePort", name=port.name)
            yield ActiveFault(FaultCode.NETWORK_PORT_REFUSED, about, {"why": found.message})


def unclear_chassis(hosts: Iterable[Hypervisor]) -> Iterator[ActiveFault]:
    """Hosts that run OVN and could not be isolated from ports, because nobody knows for sure which chassis they are."""
    table = ChassisTable(
        hosts={
            host.name: HostChassis(
                name=host.spec.chassis or host.status.chassis or "", reported=host.status.chassis or ""
            )
            for host in hosts
            if host.spec.chassis or host.status.chassis
        }
    )
    for name, why in table.find_unclear():
        fields: dict[str, Value] = {"why": why.message, "remedy": why.remedy or ""}
        yield ActiveFault(FaultCode.CHASSIS_UNCLEAR, ObjectRef(kind="Hypervisor", name=name), fields)


def silent_chassis(host: Hypervisor, chassis: str, has: int, change: int) -> ActiveFault:
    """That the chassis of a host does not follow."""
    fields: dict[str, Value] = {"chassis": chassis, "change": has, "now": change}
    return ActiveFault(FaultCode.CHASSIS_SILENT, ObjectRef(kind="Hypervisor", name=host.name), fields)
