"""A storage agent whose account lacks rights says at once which, by verb and resource, and does nothing meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.drbd import DrbdLab
from tests.support.api_server import ApiServer, shared_server
from tests.support.storage_agents import AgentProcess

pytestmark = pytest.mark.component("kubernetes")
NAMESPACE, ACCOUNT = "agent-rights", "agent"
KINDS = {
    "": ["nodes", "pods", "persistentvolumes"],
    "storage.k8s.io": ["volumeattachments"],
}
NODES = ("rights-k1", "rights-k2", "rights-k3")
VOLUME = "pvc-rights"
LIMIT_S = 30.0
WATCHED_S = 5.0


@pytest.fixture
def server() -> ApiServer:
    return shared_server()


@pytest.fixture
def agent(server: ApiServer, tmp_path: Path) -> Iterator[AgentProcess]:
    """The agent of the second node, with an account that may do nothing."""
    config = server.account_kubeconfig(NAMESPACE, ACCOUNT, tmp_path / "kubeconfig")
    with DrbdLab(tmp_path / "drbd", NODES) as drbd:
        drbd.create(VOLUME, NODES)
        with AgentProcess(server, drbd, NODES[1], config=config) as one:
            yield one


def allow(server: ApiServer, name: str, resources: dict[str, list[str]], verbs: list[str]) -> None:
    rules = [{"apiGroups": [group], "resources": names, "verbs": verbs} for group, names in resources.items()]
    path = "/apis/rbac.authorization.k8s.io/v1"
    server.call("POST", f"{path}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
    server.call("POST", f"{path}/clusterrolebindings", binding)


def forbid(server: ApiServer, name: str) -> None:
    for kind in ("clusterrolebindings", "clusterroles"):
        server.call("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{kind}/{name}")


def explained(agent: AgentProcess, *parts: str) -> str:
    """What it explains once all of that is in it."""
    end = time.monotonic() + LIMIT_S
    while True:
        text = agent.explain(VOLUME).stdout
        if all(part in text for part in parts) or time.monotonic() > end:
            return text
        time.sleep(0.2)


def refusals(agent: AgentProcess, verb: str) -> float:
    found: list[Any] = re.findall(
        rf'storage_ha_api_refusals_total{{code="forbidden",verb="{verb}"}} (\S+)', agent.get("/metrics")[1]
    )
    return float(found[0]) if found else 0.0


def test_an_account_without_any_role_is_told_every_kind_that_it_may_not_list(agent: AgentProcess) -> None:
    kinds = [name for names in KINDS.values() for name in names]
    text = explained(agent, *kinds)
    for name in kinds:
        assert f"{name} cannot be listed and watched" in text
        assert f'cannot list resource "{name}"' in text
    assert "account.yaml" in text
    assert agent.get("/healthz")[0] == 500
    assert refusals(agent, "GET") >= len(kinds)
    log = agent.log.read_text()
    assert log.count("cannot list resource") < 30, "what goes on is logged once in a while"


def test_who_may_list_and_not_watch_is_told_and_does_not_list_for_ever(agent: AgentProcess, server: ApiServer) -> None:
    allow(server, "rights-list", KINDS, ["get", "list"])
    try:
        text = explained(agent, 'cannot watch resource "pods"')
        assert 'cannot watch resource "pods"' in text
        before = refusals(agent, "WATCH")
        time.sleep(WATCHED_S)
        assert refusals(agent, "WATCH") - before <= 4 * WATCHED_S, "each of four kinds waits longer and longer"
        allow(server, "rights-watch", KINDS, ["watch"])
        try:
            end = time.monotonic() + LIMIT_S
            while "cannot" in agent.explain(VOLUME).stdout:
                assert time.monotonic() < end
                time.sleep(0.2)
        finally:
            forbid(server, "rights-watch")
    finally:
        forbid(server, "rights-list")
