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
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.command import COMMAND, Result, environment, outlive, spawned
from tests.support.guards import Cgroups, Connection, Guard, Watchdog
from tests.support.hosts import Host, within
from tests.support.loops import run_real
from tests.support.schemas import document
from tests.support.zookeeper import shared_ensemble, zookeeper_store

import outlive as package
from outlive.base import Conflict, NotFound
from outlive.node.fencing import PROFILES, ProfileName
from outlive.resources import (
    CLUSTER,
    Cluster,
    Condition,
    HostSchema,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    MemberRecord,
    Membership,
    ObjectMeta,
    SchemaWish,
    VirtualMachine,
)
from outlive.store import compare_and_swap, list_all
from outlive.store.schema import LockAnswer, SchemaDocument, SchemaState
from outlive.store.zookeeper import SchemaView, StoreLock, TreeMover, ZooKeeperAccess, ZooKeeperClient, ZooKeeperStore

pytestmark = [pytest.mark.component("zookeeper"), pytest.mark.slow]
T = TypeVar("T")
HOSTS = ("co-1", "co-2", "co-3")
VMS = 1000
LIMIT_S = 60.0
PROFILE = PROFILES[ProfileName.STEADY]
"""Of armed hosts."""


class Installation:
    """Outlive as it is installed on machines of the cluster; ``upgrade`` installs the next version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        source = Path(package.__file__).parent
        shutil.copytree(source, self.path / "outlive", ignore=shutil.ignore_patterns("__pycache__"))

    def upgrade(self) -> None:
        (self.path / "outlive/store/schema/documents/2.json").write_bytes(msgspec.json.encode(next_release()))


def next_release() -> SchemaDocument:
    """Schema 2 for the code of this release: it has all kinds, in the versions that this release has."""
    old, new = document(1), document(2)
    kept = {key: path for key, path in old.zookeeper["base"].items() if key.endswith(".knowledges")}
    return replace(new, kinds=old.kinds, zookeeper={"base": new.zookeeper["base"] | kept})


class ArmedHost:
    """What an armed host has beside its daemon: a watchdog, the guard as a process of its own, and a guest."""

    def __init__(self, host: Host) -> None:
        self.folder = host.directory / "guard"
        self.folder.mkdir()
        self.watchdog = Watchdog(self.folder / "watchdog")
        self.guests = Cgroups(self.folder / "machine.slice")
        self.guests.start("guest")
        options = ["--watchdog", str(self.watchdog.path), "--rehearsal", "--cgroup", str(self.guests.root)]
        self.guard = Guard(self.folder, *options)
        host.sections["guard"] = {"socket": str(self.guard.socket)}
        host.configure()

    def close(self) -> None:
        self.guard.close()
        self.guests.close()
        self.watchdog.close()


class RunningCluster:
    """Controller and hosts as processes, and the store beside them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.installed = Installation(directory / "site")
        self.access = shared_ensemble().new_chroot()
        self.file = directory / "zookeeper.yaml"
        self.file.write_text(
            json.dumps({"servers": list(self.access.servers), "chroot": self.access.chroot, "sessionS": 4.0})
        )
        self.file.chmod(0o600)
        self.at = ("--store", "zookeeper", "--zookeeper", str(self.file))
        self.at = ("--store", "zookeeper", "--zookeeper", str(self.file))
        self.log = directory / "controller.log"
        self.controller: subprocess.Popen[bytes] | None = None
        self.hosts = [self._host(name) for name in (*HOSTS, "dying")]
        self.closing = ExitStack()
        """What ends before the guards do."""
        self.armed = {host.name: ArmedHost(host) for host in self.hosts if host.name in HOSTS}
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

    def host(self, name: str) -> Host:
        return next(one for one in self.hosts if one.name == name)

    def command(self, *words: str) -> Result:
        """What a command does that has the access file."""
        return outlive(*words, *self.at)

    def signal_controller(self, number: int) -> None:
        assert self.controller is not None
        self.controller.send_signal(number)

    def end_controller(self, number: int = signal.SIGTERM) -> None:
        self.signal_controller(number)
        assert self.controller is not None
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

    def is_settled(self, version: int) -> bool:
        """Whether all is by that schema, and nothing is under way."""
        found = self.schema()
        done = found.schema_version == version and found.status.schema.hold is None
        return done and self.actives() == {version}

    def report(self) -> str:
        """What is there to see where something did not happen."""
        return self.log.read_text()[-3000:] + str(self.schema().status.schema)

    def close(self) -> None:
        self.closing.close()
        for host in self.hosts:
            host.close()
        for one in self.armed.values():
            one.close()
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


