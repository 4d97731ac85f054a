"""No flood costs a host its lease: guards stay armed, renewals are answered, others are served, and memory stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from outlive.resources import Amounts, ObjectMeta, VirtualMachine, VirtualMachineSpec
from tests.attacks.conftest import Attacked, renewing
from tests.attacks.flood import Flood, flooding
from tests.support.loops import run_real

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.component("openssl")]

GROUP = "/apis/outlive.dev/v1alpha1"
RENEWAL_P99_S = 1.0
QUIET_S = 2.0
GROWTH_MIB = 200.0
OTHERS_S = 5.0
"""How long somebody who comes anew waits for an answer at most."""


async def others(attacked: Attacked, token: str, answers: list[float], over: asyncio.Event) -> None:
    """Somebody else who asks for health and for an object, and watches, each time by a new connection."""
    headers = {"Authorization": f"Bearer {token}"}
    while not over.is_set():
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(OTHERS_S), aiohttp.ClientSession(headers=headers) as session:
                for path in ("/healthz", f"{GROUP}/clusters/default", f"{GROUP}/virtualmachines?watch=true"):
                    async with session.get(f"{attacked.server.url}{path}", ssl=attacked.tls) as answer:
                        assert answer.status == 200, path
                        if path.endswith("watch=true"):
                            abort(answer)
            answers.append(time.monotonic() - began_s)
        except (aiohttp.ClientError, TimeoutError, OSError, AssertionError):
            answers.append(float("inf"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await over.wait()


def abort(watch: aiohttp.ClientResponse) -> None:
    """End a watch without a goodbye by TLS: a server that is busy would answer it after the loop has ended."""
    if watch.connection is not None and watch.connection.transport is not None:
        watch.connection.transport.abort()


async def endured(attacked: Attacked, folder: Path, *floods: Flood) -> dict[str, Any]:
    """The bars hold under the floods; what was measured."""
    operator = await attacked.token("somebody-else", "operator")
    async with renewing(attacked, folder, patience=1.0) as hosts:
        await asyncio.sleep(QUIET_S)
        quiet_s = max(one for host in hosts for one in host.took_s)
        for host in hosts:
            host.took_s.clear()
        before_mib, most_mib = attacked.resident_mib(), 0.0
        answers: list[float] = []
        over = asyncio.Event()
        asking = asyncio.create_task(others(attacked, operator, answers, over))
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(flooding(each)) for each in floods]
            while any(one.running for one in running):
                await asyncio.sleep(0.2)
                most_mib = max(most_mib, attacked.resident_mib())
        over.set()
        await asking
        took_s = sorted(one for host in hosts for one in host.took_s)
        p99_s = took_s[int(len(took_s) * 0.99)]
        failures = [one for host in hosts for one in host.failures]
        figures = {
            "floods": [one.result for one in running],
            "renewals": len(took_s),
            "quiet_s": round(quiet_s, 3),
            "p50_s": round(took_s[len(took_s) // 2], 3),
            "p99_s": round(p99_s, 3),
            "failures": failures[:5],
            "others_s": [round(one, 2) for one in answers],
            "growth_mib": round(most_mib - before_mib, 1),
        }
        print(json.dumps(figures))
        assert attacked.server.process.poll() is None, "the server has ended"
        assert all(host.safe for host in hosts), f"a guard has shut: {figures}"
        assert not failures, figures
        assert p99_s < RENEWAL_P99_S, figures
        assert most_mib - before_mib < GROWTH_MIB, figures
        assert sum(one < OTHERS_S for one in answers) >= max(1, 0.8 * len(answers)), figures
        return figures


@pytest.mark.parametrize("pipelined", [3, 64])
def test_answers_that_nobody_reads(attacked: Attacked, tmp_path: Path, pipelined: int) -> None:
    flood = Flood(
        kind="never_reads",
        port=attacked.port,
        authority=attacked.authority,
        pipelined=pipelined,
        connections=1100,
        seconds=6.0,
    )
    run_real(endured(attacked, tmp_path, flood))


def test_reads_of_one_viewer(attacked: Attacked, tmp_path: Path) -> None:
    async def claim() -> None:
        token = await attacked.token("viewer", "viewer")
        await filled(attacked, 3000)
        path = f"{GROUP}/virtualmachines"
        whole, page = (
            Flood(
                kind="asks", port=attacked.port, authority=attacked.authority, token=token, path=asked, connections=100
            )
            for asked in (path, f"{path}?limit=5000")
        )
        await endured(attacked, tmp_path, whole, page)

    run_real(claim(), limit_s=120.0)


async def filled(attacked: Attacked, vms: int) -> None:
    """So many VMs are in the store."""
    store = attacked.store()
    turns = asyncio.Semaphore(32)

    async def create(number: int) -> None:
        spec = VirtualMachineSpec(project="p", resources=Amounts(cpu=1000, memory=2**30))
        async with turns:
            await store.create(VirtualMachine(metadata=ObjectMeta(name=f"vm-{number:05}"), spec=spec))

    await asyncio.gather(*(create(number) for number in range(vms)))
    await store.close()


def test_records_of_one_host(attacked: Attacked, tmp_path: Path) -> None:
    async def claim() -> None:
        token = await attacked.token("host-kvm-9", "host", "kvm-9")
        record = {
            "apiVersion": "outlive.dev/v1alpha1",
            "kind": "DecisionRecord",
            "metadata": {"name": "flood-{n}"},
            "decision": "safety.x",
            "by": "node kvm-9",
            "at": "2030-01-01T00:00:00Z",
            "input": "x" * 500,
        }
        flood = Flood(
            kind="asks",
            port=attacked.port,
            authority=attacked.authority,
            token=token,
            method="POST",
            path=f"{GROUP}/decisionrecords",
            body=json.dumps(record),
            connections=200,
        )
        figures = await endured(attacked, tmp_path, flood)
        assert figures["floods"][0]["statuses"]["201"] > 0

    run_real(claim(), limit_s=120.0)


def test_watches_of_one_viewer(attacked: Attacked, tmp_path: Path) -> None:
    async def claim() -> None:
        token = await attacked.token("viewer", "viewer")
        path = f"{GROUP}/memberships?watch=true"
        flood = Flood(
            kind="watches", port=attacked.port, authority=attacked.authority, token=token, path=path, connections=300
        )
        figures = await endured(attacked, tmp_path, flood)
        assert figures["floods"][0]["statuses"]["429"] > 0

    run_real(claim(), limit_s=120.0)


def test_slow_heads_and_slow_bodies(attacked: Attacked, tmp_path: Path) -> None:
    async def claim() -> None:
        token = await attacked.token("viewer", "viewer")
        heads = Flood(kind="half_heads", port=attacked.port, authority=attacked.authority, connections=600)
        bodies = Flood(
            kind="half_bodies",
            port=attacked.port,
            authority=attacked.authority,
            token=token,
            method="POST",
            path=f"{GROUP}/virtualmachines",
            connections=600,
        )
        await endured(attacked, tmp_path, heads, bodies)

    run_real(claim(), limit_s=120.0)
