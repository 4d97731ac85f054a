"""Statistics of a real Ceph with three storage daemons, by two coordinators of a real ``outlive up``."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest
from lab.ceph import POOL, RIGHTS, Ceph
from tests.support.command import Server, outlive, spawned, up
from tests.support.hosts import Host, within

pytestmark = pytest.mark.component("ceph")
LIMIT_S = 120.0
"""On a machine that is busy with others."""
RECORDED = Path(__file__).parents[1] / "unit" / "drivers" / "ceph-16.2" / "ceph-volume.json"
RENEWED_S = 6.0
"""Longer than between two renewals, shorter than a question may take."""
LOOK_S = 1.0


OWN_POOL = "device_health_metrics"
"""Ceph makes it for itself, some time after its start."""


class Cloud(NamedTuple):
    """All of it; ``hosts`` are coordinators whose daemons run."""

    ceph: Ceph
    server: Server
    state: Path
    hosts: dict[str, Host]

    def all(self, kind: str) -> dict[str, Any]:
        answer = outlive("get", kind, "--state-dir", self.state, "-o", "json")
        assert answer.code == 0, answer.err
        return {one["metadata"]["name"]: one for one in json.loads(answer.out)["items"]}

    def faults(self) -> set[str]:
        return {name for name, one in self.all("faults").items() if not one.get("ended")}

    @property
    def record(self) -> dict[str, Any]:
        return self.all("elections").get("primary", {"record": {}})["record"]

    def until(self, claim: Callable[[], Any]) -> None:
        assert within(LIMIT_S, claim), "\n".join(one.logged()[-3000:] for one in self.hosts.values())

    def is_written(self) -> bool:
        """Whether all is in the store. A host writes the device of a daemon meanwhile; the primary's round leaves that
        daemon to the next one."""
        daemons = [bool(one.get("status")) for one in self.all("storagedaemons").values()]
        pools = {one["status"]["pool"] for one in self.all("storagepools").values()}
        return daemons == [True] * 3 and pools == {POOL, OWN_POOL}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    directory = tmp_path_factory.mktemp("statistics")
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="outlive-ceph-")))
        ceph = Ceph(place / "ceph", osds=3, port=18789)
        stack.callback(ceph.stop)
        ceph.start()
        volumes = place / "ceph-volume"
        volumes.write_text(f"#!/bin/sh\ncat {RECORDED}\n")
        volumes.chmod(0o700)
        storage = {
            "cephConf": str(ceph.conf),
            "cephKeyring": str(ceph.make_user("outlive", **RIGHTS)),
            "volumeProgram": str(volumes),
            "statisticsLimit": "10s",
        }
        server = stack.enter_context(up(directory / "state"))
        hosts: dict[str, Host] = {}
        for name in ("kvm-1", "kvm-2"):
            host = Host(directory / name, name, server.url, directory / name / "node.token", storage=storage)
            host.sections["node"] = {"storageStatistics": "2s"}
            del host.sections["server"]
            host.sections["host"]["mode"] = "coordinator"
            host.configure()
            made = outlive(
                "token",
                "create",
                "--join",
                "--coordinator",
                "--host",
                name,
                "--state-dir",
                directory / "state",
                "-o",
                "json",
            )
            token = json.loads(made.out)["token"]
            joined = spawned("node", "join", server.url, "--token", token, "--config", host.config)
            assert joined.code == 0, joined.err
            hosts[name] = host
            stack.callback(host.close)
            host.start().ready()
        yield Cloud(ceph, server, directory / "state", hosts)


def test_the_primary_writes_what_ceph_says(cloud: Cloud) -> None:
    cloud.until(cloud.is_written)
    cluster = cloud.all("storageclusters")["ceph"]
    daemon = cloud.all("storagedaemons")["0"]
    term = cloud.record["term"]
    assert 0 < cluster["term"] <= term, "another one may have become the primary since"
    assert (cluster["status"]["daemons"], cluster["status"]["daemonsUp"]) == (3, 3)
    assert "3 osds: 3 up" in cluster["status"]["text"]
    assert 0 < daemon["term"] <= term
    assert (daemon["status"]["up"], daemon["status"]["in"]) == (True, True)
    assert daemon["status"]["sizeBytes"] == 2**30
    assert daemon["status"]["activity"]["state"] == "exists,up"
    assert daemon["device"]["host"] in cloud.hosts
    assert daemon["device"]["blockDevice"] == "/dev/loop4"
    pools = cloud.all("storagepools")
    assert pools[POOL]["status"]["pool"] == POOL
    assert [one["status"]["pool"] for name, one in pools.items() if name != POOL] == [OWN_POOL]


def test_people_and_programs_see_them(cloud: Cloud) -> None:
    cloud.until(cloud.is_written)
    shown = outlive("storage", "status", "--state-dir", cloud.state)
    assert shown.code == 0
    assert "--- POOLS ---" in shown.out
    table = outlive("storage", "daemons", "--state-dir", cloud.state).out.splitlines()
    assert [line.split()[0] for line in table] == ["Id", "0", "1", "2"]
    pools = json.loads(outlive("storage", "pools", "--state-dir", cloud.state, "-o", "json").out)
    assert {one["status"]["pool"] for one in pools} == {POOL, OWN_POOL}
    assert outlive("storage", "status", "nowhere", "--state-dir", cloud.state).code == 4
    token = (cloud.state / "token").read_text().strip()

    def scraped() -> str:
        asked = Request(f"{cloud.server.url}/metrics", headers={"Authorization": f"Bearer {token}"})
        with urlopen(asked) as answer:
            return str(answer.read().decode())

    # it warns while placement groups are on their way
    cloud.until(lambda: 'outlive_storage_cluster_health{cluster="ceph"} 0.0' in scraped())
    metrics = scraped()
    assert 'outlive_storage_daemon_in{cluster="ceph",daemon="0"' in metrics
    assert f'outlive_storage_pool_bytes{{cluster="ceph",kind="free",pool="{POOL}"}}' in metrics


def test_a_daemon_that_is_out_is_a_fault_until_it_is_in_again(cloud: Cloud) -> None:
    cloud.ceph.ceph("osd", "out", "2")
    cloud.until(lambda: "storage-daemon-out.2" in cloud.faults())
    fault = cloud.all("faults")["storage-daemon-out.2"]
    labels = fault["metadata"]["labels"]
    assert (fault["delta"], labels["outlive.dev/reporter"]) == (50, "primary")
    assert labels["outlive.dev/written-by"] in cloud.all("hypervisors")
    cloud.until(lambda: cloud.all("storagedaemons")["2"]["status"].get("in", False) is False)
    cloud.ceph.ceph("osd", "in", "2")
    cloud.until(lambda: "storage-daemon-out.2" not in cloud.faults())


def test_a_monitor_that_hangs_hurts_no_renewal(cloud: Cloud) -> None:
    """All commands to Ceph hang; every host renews on, and the fault says that the figures are old."""
    cloud.ceph.mon.signal(signal.SIGSTOP)
    try:
        seqs: dict[str, int] = {}
        gaps_s: dict[str, float] = {}
        """Host → since when it has not renewed. A look that takes longer counts as a short one: then the machine stands
        still."""
        looked_s, gap_s = time.monotonic(), 0.0

        def renewed_all_the_time() -> bool:
            nonlocal looked_s, gap_s
            took_s, looked_s = min(LOOK_S, time.monotonic() - looked_s), time.monotonic()
            for name, member in cloud.all("memberships").items():
                is_new = member["record"]["seq"] != seqs.get(name)
                seqs[name], gaps_s[name] = member["record"]["seq"], 0.0 if is_new else gaps_s[name] + took_s
                gap_s = max(gap_s, gaps_s[name])
            return "storage-unknown.ceph" in cloud.faults()

        cloud.until(renewed_all_the_time)
        assert set(seqs) == set(cloud.hosts)
        assert gap_s < RENEWED_S
    finally:
        cloud.ceph.mon.signal(signal.SIGCONT)
    cloud.until(lambda: "storage-unknown.ceph" not in cloud.faults())
