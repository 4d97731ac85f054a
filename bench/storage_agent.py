"""The storage agent: how soon it acts on a real API server, what a tick takes, what it holds and how often it calls."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.drbd import DrbdLab
from tests.support.api_server import STORAGE_AGENT, ApiServer, can_run, shared_server
from tests.support.kubelets import DRIVER, ControllerManager, Kubelets
from tests.support.storage_agents import AgentProcess

from bench.figures import Figure
from outlive.base import BadInput, Random, SystemClock, configure_logging, limit_collections
from outlive.resources.foreign import KubernetesNode, KubernetesPod, PersistentVolume, VolumeAttachment
from outlive.storage import AgentMetrics, CommandOutput, StorageAgent, parse_options
from outlive.store import Change, Synced, Upsert, decode_stored

RESOURCES, PODS, POD_BYTES = 200, 5_000, 10 * 1024
NODES = ("bench-1", "bench-2", "bench-3", "bench-4")
LOST, OWN = NODES[:2]
TICKS = 30
RUNS = 3
USERS = 50
"""Pods on the lost node whose calls are counted."""
GRACE_S, SYNC_S = 40.0, 10.0
QUICK_GRACE_S = 8.0
LOOK_S = 0.02
LIMIT_S = 240.0
QUIET_S = 25.0
"""After the last pod has left: longer than survivors stand by."""
NAMESPACE, ACCOUNT = STORAGE_AGENT.split(":")[2:]
MANIFESTS = Path(__file__).parents[1] / "deploy/kubernetes/storage-agent"


# A tick


def documents() -> dict[type[Any], list[dict[str, Any]]]:
    """The objects of a cluster: a volume, a pod and an attachment for each resource, and many other pods."""
    objects: dict[type[Any], list[dict[str, Any]]] = {KubernetesNode: [], PersistentVolume: [], VolumeAttachment: []}
    for name in NODES:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        objects[KubernetesNode].append({"metadata": {"name": name}, "spec": {}, "status": ready})
    for number in range(RESOURCES):
        name = f"pvc-{number:04}"
        claim = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "shop", "name": f"data-{number}"}
        spec = {"csi": {"driver": DRIVER, "volumeHandle": name}, "claimRef": {**claim, "uid": f"c-{number}"}}
        objects[PersistentVolume].append({"metadata": {"name": name}, "spec": spec})
        where = {"attacher": DRIVER, "nodeName": LOST, "source": {"persistentVolumeName": name}}
        objects[VolumeAttachment].append({"metadata": {"name": f"csi-{number}"}, "spec": where})
    objects[KubernetesPod] = [pod_document(number) for number in range(PODS)]
    for kind, many in objects.items():
        for number, one in enumerate(many):
            one["metadata"] |= {"uid": f"{kind.kind()}-{number}", "resourceVersion": "1"}
            one |= {"apiVersion": kind.info.api_version, "kind": kind.kind()}
    return objects


def pod_document(number: int) -> dict[str, Any]:
    """A pod of 10 KiB, as an API server has them: most of it is what nobody reads."""
    volumes = [{"name": "config", "configMap": {"name": "config"}}]
    if number < RESOURCES:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": f"data-{number}"}})
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": True}
    document: dict[str, Any] = {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "shop",
            "labels": {"app": "db", "pod": f"pod-{number}"},
            "ownerReferences": [owner],
            "managedFields": [],
        },
        "spec": {
            "nodeName": LOST if number < RESOURCES else NODES[number % len(NODES)],
            "volumes": volumes,
            "containers": [{"name": "c", "image": "i", "env": []}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    left, size = POD_BYTES - len(json.dumps(document)), 60
    variables = [{"name": f"VARIABLE_{n}", "value": "x" * (size - 36)} for n in range(left // 2 // size)]
    document["spec"]["containers"][0]["env"] = variables
    fields: dict[str, Any] = {f"f:field-{n}": {f"f:{n}": {}} for n in range(left // 2 // 28)}
    document["metadata"]["managedFields"] = [
        {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
    ]
    return document


class FixedStore:
    """A store that lists what there is, and nothing ever changes."""

    embedded = False

    def __init__(self) -> None:
        self._objects = documents()

    async def observe(self, kind: type[Any], *, selector: Any = None) -> AsyncGenerator[Change[Any], None]:
        """All objects, then nothing."""
        for document in self._objects[kind]:
            found = decode_stored(kind, json.dumps(document).encode())
            assert isinstance(found, kind), found
            yield Upsert(found)
        yield Synced()
        await asyncio.get_running_loop().create_future()


class FixedDrbd:
    """``DrbdTool`` of a node that is secondary of all resources; ``lost``: whether one of three peers is."""

    def __init__(self, *, lost: bool) -> None:
        self._lost = lost

    async def is_loaded(self) -> bool:
        """It is."""
        return True

    async def run(self, argv: Sequence[str], *, limit_s: float | None) -> CommandOutput:
        """The state of all resources."""
        names = [f"pvc-{number:04}" for number in range(RESOURCES)]
        if argv[1] == "show":
            found: Any = [{"resource": name, "options": {"quorum": "majority"}} for name in names]
        else:
            found = [self._status(name) for name in names]
        return CommandOutput(argv=tuple(argv), exit=0, stdout=json.dumps(found))

    def _status(self, name: str) -> dict[str, Any]:
        connections = []
        for number, peer in enumerate(NODES):
            if peer == OWN:
                continue
            gone = self._lost and peer == LOST
            role = "Unknown" if gone else "Primary" if peer == LOST else "Secondary"
            connections.append(
                {
                    "peer-node-id": number,
                    "name": peer,
                    "peer-role": role,
                    "connection-state": "Connecting" if gone else "Connected",
                    "peer_devices": [{"volume": 0, "peer-disk-state": "DUnknown" if gone else "UpToDate"}],
                }
            )
        device = {"volume": 0, "disk-state": "UpToDate", "quorum": True}
        return {"name": name, "node-id": 1, "role": "Secondary", "devices": [device], "connections": connections}

    async def follow_events(self) -> AsyncGenerator[str, None]:
        """None."""
        await asyncio.get_running_loop().create_future()
        yield ""


class NoEvents:
    """``ClusterEvents`` that nobody reads."""

    def emit(self, *_: Any, **__: Any) -> None:
        """Dropped."""


async def tick_ms(*, lost: bool, acts: bool = False) -> float:
    """Median of ticks, in milliseconds. ``acts``: each makes its plans, and reports them as a dry run."""
    words = ["--dry-run", "--operations-timeout=60s", f"--fail-over-timeout={'0s' if acts else '1h'}"]
    words += ["--brake-fraction=1", "--drbd-stale-after=1h"]
    clock = SystemClock()
    agent = StorageAgent(
        parse_options(words, {"NODE_NAME": OWN}),
        store=FixedStore(),  # type: ignore[arg-type]
        verbs=None,  # type: ignore[arg-type]
        events=NoEvents(),
        drbd=FixedDrbd(lost=lost),
        clock=clock,
        random=Random(1),
        metrics=AgentMetrics(lambda: None),
    )
    filling = asyncio.create_task(agent.cache.run())
    await agent.cache.wait_filled()
    await agent.observer.poll()
    limit_collections()
    times = []
    for _ in range(TICKS):
        began = time.perf_counter()
        await agent.tick()
        times.append(1000 * (time.perf_counter() - began))
    filling.cancel()
    pending = 0 if acts else len(agent.tick_input().memory["firstSeen"]) if lost else 0
    assert pending == (RESOURCES if lost and not acts else 0)
    return statistics.median(times)


# Real processes


def until(holds: Callable[[], Any], limit_s: float = LIMIT_S) -> float:
    """When it held first, on the monotonic clock."""
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            raise BadInput(f"storage_agent: {holds} did not come about within {limit_s:g} s")
        time.sleep(LOOK_S)
    return time.monotonic()


@contextlib.contextmanager
def cluster(server: ApiServer, nodes: tuple[str, ...], name: str, pods: int) -> Iterator[tuple[DrbdLab, Kubelets]]:
    """Nodes, and a StatefulSet whose pods all run on the first one."""
    with (
        tempfile.TemporaryDirectory() as folder,
        DrbdLab(Path(folder), nodes) as drbd,
        Kubelets(server, nodes, drbd) as kubelets,
    ):
        for number in range(pods):
            drbd.create(f"pvc-{name}-{number}", nodes)
            kubelets.create_volume(f"pvc-{name}-{number}", f"data-{name}-{number}")
        kubelets.create_stateful_set(name, replicas=pods)
        until(lambda: len(running(kubelets, nodes[0])) == pods)
        yield drbd, kubelets
        server.call("DELETE", f"/apis/apps/v1/namespaces/default/statefulsets/{name}")
        for one in kubelets.pods():
            with contextlib.suppress(Exception):
                server.call("DELETE", f"/api/v1/namespaces/default/pods/{one}", {"gracePeriodSeconds": 0})


def running(kubelets: Kubelets, *nodes: str) -> list[str]:
    """Pods that run there and are not to end."""
    return [
        name
        for name, pod in kubelets.pods().items()
        if pod["spec"].get("nodeName") in nodes
        and pod["status"].get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    ]


@contextlib.contextmanager
def agents(
    server: ApiServer, drbd: DrbdLab, nodes: Sequence[str], *options: str, config: Path | None = None
) -> Iterator[dict[str, AgentProcess]]:
    """Agents of those nodes, once they are healthy."""
    with contextlib.ExitStack() as stack:
        made = {node: AgentProcess(server, drbd, node, *options, config=config) for node in nodes}
        for one in made.values():
            stack.enter_context(one)
        for one in made.values():
            until(lambda one=one: one.get("/healthz")[0] == 200)  # type: ignore[misc]
        yield made


def has_quorum(drbd: DrbdLab, node: str) -> bool:
    """Whether all volumes of the node have."""
    return all(device["quorum"] for one in json.loads(drbd.call("status_text", node)) for device in one["devices"])


def eviction_s(server: ApiServer, number: int) -> float:
    """From the loss of quorum to an eviction that is posted, with the events stream and defaults."""
    nodes = tuple(f"{one}-q{number}" for one in NODES[:3])
    with (
        cluster(server, nodes, f"quorum{number}", 1) as (drbd, kubelets),
        agents(server, drbd, nodes, "--promotion-source=events2"),
    ):
        drbd.isolate(nodes[0])
        lost_at = until(lambda: not has_quorum(drbd, nodes[0]))
        return until(lambda: not running(kubelets, nodes[0])) - lost_at


def attachment_s(server: ApiServer) -> float:
    """From the loss of a node's power to the attachment of the replacement, with default options."""
    nodes = tuple(f"{one}-p" for one in NODES[:3])
    with cluster(server, nodes, "power", 1) as (drbd, kubelets), agents(server, drbd, nodes) as made:
        made[nodes[0]].kill()
        kubelets.dead.add(nodes[0])
        drbd.crash(nodes[0])
        lost_at = time.monotonic()
        others = [("pvc-power-0", node) for node in nodes[1:]]
        return until(lambda: any(one in kubelets.attachments() for one in others)) - lost_at


