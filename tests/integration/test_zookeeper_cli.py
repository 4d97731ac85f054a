"""Controllers, coordinators and commands on three real ZooKeeper servers, and what they say when something is wrong."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import yaml
from lab.processes import free_ports
from msgspec.structs import replace
from tests.conformance.objects import election, flavor, vm, with_project
from tests.support.command import Result, outlive, spawned, up
from tests.support.hosts import Host
from tests.support.loops import run_real
from tests.support.zookeeper import (
    TestEnsemble,
    access_file,
    ask_controller,
    running_controller,
    shared_ensemble,
    zookeeper_store,
)

from outlive.base import Forbidden, NotUnderstood, SystemClock, Unavailable
from outlive.drivers.zookeeper import ZnodeKeys
from outlive.resources import CLUSTER, KINDS, Cluster, Election, Flavor, Membership, ObjectMeta, Secret, VirtualMachine
from outlive.store.zookeeper import (
    ZooKeeperAccess,
    ZooKeeperStore,
    ZooKeeperTls,
    coordinator_reads,
    coordinator_writes,
    replace_data,
)

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


def test_a_cluster_of_outlive_up_goes_on_on_an_ensemble_and_its_host_finds_it(tmp_path: Path) -> None:
    state, access = tmp_path / "state", shared_ensemble().new_chroot()
    file = access_file(tmp_path / "zookeeper.yaml", access)
    target = ("--store", "zookeeper", "--zookeeper", file)

    def migrate() -> Result:
        return outlive("migrate-store", "--yes", "--state-dir", state, *target)

    with up(state) as running:
        host = Host(tmp_path / "h1", "h1", running.url, state / "token").start().ready()
        assert migrate().code == 5, "the server runs"
        assert outlive("disarm", "--cluster", "--mode", "freeze", "--state-dir", state).code == 0
    assert "outlive zookeeper init" in migrate().line, "there is no store yet"
    assert outlive("zookeeper", "init", "--zookeeper", file).code == 0
    done = migrate()
    assert done.code == 0, done.err
    assert "systemctl enable --now outlive-controller" in done.out
    assert migrate().out == done.out, "repeating it changes nothing"
    assert outlive("schema", "status", *target).code == 0
    with closing(host), running_controller(tmp_path / "one", file) as controller:
        refused = spawned("up", "--state-dir", state, "--listen", "127.0.0.1:0")
        assert f"moved to {access.place}" in refused.lines[-1]
        for name in ("ca.pem", "ca.key", "cluster-key", "token"):
            assert (tmp_path / "one" / name).read_bytes() == (state / name).read_bytes(), name

        async def story() -> None:
            store = zookeeper_store(access)
            try:
                cluster = await store.get(Cluster, CLUSTER)
                assert cluster.status.pause is not None, "its host has not spoken yet"
                host.close()
                host.sections["server"]["url"] = controller.url
                host.configure()
                host.start()
                await asyncio.to_thread(host.ready)
                async with asyncio.timeout(30.0):
                    while (await store.get(Cluster, CLUSTER)).status.pause is not None:  # noqa: ASYNC110 - a store
                        await asyncio.sleep(0.1)
                member = (await store.get(Membership, "h1")).record
                assert (member.state, member.incarnation) == ("Held", cluster.status.store_incarnation)
                assert member.epoch == 2
            finally:
                await store.close()

        run_real(story())


def test_no_controller_starts_on_half_of_a_cluster_that_is_moved_and_no_other_takes_its_place(tmp_path: Path) -> None:
    state, access = tmp_path / "state", shared_ensemble().new_chroot()
    file = access_file(tmp_path / "zookeeper.yaml", access)
    assert outlive("zookeeper", "init", "--zookeeper", file).code == 0
    with up(state):
        pass
    files = tuple(one.name for one in state.iterdir() if one.name in ("ca.pem", "ca.key", "cluster-key", "token"))

    async def begin(source: str) -> None:
        store = zookeeper_store(access)
        try:
            await ZnodeKeys(store, SystemClock()).begin_move(state, files, source=source, incarnation="new")
        finally:
            await store.close()

    run_real(begin("a-store"))
    waiting = spawned("controller", "--store", "zookeeper", "--zookeeper", file, "--state-dir", tmp_path / "one")
    assert waiting.code == 1
    assert "a cluster is being moved here" in waiting.lines[-1]
    other = outlive("migrate-store", "--yes", "--state-dir", state, "--store", "zookeeper", "--zookeeper", file)
    assert other.code == 1
    assert "controllers of another cluster have run there" in other.line
    assert not (state / "moved.json").exists(), "outlive up goes on with it"


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


def test_a_znode_with_nonsense_is_told_by_its_name_and_others_are_served(tmp_path: Path) -> None:
    access = shared_ensemble().new_chroot()
    file = access_file(tmp_path / "zookeeper.yaml", access)
    assert outlive("zookeeper", "init", "--zookeeper", file).code == 0

    async def scene() -> None:
        store = zookeeper_store(access)
        try:
            layout = await store.get_layout()
            made = {name: await store.create(vm(name)) for name in ("vm-1", "vm-2", "vm-3")}
            names = [layout.name_path(VirtualMachine, name) for name in ("vm-1", "vm-2")]
            nonsense = [replace_data(names[0], b"\xff"), replace_data(names[1], b"another-uid")]
            of_object = layout.object_path(VirtualMachine, "vm-3", made["vm-3"].metadata.uid)
            await store.client.commit([*nonsense, replace_data(of_object, b"{")])
            async with as_user(access, "", "") as reader:
                for name, path in zip(("vm-1", "vm-2"), names, strict=True):
                    with pytest.raises(NotUnderstood, match=path):
                        await reader.get(VirtualMachine, name, fresh=True)
                with pytest.raises(NotUnderstood, match="VirtualMachine/vm-3"):
                    await reader.get(VirtualMachine, "vm-3")
                page = await reader.list(VirtualMachine)
                assert [one.name for one in page.items] == ["vm-1", "vm-2"], "lists do not need the name"
                assert [one.ref.name for one in page.malformed] == ["vm-3"]
                await store.client.commit([replace_data(names[0], made["vm-1"].metadata.uid.encode())])
                assert await reader.get(VirtualMachine, "vm-1") == made["vm-1"]
            await store.client.commit([replace_data(layout.kind_path(Flavor), b"nonsense")])
            async with as_user(access, "", "") as writer:
                with pytest.raises(NotUnderstood, match="outlive zookeeper init"):
                    await writer.create(flavor("m1"))
                await writer.create(vm("vm-4"))
        finally:
            await store.close()

    run_real(scene())
    assert outlive("zookeeper", "init", "--zookeeper", file).code == 0

    async def mended() -> None:
        async with as_user(access, "", "") as store:
            await store.create(flavor("m1"))

    run_real(mended())


def test_the_file_of_a_tree_is_private_and_goes_back_as_it_was(tmp_path: Path) -> None:
    file = access_file(tmp_path / "zookeeper.yaml", shared_ensemble().new_chroot())
    direct = ("--store", "zookeeper", "--zookeeper", file)
    assert outlive("zookeeper", "init", "--zookeeper", file).code == 0
    missing = outlive("schema", "backup", tmp_path / "none" / "tree", *direct)
    assert missing.code == 3
    assert f"{tmp_path}/none/tree: cannot be written" in missing.line
    tree = tmp_path / "tree"
    assert outlive("schema", "backup", tree, *direct).code == 0
    assert stat.S_IMODE(tree.stat().st_mode) == 0o600, "the keys are in it"
    assert "exists" in outlive("schema", "backup", tree, *direct).line
    done = outlive("schema", "restore", tree, "--yes", *direct)
    assert done.code == 0
    assert "outlive restored --store zookeeper" in done.out + done.err
    whole = json.loads(tree.read_bytes())
    for change, words in (
        ({"/keys": "!!"}, "/keys: its data is no base64"),
        ({"/nowhere/x": ""}, "/nowhere/x: is no path of a znode whose parent is there"),
        ({"schema": ""}, "schema: is no path"),
        ({"/schema": "Nw=="}, "/schema: does not say 1"),
    ):
        tree.write_text(json.dumps({**whole, "nodes": {**whole["nodes"], **change}}))
        assert words in outlive("schema", "restore", tree, "--yes", *direct).line
    assert outlive("get", "flavors", *direct).code == 0, "nothing was written"
    tree.write_text("{")
    assert "is no backup of a tree" in outlive("schema", "restore", tree, "--yes", *direct).line


def test_keys_of_nonsense_keep_a_controller_from_starting_and_are_left_as_they_are(tmp_path: Path) -> None:
    access = shared_ensemble().new_chroot()
    file = access_file(tmp_path / "zookeeper.yaml", access)
    assert outlive("zookeeper", "init", "--zookeeper", file).code == 0

    async def keys(raw: bytes = b"") -> bytes:
        async with as_user(access, "", "") as store:
            path = (await store.get_layout()).base_path("keys")
            if raw:
                await store.client.commit([replace_data(path, raw)])
            found = await store.client.get(path, fresh=True)
            assert found is not None
            return found[0]

    run_real(keys(b"nonsense"))
    done = spawned("controller", "--store", "zookeeper", "--zookeeper", file, "--state-dir", tmp_path / "one")
    assert done.code == 3
    assert "znode keys of ZooKeeper" in done.lines[-1]
    assert "docs/how-to/zookeeper.md#backup" in done.lines[-1]
    assert run_real(keys()) == b"nonsense"


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


async def test_each_user_has_what_the_tables_give_its_role_and_nobody_else_has_anything(tmp_path: Path) -> None:
    access = shared_ensemble().new_chroot()
    ours, theirs = replace(access, user="ctl", password="a"), replace(access, user="coord", password="b")
    files = [access_file(tmp_path / f"{one.user}.yaml", one) for one in (ours, theirs)]
    done = spawned("zookeeper", "init", "--zookeeper", files[0], "--coordinators", files[1])
    assert "for ctl and coord" in done.out
    assert coordinator_writes(Membership)
    assert coordinator_reads(Secret)
    assert not coordinator_writes(Secret)
    async with as_user(access, "ctl", "a") as store, as_user(access, "coord", "b") as host:
        made = await store.create(vm("vm-1", labels={"outlive.dev/host": "h1"}))
        await store.create(Cluster(metadata=ObjectMeta(name="default")))
        made = await host.replace_status(replace(made, status=replace(made.status, phase="ACTIVE")))
        assert await store.get(VirtualMachine, "vm-1", fresh=True) == made
        joined = await host.create(election("primary"))
        await store.delete(joined.ref)  # what a coordinator has made is the controllers' as well
        entries = (await store.client.list_children(((await store.get_layout()).log_path(Election),)))[0] or []
        await store.client.delete_many([f"{(await store.get_layout()).log_path(Election)}/{one}" for one in entries])
        for kind in KINDS.values():
            if coordinator_reads(kind):
                await host.list(kind)
            elif not coordinator_writes(kind):
                with pytest.raises(Forbidden):
                    await host.list(kind)
        keys = (await host.get_layout()).base_path("keys")
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


async def test_an_ensemble_that_is_away_at_the_start_is_told_and_found_when_it_is_back(tmp_path: Path) -> None:
    access = ZooKeeperAccess(servers=(f"127.0.0.1:{free_ports(1)[0]}",), chroot="/x")
    store = zookeeper_store(access)
    store.client._answer_s = 0.5
    with pytest.raises(Unavailable, match="did not answer within"):
        await store.get(VirtualMachine, "a")
    await store.close()


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
            for _ in range(5):  # the handshake that tells why may itself take too long
                with pytest.raises(Unavailable) as refused:
                    await wrong.get(VirtualMachine, "vm-1")
                if "certificate" in str(refused.value):
                    break
            assert "certificate" in str(refused.value)
            await wrong.close()

        run_real(scene())
    finally:
        ensemble.remove()