class GuardWatch(threading.Thread):
    """Sees how long each guard goes without an acknowledged renewal of its host."""

    def __init__(self, armed: dict[str, ArmedHost]) -> None:
        super().__init__(daemon=True)
        self._guards = {name: Connection(one.guard.socket) for name, one in armed.items()}
        self._ends = threading.Event()
        self.longest_s = dict.fromkeys(armed, 0.0)

    def run(self) -> None:
        beats = {name: [guard.status()["beat"]["bootS"]] for name, guard in self._guards.items()}
        while not self._ends.wait(0.05):
            for name, guard in self._guards.items():
                beat_s = guard.status()["beat"]["bootS"]
                self.longest_s[name] = max(self.longest_s[name], beat_s - beats[name][-1])
                beats[name].append(beat_s)
        for guard in self._guards.values():
            guard.hang_up()

    def stop(self) -> dict[str, float]:
        """The longest time between two renewals, by host."""
        self._ends.set()
        self.join(LIMIT_S)
        return self.longest_s


def kill_and_start(cluster: RunningCluster, name: str) -> None:
    """Kill the daemon, and start it as its unit does; it is a member in the same epoch again, by the same boot."""
    host = cluster.host(name)
    before, ready = cluster.members()[name], len(host.events("node.ready"))
    host.close()
    host.start()
    assert within(LIMIT_S, lambda: len(host.events("node.ready")) > ready), "\n".join(
        x for x in host.logged().splitlines() if not x.startswith("{")
    )[-3000:]
    after = cluster.members()[name]
    assert (after.state, after.epoch) == ("Held", before.epoch)


