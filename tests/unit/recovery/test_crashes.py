"""Recovery that is killed after any of its writes goes on from what is stored, whatever the write was."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loops import run
from tests.support.recovery import RecoveryCloud

from outlive.base import Unavailable, Unknown
from outlive.resources import ObjectRef, R, Reservation
from outlive.runtime import OrderedTaskGroup
from outlive.store import Store

VMS = ("a", "b", "c", "d")
WRITES = 30
"""More than the story has; the last ones kill nobody."""


class Interrupted:
    """A store that fails from a certain write on: before it, or after it was applied and its answer lost."""

    def __init__(self, inner: Store, at: int, *, applied: bool, dead: list[int]) -> None:
        self._inner = inner
        self._at = at
        self._applied = applied
        self._dead = dead
        """Number of writes so far; shared, so that only the first process is killed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def replace(self, obj: R) -> R:
        return await self._write(self._inner.replace, obj)

    async def replace_status(self, obj: R) -> R:
        return await self._write(self._inner.replace_status, obj)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        await self._inner.delete(ref, uid=uid, version=version)

    async def _write(self, call: Any, obj: R) -> R:
        self._dead[0] += 1
        if self._dead[0] < self._at:
            return await call(obj)
        if self._dead[0] == self._at and self._applied:
            await call(obj)
            raise Unknown("the process is being killed")
        raise Unavailable("the process is being killed")


async def prepared(cloud: RecoveryCloud) -> None:
    """Two hosts die of five; their VMs share slots, one slot refuses, one VM has none."""
    await cloud.hosts("h1", "h2", "h3", "h4", "h5")
    for vm, host in (("a", "h1"), ("b", "h2"), ("c", "h1"), ("d", "h2")):
        await cloud.vm(vm, host)
    await cloud.slot("s-ab", "h3", {"a": "h1", "b": "h2"})
    await cloud.slot("s-a", "h4", {"a": "h1"})
    await cloud.slot("s-b", "h5", {"b": "h2"})
    await cloud.slot("s-c", "h5", {"c": "h1"})
    await cloud.slot("s-c2", "h3", {"c": "h1"})
    cloud.refuses["h5"] = "the disk is locked"


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_recovery_killed_at_any_write_ends_as_if_it_had_not_been(applied: bool) -> None:
    for at in range(1, WRITES):
        assert run(_killed_at(at, applied=applied)), f"killed at write {at}"


async def _killed_at(at: int, *, applied: bool) -> bool:
    writes = [0]

    def wrap(store: Store) -> Store:
        return Interrupted(store, at, applied=applied, dead=writes)  # type: ignore[return-value]

    cloud = RecoveryCloud(wrap=wrap)
    claims: dict[tuple[str, str], int] = {}
    async with OrderedTaskGroup() as group:
        hosts = group.create_task(cloud.run(), name="hosts")
        await prepared(cloud)
        first = group.create_task(cloud.manager().run(), name="recovery 1")
        await cloud.clock.sleep(5)
        await cloud.die("h1", "h2")
        for _ in range(100):
            await cloud.clock.sleep(0.05)
            if writes[0] >= at:
                break
        assert writes[0] >= min(at, 12), "the story has fewer writes than it should"
        first.cancel()
        cloud.wrap = lambda store: store
        second = group.create_task(cloud.manager().run(), name="recovery 2")
        for _ in range(40):
            await cloud.clock.sleep(0.5)
            await _count_consumers(cloud, claims)
        await _as_it_should_be(cloud)
        hosts.cancel()
        second.cancel()
    return True


async def _count_consumers(cloud: RecoveryCloud, claims: dict[tuple[str, str], int]) -> None:
    for slot, vm in (await cloud.consumers()).items():
        claims[slot, vm] = claims.get((slot, vm), 0) + 1
    holders = [vm for vm in VMS if len(cloud.running[vm]) > 1]
    assert not holders


async def _as_it_should_be(cloud: RecoveryCloud) -> None:
    assert await cloud.recovered(VMS), [(vm, await cloud.recovery(vm)) for vm in VMS]
    consumers = await cloud.consumers()
    for vm in VMS:
        found = await cloud.get(vm)
        where = found.status.assigned
        assert where is not None
        assert cloud.running[vm] == {where.hypervisor}
        assert found.metadata.labels["outlive.dev/host"] == where.hypervisor
        mine = [slot for slot, consumer in consumers.items() if consumer == vm]
        assert mine == ([where.slot.name] if where.slot is not None else [])
    slots = {one.name: one.status.host for one in (await cloud.memory.list(Reservation)).items}
    assert all(slots[slot] in cloud.running[vm] for slot, vm in consumers.items())
