"""The store on a Kubernetes API server: what it adds to a bare loop of requests, and a cold start."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tests.conformance.objects import change
from tests.support.api_server import ApiServer

from bench.figures import Figure
from bench.store import machine
from outlive.base import Random, SystemClock, limit_collections
from outlive.resources import Flavor, VirtualMachine, encode
from outlive.runtime import Informer
from outlive.store.kubernetes import ClusterAccess, KubernetesStore

OBJECTS = 100_000
OBJECT_BYTES = 1024
CLIENTS = 16
SECONDS = 4.0
RUNS = 3
TRANSACTION = 100
BEAT_S = 0.005
SETTLED_S = 1.0
AWAY_S = 60.0
TABLE = "outlive_bench"
PATH = "/apis/outlive.dev/v1alpha1/virtualmachines"


class _Meta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion")


class _Answer(msgspec.Struct):
    metadata: _Meta


def padded(number: int) -> VirtualMachine:
    """A VM of 1 KiB."""
    one = machine(number)
    left = OBJECT_BYTES - len(encode(one))
    return change(one, spec=change(one.spec, extra_specs={**one.spec.extra_specs, "x": "x" * (left - 7)}))


def fill(server: ApiServer) -> None:
    """Put the objects where the API server keeps them, as it would write them."""
    for begin in range(0, OBJECTS, TRANSACTION):
        puts = []
        for number in range(begin, begin + TRANSACTION):
            document = json.loads(encode(padded(number)))
            document.pop("status", None)
            name = document["metadata"]["name"]
            document["metadata"] |= {
                "uid": f"00000000-0000-4000-8000-{number:012x}",
                "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            put = {"key": f"/registry/outlive.dev/virtualmachines/{name}", "value": json.dumps(document)}
            puts.append({"request_put": {key: base64.b64encode(text.encode()).decode() for key, text in put.items()}})
        server.etcd_request("kv/txn", {"success": puts})


async def swaps(store: KubernetesStore, made: list[VirtualMachine]) -> float:
    """Compare-and-swaps a second."""
    count, stop = 0, time.perf_counter() + SECONDS

    async def client(number: int) -> None:
        nonlocal count
        while time.perf_counter() < stop:
            wanted = change(made[number].spec, display_name=f"n{count}")
            made[number] = await store.replace(change(made[number], spec=wanted))
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return count / (time.perf_counter() - began)


async def bare(access: ClusterAccess, made: list[VirtualMachine]) -> float:
    """The same bytes sent and received, of which nothing but the version is read."""
    count, stop = 0, time.perf_counter() + SECONDS
    headers, tls = await access.request_credentials(SystemClock())
    assert tls is not None
    head = {**headers, "Content-Type": "application/json"}
    documents = [encode(one) for one in made]
    versions = [one.metadata.resource_version for one in made]
    connector = aiohttp.TCPConnector(limit=CLIENTS)
    async with aiohttp.ClientSession(connector=connector, headers=head) as session:

        async def client(number: int) -> None:
            nonlocal count
            url = f"{access.server}{PATH}/{made[number].name}"
            name = made[number].spec.display_name.encode()
            first = versions[number].encode()
            while time.perf_counter() < stop:
                raw = documents[number].replace(b'"displayName":"' + name, b'"displayName":"' + f"b{count}".encode())
                raw = raw.replace(b'"resourceVersion":"' + first, b'"resourceVersion":"' + versions[number].encode())
                async with session.put(url, data=raw, ssl=tls) as answer:
                    body = await answer.read()
                    assert answer.status == 200, body[:200]
                versions[number] = msgspec.json.decode(body, type=_Answer).metadata.resource_version
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        took = time.perf_counter() - began
    return count / took


async def compare(server: ApiServer) -> tuple[list[float], list[float]]:
    """Both, one after the other, several times."""
    store = KubernetesStore(server.access(), clock=SystemClock(), random=Random(1))
    ours, theirs = [], []
    try:
        made = [await store.create(padded(OBJECTS + number)) for number in range(CLIENTS)]
        for _ in range(RUNS):
            ours.append(await swaps(store, made))
            theirs.append(await bare(server.access(), made))
            made = [await store.get(VirtualMachine, one.name, fresh=True) for one in made]
    finally:
        await store.close()
    return ours, theirs


async def cold_sync(access: ClusterAccess) -> tuple[float, float]:
    """Seconds until an informer is synced, and the longest turn of the loop in ms, of the processor's time: what a busy
    machine takes from it is none of its own."""
    store = KubernetesStore(access, clock=SystemClock(), random=Random(1))
    informer = Informer(store, VirtualMachine, clock=SystemClock(), random=Random(1))
    longest, began = 0.0, time.perf_counter()

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(BEAT_S)
            longest = max(longest, time.thread_time() - before - BEAT_S)

    tasks = [asyncio.create_task(informer.run()), asyncio.create_task(beat())]
    await informer.wait_synced()
    took = time.perf_counter() - began
    assert len(informer) >= OBJECTS
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.close()
    return took, longest * 1000


async def first_event(server: ApiServer, breaks: Callable[[], Awaitable[None]]) -> float:
    """Seconds from when the way to the server ``breaks`` until an informer sees what was written after that."""
    store = KubernetesStore(server.access(), clock=SystemClock(), random=Random(1))
    informer = Informer(store, Flavor, clock=SystemClock(), random=Random(1))
    following = asyncio.create_task(informer.run())
    await informer.wait_synced()
    await asyncio.sleep(SETTLED_S)
    began = time.perf_counter()
    await breaks()
    name = f"late-{began:.0f}"
    document = {"apiVersion": "outlive.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": name}}
    path = "/apis/outlive.dev/v1alpha1/flavors"
    await asyncio.to_thread(server.call, "POST", path, {**document, "spec": {"flavorName": name}})
    while informer.get(name) is None:  # noqa: ASYNC110 - an informer has no event of one object
        await asyncio.sleep(BEAT_S)
    took = time.perf_counter() - began
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await store.close()
    return took


def lose(port: int) -> None:
    """Drop every packet of the connections to this port that are open now."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = [str(int(row[1][-4:], 16)) for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
    ports = f"{{ {', '.join(found)} }}"
    drops = f"tcp dport {port} tcp sport {ports} drop; tcp sport {port} tcp dport {ports} drop;"
    rules = f"table inet {TABLE} {{\nchain out {{\ntype filter hook output priority 0; {drops}\n}}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True)


