"""A store that misbehaves stays within the contract, and misbehaves the same way for the same seed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.objects import change, vm, with_project
from tests.conformance.observers import Follower, following
from tests.support.loops import run

from outlive.base import Conflict, LoopClock, NotFound, Random, SeededIds, Unavailable, Unknown
from outlive.resources import VirtualMachine
from outlive.store import Change, Delete, FaultRates, FaultStore, MemoryStore, Reset, Synced, Upsert

ROUGH = FaultRates(
    observer_delay=0.3, observer_delay_max_s=2.0, drop=0.05, stale_relist=0.7, coalesce=0.5, delay=0.3, delay_max_s=0.5
)


def behind_faults(seed: int = 1, **rates: float) -> tuple[MemoryStore, FaultStore]:
    inner = MemoryStore(LoopClock(), SeededIds(Random(seed)))
    return inner, FaultStore(inner, clock=LoopClock(), random=Random(seed), rates=FaultRates(**rates))


async def found(store: MemoryStore, name: str = "vm-1") -> VirtualMachine | None:
    try:
        return await store.get(VirtualMachine, name)
    except NotFound:
        return None


async def following_until_there(store: MemoryStore) -> None:
    follower = await following(store, VirtualMachine)
    await follower.until(lambda objects: "vm-1" in objects)
    await follower.close()


async def test_a_refused_write_is_not_applied() -> None:
    inner, store = behind_faults(refuse=1.0)
    with pytest.raises(Unavailable):
        await store.create(vm())
    assert await found(inner) is None


def test_a_lost_answer_says_unknown_whether_applied_or_not() -> None:
    async def scene(applied: bool) -> None:
        inner, store = behind_faults(**({"lose_applied": 1.0} if applied else {"lose_dropped": 1.0}))
        with pytest.raises(Unknown):
            await store.create(vm())
        assert (await found(inner) is not None) is applied

    run(scene(True))
    run(scene(False))


async def test_a_lost_write_may_be_applied_late() -> None:
    inner, store = behind_faults(lose_late=1.0, late_max_s=10.0)
    with pytest.raises(Unknown):
        await store.create(vm())
    assert await found(inner) is None
    await asyncio.sleep(10.0)
    assert await found(inner) is not None
    await store.close()


async def test_a_late_write_loses_against_a_newer_version() -> None:
    inner, store = behind_faults()
    made = await store.create(vm())
    store.network.rates = FaultRates(lose_late=1.0, late_max_s=5.0)
    with pytest.raises(Unknown):
        await store.replace(with_project(made, "late"))
    store.network.rates = FaultRates()
    await store.replace(with_project(made, "early"))
    await asyncio.sleep(5.0)
    assert (await inner.get(VirtualMachine, "vm-1")).spec.project == "early"


async def test_errors_of_the_store_itself_come_through() -> None:
    _, store = behind_faults()
    made = await store.create(vm())
    await store.replace(with_project(made, "q"))
    with pytest.raises(Conflict):
        await store.replace(with_project(made, "r"))


def test_delays_take_time() -> None:
    async def scene() -> float:
        _, store = behind_faults(delay=1.0, delay_max_s=3.0)
        await store.create(vm())
        return LoopClock().monotonic()

    assert 0.0 < run(scene()) < 6.0


async def test_a_cut_network_refuses_calls_and_loses_answers_on_their_way() -> None:
    inner, store = behind_faults()
    store.network.cut()
    with pytest.raises(Unavailable):
        await store.create(vm())
    store.network.heal()
    store.network.rates = FaultRates(delay=1.0, delay_max_s=4.0)
    writing = asyncio.create_task(store.create(vm()))
    await following_until_there(inner)
    store.network.cut()
    with pytest.raises(Unknown):
        await writing


def test_an_observer_behind_a_cut_lists_again_when_it_heals() -> None:
    async def scene() -> list[Change[VirtualMachine]]:
        inner, store = behind_faults()
        made = await store.create(vm("old"))
        follower = await following(store, VirtualMachine)
        store.network.cut()
        await inner.delete(made.ref)
        await inner.create(vm("new"))
        asyncio.get_running_loop().call_later(60.0, store.network.heal)
        async with asyncio.timeout(120.0):
            while set(follower.objects) != {"new"} or not follower.synced:
                follower.take(await anext(follower.changes))
        await follower.close()
        return follower.seen

    assert any(isinstance(c, Reset) for c in run(scene()))


class Judge:
    """Holds an observer against the guarantee: per object never back, never past a deletion unseen."""

    def __init__(self, order: dict[tuple[str, str], int]) -> None:
        self.order = order
        self.last: dict[str, tuple[int, str]] = {}
        self.resets = 0

    def take(self, change: Change[VirtualMachine]) -> None:
        match change:
            case Upsert(obj):
                moment = self.order[obj.metadata.uid, obj.metadata.resource_version]
                before = self.last.get(obj.name)
                assert before is None or before[0] <= moment, f"{obj.name} went back"
                self.last[obj.name] = (moment, obj.metadata.uid)
            case Reset():
                self.resets += 1


async def _storm(seed: int) -> tuple[list[str], int, int]:
    """Random writes, seen directly by one observer and behind faults by another; both must come to the same."""
    random = Random(seed)
    inner = MemoryStore(LoopClock(), SeededIds(random.fork("ids")))
    store = FaultStore(inner, clock=LoopClock(), random=random.fork("faults"), rates=ROUGH)
    order: dict[tuple[str, str], int] = {}
    known: dict[str, VirtualMachine] = {}

    def note(obj: VirtualMachine) -> None:
        order[obj.metadata.uid, obj.metadata.resource_version] = len(order)
        known[obj.name] = obj

    follower: Follower[VirtualMachine] = Follower(store.observe(VirtualMachine))
    judge = Judge(order)
    trace: list[str] = []

    async def observe() -> None:
        async for seen in follower.changes:
            judge.take(seen)
            follower.take(seen)
            trace.append(type(seen).__name__ + (seen.object.name if isinstance(seen, Upsert) else ""))

    observing = asyncio.create_task(observe())
    draws = random.fork("writes")
    for step in range(300):
        name = f"vm-{draws.randrange(6)}"
        obj = known.get(name)
        if obj is None:
            note(await inner.create(vm(name)))
        elif draws.random() < 0.2:
            await inner.delete(obj.ref)
            del known[name]
        else:
            note(await inner.replace(with_project(obj, str(step))))
        await asyncio.sleep(draws.uniform(0.0, 0.2))
    store.network.rates = change(ROUGH, drop=0.0)
    await asyncio.sleep(2000.0)
    assert follower.synced
    assert follower.objects == known
    observing.cancel()
    await follower.close()
    return trace, judge.resets, sum(isinstance(c, Synced) for c in follower.seen)


@pytest.mark.parametrize("seed", range(10))
def test_observers_behind_faults_never_go_back_and_come_to_see_the_truth(seed: int) -> None:
    _, resets, synced = run(_storm(seed))
    assert resets >= 1
    assert synced == resets + 1


def test_the_same_seed_misbehaves_the_same_way() -> None:
    assert run(_storm(3))[0] == run(_storm(3))[0]
    assert run(_storm(3))[0] != run(_storm(4))[0]


async def test_stale_listings_do_happen() -> None:
    inner, store = behind_faults()
    made = await inner.create(vm())
    changes = (await following(store, VirtualMachine)).changes
    for number in range(20):
        made = await inner.replace(with_project(made, str(number)))
    await asyncio.sleep(1)
    store.network.rates = FaultRates(drop=1.0, stale_relist=1.0)
    assert await anext(changes) == Reset()
    listed = await anext(changes)
    await changes.aclose()  # type: ignore[attr-defined]
    assert isinstance(listed, Upsert)
    assert listed.object.spec.project != "19"


@pytest.mark.parametrize("seed", range(5))
async def test_a_drop_in_the_middle_of_a_listing_hides_nothing(seed: int) -> None:
    inner, store = behind_faults(seed, drop=0.3, stale_relist=1.0, observer_delay=0.5)
    made = [await inner.create(vm(f"vm-{n:02}")) for n in range(30)]
    follower = Follower(store.observe(VirtualMachine))
    while not follower.synced:
        follower.take(await anext(follower.changes))
    assert set(follower.objects) == {obj.name for obj in made}
    await follower.close()


async def test_coalescing_leaves_states_out_but_never_the_last() -> None:
    inner, store = behind_faults(coalesce=1.0)
    made = await inner.create(vm())
    follower = await following(store, VirtualMachine)
    for number in range(50):
        made = await inner.replace(with_project(made, str(number)))
    await follower.until(lambda objects: objects["vm-1"] == made)
    await follower.close()
    assert sum(isinstance(c, Upsert) for c in follower.seen) < 10


async def test_an_observer_that_is_dropped_without_closing_leaves_no_task() -> None:
    _, store = behind_faults(coalesce=0.1)
    changes: Any = store.observe(VirtualMachine)
    await anext(changes)
    before = len(asyncio.all_tasks())
    del changes
    await asyncio.sleep(0.1)
    assert len(asyncio.all_tasks()) == before - 1


def test_rates_are_probabilities() -> None:
    for wrong in ({"drop": 1.1}, {"refuse": -0.1}, {"delay_max_s": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FaultRates(**wrong)
    FaultRates(delay_max_s=30.0)


async def test_a_deletion_is_told_even_when_states_before_it_are_left_out() -> None:
    inner, store = behind_faults(coalesce=1.0)
    follower = await following(store, VirtualMachine)
    made = await inner.create(vm())
    await inner.delete(made.ref)
    await asyncio.sleep(1)
    last = await anext(follower.changes)
    await follower.close()
    assert isinstance(last, Delete)
