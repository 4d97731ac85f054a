"""Elections: at most one winner a term, terms rise, and somebody leads once the faults have ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.loops import run, running

from outlive.base import BadInput, Instant, LoopClock, Random, SeededIds
from outlive.resources import Election
from outlive.runtime import Elector, OrderedTaskGroup
from outlive.store import FaultRates, FaultStore, MemoryStore


def _store(seed: int = 1) -> MemoryStore:
    return MemoryStore(LoopClock(), SeededIds(Random(seed)))


def _elector(store, identity: str, *, clock=None, **options) -> Elector:
    ids = SeededIds(Random(7).fork(identity))
    return Elector(store, "planner", identity, clock=clock or LoopClock(), ids=ids, **options)


class HostClock:
    """The clock of one host: it may run fast or slow, and the whole process may be stopped for a while."""

    def __init__(self, rate: float = 1.0) -> None:
        self._rate = rate
        self.paused_until = 0.0
        self.slept_s = 0.0
        """For so long the whole machine has slept, which ``monotonic`` does not count."""

    def now(self) -> Instant:
        return Instant(self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() * self._rate

    def latest(self) -> float:
        return self.monotonic() + self.slept_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds / self._rate))
        while (left := self.paused_until - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)


async def test_one_of_several_leads_and_the_others_follow_when_it_stops():
    store = _store()
    electors = [_elector(store, name) for name in "abc"]
    async with OrderedTaskGroup() as group:
        tasks = [group.create_task(elector.run()) for elector in electors]
        await asyncio.sleep(30)
        first = [elector for elector in electors if elector.is_leader]
        assert len(first) == 1
        assert first[0].term == 1
        assert await first[0].wait_leader() == 1
        number = electors.index(first[0])
        tasks[number].cancel()
        await asyncio.sleep(3)
        # It gave the role back: nobody waited for silence.
        second = [elector for elector in electors if elector.is_leader]
        assert len(second) == 1
        assert second[0].term == 2
        assert not first[0].is_leader
        await first[0].wait_lost()
        for task in tasks:
            task.cancel()


async def test_a_silent_leader_is_replaced_after_the_silence_and_has_stopped_believing_before():
    store = _store()
    network = FaultStore(store, clock=LoopClock(), random=Random(3))
    alone, other = _elector(network, "alone"), _elector(store, "other")
    async with OrderedTaskGroup() as group:
        tasks = [group.create_task(alone.run())]
        await asyncio.sleep(5)
        tasks.append(group.create_task(other.run()))
        await asyncio.sleep(5)
        assert (alone.is_leader, other.is_leader) == (True, False)
        network.network.cut()
        cut_at = asyncio.get_running_loop().time()
        await alone.wait_lost()
        lost_at = asyncio.get_running_loop().time()
        await other.wait_leader()
        won_at = asyncio.get_running_loop().time()
        assert lost_at < won_at
        assert won_at - cut_at <= 12 + 2 * 2 + 1
        network.network.heal()
        await asyncio.sleep(30)
        assert (alone.is_leader, other.is_leader, other.term) == (False, True, 2)
        for task in tasks:
            task.cancel()


async def test_a_leader_whose_machine_has_slept_believes_nothing_any_more():
    clock = HostClock()
    leader = _elector(_store(), "a", clock=clock)
    async with running(leader):
        await leader.wait_leader()
        clock.slept_s = 3600
        assert not leader.is_leader


async def test_a_lost_answer_is_settled_by_the_nonce():
    store = _store()
    faulty = FaultStore(store, clock=LoopClock(), random=Random(3), rates=FaultRates(lose_applied=1.0))
    elector = _elector(faulty, "a")
    async with running(elector):
        await asyncio.sleep(4.5)
        record = (await store.get(Election, "planner")).record
        assert (record.holder, record.term) == ("a", 1)
        assert not elector.is_leader
        faulty.network.rates = FaultRates()
        await asyncio.sleep(4)
        assert elector.is_leader
        assert elector.term == 1
        faulty.network.rates = FaultRates(lose_applied=0.6)
        await asyncio.sleep(100)
        faulty.network.rates = FaultRates()
        await asyncio.sleep(20)
        assert elector.is_leader
        assert elector.term == 1


async def test_two_candidates_of_one_identity_are_not_both_leaders():
    store = _store()
    one, two = _elector(store, "same"), _elector(store, "same", clock=HostClock())
    two._nonce = SeededIds(Random(99)).new_uuid()
    async with running(one, two):
        for _ in range(100):
            await asyncio.sleep(1)
            assert not (one.is_leader and two.is_leader)
        assert one.is_leader or two.is_leader


async def test_an_election_that_somebody_deleted_is_begun_anew_with_a_higher_term():
    store = _store()
    elector = _elector(store, "a")
    async with running(elector):
        await asyncio.sleep(5)
        await store.delete((await store.get(Election, "planner")).ref)
        await asyncio.sleep(10)
        assert elector.is_leader
        assert elector.term == 2


async def test_somebody_elses_write_ends_leadership():
    store = _store()
    elector = _elector(store, "a")
    async with running(elector):
        await asyncio.sleep(5)
        current = await store.get(Election, "planner")
        taken = msgspec.structs.replace(current.record, holder="b", term=9, nonce="b-1")
        await store.replace(msgspec.structs.replace(current, record=taken))
        await asyncio.sleep(5)
        assert not elector.is_leader
        await asyncio.sleep(20)
        assert elector.is_leader
        assert elector.term == 10


def test_a_silence_too_short_for_its_renewals_is_refused():
    with pytest.raises(BadInput, match="too short"):
        _elector(None, "a", renew_s=5.0, silence_s=12.0)
    with pytest.raises(BadInput):
        _elector(None, "a", renew_s=0.0, silence_s=12.0)


@dataclass
class Moment:
    """Who believed what, at one time."""

    at: float
    leaders: list[tuple[str, int]]


async def _tumult(seed: int) -> tuple[list[Moment], list[tuple[str, int]], list[tuple[str, int]]]:
    """Four candidates on hosts whose clocks differ by 5 %, with pauses, cuts and all that a store may do."""
    random = Random(seed)
    inner = _store(seed)
    rates = FaultRates(
        delay=0.3, delay_max_s=1.5, refuse=0.1, lose_applied=0.1, lose_dropped=0.1, lose_late=0.1, late_max_s=20.0
    )
    stores = [FaultStore(inner, clock=LoopClock(), random=random.fork(f"s{n}"), rates=rates) for n in range(4)]
    clocks = [HostClock(rate=random.uniform(0.975, 1.025)) for _ in range(4)]
    electors = [_elector(store, f"n{n}", clock=clocks[n]) for n, store in enumerate(stores)]
    moments: list[Moment] = []
    history: list[tuple[str, int]] = []

    async def watch() -> None:
        while True:
            leaders = [(each.identity, each.term) for each in electors if each.is_leader]
            moments.append(Moment(asyncio.get_running_loop().time(), leaders))
            await asyncio.sleep(0.1)

    async def record() -> None:
        async for change in inner.observe(Election):
            obj = getattr(change, "object", None)
            if obj is not None:
                history.append((obj.record.holder, obj.record.term))

    async def disturb() -> None:
        for _ in range(15):
            await asyncio.sleep(random.uniform(1, 20))
            number = random.randrange(4)
            match random.choice(["pause", "cut", "heal", "heal"]):
                case "pause":
                    clocks[number].paused_until = asyncio.get_running_loop().time() + random.uniform(1, 40)
                case "cut":
                    stores[number].network.cut()
                case _:
                    for store in stores:
                        store.network.heal()

    async with OrderedTaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in electors]
        tasks += [group.create_task(watch()), group.create_task(record())]
        await disturb()
        for store in stores:
            store.network.heal()
            store.network.rates = FaultRates()
        await asyncio.sleep(120)
        final = [(each.identity, each.term) for each in electors if each.is_leader]
        for task in tasks:
            task.cancel()
    return moments, history, final


@pytest.mark.slow
@given(st.integers(0, 2**40))
@settings(max_examples=25)
def test_whatever_happens_a_term_has_one_leader_and_in_the_end_there_is_one(seed):
    moments, history, final = run(_tumult(seed))
    by_term: dict[int, str] = {}
    for moment in moments:
        # Clocks differ by less than the margin between belief and silence, so nobody overlaps either.
        assert len(moment.leaders) <= 1, moment
        for identity, term in moment.leaders:
            assert by_term.setdefault(term, identity) == identity
    terms = [term for _, term in history]
    assert terms == sorted(terms)
    holders: dict[int, set[str]] = {}
    for holder, term in history:
        if holder:
            holders.setdefault(term, set()).add(holder)
    assert all(len(each) == 1 for each in holders.values())
    assert len(final) == 1
