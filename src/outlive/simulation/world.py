"""A virtual cluster: built from a ``WorldSpec``, run by the product's own programs, changed by verbs, judged all along.

Everything happens on the running virtual loop; the same spec, seed and verbs give the same run. ``do`` carries out one
verb of a timeline; what they are is in ``outlive.simulation.verbs``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from outlive.base import BadInput, Clock, Ids, LoopClock, OutliveError, Random, SeededIds, as_datetime
from outlive.node import sight_without_server
from outlive.node.functions import SriovDevice
from outlive.node.ports import DomainState
from outlive.node.vm import NodeSettings
from outlive.resources import (
    CANDIDATE,
    CONTROLLER,
    DAEMON,
    FENCER,
    PRIMARY,
    Amounts,
    Election,
    Hypervisor,
    RenewalSight,
    VirtualMachine,
    VirtualMachinePort,
    convert,
)
from outlive.roles import ROLE as FAILOVER_ROLE
from outlive.roles import HostFunctions, NodePorts, NodeRole
from outlive.runtime import decode_unit
from outlive.simulation.controllers import Bmc, PowerClient
from outlive.simulation.disks import SimDisks, StorageClient
from outlive.simulation.ensemble import Ensemble
from outlive.simulation.guards import SimGuardClient
from outlive.simulation.history import History
from outlive.simulation.hosts import HypervisorClient, Program, SimHost, SimService
from outlive.simulation.hypervisors import DeadDisks, SimHypervisor
from outlive.simulation.judges.addresses import JUDGED_EVERY_S, AddressJudge
from outlive.simulation.judges.judge import Judge
from outlive.simulation.judges.truth import InvariantViolation, Truth
from outlive.simulation.limes import SimLimes
from outlive.simulation.links.processes import OwnNetworks
from outlive.simulation.machines import HostClock, Machine, MachineClient
from outlive.simulation.narration import format_sentence
from outlive.simulation.network.fabric import Fabric
from outlive.simulation.network.processes import LoneNetworkController, NetworkProcesses
from outlive.simulation.networks import Networks, Segment
from outlive.simulation.process import Process, go
from outlive.simulation.programs import ControllerRole, SimDuty
from outlive.simulation.setup import build_running, fabric_ports, resources_of
from outlive.simulation.spec import HostSpec, WorldSpec, has_own_networks, hosts_of, uses_ovn
from outlive.simulation.stores import QUIET, Author, ProcessStore, Refused, StoreLink, WorldStore, Wrote, add_lag
from outlive.simulation.tokens import ShownVersion, TokenStore
from outlive.simulation.verbs import VERBS

MakeStore = Callable[[Clock, Ids, Wrote, Refused], WorldStore]
"""Makes the store of a world, which reports every write once it counts, and every one that it refuses."""
CONTROLLER_RESTART_S: Final = 2.0
BESIDE: Final = "/controller"
"""How the controller is named that runs beside a host's daemon."""
LOOK_S: Final = 0.5
"""How often ``wait_settled`` and the judge of coverage look."""
REPORTED_S: Final = 1.0
"""What is reported must be true so long after the last change."""
LEADS_S: Final = 20.0
"""So long somebody must have led before he is held to that: he has to learn what there is first, and after a restored
backup to win the election once more."""


