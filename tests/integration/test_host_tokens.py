"""What the server lets a host do: with every verb, over HTTP; and how a host gets its token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from tests.support.api import GROUP, HOST, Api, api, host_of
from tests.support.command import outlive, spawned, up
from tests.support.loops import run_real

from outlive.api.auth import Role
from outlive.api.tokens import HostJoin, Joining, StoredTokens, digest_of
from outlive.base.clock import SystemClock
from outlive.base.errors import Forbidden, OutliveError, Refused
from outlive.base.ids import SystemIds
from outlive.base.random import Random
from outlive.node.permissions import HostWriter
from outlive.node.primary import ROLE
from outlive.resources import (
    HOST_LABEL,
    Assigned,
    Console,
    DecisionRecord,
    Election,
    ElectionRecord,
    Fault,
    Flavor,
    FlavorSpec,
    Holder,
    HostLog,
    Hypervisor,
    HypervisorSpec,
    HypervisorUsage,
    MemberRecord,
    Membership,
    ObjectMeta,
    ObjectRef,
    Resource,
    StorageDaemon,
    StorageDaemonStatus,
    StorageDevice,
    StoragePool,
    StoragePoolStatus,
    Token,
    VirtualMachine,
)
from outlive.resources.hosts import HostUsage
from outlive.resources.vms import VirtualMachineStatus
from outlive.runtime.faults import REPORTER_LABEL
from outlive.store import read
from outlive.store.http import HttpStore
from outlive.store.memory import MemoryStore

OTHER = "kvm-2"
_replace = msgspec.structs.replace


def member(name: str, **record: Any) -> Membership:
    return Membership(metadata=ObjectMeta(name=name), record=MemberRecord(machine_id="m", boot_id="b", **record))


def hypervisor(name: str, mode: str = "hypervisor") -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name=name), spec=HypervisorSpec(management="node", mode=mode))


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Api, HttpStore, HttpStore]]:
    """A server with two members and a VM of each; the stores of a host and of a coordinator."""
    async with api() as served:
        admin = served.client()
        for name in (HOST, OTHER):
            await admin.create(hypervisor(name))
            await admin.create(member(name))
            vm = await admin.create(VirtualMachine(metadata=ObjectMeta(name=f"vm-of-{name}")))
            held = Holder(hypervisor=name, member_uid="u", epoch=1, run_id="r")
            status = VirtualMachineStatus(assigned=Assigned(hypervisor=name), holders=(held,))
            await admin.replace_status(_replace(vm, status=status))
        host, coordinator = served.client(Role.HOST), served.client(Role.COORDINATOR)
        yield served, host, coordinator
        for store in (admin, host, coordinator):
            await store.close()


async def refused(work: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(Forbidden) as caught:
        await work
    assert "\n" not in str(caught.value)
    return caught.value.message


def test_a_host_does_its_work() -> None:
    async def story() -> None:
        async with cluster() as (_, host, _coordinator):
            mine = await host.get(Membership, HOST, fresh=True)
            await host.replace(_replace(mine, record=_replace(mine.record, seq=2)))
            shown = await host.get(Hypervisor, HOST)
            await host.replace_status(_replace(shown, status=_replace(shown.status, num_instances=1)))
            await host.create(HypervisorUsage(metadata=ObjectMeta(name=HOST), usage=HostUsage(running=1)))
            vm = await host.get(VirtualMachine, f"vm-of-{HOST}")
            vm = await host.replace_status(_replace(vm, status=_replace(vm.status, phase="start")))
            labelled = _replace(vm.metadata, labels={HOST_LABEL: HOST})
            await host.replace(_replace(vm, metadata=labelled))
            record = DecisionRecord(
                metadata=ObjectMeta(generate_name="d-"),
                decision="d",
                by=HostWriter(HOST).by,
                at=datetime(2026, 1, 1, tzinfo=UTC),
            )
            await host.create(record)

    run_real(story())


def test_a_host_does_nothing_else() -> None:
    async def story() -> None:
        async with cluster() as (served, host, _):
            theirs, shown = await host.get(Membership, OTHER), await host.get(Hypervisor, HOST)
            vm = await host.get(VirtualMachine, f"vm-of-{OTHER}")
            mine = await host.get(VirtualMachine, f"vm-of-{HOST}")
            tries: list[Coroutine[Any, Any, Any]] = [
                host.replace(_replace(theirs, record=_replace(theirs.record, state="Revoked"))),
                host.create(member("kvm-3")),
                host.create(hypervisor("kvm-3")),
                host.replace(_replace(shown, spec=_replace(shown.spec, drain=True))),
                host.create(HypervisorUsage(metadata=ObjectMeta(name=OTHER), usage=HostUsage())),
                host.replace_status(_replace(vm, status=_replace(vm.status, phase="stop"))),
                host.replace_status(_replace(vm, status=_replace(vm.status, holders=()))),
                host.replace(_replace(mine, spec=_replace(mine.spec, project="p"))),
                host.create(VirtualMachine(metadata=ObjectMeta(name="vm-3"))),
                host.create(Flavor(metadata=ObjectMeta(name="f"), spec=FlavorSpec(flavor_name="f"))),
                host.create(Token(metadata=ObjectMeta(name="t"), role="admin", digest="0" * 64)),
                host.delete(mine.ref),
                host.delete((await host.get(Membership, HOST)).ref),
                host.patch_metadata(vm.ref, labels={"a": "b"}),
            ]
            for work in tries:
                said = await refused(work)
                assert "host" in said, said
            patch = {"status": {"home": "kvm-1"}}
            headers = {"Content-Type": "application/merge-patch+json"}
            path = f"{GROUP}/virtualmachines/vm-of-{OTHER}/status"
            raw = json.dumps(patch)
            code, body, _headers = await served.call("PATCH", path, role=Role.HOST, headers=headers, data=raw)
            assert (code, body["details"]["code"]) == (403, "forbidden")
            assert body["message"].startswith("the token of host kvm-1 may not write the status of")

    run_real(story())


def test_a_host_reads_and_writes_consoles_of_vms_that_it_has_to_do_with_and_others_only_delete_them() -> None:
    async def story() -> None:
        async with cluster() as (served, host, coordinator):
            admin, operator = served.client(), served.client(Role.OPERATOR)
            mine, theirs = f"vm-of-{HOST}", f"vm-of-{OTHER}"
            text = {"host": HOST, "text": "login: ", "changed_at": datetime(2026, 1, 1, tzinfo=UTC)}
            written = await host.create(Console(metadata=ObjectMeta(name=mine), **text))
            await host.replace(_replace(written, text="root\n"))
            await admin.create(Console(metadata=ObjectMeta(name=theirs), **{**text, "host": OTHER}))
            assert (await host.get(Console, mine, fresh=True)).text == "root\n"
            for store, role in ((host, Role.HOST), (coordinator, Role.COORDINATOR)):
                for name in (theirs, "vm-of-nobody"):
                    assert "nothing to do with the VM" in await refused(store.get(Console, name, fresh=True))
                for query in (
                    "",
                    f"?fieldSelector=metadata.name={mine}",
                    f"?watch=1&fieldSelector=metadata.name={mine}",
                ):
                    status, _, _ = await served.call("GET", f"{GROUP}/consoles{query}", role=role)
                    assert status == 403, query
            found = await operator.get(Console, mine, fresh=True)
            forged = Console(metadata=ObjectMeta(name="vm-of-nobody"), **text)
            assert "others only delete it" in await refused(operator.replace(_replace(found, text="forged")))
            assert "others only delete it" in await refused(operator.create(forged))
            await operator.delete(found.ref)
            await admin.close()
            await operator.close()

    run_real(story())


def test_what_a_daemon_published_of_itself_is_deleted_with_its_host() -> None:
    async def story() -> None:
        async with cluster() as (served, host, _):
            admin = served.client()
            await host.create(HypervisorUsage(metadata=ObjectMeta(name=HOST), usage=HostUsage()))
            log = HostLog(metadata=ObjectMeta(name=HOST), process="p", written_at=datetime(2026, 1, 1, tzinfo=UTC))
            await host.create(log)
            shown = await admin.get(Hypervisor, HOST)
            await served.call("DELETE", f"{GROUP}/hypervisors/{HOST}?dryRun=All&propagationPolicy=Orphan")
            assert await read(admin, HostLog, HOST)
            await admin.delete(shown.ref, orphan=True)
            assert await read(admin, HostLog, HOST) is None
            assert await read(admin, HypervisorUsage, HOST) is None
            await admin.close()

    run_real(story())


def test_a_coordinator_fences_others_and_renews_for_none() -> None:
    async def story() -> None:
        async with cluster() as (_, _host, coordinator):
            theirs = await coordinator.get(Membership, OTHER)
            condemned = _replace(theirs, record=_replace(theirs.record, state="Revoked"))
            theirs = await coordinator.replace(condemned)
            renewed = _replace(theirs, record=_replace(theirs.record, seq=9))
            assert "record.seq" in await refused(coordinator.replace(renewed))

    run_real(story())


def test_storage_is_written_by_the_primary_alone_and_under_its_term() -> None:
    async def story() -> None:
        async with cluster() as (served, host, coordinator):
            pool = StoragePool(metadata=ObjectMeta(name="p"), term=3, status=StoragePoolStatus(pool="p"))
            assert "only the primary coordinator does" in await refused(coordinator.create(pool))
            assert "the document of storagepools: the primary coordinator does" in await refused(host.create(pool))
            record = ElectionRecord(holder=host_of(Role.COORDINATOR), term=3)
            election = await coordinator.create(Election(metadata=ObjectMeta(name=ROLE), record=record))
            assert "under term 2: " in await refused(coordinator.create(_replace(pool, term=2)))
            made = await coordinator.create(pool)
            fault = Fault(
                metadata=ObjectMeta(name="storage-warn.ceph", labels={REPORTER_LABEL: "primary"}),
                code="storage-warn",
                subject=ObjectRef(kind="StorageCluster", name="ceph"),
                message="m",
                first_seen=datetime(2026, 1, 1, tzinfo=UTC),
                last_seen=datetime(2026, 1, 1, tzinfo=UTC),
            )
            assert "primary reports it" in await refused(host.create(fault))
            fault = await coordinator.create(fault)
            admin = served.client()
            await admin.replace(_replace(election, record=_replace(record, holder=OTHER, term=4)))
            await admin.close()
            assert "only the primary coordinator does" in await refused(coordinator.delete(made.ref))
            assert "primary reports it" in await refused(coordinator.replace(_replace(fault, ended=True)))
            device = StorageDevice(host=HOST, block_device="/dev/sdb")
            daemon = await host.create(StorageDaemon(metadata=ObjectMeta(name="0"), device=device))
            moved = _replace(daemon, device=_replace(device, host=OTHER))
            assert "is named there, and not" in await refused(host.replace(moved))
            claimed = _replace(daemon, status=StorageDaemonStatus(up=True))
            assert "only the primary coordinator does" in await refused(host.replace(claimed))

    run_real(story())


def test_an_entry_of_another_host_goes_only_once_that_is_fenced() -> None:
    async def story() -> None:
        async with cluster() as (served, host, _):
            admin = served.client()
            theirs = await admin.get(Membership, OTHER)
            vm = await admin.get(VirtualMachine, f"vm-of-{OTHER}")
            held = _replace(vm.status.holders[0], member_uid=theirs.metadata.uid)
            status = _replace(vm.status, assigned=Assigned(hypervisor=HOST), holders=(held,))
            vm = await admin.replace_status(_replace(vm, status=status))
            taken = _replace(vm.status, holders=(Holder(hypervisor=HOST, member_uid="w", epoch=1, run_id="s"),))
            assert "epoch 1 is fenced" in await refused(host.replace_status(_replace(vm, status=taken)))
            await admin.replace(_replace(theirs, record=_replace(theirs.record, dead_through=1)))
            await host.replace_status(_replace(vm, status=taken))
            await admin.close()

    run_real(story())


# Joining


@asynccontextmanager
async def joining(**token: Any) -> AsyncIterator[tuple[Api, Callable[..., Coroutine[Any, Any, tuple[int, Any]]]]]:
    """A server with one join token, and what asks it to let a host join."""
    async with api(joins=True) as served:
        admin = served.client()
        await admin.create(
            Token(metadata=ObjectMeta(name="join-1"), role="join", digest=digest_of(b"one-time-token"), **token)
        )
        await admin.close()

        async def ask(host: str, machine: str = "a" * 32, secret: str = "one-time-token") -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {secret}"}
            wish = {"host": host, "machineId": machine}
            status, body, _ = await served.call("POST", "/join", role=None, headers=headers, json=wish)
            return status, body

        yield served, ask


async def of(served: Api, token: str, kind: type[Resource], name: str) -> Resource:
    store = HttpStore(served.url, token, clock=SystemClock(), random=Random(1))
    try:
        return await store.get(kind, name, fresh=True)
    finally:
        await store.close()


def test_a_join_token_becomes_the_token_of_one_host() -> None:
    async def story() -> None:
        async with joining() as (served, ask):
            status, body = await ask("kvm-1")
            assert (status, body["role"], body["clusterKey"]) == (200, "host", "")
            host = HttpStore(served.url, body["token"], clock=SystemClock(), random=Random(1))
            written = member("kvm-1")
            await host.create(_replace(written, record=_replace(written.record, machine_id="a" * 32)))
            assert "kvm-2" in await refused(host.create(member("kvm-2")))
            await host.close()
            assert body["token"] not in str(await served.call("GET", f"{GROUP}/tokens"))
            status, again = await ask("kvm-2", "b" * 32)
            assert status == 401
            assert again["message"] == f"the join token join-1 was used by kvm-1 (machine {'a' * 32})"

    run_real(story())


def test_a_coordinator_gets_the_key_of_the_cluster() -> None:
    async def story() -> None:
        async with joining(coordinator=True) as (_, ask):
            _, body = await ask("kvm-1")
            assert (body["role"], body["clusterKey"]) == ("coordinator", "the key")

    run_real(story())


def test_two_hosts_with_one_join_token_at_once() -> None:
    async def story() -> None:
        async with joining() as (_, ask):
            answers = await asyncio.gather(*(ask(f"kvm-{n}", str(n) * 32) for n in range(1, 6)))
            assert sorted(status for status, _ in answers)[:2][0] == 200
            assert sum(status == 200 for status, _ in answers) == 1

    run_real(story())


@pytest.mark.parametrize(
    ("token", "host", "machine", "status", "said"),
    [
        ({"host": "kvm-2"}, "kvm-1", "a" * 32, 409, "the join token join-1 is for kvm-2, and kvm-1 came with it"),
        ({"expires": datetime.now(UTC) - timedelta(hours=1)}, "kvm-1", "a" * 32, 401, "the token join-1 ended at"),
        ({}, "Kvm_1", "a" * 32, 422, "is not a DNS name"),
        ({}, "kvm-1", "!", 400, "'!' is no machine id"),
        ({}, "kvm-9", "a" * 32, 409, f"machine {'a' * 32} has joined as kvm-8: it was renamed, or its disk is a copy"),
        ({}, "kvm-8", "b" * 32, 409, f"kvm-8 has joined as machine {'a' * 32}, and machine {'b' * 32} wants this name"),
    ],
)
def test_what_cannot_join_is_told_why_and_the_token_stays(
    token: dict[str, Any], host: str, machine: str, status: int, said: str
) -> None:
    async def story() -> None:
        async with joining(**token) as (served, ask):
            admin = served.client()
            first = member("kvm-8")
            await admin.create(_replace(first, record=_replace(first.record, machine_id="a" * 32)))
            code, body = await ask(host, machine)
            assert (code, said in body["message"], bool(body["remedy"])) == (status, True, True), body
            assert (await admin.get(Token, "join-1")).used_by == ""
            await admin.close()

    run_real(story())


async def ticket(served: Api, name: str, **token: Any) -> str:
    """Another join token."""
    secret = f"token-of-{name}-{'x' * 16}"
    admin = served.client()
    await admin.create(Token(metadata=ObjectMeta(name=name), role="join", digest=digest_of(secret.encode()), **token))
    await admin.close()
    return secret


def test_a_host_that_has_joined_is_replaced_by_a_join_token_for_it_only() -> None:
    """Its name and the id of its machine are no secrets: any token that reads learns them."""

    async def story() -> None:
        async with joining() as (served, ask):
            _, first = await ask("kvm-1")
            foreign = await ticket(served, "join-2")
            status, body = await ask("kvm-1", secret=foreign)
            assert (status, body["message"]) == (
                409,
                "kvm-1 has joined before, and the join token join-2 is not for it alone",
            )
            assert body["remedy"] == "create one that is: outlive token create --join --host kvm-1"
            assert (await of(served, first["token"], Token, "join-2")).used_by == ""
            admin = served.client()
            written = member("kvm-1")
            await admin.create(_replace(written, record=_replace(written.record, machine_id="a" * 32)))
            await admin.delete((await admin.get(Token, "host.kvm-1")).ref)
            await admin.close()
            assert (await ask("kvm-1", secret=foreign))[0] == 409  # revoked, and still a member
            status, again = await ask("kvm-1", secret=await ticket(served, "join-3", host="kvm-1"))
            assert (status, again["role"]) == (200, "host")
            status, last = await ask("kvm-1", secret=await ticket(served, "join-4", host="kvm-1"))
            assert (status, last["token"] != again["token"]) == (200, True)

    run_real(story())


@pytest.mark.parametrize("host", ["", "kvm-1"])
def test_two_machines_that_want_one_name_at_once(host: str) -> None:
    async def story() -> None:
        async with joining(host=host) as (served, ask):
            secrets = ["one-time-token", *[await ticket(served, f"join-{n}", host=host) for n in range(2, 6)]]
            asked = [ask("kvm-1", str(n) * 32, secret) for n, secret in enumerate(secrets)]
            answers = await asyncio.gather(*asked)
            good = [body["token"] for status, body in answers if status == 200]
            assert (len(good), {status for status, _ in answers}) == (1, {200, 409})
            kept = await of(served, good[0], Token, "host.kvm-1")
            assert kept.digest == digest_of(good[0].encode())

    run_real(story())


def test_one_machine_that_wants_two_names_at_once() -> None:
    async def story() -> None:
        async with joining() as (served, ask):
            secrets = ["one-time-token", *[await ticket(served, f"join-{n}") for n in range(2, 6)]]
            asked = [ask(f"kvm-{n}", "a" * 32, secret) for n, secret in enumerate(secrets, 1)]
            answers = await asyncio.gather(*asked)
            good = [body for status, body in answers if status == 200]
            assert (len(good), {status for status, _ in answers}) == (1, {200, 409}), answers
            admin = served.client()
            machines = [one.name for one in (await admin.list(Token)).items if one.machine_id == "a" * 32]
            assert machines == [f"host.{good[0]['host']}"]
            await admin.close()

    run_real(story())


def test_one_machine_that_wants_two_names_of_two_servers_at_once() -> None:
    """They share nothing but the store, so it may be that neither of them lets it in."""

    async def story() -> None:
        store = MemoryStore(SystemClock(), SystemIds())
        tokens = StoredTokens(store, clock=SystemClock(), random=Random(1))
        for name in ("join-1", "join-2"):
            await store.create(Token(metadata=ObjectMeta(name=name), role="join", digest=digest_of(name.encode())))
        servers = [HostJoin(store, tokens, clock=SystemClock(), ids=SystemIds()) for _ in range(2)]
        asked = [server._joined(f"join-{n}", Joining(f"kvm-{n}", "a" * 32)) for n, server in enumerate(servers, 1)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        good = [one.host for one in answers if not isinstance(one, BaseException)]
        kept = [one.host for one in (await store.list(Token)).items if one.machine_id]
        assert len(good) <= 1
        assert good == kept
        assert all(isinstance(one, Refused) for one in answers if isinstance(one, BaseException))

    run_real(story())


def test_a_watch_ends_before_it_says_anything_to_a_token_that_was_revoked() -> None:
    async def story() -> None:
        async with joining() as (served, ask):
            _, body = await ask("kvm-1")
            headers = {"Authorization": f"Bearer {body['token']}"}
            admin = served.client()
            async with served.session.get(f"{served.url}{GROUP}/hypervisors?watch=true", headers=headers) as answer:
                await admin.create(hypervisor("kvm-1"))
                first = json.loads(await answer.content.readline())
                assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "kvm-1")
                await admin.delete((await admin.get(Token, "host.kvm-1")).ref)
                await admin.create(hypervisor("kvm-2"))
                last = json.loads(await answer.content.readline())
                assert (last["type"], last["object"]["code"]) == ("ERROR", 401)
                assert await answer.content.readline() == b""
            await admin.close()

    run_real(story())


def test_a_watch_of_consoles_ends_when_its_token_becomes_a_viewers() -> None:
    async def story() -> None:
        async with joining() as (served, _ask):
            admin = served.client()
            token = Token(metadata=ObjectMeta(name="ops"), role="operator", digest=digest_of(b"an-operators-token"))
            token = await admin.create(token)
            headers = {"Authorization": "Bearer an-operators-token"}
            text = {"host": HOST, "changed_at": datetime(2026, 1, 1, tzinfo=UTC)}
            async with served.session.get(f"{served.url}{GROUP}/consoles?watch=true", headers=headers) as answer:
                await admin.create(Console(metadata=ObjectMeta(name="vm-1"), text="a", **text))
                assert json.loads(await answer.content.readline())["type"] == "ADDED"
                await admin.replace(_replace(token, role="viewer"))
                await admin.create(Console(metadata=ObjectMeta(name="vm-2"), text="secret", **text))
                last = json.loads(await answer.content.readline())
                assert (last["type"], last["object"]["code"]) == ("ERROR", 403)
                assert await answer.content.readline() == b""
            await admin.close()

    run_real(story())


def test_the_cluster_s_key_is_given_to_a_host_only_while_it_is_a_coordinator() -> None:
    async def story() -> None:
        async with api(cluster_key=lambda: "the key") as served:
            admin, asked = served.client(), ("GET", "/cluster-key")
            assert (await served.call(*asked, role=Role.COORDINATOR))[0] == 403, "no such host"
            spec = HypervisorSpec(mode="coordinator")
            host = await admin.create(Hypervisor(metadata=ObjectMeta(name=HOST), spec=spec))
            with structlog.testing.capture_logs() as entries:
                code, body, headers = await served.call(*asked, role=Role.COORDINATOR)
            assert (code, body, headers["cache-control"]) == (200, {"key": "the key"}, "no-store")
            assert {"event": "cluster_key.given", "host": "kvm-1"}.items() <= entries[0].items()
            await admin.replace(msgspec.structs.replace(host, spec=HypervisorSpec()))
            code, body, _ = await served.call(*asked, role=Role.COORDINATOR)
            assert (code, "kvm-1 is no coordinator" in body["message"]) == (403, True)
            await admin.close()

    run_real(story())


def test_a_revoked_token_is_refused_at_once() -> None:
    async def story() -> None:
        async with joining() as (served, ask):
            _, body = await ask("kvm-1")
            assert (await of(served, body["token"], Token, "host.kvm-1")).name == "host.kvm-1"
            admin = served.client()
            await admin.delete((await admin.get(Token, "host.kvm-1")).ref)
            await admin.close()
            with pytest.raises(OutliveError, match="the token is not known"):
                await of(served, body["token"], Token, "host.kvm-1")

    run_real(story())


def test_a_host_joins_by_the_command_line(tmp_path: Path) -> None:
    """Over TLS, with the fingerprint; what people wrote into the configuration stays."""
    state, config = tmp_path / "state", tmp_path / "node.yaml"
    config.write_text(f"# ours\nhost:\n  stateDir: {tmp_path / 'host'}\nlog:\n  level: info\n")
    with up(state, "--listen", "0.0.0.0:0") as server:
        pinned = json.loads((state / "server.json").read_text())["fingerprint"]
        made = json.loads(outlive("token", "create", "--join", "--coordinator", "--state-dir", state, "-o", "json").out)
        assert f"--fingerprint {pinned}" in made["join"]
        options = ("--token", made["token"], "--config", config, "--name", "kvm-1")
        wrong = spawned("node", "join", server.url, *options, "--fingerprint", "0" * 64)
        assert (wrong.code, "was expected" in wrong.line) == (7, True)
        joined = spawned("node", "join", server.url, *options, "--fingerprint", pinned)
        assert joined.code == 0, joined.err
        assert "kvm-1 has joined" in joined.out
        text = config.read_text()
        wanted = ("# ours", ' mode: "coordinator"', " level: info", f' url: "{server.url}"')
        assert all(line in text for line in wanted)
        assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in ("node.token", "cluster-key"))
        assert (tmp_path / "cluster-key").read_text() == (state / "cluster-key").read_text()
        assert spawned("node", "--check", "--config", config).code == 0
        again = spawned("node", "join", server.url, *options, "--fingerprint", pinned)
        assert (again.code, "was used by kvm-1" in again.line) == (7, True)
        listed = outlive("token", "list", "--state-dir", state).out
        assert "host.kvm-1" in listed
        assert made["token"] not in listed
        assert outlive("token", "revoke", "kvm-1", "--state-dir", state).out == "host.kvm-1 (coordinator) is revoked\n"


@pytest.mark.parametrize(
    "text",
    [
        '{{"host": {{"stateDir": "{state}"}}}}\n',
        "host: {{stateDir: {state}}}\n",
        "host:\n  stateDir: {state}\nserver: {{\n  url: x\n}}\n",
        "host:\n  stateDir: {state}\n...\n",
    ],
    ids=["json", "section on one line", "server over lines", "end of document"],
)
def test_a_configuration_that_lines_cannot_be_added_to_costs_no_join_token(tmp_path: Path, text: str) -> None:
    state, config = tmp_path / "state", tmp_path / "node.yaml"
    config.write_text(text := text.format(state=tmp_path / "host"))
    with up(state) as server:
        made = json.loads(outlive("token", "create", "--join", "--state-dir", state, "-o", "json").out)
        options = ("--token", made["token"], "--config", config, "--name", "kvm-1")
        refused = outlive("node", "join", server.url, *options)
        assert (refused.code, "is not written in lines" in refused.line, str(config) in refused.line) == (3, True, True)
        assert config.read_text() == text
        config.write_text(f"host:\n  stateDir: {tmp_path / 'host'}\n")
        joined = outlive("node", "join", server.url, *options)
        assert joined.code == 0, joined.err
        assert spawned("node", "--check", "--config", config).code == 0


def test_an_authority_in_a_file_is_not_taken_with_a_fingerprint(tmp_path: Path) -> None:
    """Names are not compared with a fingerprint, and an authority of an operator's signs for others as well."""
    options = ("--token", "x" * 20, "--config", tmp_path / "node.yaml", "--ca", tmp_path / "ca.pem")
    result = outlive("node", "join", "https://127.0.0.1:1", *options, "--fingerprint", "0" * 64)
    assert (result.code, "--fingerprint, --ca" in result.line) == (2, True), result.line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create",), "say what the token is for"),
        (("create", "--join", "--role", "viewer"), "say what the token is for"),
        (("create", "--role", "host"), "there is no role 'host'"),
        (("create", "--role", "viewer", "--host", "kvm-1"), "only join tokens are for hosts"),
        (("create", "--join", "--for", "never"), "'never' is no time that a token may last"),
        (("create", "--role", "viewer", "host.kvm-1"), "is a name of a host's token"),
        (("revoke", "nobody"), "there is no token 'nobody'"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = outlive("token", *arguments, "--state-dir", tmp_path)
    assert result.code != 0
    assert said in result.line
