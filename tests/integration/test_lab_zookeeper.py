"""The lab's ensemble in a network of its own, as ``scripts/lab start --store zookeeper`` has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cluster import ZOOKEEPER_PORTS, Lab
from lab.processes import run
from lab.zookeeper import ZooKeeperEnsemble

pytestmark = [pytest.mark.component("zookeeper"), pytest.mark.component("links"), pytest.mark.slow]
NAMESPACE = f"zk-lab-{os.getpid()}"


def enter(*command: str) -> list[str]:
    return ["ip", "netns", "exec", NAMESPACE, *command]


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    run("ip", "netns", "add", NAMESPACE)
    made = ZooKeeperEnsemble(tmp_path / "zookeeper", ports=ZOOKEEPER_PORTS, enter=enter)
    try:
        run(*enter("ip", "link", "set", "lo", "up"))
        yield made
    finally:
        made.stop()
        run("ip", "netns", "del", NAMESPACE)


def test_servers_in_another_network_lead_and_follow_and_one_that_died_is_started_again(
    ensemble: ZooKeeperEnsemble,
) -> None:
    ensemble.start()
    assert sorted(one.mode for one in ensemble.servers) == ["follower", "follower", "leader"]
    assert ensemble.addresses == ("127.0.0.1:2181", "127.0.0.1:2182", "127.0.0.1:2183")
    killed = ensemble.leader()
    killed.kill()
    assert killed.mode == ""
    ensemble.start()
    assert sorted(one.mode for one in ensemble.servers) == ["follower", "follower", "leader"]
    assert killed.mode, "it is there again"


def test_a_lab_that_was_started_on_zookeeper_stays_there_and_names_each_server_as_a_part_of_its_store(
    tmp_path: Path,
) -> None:
    names = {"the controller", "ZooKeeper server 1", "ZooKeeper server 2", "ZooKeeper server 3"}
    assert set(Lab(tmp_path, on_zookeeper=True).store_processes) == names
    assert set(Lab(tmp_path).store_processes) == {"the store"}
    (tmp_path / "zookeeper").mkdir()
    assert set(Lab(tmp_path).store_processes) == names