def fill_pods(server: ApiServer) -> None:
    """Put pods where the API server keeps them."""
    puts: list[Any] = []
    for number in range(PODS):
        document = {"apiVersion": "v1", "kind": "Pod", **pod_document(number)}
        uid = f"00000000-0000-4000-8000-{number:012x}"
        document["metadata"] |= {"uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
        put = {"key": f"/registry/pods/shop/pod-{number}", "value": json.dumps(document)}
        puts.append({"request_put": {key: base64.b64encode(text.encode()).decode() for key, text in put.items()}})
        if len(puts) == 100 or number == PODS - 1:
            server.etcd_request("kv/txn", {"success": puts})
            puts = []


def empty_pods(server: ApiServer) -> None:
    """Remove them."""
    span = {"key": "/registry/pods/shop/", "range_end": "/registry/pods/shop0"}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in span.items()}
    server.etcd_request("kv/deleterange", encoded)


def resident_mib(server: ApiServer) -> float:
    """Of an agent that follows all pods, some ticks after it has listed them."""
    nodes = tuple(f"{one}-m" for one in NODES[:3])
    fill_pods(server)
    try:
        with tempfile.TemporaryDirectory() as folder, DrbdLab(Path(folder), nodes) as drbd, Kubelets(server, nodes):
            for number in range(RESOURCES):
                drbd.create(f"pvc-{number:04}", nodes)
            with agents(server, drbd, nodes[:1], "--reconcile-interval=1s") as made:
                time.sleep(10.0)
                process = made[nodes[0]].process
                assert process is not None
                status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024
    finally:
        empty_pods(server)


