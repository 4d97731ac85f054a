"""A cluster of real processes on real ZooKeeper servers goes to another storage schema and back while it runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.command import COMMAND, environment, outlive, spawned
from tests.support.hosts import Host, within
from tests.support.loops import run_real
from tests.support.schemas import document
from tests.support.zookeeper import shared_ensemble, zookeeper_store

import outlive as package
from outlive.base.errors import Conflict, NotFound
from outlive.node.fencing.policy import PROFILES, ProfileName
from outlive.resources import (
    Cluster,
    Condition,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    MemberRecord,
    Membership,
    ObjectMeta,
    VirtualMachine,
)
from outlive.resources.cluster import CLUSTER, SchemaWish
from outlive.resources.hosts import HostSchema
from outlive.store import list_all
from outlive.store.schema.documents import SchemaDocument
from outlive.store.schema.state import SchemaState
from outlive.store.zookeeper import ZooKeeperAccess, ZooKeeperClient, ZooKeeperStore
from outlive.store.zookeeper.schema_view import SchemaView
from outlive.store.zookeeper.tree_move import TreeMover

pytestmark = [pytest.mark.component("zookeeper"), pytest.mark.slow]
T = TypeVar("T")
HOSTS = ("co-1", "co-2", "co-3")
VMS = 200
LIMIT_S = 60.0
GUARD_TIMEOUT_S = PROFILES[ProfileName.STEADY].guard_timeout_s


class Installation:
    """Outlive as it is installed on all machines of the cluster; ``upgrade`` installs the next version."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "site"
        source = Path(package.__file__).parent
        shutil.copytree(source, self.path / "outlive", ignore=shutil.ignore_patterns("__pycache__"))

    def upgrade(self) -> None:
        (self.path / "outlive/store/schema/documents/2.json").write_bytes(msgspec.json.encode(next_release()))


def next_release() -> SchemaDocument:
    """Schema 2 for the code of this release: it has all kinds, in the versions that this release has."""
    old, new = document(1), document(2)
    kept = {key: path for key, path in old.zookeeper["base"].items() if key.endswith(".knowledges")}
    return replace(new, kinds=old.kinds, zookeeper={"base": new.zookeeper["base"] | kept})


