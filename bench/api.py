"""The HTTP API: placements a second over HTTP, answered by one server process to four clients on the same machine.

The server is a child process with 5,000 hosts; each client is a child process with one kept connection that sends
its next request when the answer to the last has come. Requests differ in their resource id, so that no answer can
be reused. Gathered: the call names no hosts and the pipeline takes all. In the body: all hosts with their weights.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from bench.figures import Figure

HOSTS = 5000
CLIENTS = 4
SECONDS = 3.0
ROUNDS = 5
TOKEN = "a-token-of-the-benchmarks"
GIB = 2**30


def measure() -> list[Figure]:
    """Calls a second, and what one object costs through the resource API."""
    server = subprocess.Popen([sys.executable, "-m", "bench.api", "serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        gathered = calls_per_second(port, "gathered")
        whole = calls_per_second(port, "body")
        reads = calls_per_second(port, "get")
        creates = calls_per_second(port, "create")
    finally:
        server.terminate()
        server.wait(10)
    return [
        Figure("placement over HTTP, gathered hosts", gathered.rate, "calls/s", 500, "higher", gathered.note),
        Figure("placement over HTTP, 5,000 hosts in the body", whole.rate, "calls/s", 200, "higher", whole.note),
        Figure("read one object over HTTP", reads.rate, "calls/s", None, "higher", reads.note),
        Figure("create an object over HTTP (memory)", creates.rate, "calls/s", None, "higher", creates.note),
    ]


@dataclass
class Rate:
    rate: float
    note: str


def calls_per_second(port: int, what: str) -> Rate:
    """The median over rounds of all clients' calls together, and the 99th percentile of a call's time."""
    rates, p99s = [], []
    for number in range(ROUNDS):
        clients = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.api", "client", what, str(port), f"{number}-{client}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for client in range(CLIENTS)
        ]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        results = [json.loads(client.communicate()[0]) for client in clients]
        rates.append(sum(result["calls"] / result["seconds"] for result in results))
        p99s.append(max(result["p99"] for result in results))
    return Rate(statistics.median(rates), f"{CLIENTS} clients, p99 {statistics.median(p99s) * 1000:.1f} ms")


def client(what: str, port: int, seed: str) -> None:
    """Send requests for ``SECONDS`` over one connection."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    before, after = request_around(what)
    call(connection, before + f"{seed}-99999999".encode() + after)
    print("ready", flush=True)
    sys.stdin.readline()
    times: list[float] = []
    start = now = time.perf_counter()
    while now - start < SECONDS:
        status, body = call(connection, before + f"{seed}-{len(times):08}".encode() + after)
        assert status in (200, 201), body[:300]
        later = time.perf_counter()
        times.append(later - now)
        now = later
    times.sort()
    print(json.dumps({"calls": len(times), "seconds": now - start, "p99": times[int(len(times) * 0.99)]}))


def call(connection: socket.socket, request: bytes) -> tuple[int, bytes]:
    """One request and its whole answer. The resource id in the middle keeps every request the same length."""
    connection.sendall(request)
    answer = bytearray()
    while (end := answer.find(b"\r\n\r\n")) < 0:
        answer += connection.recv(65536)
    head = bytes(answer[:end]).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    while len(answer) < end + 4 + length:
        answer += connection.recv(1 << 20)
    return int(head.split(b" ", 2)[1]), bytes(answer[end + 4 :])


def request_around(what: str) -> tuple[bytes, bytes]:
    """A whole request in two parts, between which a resource id of 12 or 13 characters belongs."""
    path, method, body = "/scheduler/nova/external", "POST", ""
    id_length = len("0-0-00000000")
    if what == "gathered":
        body = json.dumps(placement_body([], pipeline="bench-gathering"))
    elif what == "body":
        body = json.dumps(placement_body([host_name(number) for number in range(HOSTS)]))
    elif what == "create":
        path = "/apis/outlive.dev/v1alpha1/virtualmachines"
        meta = {"name": "vm-RESOURCE"}
        spec = {"flavor": "m1", "resources": {"cpu": "2", "memory": "8Gi"}}
        body = json.dumps(
            {"apiVersion": "outlive.dev/v1alpha1", "kind": "VirtualMachine", "metadata": meta, "spec": spec}
        )
    else:
        path, method = "/apis/outlive.dev/v1alpha1/virtualmachines/vm-000?x=RESOURCE", "GET"
    length = len(body) - len("RESOURCE") + id_length if body else 0
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
    before, after = (head + body).split("RESOURCE")
    return before.encode(), after.encode()


