"""A real API server that asks our application, in this process, before each write."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from outlive.api import AdmissionEndpoint, AdmissionReviews, Role, ServerTls, names_of, webhook_manifest
from outlive.base import Clock, Random, SystemClock
from outlive.store import RequestCredentials
from outlive.store.kubernetes import ClusterAccess, KubernetesStore
from tests.support.api import api
from tests.support.api_server import ApiRefusal, ApiServer

NAMESPACE = "outlive"
KEY = "key-of-the-webhook-of-the-tests-"
GROUP = "/apis/outlive.dev/v1alpha1"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
HOST = "kvm-1"
USERS: dict[Role, tuple[str, str]] = {
    Role.ADMIN: ("alice", "outlive:admins"),
    Role.OPERATOR: ("oskar", "outlive:operators"),
    Role.VIEWER: ("vera", "outlive:viewers"),
    Role.CONTROLLER: ("carl", "outlive:controllers"),
    Role.HOST: (f"outlive:host:{HOST}", "outlive:hosts"),
    Role.COORDINATOR: (f"outlive:host:{HOST}", "outlive:coordinators"),
}
"""User and group of each role that users of a cluster have."""
STRANGER = ("eve", "strangers")
CONTROLLERS = f"system:serviceaccount:{NAMESPACE}:outlive-controller"
FOUND_S = 30.0
"""In which an API server has noticed what was configured."""

Send = Callable[..., Awaitable[tuple[int, Any]]]


@asynccontextmanager
async def sending(server: ApiServer) -> AsyncIterator[Send]:
    """What sends one request as the user of a role, or as an administrator of the cluster without one."""
    trusted = ssl.create_default_context(cadata=server.authority.decode())
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.token}"}) as session:

        async def send(
            method: str,
            path: str,
            body: object = None,
            media: str = "application/json",
            *,
            role: Role | None = None,
            user: tuple[str, str] | None = None,
        ) -> tuple[int, Any]:
            headers = {"Content-Type": media}
            who = USERS[role] if role is not None else user
            if who is not None:
                headers |= {"Impersonate-User": who[0], "Impersonate-Group": who[1]}
            url = f"{server.url}{path}"
            async with session.request(method, url, json=body, headers=headers, ssl=trusted) as answer:
                return answer.status, await answer.json(content_type=None)

        yield send


def open_to_all(server: ApiServer) -> None:
    """Let every user of the tests write our kinds, so that the webhook alone refuses."""
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["outlive.dev"], "resources": ["*"], "verbs": ["*"]}]
    names = [*(("Group", name) for _, name in (*USERS.values(), STRANGER)), ("User", CONTROLLERS)]
    bound = {
        "metadata": {"name": "open"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "open"},
        "subjects": [{"apiGroup": group, "kind": kind, "name": name} for kind, name in names],
    }
    for plural, document in (
        ("clusterroles", {"metadata": {"name": "open"}, "rules": rules}),
        ("clusterrolebindings", bound),
    ):
        with contextlib.suppress(ApiRefusal):
            server.call("POST", f"{RBAC}/{plural}", document)


def close_again(server: ApiServer) -> None:
    """Take back what ``open_to_all`` gave."""
    server.call("DELETE", f"{RBAC}/clusterrolebindings/open")


class AsUser(ClusterAccess):
    """An administrator's credentials, with which somebody else is impersonated."""

    def __init__(self, server: ApiServer, user: str) -> None:
        super().__init__(server.url, authority=server.authority, token=server.token)
        self._user = user

    async def request_credentials(self, clock: Clock) -> RequestCredentials:
        sent = await super().request_credentials(clock)
        return RequestCredentials({**sent.headers, "Impersonate-User": self._user}, sent.tls)


@asynccontextmanager
async def controllers_store(server: ApiServer) -> AsyncIterator[KubernetesStore]:
    """The store as the controllers' own account writes it."""
    store = KubernetesStore(AsUser(server, CONTROLLERS), clock=SystemClock(), random=Random(1))
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def webhook(server: ApiServer, folder: Path, send: Send, key: str = KEY) -> AsyncIterator[None]:
    """Have the server ask for as long as the block runs, which begins when it does."""
    tls = ServerTls(folder, names_of("127.0.0.1"), SystemClock())
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(controllers_store(server))
        admission = AdmissionEndpoint(AdmissionReviews(store, SystemClock(), NAMESPACE).review, key)
        served = await stack.enter_async_context(api(store, tls=tls, admission=admission))
        made = webhook_manifest(tls.authority.encode(), key, namespace=NAMESPACE, url=served.url)
        assert (await send("POST", WEBHOOKS, made))[0] == 201
        try:
            await until_asked(send)
            yield
        finally:
            await send("DELETE", f"{WEBHOOKS}/outlive")
            await until_asked(send, never=True)


async def until_asked(send: Send, *, never: bool = False) -> None:
    """Return when the server asks before it writes, or does no more."""
    probe: dict[str, Any] = {"apiVersion": "outlive.dev/v1alpha1", "kind": "VirtualMachine"}
    probe |= {"metadata": {"name": "probe"}, "spec": {"sharedDisks": ["none-of-its-own"]}}
    async with asyncio.timeout(FOUND_S):
        while True:
            code, _ = await send("POST", f"{GROUP}/virtualmachines?dryRun=All", probe)
            if (code == 201) == never:
                return
            await asyncio.sleep(0.02)
