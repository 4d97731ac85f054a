"""Concurrent compare-and-swap histories of every local store are linearizable, faults or not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support.loops import run, run_real
from tests.torture.clients import Histories, torment
from tests.torture.linearizability import linearizable

from outlive.base import LoopClock, Random, SeededIds, SystemClock
from outlive.store import FaultRates, FaultStore, MemoryStore
from outlive.store.sqlite import SqliteStore

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c", "d")
STORMY = FaultRates(
    delay=0.5,
    delay_max_s=2.0,
    refuse=0.05,
    lose_applied=0.05,
    lose_dropped=0.05,
    lose_late=0.03,
    late_max_s=20.0,
)


def check(histories: Histories) -> None:
    assert histories.marked > 5
    lives, uids = zip(*histories.lives, strict=True)
    assert len(set(lives)) == len(set(uids)) == len(histories.lives), "a uid outlived its object, or changed"
    for name, calls in histories.calls.items():
        assert linearizable(calls), f"no order explains the {len(calls)} calls on {name}"


@pytest.mark.parametrize("seed", range(8))
def test_memory_behind_faults_is_linearizable(seed: int) -> None:
    async def scene() -> Histories:
        random = Random(seed)
        clock = LoopClock()
        inner = MemoryStore(clock, SeededIds(random.fork("ids")))
        store = FaultStore(inner, clock=clock, random=random.fork("faults"), rates=STORMY)
        histories = Histories(clock.monotonic)
        await torment(store, histories, random.fork("clients"), clients=6, calls=60, names=NAMES)
        await store.close()
        return histories

    histories = run(scene())
    assert histories.acknowledged > 40
    assert histories.unknown > 5
    check(histories)


def test_the_same_seed_gives_the_same_history() -> None:
    async def scene() -> Histories:
        random = Random(5)
        inner = MemoryStore(LoopClock(), SeededIds(random.fork("ids")))
        store = FaultStore(inner, clock=LoopClock(), random=random.fork("faults"), rates=STORMY)
        histories = Histories(LoopClock().monotonic)
        await torment(store, histories, random.fork("clients"), clients=4, calls=40, names=NAMES)
        await store.close()
        return histories

    assert run(scene()).calls == run(scene()).calls


@pytest.mark.parametrize("seed", range(3))
def test_sqlite_is_linearizable(seed: int, tmp_path: Path) -> None:
    async def scene() -> Histories:
        store = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SeededIds(Random(seed)))
        histories = Histories(time.monotonic)
        await torment(store, histories, Random(seed), clients=16, calls=150, names=NAMES)
        await store.close()
        return histories

    histories = run_real(scene())
    assert histories.acknowledged > 200
    check(histories)
