"""A process that has just started reports and writes nothing by caches that are not filled yet."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.commitments import InformedRecords, ProjectMetadata, QuotaIntake, QuotaPush, VmTable
from outlive.placement import VmView
from outlive.resources import CommittedResource, FlavorGroupCapacity, ProjectQuota, R, VirtualMachine
from outlive.runtime import Informer
from outlive.store import MemoryStore, list_all


def unfilled(store: MemoryStore, kind: type[R]) -> Informer[R]:
    return Informer(store, kind, clock=LoopClock(), random=Random(1))


async def no_vms(_: str) -> Sequence[VmView]:
    return ()


async def test_no_vms_are_counted_before_they_were_listed() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    with pytest.raises(Unavailable):
        VmTable(unfilled(store, VirtualMachine), None, clock=LoopClock()).check()


async def test_no_quota_is_written_before_it_is_known_what_there_is() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    records = InformedRecords(
        commitments=unfilled(store, CommittedResource),
        quotas=unfilled(store, ProjectQuota),
        capacities=unfilled(store, FlavorGroupCapacity),
        project_vms=no_vms,
        host_zone=lambda _: "a",
    )
    with pytest.raises(Unavailable):
        await QuotaIntake(store, records, clock=LoopClock()).write("p", {"a": {}}, ProjectMetadata(), QuotaPush())
    assert [one async for one in list_all(store, ProjectQuota)] == []
