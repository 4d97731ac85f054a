"""Commands and hosts on the API server itself, with accounts of the cluster: judged there by the webhook."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.observers import following
from tests.support.api_server import ApiServer, shared_server
from tests.support.guards import Cgroups, Guard, Watchdog, closing, until
from tests.support.hosts import Host
from tests.support.loops import run_real
from tests.support.webhook import controllers_store, sending, webhook

from outlive.base import SystemClock
from outlive.resources import (
    Cluster,
    ClusterStatus,
    Hypervisor,
    HypervisorSpec,
    MemberRecord,
    Membership,
    ObjectMeta,
    VirtualMachine,
)
from outlive.store import Store, compare_and_swap

pytestmark = pytest.mark.component("kubernetes")
DEPLOY = Path(__file__).parents[2] / "deploy/kubernetes"
HEAD = "apiVersion: outlive.dev/v1alpha1"
_replace = msgspec.structs.replace


@pytest.fixture
def server() -> ApiServer:
    one = shared_server()
    one.empty()
    one.apply(DEPLOY / "roles.yaml", "outlive")
    one.account_kubeconfig("outlive", "outlive-controller", one.folder / "controllers")
    one.apply(DEPLOY / "account.yaml", "outlive")
    return one


async def furnish(store: Store) -> None:
    made = await store.create(Cluster(metadata=ObjectMeta(name="default")))
    await store.replace_status(_replace(made, status=ClusterStatus(store_incarnation="i", replicated=True)))
    for name in ("h1", "h2"):
        spec = HypervisorSpec(management="node", mode="coordinator" if name == "h1" else "hypervisor")
        await store.create(Hypervisor(metadata=ObjectMeta(name=name), spec=spec))
        record = MemberRecord(machine_id="m", boot_id="b")
        await store.create(Membership(metadata=ObjectMeta(name=name), record=record))
    await store.create(VirtualMachine(metadata=ObjectMeta(name="web")))


def test_an_operator_works_on_the_api_server_itself(server: ApiServer, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
    env |= {"OUTLIVE_STORE": "kubernetes", "KUBECONFIG": str(server.kubeconfig("oskar")), "HOME": str(tmp_path)}

    async def outlive(*words: str, code: int = 0, **more: str) -> str:
        command = [sys.executable, "-m", "outlive", *words]
        pipe = asyncio.subprocess.PIPE
        done = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env={**env, **more})
        out, err = await done.communicate()
        assert done.returncode == code, (words, done.returncode, out.decode(), err.decode())
        return out.decode() + err.decode()

    async def story() -> None:
        async with sending(server) as send, webhook(server, tmp_path, send), controllers_store(server) as store:
            await furnish(store)
            items: list[Any] = json.loads(await outlive("get", "hosts", "-o", "json"))["items"]
            assert [one["metadata"]["name"] for one in items] == ["h1", "h2"]
            assert "NO SERVER" not in await outlive("status", code=1)
            await outlive("describe", "vm", "web")
            await outlive("why", "web", code=1)
            await outlive("drain", "h1")
            assert (await store.get(Hypervisor, "h1")).spec.drain
            await outlive("arm", "h2", "--yes")
            assert (await store.get(Hypervisor, "h2")).spec.fencing.armed
            assert "h2" in await outlive("fence", "h2", "--yes", "--reason", "smoke")
            manifest = tmp_path / "token.yaml"
            manifest.write_text(f"{HEAD}\nkind: Token\nmetadata: {{name: t}}\nrole: admin\ndigest: {'a' * 64}\n")
            assert "forbidden" in (await outlive("apply", "-f", str(manifest), code=7)).lower()
            bmc = tmp_path / "bmc.yaml"
            spec = "spec: {management: node, mode: coordinator, fencing: {address: thief}}"
            bmc.write_text(f"{HEAD}\nkind: Hypervisor\nmetadata: {{name: h1}}\n{spec}\n")
            said = await outlive("apply", "-f", str(bmc), code=7)
            assert "may not write spec.fencing.address" in said, "RBAC lets it pass, the webhook does not"
            assert "instead of --store kubernetes" in await outlive("tls", "rotate", code=2)
            said = await outlive("get", "hosts", code=2, OUTLIVE_SERVER="https://controller:8443")
            assert "both" in said
            said = await outlive("get", "hosts", "--kubeconfig", "x", code=2, OUTLIVE_STORE="sqlite")
            assert "give --store kubernetes too" in said

    run_real(story())


def test_a_host_renews_its_lease_on_the_api_server_with_its_own_account(server: ApiServer, tmp_path: Path) -> None:
    account = server.account_kubeconfig("outlive-hosts", "kvm-1", tmp_path / "kvm-1.kubeconfig")
    host = Host(tmp_path / "host", "kvm-1", "", tmp_path / "no-token")
    host.sections["server"] = {"store": "kubernetes", "kubeconfig": str(account)}
    host.configure()

    async def story() -> None:
        async with sending(server) as send, webhook(server, tmp_path, send), controllers_store(server) as store:
            made = await store.create(Cluster(metadata=ObjectMeta(name="default")))
            await store.replace_status(_replace(made, status=ClusterStatus(store_incarnation="i", replicated=True)))
            host.start()
            await asyncio.to_thread(host.ready)
            first = (await store.get(Membership, "kvm-1")).record
            seen = await following(store, Membership)
            await seen.until(lambda found: found["kvm-1"].record.seq >= first.seq + 2, why="two renewals")
            await seen.close()
            shown = await following(store, Hypervisor)
            await shown.until(lambda found: bool(found["kvm-1"].status.conditions), why="what it is")
            await shown.close()
            assert shown.objects["kvm-1"].spec.management == "node"
            assert await asyncio.to_thread(host.stop) == 0
            assert (await store.get(Membership, "kvm-1")).record.state == "Released"
            errors = [line for line in host.logged().splitlines() if "orbidden" in line or "denied the request" in line]
            assert errors == [], "it needs nothing that its role does not have"

    try:
        run_real(story())
    finally:
        host.close()


def test_the_guard_of_an_armed_host_follows_what_the_api_server_acknowledges(server: ApiServer, tmp_path: Path) -> None:
    account = server.account_kubeconfig("outlive-hosts", "kvm-1", tmp_path / "kvm-1.kubeconfig")
    own = tmp_path / "guard"
    own.mkdir()
    with ExitStack() as stack:
        dog = stack.enter_context(closing(Watchdog(own / "watchdog")))
        guests = stack.enter_context(closing(Cgroups(own / "machine.slice")))
        guests.start("guest")
        options = ["--watchdog", str(dog.path), "--rehearsal", "--cgroup", str(guests.root)]
        guard = stack.enter_context(closing(Guard(own, *options)))
        host = stack.enter_context(closing(Host(tmp_path / "host", "kvm-1", "", tmp_path / "no-token")))
        host.sections["server"] = {"store": "kubernetes", "kubeconfig": str(account)}
        host.sections["guard"] = {"socket": str(guard.socket)}
        host.configure()

        def arm(found: Hypervisor | None) -> Hypervisor:
            assert found is not None
            return _replace(found, spec=_replace(found.spec, fencing=_replace(found.spec.fencing, armed=True)))

        async def story() -> None:
            async with sending(server) as send, webhook(server, tmp_path, send), controllers_store(server) as store:
                made = await store.create(Cluster(metadata=ObjectMeta(name="default")))
                status = ClusterStatus(store_incarnation="i", replicated=True)
                await store.replace_status(_replace(made, status=status))
                host.start()
                await asyncio.to_thread(host.ready)
                await compare_and_swap(store, Hypervisor, "kvm-1", arm, clock=SystemClock(), half="spec")
                await asyncio.to_thread(until, lambda: guard.status()["armed"], "it is armed", 60.0)
                before = guard.status()["beat"]["bootS"]
                await asyncio.to_thread(until, lambda: guard.status()["beat"]["bootS"] > before, "it renews", 60.0)
                assert guard.status()["gate"] == "open"
                assert guests.alive() == 1

        run_real(story())
