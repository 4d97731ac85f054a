"""The role of ``outlive node``: the daemon of one host, and on coordinators the fencer, put together from ports.

The command line passes the real drivers, the simulation its own. Ending by cancellation is a crash: virtual machines
run on, and nothing is said to anybody; ``stop`` is the clean end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outlive.base import Clock, Ids, OutliveError, Random, Refused, get_logger, leaf_errors
from outlive.node import (
    DEVICES_RETRY_S,
    CredentialRenewer,
    Credentials,
    Daemon,
    DaemonGauges,
    Duty,
    HostLogWriter,
    HostWriter,
    Place,
    Primary,
    PrimaryElector,
    RoleAddresses,
    StorageStatistics,
    publish_devices,
    stop,
)
from outlive.node.fencing import (
    VALIDATE_PROFILE,
    DesiredState,
    Fencer,
    FencerContext,
    Isolation,
    ProfileError,
    ProfileInput,
)
from outlive.node.functions import FunctionReconciler, SriovDevice
from outlive.node.links import BridgedPorts, LinkMemoryKeeper, LinkReconciler, LinkSettings, NetworkMtus, TrafficMeter
from outlive.node.membership import PauseGate
from outlive.node.ports import (
    CutPort,
    FunctionPort,
    GuardPort,
    HypervisorPort,
    LinkNotes,
    LinkPort,
    MachinePort,
    NetworkPort,
    NoNetworks,
    PowerPort,
    RoleGuardPort,
    ServicePorts,
    StoragePort,
    StorageStatisticsPort,
)
from outlive.node.services import NameSettings, NetworkServices, ServedNetwork, ServicesSettings, service_metrics
from outlive.node.services.role_places import role_places
from outlive.node.vm import ConsoleLogs, LocalDomains, NodeSettings, Statistics, VmContext
from outlive.resources import (
    HOST_LABEL,
    AddressPhase,
    Hypervisor,
    ObjectRef,
    SystemNetwork,
    SystemNetworkName,
    VirtualMachine,
    VirtualNetwork,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import DecisionLog, FaultRecorder, FaultSet, Informer, Metrics, OrderedTaskGroup, Periodic, Trail
from outlive.store import Selector, Store, list_all

_log = get_logger("node")


class ClusterKeys(Protocol):
    """A coordinator's own copy of what opens the cluster's secrets."""

    async def list_ids(self) -> tuple[str, ...]:
        """Of the keys that it has, the newest first."""
        ...

    async def update(self, ids: tuple[str, ...], sealing: str) -> None:
        """Fetch these keys, among them the one whose public half this is, for which secrets are sealed."""
        ...


@dataclass(frozen=True, slots=True)
class HostFunctions:
    """Virtual functions of a host's cards, where its daemon makes them."""

    port: FunctionPort
    devices: tuple[SriovDevice, ...]


@dataclass(frozen=True, slots=True)
class HostLinks:
    """A host's own network, where its daemon makes it."""

    port: LinkPort
    notes: LinkNotes
    settings: LinkSettings


@dataclass(frozen=True, slots=True)
class HostServices:
    """What a coordinator serves to managed networks while it is the primary."""

    ports: ServicePorts
    guard: RoleGuardPort
    settings: ServicesSettings


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The outside, as the daemon and the fencer need it."""

    hypervisor: HypervisorPort
    machine: MachinePort
    guard: GuardPort
    storage: StoragePort
    power: PowerPort
    cut: CutPort | None = None
    statistics: Statistics | None = None
    """What guests use, where somebody counts it."""
    keys: ClusterKeys | None = None
    """Absent: this host never opens secrets."""
    network: NetworkPort | None = None
    """Networks of virtual machines, where a controller programs them."""
    functions: HostFunctions | None = None
    """Absent: no card of this host is touched."""
    links: HostLinks | None = None
    """Absent: somebody else makes the host's own network, and nothing of it is touched."""
    services: HostServices | None = None
    """What it serves as the primary, where it makes its own network."""
    storage_statistics: StorageStatisticsPort | None = None
    """What the storage cluster says of itself, where this host can ask."""
    consoles: ConsoleLogs | None = None
    """What they wrote to their consoles, where it is logged."""
    credentials: Credentials | None = None
    """This host's token, where it renews it."""