def host_name(number: int) -> str:
    return f"node{number:04}-bb{number % 40:03}"


def placement_body(hosts: list[str], pipeline: str = "") -> dict[str, object]:
    """A request of Nova for a VM of 4 cores and 16 GiB."""
    flavor = {"name": "g4", "vcpus": 4, "memory_mb": 16384, "extra_specs": {"capabilities:hypervisor_type": "QEMU"}}
    spec = {
        "instance_uuid": "RESOURCE",
        "project_id": "p-blue",
        "availability_zone": "zone-1",
        "num_instances": 1,
        "flavor": {"nova_object.data": flavor},
        "image": {"nova_object.data": {"properties": {"nova_object.data": {}}}},
    }
    return {
        "spec": {"nova_object.name": "RequestSpec", "nova_object.data": spec},
        "context": {"request_id": "req-1", "project_id": "p-blue"},
        "hosts": [{"host": host, "hypervisor_hostname": f"{host}.cloud.example"} for host in hosts],
        "weights": {host: 1.0 + index / 1000 for index, host in enumerate(hosts)},
        "pipeline": pipeline,
    }


def server() -> None:
    """Serve on a free port and print it."""
    asyncio.run(serve())


async def serve() -> None:
    import msgspec

    from outlive.api import ApiDeps, Identity, Role, Tokens, create_app, serving
    from outlive.base.clock import SystemClock
    from outlive.base.ids import SystemIds
    from outlive.base.logging import configure_logging
    from outlive.base.random import Random
    from outlive.placement.fleet import Fleet
    from outlive.placement.pipelines import PipelineTable
    from outlive.placement.service import PlacementService
    from outlive.placement.shipped import GENERAL_PURPOSE, shipped_pipelines
    from outlive.resources import ObjectMeta, VirtualMachine
    from outlive.runtime.metrics import Metrics
    from outlive.store.memory import MemoryStore

    configure_logging(level="warning")
    clock, metrics = SystemClock(), Metrics()
    store = MemoryStore(clock, SystemIds())
    await store.create(VirtualMachine(metadata=ObjectMeta(name="vm-000")))
    service = PlacementService(Fleet(), PipelineTable.shipped(), clock=clock, random=Random(1), metrics=metrics)
    shipped = next(one for one in shipped_pipelines() if one.name == GENERAL_PURPOSE)
    gathering = msgspec.structs.replace(
        shipped,
        metadata=ObjectMeta(name="bench-gathering"),
        spec=msgspec.structs.replace(shipped.spec, ignore_preselection=True),
    )
    service.on_pipeline(None, gathering)
    for number in range(HOSTS):
        service.on_hypervisor(None, hypervisor(number))
    app = create_app(
        ApiDeps(
            store=store,
            clock=clock,
            ids=SystemIds(),
            tokens=Tokens([(TOKEN, Identity("bench", Role.ADMIN))]),
            metrics=metrics,
            version="bench",
            placement=service,
        )
    )
    async with serving(app, "127.0.0.1", 0) as server:
        print(server.url.rpartition(":")[2], flush=True)
        await server.until_stopped()


def hypervisor(number: int) -> object:
    """One of 5,000 hosts: 128 cores and 1 TiB, between a third and two thirds full."""
    from outlive.resources import (
        Aggregate,
        Amounts,
        Condition,
        DomainCapabilities,
        Hypervisor,
        HypervisorStatus,
        ObjectMeta,
    )

    used = 40 + number % 41
    return Hypervisor(
        metadata=ObjectMeta(name=host_name(number), labels={"topology.kubernetes.io/zone": f"zone-{1 + number % 2}"}),
        status=HypervisorStatus(
            capacity=Amounts(cpu=128_000, memory=1024 * GIB),
            effective_capacity=Amounts(cpu=256_000, memory=1024 * GIB),
            allocation=Amounts(cpu=used * 2000, memory=used * 8 * GIB),
            num_instances=used,
            aggregates=(Aggregate(name=f"zone-{1 + number % 2}"), Aggregate(name=f"bb{number % 40:03}")),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
            conditions=(Condition(type="Ready", status="True"),),
        ),
    )


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        server()
    else:
        client(*sys.argv[2:3], int(sys.argv[3]), sys.argv[4])
