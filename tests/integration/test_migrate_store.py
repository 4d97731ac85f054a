"""A cluster of ``outlive up`` goes on, on a real API server: its hosts find it again, and nothing runs twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_controller import (
    HOSTS,
    NAMESPACE,
    START_S,
    VMS,
    Controller,
    cluster,
    covered,
    objects,
    promises,
    until,
)
from tests.integration.test_controller import server as server
from tests.support.api_server import ApiServer
from tests.support.command import Result, outlive, spawned, up
from tests.support.hosts import Host

pytestmark = pytest.mark.component("kubernetes")
NODES = ("node-1", "node-2")


def read(directory: Path, plural: str) -> dict[str, dict[str, Any]]:
    answer = outlive("get", plural, "--state-dir", directory, "-o", "json")
    assert answer.code == 0, answer.err
    return {one["metadata"]["name"]: one for one in json.loads(answer.out)["items"]}


def all_covered(directory: Path) -> bool:
    return sum(one["status"].get("covered", False) for one in read(directory, "coverages").values()) == 8


def migrate(server: ApiServer, directory: Path) -> Result:
    return spawned("migrate-store", "--yes", "--state-dir", directory, "--kubeconfig", server.kubeconfig())


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Host]]:
    made: dict[str, Host] = {}
    yield made
    for one in made.values():
        one.close()


def test_a_cluster_with_its_hosts_and_promises_moves_and_its_old_server_refuses(
    server: ApiServer, tmp_path: Path, hosts: dict[str, Host]
) -> None:
    state = tmp_path / "state"
    (tmp_path / "hosts.csv").write_text(HOSTS)
    (tmp_path / "vms.csv").write_text(VMS)
    imported = ("--hosts", tmp_path / "hosts.csv", "--vms", tmp_path / "vms.csv")
    with up(state) as running:
        assert outlive("import", "csv", *imported, "--state-dir", state).code == 0
        for name in NODES:
            hosts[name] = Host(tmp_path / name, name, running.url, state / "token").start()
        for host in hosts.values():
            host.ready()
        until(lambda: all_covered(state), "every VM is covered", START_S)
        in_use = migrate(server, state)
        assert in_use.code == 5, "the server runs"
        assert outlive("disarm", "--cluster", "--mode", "freeze", "--state-dir", state).code == 0
    uids = {name: one["metadata"]["uid"] for name, one in read(state, "memberships").items()}
    slots, old = read(state, "reservations"), read(state, "clusters")["default"]["status"]
    assert objects(server, "hypervisors") == {}, "nothing was written so far"
    done = migrate(server, state)
    assert done.code == 0, done.err
    assert "kubectl apply -k deploy/kubernetes" in done.out
    moved = objects(server, "clusters")["default"]["status"]
    assert moved["formerIncarnations"] == [old["storeIncarnation"]]
    assert moved["pause"]["since"]
    again = migrate(server, state)
    assert (again.code, again.out) == (0, done.out), "repeating it changes nothing"
    refused = spawned("up", "--state-dir", state, "--listen", "127.0.0.1:0")
    assert refused.code == 1
    assert f"moved to {server.url}, namespace {NAMESPACE}" in refused.err
    assert "docs/how-to/kubernetes.md#back" in refused.err

    controller = Controller(server, tmp_path / "a")
    try:
        controller.start()
        controller.wait_ready()
        for name in ("ca.pem", "ca.key", "cluster-key", "token"):
            assert (controller.directory / name).read_bytes() == (state / name).read_bytes(), name
        assert len(covered(server)) == 8
        before = {name: one["status"].get("host", "") for name, one in slots.items()}
        assert {name: host for name, (host, _) in promises(server).items()} == before
        assert set(moved["pause"].get("waitsFor", ())) <= set(NODES)
        assert cluster(server)["status"]["pause"], "the hosts have not spoken yet"
        for host in hosts.values():
            host.close()
            host.sections["server"]["url"] = controller.url
            host.configure()
            host.start()
        for host in hosts.values():
            host.ready()
        until(lambda: not cluster(server)["status"].get("pause"), "every host has registered", START_S)
        now = objects(server, "memberships")
        assert {name: one["record"].get("state", "Held") for name, one in now.items()} == dict.fromkeys(NODES, "Held")
        assert {one["record"]["incarnation"] for one in now.values()} == {moved["storeIncarnation"]}
        assert not set(uids.values()) & {one["metadata"]["uid"] for one in now.values()}
        assert cluster(server)["status"]["storeIncarnation"] == moved["storeIncarnation"]
        assert controller.outlive("arm", "--cluster")
    finally:
        controller.kill()


def test_a_target_of_another_cluster_is_refused_and_nothing_is_marked(server: ApiServer, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with up(state):
        pass
    host = {"apiVersion": "outlive.dev/v1alpha1", "kind": "Hypervisor", "metadata": {"name": "stranger"}}
    path = "/apis/outlive.dev/v1alpha1/hypervisors"
    server.call("POST", path, {**host, "spec": {}})
    refused = migrate(server, state)
    assert refused.code == 1
    assert "has other objects: Hypervisor/stranger" in refused.err
    server.call("DELETE", f"{path}/stranger")
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    server.call("POST", secrets, {"metadata": {"name": "outlive-keys"}, "data": {}})
    refused = migrate(server, state)
    assert refused.code == 1
    assert "controllers of another cluster have run there" in refused.err
    server.call("DELETE", f"{secrets}/outlive-keys")
    with up(state):
        pass


def test_no_controller_starts_on_half_a_cluster_and_the_way_back_is_a_restore(
    server: ApiServer, tmp_path: Path
) -> None:
    state, secrets = tmp_path / "state", f"/api/v1/namespaces/{NAMESPACE}/secrets"
    with up(state):
        pass
    assert migrate(server, state).code == 0
    secret = server.call("GET", f"{secrets}/outlive-keys")
    source = secret["metadata"]["annotations"].pop("outlive.dev/moved-from")
    secret["metadata"]["annotations"]["outlive.dev/moving-from"] = source
    server.call("PUT", f"{secrets}/outlive-keys", secret)
    controller = Controller(server, tmp_path / "a")
    controller.start()
    assert controller.process is not None
    assert controller.process.wait(timeout=START_S) == 1
    controller.kill()
    assert "a cluster is being moved here" in (tmp_path / "a.log").read_text()
    assert migrate(server, state).code == 0, "repeated, it ends"
    back = spawned("restore", state / "store.db", "--state-dir", state, "--yes")
    assert back.code == 0, back.err
    with up(state):
        assert read(state, "clusters")["default"]["status"]["storeIncarnation"] != source
