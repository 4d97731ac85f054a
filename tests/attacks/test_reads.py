"""Every kind, read with a token of every role: what belongs to its host, and what does not."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.api import Role, ServerTls
from outlive.base import Forbidden, Random, SystemClock, SystemIds
from outlive.resources import (
    HOST_LABEL,
    KINDS,
    Assigned,
    Cluster,
    ClusterStatus,
    Console,
    Holder,
    Hypervisor,
    HypervisorSpec,
    MemberRecord,
    Membership,
    ObjectMeta,
    Pause,
    Resource,
    Secret,
    Token,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    decode,
    encode,
)
from outlive.store import HttpStore, MemoryStore, make_client_context
from tests.support.api import GROUP, TOKENS, Api, api
from tests.unit.resources.examples import FULL

MINE, THEIRS = "kvm-1", "kvm-2"
"""Hosts, and the names of what belongs to them; the tokens of hosts are of the first."""
SCREEN = (
    "<domain type='kvm'><name>web</name><uuid>6f9619ff-8b86-4011-b42d-00cf4fc964ff</uuid><memory unit='MiB'>96</memory>"
    "<vcpu>1</vcpu><os><type>hvm</type></os><devices><graphics type='vnc' passwd='hunter2'/></devices></domain>"
)
ANNOTATION = json.dumps({"spec": {"definition": SCREEN.replace("'", '"')}})

# For each verb what is shown of what belongs to the host of the token, and of what belongs to another one:
# W the whole, P a part, - nothing.
ROLES_OF_TABLE = ("viewer", "operator", "controller", "host", "coordinator")
TABLE = """
kind                 viewer    operator  controller host      coordinator
Cluster              WW,WW,WW  WW,WW,WW  WW,WW,WW   WW,WW,WW  WW,WW,WW
CommitmentChange     WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
CommittedResource    WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
Console              --,--,--  WW,WW,WW  --,--,--   W-,--,--  W-,--,--
Coverage             WW,WW,WW  WW,WW,WW  WW,WW,WW   W-,--,--  W-,--,--
DecisionRecord       WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
Descheduling         WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
DhcpLease            WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  WW,WW,WW
Election             WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  WW,WW,WW
Event                WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
Fault                WW,WW,WW  WW,WW,WW  WW,WW,WW   WP,W-,W-  WW,WW,WW
Flavor               WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
FlavorGroup          WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
FlavorGroupCapacity  WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
HostLog              WW,WW,WW  WW,WW,WW  WW,WW,WW   W-,W-,W-  W-,W-,W-
Hypervisor           WW,WW,WW  WW,WW,WW  WW,WW,WW   WP,WP,W-  WW,WW,WW
HypervisorUsage      WW,WW,WW  WW,WW,WW  WW,WW,WW   WW,WW,WW  WW,WW,WW
Knowledge            WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
Membership           WW,WW,WW  WW,WW,WW  WW,WW,WW   WW,WW,WW  WW,WW,WW
Notification         WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
Pipeline             WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
PlacementHistory     WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
ProjectQuota         WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
Reservation          WW,WW,WW  WW,WW,WW  WW,WW,WW   PP,PP,PP  PP,PP,PP
Secret               PP,PP,PP  WW,WW,WW  --,--,--   --,--,--  WW,--,--
StorageCluster       WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  WW,WW,WW
StorageDaemon        WW,WW,WW  WW,WW,WW  WW,WW,WW   WW,WW,WW  WW,WW,WW
StoragePool          WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  WW,WW,WW
Token                PP,PP,PP  PP,PP,PP  --,--,--   --,--,--  --,--,--
UsageHistory         WW,WW,WW  WW,WW,WW  WW,WW,WW   --,--,--  --,--,--
VirtualMachinePort   WW,WW,WW  WW,WW,WW  WW,WW,WW   W-,--,--  WW,WW,WW
VirtualNetwork       WW,WW,WW  WW,WW,WW  WW,WW,WW   WW,WW,WW  WW,WW,WW
VirtualMachine       PP,PP,PP  PP,PP,PP  PP,PP,PP   WP,WP,W-  WP,WP,W-
"""
EVERYTHING, NOTHING = "WW,WW,WW", "--,--,--"
_replace = msgspec.structs.replace


def expected() -> dict[tuple[str, str], str]:
    """Kind and role → what is shown."""
    found = {}
    for line in TABLE.split("\n")[2:-1]:
        kind, *cells = line.split()
        found |= {(kind, role): cell for role, cell in zip(ROLES_OF_TABLE, cells, strict=True)}
    for kind in KINDS:
        found |= {(kind, role): NOTHING for role in ("scheduler", "liquid", "join")}
        found[kind, "admin"] = EVERYTHING
    return found


def example(obj: Resource, host: str) -> Resource:
    """An object of that kind with every field, which belongs to the host."""
    named = _replace(obj, metadata=_replace(obj.metadata, name=host, uid=f"uid-{host}", finalizers=()))
    if isinstance(named, VirtualMachine):
        meta = _replace(named.metadata, annotations={"kubectl.kubernetes.io/last-applied-configuration": ANNOTATION})
        named = _replace(named, metadata=meta, spec=_replace(named.spec, definition=SCREEN))
    return decode(type(named), encode(named).replace(b'"h1"', f'"{host}"'.encode()))


@asynccontextmanager
async def attacked(directory: Path, *objects: Resource) -> AsyncIterator[tuple[Api, ssl.SSLContext]]:
    """A server with TLS that has these objects, and what trusts it."""
    store = MemoryStore(SystemClock(), SystemIds())
    store.load(objects)
    tls = ServerTls(directory, [], SystemClock())
    async with api(store, tls=tls) as served:
        yield served, make_client_context(tls.authority, pinned=tls.fingerprint)


def client(served: Api, tls: ssl.SSLContext, role: Role) -> HttpStore:
    return HttpStore(served.url, TOKENS[role], clock=SystemClock(), random=Random(1), tls=tls)


async def watched(served: Api, tls: ssl.SSLContext, path: str, role: Role) -> dict[str, Any]:
    """What a watch begins with, by name; empty where it is refused."""
    url = f"{served.url}{path}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true"
    headers, found = {"Authorization": f"Bearer {TOKENS[role]}"}, {}
    async with served.session.get(url, headers=headers, ssl=tls, read_bufsize=1 << 20) as answer:
        while answer.status == 200:
            event = json.loads(await answer.content.readline())
            if event["type"] == "BOOKMARK":
                break
            found[event["object"]["metadata"]["name"]] = event["object"]
    return found


def mark(shown: Any, whole: Resource) -> str:
    return "-" if shown is None else "W" if shown == json.loads(encode(whole)) else "P"


@pytest.mark.parametrize("role", Role)
async def test_nobody_reads_more_of_any_kind_than_the_table_says(role: Role, tmp_path: Path) -> None:
    objects = {(obj.kind(), host): example(obj, host) for obj in FULL for host in (MINE, THEIRS)}
    async with attacked(tmp_path, *objects.values()) as (served, tls):

        async def marks(kind: str) -> str:
            """What the role is shown of the objects of that kind."""
            path = f"{GROUP}/{KINDS[kind].info.plural}"
            gets = {}
            for host in (MINE, THEIRS):
                status, body, _ = await served.call("GET", f"{path}/{host}", role=role, ssl=tls)
                assert status in (200, 403), body
                head = await served.call("HEAD", f"{path}/{host}", role=role, ssl=tls)
                assert head[0] == status
                gets[host] = body if status == 200 else None
            lists = []
            for query in ("", "?limit=5", f"?fieldSelector=metadata.name={MINE}", "?labelSelector=a!=b"):
                status, body, _ = await served.call("GET", f"{path}{query}", role=role, ssl=tls)
                assert status in (200, 403), body
                lists.append({one["metadata"]["name"]: one for one in body.get("items", ())})
            assert lists[0] == lists[1] == lists[3], (kind, role)
            assert lists[2] == {name: one for name, one in lists[0].items() if name == MINE}
            events = await watched(served, tls, path, role)
            return ",".join(
                "".join(mark(found.get(host), objects[kind, host]) for host in (MINE, THEIRS))
                for found in (gets, lists[0], events)
            )

        # At once: a role that is refused waits for each answer, and has 16 seats.
        shown = dict(zip(KINDS, await asyncio.gather(*map(marks, KINDS)), strict=True))
    assert shown == {kind: expected()[kind, role.value] for kind in KINDS}


async def test_what_a_part_leaves_out_is_nowhere_in_any_answer(tmp_path: Path) -> None:
    """Also not in tables, annotations and answers to writes."""
    vm = example(next(one for one in FULL if isinstance(one, VirtualMachine)), THEIRS)
    path, table = f"{GROUP}/virtualmachines", "application/json;as=Table;v=v1;g=meta.k8s.io"
    async with attacked(tmp_path, vm) as (served, tls):
        for role in (Role.VIEWER, Role.OPERATOR, Role.CONTROLLER, Role.HOST, Role.COORDINATOR):
            answers = [await watched(served, tls, path, role)]
            for accept in ("application/json", table):
                for query in ("", f"/{THEIRS}", "?limit=1"):
                    url = f"{path}{query}{'&' if '?' in query else '?'}includeObject=Object"
                    answers.append(await served.call("GET", url, role=role, ssl=tls, headers={"Accept": accept}))
            copies = [{"op": "copy", "from": "/spec/definition", "path": "/metadata/annotations/x"}]
            for body, media in (
                ({"metadata": {"labels": {"a": "b"}}}, "application/merge-patch+json"),
                (copies, "application/json-patch+json"),
            ):
                for dry in ("", "?dryRun=All"):
                    answers.append(
                        await served.call(
                            "PATCH",
                            f"{path}/{THEIRS}{dry}",
                            role=role,
                            ssl=tls,
                            data=json.dumps(body),
                            headers={"Content-Type": media},
                        )
                    )
            assert "hunter2" not in str(answers), role
            if role in (Role.HOST, Role.COORDINATOR):
                assert not [word for word in ("displayName", "extraSpecs", "graphics") if word in str(answers)]
        kept = await served.store.get(VirtualMachine, THEIRS)
        assert kept.spec.definition == SCREEN
        assert "hunter2" not in kept.metadata.annotations.get("x", "")


def vm_on(name: str, host: str) -> VirtualMachine:
    held = Holder(hypervisor=host, member_uid="u", epoch=1, run_id="r")
    return VirtualMachine(
        metadata=ObjectMeta(name=name, labels={HOST_LABEL: host}),
        spec=VirtualMachineSpec(definition=SCREEN),
        status=VirtualMachineStatus(assigned=Assigned(hypervisor=host), holders=(held,)),
    )


async def test_a_vm_appears_in_the_watch_of_its_host_and_vanishes_when_it_leaves(tmp_path: Path) -> None:
    async with attacked(tmp_path, vm_on("vm-1", THEIRS)) as (served, tls):
        url, headers = f"{served.url}{GROUP}/virtualmachines?watch=true", f"Bearer {TOKENS[Role.HOST]}"
        async with served.session.get(url, headers={"Authorization": headers}, ssl=tls) as answer:
            admin = client(served, tls, Role.ADMIN)
            events = []
            for number, host in enumerate((MINE, MINE, THEIRS, MINE)):
                now = await admin.get(VirtualMachine, "vm-1", fresh=True)
                status = VirtualMachineStatus(assigned=Assigned(hypervisor=host), message=str(number))
                await admin.replace_status(_replace(now, status=status))
                events.append(json.loads(await answer.content.readline()))
            await admin.close()
        told = [(one["type"], "hunter2" in one["object"]["spec"]["definition"]) for one in events]
        assert told == [("ADDED", True), ("MODIFIED", True), ("DELETED", False), ("ADDED", True)]


async def test_a_host_reads_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    console = Console(metadata=ObjectMeta(name="vm-2"), host=THEIRS, text="root password: hunter2", changed_at=moment)
    objects = (vm_on("vm-1", MINE), vm_on("vm-2", THEIRS), console)
    async with attacked(tmp_path, *objects) as (served, tls):
        store = client(served, tls, Role.HOST)
        mine, theirs = await store.get(VirtualMachine, "vm-1"), await store.get(VirtualMachine, "vm-2")
        assert mine.spec.definition == SCREEN
        assert theirs.spec.definition == "<domain><uuid>6f9619ff-8b86-4011-b42d-00cf4fc964ff</uuid></domain>"
        for work in (
            store.get(Console, "vm-2"),
            store.get(Secret, "ipmi"),
            store.get(Token, "anybody"),
            store.list(Secret),
            store.list(Token),
            store.list(Console),
        ):
            with pytest.raises(Forbidden):
                await work
        status, _, _ = await served.call("POST", "/scheduler/nova/explain", role=Role.HOST, ssl=tls, data=b"{}")
        assert status == 403
        for path in ("/faults", "/api/v1/events", "/metrics", "/failover/coverage"):
            status, _, _ = await served.call("GET", path, role=Role.HOST, ssl=tls)
            assert status in (403, 404), path
        await store.close()


async def test_a_host_that_enters_itself_in_a_paused_cluster_gets_no_console_of_others(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    console = Console(
        metadata=ObjectMeta(name="vm-2", uid="c", resource_version="1"), host=THEIRS, text="x", changed_at=moment
    )
    record = MemberRecord(machine_id="m", boot_id="b", epoch=1)
    member = Membership(metadata=ObjectMeta(name=MINE, uid="u-1", resource_version="2"), record=record)
    paused = ClusterStatus(store_incarnation="now", pause=Pause(waits_for=(MINE,)))
    cluster = Cluster(metadata=ObjectMeta(name="default", uid="u-2", resource_version="3"), status=paused)
    vm = vm_on("vm-2", THEIRS)
    vm = _replace(vm, metadata=_replace(vm.metadata, uid="u-3", resource_version="4"))
    async with attacked(tmp_path, console, member, cluster, vm) as (served, tls):
        store = client(served, tls, Role.HOST)
        seen = await store.get(VirtualMachine, "vm-2")
        entry = Holder(hypervisor=MINE, member_uid="u-1", epoch=1, run_id="s")
        status = _replace(seen.status, holders=(*seen.status.holders, entry))
        held = await store.replace_status(_replace(seen, status=status))
        assert MINE in held.involved_hosts()
        with pytest.raises(Forbidden, match="has nothing to do with the VM"):
            await store.get(Console, "vm-2")
        await store.close()


async def test_a_host_that_is_no_coordinator_any_more_reads_no_secrets(tmp_path: Path) -> None:
    now = Hypervisor(metadata=ObjectMeta(name=MINE), spec=HypervisorSpec(mode="hypervisor"))
    secret = Secret(metadata=ObjectMeta(name="ipmi"))
    async with attacked(tmp_path, now, secret) as (served, tls):
        store, admin = client(served, tls, Role.COORDINATOR), client(served, tls, Role.ADMIN)
        with pytest.raises(Forbidden, match="is no coordinator"):
            await store.get(Secret, "ipmi")
        host = await admin.get(Hypervisor, MINE)
        await admin.replace(_replace(host, spec=HypervisorSpec(mode="coordinator")))
        assert (await store.get(Secret, "ipmi")).name == "ipmi"
        await store.close()
        await admin.close()


async def test_a_password_that_a_writer_is_not_shown_survives_what_it_writes(tmp_path: Path) -> None:
    async with attacked(tmp_path, vm_on("vm-1", THEIRS)) as (served, tls):
        store = client(served, tls, Role.OPERATOR)
        seen = await store.get(VirtualMachine, "vm-1")
        assert "hunter2" not in seen.spec.definition
        assert "<graphics" in seen.spec.definition
        seen = await store.replace(_replace(seen, spec=_replace(seen.spec, project="p")))
        assert "hunter2" not in seen.spec.definition
        kept = await served.store.get(VirtualMachine, "vm-1")
        assert (kept.spec.definition, kept.spec.project) == (SCREEN, "p")
        other = _replace(seen, spec=_replace(seen.spec, definition=seen.spec.definition.replace("96", "128")))
        with pytest.raises(Forbidden, match="is not shown, and would lose it") as caught:
            await store.replace(other)
        assert (caught.value.place, "admin" in caught.value.remedy) == ("spec.definition", True)
        await store.close()
