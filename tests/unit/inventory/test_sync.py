"""A source that is followed while the process runs: what it says is taken over, and its silence deletes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run
from tests.support.openstack import settings

from outlive.base import Conflict, Invalid, LoopClock, OutliveError, Random, SeededIds, Unavailable
from outlive.inventory import (
    HOST_MISSES,
    HOSTS_OF_A_BATCH,
    FlavorRecord,
    HostRecord,
    Inventory,
    InventorySyncer,
    Reading,
    RecordBatch,
    VmRecord,
    split_records,
)
from outlive.recovery import vm_indexes
from outlive.resources import (
    CREATOR_LABEL,
    Amounts,
    Fault,
    Flavor,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
    Problem,
    VirtualMachine,
    find_condition,
)
from outlive.roles import InventoryCache
from outlive.runtime import FaultRecorder, Informer, Metrics, OrderedTaskGroup
from outlive.store import MemoryStore, list_all

GIB = 2**30
SIZE = Amounts(cpu=2000, memory=4 * GIB)


def host(name: str, **facts: object) -> HostRecord:
    return HostRecord(
        **{"name": name, "place": f"host {name}", "capacity": Amounts(cpu=8000, memory=32 * GIB), **facts}
    )


def vm(vm_id: str, on: str = "", **facts: object) -> VmRecord:
    known = {"id": vm_id, "place": f"vm {vm_id}", "flavor": "small", "host": on, "phase": "ACTIVE", **facts}
    return VmRecord(**known)


SMALL = FlavorRecord(name="small", place="flavor small", resources=SIZE)


class Source:
    """A source of a test: hosts and VMs, and what it says of what it does not list."""

    name = "nova"

    def __init__(self, hosts: Iterable[HostRecord], vms: Iterable[VmRecord]) -> None:
        self.hosts = {one.name: one for one in hosts}
        self.vms = {one.id: one for one in vms}
        self.changes: list[VmRecord] = []
        self.deleted: set[str] = set()
        self.known: set[str] = set()
        """VMs that it knows although it does not list them."""
        self.full = True
        self.failure: OutliveError | None = None
        self.forgotten = 0

    async def read(self) -> Reading:
        if self.failure is not None:
            raise self.failure
        inventory = Inventory(what="nova", has_hosts=True, has_vms=True)
        if self.full:
            inventory.hosts, inventory.vms, inventory.flavors = [*self.hosts.values()], [*self.vms.values()], [SMALL]
            return Reading(inventory, full=True)
        inventory.vms = self.changes
        return Reading(inventory, full=False, deleted=frozenset(self.deleted))

    async def find_missing(self, vm_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(vm_ids) - self.vms.keys() - self.known

    def forget(self) -> None:
        self.forgotten += 1


class World:
    """A store with its caches, and a syncer that follows a source."""

    def __init__(self, source: Source) -> None:
        self.clock, random = LoopClock(), Random(1)
        self.store = MemoryStore(self.clock, SeededIds(Random(2)))
        self.source = source
        self.metrics = Metrics()
        self.informers = [
            Informer(self.store, kind, clock=self.clock, random=random, indexes=indexes)
            for kind, indexes in ((Hypervisor, {}), (VirtualMachine, vm_indexes()), (Flavor, {}))
        ]
        of = dict(zip(("hypervisors", "vms"), self.informers, strict=False))
        self.syncer = InventorySyncer(
            self.store,
            source,
            InventoryCache(type("Informers", (), of)(), self.informers[2]),  # type: ignore[arg-type]
            settings(stale_after=60.0),
            clock=self.clock,
            random=random,
            metrics=self.metrics,
            faults=FaultRecorder(self.store, self.clock, "inventory"),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(one.run()) for one in self.informers]
            for one in self.informers:
                await one.wait_synced()
            yield self
            for task in tasks:
                task.cancel()

    async def sync(self) -> int:
        """One reading, and time for the caches to see what came of it."""
        written = await self.syncer.sync()
        await self.clock.sleep(1)
        return written

    async def vms(self) -> dict[str, str]:
        return {one.name: one.host async for one in list_all(self.store, VirtualMachine)}

    async def hosts(self) -> dict[str, Hypervisor]:
        return {one.name: one async for one in list_all(self.store, Hypervisor)}


async def test_what_the_source_has_is_kept_and_not_written_twice() -> None:
    async with World(Source([host("a"), host("b")], [vm("v", "a"), vm("w", "b"), vm("x")])).running() as world:
        assert await world.sync() == 6
        assert await world.vms() == {"v": "a", "w": "b", "x": ""}
        found = await world.hosts()
        assert (found["a"].status.source, found["a"].spec.management) == ("nova", "nova")
        assert found["a"].status.observed_at is not None
        assert found["a"].status.allocation == SIZE
        assert await world.sync() == 0


async def test_a_vm_that_moved_counts_on_its_new_host_only() -> None:
    async with World(Source([host("a"), host("b")], [vm("v", "a"), vm("w", "a")])).running() as world:
        await world.sync()
        world.source.full, world.source.changes = False, [vm("v", "b")]
        await world.sync()
        assert await world.vms() == {"v": "b", "w": "a"}
        found = await world.hosts()
        assert [one.id for one in found["a"].status.instances] == ["w"]
        assert [one.id for one in found["b"].status.instances] == ["v"]


async def test_a_deleted_vm_vanishes_and_frees_its_host() -> None:
    async with World(Source([host("a")], [vm("v", "a"), vm("w", "a")])).running() as world:
        await world.sync()
        world.source.full, world.source.deleted = False, {"v", "never-seen"}
        await world.sync()
        assert await world.vms() == {"w": "a"}
        assert (await world.hosts())["a"].status.num_instances == 1


async def test_a_vm_that_is_only_missing_stays_until_the_source_says_that_it_is_gone() -> None:
    async with World(Source([host("a")], [vm("v", "a"), vm("w", "a")])).running() as world:
        await world.sync()
        del world.source.vms["v"]
        world.source.known = {"v"}
        await world.sync()
        assert await world.vms() == {"v": "a", "w": "a"}
        world.source.known = set()
        await world.sync()
        assert await world.vms() == {"w": "a"}


async def test_an_empty_answer_deletes_nothing_by_itself() -> None:
    source = Source([host("a")], [vm("v", "a")])
    async with World(source).running() as world:
        await world.sync()
        source.known, source.hosts, source.vms = {"v"}, {}, {}
        for _ in range(2 * HOST_MISSES):
            await world.sync()
        assert await world.vms() == {"v": "a"}
        ready = find_condition((await world.hosts())["a"].status.conditions, "Ready")
        assert ready is not None
        assert (ready.status, ready.reason) == ("False", "Down")


async def test_a_host_that_stays_away_goes_once_nothing_is_on_it() -> None:
    source = Source([host("a"), host("b")], [vm("v", "a")])
    async with World(source).running() as world:
        await world.sync()
        del source.hosts["b"]
        for _ in range(HOST_MISSES - 1):
            await world.sync()
            assert sorted(await world.hosts()) == ["a", "b"]
        await world.sync()
        assert sorted(await world.hosts()) == ["a"]


@pytest.mark.parametrize("bad", ["capacity", "zone"])
async def test_a_host_that_stays_away_goes_although_another_record_is_wrong_all_the_time(bad: str) -> None:
    facts: dict[str, dict[str, object]] = {
        "capacity": {"capacity": Amounts(cpu=0, memory=0)},
        "zone": {"zone": "no/label"},
    }
    source = Source([host("a"), host("b"), host("c")], [vm("v", "a")])
    async with World(source).running() as world:
        await world.sync()
        del source.hosts["b"]
        source.hosts["c"] = host("c", **facts[bad])
        for _ in range(HOST_MISSES):
            await world.sync()
        assert sorted(await world.hosts()) == ["a", "c"]


async def test_no_host_goes_while_a_record_has_no_readable_name() -> None:
    class Nameless(Source):
        async def read(self) -> Reading:
            reading = await super().read()
            reading.inventory.nameless = True
            return reading

    source = Nameless([host("a"), host("b")], [])
    async with World(source).running() as world:
        await world.sync()
        del source.hosts["b"]
        for _ in range(HOST_MISSES + 1):
            await world.sync()
        assert sorted(await world.hosts()) == ["a", "b"]


async def test_hosts_with_upper_case_and_underscores_are_kept_and_go_as_others_do() -> None:
    source = Source([host("KVM_1"), host("b")], [vm("v", "KVM_1")])
    async with World(source).running() as world:
        await world.sync()
        named = {one.status.source_name: name for name, one in (await world.hosts()).items()}
        assert await world.vms() == {"v": named["KVM_1"]}
        assert await world.sync() == 0
        source.hosts.pop("KVM_1")
        source.vms.clear()
        for _ in range(HOST_MISSES):
            await world.sync()
        assert sorted(await world.hosts()) == ["b"]


async def test_a_status_that_nobody_knows_takes_no_vm_its_slots() -> None:
    async with World(Source([host("a")], [vm("v", "a", phase="OF_A_NEWER_NOVA")])).running() as world:
        await world.sync()
        async for one in list_all(world.store, VirtualMachine):
            assert (one.spec.power_state, one.status.phase) == ("running", "OF_A_NEWER_NOVA")
        assert await world.vms() == {"v": "a"}


def test_hosts_that_are_missing_together_are_written_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    carry_out = InventorySyncer._carry_out

    async def counted(self: InventorySyncer, batch: RecordBatch) -> tuple[int, tuple[Problem, ...]]:
        sizes.append(max(len(batch.hosts), len(batch.gone_hosts)))
        return await carry_out(self, batch)

    monkeypatch.setattr(InventorySyncer, "_carry_out", counted)

    async def story() -> None:
        names = [f"h{number:03d}" for number in range(3 * HOSTS_OF_A_BATCH)]
        world = World(Source([host(name) for name in names], []))
        async with world.running():
            await world.sync()
            world.source.hosts.clear()
            for _ in range(HOST_MISSES):
                await world.sync()
            assert await world.hosts() == {}

    run(story())
    assert max(sizes) == HOSTS_OF_A_BATCH


async def test_a_host_that_comes_back_is_as_it_was() -> None:
    source = Source([host("a"), host("b")], [])
    async with World(source).running() as world:
        await world.sync()
        away = source.hosts.pop("b")
        await world.sync()
        source.hosts["b"] = away
        for _ in range(HOST_MISSES):
            await world.sync()
        ready = find_condition((await world.hosts())["b"].status.conditions, "Ready")
        assert ready is not None
        assert ready.status == "True"


async def test_a_record_that_is_wrong_costs_nobody_else_anything() -> None:
    source = Source([host("a"), host("b")], [vm("v", "a"), vm("w", "b")])
    async with World(source).running() as world:
        await world.sync()
        source.vms["v"] = vm("v", "nowhere")
        source.vms["x"] = vm("x", "b", flavor="unknown")
        source.vms["y"] = vm("y", "b")
        source.hosts["b"] = host("b", capacity=Amounts(cpu=0, memory=0))
        source.hosts["c"] = host("c")
        await world.sync()
        assert await world.vms() == {"v": "a", "w": "b", "y": "b"}
        assert sorted(await world.hosts()) == ["a", "b", "c"]
        assert b"outlive_inventory_problems 3.0" in world.metrics.render()


async def test_hosts_of_our_own_daemons_and_the_vms_on_them_are_not_touched() -> None:
    source = Source([host("a"), host("ours")], [vm("v", "ours"), vm("w", "a")])
    async with World(source).running() as world:
        own = Hypervisor(metadata=ObjectMeta(name="ours"), spec=HypervisorSpec(management="node"))
        await world.store.create(own)
        await world.clock.sleep(1)
        await world.sync()
        assert await world.vms() == {"w": "a"}
        assert (await world.hosts())["ours"].status.source == ""


async def test_objects_of_an_import_are_taken_over_and_then_follow_the_source() -> None:
    async with World(Source([host("a")], [vm("v", "a")])).running() as world:
        await world.sync()
        for kind in (VirtualMachine, Hypervisor):
            async for one in list_all(world.store, kind):
                labels = {**one.metadata.labels, CREATOR_LABEL: "import"}
                meta = msgspec.structs.replace(one.metadata, labels=labels)
                await world.store.replace(msgspec.structs.replace(one, metadata=meta))
        await world.clock.sleep(1)
        await world.sync()
        assert (await world.hosts())["a"].metadata.labels[CREATOR_LABEL] == "nova"
        del world.source.vms["v"]
        await world.sync()
        assert await world.vms() == {}


async def test_what_users_made_is_never_deleted() -> None:
    async with World(Source([host("a")], [])).running() as world:
        await world.store.create(VirtualMachine(metadata=ObjectMeta(name="mine")))
        await world.store.create(Hypervisor(metadata=ObjectMeta(name="my-host")))
        await world.clock.sleep(1)
        for _ in range(HOST_MISSES + 1):
            await world.sync()
        world.source.full, world.source.deleted = False, {"mine"}
        await world.sync()
        assert await world.vms() == {"mine": ""}
        assert "my-host" in await world.hosts()


async def test_while_the_source_is_away_nothing_changes_and_a_fault_says_so_until_it_is_back() -> None:
    source = Source([host("a")], [vm("v", "a")])
    async with World(source).running() as world, OrderedTaskGroup() as group:
        task = group.create_task(world.syncer.run())
        await world.clock.sleep(30)
        source.failure = Unavailable("Keystone did not answer", place="cloud lab")
        source.vms.clear()
        await world.clock.sleep(600)
        assert await world.vms() == {"v": "a"}
        (fault,) = [one async for one in list_all(world.store, Fault) if not one.ended]
        assert (fault.code, fault.subject.name) == ("inventory-stale", "lab")
        assert "Keystone did not answer" in fault.message
        assert source.forgotten > 1
        assert world.syncer.age_s > 590
        assert b"outlive_inventory_age_seconds{" in world.metrics.render()
        source.failure = None
        await world.clock.sleep(400)
        assert [one async for one in list_all(world.store, Fault) if not one.ended] == []
        assert await world.vms() == {}
        task.cancel()
    assert b"outlive_inventory_age_seconds{" not in world.metrics.render()


async def test_somebody_who_writes_the_same_object_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(Source([host("a")], [vm("v", "a")])).running() as world:
        replace_status = world.store.replace_status
        refusals = [Conflict("somebody was faster"), Conflict("again")]

        async def refuse(obj: VirtualMachine) -> VirtualMachine:
            if refusals:
                raise refusals.pop()
            return await replace_status(obj)

        monkeypatch.setattr(world.store, "replace_status", refuse)
        await world.sync()
        assert await world.vms() == {"v": "a"}


async def test_an_object_that_the_store_refuses_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(Source([host("a"), host("b")], [vm("v", "a"), vm("w", "a"), vm("x", "b")])).running() as world:
        create = world.store.create

        async def refuse(obj: VirtualMachine) -> VirtualMachine:
            if obj.name == "v":
                raise Invalid("it is too large")
            return await create(obj)

        monkeypatch.setattr(world.store, "create", refuse)
        await world.sync()
        assert await world.vms() == {"w": "a", "x": "b"}
        assert sorted(await world.hosts()) == ["a", "b"]
        assert b"outlive_inventory_problems 1.0" in world.metrics.render()


RECORDS = st.lists(st.integers(0, 60), max_size=80)


@given(RECORDS, RECORDS)
def test_batches_have_every_record_once_and_vms_with_their_host(names: list[int], places: list[int]) -> None:
    inventory = Inventory(what="nova", has_hosts=True, has_vms=True)
    inventory.hosts = [host(f"h{name}") for name in dict.fromkeys(names)]
    inventory.vms = [vm(f"v{number}", f"h{place}" if place else "") for number, place in enumerate(places)]
    found = list(split_records(inventory))
    assert sorted(one.name for batch in found for one in batch.hosts) == sorted(one.name for one in inventory.hosts)
    assert sorted(one.id for batch in found for one in batch.vms) == sorted(one.id for one in inventory.vms)
    of_host = {one.name: batch for batch in found for one in batch.hosts}
    assert all(one in of_host[one.host].vms for one in inventory.vms if one.host in of_host)
