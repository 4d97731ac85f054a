"""Writes of long lists cost the server nothing that others notice: health probes are answered while they arrive."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import aiohttp
import pytest

from outlive.resources import FORMER_MEMBERSHIPS, HOLDERS_LIMIT
from tests.attacks.conftest import Attacked
from tests.support.loops import run_real

pytestmark = [pytest.mark.slow, pytest.mark.component("openssl")]

GROUP = "/apis/outlive.dev/v1alpha1"
VERSION = "outlive.dev/v1alpha1"
HOST = "kvm-9"
ENTRIES = 4600
"""So many holders are just below the largest object."""
CONNECTIONS = 2
SECONDS = 6.0
HEALTH_P99_S = 1.0
MERGE = "application/merge-patch+json"


class Caller:
    """Requests to the attacked server."""

    def __init__(self, attacked: Attacked, session: aiohttp.ClientSession) -> None:
        self._attacked = attacked
        self._session = session

    async def send(
        self, method: str, path: str, token: str, body: object = None, media: str = "application/json"
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": media}
        url, data = f"{self._attacked.server.url}{path}", json.dumps(body) if body is not None else None
        async with self._session.request(method, url, data=data, headers=headers, ssl=self._attacked.tls) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text


async def prepared(attacked: Attacked, call: Caller, token: str) -> str:
    """A VM is assigned to the host, which has a Membership; its uid."""
    vm = {"apiVersion": VERSION, "kind": "VirtualMachine", "metadata": {"name": "v"}}
    vm["spec"] = {"resources": {"cpu": "1", "memory": "1Gi"}}
    member = {"apiVersion": VERSION, "kind": "Membership", "metadata": {"name": HOST}}
    member["record"] = {"machineId": "m", "bootId": "b"}
    assigned = {"status": {"assigned": {"hypervisor": HOST}}}
    assert (await call.send("POST", f"{GROUP}/virtualmachines", attacked.admin, vm))[0] == 201
    path = f"{GROUP}/virtualmachines/v/status"
    assert (await call.send("PATCH", path, attacked.admin, assigned, MERGE))[0] == 200
    status, made = await call.send("POST", f"{GROUP}/memberships", token, member)
    assert status == 201
    return str(made["metadata"]["uid"])


def holders(uid: str, word: str, count: int) -> dict[str, Any]:
    entry = {"hypervisor": HOST, "memberUid": uid, "epoch": 1}
    return {"status": {"holders": [{**entry, "runId": f"{word}{number}"} for number in range(count)]}}


def former(count: int) -> dict[str, Any]:
    proof = {"kind": "self-cleaned", "by": HOST}
    return {"record": {"former": [{"uid": f"u{n}", "deadThrough": 1, "proof": proof} for n in range(count)]}}


@pytest.mark.parametrize("role", ["host", "coordinator"])
def test_health_is_answered_while_one_host_writes_long_lists(attacked: Attacked, role: str) -> None:
    async def claim() -> None:
        token = await attacked.token("evil", role, HOST)
        async with aiohttp.ClientSession() as session:
            call = Caller(attacked, session)
            uid = await prepared(attacked, call, token)
            vm, member = f"{GROUP}/virtualmachines/v/status", f"{GROUP}/memberships/{HOST}"
            assert (await call.send("PATCH", vm, token, holders(uid, "a", HOLDERS_LIMIT), MERGE))[0] == 200
            assert (await call.send("PATCH", member, token, former(FORMER_MEMBERSHIPS), MERGE))[0] == 200
            status, why = await call.send("PATCH", vm, token, holders(uid, "z", ENTRIES), MERGE)
            assert status == 422
            assert f"status.holders: VirtualMachine/v has {ENTRIES} entries" in why["message"]
            answers: Counter[int] = Counter()
            ends_s = time.monotonic() + SECONDS

            async def attack(path: str, body: object) -> None:
                while time.monotonic() < ends_s:
                    try:
                        answers[(await call.send("PATCH", path, token, body, MERGE))[0]] += 1
                    except aiohttp.ClientError:  # refused before its body was read
                        answers[429] += 1

            patches = [(f"{vm}?dryRun=All", holders(uid, "z", ENTRIES)), (member, former(ENTRIES))]
            attacks = [asyncio.create_task(attack(*patches[number % 2])) for number in range(CONNECTIONS)]
            took_s = []
            while time.monotonic() < ends_s:
                began_s = time.monotonic()
                assert (await call.send("GET", "/healthz", attacked.admin))[0] == 200
                took_s.append(time.monotonic() - began_s)
                await asyncio.sleep(0.02)
            await asyncio.gather(*attacks)
        assert set(answers) <= {422, 429}
        assert answers[422] > CONNECTIONS
        assert sorted(took_s)[int(len(took_s) * 0.99)] < HEALTH_P99_S, (max(took_s), answers)
        print(json.dumps({"requests": answers, "health_most_s": max(took_s)}))

    run_real(claim(), limit_s=120.0)