def calls_of_survivors(server: ApiServer, count: int) -> int:
    """Requests of so many survivors, from the loss of the node until all pods have left it and everybody is quiet."""
    nodes = tuple(f"{one}-c{count}" for one in NODES)
    with cluster(server, nodes, f"calls{count}", USERS) as (drbd, kubelets), tempfile.TemporaryDirectory() as folder:
        config = server.account_kubeconfig(NAMESPACE, ACCOUNT, Path(folder) / "kubeconfig")
        server.apply(MANIFESTS / "account.yaml", NAMESPACE)
        with agents(server, drbd, nodes[1 : count + 1], "--brake-fraction=1", config=config):
            before = len(audit_lines(server))
            kubelets.dead.add(nodes[0])
            drbd.crash(nodes[0])
            until(lambda: len(running(kubelets, *nodes[1:])) == USERS)
            time.sleep(QUIET_S)
            made = audit_lines(server)[before:]
    verbs: dict[str, int] = {}
    for one in made:
        what = f"{one['verb']} {one['objectRef']['resource']}"
        verbs[what] = verbs.get(what, 0) + 1
    print(f"storage_agent: {count} survivors: {verbs}", file=sys.stderr)
    return len(made)


def audit_lines(server: ApiServer) -> list[Any]:
    """Requests of the agents' account; watches last, and are no calls."""
    lines = [json.loads(line) for line in (server.folder / "audit.log").read_text().splitlines()]
    return [one for one in lines if one["user"]["username"] == STORAGE_AGENT and one["verb"] != "watch"]


