"""The duty ``networks`` of the primary coordinator: DHCP, names and metadata of all managed networks.

Caches of networks and leases follow the store on every coordinator, so that a new primary starts all
servers at once. Each look brings what runs in line with what is wanted; a server that fails is a fault that names its
network, and holds up no other (docs/how-to/network-services.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import Clock, OutliveError, Random, deadline, get_logger, set_within
from outlive.node.ports.services import ServicePorts
from outlive.node.role_addresses import RoleAddresses
from outlive.node.services.callers import MetadataAnswer, MetadataCallers
from outlive.node.services.dhcp import ServedLease, count_free
from outlive.node.services.firewall import FirewallKeeper
from outlive.node.services.lease_store import LeaseStore
from outlive.node.services.served_networks import ServedNetwork, view_networks
from outlive.node.services.zones import plan_zone
from outlive.resources import DhcpLease, ObjectRef, VirtualNetwork
from outlive.resources.reasons import FaultCode
from outlive.runtime import FaultSet, Informer, OrderedTaskGroup, Periodic, keep_running
from outlive.store import Store

LOOK_S: Final = 1.0
"""How often what runs is compared with what is wanted, at least."""
GATEWAY_LOOK_S: Final = 0.1
"""The same while a network has not got its gateways yet."""
ZONES_FIRST_S: Final = 5.0
"""From the start of the name server to the first transfers."""
ZONES_S: Final = 10.0
"""How often every zone is transferred."""
ZONES_CHANGED_S: Final = 1.0
"""From a change of a network, which may start its server again, to the next transfers."""
TRANSFERS_AT_ONCE: Final = 16
DROP_S: Final = 300.0
"""How often leases that have ended are deleted."""
LAST_LEASES_S: Final = 2.0
"""How long the stop waits for the store; what it does not take stays in the spool."""
USAGE_S: Final = 60.0
"""How often leases are counted that nothing has changed but time."""
FIREWALL_S: Final = 5.0
"""How often it is seen whether somebody has removed the table of the firewall."""
NAMES_SHOWN: Final = 5
SYNC_S: Final = 5.0

_log = get_logger("services")


@dataclass(frozen=True, slots=True)
class NameSettings:
    """Of the name server."""

    addresses: Callable[[], Sequence[str]]
    """Where it listens: the floating addresses of the cluster and upstream networks. None: no name server."""
    default_server: str
    """Name server of zones whose network names none."""


@dataclass(frozen=True, slots=True)
class NetworkUsage:
    """How far the addresses of a network are given away."""

    network: str
    leases: int
    free: int | None
    """Of the IPv4 range; ``None``: it has none."""


class NetworkServices:
    """See the module. ``networks``: a cache that somebody else keeps; ``has_gateways``: whether this host has the
    gateways of a network, without which its server cannot start; ``system_networks``: name → cidr of those between
    hosts, which no managed network overlaps."""

    name = "networks"

    def __init__(
        self,
        store: Store,
        ports: ServicePorts,
        networks: Informer[VirtualNetwork],
        *,
        host: str,
        names: NameSettings,
        has_gateways: Callable[[ServedNetwork], bool],
        faults: FaultSet,
        clock: Clock,
        random: Random,
        system_networks: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.networks = networks
        self.firewall = FirewallKeeper(ports.firewall)
        self._stored = Informer(
            store,
            DhcpLease,
            clock=clock,
            random=random.fork("leases"),
            indexes={"network": lambda lease: (lease.network,)},
        )
        self._leases = LeaseStore(store, ports.dhcp, self._stored, clock)
        self._store = store
        self._ports = ports
        self._names = names
        self._has_gateways = has_gateways
        self._faults = faults
        self._clock = clock
        self._subject = ObjectRef(kind="Hypervisor", name=host)
        self._serving = Periodic(self._serve_all, LOOK_S, clock=clock, wakes=True)
        self._counted_s = 0.0
        """When leases were counted anew (monotonic)."""
        self._filtering = Periodic(self._apply_firewall, LOOK_S, clock=clock, wakes=True)
        self._firewall_checked_s = 0.0
        """When the rules in the kernel were checked last (monotonic)."""
        self._zones_changed = asyncio.Event()
        self._term = 0
        self._tried = asyncio.Event()
        """Set once the first look has served what it could."""
        self._task: asyncio.Task[None] | None = None
        self._served: dict[str, ServedNetwork] = {}
        self._callers = MetadataCallers(store, clock)
        self._usages: dict[str, NetworkUsage] = {}
        """Of networks whose leases are as they were when it was counted."""
        self._names_run = False
        self._names_why = ""
        """Why the name server could not be started; empty: it was, or need not be."""
        self._system_networks = system_networks
        self._view: tuple[Mapping[str, str], dict[str, ServedNetwork], dict[str, str]] | None = None
        networks.subscribe(self._notice)
        self._stored.subscribe(self._notice_lease)

    def _notice(self, _before: VirtualNetwork | None, _after: VirtualNetwork | None) -> None:
        self._view = None
        self._usages.clear()
        self._serving.wake()
        self._filtering.wake()
        self._zones_changed.set()

    def _notice_lease(self, before: DhcpLease | None, after: DhcpLease | None) -> None:
        for one in (before, after):
            if one is not None:
                self._usages.pop(one.network, None)

    async def run(self) -> None:
        """Follow the store and keep the firewall, on every coordinator, until cancelled."""

        async with OrderedTaskGroup() as group:
            group.create_task(self._stored.run(), name="leases")
            group.create_task(self._keep_firewall(), name="firewall")

    def list_networks(self) -> tuple[dict[str, ServedNetwork], dict[str, str]]:
        """The managed networks, and why some of them are not served."""
        systems = self._system_networks()
        if self._view is None or self._view[0] != systems:
            self._view = systems, *view_networks(self.networks.items(), systems)
        return self._view[1:]

    # The duty

    async def start(self, term: int) -> None:
        """Serve every network; returns once that was tried, or the store has not answered in time: it goes on then."""
        self._term = term
        self._tried.clear()
        self._task = asyncio.create_task(self._work(), name="network services")
        if not await set_within(self._tried, SYNC_S):
            _log.warning("services.wait_for_store", host=self._subject.name)

    async def stop(self) -> None:
        """Stop all servers, all at once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self._ports.dhcp.close()
        self._names_run, self._names_why = False, ""
        try:
            async with OrderedTaskGroup() as group:
                group.create_task(self._ports.names.stop())
                group.create_task(self._ports.dhcp.end(tuple(self._served)))
                group.create_task(self._ports.metadata.stop())
            await self._try("leases", self._write_last_leases)
        finally:
            self._served = {}
            for code in (FaultCode.DHCP_FAILED, FaultCode.DHCP_RANGE_FULL, FaultCode.NAME_SERVER_FAILED):
                self._faults.clear(code, self._subject)
            self._faults.clear(FaultCode.METADATA_FAILED, self._subject)

    async def _work(self) -> None:
        """Serve until cancelled. A part that fails is a fault, and runs again."""
        await self.networks.wait_synced()
        await self._stored.wait_synced()
        parts = {"dhcp": self._keep_serving, "leases": self._keep_leases, "names": self._keep_zones}
        async with OrderedTaskGroup() as group:
            for name, part in parts.items():
                group.create_task(
                    keep_running(
                        f"network services: {name}",
                        part,
                        subject=self._subject,
                        crashes=self._faults.crashes,
                        clock=self._clock,
                        pause_s=LOOK_S,
                        longest_s=ZONES_S,
                    ),
                    name=name,
                )

    async def _keep_serving(self) -> None:
        self._counted_s = self._clock.monotonic()
        await self._try("leases", self._read_spool)
        await self._serving.run()

    async def _serve_all(self) -> float:
        await self._try("serve", self._serve)
        self._tried.set()
        if self._clock.monotonic() - self._counted_s >= USAGE_S:
            self._counted_s = self._clock.monotonic()
            self._usages.clear()  # leases end
        self._report()
        waits = any(one.serves_dhcp and name not in self._served for name, one in self.list_networks()[0].items())
        return GATEWAY_LOOK_S if waits else LOOK_S

    async def _serve(self) -> None:
        networks, _ = self.list_networks()
        gone = [name for name, one in self._served.items() if name not in networks or not networks[name].serves_dhcp]
        if gone:
            await self._ports.dhcp.end(gone)
        served = {name: one for name, one in networks.items() if one.serves_dhcp}
        self._served = {name: one for name, one in served.items() if self._has_gateways(one) or name in self._served}
        for name, network in self._served.items():
            await self._ports.dhcp.serve(network, partial(self._list_leases, name, network.vni))
        await self._ports.metadata.listen(
            [one.bridge for one in networks.values() if self._has_gateways(one)], self._answer
        )

    def _list_leases(self, name: str, vni: int) -> list[ServedLease]:
        return list(self._leases.list_leases(name, vni).values())

    async def _keep_leases(self) -> None:
        dropped_at = self._clock.monotonic()
        while True:
            await self._ports.dhcp.wait_changed(LOOK_S)
            await self._try("leases", self._write_leases)
            if self._clock.monotonic() - dropped_at >= DROP_S:
                dropped_at = self._clock.monotonic()
                await self._leases.drop_ended({one.name for one in self.networks.items()})

    async def _write_last_leases(self) -> None:
        """Write those of the last moment before the role goes: afterwards only the next primary may."""
        with deadline(LAST_LEASES_S):
            await self._write_leases()

    async def _write_leases(self) -> None:
        """Bring the store up to date with what servers have changed.

        A network that makes no sense for the moment keeps its leases, so all networks count; of two with one VNI the
        one that is served.
        """
        await self._read_spool()
        there = {one.spec.vni: one.name for one in self.networks.items() if one.spec.type == "managed"}
        there |= {one.vni: name for name, one in self.list_networks()[0].items()}
        await self._leases.write(there)

    async def _read_spool(self) -> None:
        if await self._leases.read_spool():
            self._usages.clear()

    # Names

    async def _keep_zones(self) -> None:
        addresses: tuple[str, ...] = ()
        transfer_at = 0.0
        while True:
            changed = self._zones_changed.is_set()
            self._zones_changed.clear()
            wanted = tuple(sorted(self._names.addresses()))
            if wanted and (wanted != addresses or not self._names_run):
                try:
                    await self._ports.names.start(wanted)
                except (OutliveError, OSError) as error:
                    _log.warning("services.failed", what="names", why=str(error))
                    self._names_why = str(error)
                else:
                    self._names_why = ""
                self._names_run, addresses = not self._names_why, wanted
                transfer_at = self._clock.monotonic() + ZONES_FIRST_S
                await self._try("zones", self._register_zones)
            elif changed and self._names_run:
                await self._try("zones", self._register_zones)
                transfer_at = min(transfer_at, self._clock.monotonic() + ZONES_CHANGED_S)
            if self._names_run and self._clock.monotonic() >= transfer_at:
                transfer_at = self._clock.monotonic() + ZONES_S
                await self._try("zones", self._transfer_zones)
            await set_within(self._zones_changed, LOOK_S)

    async def _register_zones(self) -> None:
        """Have every zone at once, with the names that are known from before."""
        networks, _ = self.list_networks()
        await self._ports.names.keep_zones([one.domain for one in networks.values()])
        for network in networks.values():
            await self._change_zone(network, transfer=False)

    async def _transfer_zones(self) -> None:
        networks, _ = self.list_networks()
        await self._ports.names.keep_zones([one.domain for one in networks.values()])
        turns = asyncio.Semaphore(TRANSFERS_AT_ONCE)

        async def transfer(network: ServedNetwork) -> None:
            async with turns:
                await self._try("zones", partial(self._change_zone, network, transfer=network.serves_dhcp))

        async with OrderedTaskGroup() as group:
            for network in networks.values():
                group.create_task(transfer(network))

    async def _change_zone(self, network: ServedNetwork, *, transfer: bool) -> None:
        found = None
        if transfer:
            try:
                found = await self._ports.names.transfer(network)
            except OutliveError as error:
                _log.info("services.no_transfer", network=network.name, why=str(error))
        have = await self._ports.names.read_zone(network.domain)
        change = plan_zone(network, have, found, default_server=self._names.default_server, term=self._term)
        if change is not None:
            await self._ports.names.change_zone(change)

    # Metadata

    async def _answer(self, bridge: str, address: str, path: str) -> MetadataAnswer:
        network = next((one for one in self.list_networks()[0].values() if one.bridge == bridge), None)
        if network is None:
            return MetadataAnswer(404)
        leases = self._leases.list_leases(network.name, network.vni).values()
        return await self._callers.answer(network, address, path, leases)

    # Firewall

    async def _keep_firewall(self) -> None:
        await self.networks.wait_synced()
        self._firewall_checked_s = self._clock.monotonic()
        await self._filtering.run()

    async def _apply_firewall(self) -> None:
        networks, refused = self.list_networks()
        why = ""
        try:
            if self._clock.monotonic() - self._firewall_checked_s >= FIREWALL_S:
                await self.firewall.check()
                self._firewall_checked_s = self._clock.monotonic()
            await self.firewall.apply(networks)
        except OutliveError as error:
            why = str(error)
        self._set_fault(FaultCode.FIREWALL_REFUSED, {"all": why} if why else self.firewall.refused)
        self._set_fault(FaultCode.NETWORK_NOT_SERVED, refused)

    # Reports

    def list_usages(self) -> list[NetworkUsage]:
        """Of every network that is served here; none where this host is not the primary."""
        for name, network in self._served.items():
            if name not in self._usages:
                leases = self._list_leases(name, network.vni)
                self._usages[name] = NetworkUsage(name, len(leases), count_free(network, leases))
        return [self._usages[name] for name in self._served]

    def count_failures(self) -> dict[str, int]:
        """How many servers do not run: of DHCP and metadata by network, of names one or none."""
        return {
            "dhcp": len(self._ports.dhcp.list_failures()),
            "metadata": len(self._ports.metadata.list_failures()),
            "names": int(bool(self._names_why or self._ports.names.explain_failure())),
        }

    def _report(self) -> None:
        self._set_fault(FaultCode.DHCP_FAILED, dict(self._ports.dhcp.list_failures()))
        full = {}
        for usage in self.list_usages():
            v4 = self._served[usage.network].v4
            if usage.free == 0 and v4 is not None:
                full[usage.network] = f"{v4.start} to {v4.end} is given away"
        self._set_fault(FaultCode.DHCP_RANGE_FULL, full)
        why = self._names_why or self._ports.names.explain_failure()
        self._set_fault(FaultCode.NAME_SERVER_FAILED, {"all": why} if why else {})
        self._set_fault(FaultCode.METADATA_FAILED, dict(self._ports.metadata.list_failures()))

    def _set_fault(self, code: FaultCode, why: dict[str, str]) -> None:
        if not why:
            self._faults.clear(code, self._subject)
            return
        names = sorted(why)
        shown = ", ".join(names[:NAMES_SHOWN]) + (f" and {len(names) - NAMES_SHOWN} more" * (len(names) > NAMES_SHOWN))
        self._faults.activate(code, self._subject, networks=shown, why=why[names[0]])

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do it; an error is logged, and the next look tries again."""
        try:
            await work()
        except (OutliveError, OSError) as error:
            _log.warning("services.failed", what=what, why=str(error))
            return False
        return True


# Metrics of what a coordinator does as the primary: its addresses, and DHCP of managed networks.


def service_metrics(addresses: RoleAddresses | None, services: NetworkServices | None) -> list[Metric]:
    """Return them for one scrape; where this host is not the primary, no network is named. Names lack the prefix."""
    had = GaugeMetricFamily("node_role_addresses", "Addresses of the primary coordinator that this host has")
    had.add_metric([], len(addresses.have) if addresses is not None else 0)
    failed = GaugeMetricFamily(
        "node_role_addresses_failed", "Addresses of the primary coordinator that this host could not add or remove"
    )
    failed.add_metric([], len(addresses.failures) if addresses is not None else 0)
    leases = GaugeMetricFamily("node_dhcp_leases", "Leases of a managed network that is served", labels=["network"])
    free = GaugeMetricFamily(
        "node_dhcp_free_addresses", "Free IPv4 addresses of the range of a managed network", labels=["network"]
    )
    dead = GaugeMetricFamily("node_network_services_failed", "Services that do not run, by kind", labels=["service"])
    for usage in services.list_usages() if services is not None else ():
        leases.add_metric([usage.network], usage.leases)
        if usage.free is not None:
            free.add_metric([usage.network], usage.free)
    for service, count in (services.count_failures() if services is not None else {}).items():
        dead.add_metric([service], count)
    return [had, failed, leases, free, dead]
