"""A storage world: nodes with DRBD and a kubelet, a virtual Kubernetes, an agent on each node, and verbs that break it.

Everything happens on the running virtual loop; the same spec, seed and verbs give the same run. Nodes talk to each
other over links of pairs (``cut_link``), and each to the API server over one of its own (``cut_api``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from outlive.base import BadInput, Clock, LoopClock, NotFound, OutliveError, Random, SeededIds
from outlive.resources.foreign import (
    ForeignResource,
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    Lease,
    PersistentVolume,
    PodDisruptionBudget,
    VolumeAttachment,
)
from outlive.runtime import ClusterVerbs, OrderedTaskGroup
from outlive.simulation.history import History
from outlive.simulation.judges.truth import InvariantViolation
from outlive.simulation.kubernetes.attach_detach import AttachDetach, CsiAttacher
from outlive.simulation.kubernetes.connection import LATENCY_S, ApiConnection, ClientEvents
from outlive.simulation.kubernetes.controllers import CONTROLLERS, ControlLoop, wake_on_change
from outlive.simulation.kubernetes.documents import (
    budget_document,
    node_document,
    node_of,
    resource_of,
    taints_of,
    volume_document,
    workload_of,
)
from outlive.simulation.kubernetes.judges import OWN_TAINTS, StorageJudge
from outlive.simulation.kubernetes.kubelet import Kubelet, PodProcess
from outlive.simulation.kubernetes.server import ApiServer, Document, condition_of, is_terminating
from outlive.simulation.kubernetes.spec import (
    NodeSpecification,
    StorageSpec,
    nodes_of,
    volumes_of,
)
from outlive.simulation.kubernetes.verbs import STORAGE_VERBS
from outlive.simulation.kubernetes.volumes import NodeDrbdTool, Volumes
from outlive.simulation.machines import HostClock
from outlive.simulation.narration import format_sentence
from outlive.simulation.process import Process, go
from outlive.storage import DrbdTool
from outlive.store import FaultRates, Store

AGENT_START_S: Final = 5.0
"""From a kubelet that runs to the agent of its node."""
AGENT_RESTART_S: Final = 10.0
"""After an agent ended by itself."""
POLL_S: Final = 8.0
"""Between two polls of DRBD by an agent, and until it has acted on the first."""
STALE_S: Final = 30.0
"""So old may be what an agent acts on that cannot read DRBD (--drbd-stale-after)."""
CALLS_IN_A_ROW: Final = 8
"""Of one plan: a taint that others write too, a pod, an attachment."""
QUIET: Final = FaultRates()


class RunningAgent(Protocol):
    """A storage agent; one that has ``explain`` says why a pod is where it is, as ``StorageAgent`` does."""

    async def run(self) -> None:
        """Work until cancelled."""
        ...


class MakeAgent(Protocol):
    """Makes the agent of a node from its ports."""

    def __call__(
        self,
        node: str,
        store: Store,
        verbs: ClusterVerbs,
        events: ClientEvents,
        drbd: DrbdTool,
        clock: Clock,
        random: Random,
    ) -> RunningAgent:
        """An agent that has not begun."""
        ...


MakeVolumes = Callable[[Clock, Random, Sequence[str]], Volumes]
"""Makes the DRBD cluster of a world, from its clock and its nodes."""


class StorageNode:
    """A machine: power, kubelet, agent, clock, and what is wrong with it."""

    def __init__(self, spec: NodeSpecification) -> None:
        self.spec = spec
        self.name = spec.name
        self.clock = HostClock()
        self.on = False
        self.boots = 0
        self.api_cut = False
        self.drbdsetup_hangs = False
        self.garbled: str | None = None
        """What ``drbdsetup`` prints instead of its output."""
        self._readable_s = float("-inf")
        self.kubelet: Kubelet | None = None
        self.kubelet_process: Process | None = None
        self.agent: RunningAgent | None = None
        self.agent_process: Process | None = None
        self.agent_wanted = spec.agent
        self.connection: ApiConnection | None = None
        self.calls: Counter[str] = Counter()
        """Of all agents that ran here before."""

    def set_drbdsetup(self, *, hangs: bool = False, garbled: str | None = None) -> None:
        """How ``drbdsetup`` fares from now on."""
        if self.drbdsetup_hangs or self.garbled is not None:
            self._readable_s = self.clock.monotonic()
        self.drbdsetup_hangs, self.garbled = hangs, garbled

    @property
    def unreadable_s(self) -> float:
        """When ``drbdsetup`` last did not say how it is, by the node's monotonic clock."""
        broken = self.drbdsetup_hangs or self.garbled is not None
        return self.clock.monotonic() if broken else self._readable_s


