"""Lost quorum as proof ``cut``: announced, disconnected, read back, recorded; and let in again after a boot."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from lab.drbd import DrbdLab

from outlive.base import Random, SeededIds, SystemClock
from outlive.drivers.storage import Drbd, StorageSettings
from outlive.resources import (
    CLUSTER,
    Cluster,
    ClusterStatus,
    Cut,
    FenceRecord,
    MemberRecord,
    Membership,
    ObjectMeta,
    Pause,
)
from outlive.roles import StorageCuts
from outlive.store import MemoryStore

NODES = ("h1", "h2", "h3")
DISK = "disk:drbd:vol"
LIMIT_S = 20.0


@pytest.fixture
def drbd(tmp_path: Path) -> Iterator[DrbdLab]:
    with DrbdLab(tmp_path, NODES) as lab:
        lab.create("vol", NODES)
        yield lab


def revoked(**changes: object) -> Membership:
    record = MemberRecord(
        machine_id="m", boot_id="b", epoch=3, state="Revoked", fence=FenceRecord(id="f1", epoch=3, by="h3")
    )
    return Membership(metadata=ObjectMeta(name="h1"), record=msgspec.structs.replace(record, **changes))


def world(drbd: DrbdLab, member: Membership, lost: tuple[str, ...] = ("vol",)) -> tuple[MemoryStore, StorageCuts]:
    store = MemoryStore(SystemClock(), SeededIds(Random(1)))
    store.load([member, Cluster(metadata=ObjectMeta(name=CLUSTER))])
    driver = Drbd(StorageSettings(drbd_program=str(drbd.program("h2"))), drbd.folder, "h2")
    cuts = StorageCuts(store, driver, lambda host: lost, host="h2", clock=SystemClock(), random=Random(2))
    return store, cuts


def connection(drbd: DrbdLab) -> str:
    (state,) = json.loads(drbd.call("status_text", "h2"))
    return next(one["connection-state"] for one in state["connections"] if one["name"] == "h1")


def wait_lost(drbd: DrbdLab) -> None:
    drbd.isolate("h1")
    end = time.monotonic() + LIMIT_S
    while connection(drbd) == "Connected" or "Consistent" in drbd.call("status_text", "h2"):
        assert time.monotonic() < end
        time.sleep(0.05)


def record_once(store: MemoryStore, cuts: StorageCuts) -> MemberRecord:
    """The record after the agent has looked at it once."""

    async def look() -> MemberRecord:
        member = await store.get(Membership, "h1")
        await cuts.record("h1", member.record)
        return (await store.get(Membership, "h1")).record

    return asyncio.run(look())


def test_lost_quorum_of_a_condemned_host_is_recorded_with_its_evidence(drbd: DrbdLab) -> None:
    wait_lost(drbd)
    store, cuts = world(drbd, revoked())
    record = record_once(store, cuts)
    assert (record.cut.through, record.cut.scope) == (3, (DISK,))
    assert record.cut.proof is not None
    assert (record.cut.proof.kind, record.cut.proof.by, record.cut.proof.epoch) == ("cut", "h2", 3)
    assert record.dead_through == 0, "it is cut off from a disk, and may still run"
    assert connection(drbd) == "StandAlone", "it does not regain quorum by this node"
    assert record_once(store, cuts) == record


def test_nothing_is_recorded_of_a_host_that_still_reaches_the_volume(drbd: DrbdLab) -> None:
    opener = drbd.open("h1", "vol")
    assert drbd.write(opener, LIMIT_S)
    store, cuts = world(drbd, revoked())
    record = record_once(store, cuts)
    assert record.cut.scope == ()
    assert record.cut.proof is None


@pytest.mark.parametrize(
    "changes",
    [
        {"cut": Cut(through=3, scope=("disk:rbd:other",))},
        {"fence": FenceRecord(id="f1", epoch=2)},
        {"distrusted": ("cut",)},
    ],
)
def test_what_another_one_proved_stays_and_a_proof_about_another_epoch_is_none(
    drbd: DrbdLab, changes: dict[str, object]
) -> None:
    wait_lost(drbd)
    store, cuts = world(drbd, revoked(**changes))
    before = asyncio.run(store.get(Membership, "h1")).record
    assert record_once(store, cuts) == before
    assert connection(drbd) != "StandAlone", "nobody was ordered anything"


def test_without_a_loss_or_while_the_cluster_is_paused_nothing_is_announced(drbd: DrbdLab) -> None:
    wait_lost(drbd)
    store, cuts = world(drbd, revoked(), lost=())
    assert record_once(store, cuts).cut == Cut()
    store, cuts = world(drbd, revoked())
    paused = Cluster(metadata=ObjectMeta(name=CLUSTER), status=ClusterStatus(pause=Pause()))
    store.load([revoked(), paused])
    assert record_once(store, cuts).cut == Cut()
    assert connection(drbd) != "StandAlone"


def test_a_host_that_was_let_in_again_is_connected_again(drbd: DrbdLab) -> None:
    wait_lost(drbd)
    store, cuts = world(drbd, revoked())
    record_once(store, cuts)
    drbd.rejoin("h1")

    async def look_twice() -> None:
        await cuts.record_all()
        assert connection(drbd) == "StandAlone", "it is proven dead by nobody, so that it stays out"
        member = await store.get(Membership, "h1")
        record = msgspec.structs.replace(member.record, cut=Cut(), dead_through=3, epoch=4, state="Held")
        await store.replace(msgspec.structs.replace(member, record=record))
        await cuts.record_all()

    asyncio.run(look_twice())
    end = time.monotonic() + LIMIT_S
    while connection(drbd) != "Connected":
        assert time.monotonic() < end
        time.sleep(0.05)