def measure() -> list[Figure]:
    """Of real processes only where an API server and its controllers are."""
    configure_logging(level="error")
    healthy = asyncio.run(tick_ms(lost=False))
    lost = asyncio.run(tick_ms(lost=True))
    acting = asyncio.run(tick_ms(lost=True, acts=True))
    of = f"{RESOURCES} resources, {PODS:,} pods"
    figures = [
        Figure(f"storage agent: tick, {of}", healthy, "ms", 20),
        Figure(
            "storage agent: the same, one peer of all of them lost", lost, "ms", 20, note="timers run, no plans yet"
        ),
        Figure("storage agent: the same, every plan made and carried out as a dry run", acting, "ms"),
    ]
    if not can_run():
        print("storage_agent: needs kube-apiserver, kube-controller-manager and etcd", file=sys.stderr)
        return figures
    server = shared_server()
    memory = resident_mib(server)
    figures.append(Figure(f"storage agent: resident memory, {PODS:,} pods of 10 KiB", memory, "MiB", 80))
    with ControllerManager(server, grace_s=GRACE_S, sync_s=SYNC_S):
        evictions = [eviction_s(server, number) for number in range(RUNS)]
        attached = attachment_s(server)
    with ControllerManager(server, grace_s=QUICK_GRACE_S, sync_s=2.0):
        one, three = calls_of_survivors(server, 1), calls_of_survivors(server, 3)
    flags = f"node-monitor-grace-period={GRACE_S:g}s, attach-detach-reconcile-sync-period={SYNC_S:g}s"
    between = f"{min(evictions):.1f} to {max(evictions):.1f} s"
    return [
        *figures,
        Figure("storage agent: loss of quorum to eviction", statistics.median(evictions), "s", 8, note=between),
        Figure("storage agent: loss of a node to the attachment elsewhere", attached, "s", 75, note=flags),
        Figure(
            f"storage agent: calls of 3 survivors for {USERS} pods, of those of one",
            three / one,
            "x",
            1.3,
            note=f"{three} and {one}",
        ),
    ]
