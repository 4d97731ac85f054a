"""The duty of the primary that publishes what storage says: only what changes, only under its term, faults that end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.support.loops import run, run_by

from outlive.base import OBJECT_BYTES, Forbidden, LoopClock, Random, SeededIds, Unavailable
from outlive.node import (
    GAUGES_S,
    OUT_LIMIT,
    ROLE,
    UNANSWERED_LIMIT,
    WRITES_PER_S,
    HostWriter,
    Primary,
    PrimaryElector,
    StorageGauges,
    StorageStatistics,
    host_refusal,
    kind_refusal,
    publish_devices,
)
from outlive.node.ports import StorageReport
from outlive.resources import (
    Cluster,
    Election,
    Fault,
    ObjectMeta,
    ObjectRef,
    Resource,
    StorageCheck,
    StorageCluster,
    StorageClusterStatus,
    StorageDaemon,
    StorageDaemonStatus,
    StorageDevice,
    StoragePool,
    StoragePoolStatus,
)
from outlive.runtime import Crashes, FaultRecorder, FaultSet, Metrics, keep_running
from outlive.store import MemoryStore, Store, StoreProxy, list_all

EVERY_S = 30.0
_replace = msgspec.structs.replace


def report(*numbers: str, health: Any = "ok", out: tuple[str, ...] = (), **cluster: Any) -> StorageReport:
    return StorageReport(
        cluster=StorageClusterStatus(id="f", health=health, daemons=len(numbers), **cluster),
        daemons={one: StorageDaemonStatus(cluster="ceph", up=True, in_=one not in out) for one in numbers},
        pools={"Our VMs": StoragePoolStatus(cluster="ceph", pool="Our VMs", id=1)},
        all_daemons=frozenset(numbers),
        all_pools=frozenset({"Our VMs"}),
        out=frozenset(out),
    )


class Storage:
    """A storage cluster that answers as the story says."""

    def __init__(self) -> None:
        self.says: StorageReport | Unavailable = report("0", "1")
        self.asked = 0
        self.mine: Mapping[str, StorageDevice] = {}

    def find_cluster(self) -> str:
        return "ceph"

    async def collect(self) -> StorageReport:
        self.asked += 1
        await asyncio.sleep(0.5)
        if isinstance(self.says, Unavailable):
            raise self.says
        return self.says

    async def list_devices(self) -> Mapping[str, StorageDevice]:
        return self.mine


class Served(StoreProxy):
    """The store as a host's token reaches it: every write is held against the rules of the server."""

    def __init__(self, store: MemoryStore, host: str) -> None:
        self.behind = store
        self.host = host
        self.writes = 0
        self.away: set[str] = set()
        """Objects of storage about which it does not answer."""
        self.refused = 0

    async def _read(self, call: Callable[[Store], Awaitable[Any]]) -> Any:
        return await call(self.behind)

    async def _write(self, call: Callable[[Store], Awaitable[Any]]) -> Any:
        return await call(self.behind)

    def observe(self, kind: Any, *, selector: Any = None) -> Any:
        return self.behind.observe(kind, selector=selector)

    async def _allowed(self, before: Resource | None, after: Resource | None) -> None:
        election = await _found(self.behind, Election, ROLE)
        term = election.record.term if election is not None and election.record.holder == self.host else 0
        why = host_refusal(HostWriter(self.host, coordinator=True, term=term), before, after)
        if why:
            raise Forbidden(f"{self.host} {why}")
        obj = after if after is not None else before
        if isinstance(obj, StorageCluster | StorageDaemon) and obj.name in self.away:
            self.refused += 1
            raise Unavailable(f"the store does not answer about {obj.name}")
        self.writes += isinstance(obj, StorageCluster | StorageDaemon | StoragePool)

    async def create(self, obj: Any) -> Any:
        await self._allowed(None, obj)
        return await self.behind.create(obj)

    async def replace(self, obj: Any) -> Any:
        await self._allowed(await self.behind.get(type(obj), obj.name), obj)
        return await self.behind.replace(obj)

    async def delete(self, ref: Any, *, uid: str = "", version: str = "") -> None:
        kinds = {one.__name__: one for one in (StorageDaemon, StoragePool)}
        await self._allowed(await self.behind.get(kinds[ref.kind], ref.name), None)
        await self.behind.delete(ref, uid=uid, version=version)


async def _found(store: Store, kind: Any, name: str) -> Any:
    return {one.name: one async for one in list_all(store, kind)}.get(name)