def peer_gone(server: ApiServer) -> float:
    """Every packet of the connections that are open is lost from now on; new connections come about."""

    async def breaks() -> None:
        await asyncio.to_thread(lose, server.port)

    try:
        return asyncio.run(first_event(server, breaks))
    finally:
        subprocess.run(["nft", "delete", "table", "inet", TABLE], check=False)


def away(server: ApiServer) -> float:
    """The server is stopped, and is back after ``AWAY_S``."""

    async def breaks() -> None:
        server.stop_server()
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(server.start)

    return asyncio.run(first_event(server, breaks))


def child(url: str, authority: str, token: str) -> None:
    """A cold sync in a process of its own, for its memory, that collects garbage as ``outlive controller`` does."""
    limit_collections()
    took, longest = asyncio.run(cold_sync(ClusterAccess(url, authority=Path(authority).read_bytes(), token=token)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([took, longest, peak]))


def _sync_apart(server: ApiServer) -> tuple[float, float, float]:
    words = [server.url, str(server.folder / "pki/apiserver.crt"), server.token]
    done = subprocess.run(
        [sys.executable, "-m", "bench.kubernetes", *words], capture_output=True, text=True, check=True
    )
    took, longest, peak = json.loads(done.stdout)
    return took, longest, peak


def measure() -> list[Figure]:
    """The figures of the store on Kubernetes."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="outlive-bench-", dir=memory if memory.is_dir() else None))
    server = ApiServer(folder)
    try:
        server.start()
        server.make_kinds()
        ours, theirs = asyncio.run(compare(server))
        gone = peer_gone(server) if shutil.which("nft") and os.geteuid() == 0 else None
        back = away(server)
        fill(server)
        syncs = [_sync_apart(server) for _ in range(RUNS)]
    finally:
        server.stop()
        shutil.rmtree(folder)
    median = statistics.median
    share = 100 * median(mine / bare for mine, bare in zip(ours, theirs, strict=True))
    both = f"{median(ours):.0f} and {median(theirs):.0f} a second"
    many = f"{OBJECTS} objects of {OBJECT_BYTES} bytes, in a process of its own"
    silent = "packets of the open connections are lost; only root can measure it"
    return [
        *([Figure("Kubernetes store: peer gone, to the first event", gone, "s", 15, "lower", silent)] if gone else []),
        Figure("Kubernetes store: server stopped for 60 s, to the first event", back, "s", 75, "lower"),
        Figure("Kubernetes store: compare-and-swaps, 16 clients, of a bare loop", share, "%", 90, "higher", both),
        Figure("Kubernetes store: cold sync", median(one[0] for one in syncs), "s", 20, "lower", many),
        Figure("Kubernetes store: longest turn in it", median(one[1] for one in syncs), "ms", 50, "lower"),
        Figure("Kubernetes store: memory after it", median(one[2] for one in syncs), "MB", 400, "lower"),
    ]


def main(arguments: list[Any]) -> None:
    """As a child, or alone."""
    if arguments:
        child(*arguments)
        return
    for figure in measure():
        print(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
