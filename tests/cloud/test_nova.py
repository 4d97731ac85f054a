"""A real Nova with Placement and Keystone: what it says is what we keep, from the first server to a host that dies.

``scripts/test cloud`` runs this; it is no part of all tests, because the cloud takes a minute to start and 1.5 GiB.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import nova_cloud
from tests.support.command import outlive, up
from tests.support.loops import run_real
from tests.support.nova import RECORDED
from tests.support.nova_cloud import NovaCloud
from tests.support.openstack import settings

from outlive.base import SystemClock
from outlive.drivers.openstack import NovaClient, NovaMoves, NovaVms, OpenStackSession

pytestmark = pytest.mark.component("nova", "keystone")
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def cloud() -> Iterator[NovaCloud]:
    with nova_cloud.running(hosts=2) as running:
        yield running


def within(claim: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.2)
    return claim()


def test_what_nova_does_is_seen_until_its_server_and_its_host_are_gone(cloud: NovaCloud, tmp_path: Path) -> None:
    size = {"name": "small", "vcpus": 1, "ram": 2048, "disk": 1}
    flavor = cloud.ask("POST", "flavors", {"flavor": size})["flavor"]["id"]
    cloud.ask("POST", f"flavors/{flavor}/os-extra_specs", {"extra_specs": {"quota:hw_version": "s4"}})
    first = cloud.boot("first", flavor)
    state, config = tmp_path / "state", tmp_path / "outlive.yaml"
    section = {
        "cloud": "lab",
        "cloudsFile": str(cloud.keystone.clouds(tmp_path / "clouds.yaml")),
        "pollInterval": "500ms",
        "staleAfter": "10s",
    }
    config.write_text(json.dumps({"openstack": section}))

    def listed(kind: str) -> dict[str, Any]:
        items = json.loads(outlive("get", kind, "--state-dir", state, "-o", "json").out)["items"]
        return {one["metadata"]["name"]: one for one in items}

    def is_ready(host: str) -> str:
        conditions = listed("hosts")[host]["status"]["conditions"]
        return str(next(one["status"] for one in conditions if one["type"] == "Ready"))

    with up(state, "--config", str(config)):
        assert within(lambda: first in listed("vms"))
        vm = listed("vms")[first]
        assert vm["spec"]["flavor"] == "small"
        assert vm["spec"]["resources"] == {"cpu": "1", "memory": "2Gi"}
        assert vm["status"]["assigned"]["hypervisor"] in ("h1", "h2")
        assert sorted(listed("hosts")) == ["h1", "h2"]
        assert listed("hosts")["h1"]["status"]["capacity"] == {"cpu": "16", "memory": "64Gi"}
        second = cloud.boot("second", flavor)
        assert within(lambda: second in listed("vms"))
        cloud.ask("DELETE", f"servers/{first}")
        assert within(lambda: first not in listed("vms"))
        assert second in listed("vms")
        host = listed("vms")[second]["status"]["assigned"]["hypervisor"]
        cloud.kill(host)
        assert within(lambda: is_ready(host) == "False")
        assert second in listed("vms")
        cloud.start_host(host)
        assert within(lambda: is_ready(host) == "True")


def test_a_server_is_moved_live_and_its_move_is_listed(cloud: NovaCloud, tmp_path: Path) -> None:
    size = {"name": "moved", "vcpus": 1, "ram": 1024, "disk": 1}
    server = cloud.boot("moved", cloud.ask("POST", "flavors", {"flavor": size})["flavor"]["id"])

    async def move() -> None:
        said = settings(clouds_file=str(cloud.keystone.clouds(tmp_path / "clouds.yaml")), request_limit=30.0)
        session = OpenStackSession(said)
        moves = NovaMoves(NovaClient(session, said, SystemClock()))
        try:
            before = await moves.locate(server, "r")
            assert before is not None
            assert before.state == "ACTIVE"
            await moves.migrate(server, "r")
            deadline, now = time.monotonic() + LIMIT_S, before
            while (now.state, now.host == before.host) != ("ACTIVE", False):
                assert now.state in ("ACTIVE", "MIGRATING")
                assert time.monotonic() < deadline
                assert now.refusal == ""
                await asyncio.sleep(0.2)
                found = await moves.locate(server, "r")
                assert found is not None
                now = found
            assert now.host in {"h1", "h2"} - {before.host}
            assert [(one.source, one.target) for one in await moves.list_moves(server)] == [(before.host, now.host)]
        finally:
            await session.close()

    run_real(move())


def test_nova_is_as_it_was_recorded(cloud: NovaCloud, tmp_path: Path) -> None:
    async def ask() -> None:
        said = settings(
            clouds_file=str(cloud.keystone.clouds(tmp_path / "clouds.yaml")), request_limit=30.0, page_size=1
        )
        session = OpenStackSession(said)
        nova = NovaClient(session, said, SystemClock())
        try:
            now: dict[str, list[dict[str, Any]]] = {
                "servers": (await nova.list_servers())[0],
                "flavors": await nova.list_flavors(),
                "hypervisors": await nova.list_hypervisors(),
                "services": await nova.list_services(),
            }
            found = await NovaVms(nova, said, SystemClock()).list_vms()
            assert await nova.find_deleted(["11111111-0000-4000-8000-000000000000"]) != frozenset()
        finally:
            await session.close()
        for kind, records in now.items():
            recorded = RECORDED["before"][kind]
            assert records, kind
            lacking = {name for one in recorded for name in one} - {name for one in records for name in one} - {"fault"}
            assert lacking == set(), kind
        assert len(found.vms) == len(now["servers"])

    run_real(ask())
