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
    cloud.until(lambda: len(cloud.all("storagedaemons")) == 3 and "status" in cloud.all("storagedaemons")["2"])
    cluster, term = cloud.all("storageclusters")["ceph"], cloud.record["term"]
    assert cluster["term"] == term
    assert (cluster["status"]["daemons"], cluster["status"]["daemonsUp"]) == (3, 3)
    assert "3 osds: 3 up" in cluster["status"]["text"]
    daemon = cloud.all("storagedaemons")["0"]
    assert (daemon["term"], daemon["status"]["up"], daemon["status"]["in"]) == (term, True, True)
    assert daemon["status"]["sizeBytes"] == 2**30
    assert daemon["status"]["activity"]["state"] == "exists,up"
    assert daemon["device"]["host"] in cloud.hosts
    assert daemon["device"]["blockDevice"] == "/dev/loop4"
    pools = cloud.all("storagepools")
    assert pools[POOL]["status"]["pool"] == POOL
    assert [one["status"]["pool"] for name, one in pools.items() if name != POOL] == ["device_health_metrics"]


def test_people_and_programs_see_them(cloud: Cloud) -> None:
    cloud.until(lambda: len(cloud.all("storagedaemons")) == 3)
    shown = outlive("storage", "status", "--state-dir", cloud.state)
    assert shown.code == 0
    assert "--- POOLS ---" in shown.out
    table = outlive("storage", "daemons", "--state-dir", cloud.state).out.splitlines()
    assert [line.split()[0] for line in table] == ["Id", "0", "1", "2"]
    pools = json.loads(outlive("storage", "pools", "--state-dir", cloud.state, "-o", "json").out)
    assert {one["status"]["pool"] for one in pools} == {POOL, "device_health_metrics"}
    assert outlive("storage", "status", "nowhere", "--state-dir", cloud.state).code == 4
    token = (cloud.state / "token").read_text().strip()
    asked = Request(f"{cloud.server.url}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urlopen(asked) as answer:
        metrics = answer.read().decode()
    assert 'outlive_storage_cluster_health{cluster="ceph"} 0.0' in metrics
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


def test_a_cluster_that_warns_or_is_in_error_is_a_fault_for_as_long(cloud: Cloud) -> None:
    cloud.ceph.ceph("osd", "set", "noout")
    cloud.until(lambda: "storage-warn.ceph" in cloud.faults())
    assert "noout flag(s) set" in cloud.all("faults")["storage-warn.ceph"]["message"]
    cloud.ceph.ceph("osd", "set-full-ratio", "0.01")  # below the ratio of nearly full ones
    cloud.until(lambda: {"storage-error.ceph", "storage-warn.ceph"} & cloud.faults() == {"storage-error.ceph"})
    cloud.ceph.ceph("osd", "set-full-ratio", "0.95")
    cloud.ceph.ceph("osd", "unset", "noout")
    cloud.until(lambda: not {"storage-error.ceph", "storage-warn.ceph"} & cloud.faults())


def test_a_pool_that_is_deleted_has_no_object_any_more(cloud: Cloud) -> None:
    cloud.ceph.ceph("osd", "pool", "create", "Short.Lived", "1")
    cloud.until(lambda: any(one["status"]["pool"] == "Short.Lived" for one in cloud.all("storagepools").values()))
    cloud.ceph.ceph("osd", "pool", "rm", "Short.Lived", "Short.Lived", "--yes-i-really-really-mean-it")
    cloud.until(lambda: len(cloud.all("storagepools")) == 2)


def test_a_monitor_that_hangs_hurts_no_renewal(cloud: Cloud) -> None:
    """All commands to Ceph hang; every host renews on, and the fault says that the figures are old."""
    cloud.ceph.mon.signal(signal.SIGSTOP)
    try:
        seqs: dict[str, int] = {}
        seen_at: dict[str, float] = {}
        gap_s = 0.0

        def renewed_all_the_time() -> bool:
            nonlocal gap_s
            for name, member in cloud.all("memberships").items():
                if member["record"]["seq"] != seqs.get(name):
                    gap_s = max(gap_s, time.monotonic() - seen_at.get(name, time.monotonic()))
                    seqs[name], seen_at[name] = member["record"]["seq"], time.monotonic()
            return "storage-unknown.ceph" in cloud.faults()

        cloud.until(renewed_all_the_time)
        assert set(seqs) == set(cloud.hosts)
        assert gap_s < RENEWED_S
    finally:
        cloud.ceph.mon.signal(signal.SIGCONT)
    cloud.until(lambda: "storage-unknown.ceph" not in cloud.faults())


def test_when_the_primary_dies_another_goes_on_under_its_own_term(cloud: Cloud) -> None:
    before = cloud.record
    cloud.ceph.ceph("osd", "out", "1")
    cloud.until(lambda: "storage-daemon-out.1" in cloud.faults())
    cloud.hosts[before["holder"]].close()
    cloud.ceph.ceph("osd", "in", "1")
    cloud.until(lambda: cloud.all("storageclusters")["ceph"]["term"] > before["term"])
    assert cloud.record["holder"] != before["holder"]
    cloud.until(lambda: "storage-daemon-out.1" not in cloud.faults())
