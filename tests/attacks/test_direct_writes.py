"""Who writes to the API server directly gets no further there than over our own API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlive.api import Role
from outlive.resources import (
    Cluster,
    ClusterStatus,
    Election,
    Hypervisor,
    Membership,
    ObjectMeta,
    Reservation,
    VirtualMachine,
)
from tests.attacks.test_roles import ATTACKS, ME, OTHER, furnish, seen
from tests.support.api_server import ApiServer, shared_server
from tests.support.direct_matrix import cases, disagreements
from tests.support.loops import run_real
from tests.support.webhook import GROUP, STRANGER, close_again, controllers_store, open_to_all, sending, webhook

pytestmark = pytest.mark.component("kubernetes")
OF_SAFETY = (Cluster, Election, Hypervisor, Membership, Reservation, VirtualMachine)
MERGE = "application/merge-patch+json"
LIMIT_S = 120.0


@pytest.fixture
def server() -> Iterator[ApiServer]:
    one = shared_server()
    one.empty()
    open_to_all(one)
    yield one
    close_again(one)


def test_both_doors_refuse_and_allow_the_same_of_what_safety_rests_on(server: ApiServer, tmp_path: Path) -> None:
    """Of all kinds: .venv/bin/python -m tests.support.direct_matrix"""

    async def story() -> None:
        async with sending(server) as send, webhook(server, tmp_path, send):
            assert await disagreements(server, send, cases(OF_SAFETY)) == []

    run_real(story(), limit_s=LIMIT_S)


def test_stolen_credentials_of_the_cluster_write_nothing_of_others(server: ApiServer, tmp_path: Path) -> None:
    async def story() -> None:
        async with sending(server) as send, webhook(server, tmp_path, send), controllers_store(server) as store:
            made = await store.create(Cluster(metadata=ObjectMeta(name="default")))
            status = ClusterStatus(store_incarnation="i", sealing_key="")
            await store.replace_status(Cluster(metadata=made.metadata, status=status))

            def sender(role: Role | None) -> Any:
                async def one(method: str, path: str, body: object = None, media: str = "") -> tuple[int, Any]:
                    media = media or (MERGE if method == "PATCH" else "application/json")
                    return await send(method, f"{GROUP}/{path}", body, media, role=role)

                return one

            admin = sender(Role.ADMIN)
            await furnish(admin)
            pause = {"reason": "went-back", "since": "2030-01-01T00:00:00Z", "waitsFor": [OTHER]}
            status_now = {"status": {"pause": pause, "sealingKey": "ours"}}
            assert (await admin("PATCH", "clusters/default/status", status_now))[0] == 200
            before, answers = await seen(admin), {}
            for role, attacks in ATTACKS.items():
                for method, path, body in attacks:
                    answers[role, method, path, str(body)] = (await sender(Role(role))(method, path, body))[0]
            assert {what: code for what, code in answers.items() if code not in (403, 422)} == {}
            assert await seen(admin) == before

    run_real(story(), limit_s=LIMIT_S)


async def test_nobody_gives_an_object_an_owner_with_which_it_would_be_deleted(
    server: ApiServer, tmp_path: Path
) -> None:
    async with sending(server) as send, webhook(server, tmp_path, send), controllers_store(server) as store:
        await store.create(VirtualMachine(metadata=ObjectMeta(name="vm")))
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}
        change = {"metadata": {"ownerReferences": [owner]}}
        for role in (Role.OPERATOR, Role.CONTROLLER):
            code, answer = await send("PATCH", f"{GROUP}/virtualmachines/vm", change, MERGE, role=role)
            assert code == 403, answer


async def test_users_without_a_role_and_viewers_write_nothing(server: ApiServer, tmp_path: Path) -> None:
    async with sending(server) as send, webhook(server, tmp_path, send), controllers_store(server) as store:
        await store.create(VirtualMachine(metadata=ObjectMeta(name="vm")))
        for options in ({"role": Role.VIEWER}, {"user": STRANGER}):
            for method, path, body in (
                ("PATCH", "/vm", {"metadata": {"labels": {"a": "b"}}}),
                ("PATCH", "/vm/status", {"status": {"home": ME}}),
                ("DELETE", "/vm", None),
                ("DELETE", "", None),
            ):
                media = MERGE if method == "PATCH" else "application/json"
                code, answer = await send(method, f"{GROUP}/virtualmachines{path}", body, media, **options)
                assert code == 403, answer