class RunningCluster:
    """Controller and hosts as processes, and the store beside them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.installed = Installation(directory)
        self.access = shared_ensemble().new_chroot()
        self.file = directory / "zookeeper.yaml"
        self.file.write_text(
            json.dumps({"servers": list(self.access.servers), "chroot": self.access.chroot, "sessionS": 4.0})
        )
        self.file.chmod(0o600)
        self.log = directory / "controller.log"
        self.controller: subprocess.Popen[bytes] | None = None
        self.hosts = [self._host(name) for name in (*HOSTS, "dying")]
        self._runner = asyncio.Runner()
        self._store: ZooKeeperStore | None = None

    def _host(self, name: str) -> Host:
        one = Host(self.directory / name, name, "http://127.0.0.1:1", self.directory / "none")
        one.sections["server"] = {"store": "zookeeper", "zookeeper": str(self.file)}
        one.sections["host"]["mode"] = "coordinator"
        one.configure()
        return one

    def start_controller(self) -> None:
        with self.log.open("ab") as out:
            options = ("--listen", "127.0.0.1:0", "--state-dir", str(self.directory / "controller"))
            self.controller = subprocess.Popen(
                [*COMMAND, "controller", "--store", "zookeeper", "--zookeeper", str(self.file), *options],
                stdout=out,
                stderr=out,
                env=environment(),
            )

    def end_controller(self, number: int = signal.SIGTERM) -> None:
        assert self.controller is not None
        self.controller.send_signal(number)
        self.controller.wait(LIMIT_S)

    def ask(self, work: Callable[[ZooKeeperStore], Coroutine[Any, Any, T]]) -> T:
        """What a client of the store finds now."""

        async def go() -> T:
            if self._store is None:
                self._store = store_of_both(self.access)
            return await work(self._store)

        return self._runner.run(go())

    def prepare(self) -> None:
        """Make the store by the schema of this release."""

        async def make() -> None:
            store = zookeeper_store(self.access)
            await store.prepare()
            await store.close()

        run_real(make())

    def schema(self) -> Cluster:
        return self.ask(lambda store: store.get(Cluster, CLUSTER, fresh=True))

    def members(self) -> dict[str, MemberRecord]:
        async def read(store: ZooKeeperStore) -> dict[str, MemberRecord]:
            return {one.name: one.record async for one in list_all(store, Membership)}

        return self.ask(read)

    def latest(self, name: str) -> int:
        return self.ask(lambda store: store.get(Hypervisor, name)).status.schema.latest

    def actives(self) -> set[int]:
        async def read(store: ZooKeeperStore) -> set[int]:
            return {(await store.get(Hypervisor, name)).status.schema.active for name in HOSTS}

        return self.ask(read)

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        if self.controller is not None and self.controller.poll() is None:
            self.end_controller(signal.SIGKILL)
        if self._store is not None:
            self._runner.run(self._store.close())
        self._runner.close()


def both(version: int) -> SchemaDocument:
    return next_release() if version == 2 else document(1)


def store_of_both(access: ZooKeeperAccess) -> ZooKeeperStore:
    """A store that knows both schemas, as a later release does."""
    client, base = ZooKeeperClient(access), zookeeper_store(access)

    return ZooKeeperStore(
        client,
        clock=base.clock,
        ids=base._ids,
        random=base._random,
        schema=SchemaView(client, clock=base.clock, document=both),
    )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    running = RunningCluster(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(running.installed.path))
    running.prepare()
    yield running
    running.close()


async def fill(store: ZooKeeperStore) -> None:
    """VMs, and a host that was stopped three days ago and knows the old schema only."""
    for start in range(0, VMS, 50):
        made = [store.create(VirtualMachine(metadata=ObjectMeta(name=f"vm-{start + one}"))) for one in range(50)]
        await asyncio.gather(*made)
    long_ago = datetime.now(UTC).replace(microsecond=0) - timedelta(days=3)
    down = Condition(
        type="Ready", status="False", reason="DaemonStopped", message="stopped", last_transition_time=long_ago
    )
    gone = await store.create(
        Hypervisor(metadata=ObjectMeta(name="gone"), spec=HypervisorSpec(management="node", mode="hypervisor"))
    )
    status = HypervisorStatus(schema=HostSchema(active=1, latest=1), conditions=(down,))
    await store.replace_status(replace(gone, status=status))
    record = MemberRecord(machine_id="m", boot_id="b", state="Released", dead_through=1)
    await store.create(Membership(metadata=ObjectMeta(name="gone"), record=record))


class RenewalWatch(threading.Thread):
    """Sees how long each host went without a renewal."""

    def __init__(self, cluster: RunningCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._ends = threading.Event()
        self.longest: dict[str, float] = {}

    def run(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        store, seen = store_of_both(self._cluster.access), dict[str, tuple[int, float]]()
        while not self._ends.is_set():
            for name in HOSTS:
                seq, now = (await store.get(Membership, name)).record.seq, time.monotonic()
                before = seen.get(name, (seq, now))
                if seq != before[0] or name not in seen:
                    self.longest[name] = max(self.longest.get(name, 0.0), now - before[1])
                    seen[name] = (seq, now)
            await asyncio.sleep(0.05)
        await store.close()

    def stop(self) -> dict[str, float]:
        """The longest time without a renewal, by host."""
        self._ends.set()
        self.join(LIMIT_S)
        return self.longest


def test_a_cluster_goes_to_the_next_schema_and_back_while_it_runs(cluster: RunningCluster) -> None:
    cluster.start_controller()
    for host in cluster.hosts:
        host.start()
    for host in cluster.hosts:
        host.ready()
    cluster.ask(fill)
    before = cluster.ask(_vms)
    cluster.installed.upgrade()
    cluster.end_controller()
    cluster.start_controller()
    for host in cluster.hosts:
        host.signal(signal.SIGUSR2)
    for host in cluster.hosts:
        assert within(LIMIT_S, lambda host=host: len(host.events("node.ready")) == 2), host.logged()[-2000:]
    assert within(LIMIT_S, lambda: cluster.latest("dying") == 2)
    dying = cluster.hosts[-1]
    dying.close()
    assert within(LIMIT_S, lambda: cluster.members()["dying"].state == "Revoked"), "a fence is under way"
    fence = cluster.members()["dying"].fence.id
    assert within(LIMIT_S, lambda: cluster.schema().status.schema.waiting_for == ("gone",)), cluster.log.read_text()[
        -3000:
    ]
    refused = outlive("schema", "upgrade", "--exclude", "co-1", "--store", "zookeeper", "--zookeeper", cluster.file)
    assert refused.code == 1, refused
    assert "co-1 may not be excluded" in refused.line
    renewals = RenewalWatch(cluster)
    renewals.start()
    told = outlive("schema", "upgrade", "--exclude", "gone", "--store", "zookeeper", "--zookeeper", cluster.file)
    assert told.code == 0, told.err

    def settled(version: int) -> bool:
        found = cluster.schema()
        done = found.schema_version == version and found.status.schema.hold is None
        return done and cluster.actives() == {version}

    assert within(LIMIT_S, lambda: settled(2)), cluster.log.read_text()[-3000:] + str(cluster.schema().status.schema)
    assert cluster.ask(_vms) == before, "no VM was touched"
    members = cluster.members()
    assert {name for name, one in members.items() if one.state != "Held"} == {"dying", "gone"}
    assert members["dying"].fence.id == fence
    for host in cluster.hosts[:3]:
        started = host.events("node.started")
        assert len(started) == 3, "the first start, the installed version, the other schema"
        assert {one["pid"] for one in started} == {host.process.pid if host.process else 0}
    longest = renewals.stop()
    assert set(longest) == set(HOSTS)
    assert max(longest.values()) < GUARD_TIMEOUT_S, "of an armed host in its profile"
    print(f"longest without a renewal: {longest}")

    back = spawned(
        "schema",
        "upgrade",
        "--to",
        "1",
        "--yes",
        "--exclude",
        "gone",
        "--store",
        "zookeeper",
        "--zookeeper",
        cluster.file,
    )
    assert back.code == 0, back.err
    assert within(LIMIT_S, lambda: settled(1)), cluster.log.read_text()[-3000:]
    assert cluster.ask(_vms) == before
    assert [(one.start, one.to) for one in cluster.schema().status.schema.journal] == [(1, 2), (2, 1)]


def test_a_controller_that_is_killed_while_it_moves_the_tree_is_succeeded_by_the_next_one(
    cluster: RunningCluster,
) -> None:
    """The host goes on renewing its membership meanwhile, and nothing is lost."""
    cluster.installed.upgrade()
    host = cluster.hosts[0].start().ready()
    assert within(LIMIT_S, lambda: cluster.latest(host.name) == 2)
    cluster.ask(fill)
    wish = SchemaWish(exclude=("gone",))
    before = cluster.ask(_vms)
    cluster.start_controller()

    async def ask_for_it(store: ZooKeeperStore) -> None:
        while True:
            try:
                found = await store.get(Cluster, CLUSTER)
                await store.replace(replace(found, spec=replace(found.spec, schema=wish)))
                return
            except (NotFound, Conflict):
                await asyncio.sleep(0.05)

    async def wait_for_move(store: ZooKeeperStore) -> SchemaState:
        end = time.monotonic() + LIMIT_S
        while (state := await stored_state(store)).moving is None:
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        return state

    cluster.ask(ask_for_it)
    state = cluster.ask(wait_for_move)
    cluster.end_controller(signal.SIGKILL)
    assert state.moving is not None
    assert state.moving.to == 2
    seq = cluster.members()[host.name].seq
    assert within(GUARD_TIMEOUT_S, lambda: cluster.members()[host.name].seq > seq + 1), "it renews all the same"
    cluster.start_controller()
    # Who goes on need not lead: nobody waits until the one that was killed counts as dead.
    whole = SchemaState(version=2)
    assert within(LIMIT_S, lambda: cluster.ask(stored_state) == whole), cluster.log.read_text()[-3000:]
    assert cluster.ask(_vms) == before
    assert cluster.members()[host.name].state == "Held"


async def stored_state(store: ZooKeeperStore) -> SchemaState:
    """Which schema counts, and what is under way."""
    return await TreeMover(store.client, by="watch", clock=store.clock, document=both).state()


async def _vms(store: ZooKeeperStore) -> dict[str, str]:
    return {one.name: one.metadata.resource_version async for one in list_all(store, VirtualMachine)}
