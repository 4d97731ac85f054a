"""``outlive controller``: several equal processes on a real API server, of which one decides, and any may be killed."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lab.processes import pause
from tests.conformance.backends import GOODBYE_S
from tests.support.api_server import ApiRefusal, ApiServer, shared_server
from tests.support.controllers import Controller

from outlive.base import Random, SystemClock
from outlive.resources import Hypervisor
from outlive.store import Reset, Synced
from outlive.store.kubernetes import KubernetesStore

pytestmark = pytest.mark.component("kubernetes")
NAMESPACE = "outlive"
START_S = 90.0
TAKEN_OVER_S = 15.0
"""The bar: another process leads and decides so long after the leader was killed."""
BUSY_S = 30.0
"""What a busy machine takes on top."""
LOOK_S = 0.1
HOSTS = "name,cpu,memory\n" + "".join(f"h{n},32,64Gi\n" for n in range(4))
VMS = "id,name,cpu,memory,host\n" + "".join(f"v{n},v{n},2,4Gi,h{n % 4}\n" for n in range(8))


def until(holds: Callable[[], Any], what: str, limit_s: float) -> float:
    """Seconds until it holds."""
    began_s = looked_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < limit_s, f"within {limit_s:g} s it never happened that {what}"
        pause(looked_s, LOOK_S)
        looked_s = time.monotonic()
    return time.monotonic() - began_s


@pytest.fixture
def server() -> ApiServer:
    one = shared_server()
    one.empty()
    namespaces = {each["metadata"]["name"] for each in one.call("GET", "/api/v1/namespaces")["items"]}
    if NAMESPACE not in namespaces:
        one.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    for each in one.call("GET", secrets)["items"]:
        one.call("DELETE", f"{secrets}/{each['metadata']['name']}")
    return one


@pytest.fixture
def pair(server: ApiServer, tmp_path: Path) -> Iterator[tuple[Controller, Controller]]:
    both = Controller(server, tmp_path / "a"), Controller(server, tmp_path / "b")
    try:
        for one in both:
            one.start()
        for one in both:
            one.wait_ready()
        yield both
    finally:
        for one in both:
            one.kill()


def objects(server: ApiServer, plural: str) -> dict[str, dict[str, Any]]:
    found = server.call("GET", f"/apis/outlive.dev/v1alpha1/{plural}")["items"]
    return {one["metadata"]["name"]: one for one in found}


def leader(server: ApiServer) -> str:
    return str(objects(server, "elections").get("failover", {}).get("record", {}).get("holder", ""))


def covered(server: ApiServer) -> set[str]:
    return {name for name, one in objects(server, "coverages").items() if one.get("status", {}).get("covered")}


def promises(server: ApiServer) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Slot → its host, and the VMs that it is promised to."""
    found = {name: one["status"] for name, one in objects(server, "reservations").items()}
    return {
        name: (status.get("host", ""), tuple(sorted(status["failoverReservation"].get("allocations", {}))))
        for name, status in found.items()
    }


def shared_token(server: ApiServer) -> str:
    secret = server.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/outlive-keys")
    return base64.b64decode(secret["data"]["token"]).decode()


def age_token(server: ApiServer) -> str:
    """The shared token, of whose time less than a third is left from now on."""
    issued = datetime.now(UTC) - timedelta(days=80)
    change = {"metadata": {"annotations": {"outlive.dev/token-issued": issued.isoformat(timespec="seconds")}}}
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/outlive-keys"
    server.call("PATCH", path, change, "application/merge-patch+json")
    return shared_token(server)


def test_two_processes_show_one_authority_and_serve_one_state_and_a_killed_leader_is_replaced(
    server: ApiServer, pair: tuple[Controller, Controller], tmp_path: Path
) -> None:
    first, second = pair
    for name in ("ca.pem", "cluster-key", "token"):
        assert (first.directory / name).read_bytes() == (second.directory / name).read_bytes(), name
    (tmp_path / "hosts.csv").write_text(HOSTS)
    (tmp_path / "vms.csv").write_text(VMS)
    first.outlive("import", "csv", "--hosts", str(tmp_path / "hosts.csv"), "--vms", str(tmp_path / "vms.csv"))
    until(
        lambda: len(json.loads(second.outlive("get", "vms", "-o", "json"))["items"]) == 8,
        "the other shows them",
        START_S,
    )
    until(lambda: len(covered(server)) == 8, "every VM is covered", START_S)
    before = promises(server)
    leads = next(one for one in pair if f"-{one.process.pid}" in leader(server))  # type: ignore[union-attr]
    other = second if leads is first else first
    leads.kill()
    (tmp_path / "vms.csv").write_text(VMS + "late,late,2,4Gi,h1\n")
    both = f"{leads.url},{other.url}"
    words = ["import", "csv", "--hosts", str(tmp_path / "hosts.csv"), "--vms", str(tmp_path / "vms.csv")]
    other.outlive(*words, server=both)
    until(lambda: "late" in covered(server), "the other one decides", TAKEN_OVER_S + BUSY_S)
    other.kill()
    after = promises(server)
    assert {name: after[name][0] for name in before if name in after} == {name: before[name][0] for name in before}
    former = age_token(server)
    leads.start()
    leads.wait_ready()
    assert former != shared_token(server) == (leads.directory / "token").read_text()
    assert leads.answers(), "with the token that it has renewed for all"
    assert covered(server) == {*(f"v{n}" for n in range(8)), "late"}
    assert promises(server) == after, "no promise was lost while nobody ran"


