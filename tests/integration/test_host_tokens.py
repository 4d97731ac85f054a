"""What the server lets a host do: with every verb, over HTTP, and for how long."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import structlog
from tests.support.api import GROUP, HOST, Api, api, host_of
from tests.support.host_tokens import joining, member, of, refused

from outlive.api import Identity, Role, Unauthenticated, digest_of, permit_write, revoke_tokens
from outlive.base import OutliveError, Random, SystemClock, SystemIds
from outlive.node import ROLE, HostWriter
from outlive.resources import (
    HOST_LABEL,
    WRITER_LABEL,
    Assigned,
    Cluster,
    Console,
    DecisionRecord,
    Election,
    ElectionRecord,
    Fault,
    Holder,
    HostLog,
    HostUsage,
    Hypervisor,
    HypervisorSpec,
    HypervisorUsage,
    Membership,
    ObjectMeta,
    ObjectRef,
    StorageDaemon,
    StorageDaemonStatus,
    StorageDevice,
    StoragePool,
    StoragePoolStatus,
    Token,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import REPORTER_LABEL
from outlive.store import HttpStore, MemoryStore, read

OTHER = "kvm-2"
_replace = msgspec.structs.replace


def hypervisor(name: str, mode: str = "hypervisor") -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name=name), spec=HypervisorSpec(management="node", mode=mode))


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Api, HttpStore, HttpStore]]:
    """A server with two members and a VM of each; the stores of a host and of a coordinator."""
    async with api() as served:
        admin = served.client()
        for name, mode in ((HOST, "coordinator"), (OTHER, "hypervisor")):
            await admin.create(hypervisor(name, mode))
            await admin.create(member(name))
            vm = await admin.create(VirtualMachine(metadata=ObjectMeta(name=f"vm-of-{name}")))
            held = Holder(hypervisor=name, member_uid="u", epoch=1, run_id="r")
            status = VirtualMachineStatus(assigned=Assigned(hypervisor=name), holders=(held,))
            await admin.replace_status(_replace(vm, status=status))
        host, coordinator = served.client(Role.HOST), served.client(Role.COORDINATOR)
        yield served, host, coordinator
        for store in (admin, host, coordinator):
            await store.close()


async def test_a_host_does_its_work() -> None:
    async with cluster() as (_, host, _coordinator):
        mine = await host.get(Membership, HOST, fresh=True)
        await host.replace(_replace(mine, record=_replace(mine.record, seq=2)))
        shown = await host.get(Hypervisor, HOST)
        shown = await host.replace_status(_replace(shown, status=_replace(shown.status, num_instances=1)))
        await host.replace(_replace(shown, spec=_replace(shown.spec, drain=True)))
        await host.create(HypervisorUsage(metadata=ObjectMeta(name=HOST), usage=HostUsage(running=1)))
        vm = await host.get(VirtualMachine, f"vm-of-{HOST}")
        vm = await host.replace_status(_replace(vm, status=_replace(vm.status, phase="start")))
        labelled = _replace(vm.metadata, labels={HOST_LABEL: HOST})
        await host.replace(_replace(vm, metadata=labelled))
        record = DecisionRecord(
            metadata=ObjectMeta(generate_name="d-"),
            decision="d",
            by=HostWriter(HOST).decider,
            at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        await host.create(record)


async def test_a_host_reads_and_writes_consoles_of_vms_that_it_has_to_do_with_and_others_only_delete_them() -> None:
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
            for query in ("", f"?fieldSelector=metadata.name={mine}", f"?watch=1&fieldSelector=metadata.name={mine}"):
                status, _, _ = await served.call("GET", f"{GROUP}/consoles{query}", role=role)
                assert status == 403, query
        found = await operator.get(Console, mine, fresh=True)
        forged = Console(metadata=ObjectMeta(name="vm-of-nobody"), **text)
        assert "operator may not update" in await refused(operator.replace(_replace(found, text="forged")))
        assert "operator may not create" in await refused(operator.create(forged))
        await operator.delete(found.ref)
        await admin.close()
        await operator.close()


async def test_what_a_daemon_published_of_itself_is_deleted_with_its_host() -> None:
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


async def test_a_coordinator_fences_others_and_renews_for_none() -> None:
    async with cluster() as (_, _host, coordinator):
        theirs = await coordinator.get(Membership, OTHER)
        condemned = _replace(theirs, record=_replace(theirs.record, state="Revoked"))
        theirs = await coordinator.replace(condemned)
        renewed = _replace(theirs, record=_replace(theirs.record, seq=9))
        assert "record.seq" in await refused(coordinator.replace(renewed))


async def test_storage_is_written_by_the_primary_alone_and_under_its_term() -> None:
    async with cluster() as (served, host, coordinator):
        pool = StoragePool(metadata=ObjectMeta(name="p"), term=3, status=StoragePoolStatus(pool="p"))
        assert "that belongs to primary" in await refused(coordinator.create(pool))
        assert "may not create the document of storagepools" in await refused(host.create(pool))
        record = ElectionRecord(holder=host_of(Role.COORDINATOR), term=3)
        election = await coordinator.create(Election(metadata=ObjectMeta(name=ROLE), record=record))
        assert "under term 2: " in await refused(coordinator.create(_replace(pool, term=2)))
        made = await coordinator.create(pool)
        fault = Fault(
            metadata=ObjectMeta(name="storage-warn.ceph", labels={REPORTER_LABEL: "primary", WRITER_LABEL: HOST}),
            code="storage-warn",
            subject=ObjectRef(kind="StorageCluster", name="ceph"),
            message="m",
            delta=FaultCode.STORAGE_WARN.delta,
            first_seen=datetime(2026, 1, 1, tzinfo=UTC),
            last_seen=datetime(2026, 1, 1, tzinfo=UTC),
        )
        assert "primary reports it" in await refused(host.create(fault))
        fault = await coordinator.create(fault)
        admin = served.client()
        await admin.replace(_replace(election, record=_replace(record, holder=OTHER, term=4)))
        await admin.close()
        assert "that belongs to primary" in await refused(coordinator.delete(made.ref))
        assert "primary reports it" in await refused(coordinator.replace(_replace(fault, ended=True)))
        device = StorageDevice(host=HOST, block_device="/dev/sdb")
        daemon = await host.create(StorageDaemon(metadata=ObjectMeta(name="0"), device=device))
        moved = _replace(daemon, device=_replace(device, host=OTHER))
        assert "is named there, and not" in await refused(host.replace(moved))
        claimed = _replace(daemon, status=StorageDaemonStatus(up=True))
        assert "that belongs to primary" in await refused(host.replace(claimed))


async def test_an_entry_of_another_host_goes_only_once_that_is_fenced() -> None:
    async with cluster() as (served, host, _):
        admin = served.client()
        theirs = await admin.get(Membership, OTHER)
        vm = await admin.get(VirtualMachine, f"vm-of-{OTHER}")
        held = _replace(vm.status.holders[0], member_uid=theirs.metadata.uid)
        status = _replace(vm.status, assigned=Assigned(hypervisor=HOST), holders=(held,))
        vm = await admin.replace_status(_replace(vm, status=status))
        uid = (await admin.get(Membership, HOST)).metadata.uid
        taken = _replace(vm.status, holders=(Holder(hypervisor=HOST, member_uid=uid, epoch=1, run_id="s"),))
        assert "epoch 1 is fenced" in await refused(host.replace_status(_replace(vm, status=taken)))
        await admin.replace(_replace(theirs, record=_replace(theirs.record, dead_through=1)))
        await host.replace_status(_replace(vm, status=taken))
        await admin.close()


async def test_a_coordinator_that_is_one_no_more_is_a_plain_host_at_once() -> None:
    async with cluster() as (served, _host, coordinator):
        admin, theirs = served.client(), await coordinator.get(Membership, OTHER)
        theirs = await coordinator.replace(_replace(theirs, record=_replace(theirs.record, state="Revoked")))
        shown = await admin.get(Hypervisor, HOST)
        await admin.replace(_replace(shown, spec=_replace(shown.spec, mode="hypervisor")))
        await admin.close()
        proven = _replace(theirs, record=_replace(theirs.record, dead_through=1))
        assert "kvm-1 is no coordinator" in await refused(coordinator.replace(proven))
        record = ElectionRecord(holder=HOST, term=1)
        assert "may not create" in await refused(
            coordinator.create(Election(metadata=ObjectMeta(name=ROLE), record=record))
        )
        mine = await coordinator.get(Membership, HOST)
        await coordinator.replace(_replace(mine, record=_replace(mine.record, seq=2)))


async def test_no_host_takes_a_vm_that_it_has_nothing_to_do_with() -> None:
    async with cluster() as (served, host, _coordinator):
        admin, theirs = served.client(), f"vm-of-{OTHER}"
        text = {"host": OTHER, "text": "root password: hunter2", "changed_at": datetime(2026, 1, 1, tzinfo=UTC)}
        await admin.create(Console(metadata=ObjectMeta(name=theirs), **text))
        named = await admin.create(Cluster(metadata=ObjectMeta(name="default")))
        await admin.replace_status(_replace(named, status=_replace(named.status, store_incarnation="now")))
        await admin.close()
        mine, vm = await host.get(Membership, HOST), await host.get(VirtualMachine, theirs)
        mine = await host.replace(_replace(mine, record=_replace(mine.record, incarnation="now")))
        entry = Holder(hypervisor=HOST, member_uid=mine.metadata.uid, epoch=1, run_id="x")
        entered = _replace(vm.status, holders=(*vm.status.holders, entry))
        assert "it is not assigned to kvm-1" in await refused(host.replace_status(_replace(vm, status=entered)))
        unregistered = _replace(mine, record=_replace(mine.record, incarnation="another"))
        assert "kvm-1 is registered in this store" in await refused(host.replace(unregistered))
        assert "nothing to do with the VM" in await refused(host.get(Console, theirs, fresh=True))


async def test_a_watch_ends_before_it_says_anything_to_a_token_that_was_revoked() -> None:
    async with joining() as (served, ask):
        _, body = await ask("kvm-1")
        headers = {"Authorization": f"Bearer {body['token']}"}
        admin = served.client()
        async with served.session.get(f"{served.url}{GROUP}/memberships?watch=true", headers=headers) as answer:
            await admin.create(member("kvm-1"))
            first = json.loads(await answer.content.readline())
            assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "kvm-1")
            await admin.delete((await admin.get(Token, "host.kvm-1")).ref)
            await admin.create(member("kvm-2"))
            last = json.loads(await answer.content.readline())
            assert (last["type"], last["object"]["code"]) == ("ERROR", 401)
            assert await answer.content.readline() == b""
        await admin.close()


async def test_a_watch_of_consoles_ends_when_its_token_becomes_a_viewers() -> None:
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


async def test_the_cluster_s_key_is_given_to_a_host_only_while_it_is_a_coordinator() -> None:
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


async def test_a_revoked_token_is_refused_at_once() -> None:
    async with joining() as (served, ask):
        _, body = await ask("kvm-1")
        admin = served.client()
        await admin.create(member("kvm-1"))
        assert (await of(served, body["token"], Membership, "kvm-1")).name == "kvm-1"
        await admin.delete((await admin.get(Token, "host.kvm-1")).ref)
        await admin.close()
        with pytest.raises(OutliveError, match="the token is not known"):
            await of(served, body["token"], Membership, "kvm-1")


async def test_a_deleted_host_comes_back_only_by_joining_anew() -> None:
    """A coordinator that an operator made a plain host would else register itself as a coordinator."""
    async with joining(host="kvm-1", coordinator=True) as (served, ask):
        _, body = await ask("kvm-1")
        admin, mine = served.client(), HttpStore(served.url, body["token"], clock=SystemClock(), random=Random(1))
        made = await mine.create(hypervisor("kvm-1", "coordinator"))
        made = await admin.replace(_replace(made, spec=_replace(made.spec, mode="hypervisor")))
        await served.call("DELETE", f"{GROUP}/hypervisors/kvm-1?dryRun=All")
        assert await read(admin, Token, "host.kvm-1"), "a dry run revokes nothing"
        await served.call("DELETE", f"{GROUP}/hypervisors/kvm-1", role=Role.OPERATOR)
        assert await read(admin, Token, "host.kvm-1") is None
        for again in (hypervisor("kvm-1", "coordinator"), hypervisor("kvm-1")):
            with pytest.raises(OutliveError, match="the token is not known"):
                await mine.create(again)
        assert await read(admin, Hypervisor, "kvm-1") is None
        secret = "another-join-token-of-kvm-1"
        ticket = Token(metadata=ObjectMeta(name="join-2"), role="join", digest=digest_of(secret.encode()))
        await admin.create(_replace(ticket, host="kvm-1"))
        _, body = await ask("kvm-1", secret=secret)
        for store in (admin, mine):
            await store.close()
        mine = HttpStore(served.url, body["token"], clock=SystemClock(), random=Random(1))
        assert "as a coordinator" in await refused(mine.create(hypervisor("kvm-1", "coordinator")))
        assert (await mine.create(hypervisor("kvm-1"))).spec.mode == "hypervisor"
        await mine.close()


async def test_a_request_that_began_before_the_token_was_revoked_registers_no_host() -> None:
    store = MemoryStore(SystemClock(), SystemIds())
    token = Token(metadata=ObjectMeta(name="host.kvm-1"), role="coordinator", digest="d", host="kvm-1")
    await store.create(token)
    identity = Identity("host.kvm-1", Role.COORDINATOR, "kvm-1", "", "d")
    await permit_write(store, identity, None, hypervisor("kvm-1", "coordinator"))
    await revoke_tokens(store, "kvm-1")
    with pytest.raises(Unauthenticated, match="was revoked"):
        await permit_write(store, identity, None, hypervisor("kvm-1", "coordinator"))


async def test_a_host_whose_hypervisor_a_restored_backup_lacks_registers_itself() -> None:
    async with joining(host="kvm-1", coordinator=True) as (served, ask):
        _, body = await ask("kvm-1")
        mine = HttpStore(served.url, body["token"], clock=SystemClock(), random=Random(1))
        made = await mine.create(hypervisor("kvm-1", "coordinator"))
        await served.store.delete(made.ref)  # as a backup from before it says nothing of the host
        assert (await mine.create(hypervisor("kvm-1", "coordinator"))).spec.mode == "coordinator"
        await mine.close()


async def test_a_list_that_goes_on_names_no_object_that_its_reader_is_not_shown() -> None:
    async with cluster() as (served, _host, _coordinator):
        admin, mine = served.client(), []
        for number in range(9):
            name = HOST if number == 7 else f"secret-{number}"
            subject = ObjectRef(kind="Hypervisor", name=name)
            meta = ObjectMeta(name=f"c{number}.{name}", labels={HOST_LABEL: name, REPORTER_LABEL: "daemon"})
            at = datetime(2026, 1, 1, tzinfo=UTC)
            await admin.create(
                Fault(metadata=meta, code=f"c{number}", subject=subject, message="m", first_seen=at, last_seen=at)
            )
        await admin.close()
        page: Any = {"metadata": {"continue": ""}}
        tokens: list[str] = []
        while not tokens or tokens[-1]:
            params = {"limit": "2", "continue": page["metadata"]["continue"]}
            _, page, _ = await served.call("GET", f"{GROUP}/faults", role=Role.HOST, params=params)
            mine += [one["metadata"]["name"] for one in page["items"]]
            tokens.append(page["metadata"].get("continue", ""))
        assert (mine, len(tokens)) == ([f"c7.{HOST}"], 5)
        assert len({len(one) for one in tokens[:-1]}) == 1
        for token in tokens[:-1]:
            raw = base64.urlsafe_b64decode(token.partition(".")[2])
            assert b"secret" not in raw
        for kind, wrong in (("virtualmachines", tokens[0]), ("faults", "1.c3.secret-3"), ("faults", "1.eA==")):
            params = {"continue": wrong}
            code, body, _ = await served.call("GET", f"{GROUP}/{kind}", role=Role.HOST, params=params)
            assert (code, body["reason"]) == (410, "Expired")
