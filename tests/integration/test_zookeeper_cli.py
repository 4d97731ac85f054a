"""Controllers, coordinators and commands on three real ZooKeeper servers, and what they say when something is wrong."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from lab.zookeeper import free_ports
from msgspec.structs import replace
from tests.conformance.objects import election, vm, with_project
from tests.support.command import outlive, spawned
from tests.support.loops import run_real
from tests.support.zookeeper import (
    TestEnsemble,
    access_file,
    ask_controller,
    running_controller,
    shared_ensemble,
    zookeeper_store,
)

from outlive.base.errors import Forbidden, Unavailable
from outlive.resources import KINDS, Cluster, Election, Membership, ObjectMeta, Secret, VirtualMachine
from outlive.store.zookeeper import ZooKeeperAccess, ZooKeeperStore, ZooKeeperTls
from outlive.store.zookeeper.permissions import coordinator_reads, coordinator_writes
from outlive.store.zookeeper.requests import put

pytestmark = [pytest.mark.component("zookeeper"), pytest.mark.slow]


def test_two_controllers_share_keys_and_objects_and_commands_reach_the_ensemble_itself(tmp_path: Path) -> None:
    file = access_file(tmp_path / "zookeeper.yaml", shared_ensemble().new_chroot())
    assert "is ready" in outlive("zookeeper", "init", "--zookeeper", file).out
    direct = ("--store", "zookeeper", "--zookeeper", file)
    first, second = tmp_path / "one", tmp_path / "two"
    with running_controller(first, file) as one, running_controller(second, file) as two:
        assert (first / "token").read_bytes() == (second / "token").read_bytes()
        assert (first / "cluster-key").read_bytes() == (second / "cluster-key").read_bytes()
        spec = tmp_path / "flavor.yaml"
        spec.write_text(
            "apiVersion: outlive.dev/v1alpha1\nkind: Flavor\nmetadata: {name: m1}\nspec: {flavorName: m1.small}\n"
        )
        ask_controller(one, first, "apply", "-f", str(spec))
        assert "m1.small" in ask_controller(two, second, "get", "flavors")
        assert "m1.small" in outlive("get", "flavors", *direct).out
        end = time.monotonic() + 30.0
        while True:
            cluster = json.loads(outlive("get", "clusters", "default", "-o", "json", *direct).out)
            if cluster.get("status", {}).get("replicated") and cluster["status"].get("storeIncarnation"):
                break
            assert time.monotonic() < end, cluster
            time.sleep(0.3)
        before = cluster["status"]["storeIncarnation"]
        done = outlive("restored", *direct, "--yes")
        assert done.code == 0
        assert f"no more {before}" in done.err + done.out


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"servers": []}, 3, "names no server"),
        ({"servers": ["zk1"]}, 3, "'zk1' is no HOST:PORT"),
        ({"chroot": "outlive"}, 3, "'outlive' is no path of a znode"),
        ({"user": "a"}, 3, "a user has a name"),
        ({"sessionS": 9000.0}, 3, "9000 is not between"),
        ({"colour": "red"}, 3, "colour"),
        ({"tls": {"authority": "/nowhere/ca.pem"}}, 3, "/nowhere/ca.pem cannot be read"),
    ],
)
def test_an_access_file_that_cannot_be_is_refused_by_field(
    change: dict[str, object], code: int, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "zookeeper.yaml"
    file.write_text(yaml.safe_dump({"servers": ["127.0.0.1:1"], "chroot": "/outlive", **change}))
    file.chmod(0o600)
    done = outlive("get", "flavors", "--store", "zookeeper", "--zookeeper", file)
    assert done.code == code
    assert words in done.line
    assert str(file) in done.line


def test_an_access_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = access_file(tmp_path / "zookeeper.yaml", ZooKeeperAccess(servers=("127.0.0.1:1",)))
    file.chmod(0o644)
    done = outlive("get", "flavors", "--store", "zookeeper", "--zookeeper", file)
    assert done.code == 7


def test_a_chroot_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    file = access_file(tmp_path / "zookeeper.yaml", replace(shared_ensemble().new_chroot(), chroot="/outlvie"))
    done = outlive("get", "flavors", "--store", "zookeeper", "--zookeeper", file)
    assert done.code == 6
    assert "/outlvie" in done.line
    assert "outlive zookeeper init" in done.line


def test_a_schema_from_the_future_is_refused_by_its_number(tmp_path: Path) -> None:
    access = shared_ensemble().new_chroot()

    async def scene() -> None:
        store = zookeeper_store(access)
        await store.prepare()
        await store.client.commit([put("/schema", b"77")])
        await store.close()

    run_real(scene())
    file = access_file(tmp_path / "zookeeper.yaml", access)
    done = outlive("get", "flavors", "--store", "zookeeper", "--zookeeper", file)
    assert done.code == 1
    assert "storage schema 77 is not known here" in done.line
    done = spawned("controller", "--store", "zookeeper", "--zookeeper", file, "--state-dir", tmp_path / "state")
    assert "storage schema 77 is not known here" in done.lines[-1]


def test_a_plain_host_is_refused_and_told_what_to_use(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("host: {name: h1}\nserver: {store: zookeeper}\n")
    done = spawned("node", "--config", file, "--check")
    assert done.code == 3
    assert "h1 is no coordinator" in done.line
    assert "server.url" in done.line
    file.write_text("host: {name: h1, mode: coordinator}\nserver: {store: zookeeper}\n")
    assert spawned("node", "--config", file, "--check").code == 0


@asynccontextmanager
async def as_user(access: ZooKeeperAccess, user: str, password: str) -> AsyncIterator[ZooKeeperStore]:
    store = zookeeper_store(replace(access, user=user, password=password))
    try:
        yield store
    finally:
        await store.close()


def test_each_user_has_what_the_tables_give_its_role_and_nobody_else_has_anything(tmp_path: Path) -> None:
    access = shared_ensemble().new_chroot()
    ours, theirs = replace(access, user="ctl", password="a"), replace(access, user="coord", password="b")
    files = [access_file(tmp_path / f"{one.user}.yaml", one) for one in (ours, theirs)]
    done = outlive("zookeeper", "init", "--zookeeper", files[0], "--coordinators", files[1])
    assert "for ctl and coord" in done.out
    assert coordinator_writes(Membership)
    assert coordinator_reads(Secret)
    assert not coordinator_writes(Secret)

    async def scene() -> None:
        async with as_user(access, "ctl", "a") as store, as_user(access, "coord", "b") as host:
            made = await store.create(vm("vm-1", labels={"outlive.dev/host": "h1"}))
            await store.create(Cluster(metadata=ObjectMeta(name="default")))
            made = await host.replace_status(replace(made, status=replace(made.status, phase="ACTIVE")))
            assert await store.get(VirtualMachine, "vm-1", fresh=True) == made
            joined = await host.create(election("primary"))
            await store.delete(joined.ref)  # what a coordinator has made is the controllers' as well
            entries = (await store.client.children_many(((await store.layout()).log(Election),)))[0] or []
            await store.client.delete_many([f"{(await store.layout()).log(Election)}/{one}" for one in entries])
            for kind in KINDS.values():
                if coordinator_reads(kind):
                    await host.list(kind)
                elif not coordinator_writes(kind):
                    with pytest.raises(Forbidden):
                        await host.list(kind)
            keys = (await host.layout()).base("keys")
            with pytest.raises(Forbidden, match="'coord'"):
                await host.client.get(keys)
        later = replace(access, user="coord-2", password="c")
        file = access_file(tmp_path / "later.yaml", later)
        assert spawned("zookeeper", "init", "--zookeeper", files[0], "--coordinators", file).code == 0
        async with as_user(access, "coord-2", "c") as store:
            found = await store.get(VirtualMachine, "vm-1", fresh=True)
            await store.replace_status(replace(found, status=replace(found.status, phase="PAUSED")))
        for user, password in (("", ""), ("ctl", "wrong"), ("stranger", "x"), ("coord", "b")):
            async with as_user(access, user, password) as store:
                with pytest.raises(Forbidden):
                    await store.list(VirtualMachine)
                with pytest.raises(Forbidden):
                    await store.create(vm("vm-2"))

    run_real(scene())


def test_an_ensemble_that_is_away_at_the_start_is_told_and_found_when_it_is_back(tmp_path: Path) -> None:
    async def scene() -> None:
        access = ZooKeeperAccess(servers=(f"127.0.0.1:{free_ports(1)[0]}",), chroot="/x")
        store = zookeeper_store(access)
        store.client._answer_s = 0.5
        with pytest.raises(Unavailable, match="did not answer within"):
            await store.get(VirtualMachine, "a")
        await store.close()

    run_real(scene())


def certificates(folder: Path) -> dict[str, Path]:
    """An authority, another one, and a certificate of the first for the servers."""
    found = {name: folder / f"{name}.pem" for name in ("authority", "other", "server")}

    def openssl(*words: object) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)

    for name in ("authority", "other"):
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 2, "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", found[name]),
        )
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=zk", "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", found["authority"], "-CAkey", "authority.key", "-CAcreateserial"),
        *("-days", 2, "-extfile", "names", "-out", "server.crt"),
    )
    found["server"].write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    return found


# kazoo leaves sockets whose handshake failed to the collector of garbage
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.component("openssl")
def test_the_connection_is_encrypted_and_a_server_of_another_authority_is_told(tmp_path: Path) -> None:
    pems, port = certificates(tmp_path), free_ports(1)[0]
    settings = "\n".join(
        [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1",
            f"ssl.keyStore.location={pems['server']}\nssl.keyStore.type=PEM",
            f"ssl.trustStore.location={pems['authority']}\nssl.trustStore.type=PEM\nssl.clientAuth=none",
        ]
    )
    ensemble = TestEnsemble(1, settings=settings)
    try:
        ensemble.start()
        right = ZooKeeperAccess(
            servers=(f"127.0.0.1:{port}",), chroot="/tls", tls=ZooKeeperTls(authority=str(pems["authority"]))
        )

        async def scene() -> None:
            store = zookeeper_store(right)
            await store.prepare()
            made = await store.create(vm("vm-1"))
            assert await store.replace(with_project(made, "q"))
            await store.close()
            wrong = zookeeper_store(replace(right, tls=ZooKeeperTls(authority=str(pems["other"]))))
            wrong.client._answer_s = 3.0
            with pytest.raises(Unavailable, match="certificate"):
                await wrong.get(VirtualMachine, "vm-1")
            await wrong.close()

        run_real(scene())
    finally:
        ensemble.remove()
