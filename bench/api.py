"""The HTTP API: placements a second over HTTP, answered by one server process to four clients on the same machine.

The server is a child process with 5,000 hosts; each client is a child process with one kept connection that sends
its next request when the answer to the last has come. Requests differ in their resource id, so that no answer can
be reused. Snapshot: the call names no hosts and the pipeline takes all. In the body: all hosts with their weights.
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
from typing import Any

from bench.figures import Figure

HOSTS = 5000
CLIENTS = 4
SECONDS = 3.0
ROUNDS = 5
TOKEN = "a-token-of-the-benchmarks"


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
    """A whole request in two parts, between which a resource id of 12 characters belongs."""
    from bench.placement import hypervisors

    path, method, body = "/scheduler/nova/external", "POST", ""
    id_length = len("0-0-00000000")
    if what == "gathered":
        body = json.dumps(placement_body([]))
    elif what == "body":
        body = json.dumps(placement_body([host.name for host in hypervisors(HOSTS)]))
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


def placement_body(hosts: list[str]) -> dict[str, Any]:
    """The request of bench/placement.py as Nova sends it: with host names in full and a place for the VM's id."""
    from bench.placement import nova_body

    document: dict[str, Any] = json.loads(nova_body(1, tuple(hosts)))
    document["spec"]["nova_object.data"]["instance_uuid"] = "RESOURCE"
    for host in document["hosts"]:
        host["hypervisor_hostname"] = f"{host['host']}.cloud.example"
    return document


def server() -> None:
    """Serve on a free port and print it."""
    asyncio.run(serve())


async def serve() -> None:
    from bench.placement import world
    from outlive.api import ApiDeps, Identity, Role, Tokens, create_app, serve_app
    from outlive.base import Random, SystemClock, SystemIds, configure_logging, freeze_objects, limit_collections
    from outlive.placement import PlacementService
    from outlive.resources import ObjectMeta, VirtualMachine
    from outlive.runtime import Metrics
    from outlive.store import MemoryStore

    configure_logging(level="warning")
    limit_collections()  # as outlive up does
    clock, metrics = SystemClock(), Metrics()
    store = MemoryStore(clock, SystemIds())
    await store.create(VirtualMachine(metadata=ObjectMeta(name="vm-000")))
    engine = world()
    service = PlacementService(engine.fleet, engine.pipelines, clock=clock, random=Random(1), metrics=metrics)
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
    async with serve_app(app, "127.0.0.1", 0) as server:
        freeze_objects()
        print(server.url.rpartition(":")[2], flush=True)
        await server.wait_until_stopped()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        server()
    else:
        client(*sys.argv[2:3], int(sys.argv[3]), sys.argv[4])
