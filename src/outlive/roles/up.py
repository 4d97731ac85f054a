"""The role of ``outlive up``: everything on one store, in one event loop.

Built from ports, so that the command line passes the real drivers and a simulation its own. The caller opens the store
before and closes it after; the HTTP server is not part of the role but serves what it offers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outlive.base import AlreadyExists, BadInput, Clock, Ids, NotFound, Random, Unavailable, join_parts
from outlive.commitments import (
    BY_PROJECT,
    OPEN,
    CommitmentInformers,
    Commitments,
    CommitmentSyncer,
    Overview,
    commitment_indexes,
    project_of,
    read_store,
)
from outlive.commitments import slot_indexes as commitment_slot_indexes
from outlive.failover import HOST_INDEX, Caller, Demands, Failover, InProcessPlacement, PlacementPort, WithCandidates
from outlive.failover.reconciler import Informers
from outlive.failover.report import SOURCE
from outlive.inventory import CloudCaches, CloudInventorySyncer, InventorySource, InventorySyncer
from outlive.network import (
    NetworkController,
    NetworkFaults,
    NetworkHostLimits,
    NetworkInformers,
    NetworkInspector,
    PodCache,
    PodFollower,
    interface_indexes,
    parse_any,
    port_indexes,
)
from outlive.node.vm import console_sweeper
from outlive.placement import NOVA, OWN, Fleet, blocked_hosts, install_shipped
from outlive.recovery import (
    ClusterGauges,
    OwnVmMoves,
    Rebalancer,
    RecoveryController,
    RecoveryInformers,
    slot_indexes,
    vm_indexes,
)
from outlive.resources import (
    CLUSTER,
    ZONE_LABEL,
    Cluster,
    CommitmentChange,
    CommittedResource,
    Fault,
    Flavor,
    FlavorGroup,
    FlavorGroupCapacity,
    Hypervisor,
    Membership,
    ObjectMeta,
    ObjectRef,
    ProjectQuota,
    R,
    Reservation,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    to_builtins,
)
from outlive.resources.reasons import FaultCode
from outlive.roles.placement import Followed, PlacementRole, Runtime
from outlive.roles.settings import RoleSettings
from outlive.roles.up_ports import InventoryCache, Limes, NetworkDatabases, PodCluster, Ports
from outlive.runtime import (
    HOST_KINDS,
    ActiveFault,
    DecisionLog,
    Elector,
    EventRecorder,
    FaultRecorder,
    Informer,
    Manager,
    Metrics,
    Notifier,
    NotifierPorts,
    SchemaUpgrade,
    Trail,
    build_unrecorded,
    event_sweeper,
    fault_sweeper,
    is_silenced,
    trail_sweeper,
)
from outlive.store import (
    MATCHES,
    LocalStore,
    Selector,
    Store,
    StoreFull,
    StoreTroubles,
    compare_and_swap,
    find_by_prefix,
    find_named,
    names_of,
)
from outlive.store.schema import SchemaStorage, StoredKinds

REBALANCE_TASK = "rebalance"
NEAR_QUOTA = 0.8
"""The share of a quota from which on a fault tells of it."""
NAMED = 6
"""Quotas that the fault names."""
OVERVIEW_TURN = 1_000
"""Reservations that an overview counts before others get their turn."""
INVENTORY_TASK = "inventory"
NOTIFY_TASK = "notify"
GAUGES_TASK = "gauges"
SYNC_TASK = "commitments-sync"
ROLE = "failover"
"""The election behind which slots are placed: of several equal processes one does, and the others wait."""


class UpRole:
    """See the module. ``run`` until cancelled; ``explain_unready`` says why it is not ready, or nothing."""

    def __init__(
        self,
        store: Store,
        settings: RoleSettings,
        ports: Ports,
        *,
        identity: str,
        clock: Clock,
        random: Random,
        ids: Ids,
    ) -> None:
        self.settings = settings
        self.fault_sources: list[Callable[[], Iterable[ActiveFault]]] = []
        """What the process finds wrong with itself besides."""
        self.metrics = Metrics(settings.metrics.prefix)
        self.metrics.register_collector(self._collect_uses)
        self._troubles: StoreTroubles | None = getattr(store, "troubles", None)
        """What the API server refuses, where the store is one."""
        self.decisions = DecisionLog(clock)
        self.manager = Manager(clock, random.fork("manager"), self.metrics, ids)
        self._store = store
        self._computer = ports.computer
        self._offload = ports.offload
        self._clock = clock
        self._informing = random.fork("informers")
        self.informers = Informers(
            hypervisors=self._make_informer(Hypervisor),
            reservations=self._make_informer(
                Reservation, {HOST_INDEX: blocked_hosts, **slot_indexes(), **commitment_slot_indexes()}
            ),
            groups=self._make_informer(FlavorGroup),
            vms=self._make_informer(VirtualMachine, vm_indexes() | interface_indexes()),
        )
        self.flavors = self._make_informer(Flavor)
        self._sold = CommitmentInformers(
            commitments=self._make_informer(CommittedResource, commitment_indexes()),
            reservations=self.informers.reservations,
            hypervisors=self.informers.hypervisors,
            groups=self.informers.groups,
            capacities=self._make_informer(FlavorGroupCapacity),
            quotas=self._make_informer(ProjectQuota, {BY_PROJECT: project_of}),
            changes=self._make_informer(CommitmentChange, selector=OPEN),
        )
        self._events = EventRecorder(store, clock=clock, ids=ids, source=SOURCE)
        self._events.expose(self.metrics)
        self.elector = Elector(
            store,
            ROLE,
            identity,
            clock=clock,
            ids=ids,
            renew_s=settings.election.renew,
            silence_s=settings.election.silence,
        )
        self._placing = PlacementRole(
            Runtime(store, self.manager, self.elector, self.metrics, self._events, clock, random.fork("placement")),
            settings.scheduler,
            Followed(
                hypervisors=self.informers.hypervisors,
                reservations=self.informers.reservations,
                groups=self.informers.groups,
                flavors=self.flavors,
                vms=self.informers.vms,
                commitments=self._sold.commitments,
                quotas=self._sold.quotas,
                capacities=self._sold.capacities,
            ),
            self._make_informer,
            source=ports.source,
            moves={OWN: OwnVmMoves(store, clock=clock), **({NOVA: ports.nova} if ports.nova is not None else {})},
        )
        self.placement = self._placing.service
        placement = ports.placement or InProcessPlacement(self.placement, self.fleet)
        self.failover = Failover(
            store,
            informers=self.informers,
            fleet=self.fleet,
            placement=placement,
            computer=ports.computer,
            config=settings.failover,
            settings=settings.upkeep,
            metrics=self.metrics,
            events=self._events,
            decisions=self.decisions,
            clock=clock,
            random=random,
            ids=ids,
            source=ports.source,
            protection=settings.protection,
            faults=FaultRecorder(store, clock, "failover"),
            domain_of=self.placement.engine.external_domain,
            covered_by=lambda host: self.recovery.liveness.covered_by(host),
        )
        self.failover.attach(self.manager, self.elector)
        self.recovery = self._add_recovery(placement, ids)
        self.commitments = self._add_commitments(ports, ids)
        if ports.inventory is not None:
            self._add_inventory(ports.inventory, random)
        if ports.clusters:
            self._add_cloud_inventory(ports, random, ids)
        if ports.limes is not None:
            self._add_sync(ports.limes, random)
        self.recorded_faults = self._make_informer(Fault)
        self.notifier = self._add_notifier(ports.notify or NotifierPorts({}), identity, random, ids)
        self._add_gauges()
        self._add_schema(ports.schema or StoredKinds(store), identity)
        self._inspector: NetworkInspector | None = None
        self._add_network(ports.network)
        self.pods: PodFollower | None = None
        if ports.network is not None and ports.pods is not None:
            self.pods = self._add_pods(ports.network, ports.pods, identity, random.fork("pods"), ids)
        self.manager.add_task("events", self._events.run)
        self.trail = Trail(store, by=identity, clock=clock)
        self.trail.follow(self.decisions)
        self.manager.add_task("events-sweeper", event_sweeper(store, clock).run)
        self.manager.add_task("faults-sweeper", fault_sweeper(store, clock).run)
        self.manager.add_task("trail", self.trail.run)
        self.manager.add_task("trail-sweeper", trail_sweeper(store, clock).run)
        self.manager.add_task("consoles-sweeper", console_sweeper(store, clock).run)

    @property
    def fleet(self) -> Fleet:
        """Hosts and reservations as placement has them."""
        return self.placement.fleet

    async def show_tolerance(self, _query: Mapping[str, str]) -> dict[str, Any]:
        """What the last cycle found out about failures that are survived; nothing before the first."""
        found = self.failover.reporter.last_tolerated
        return {} if found is None else {"tolerance": found.fleet, "unit": found.unit, "zones": found.zones}

    async def show_protection(self, _query: Mapping[str, str]) -> dict[str, Any]:
        """When every VM has all its slots, as of now; nothing before the first cycle of a process that leads."""
        found = self.failover.forecast.current_forecast()
        return {} if found is None else {**msgspec.to_builtins(found), "sentence": found.sentence}

    async def show_overview(self, _query: Mapping[str, str]) -> list[Any]:
        """What is used, committed, kept for failover and free, by zone and flavor group."""
        informers = self.commitments.informers
        zones = {host.name: host.metadata.labels.get(ZONE_LABEL, "") for host in informers.hypervisors.items()}
        found = Overview((group.spec for group in informers.groups.items()), zones)
        for number, one in enumerate(informers.reservations.items(), 1):
            found.add(one)
            if number % OVERVIEW_TURN == 0:
                await self._clock.sleep(0)
        return [msgspec.to_builtins(row) for row in found.list_rows(informers.capacities.items())]

    async def show_names(self, query: Mapping[str, str]) -> list[Any]:
        """Which VMs or hosts (``kind``) are called so: ``name`` with ``projects``, ``prefix``, or ``ids``."""
        informers: dict[str, Informer[Any]] = {
            VirtualMachine.info.plural: self.informers.vms,
            Hypervisor.info.plural: self.informers.hypervisors,
        }
        kind = query.get("kind", "")
        if kind not in informers:
            raise BadInput(f"{kind[:80]!r} has no names here", place="kind", remedy=f"one of {', '.join(informers)}")
        known = map(names_of, informers[kind].items())
        if "ids" in query:
            wanted = set(query["ids"].split(",")[:MATCHES])
            found = [one for one in known if one.id in wanted]
        elif "name" in query:
            found = find_named(known, query["name"], frozenset(filter(None, query.get("projects", "").split(","))))
        else:
            found = find_by_prefix(known, query.get("prefix", ""))
        return [msgspec.to_builtins(one) for one in found]

    async def repair_commitments(self) -> list[Any]:
        """Repair what is said differently of commitments, where that is safe; what that was."""
        if not self.elector.is_leader:
            raise Unavailable("this process does not lead", remedy="ask the one that leads")
        return [msgspec.to_builtins(one) for one in await self.commitments.consistency.repair()]

    def explain_unready(self) -> str:
        """Why the role is not ready, in a few words; empty when it is."""
        stopped = (f"the store cannot write: {failure}",) if (failure := self._write_failure()) else ()
        return "; ".join((*stopped, *self.manager.explain_unready()))

    async def show_faults(self, _query: Mapping[str, str]) -> list[Any]:
        """Faults of this process that its store cannot hold."""
        return [to_builtins(one) for one in self._own_faults()]

    def _own_faults(self) -> list[Fault]:
        cluster, active = ObjectRef(kind="Cluster", name=CLUSTER), list[ActiveFault]()
        if failure := self._write_failure():
            active.append(ActiveFault(FaultCode.STORE_NOT_WRITABLE, cluster, {"why": failure}))
        near = self._store.find_near_quotas(NEAR_QUOTA) if isinstance(self._store, LocalStore) else ()
        if near:
            active.append(ActiveFault(FaultCode.STORE_QUOTA, cluster, {"what": join_parts(near, most=NAMED)}))
        if malformed := [f"{kind}/{name} ({why})" for kind, name, why in self.manager.list_malformed()]:
            active.append(ActiveFault(FaultCode.OBJECT_MALFORMED, cluster, {"what": join_parts(malformed, most=NAMED)}))
        if lasting := self._troubles.lasting_errors() if self._troubles is not None else ():
            full = any(isinstance(one, StoreFull) for one in lasting)
            code = FaultCode.STORE_NOT_WRITABLE if full else FaultCode.STORE_REFUSES
            said = join_parts([str(one) for one in lasting], most=NAMED)
            active.append(ActiveFault(code, cluster, {"why": said, "what": said}))
        active += [one for find in self.fault_sources for one in find()]
        return [build_unrecorded(one, self._clock.now()) for one in active]

    def _collect_uses(self) -> list[Metric]:
        objects = GaugeMetricFamily("store_objects", "Objects in the store", labels=["kind"])
        size = GaugeMetricFamily("store_object_bytes", "Their size as JSON", labels=["kind"])
        uses = self._store.usage_by_kind() if isinstance(self._store, LocalStore) else {}
        for plural, (count, size_bytes) in uses.items():
            objects.add_metric([plural], count)
            size.add_metric([plural], size_bytes)
        refused = CounterMetricFamily(
            "store_refusals",
            "Requests that the store's servers refused or did not answer",
            labels=["verb", "code"],
        )
        for labels, times in sorted(self._troubles.counts.items()) if self._troubles is not None else ():
            refused.add_metric(list(labels), times)
        return [objects, size, refused]

    def _write_failure(self) -> str:
        return str(getattr(self._store, "write_failure", ""))

    async def prepare(self) -> None:
        """Create what must be there before anything runs: the shipped pipelines, and the cluster itself."""
        await install_shipped(self._store)
        try:
            await self._store.get(Cluster, CLUSTER)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await self._store.create(Cluster(metadata=ObjectMeta(name=CLUSTER)))
        await compare_and_swap(self._store, Cluster, CLUSTER, self._with_kind_of_store, clock=self._clock)

    def _with_kind_of_store(self, cluster: Cluster | None) -> Cluster | None:
        """The cluster that says whether its store is replicated; ``None`` where it does."""
        replicated = not self._store.embedded
        if cluster is None or cluster.status.replicated == replicated:
            return None
        return msgspec.structs.replace(cluster, status=msgspec.structs.replace(cluster.status, replicated=replicated))

    async def run(self) -> None:
        """Run everything until ``stop`` or cancellation; events that wait are written last."""
        try:
            await self.manager.run()
        finally:
            await self._events.flush()
            await self.trail.flush()
            await self._placing.flush()

    def stop(self) -> None:
        """Let running work end, and then ``run``."""
        self.manager.stop()

    def _make_informer(
        self,
        kind: type[R],
        indexes: Mapping[str, Callable[[R], Iterable[str]]] | None = None,
        *,
        selector: Selector | None = None,
    ) -> Informer[R]:
        return Informer(
            self._store, kind, clock=self._clock, random=self._informing, indexes=indexes, selector=selector
        )

    def _add_network(self, databases: NetworkDatabases | None) -> None:
        """What has networks follow VMs, and VMs stay where their networks are, behind the same election."""
        informers = NetworkInformers(
            ports=self._make_informer(VirtualMachinePort, port_indexes()),
            networks=self._make_informer(VirtualNetwork),
            vms=self.informers.vms,
            hosts=self.informers.hypervisors,
            clusters=self._make_informer(Cluster),
        )
        NetworkHostLimits(self._store, informers, self._clock).attach(self.manager, self.elector)
        if databases is None:
            return
        self.network = NetworkController(
            self._store,
            informers,
            databases.northbound,
            databases.southbound,
            metrics=self.metrics,
            decisions=self.decisions,
            clock=self._clock,
            emit=self._events.emit,
            max_parallel=self.settings.network.max_parallel,
            gc_period_s=float(self.settings.network.gc_period),
            neighbours_limit=self.settings.network.announce_neighbours_max,
        )
        self.network.attach(self.manager, self.elector)
        faults = NetworkFaults(
            informers,
            databases.northbound,
            databases.southbound,
            FaultRecorder(self._store, self._clock, "network"),
            self._clock,
            self._events.emit,
            self._offload,
        )
        self.manager.add_task("network-faults", faults.run, elector=self.elector, after_sync=True)
        self._inspector = NetworkInspector(
            informers,
            self.network.switches,
            databases.northbound,
            databases.southbound,
            self._clock,
            databases.tracer,
        )

    async def check_network(self, query: Mapping[str, str]) -> dict[str, Any]:
        """What OVN has otherwise than it should; ``name``: of one network or VM."""
        found: dict[str, Any] = msgspec.to_builtins(await self._network_inspector().inspect(query.get("name", "")))
        return found

    async def trace_network(self, query: Mapping[str, str]) -> list[Any]:
        """The ways of packets of a VM or port ``name``: ``to`` an address, ``from`` another VM or port."""
        name, to = query.get("name", ""), query.get("to", "")
        if not name:
            raise BadInput("names no VM", place="name", remedy="give the name of a VM or port")
        if to:
            parse_any(to)
        found = await self._network_inspector().trace(name, to, query.get("from", ""))
        return [msgspec.to_builtins(one) for one in found]

    def _network_inspector(self) -> NetworkInspector:
        if self._inspector is None:
            remedy = "name OVN's databases in its settings: network.northbound and network.southbound"
            raise NotFound("this server programs no networks", remedy=remedy)
        return self._inspector

    def _add_pods(
        self, databases: NetworkDatabases, cluster: PodCluster, identity: str, random: Random, ids: Ids
    ) -> PodFollower:
        """What has networks follow pods. In mode ``interconnect`` each zone elects its own."""
        settings = self.settings.network
        elector = self.elector
        if settings.zone_mode == "interconnect":
            zone = settings.pods.zone or "-".join(sorted(settings.local_hypervisors))
            election = self.settings.election
            elector = Elector(
                self._store,
                f"network-pods-{zone}",
                identity,
                clock=self._clock,
                ids=ids,
                renew_s=election.renew,
                silence_s=election.silence,
            )
        follower = PodFollower(
            cluster.store,
            cluster.verbs,
            cluster.events,
            self._make_informer(VirtualNetwork),
            databases.northbound,
            settings,
            cache=PodCache(cluster.store, self._clock, random),
            metrics=self.metrics,
            decisions=self.decisions,
            clock=self._clock,
            neighbours=cluster.neighbours,
        )
        follower.attach(self.manager, elector)
        self.manager.add_task("network-pods-events", cluster.write_events)
        return follower

    def _add_recovery(self, placement: PlacementPort, ids: Ids) -> RecoveryController:
        """Recovery of VMs whose host died, behind the same election as failover, so that one process has both."""
        settings, informers = self.settings, self.informers
        config = settings.failover.apply_defaults()
        recovery = RecoveryController(
            self._store,
            RecoveryInformers(
                vms=informers.vms,
                reservations=informers.reservations,
                hypervisors=informers.hypervisors,
                memberships=self._make_informer(Membership),
                clusters=self._make_informer(Cluster),
            ),
            placement=WithCandidates(placement, self.fleet) if placement.needs_candidates else placement,
            fleet=self.fleet,
            demands=Demands(config.requirements, settings.protection),
            caller=Caller(profile=settings.upkeep.profile, domain_of=self.placement.engine.external_domain),
            metrics=self.metrics,
            events=self._events,
            decisions=self.decisions,
            clock=self._clock,
            ids=ids,
            faults=FaultRecorder(self._store, self._clock, "recovery"),
            turn=self.failover.lock,
        )
        recovery.attach(self.manager, self.elector)
        rebalancer = Rebalancer(
            self._store,
            settings,
            computer=self._computer,
            decisions=self.decisions,
            events=self._events,
            clock=self._clock,
            ids=ids,
            vms=self.informers.vms,
            exchange=self.failover.reconciler.exchange,
        )
        if settings.upkeep.vm_source == "resources":  # of others it is not ours to ask
            self.manager.add_task(REBALANCE_TASK, rebalancer.run, elector=self.elector, after_sync=True)
        return recovery

    def _add_notifier(self, ports: NotifierPorts, identity: str, random: Random, ids: Ids) -> Notifier:
        """Who is told of faults. It runs on every process: one whose store cannot be written tells that."""
        self.manager.add_informer(self.recorded_faults)
        clusters, hosts = self.recovery.informers.clusters, self.informers.hypervisors

        def is_quiet(fault: Fault) -> bool:
            host = hosts.get(fault.subject.name) if fault.subject.kind in HOST_KINDS else None
            return is_silenced(fault.code, clusters.get(CLUSTER), host, self._clock.now())

        notifier = Notifier(
            self._store,
            self.recorded_faults,
            self.settings.notify,
            ports,
            cluster=identity,
            elector=self.elector,
            clock=self._clock,
            random=random.fork("notify"),
            ids=ids,
            metrics=self.metrics,
            local=self._own_faults,
            is_quiet=is_quiet,
            unready=self.explain_unready,
        )
        self.manager.add_task(NOTIFY_TASK, notifier.run)
        return notifier

    def _add_gauges(self) -> None:
        """Metrics of the cluster as it is now, on every process that watches."""
        gauges = ClusterGauges(
            self.recovery.informers,
            self.recorded_faults,
            life=self.recovery.liveness.current_liveness,
            own_faults=self._own_faults,
            uncovered=lambda: self.failover.reporter.last_uncovered,
            wrote_at=lambda: getattr(self._store, "written_at", None),
            clock=self._clock,
        )
        self.metrics.register_collector(gauges.collect)
        self.manager.add_task(GAUGES_TASK, gauges.run, after_sync=True)

    def _add_schema(self, storage: SchemaStorage, identity: str) -> None:
        """Changes of the storage schema. It runs on every process: what one has left, any other one finishes."""
        upgrade = SchemaUpgrade(
            self._store,
            storage,
            self.informers.hypervisors,
            self.recovery.informers.memberships,
            by=identity,
            leads=lambda: self.elector.is_leader,
            faults=FaultRecorder(self._store, self._clock, "controller"),
            decisions=self.decisions,
            clock=self._clock,
        )
        self.manager.add_task("schema", upgrade.run)

    def _add_commitments(self, ports: Ports, ids: Ids) -> Commitments:
        """Commitments, behind the same election, since their slots are placed on the same hosts."""
        commitments = Commitments(
            self._store,
            informers=self._sold,
            vms=self.informers.vms,
            pipelines=self._placing.pipelines,
            engine=self.placement.engine,
            settings=self.settings.commitments,
            metrics=self.metrics,
            events=self._events,
            turn=self.failover.lock,
            clock=self._clock,
            ids=ids,
            source=ports.source,
            domains=ports.domains,
            faults=FaultRecorder(self._store, self._clock, "commitments"),
            offload=self._offload,
            group_keys=self.settings.scheduler.flavor_group_keys,
            leads=lambda: self.elector.is_leader,
        )
        self.placement.tracker = commitments.tracker
        commitments.attach(self.manager, self.elector)
        return commitments

    def _add_sync(self, limes: Limes, random: Random) -> None:
        """Commitments are kept as Limes lists them, by the process that leads."""
        syncer = CommitmentSyncer(
            limes.projects,
            limes.commitments,
            partial(read_store, self._store),
            self.commitments.changes.carry_out,
            self.settings.commitments,
            clock=self._clock,
            random=random.fork("commitments-sync"),
            metrics=self.metrics,
            faults=FaultRecorder(self._store, self._clock, "commitments-sync"),
            offload=self._offload,
        )
        self.commitments.consistency.listing = syncer
        self.manager.add_task(SYNC_TASK, syncer.run, elector=self.elector, after_sync=True)

    def _add_cloud_inventory(self, ports: Ports, random: Random, ids: Ids) -> None:
        """Hosts are kept as their objects in other clusters are, by the process that leads."""
        source = ports.source

        async def read_placements() -> Mapping[str, str]:
            if source is not None:
                return {vm.id: vm.host for vm in (await source.list_vms()).vms}
            return {vm.name: vm.host for vm in self.informers.vms.items()}

        mirror = CloudInventorySyncer(
            self._store,
            ports.clusters,
            self.settings.inventory,
            CloudCaches(self.informers.hypervisors, self.informers.reservations),
            read_placements,
            clock=self._clock,
            random=random.fork("inventory"),
            ids=ids,
            metrics=self.metrics,
            faults=FaultRecorder(self._store, self._clock, "inventory"),
        )
        self.manager.add_task(INVENTORY_TASK, mirror.run, elector=self.elector, after_sync=True)

    def _add_inventory(self, source: InventorySource, random: Random) -> None:
        """Hosts, VMs and flavors are kept as a source has them, by the process that leads."""
        syncer = InventorySyncer(
            self._store,
            source,
            InventoryCache(self.informers, self.flavors),
            self.settings.openstack,
            clock=self._clock,
            random=random.fork("inventory"),
            metrics=self.metrics,
            faults=FaultRecorder(self._store, self._clock, "inventory"),
        )
        self.manager.add_task(INVENTORY_TASK, syncer.run, elector=self.elector, after_sync=True)