def test_armed_hosts_go_to_the_next_schema_and_back_while_a_daemon_is_killed_at_each_step(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    dying, installed_first = cluster.host("dying"), Installation(tmp_path / "first")
    installed_first.upgrade()
    dying.enter = ("env", f"PYTHONPATH={installed_first.path}")
    cluster.start_controller()
    for host in cluster.hosts:
        host.start()
    for host in cluster.hosts:
        host.ready()
    assert within(LIMIT_S, lambda: cluster.latest(dying.name) == 2)
    dying.close()
    cluster.ask(fill)
    before = cluster.ask(_vms)
    cluster.installed.upgrade()
    cluster.end_controller()
    cluster.start_controller()
    for name in HOSTS:
        cluster.host(name).signal(signal.SIGUSR2)
    for host in map(cluster.host, HOSTS):
        assert within(LIMIT_S, lambda host=host: len(host.events("node.ready")) == 2), "\n".join(
            x for x in host.logged().splitlines() if not x.startswith("{")
        )[-3000:]
    assert within(LIMIT_S, lambda: cluster.members()["dying"].state == "Revoked"), "a fence is under way"
    fence = cluster.members()["dying"].fence.id
    for name in HOSTS:
        cluster.ask(lambda store, name=name: arm(store, name))
    for name, armed in cluster.armed.items():
        assert within(LIMIT_S, lambda armed=armed: armed.guard.status()["armed"]), cluster.host(name).logged()[-2000:]
    assert within(LIMIT_S, lambda: cluster.schema().status.schema.waiting_for == ("gone",)), cluster.log.read_text()[
        -3000:
    ]
    refused = cluster.command("schema", "upgrade", "--exclude", "co-1")
    assert refused.code == 1, refused
    assert "co-1 may not be excluded" in refused.line
    renewals = GuardWatch(cluster.armed)
    cluster.closing.callback(renewals.stop)
    renewals.start()
    first, second, third = HOSTS

    lock = cluster.ask(lock_schema)
    assert cluster.command("schema", "upgrade", "--exclude", "gone").code == 0
    assert within(LIMIT_S, lambda: cluster.schema().status.schema.hold is not None)
    kill_and_start(cluster, first)
    assert cluster.ask(stored_state) == SchemaState(version=1), "nothing is copied yet"
    cluster.ask(lambda _: lock.release())

    cluster.ask(lambda store: wait_for_phase(store, "copy"))
    cluster.signal_controller(signal.SIGSTOP)
    kill_and_start(cluster, second)
    moving = cluster.ask(stored_state).moving
    assert moving is not None
    assert moving.phase == "copy"
    cluster.signal_controller(signal.SIGCONT)

    cluster.ask(lambda store: wait_for_phase(store, "clean"))
    cluster.signal_controller(signal.SIGSTOP)
    kill_and_start(cluster, third)
    moving = cluster.ask(stored_state).moving
    assert moving is not None
    assert moving.phase == "clean"
    cluster.signal_controller(signal.SIGCONT)

    assert within(LIMIT_S, lambda: cluster.host(second).events("node.schema_moved")), "it takes its own place"
    kill_and_start(cluster, second)
    assert within(LIMIT_S, lambda: cluster.is_settled(2)), cluster.report()
    assert cluster.ask(_vms) == before, "no VM was touched"
    members = cluster.members()
    assert {name for name, one in members.items() if one.state != "Held"} == {"dying", "gone"}
    assert members["dying"].fence.id == fence

    processes = {name: cluster.host(name).process for name in HOSTS}
    starts = {name: len(cluster.host(name).events("node.started")) for name in HOSTS}
    back = spawned("schema", "upgrade", "--to", "1", "--yes", "--exclude", "gone", *cluster.at)
    assert back.code == 0, back.err
    assert within(LIMIT_S, lambda: cluster.is_settled(1)), cluster.report()
    assert cluster.ask(_vms) == before
    assert [(one.start, one.to) for one in cluster.schema().status.schema.journal] == [(1, 2), (2, 1)]
    for name in HOSTS:
        last = cluster.host(name).events("node.started")[starts[name] :]
        assert [one["pid"] for one in last] == [processes[name].pid], "it began anew once, in the same process"

    longest_s = renewals.stop()
    print(f"longest without a renewal: {longest_s}")
    assert max(longest_s.values()) < PROFILE.guard_timeout_s
    for name in HOSTS:
        assert not cluster.host(name).events("membership.not_renewed"), "an armed host missed a renewal"
    for name, one in cluster.armed.items():
        assert not one.guard.status()["closures"], name
        assert one.guests.alive() == 1, name


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

    cluster.ask(ask_for_it)
    cluster.ask(lambda store: wait_for_phase(store, "copy"))
    cluster.end_controller(signal.SIGKILL)
    seq = cluster.members()[host.name].seq
    assert within(PROFILE.guard_timeout_s, lambda: cluster.members()[host.name].seq > seq + 1), "it renews all the same"
    cluster.start_controller()
    # Who goes on need not lead: nobody waits until the one that was killed counts as dead.
    whole = SchemaState(version=2)
    assert within(LIMIT_S, lambda: cluster.ask(stored_state) == whole), cluster.log.read_text()[-3000:]
    assert cluster.ask(_vms) == before
    assert cluster.members()[host.name].state == "Held"


async def arm(store: ZooKeeperStore, name: str) -> None:
    """Have the host's guard armed."""

    def armed(found: Hypervisor | None) -> Hypervisor:
        assert found is not None
        return replace(found, spec=replace(found.spec, fencing=replace(found.spec.fencing, armed=True)))

    await compare_and_swap(store, Hypervisor, name, armed, clock=store.clock, half="spec")


async def lock_schema(store: ZooKeeperStore) -> StoreLock:
    """Keep everybody from changing the tree."""
    path = (await store.get_layout()).base_path("schema.locks")
    await store.client.ensure(path)
    lock = StoreLock(store.client, path, owner="test", shared=False, clock=store.clock)
    assert (await lock.acquire(LIMIT_S)).result is LockAnswer.ACQUIRED
    return lock


async def wait_for_phase(store: ZooKeeperStore, phase: str) -> None:
    """Return when a change of the tree is in that phase."""
    end = time.monotonic() + LIMIT_S
    while (moving := (await stored_state(store)).moving) is None or moving.phase != phase:
        assert time.monotonic() < end, moving
        await asyncio.sleep(0.005)


async def stored_state(store: ZooKeeperStore) -> SchemaState:
    """Which schema counts, and what is under way."""
    return await TreeMover(store.client, by="watch", clock=store.clock, document=both).read_state()


async def _vms(store: ZooKeeperStore) -> dict[str, str]:
    return {one.name: one.metadata.resource_version async for one in list_all(store, VirtualMachine)}