class Story:
    """Coordinators of one store, and one storage cluster that all of them can ask."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.storage = Storage()
        self.hosts = {name: Served(self.store, name) for name in ("a", "b")}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, host: str) -> None:
        served = self.hosts[host]
        faults = FaultRecorder(served, self.clock, "primary", host)
        duty = StorageStatistics(served, self.storage, host=host, interval_s=EVERY_S, faults=faults, clock=self.clock)
        elector = PrimaryElector(served, host, clock=self.clock, ids=SeededIds(Random(len(host) + ord(host))))
        own = FaultSet(FaultRecorder(served, self.clock, "daemon", host), self.clock)
        primary = Primary(served, host, [duty], elector=elector, faults=own, clock=self.clock)
        self.tasks[host] = asyncio.create_task(primary.run())
        await asyncio.sleep(5)

    async def all(self, kind: Any) -> dict[str, Any]:
        return {one.name: one async for one in list_all(self.store, kind)}

    async def faults(self) -> set[str]:
        return {one.name for one in (await self.all(Fault)).values() if not one.ended}

    async def rounds(self, count: int = 1) -> None:
        await self.clock.sleep(count * EVERY_S)


def told(story: Callable[[Story], Awaitable[None]]) -> None:
    async def whole() -> None:
        it = Story()
        await it.store.create(Cluster(metadata=ObjectMeta(name="default")))
        await it.start("a")
        await story(it)
        for task in it.tasks.values():
            task.cancel()
        await asyncio.gather(*it.tasks.values(), return_exceptions=True)

    run(whole())


@run_by(told)
async def test_what_storage_says_is_written_under_the_term(it: Story) -> None:
    assert {
        one.term for kind in (StorageCluster, StorageDaemon, StoragePool) for one in (await it.all(kind)).values()
    } == {1}
    assert set(await it.all(StorageDaemon)) == {"0", "1"}
    ((name, pool),) = (await it.all(StoragePool)).items()
    assert name.startswith("our-vms-")
    assert pool.status.pool == "Our VMs"


@run_by(told)
async def test_only_what_changes_is_written(it: Story) -> None:
    before = await it.all(StorageDaemon)
    assert it.hosts["a"].writes == 4
    await it.rounds()
    assert it.hosts["a"].writes == 4, "nothing has changed"
    it.storage.says = report("0", "1", out=("1",))
    await it.rounds()
    after = await it.all(StorageDaemon)
    assert after["0"] == before["0"]
    assert after["1"].metadata.resource_version != before["1"].metadata.resource_version
    assert it.hosts["a"].writes == 6, "the daemon, and the cluster, which was written a minute ago"


@run_by(told)
async def test_a_daemon_that_a_round_leaves_out_keeps_its_figures_and_one_that_is_gone_has_none(it: Story) -> None:
    it.storage.says = _replace(report("0", "1"), daemons={})
    await it.rounds()
    assert set(await it.all(StorageDaemon)) == {"0", "1"}
    it.storage.says = report("0")
    await it.rounds()
    assert set(await it.all(StorageDaemon)) == {"0"}
    it.storage.says = _replace(report("0"), pools={}, all_pools=frozenset(), all_daemons=None)
    await it.rounds()
    assert await it.all(StoragePool) == {}
    assert set(await it.all(StorageDaemon)) == {"0"}, "nobody said which there are"


@run_by(told)
async def test_faults_come_and_end_with_their_cause(it: Story) -> None:
    checks = (
        StorageCheck(code="OSD_DOWN", severity="warn", summary="1 osds down"),
        StorageCheck(code="X", severity="warn", summary="not this", muted=True),
    )
    it.storage.says = report("0", "1", health="warn", out=("1",), checks=checks)
    await it.rounds()
    assert await it.faults() == {"storage-daemon-out.1", "storage-warn.ceph"}
    assert (await it.all(Fault))["storage-warn.ceph"].message == "storage cluster ceph warns: 1 osds down"
    it.storage.says = report("0", "1", health="error")
    await it.rounds()
    assert await it.faults() == {"storage-error.ceph"}
    it.storage.says = report("0", "1")
    await it.rounds()
    assert await it.faults() == set()


def test_many_daemons_that_are_out_are_one_fault() -> None:
    numbers = tuple(str(one) for one in range(OUT_LIMIT + 1))

    async def story(it: Story) -> None:
        it.storage.says = report(*numbers, out=numbers[:-1])
        await it.rounds()
        assert len(await it.faults()) == OUT_LIMIT
        it.storage.says = report(*numbers, out=numbers)
        await it.rounds()
        assert await it.faults() == {"storage-daemons-out.ceph"}
        message = (await it.all(Fault))["storage-daemons-out.ceph"].message
        assert message.startswith("21 storage daemons of ceph are out, 0, 1, 2, 3, 4 and others")
        it.storage.says = report(*numbers)
        await it.rounds()
        assert await it.faults() == set()

    told(story)


@pytest.mark.slow
def test_a_round_writes_a_limited_number_of_objects_the_longest_unwritten_first() -> None:
    limit = int(WRITES_PER_S * EVERY_S)
    numbers = tuple(str(one) for one in range(2 * limit))

    def busy(groups: int) -> StorageReport:
        said = report(*numbers)
        return _replace(said, daemons={n: _replace(one, placement_groups=groups) for n, one in said.daemons.items()})

    async def story(it: Story) -> None:
        before = it.hosts["a"].writes
        for turn in range(1, 4):
            it.storage.says = busy(turn)
            await it.rounds()
            assert it.hosts["a"].writes <= before + turn * limit
        assert set(await it.all(StorageDaemon)) == set(numbers), "each had its turn"
        it.storage.says = report("0")
        await it.rounds(3)
        assert set(await it.all(StorageDaemon)) == {"0"}

    told(story)


@run_by(told)
async def test_an_object_that_the_store_does_not_take_delays_no_other_and_no_fault(it: Story) -> None:
    it.storage.says = report("0", "1", "2", health="warn", out=("1",), text="x" * OBJECT_BYTES)
    await it.rounds()
    assert set(await it.all(StorageDaemon)) == {"0", "1", "2"}
    assert await it.faults() == {"storage-daemon-out.1", "storage-warn.ceph"}


@run_by(told)
async def test_one_write_that_is_not_answered_ends_no_round_and_a_store_that_is_away_does(it: Story) -> None:
    it.hosts["a"].away = {"ceph"}
    it.storage.says = report("0", "1", "2", text="new")
    await it.rounds()
    assert set(await it.all(StorageDaemon)) == {"0", "1", "2"}
    it.hosts["a"].away = {str(one) for one in range(20)}
    it.storage.says = report(*(str(one) for one in range(20)))
    it.hosts["a"].refused = 0
    await it.rounds()
    assert it.hosts["a"].refused == UNANSWERED_LIMIT


@run_by(told)
async def test_storage_that_does_not_answer_is_a_fault_after_three_rounds_and_ends_no_other(it: Story) -> None:
    it.storage.says = report("0", "1", out=("1",))
    await it.rounds()
    it.storage.says = Unavailable("no monitor of Ceph answers", remedy="start one")
    await it.rounds(2)
    assert await it.faults() == {"storage-daemon-out.1"}
    await it.rounds()
    assert await it.faults() == {"storage-daemon-out.1", "storage-unknown.ceph"}
    assert (await it.all(Fault))["storage-unknown.ceph"].message.endswith("no monitor of Ceph answers")
    it.storage.says = report("0", "1")
    await it.rounds()
    assert await it.faults() == set()


@run_by(told)
async def test_the_duty_moves_with_the_role_and_takes_the_faults_along(it: Story) -> None:
    it.storage.says = report("0", "1", out=("1",))
    await it.rounds()
    await it.start("b")
    it.tasks.pop("a").cancel()
    await it.clock.sleep(20)
    it.storage.says = report("0", "1", health="warn")
    await it.rounds(2)
    assert {one.term for one in (await it.all(StorageCluster)).values()} == {2}
    assert await it.faults() == {"storage-warn.ceph"}
    assert it.hosts["b"].writes > 0
    asked = it.storage.asked
    await it.rounds(2)
    assert it.storage.asked == asked + 2, "one of them asks"


@run_by(told)
async def test_a_new_primary_that_storage_does_not_answer_ends_no_fault(it: Story) -> None:
    it.storage.says = report("0", "1", health="warn", out=("1",))
    await it.rounds()
    it.storage.says = Unavailable("no monitor of Ceph answers", remedy="start one")
    await it.start("b")
    it.tasks.pop("a").cancel()
    await it.clock.sleep(20)
    await it.rounds(4)
    assert await it.faults() == {"storage-daemon-out.1", "storage-warn.ceph", "storage-unknown.ceph"}
    it.storage.says = report("0", "1")
    await it.rounds()
    assert await it.faults() == set()


@run_by(told)
async def test_a_former_primary_that_goes_on_writes_nothing(it: Story) -> None:
    election = await it.store.get(Election, ROLE, fresh=True)
    it.tasks.pop("a").cancel()
    await it.clock.sleep(1)
    record = _replace(election.record, holder="b", term=2)
    await it.store.replace(_replace(await it.store.get(Election, ROLE, fresh=True), record=record))
    faults = FaultRecorder(it.hosts["a"], it.clock, "primary", "a")
    late = StorageStatistics(it.hosts["a"], it.storage, host="a", interval_s=EVERY_S, faults=faults, clock=it.clock)
    writes = it.hosts["a"].writes
    it.storage.says = report("0", "1", "2", health="error")
    await late.start(1)
    await it.rounds(2)
    assert it.hosts["a"].writes == writes
    assert await it.faults() == set()
    with pytest.raises(Forbidden, match="that belongs to primary"):
        await it.hosts["a"].create(StorageDaemon(metadata=ObjectMeta(name="2"), term=1, status=StorageDaemonStatus()))
    with pytest.raises(Forbidden, match="under term 1: b is the primary in term 2"):
        await it.hosts["b"].create(StorageDaemon(metadata=ObjectMeta(name="2"), term=1, status=StorageDaemonStatus()))
    with pytest.raises(Forbidden, match="that belongs to primary"):
        await it.hosts["a"].delete((await it.store.get(StorageDaemon, "1")).ref)
    await late.stop()


@run_by(told)
async def test_each_host_says_where_its_own_daemons_lie_and_forgets_those_that_left(it: Story) -> None:
    it.storage.mine = {"1": StorageDevice(block_device="/dev/sdb"), "7": StorageDevice(block_device="/dev/sdc")}
    await publish_devices(it.hosts["b"], it.storage, "b", it.clock)
    found = await it.all(StorageDaemon)
    assert found["1"].device == StorageDevice(host="b", block_device="/dev/sdb")
    assert found["1"].status is not None, "the figures stay"
    assert (found["7"].status, found["7"].term) == (None, 0), "nobody has figures of it yet"
    it.storage.says = report("0", "1", "7")
    await it.rounds()
    assert (await it.all(StorageDaemon))["7"].device is not None, "the device stays"
    it.storage.mine = {"7": it.storage.mine["7"]}
    await publish_devices(it.hosts["b"], it.storage, "b", it.clock)
    found = await it.all(StorageDaemon)
    assert (found["1"].device, found["7"].device) == (None, StorageDevice(host="b", block_device="/dev/sdc"))
    with pytest.raises(Forbidden, match="may not write the device of StorageDaemon/0: c is named there, and not b"):
        await it.hosts["b"].replace(_replace(found["0"], device=StorageDevice(host="c")))


@pytest.mark.parametrize("kind", [StorageCluster, StorageDaemon, StoragePool])
def test_a_host_that_is_no_coordinator_writes_devices_alone(kind: type[Resource]) -> None:
    assert (kind_refusal(HostWriter("a"), kind) == "") == (kind is StorageDaemon)
    assert "no coordinator" in kind_refusal(HostWriter("a"), kind, verb="delete")
    assert kind_refusal(HostWriter("a", coordinator=True), kind, verb="delete") == ""
    assert kind_refusal(HostWriter("a", coordinator=True), kind, verb="deletecollection") != ""


@run_by(told)
async def test_metrics_say_what_the_store_has(it: Story) -> None:
    metrics, gauges = Metrics("ours_"), StorageGauges(it.store, it.clock)
    metrics.register_collector(gauges.collect)
    assert b"storage" not in metrics.render()
    await gauges.refresh()
    text = metrics.render().decode()
    assert 'ours_storage_cluster_health{cluster="ceph"} 0.0' in text
    assert 'ours_storage_daemon_up{cluster="ceph",daemon="0",host=""} 1.0' in text
    assert 'ours_storage_pool_operations_total{cluster="ceph",kind="read",pool="Our VMs"} 0.0' in text


@run_by(told)
async def test_metrics_are_read_from_the_store_now_and_then(it: Story) -> None:
    metrics, gauges = Metrics("ours_"), StorageGauges(it.store, it.clock)
    metrics.register_collector(gauges.collect)
    await gauges.refresh()
    await it.store.delete((await it.store.get(StorageDaemon, "1")).ref)
    await gauges.refresh()
    assert b'daemon="1"' in metrics.render()
    await it.clock.sleep(GAUGES_S)
    await asyncio.gather(gauges.refresh(), gauges.refresh())
    assert b'daemon="1"' not in metrics.render()


async def test_a_part_that_goes_on_failing_is_tried_after_growing_pauses() -> None:
    clock, tries = LoopClock(), list[float]()

    async def part() -> None:
        tries.append(clock.monotonic())
        if len(tries) < 6:
            raise Unavailable("ceph-volume does not list the volumes")

    host, crashes = ObjectRef(kind="Hypervisor", name="a"), Crashes(clock)
    await keep_running("storage devices", part, subject=host, crashes=crashes, clock=clock, pause_s=5.0, longest_s=30.0)
    assert [round(b - a) for a, b in pairwise(tries)] == [5, 10, 20, 30, 30]