def is_gone(server: ApiServer, path: str) -> bool:
    try:
        server.call("GET", path)
    except ApiRefusal as error:
        return error.code == 404
    return False


def test_an_api_server_without_the_kinds_is_refused_with_the_command_that_makes_them(
    server: ApiServer, tmp_path: Path
) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/flavors.outlive.dev"
    server.call("DELETE", path)
    until(lambda: "flavors" not in server.named_kinds() and is_gone(server, path), "the kind is gone", START_S)
    try:
        one = Controller(server, tmp_path / "a")
        one.start()
        assert one.process is not None
        assert one.process.wait(timeout=START_S) == 1
        assert one.process.stdout is not None
        one.process.stdout.close()
        said = (tmp_path / "a.log").read_text()
        assert "does not serve flavors" in said
        assert "outlive crds | kubectl apply -f -" in said
    finally:
        server.make_kinds()


def test_keys_that_are_lost_are_not_replaced_by_others(
    server: ApiServer, pair: tuple[Controller, Controller], tmp_path: Path
) -> None:
    for one in pair:
        one.kill()
    assert cluster(server)["status"]["sealingKey"]
    server.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/outlive-keys")
    empty = Controller(server, tmp_path / "c")
    empty.start()
    assert empty.process is not None
    assert empty.process.wait(timeout=START_S) == 1
    empty.kill()
    assert "put the Secret back from its backup" in (tmp_path / "c.log").read_text()


async def go_back_under_an_observer(server: ApiServer, copy: Path) -> None:
    """Have the data of the copy; who has seen newer ones is shown none of them until somebody says so."""
    store = KubernetesStore(server.access(), clock=SystemClock(), random=Random(1))
    changes = store.observe(Hypervisor)
    while not isinstance(await anext(changes), Synced):
        pass
    await changes.aclose()
    await asyncio.to_thread(server.go_back, copy)
    changes = store.observe(Hypervisor)
    assert isinstance(await anext(changes), Reset), "it went back, and nobody has said so"
    store.become("another one")
    while not isinstance(await anext(changes), Synced):
        pass
    await changes.aclose()
    await store.close()
    await asyncio.sleep(GOODBYE_S)


def test_an_etcd_that_was_restored_pauses_the_cluster_once_that_is_said(
    server: ApiServer, pair: tuple[Controller, Controller], tmp_path: Path
) -> None:
    first, _ = pair
    until(lambda: cluster(server)["status"].get("storeIncarnation"), "the one that decides names the store", START_S)
    before = cluster(server)["status"]["storeIncarnation"]
    assert cluster(server)["status"]["replicated"] is True
    copy = server.take_snapshot()
    (tmp_path / "hosts.csv").write_text(HOSTS)
    (tmp_path / "vms.csv").write_text(VMS)
    until(lambda: first.answers(), "the API server is found again", START_S)
    first.outlive("import", "csv", "--hosts", str(tmp_path / "hosts.csv"), "--vms", str(tmp_path / "vms.csv"))
    asyncio.run(go_back_under_an_observer(server, copy))
    words = ["restored", "--yes", "--kubeconfig", str(server.kubeconfig())]
    done = subprocess.run([sys.executable, "-m", "outlive", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"no more {before}" in done.stdout
    until(lambda: cluster(server)["status"]["storeIncarnation"] != before, "the controllers notice", START_S)
    assert cluster(server)["status"]["storeIncarnation"] in done.stdout
    assert cluster(server)["status"]["formerIncarnations"] == [before]
    # no host runs our daemon, so that the pause waits for nobody and is over at once: its fault stays to be read
    until(lambda: "store-restored.default" in objects(server, "faults"), "the pause was a fault", START_S)


def cluster(server: ApiServer) -> dict[str, Any]:
    return objects(server, "clusters")["default"]
