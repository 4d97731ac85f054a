"""Writes that go to the API server directly are judged there as over our own API, by any controller."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.processes import free_ports
from tests.support.api_server import ApiServer, shared_server
from tests.support.controllers import Controller
from tests.support.loops import run_real
from tests.support.webhook import (
    GROUP,
    HOST,
    STRANGER,
    WEBHOOKS,
    close_again,
    open_to_all,
    sending,
    until_asked,
    webhook,
)

from outlive.api import Role
from outlive.base import Unavailable
from outlive.store.kubernetes import api_error

ACCOUNT = Path(__file__).parents[2] / "deploy/kubernetes/account.yaml"
pytestmark = pytest.mark.component("kubernetes")
HEAD = {"apiVersion": "outlive.dev/v1alpha1"}
MERGE = "application/merge-patch+json"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    one = shared_server()
    one.empty()
    open_to_all(one)
    yield one
    close_again(one)


def membership(name: str, **record: Any) -> dict[str, Any]:
    return {
        **HEAD,
        "kind": "Membership",
        "metadata": {"name": name},
        "record": {"machineId": "m", "bootId": "b", **record},
    }


async def test_a_host_renews_its_own_lease_and_nobody_elses(server: ApiServer, tmp_path: Path) -> None:
    async with sending(server) as send, webhook(server, tmp_path, send):
        for name in (HOST, "kvm-2"):
            assert (await send("POST", f"{GROUP}/memberships", membership(name)))[0] == 201
        renewal = {"record": {"seq": 1}}
        code, answer = await send("PATCH", f"{GROUP}/memberships/{HOST}", renewal, MERGE, role=Role.HOST)
        assert code == 200, answer
        code, answer = await send("PATCH", f"{GROUP}/memberships/kvm-2", renewal, MERGE, role=Role.HOST)
        assert code == 403, answer
        assert "another host's" in answer["message"]
        code, answer = await send("DELETE", f"{GROUP}/memberships/kvm-2", role=Role.HOST)
        assert code == 403, answer
        code, answer = await send("DELETE", f"{GROUP}/memberships", role=Role.HOST)
        assert code == 403, answer
        code, answer = await send("PATCH", f"{GROUP}/memberships/kvm-2", renewal, MERGE, user=STRANGER)
        assert code == 403, answer
        assert "has no role in Outlive" in answer["message"]


def test_controllers_begin_behind_their_own_webhook_and_without_any_nothing_is_written(
    server: ApiServer, tmp_path: Path
) -> None:
    """Cold start: nobody answers but the process that is about to write, by its own account and no other right."""
    account = server.account_kubeconfig("outlive", "outlive-controller", tmp_path / "account.kubeconfig")
    server.apply(ACCOUNT, "outlive")
    (port,) = free_ports(1)
    controller = Controller(server, tmp_path / "a", kubeconfig=account, listen=f"0.0.0.0:{port}")
    try:
        controller.start()
        controller.wait_ready()
        url = f"https://127.0.0.1:{port}"
        words = ["admission", "--url", url, "--kubeconfig", str(server.kubeconfig())]
        made = subprocess.run([sys.executable, "-m", "outlive", *words], capture_output=True, text=True, check=True)
        (tmp_path / "admission.yaml").write_text(made.stdout)
        server.apply(tmp_path / "admission.yaml", "outlive")
        run_real(renews_while(server, True))
        controller.kill()
        run_real(renews_while(server, False))
        (tmp_path / "a/outlive.yaml").write_text("failover: {flavorFailoverRequirements: {'*': 2}}\n")
        controller.start()
        controller.wait_ready()
        annotations = server.call("GET", f"{GROUP}/clusters/default")["metadata"]["annotations"]
        assert any('"*":2' in text for text in annotations.values()), "its settings are written"
        run_real(renews_while(server, True))
    finally:
        controller.kill()
        server.call("DELETE", f"{WEBHOOKS}/outlive")
        run_real(never_asked(server))


async def never_asked(server: ApiServer) -> None:
    async with sending(server) as send:
        await until_asked(send, never=True)


async def renews_while(server: ApiServer, answered: bool) -> None:
    async with sending(server) as send:
        if answered:
            await until_asked(send)
            await send("POST", f"{GROUP}/memberships", membership(HOST))
        code, answer = await send("PATCH", f"{GROUP}/memberships/{HOST}", {"record": {"seq": 9}}, MERGE, role=Role.HOST)
        assert code == (200 if answered else 500), answer
        if not answered:
            error = api_error(code, json.dumps(answer).encode(), writing=True)
            assert isinstance(error, Unavailable), "it was certainly not written"
            assert "a controller" in error.remedy
