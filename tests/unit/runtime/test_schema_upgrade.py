"""The actor of the storage schema on a store in memory: it follows hosts and operators, and says whom it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.support.schemas import document, flavor_conversions

from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.resources import (
    CLUSTER,
    Cluster,
    ClusterSchema,
    ClusterSpec,
    ClusterStatus,
    Fault,
    Flavor,
    FlavorSpec,
    HostSchema,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    MemberRecord,
    Membership,
    ObjectMeta,
    SchemaHold,
    SchemaWish,
    encode,
    stored_version,
)
from outlive.runtime import AGAIN_S, DecisionLog, FaultRecorder, Informer, SchemaUpgrade
from outlive.runtime.schema_upgrade import LOOK_S
from outlive.store import MemoryStore, list_all
from outlive.store.schema import MoveUndone, SchemaState, SchemaStorage, StoredKinds


class Scene:
    """A cluster on a store in memory."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))

    @asynccontextmanager
    async def upgrading(self, storage: SchemaStorage | None = None) -> AsyncIterator[None]:
        """While the actor runs."""
        random = Random(2)
        hosts = Informer(self.store, Hypervisor, clock=self.clock, random=random)
        members = Informer(self.store, Membership, clock=self.clock, random=random)
        actor = SchemaUpgrade(
            self.store,
            storage or StoredKinds(self.store, document=document),
            hosts,
            members,
            by="me",
            leads=lambda: True,
            faults=FaultRecorder(self.store, self.clock, "controller"),
            decisions=DecisionLog(self.clock),
            clock=self.clock,
            latest=2,
        )
        tasks = [asyncio.create_task(one.run()) for one in (hosts, members, actor)]
        await self.clock.sleep(3 * LOOK_S)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def host(self, name: str, latest: int, active: int = 1) -> None:
        made = await self.store.create(
            Hypervisor(metadata=ObjectMeta(name=name), spec=HypervisorSpec(management="node"))
        )
        await self.says(made, latest, active)
        record = MemberRecord(machine_id="m", boot_id="b")
        await self.store.create(Membership(metadata=ObjectMeta(name=name), record=record))

    async def says(self, found: Hypervisor, latest: int, active: int) -> None:
        status = HypervisorStatus(schema=HostSchema(active=active, latest=latest))
        await self.store.replace_status(replace(found, status=status))

    async def cluster(self) -> Cluster:
        return await self.store.get(Cluster, CLUSTER)

    async def faults(self) -> list[str]:
        return [one.message async for one in list_all(self.store, Fault) if not one.ended]


async def scene(*latest: int) -> Scene:
    made = Scene()
    await made.store.create(Cluster(metadata=ObjectMeta(name=CLUSTER)))
    for number, one in enumerate(latest, 1):
        await made.host(f"h{number}", one)
    return made


async def test_it_waits_for_hosts_by_name_and_goes_on_once_they_follow() -> None:
    one = await scene(2, 1)
    async with one.upgrading():
        found = await one.cluster()
        assert (found.schema_version, found.status.schema.waiting_for) == (1, ("h2",))
        assert "h2" in (await one.faults())[0]
        await one.says(await one.store.get(Hypervisor, "h2"), 2, 1)
        await one.clock.sleep(2 * LOOK_S)
        found = await one.cluster()
        assert (found.schema_version, found.status.schema.waiting_for) == (2, ())
        assert found.schema_hold(one.clock.now()) != "", "the daemons work by the old one still"
        assert await one.faults() == []
        for name in ("h1", "h2"):
            await one.says(await one.store.get(Hypervisor, name), 2, 2)
        await one.clock.sleep(2 * LOOK_S)
        found = await one.cluster()
        assert found.status.schema.hold is None
        assert [(step.start, step.to, step.by) for step in found.status.schema.journal] == [(1, 2, "me")]


async def test_an_operator_has_it_go_back_and_stay() -> None:
    one = await scene(2)
    async with one.upgrading():
        found = await one.cluster()
        assert found.schema_version == 2
        await one.store.replace(replace(found, spec=ClusterSpec(schema=SchemaWish(to=1))))
        await one.clock.sleep(100 * LOOK_S)
        assert (await one.cluster()).schema_version == 1
        assert (await one.cluster()).status.schema.hold is None


async def test_objects_are_stored_anew_in_the_version_that_this_release_writes() -> None:
    one = await scene(2)
    with flavor_conversions():
        old = Flavor(metadata=ObjectMeta(name="m1", uid="u", resource_version="1"), spec=FlavorSpec(flavor_name="m1"))
        raw = encode(old).replace(b'"outlive.dev/v1alpha1"', b'"outlive.dev/v1alpha2","colour":"red"')
        one.store.load_documents({"Flavor": {"m1": raw}})
        assert (await one.store.get(Flavor, "m1")).spec.flavor_name == "m1", "it is read all the same"
        async with one.upgrading():
            stored = one.store._tables.table_of(Flavor).get("m1")
            assert stored is not None
            assert stored_version(stored) == "v1alpha1"
            assert (await one.store.get(Flavor, "m1")).spec.flavor_name == "m1"


class Failing:
    """A store whose tree takes too long to copy, a few times."""

    def __init__(self, times: int) -> None:
        self.tries = 0
        self._times = times
        self._version = 1

    async def read_state(self) -> SchemaState:
        return SchemaState(version=self._version)

    async def run(self, target: int | None = None) -> SchemaState:
        self.tries += 1
        if self.tries <= self._times:
            raise MoveUndone("copying took longer than writers may wait")
        self._version = target or self._version
        return await self.read_state()


async def test_a_change_that_was_undone_is_a_fault_and_is_tried_again_a_minute_later() -> None:
    one = await scene(2)
    failing = Failing(2)
    async with one.upgrading(failing):
        assert failing.tries == 1
        assert "took longer" in (await one.faults())[0]
        await one.clock.sleep(3 * AGAIN_S)
        assert failing.tries == 3
        assert (await one.cluster()).schema_version == 2
        assert await one.faults() == []


async def test_the_store_is_asked_again_when_it_does_not_answer() -> None:
    class Away(Failing):
        async def read_state(self) -> SchemaState:
            self.tries += 1
            if self.tries < 3:
                raise Unavailable("away")
            return SchemaState(version=1)

    one = await scene(1)
    away = Away(0)
    async with one.upgrading(away):
        assert away.tries >= 3


@pytest.mark.parametrize("now", [0.0, 299.0, 300.0])
def test_a_hold_ends_by_itself(now: float) -> None:
    hold = SchemaHold(to=2, since=datetime.fromtimestamp(1000.0, UTC))
    cluster = Cluster(status=ClusterStatus(schema=ClusterSchema(hold=hold)))
    assert (cluster.schema_hold(1000.0 + now) != "") == (now < 300.0)