class StorageWorld:
    """See the module. Use: ``build``, ``start``, verbs and sleeps, ``stop``; then look at ``violations``."""

    def __init__(
        self, spec: StorageSpec, *, seed: int, make_agent: MakeAgent, make_volumes: MakeVolumes, replay: str = ""
    ) -> None:
        self.spec = spec
        self.seed = seed
        self.clock = LoopClock()
        self.random = Random(seed)
        self.history = History()
        self.server = ApiServer(self.clock, SeededIds(self.random.fork("api")))
        self.nodes = {one.name: StorageNode(one) for one in nodes_of(spec)}
        self.volumes = make_volumes(self.clock, self.random.fork("drbd"), tuple(self.nodes))
        self.api_away = False
        self.api_latency_s = LATENCY_S
        self.api_rates = QUIET
        self.links_cut: dict[tuple[str, str], None] = {}
        """Pairs between which something is cut, each in both orders."""
        self.judge = StorageJudge(
            spec,
            self.server,
            self.volumes,
            self.history,
            processes=self.list_processes,
            explained=self._is_explained,
            lag_s=self._lag_s,
            seed=seed,
            replay=replay,
        )
        self._make_agent = make_agent
        self._tasks: list[asyncio.Task[None]] = []
        self._runs = itertools.count(1)
        self._last_text: dict[tuple[str, str], str] = {}
        """What the history says of each object."""

    # What others look at

    @property
    def violations(self) -> list[InvariantViolation]:
        """Invariants that did not hold, in order."""
        return self.judge.violations

    def list_processes(self) -> Iterable[PodProcess]:
        """Those of pods, on all nodes that have power."""
        return [
            process
            for node in self.nodes.values()
            if node.kubelet is not None
            for process in node.kubelet.processes.values()
        ]

    def count_calls(self) -> Counter[str]:
        """Calls of all agents since the beginning, by verb and kind."""
        found: Counter[str] = Counter()
        for node in self.nodes.values():
            found += node.calls + (node.connection.calls if node.connection is not None else Counter())
        return found

    def nodes_in(self, domain: str) -> tuple[str, ...]:
        """Nodes of a failure domain."""
        found = tuple(node.name for node in self.nodes.values() if node.spec.domain == domain)
        if not found:
            raise BadInput(f"no node is in {domain!r}", remedy="write a failure domain of the cluster")
        return found

    def find_nodes(self, nodes: Sequence[str] | None, domain: str | None = None) -> list[StorageNode]:
        """The nodes that a verb names, one by one or by their domain; ``BadInput`` names one that is not there."""
        names = self.nodes_in(domain) if domain is not None else tuple(nodes or ())
        for name in names:
            if name not in self.nodes:
                raise BadInput(f"there is no node {name}", remedy=f"nodes are {', '.join(self.nodes)}")
        return [self.nodes[name] for name in names]

    # Running

    async def build(self) -> None:
        """Create volumes and objects, as provisioners and operators would have."""
        for node in self.nodes.values():
            self.server.add(KubernetesNode, node_document(node.spec, self.server.format_now()))
        for workload in self.spec.workloads:
            for claim in volumes_of(workload):
                resource = resource_of(claim)
                self.volumes.create(resource, disks=workload.disks, diskless=workload.diskless, quorum=workload.quorum)
                self.server.add(PersistentVolume, volume_document(claim, resource))
            if workload.min_available is not None:
                self.server.add(PodDisruptionBudget, budget_document(workload))
            if workload.refuses_eviction:
                self.server.webhooks.append(_make_webhook(workload.name))
        self.server.changed.append(self._note_change)

    async def start(self) -> None:
        """Switch everything on."""
        parts = (self.server, self.clock)
        kinds: tuple[type[ControlLoop], ...] = (*CONTROLLERS, AttachDetach, CsiAttacher)
        loops = [kind(*parts, self.random.fork(kind.__name__), self.spec) for kind in kinds]
        wake_on_change(self.server, loops)
        for node in self.nodes.values():
            self._boot(node)
        for loop in loops:
            self._begin(loop.run(lambda: self.api_away), type(loop).__name__)
        self._begin(self.judge.watch(), "judge")

    async def stop(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        for node in self.nodes.values():
            self._end_processes(node)
        await self.clock.sleep(0)

    async def do(self, verb: str, arguments: Mapping[str, Any]) -> None:
        """Carry out one verb; ``BadInput`` where there is no such verb."""
        known = STORAGE_VERBS.get(verb)
        if known is None:
            raise BadInput(f"{verb!r} is no verb", remedy=f"verbs are {', '.join(STORAGE_VERBS)}")
        domain = arguments.get("domain")
        nodes = self.nodes_in(domain) if domain else tuple(arguments.get("nodes") or ())
        links = tuple(f"{a}-{b}" for a, b in arguments.get("between") or ())
        told = {key: value for key, value in arguments.items() if key not in ("nodes", "domain", "between")}
        text = format_sentence(known.sentence, told, (*nodes, *links))
        self.history.add("fault", next(iter(nodes), verb), text, also=nodes, loud=True)
        await known.carry_out(self, arguments, nodes)

    async def wait_settled(self, limit_s: float = 120.0) -> bool:
        """Wait until every pod writes; whether that came about."""
        until_s = self.clock.monotonic() + limit_s
        while self.clock.monotonic() < until_s:
            await self.clock.sleep(0.5)
            if len(self.judge.find_writing()) >= len(self.judge.wanted):
                return True
        return False

    async def wait_recovered(self, limit_s: float, rest_s: float = 0.0) -> list[str]:
        """Wait until everything is as it should be and stays so for ``rest_s``; what is not by then, in words."""
        now_s = self.clock.monotonic()
        until_s, well_s = now_s + limit_s, now_s
        while True:
            missing, now_s = self.judge.find_unrecovered(), self.clock.monotonic()
            if missing:
                well_s = now_s
            if (not missing and now_s - well_s >= rest_s) or now_s >= until_s:
                return missing
            await self.clock.sleep(1.0)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(go(work, name=name))

    # Machines

    def power_off(self, node: StorageNode) -> None:
        """It stops where it stands."""
        if node.on:
            node.on = False
            node.boots += 1
            self._end_processes(node)
            self.volumes.crash(node.name)

    def power_on(self, node: StorageNode) -> None:
        """It boots."""
        if not node.on:
            boots = node.boots = node.boots + 1
            asyncio.get_running_loop().call_later(
                node.spec.boot_s, lambda: self._boot(node) if node.boots == boots else None
            )

    def _boot(self, node: StorageNode) -> None:
        node.on = True
        node.clock.boot()
        self.volumes.boot(node.name)
        node.kubelet = Kubelet(
            node.name,
            self.server,
            volumes=self.volumes,
            clock=self.clock,
            random=self.random.fork(f"kubelet/{node.name}/{node.boots}"),
            reaches=lambda: not (self.api_away or node.api_cut),
            watcher=self.judge,
        )
        node.kubelet_process = Process(f"kubelet/{node.name}", next(self._runs))
        node.kubelet_process.start(node.kubelet.run, _fail)
        boots = node.boots
        first = self.clock.monotonic() == 0.0
        asyncio.get_running_loop().call_later(
            0.1 if first else AGENT_START_S, lambda: self._start_agent(node) if node.boots == boots else None
        )

    def _end_processes(self, node: StorageNode) -> None:
        for process in (node.agent_process, node.kubelet_process):
            if process is not None:
                process.kill()
        if node.kubelet is not None:
            node.kubelet.crash()
        node.kubelet = node.kubelet_process = node.agent_process = node.agent = None

    # Agents

    def stop_agent(self, node: StorageNode) -> None:
        """Its process is killed and not started again."""
        node.agent_wanted = False
        if node.agent_process is not None:
            node.agent_process.kill()
            node.agent_process = node.agent = None

    def start_agent(self, node: StorageNode) -> None:
        """Its process is started."""
        node.agent_wanted = node.spec.agent
        self._start_agent(node)

    def _start_agent(self, node: StorageNode) -> None:
        if not node.on or not node.agent_wanted or node.agent_process is not None:
            return
        if node.connection is not None:
            node.calls += node.connection.calls
        run = next(self._runs)
        process = node.agent_process = Process(f"agent/{node.name}", run)
        random = self.random.fork(f"agent/{node.name}/{run}")
        connection = node.connection = ApiConnection(
            self.server, process.name, process, clock=node.clock, random=random.fork("api")
        )
        self._connect(node)
        tool = NodeDrbdTool(
            self.volumes,
            node.name,
            process,
            random=random.fork("drbdsetup"),
            hangs=lambda: node.drbdsetup_hangs,
            garbled=lambda: node.garbled,
        )

        async def run_agent() -> None:
            agent = node.agent = self._make_agent(
                node.name, connection.store, connection.verbs, connection.events, tool, node.clock, random
            )
            async with OrderedTaskGroup() as group:
                group.create_task(connection.events.run(), name=f"{process.name}/events")
                await agent.run()

        process.start(run_agent, lambda ended: self._handle_agent_end(node, ended))

    def _handle_agent_end(self, node: StorageNode, process: Process) -> None:
        if node.agent_process is not process:
            return
        node.agent_process = node.agent = None
        error = process.error
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.history.add("process", node.name, f"the agent of {node.name} ended: {error or 'by itself'}", loud=True)
        if error is not None and not isinstance(error, OutliveError):
            self.judge.violate("defect", node.name, f"its agent failed: {type(error).__name__}: {error}")
        boots = node.boots
        asyncio.get_running_loop().call_later(
            AGENT_RESTART_S, lambda: self._start_agent(node) if node.boots == boots else None
        )

    def _is_explained(self, pod: str) -> bool:
        """Whether the agent of some node says more of a pod than that nothing is lost."""
        for node in self.nodes.values():
            explain = getattr(node.agent, "explain", None)
            with contextlib.suppress(NotFound):
                found = explain("pod", pod) if explain is not None else None
                if found is not None and (
                    found.notices or any(not one.holds for each in found.resources for one in each.checks)
                ):
                    return True
        return False

    def _lag_s(self, client: str) -> float:
        """How old what an agent knows may be when a call of it takes effect, and nothing is wrong with the agent."""
        node = self.nodes[client.rpartition("/")[2]]
        lag_s = POLL_S + CALLS_IN_A_ROW * 2 * self.api_latency_s
        if node.clock.monotonic() - node.unreadable_s < POLL_S:
            lag_s += STALE_S
        return lag_s

    # Networks

    def cut_link(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing of DRBD goes from ``a`` to ``b``, nor back unless ``one_way``."""
        self.links_cut[(a, b)] = self.links_cut[(b, a)] = None
        self.volumes.cut(a, b, one_way=one_way)

    def heal_link(self, a: str, b: str) -> None:
        """DRBD works between them."""
        if (a, b) in self.links_cut:
            del self.links_cut[(a, b)], self.links_cut[(b, a)]
            self.volumes.heal(a, b)

    def reach_api(self) -> None:
        """Calls of all agents reach the API server as outages, cuts and faults let them now."""
        for node in self.nodes.values():
            self._connect(node)

    def _connect(self, node: StorageNode) -> None:
        if node.connection is not None:
            reachable = not (self.api_away or node.api_cut)
            node.connection.set(reachable=reachable, latency_s=self.api_latency_s, rates=self.api_rates)

    def heal(self) -> None:
        """Everything works again, and every node gets power."""
        for a, b in list(self.links_cut):
            self.heal_link(a, b)
        self.api_away, self.api_latency_s, self.api_rates = False, LATENCY_S, QUIET
        for node in self.nodes.values():
            node.api_cut = False
            node.set_drbdsetup()
            self.power_on(node)
            if not node.agent_wanted:
                self.start_agent(node)
            self.server.edit(KubernetesNode, node.name, lambda one: one["spec"].pop("unschedulable", None))
        self.reach_api()

    # The history

    def _note_change(self, kind: type[ForeignResource], key: str, document: Document | None) -> None:
        """Every write enters the hash; those that a story tells become events."""
        version = document["metadata"]["resourceVersion"] if document is not None else "-"
        self.history.hash_write(f"{self.clock.monotonic()!r}|{kind.kind()}|{key}|{version}", b"")
        if kind in (Lease, KubernetesEvent):
            return
        name = key.rpartition("/")[2]
        text, loud = "", False
        if kind is KubernetesNode and document is not None:
            ready = {"True": "ready", "Unknown": "not ready: its kubelet is silent"}.get(
                condition_of(document, "Ready"), "not ready"
            )
            own = sorted({one["key"] for one in taints_of(document) if one["key"].startswith(OWN_TAINTS)})
            text, loud = f"{name} is {ready}{', tainted ' + ' and '.join(own) if own else ''}", True
        elif kind is KubernetesPod:
            state = "is gone" if document is None else "is to end" if is_terminating(document) else ""
            if document is not None and not state and node_of(document):
                state = f"is bound to {node_of(document)}"
            text = f"pod {name} {state or 'waits for a node'}"
        elif kind is VolumeAttachment:
            if document is None:
                text = f"attachment {name} is gone"
            else:
                place = document["spec"]
                what = "being detached from" if is_terminating(document) else "attached to"
                text = f"{place['source']['persistentVolumeName']} is {what} {place['nodeName']}"
        if text and self._last_text.get((kind.kind(), key)) != text:
            self._last_text[(kind.kind(), key)] = text
            self.history.add(kind.singular_name(), name, text, loud=loud)


def _make_webhook(workload: str) -> Callable[[Document], str]:
    """A webhook that refuses to evict pods of a workload."""

    def refuse(pod: Document) -> str:
        refused = workload_of(pod) == workload
        return "admission webhook denied the request: its VM is to be evacuated" if refused else ""

    return refuse


def _fail(process: Process) -> None:
    """A kubelet does not end by itself: what did is an error of the simulation."""
    if process.error is not None:
        raise process.error