class World:
    """See the module. Use: ``build``, ``start``, verbs and sleeps, ``stop``; then look at ``violations``."""

    def __init__(self, spec: WorldSpec, *, seed: int, replay: str = "", store: MakeStore = WorldStore) -> None:
        self.spec = spec
        self.seed = seed
        self.clock = LoopClock()
        self.random = Random(seed)
        self.history = History()
        self.store = store(
            self.clock,
            SeededIds(self.random.fork("store")),
            lambda write, author: self.judge.judge_write(write, author),
            lambda write, author, refusal: self.judge.judge_refusal(write, author, refusal),
        )
        self.disks = SimDisks(spec.cuts, lambda host: self.judge.judge_host(host), self.random.fork("disks"))
        self.networks = Networks(self._handle_network_change)
        self.hosts: dict[str, SimHost] = {}
        self.dead_disks: dict[str, DeadDisks] = {}
        """How guests of a host fare that does not reach the storage."""
        self.hung_duties: set[str] = set()
        self.guests_use: dict[str, Amounts] = {}
        """What VMs use of their hosts, as a timeline says."""
        """Hosts on which what the primary does does not end."""
        self.controllers: dict[str, SimService] = {}
        self.rates = QUIET
        self.store_down = False
        self.ensemble: Ensemble | None = None
        """Servers of ZooKeeper below the store, where there are any."""
        if spec.zookeeper:
            self.ensemble = Ensemble(
                spec.zookeeper,
                self.clock,
                self.reach_store,
                lambda work: self.start_task(work, name="ensemble settles"),
            )
        self._hypervisors: dict[str, SimHypervisor] = {}
        self._bmcs: dict[str, Bmc] = {}
        self._ways: dict[str, list[tuple[Process, StoreLink]]] = {}
        self._shown: dict[tuple[str, str, str], ShownVersion] = {}
        self.slow: dict[str, float] = {}
        """Hosts whose way to the store is slow, and by how many seconds more, one way; the empty name: everybody's."""
        self._tasks: list[asyncio.Task[None]] = []
        self.withdrawn: dict[str, Hypervisor] = {}
        """Documents of hosts that somebody deleted."""
        self.fabric: Fabric | None = None
        """OVN, where VMs have networks there."""
        if uses_ovn(spec):
            self.fabric = Fabric(
                fabric_ports(spec),
                self._hypervisors,
                self.networks,
                lambda name: self.store.find(VirtualMachinePort, name),
                self.random.fork("ovn"),
            )
            self.network_processes = NetworkProcesses(self.fabric, self.networks)
        self.second_network: SimService | None = None
        """A network controller that writes beside the one that leads."""
        self.own: OwnNetworks | None = None
        """Networks that hosts make themselves, where they do."""
        self.addresses: AddressJudge | None = None
        if has_own_networks(spec):
            self.own = OwnNetworks(spec, self.store, self.hosts, self._hypervisors, self.networks, self.history)
            self.addresses = AddressJudge(self, self.own)
        self.truth = Truth(
            self.store, self._hypervisors, self.disks, self.history, daemons=spec.daemons, fabric=self.fabric
        )
        self.judge = Judge(self.truth, seed=seed, replay=replay)
        self.limes = SimLimes(self)
        for host in hosts_of(spec):
            self._add_host(host)
        if self.fabric is not None:
            self.fabric.ovn.listeners.append(lambda before, after, _: self.judge.judge_rows(before, after))
            self.fabric.ovn.flow_listeners.append(self.judge.judge_presence)
        if self.own is not None and self.addresses is not None:
            self.own.changed = self.addresses.note_change
            self.judge.addresses_at_rest = self.addresses.judge_rest
        self._add_controllers()

    # What others look at

    @property
    def violations(self) -> list[InvariantViolation]:
        """Invariants that did not hold, in order."""
        return self.judge.violations

    def running_hosts(self, vm: str) -> tuple[str, ...]:
        """Hosts whose domain of it really runs."""
        return self.truth.running_hosts(vm)

    def domains_of(self, name: str) -> tuple[str, ...]:
        """Hosts of a failure domain such as ``rack=r3``."""
        key, _, value = name.partition("=")
        found = tuple(
            host.name
            for host in self.hosts.values()
            if (host.spec.rack if key == "rack" else host.spec.zone if key == "zone" else host.spec.domains.get(key))
            == value
        )
        if not found:
            raise BadInput(f"no host is in {name}", remedy="write a failure domain of the cluster, such as rack=r3")
        return found

    def find_hosts(self, hosts: Sequence[str]) -> list[SimHost]:
        """These hosts; ``BadInput`` names one that is not there."""
        for name in hosts:
            if name not in self.hosts:
                raise BadInput(f"there is no host {name}", remedy=f"hosts are {', '.join(self.hosts)}")
        return [self.hosts[name] for name in hosts]

    # Running

    async def build(self) -> None:
        """Put hosts, VMs and policies into the store, as an operator would have."""
        await self.store.fill(resources_of(self.spec, self._bmcs, incarnation=self.store.incarnation))

    async def start(self, *, running: bool = False) -> None:
        """Power everything on, as if it had booted just now; ``running``: as if it had done so long ago."""
        for host in self.hosts.values() if self.spec.daemons else ():
            host.machine.plug(at_once=True)
        if running:
            build_running(self)
        for controller in self.controllers.values():
            controller.start()

        self.start_task(self._watch_coverage(), name="coverage is judged")
        if self.own is not None and self.addresses is not None:
            self.start_task(self.own.ask(self.clock), name="guests ask for addresses")
            self.start_task(self._watch_addresses(self.addresses), name="addresses are judged")

    def start_task(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Do it beside everything else, until the world stops."""
        self._tasks.append(go(work, name=name))

    async def stop(self) -> None:
        """End every process and machine."""
        for task in self._tasks:
            task.cancel()
        for controller in (*self.controllers.values(), *((self.second_network,) if self.second_network else ())):
            controller.kill(again=False)
        for host in self.hosts.values():
            host.machine.unplug()
        await self.clock.sleep(0)

    async def do(self, verb: str, arguments: Mapping[str, Any]) -> None:
        """Carry out one verb; ``BadInput`` where there is no such verb."""
        known = VERBS.get(verb)
        if known is None:
            raise BadInput(f"{verb!r} is no verb", remedy=f"verbs are {', '.join(VERBS)}")
        one = (arguments["host"],) if arguments.get("host") else ()
        hosts = self.domains_of(arguments["domain"]) if "domain" in arguments else arguments.get("hosts", one)
        keys = ("host", "hosts", "vm", "vms", "names", "domain")
        named = next((arguments[key] for key in keys if key in arguments), "cluster")
        subject = ", ".join(map(str, named)) if isinstance(named, tuple | list) else str(named)
        self.history.add("fault", subject, format_sentence(known.sentence, arguments, hosts), loud=True)
        await known.carry_out(self, arguments, hosts)

    async def attempt(self, verb: str, arguments: Mapping[str, Any]) -> None:
        """The same; what comes to nothing is an event of the history."""
        try:
            await self.do(verb, arguments)
        except OutliveError as error:
            self.history.add("fault", verb, f"came to nothing: {error.message}")

    async def wait_settled(self, limit_s: float = 120.0) -> bool:
        """Wait until every VM that should run is seen running; whether that came about."""
        until = self.clock.monotonic() + limit_s
        while self.clock.monotonic() < until:
            await self.clock.sleep(LOOK_S)
            if self.are_all_running():
                return True
        return False

    async def _watch_coverage(self) -> None:
        """S3: judge what is reported a second after each last change, while somebody leads who can report it.

        In a store that was restored everybody has to learn anew what there is.
        """
        leads_since, judged = 0.0, -1.0
        leader: tuple[str, int, Process, int] | None = None
        while True:
            await self.clock.sleep(LOOK_S)
            now, leads = self.clock.monotonic(), self._find_leader()
            present = (self.store.incarnation, *leads) if leads is not None else None
            if present != leader:
                leader, leads_since = present, now
            changed = self.judge.changed_s
            able = leader is not None and now - leads_since >= LEADS_S
            if able and changed != judged and now - changed >= REPORTED_S:
                judged = changed
                self.judge.judge_coverage()

    async def _watch_addresses(self, addresses: AddressJudge) -> None:
        while True:
            await self.clock.sleep(JUDGED_EVERY_S)
            addresses.judge()

    def _find_leader(self) -> tuple[int, Process, int] | None:
        """In which term, and who leads failover and can do so: it runs, and the store hears and answers it in time.

        And how often it could not, because what is over before somebody looks again delays its reports as well.
        """
        election = self.store.find(Election, FAILOVER_ROLE)
        service = self.leading_service()
        if election is None or service is None or service.process is None or not service.active:
            return None
        if self.rates != QUIET or self.store.failing:
            return None
        ways = [way for ways in self._ways.values() for process, way in ways if process is service.process]
        able = all(way.sends and way.hears and way.latency_s <= self.spec.latency_s for way in ways)
        interruptions = service.process.halts + sum(way.interruptions for way in ways)
        return (election.record.term, service.process, interruptions) if able else None

    def are_all_running(self) -> bool:
        """Whether every VM that should run has one holder, that has seen it run."""
        vms = self.store.list_all(VirtualMachine)
        return all(
            vm.spec.power_state != "running" or (len(vm.status.holders) == 1 and vm.status.holders[0].seen == "running")
            for vm in vms
        )

    def leading_service(self) -> SimService | None:
        """The controller that the store names as the one that leads, if its process is alive, halted or not."""
        election = self.store.find(Election, FAILOVER_ROLE)
        service = self.find_controller(election.record.holder.rpartition("-")[0]) if election is not None else None
        return service if service is not None and service.alive else None

    def answering_server(self) -> ControllerRole | None:
        """The server that a command would ask: the one that leads, else any that runs; ``None`` where none does."""
        beside = [host.beside for host in self.hosts.values() if host.beside is not None]
        leading = self.leading_service()
        for service in (*((leading,) if leading is not None else ()), *self.controllers.values(), *beside):
            if service.active and isinstance(service.role, ControllerRole):
                return service.role
        return None

    async def read_sight(self) -> RenewalSight:
        """What is seen of renewals by a server that answers; by nobody where none does."""
        server = self.answering_server()
        if server is None:
            return sight_without_server(as_datetime(self.clock.now()))
        found: RenewalSight = convert(RenewalSight, await server.role.recovery.liveness.answer_liveness({}))
        return found

    # Processes and their ports

    def make_way(self, process: Process, host: str, clock: HostClock) -> StoreLink:
        """A new way to the store for a process on that machine."""
        way = StoreLink(
            self.store.way_end(process.part.name),
            process,
            clock=clock,
            random=self.random.fork(f"way/{process.part.name}"),
            acknowledged=self.judge.judge_acknowledged,
        )
        kept = [(one, other) for one, other in self._ways.get(host, []) if one.alive]
        self._ways[host] = [*kept, (process, way)]
        self._connect(host, way)
        return way

    def reach_store(self, host: str | None = None) -> None:
        """Calls of this host, or of everybody, reach the store as outages, networks, delays and faults let them now."""
        for name, ways in self._ways.items():
            for _, way in ways if host in (None, name) else ():
                self._connect(name, way)

    def _connect(self, host: str, way: StoreLink) -> None:
        up = not self.store_down and (self.ensemble is None or self.ensemble.is_serving(host))
        way.latency_s = self.spec.latency_s + max(self.slow.get(host, 0.0), self.slow.get("", 0.0))
        lag_s = self.ensemble.lag_s(host) if self.ensemble is not None else 0.0
        way.faults.network.rates = add_lag(self.rates, lag_s)
        way.set(
            sends=up and self.networks.can_send(Segment.STORE, host),
            hears=up and self.networks.can_receive(Segment.STORE, host),
        )

    def make_daemon(self, host: SimHost, process: Process) -> Program:
        """The node daemon of a host, with its ports."""
        machine, name = host.machine, host.name
        store = ProcessStore(self.make_way(process, name, machine.clock), Author(host.daemon.name, name, ()))
        storage = StorageClient(self.disks, process, name, lambda: self.networks.can_reach(Segment.STORAGE, name))
        ports = NodePorts(
            hypervisor=HypervisorClient(host.hypervisor, process),
            machine=MachineClient(machine, process),
            guard=SimGuardClient(host.answering_guard, machine, process),
            storage=storage,
            power=PowerClient(process, self._bmcs, lambda other: self.networks.can_reach(Segment.BMC, name, other)),
            cut=None if self.spec.cuts == "none" else storage,
            functions=_host_functions(host),
        )
        shown = partial(
            TokenStore,
            host=name,
            world=self.store,
            known=self._shown,
            refused=partial(self.judge.read, host.daemon.name),
        )
        random = self.random.fork(f"daemon/{process.part.name}")
        is_candidate = self.spec.primary_role and host.spec.mode == "coordinator"
        if self.own is not None:
            ports = self.own.add_links(ports, host, process)
        own = shown(store.with_writers(*DAEMON, *(PRIMARY if is_candidate else ())), "host")
        coordinator = shown(store.with_writers(*FENCER, *(CANDIDATE + PRIMARY if is_candidate else ())), "coordinator")
        if self.fabric is not None:
            ports = self.network_processes.add_network(
                ports,
                own,
                coordinator if host.spec.mode == "coordinator" else None,
                host=host,
                process=process,
                random=random.fork("ovn"),
                cuts=self.spec.cuts,
            )
        settings = msgspec.convert(self.spec.settings.get("node", {}), NodeSettings, dec_hook=decode_unit)
        return NodeRole(
            own,
            coordinator,
            settings,
            ports,
            host=name,
            clock=machine.clock,
            random=random,
            ids=SeededIds(random.fork("ids")),
            duties=(SimDuty(self, name, process),) if self.spec.primary_role else None,
        )

    def _make_controller(self, name: str, host: str, clock: HostClock, process: Process) -> Program:
        store = ProcessStore(self.make_way(process, host, clock), Author(name, "", ()))
        identity = f"{name}-{process.part.name.rpartition('#')[2]}"
        random = self.random.fork(f"controller/{process.part.name}")
        databases = None
        if self.fabric is not None:
            databases = self.network_processes.connect_databases(
                host, process, clock, random.fork("ovn"), lambda: self._die(name)
            )
        return ControllerRole(
            store, self.spec.settings, identity=identity, clock=clock, random=random, network=databases
        )

    def make_network_controller(self, process: Process) -> Program:
        """A network controller on a machine of its own, which asks nobody whether it leads."""
        name, clock = process.name, HostClock()
        store = ProcessStore(self.make_way(process, name, clock), Author(name, "", ()))
        random = self.random.fork(f"controller/{process.part.name}")
        databases = self.network_processes.connect_databases(
            name, process, clock, random.fork("ovn"), self._end_second_network
        )
        return LoneNetworkController(store.with_writers(*CONTROLLER), databases, clock=clock, random=random)

    def _end_second_network(self) -> None:
        if self.second_network is not None:
            self.second_network.kill()

    def _die(self, controller: str) -> None:
        """The controller that does this now dies, and is started again."""
        service = self.find_controller(controller)
        if service is not None:
            service.kill()

    # Building

    def _add_host(self, spec: HostSpec) -> None:
        name = spec.name
        random = self.random.fork(f"host/{name}")
        hypervisor = SimHypervisor(
            name,
            random=random.fork("hypervisor"),
            changed=lambda vm, how: self._handle_domain_change(name, vm, how),
            peer=lambda other: self._find_peer(name, other),
        )
        machine = Machine(
            name,
            ids=SeededIds(random.fork("ids")),
            capacity=Amounts.parse({"cpu": spec.cpu, "memory": spec.memory}),
            boot_s=spec.boot_s,
            up=lambda: self._handle_host_boot(name),
            down=lambda how: self._handle_host_end(name, how),
        )
        machine.system_uuid = spec.system_uuid or machine.system_uuid
        bmc = Bmc(machine, random=random.fork("bmc"), mode=spec.bmc, answer_s=spec.bmc_answer_s)
        self._hypervisors[name] = hypervisor
        self._bmcs[name] = bmc
        self.hosts[name] = SimHost(
            spec,
            machine=machine,
            hypervisor=hypervisor,
            bmc=bmc,
            daemon=self.make_daemon,
            guarded=self.judge.judge_guard,
            history=self.history,
            guests_use=self.guests_use,
            paced=self._handle_host_pace,
        )
        if self.fabric is not None:
            self.fabric.add_host(name)
        if self.own is not None:
            self.own.add_host(self.hosts[name])
        if spec.bmc == "lying":
            self.truth.lied[name] = spec.bmc

    def wire(self, host: str, mode: str, to: str = "", answer_s: float | None = None) -> None:
        """A BMC behaves in another way from now on."""
        bmc = self._bmcs[host]
        bmc.mode = mode  # type: ignore[assignment]
        bmc.answer_s = self.hosts[host].spec.bmc_answer_s if answer_s is None else answer_s
        bmc.machine = self.hosts[to].machine if mode == "wired-to" else self.hosts[host].machine
        if mode in ("lying", "wired-to"):
            self.truth.lied[host] = mode

    def _add_controllers(self) -> None:
        wanted = self.spec.controllers
        if wanted == "on-coordinators":
            for host in self.hosts.values():
                if host.spec.mode == "coordinator":
                    host.beside = self._make_service(f"{host.name}{BESIDE}", host.name, host.machine.clock)
            return
        for number in range(1, wanted + 1):
            name = f"ctl-{number}"
            self.controllers[name] = self._make_service(name, name, HostClock())

    def _make_service(self, name: str, host: str, clock: HostClock) -> SimService:
        return SimService(
            name,
            lambda process: self._make_controller(name, host, clock, process),
            self.history,
            CONTROLLER_RESTART_S,
        )

    def find_controller(self, name: str) -> SimService | None:
        """A controller by its name, on a machine of its own (``ctl-1``) or beside a daemon (``kvm-1/controller``)."""
        host = self.hosts.get(name.removesuffix(BESIDE)) if name.endswith(BESIDE) else None
        return host.beside if host is not None else self.controllers.get(name)

    # What happens below

    def _handle_host_boot(self, host: str) -> None:
        self.hosts[host].handle_boot()
        if self.fabric is not None:
            self.fabric.handle_boot(host)

    def _handle_host_end(self, host: str, how: str) -> None:
        if self.fabric is not None:
            self.fabric.handle_power_loss(host)
        self.hosts[host].handle_end(how)
        if self.own is not None:
            self.own.handle_end(host)

    def _handle_host_pace(self, host: str) -> None:
        if self.addresses is not None:
            self.addresses.note_change()
        if self.own is not None:
            self.own.guards[host].handle_pace(self.hosts[host].paused)
        if self.fabric is not None:
            self.fabric.handle_pause(host)

    def _handle_domain_change(self, host: str, vm: str, how: str) -> None:
        hypervisor = self._hypervisors[host]
        domain = hypervisor.domains.get(vm)
        if domain is not None and domain.state is DomainState.RUNNING:
            self.disks.open_disks(host, domain)
        elif domain is None and how == "destroyed":
            found = self.truth.find_vm(vm)
            self.disks.close_disks(host, found.spec.disks if found is not None else ())
        if self.fabric is not None:
            self.fabric.update_domain(host, vm)
        self.judge.judge_domain(host, vm, how)

    def _handle_network_change(self, segment: Segment, host: str) -> None:
        if segment is Segment.STORE:
            self.reach_store(host)
            if self.fabric is not None and host in self.hosts:
                self.fabric.refresh(host)
        elif segment is Segment.VM and self.fabric is not None:
            self.judge.judge_host(host)
        elif segment is Segment.STORAGE and self.networks.can_reach(segment, host):
            self._hypervisors[host].regain_storage()
        elif segment is Segment.STORAGE:
            self._hypervisors[host].lose_storage(self.dead_disks.get(host, "stall"))

    def _find_peer(self, host: str, other: str) -> SimHypervisor | None:
        found = self._hypervisors.get(other)
        if found is None or not found.powered or not self.networks.can_reach(Segment.STORAGE, host, other):
            return None
        return found


def _host_functions(host: SimHost) -> HostFunctions | None:
    """Virtual functions of its cards, as its configuration names them."""
    devices = tuple(SriovDevice(device=name, count=count) for name, count in host.spec.functions.items())
    return HostFunctions(host.cards, devices) if devices else None
