"""Small requests that would cost the server much: texts that are nested deeply, long numbers, patches that copy, floods
of large objects. Each is refused in no time, and the hosts renew their leases meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from pathlib import Path

import aiohttp
import pytest

from outlive.resources import MemberRecord, Membership, ObjectMeta
from tests.attacks.conftest import Attacked, renewing

GROUP = "/apis/outlive.dev/v1alpha1"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
QUICK_S = 2.0
GROWTH_MIB = 200
RECORDS = 800
RECORD_BYTES = 480_000

DOUBLING = [{"op": "add", "path": "/metadata/x", "value": ["x" * 100]}]
DOUBLING += [{"op": "copy", "from": "/metadata/x", "path": "/metadata/x/-"} for _ in range(21)]
REFUSED = {400, 413, 422}
"""For what the body is. Neither 403 nor 404: then nobody would have read it."""
BODIES = {
    "nested lists": (APPLY, b"a: " + b"[" * 100_000),
    "nested sequences": (APPLY, b"- " * 100_000),
    "nested keys": (APPLY, b"? " * 100_000),
    "a number of 840 KB": (APPLY, b"a: " + b"1:" * 420_000 + b"1"),
    "900,000 keys": (APPLY, b"".join(b"k%d: v\n" % number for number in range(350_000))),
    "a list of 2,000,000": (APPLY, b"a: [" + b"1," * 1_900_000 + b"1]"),
    "aliases of aliases": (APPLY, b"a: &a [1]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (n, n) for n in range(100))),
    "a patch that doubles": (JSON_PATCH, json.dumps(DOUBLING).encode()),
    "nested JSON": (JSON_PATCH, b"[" * 50_000),
    "values without end": (JSON_PATCH, b"[" + b"{}," * 1_300_000 + b"{}]"),
}


async def test_no_body_of_a_host_stops_the_server(attacked: Attacked, tmp_path: Path) -> None:
    secret = await attacked.token("host-kvm-9", "host", "kvm-9")
    async with renewing(attacked, tmp_path) as hosts, aiohttp.ClientSession() as session:
        before = attacked.resident_mib()
        own = attacked.store(secret)
        await own.create(
            Membership(metadata=ObjectMeta(name="kvm-9"), record=MemberRecord(machine_id="m", boot_id="b"))
        )
        await own.close()
        url = f"{attacked.server.url}{GROUP}/memberships/kvm-9?fieldManager=x"
        for what, (media, body) in BODIES.items():
            headers = {"Authorization": f"Bearer {secret}", "Content-Type": media}
            began = asyncio.get_running_loop().time()
            with contextlib.suppress(aiohttp.ClientOSError):  # the server may close before it has read all of it
                async with session.patch(url, data=io.BytesIO(body), headers=headers, ssl=attacked.tls) as answer:
                    assert answer.status in REFUSED, f"{what}: {answer.status}"
            assert asyncio.get_running_loop().time() - began < QUICK_S, what
        assert attacked.server.process.poll() is None
        assert attacked.resident_mib() - before < GROWTH_MIB
        assert all(host.safe and not host.failures for host in hosts)


@pytest.mark.slow
async def test_a_flood_of_large_records_ends_at_the_quota_of_its_owner(attacked: Attacked, tmp_path: Path) -> None:
    secret = await attacked.token("host-kvm-9", "host", "kvm-9")
    headers = {"Authorization": f"Bearer {secret}"}
    statuses: list[int] = []
    async with renewing(attacked, tmp_path) as hosts, aiohttp.ClientSession(headers=headers) as session:
        before = attacked.resident_mib()
        for _ in range(RECORDS):
            record = {
                "apiVersion": "outlive.dev/v1alpha1",
                "kind": "DecisionRecord",
                "metadata": {"generateName": "x-"},
                "decision": "safety.x",
                "by": "node kvm-9",
                "at": "2030-01-01T00:00:00Z",
                "input": "x" * RECORD_BYTES,
            }
            url = f"{attacked.server.url}{GROUP}/decisionrecords"
            async with session.post(url, json=record, ssl=attacked.tls) as answer:
                statuses.append(answer.status)
        assert set(statuses) <= {201, 429}
        assert statuses.count(429) > RECORDS // 2
        assert attacked.resident_mib() - before < GROWTH_MIB
        assert all(host.safe and not host.failures for host in hosts)
    faults = await _faults(attacked)
    assert "store-quota" in faults


async def _faults(attacked: Attacked) -> str:
    headers = {"Authorization": f"Bearer {attacked.admin}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{attacked.server.url}/faults", ssl=attacked.tls) as answer,
    ):
        return await answer.text()