class NodeRole:
    """See the module. ``fencer_store``: the same store, in the name of the fencer.

    ``networks``: the host's addresses by network. ``newcomer``: as what it registers itself if it never was a member.
    ``duties``: what it does while it is the primary coordinator; absent: it is no candidate for that.
    ``log``: what the process logs, to be kept in the store.
    """

    def __init__(
        self,
        store: Store,
        fencer_store: Store,
        settings: NodeSettings,
        ports: NodePorts,
        *,
        host: str,
        clock: Clock,
        random: Random,
        ids: Ids,
        networks: Mapping[str, str] | None = None,
        newcomer: Hypervisor | None = None,
        duties: Sequence[Duty] | None = None,
        log: HostLogWriter | None = None,
    ) -> None:
        self.settings = settings
        self._networks = networks or {}
        self._newcomer = newcomer
        self._duties = duties
        self._log = log
        self.metrics = Metrics()
        self.decisions = DecisionLog(clock)
        self.host = host
        self._store = store
        self._fencer_store = fencer_store
        self._ports = ports
        self._clock = clock
        self._random = random
        self._ids = ids
        self._trail = Trail(store, by=HostWriter(host).decider, clock=clock)
        self._trail.follow(self.decisions)
        self.faults = FaultSet(FaultRecorder(store, clock, "daemon", host), clock)
        self._stopping = asyncio.Event()
        self.stop_refused = ""
        """Why the last ``stop`` did nothing."""
        self._going_down = False
        self._link_networks: Informer[VirtualNetwork] = Informer(
            store, VirtualNetwork, clock=clock, random=random.fork("informer of networks")
        )
        self._links = self._link_reconciler()
        self._role_addresses: RoleAddresses | None = None
        self._services: NetworkServices | None = None
        self._primary: Primary | None = None
        """This host's part in the role of the primary, where it is a candidate."""
        self.daemon = self._build_daemon()
        self.lease = self.daemon.shared.lease
        if self._links is not None:
            self._links.changed = self.daemon.reporter.notify
        gauges = DaemonGauges(self.daemon.shared.lease, self.daemon.shared.domains, self.faults, clock)
        self.metrics.register_collector(gauges.collect)
        self.metrics.register_collector(lambda: service_metrics(self._role_addresses, self._services))

    async def run(self) -> None:
        """Until cancelled, which is a crash. ``Refused`` where this machine or daemon must not run, ``Forbidden`` where
        its token is not of this host."""
        if not self._ports.machine.lock():
            raise Refused(
                f"another daemon runs on {self.host}", remedy="stop it first; one host has one daemon at a time"
            )
        try:
            async with OrderedTaskGroup() as group:
                tasks = [
                    group.create_task(self.daemon.keep("trail", self._trail.run), name="trail"),
                    group.create_task(self.daemon.keep("faults", self.faults.run), name="faults"),
                ]
                if self._log is not None:
                    tasks.append(group.create_task(self.daemon.keep("log", self._log.run), name="log"))
                if (credentials := self._ports.credentials) is not None:
                    renewer = self._build_renewer(credentials)
                    tasks.append(group.create_task(self.daemon.keep("credentials", renewer.run), name="credentials"))
                for name, part in self._link_parts():
                    tasks.append(group.create_task(self.daemon.keep(name, part), name=name))
                entering = group.create_task(self._enter(), name="entering")
                await self._first_of(entering)
                if entering.done():
                    tasks += self.daemon.serve(group)
                    tasks.append(group.create_task(self._fence(), name="fencer"))
                    tasks.append(group.create_task(self._renew_keys(), name="cluster key"))
                    if (port := self._ports.storage_statistics) is not None and port.find_cluster():
                        tasks.append(group.create_task(self._publish_devices(port), name="storage devices"))
                    if self._duties is not None:
                        tasks.append(group.create_task(self._do_duties(self._duties), name="primary"))
                    await self._stopping.wait()
                    await stop.stop(self.daemon, going_down=self._going_down, primary=self._primary)
                for task in (entering, *tasks):
                    task.cancel()
            await self._trail.flush()
            if self._log is not None:
                await self._log.flush()
        except BaseExceptionGroup as errors:
            first = next((one for one in leaf_errors(errors) if isinstance(one, Refused)), None)
            raise first or next(leaf_errors(errors)) from errors

    def _link_parts(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What makes the host's own network; it runs before the host has joined, which may need it."""
        links, shared = self._links, self.daemon.shared
        if links is None or shared.traffic is None:
            return []
        mtus = NetworkMtus(self._store, links, self._link_networks, lambda: self._is_primary, self._clock)
        return [
            ("networks", self._link_networks.run),
            ("links", links.run),
            ("mtus", mtus.run),
            ("traffic", shared.traffic.run),
        ]

    @property
    def _is_primary(self) -> bool:
        return self._primary is not None and self._primary.elector.is_leader

    async def _enter(self) -> None:
        await self.daemon.enter()
        await self._check_profile()

    async def _first_of(self, entering: asyncio.Task[None]) -> None:
        """Until the host has entered, or the daemon is asked to end."""
        asked = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([entering, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()

    async def _fence(self) -> None:
        """Watch the other hosts, where this one is a coordinator."""
        if self.daemon.shared.desired.spec.mode != "coordinator":
            return
        await self.daemon.keep("fencer", lambda: self._build_fencer().run())

    def _build_renewer(self, credentials: Credentials) -> CredentialRenewer:
        def report_believed(fingerprints: tuple[str, ...]) -> None:
            if self.daemon.reporter.authorities != fingerprints:
                self.daemon.reporter.authorities = fingerprints
                self.daemon.reporter.notify()

        return CredentialRenewer(
            credentials,
            clock=self._clock,
            random=self._random.fork("credentials"),
            make=self._ids.new_token,
            reported=report_believed,
        )

    async def _renew_keys(self) -> None:
        """Have the cluster's keys as the server has them, where this host is a coordinator."""
        keys, shared = self._ports.keys, self.daemon.shared
        if keys is None or shared.desired.spec.mode != "coordinator":
            return
        subject = ObjectRef(kind="Hypervisor", name=self.host)

        async def renew() -> None:
            cluster, why = shared.desired.cluster, ""
            wanted = cluster.status.key_ids if cluster is not None else ()
            held = await keys.list_ids()
            if cluster is not None and wanted and held != wanted:
                try:
                    await keys.update(wanted, cluster.status.sealing_key)
                    held = wanted
                except OutliveError as error:
                    why = str(error)
            if why:
                self.faults.activate(FaultCode.CLUSTER_KEY_OLD, subject, key=wanted[0], why=why)
            else:
                self.faults.clear(FaultCode.CLUSTER_KEY_OLD, subject)
            if self.daemon.reporter.key_ids != held:
                self.daemon.reporter.key_ids = held
                self.daemon.reporter.notify()

        loop = Periodic(renew, float(self.settings.look), clock=self._clock)
        await self.daemon.keep("cluster key", loop.run)

    async def _do_duties(self, duties: Sequence[Duty]) -> None:
        """Be a candidate for the role of the primary, where this host is a coordinator."""
        if self.daemon.shared.desired.spec.mode != "coordinator":
            return
        store, clock = self._fencer_store, self._clock

        every_s, port = float(self.settings.storage_statistics), self._ports.storage_statistics
        if port is not None and port.find_cluster() and every_s > 0:
            recorder = FaultRecorder(store, clock, "primary", self.host)
            statistics = StorageStatistics(
                store,
                port,
                host=self.host,
                interval_s=every_s,
                faults=recorder,
                crashes=self.faults.crashes,
                clock=clock,
            )
            duties = (*duties, statistics)

        services, links = self._ports.services, self._ports.links
        networks = self._network_services(services) if services is not None and links is not None else None
        self._services = networks
        if networks is not None:
            duties = (*duties, networks)  # the last one to start, and the first to stop

        async def run() -> None:
            elector = PrimaryElector(store, self.host, clock=clock, ids=self._ids)
            elector.may_stand = lambda: self.lease.held and self.lease.connected
            addresses = None
            if services is not None and links is not None:
                addresses = RoleAddresses(links.port, services.guard, lambda: self._role_places(networks))
                self._role_addresses = addresses
            primary = Primary(
                store, self.host, duties, elector=elector, faults=self.faults, clock=clock, addresses=addresses
            )
            self._primary = primary
            await primary.run()

        async with OrderedTaskGroup() as group:
            group.create_task(self.daemon.keep("primary", run), name="primary")
            if networks is not None:
                group.create_task(self.daemon.keep("network services", networks.run), name="network services")

    def _network_services(self, services: HostServices) -> NetworkServices | None:
        if not services.settings.managed_networks:
            return None

        def has_gateways(network: ServedNetwork) -> bool:
            own = self._role_addresses
            return own is not None and all(own.has((network.bridge, one.interface)) for one in network.subnets)

        def name_addresses() -> list[str]:
            places = self._role_places(None)
            on = [*places["upstream"], *places["cluster"]] if services.settings.name_server else []
            return [address.partition("/")[0] for _, address in on]

        return NetworkServices(
            self._fencer_store,
            services.ports,
            self._link_networks,
            host=self.host,
            names=NameSettings(name_addresses, services.settings.default_name_server),
            has_gateways=has_gateways,
            faults=self.faults,
            clock=self._clock,
            random=self._random.fork("network services"),
            system_networks=lambda: {name: one.cidr for name, one in self._system_networks().items()},
        )

    def _system_networks(self) -> Mapping[SystemNetworkName, SystemNetwork]:
        cluster = self.daemon.shared.desired.cluster
        return cluster.spec.system_networks if cluster is not None else {}

    def _role_places(self, networks: NetworkServices | None) -> dict[AddressPhase, list[Place]]:
        """Where the primary has its addresses on this host."""
        links = self._links
        if links is None:
            return {}
        made = links.made or {}
        covered = networks.firewall.covered if networks is not None else ()
        served = networks.list_networks()[0].values() if networks is not None else ()
        return role_places(
            self._system_networks(),
            links.bridge_of,
            [one for one in served if made.get(one.name) == "" and one.name in covered],
        )

    async def _publish_devices(self, port: StorageStatisticsPort) -> None:
        """Say once where this host's storage daemons keep their data."""
        await self.daemon.keep(
            "storage devices",
            lambda: publish_devices(self._store, port, self.host, self._clock),
            longest_s=DEVICES_RETRY_S,
        )

    def _build_fencer(self) -> Fencer:
        context = FencerContext(
            self._fencer_store,
            host=self.host,
            observer=self.lease,
            power=self._ports.power,
            cut=self._ports.cut,
            clock=self._clock,
            random=self._random,
            decisions=self.decisions,
            primary=lambda: self._primary.elector.holder if self._primary is not None else "",
            crashes=self.faults.crashes,
        )
        return Fencer(
            context,
            ids=self._ids,
            faults=FaultRecorder(self._fencer_store, self._clock, "fencer", self.host),
            metrics=self.metrics,
        )

    def stop(self, *, leave_vms: bool = False, going_down: bool = False) -> None:
        """End cleanly; virtual machines run on, if ``leave_vms`` says so, or end with a machine that goes down.

        A host that still runs some, and is neither to leave them nor going down, is not stopped: ``stop_refused``
        says why.
        """
        self._going_down = going_down
        self.stop_refused = stop.explain_refusal(self.daemon, leave_vms=leave_vms, going_down=going_down)
        if self.stop_refused:
            _log.error("daemon.stop_refused", host=self.host, why=self.stop_refused)
            return
        self._stopping.set()

    def hurry(self) -> None:
        """Do not wait for what is being done for the end: say that the daemon stops, and end."""
        self.daemon.hurry.set()

    async def hand_over(self) -> None:
        """Begin nothing new and let what is being done end, before another version takes this one's place.

        The membership is renewed meanwhile, and stays as it is; the caller cancels it then. The role of the
        primary goes to another coordinator.
        """
        await stop.close(self.daemon)
        await stop.resign(self._primary, stop.JOBS_S)

    def _build_daemon(self) -> Daemon:
        settings, clock, store, ports = self.settings, self._clock, self._store, self._ports
        links = ports.links
        informer = Informer(
            store,
            VirtualMachine,
            clock=clock,
            random=self._random.fork("informers"),
            selector=Selector.from_labels({HOST_LABEL: self.host}),
        )
        shared = VmContext(
            host=self.host,
            nonce=self._ids.new_uuid(),
            store=store,
            domains=LocalDomains(ports.hypervisor, clock, limit_s=float(settings.call_limit)),
            pause=PauseGate(store, clock, self._ids),
            guard=ports.guard,
            machine=ports.machine,
            storage=ports.storage,
            isolation=Isolation(ports.cut, store),
            desired=DesiredState(store, self.host),
            settings=settings,
            informer=informer,
            decisions=self.decisions,
            faults=self.faults,
            clock=clock,
            ids=self._ids,
            starts=asyncio.Semaphore(settings.starts),
            networks=self._networks,
            statistics=ports.statistics,
            consoles=ports.consoles,
            network=self._network_port(),
            links=self._links,
            traffic=TrafficMeter(links.port, clock, round(float(settings.usage))) if links is not None else None,
        )
        functions = None
        if ports.functions is not None:
            functions = FunctionReconciler(shared, ports.functions.port, ports.functions.devices)
            shared.functions = functions
        return Daemon(shared, self._random.fork("workers"), self._newcomer, functions=functions)

    def _link_reconciler(self) -> LinkReconciler | None:
        links = self._ports.links
        if links is None:
            return None
        return LinkReconciler(
            self._store,
            links.port,
            LinkMemoryKeeper(links.notes),
            links.settings,
            self._link_networks,
            host=self.host,
            labels=self._own_labels,
            guard_timeout_s=lambda: self.daemon.shared.desired.profile.guard_timeout_s,
            cluster_address=self._networks.get("cluster", ""),
            faults=self.faults,
            decisions=self.decisions,
            clock=self._clock,
        )

    def _network_port(self) -> NetworkPort:
        """Networks of virtual machines, of our hosts or of others."""
        others, links = self._ports.network or NoNetworks(), self._links
        return others if links is None else BridgedPorts(self._store, self.host, lambda: links.made, others)

    def _own_labels(self) -> dict[str, str]:
        found = self.daemon.shared.desired.hypervisor
        return found.metadata.labels if found is not None else {}

    async def _check_profile(self) -> None:
        """Refuse a renewal interval that the store cannot bear, where its speed is known; log all other doubts.

        A timing that makes an armed guard act too soon is no reason not to start: without a daemon it acts at once.
        """
        speed, hosts = self.settings.store_cas_per_s, 0
        if speed is not None:
            async for _ in list_all(self._store, Hypervisor):
                hosts += 1
        profile = self.daemon.shared.desired.profile
        limit_s = float(self.settings.write_limit)
        given = ProfileInput(profile=profile, hosts=hosts, store_cas_per_s=speed, write_limit_s=limit_s)
        result = self.decisions.use(VALIDATE_PROFILE, given, subject=self.host)
        if ProfileError.RENEW_TOO_SHORT in result.errors:
            bearable_s = math.ceil(10.0 * (result.smallest_renew_s or 0.0)) / 10.0
            raise Refused(
                f"{self.host} cannot renew every {profile.renew_s:g} s: the store does not bear it",
                remedy=f"renew at most every {bearable_s:.1f} s with {hosts} hosts on this store",
            )
        if result.errors:
            _log.warning("daemon.timing_unsound", host=self.host, errors=list(result.errors))
