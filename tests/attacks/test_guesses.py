"""Somebody who guesses tokens is counted and told once, and what others do meanwhile is written down all the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.attacks.conftest import Attacked, renewing
from tests.support.command import outlive
from tests.support.loops import run_real

pytestmark = pytest.mark.component("openssl")

GROUP = "/apis/outlive.dev/v1alpha1"
GUESSES = 300
LEVEL = 20
"""Guesses at once."""


def test_a_surge_of_wrong_tokens_is_one_fault_and_hides_nothing(attacked: Attacked, tmp_path: Path) -> None:
    async def story() -> None:
        viewer = {"Authorization": f"Bearer {await attacked.token('viewer', 'viewer')}"}
        admin = {"Authorization": f"Bearer {attacked.admin}"}
        async with renewing(attacked, tmp_path) as hosts, aiohttp.ClientSession() as session:

            async def ask(path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
                url = f"{attacked.server.url}{path}"
                async with session.request(method, url, headers=headers, ssl=attacked.tls) as answer:
                    return answer.status, await answer.text()

            for first in range(0, GUESSES, LEVEL):
                guesses = [{"Authorization": f"Bearer guess-{n:016}"} for n in range(first, first + LEVEL)]
                answers = await asyncio.gather(*(ask(f"{GROUP}/secrets", guess) for guess in guesses))
                assert {status for status, _ in answers} == {401}
            assert (await ask(f"{GROUP}/virtualmachines/web", viewer, "DELETE"))[0] == 403
            _, faults = await ask("/faults", admin)
            surges = [one for one in json.loads(faults) if one["code"] == "refusals-surge"]
            assert len(surges) == 1
            assert "from 127.0.0.1" in surges[0]["message"]
            _, metrics = await ask("/metrics", admin)
            (counted,) = [one for one in metrics.splitlines() if "api_refusals_total" in one and 'status="401"' in one]
            assert float(counted.rpartition(" ")[2]) >= GUESSES
            assert all(host.safe and not host.failures for host in hosts)

    run_real(story())
    state = tmp_path / "state"
    entries = json.loads(outlive("audit", "list", "--refused", "-o", "json", "--state-dir", state).out)
    assert [one["object"] for one in entries if one.get("token") == "viewer"] == ["VirtualMachine/web"]
    assert len(entries) < GUESSES
    assert outlive("audit", "verify", "--state-dir", state).code == 0
