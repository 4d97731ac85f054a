"""The informer: whatever the way to the store does, the cache becomes what the store holds, in a consistent history."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.loops import run, running

from outlive.base import LoopClock, OutliveError, Random, SeededIds, Unavailable
from outlive.resources import Hypervisor, HypervisorSpec, ObjectMeta
from outlive.runtime import Informer, OrderedTaskGroup
from outlive.store import Delete, FaultRates, FaultStore, MemoryStore, Reset, Selector, Synced, Upsert


def _host(name: str, zone: str = "z1", **meta) -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name=name, labels={"zone": zone}, **meta))


def _with_groups(obj: Hypervisor, *groups: str) -> Hypervisor:
    return msgspec.structs.replace(obj, spec=HypervisorSpec(groups=groups))


def _store(seed: int = 1) -> MemoryStore:
    return MemoryStore(LoopClock(), SeededIds(Random(seed)))


def _informer(store, **options) -> Informer[Hypervisor]:
    return Informer(store, Hypervisor, clock=LoopClock(), random=Random(7), **options)


class History:
    """A subscriber that checks that each change begins where the last one ended."""

    def __init__(self) -> None:
        self.now: dict[str, Hypervisor] = {}
        self.changes: list[tuple[Hypervisor | None, Hypervisor | None]] = []

    def __call__(self, old, new) -> None:
        name = (new or old).name
        assert self.now.get(name) == old
        assert old != new
        self.changes.append((old, new))
        if new is None:
            del self.now[name]
        else:
            self.now[name] = new


class Script:
    """A store whose stream says what the test says; the informer observes and does nothing else."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[object] = asyncio.Queue()
        self.opened = 0
        self.closed = 0

    def observe(self, kind, *, selector=None):
        self.opened += 1
        return self._stream()

    async def _stream(self):
        try:
            while True:
                change = await self.queue.get()
                if isinstance(change, Exception):
                    raise change
                if change is StopAsyncIteration:
                    return
                yield change
        finally:
            self.closed += 1

    async def say(self, *changes) -> None:
        for change in changes:
            self.queue.put_nowait(change)
        await asyncio.sleep(0.001)


def _state(name: str, version: int, uid: str = "u1", **meta) -> Hypervisor:
    return _host(name, uid=uid, resource_version=str(version), **meta)


async def test_it_syncs_follows_and_indexes():
    store = _store()
    for number in range(3):
        await store.create(_host(f"h{number}", zone="odd" if number % 2 else "even"))
    informer = _informer(store, indexes={"zone": lambda host: [host.metadata.labels["zone"]]})
    history = History()
    informer.subscribe(history)
    assert not informer.synced
    async with running(informer):
        await informer.wait_synced()
        assert [host.name for host in informer.items()] == ["h0", "h1", "h2"]
        assert [host.name for host in informer.list_by_index("zone", "even")] == ["h0", "h2"]
        host = informer.get("h0")
        moved = msgspec.structs.replace(host, metadata=msgspec.structs.replace(host.metadata, labels={"zone": "odd"}))
        await store.replace(moved)
        await store.delete(informer.get("h1").ref)
        await store.create(_host("a", zone="odd"))
        await asyncio.sleep(1)
        assert [host.name for host in informer.items()] == ["a", "h0", "h2"]
        assert [host.name for host in informer.list_by_index("zone", "odd")] == ["a", "h0"]
        assert [host.name for host in informer.list_by_index("zone", "even")] == ["h2"]
        assert informer.list_by_index("zone", "none") == []
        assert informer.index_keys("zone") == ["even", "odd"]
        assert informer.get("h1") is None
        assert len(informer) == 3
        with pytest.raises(KeyError):
            informer.list_by_index("rack", "r1")
    assert sorted(history.now) == ["a", "h0", "h2"]


async def test_an_object_that_stops_matching_the_selector_leaves():
    store = _store()
    host = await store.create(_host("h0", zone="z1"))
    await store.create(_host("h1", zone="z2"))
    informer = _informer(store, selector=Selector.from_labels({"zone": "z1"}))
    async with running(informer):
        await informer.wait_synced()
        assert [each.name for each in informer.items()] == ["h0"]
        await store.replace(
            msgspec.structs.replace(host, metadata=msgspec.structs.replace(host.metadata, labels={"zone": "z3"}))
        )
        await asyncio.sleep(1)
        assert informer.items() == []


async def test_after_a_reset_what_the_listing_does_not_name_goes_once_it_is_complete():
    script = Script()
    informer = _informer(script)
    history = History()
    informer.subscribe(history)
    async with running(informer):
        await script.say(Upsert(_state("a", 1)), Upsert(_state("b", 2, "u2")), Synced())
        await script.say(Reset(), Upsert(_state("b", 2, "u2")))
        await asyncio.sleep(5)
        assert sorted(history.now) == ["a", "b"]
        assert informer.synced
        assert informer.stalled_s() == pytest.approx(5, abs=0.1)
        await script.say(Synced())
        assert sorted(history.now) == ["b"]
        assert informer.stalled_s() == 0.0
        # The state that was listed again was no change.
        assert len(history.changes) == 3


async def test_what_a_listing_lacks_is_in_doubt_and_what_the_stream_deletes_is_not():
    script = Script()
    informer = _informer(script)
    doubts: dict[str, bool] = {}
    informer.subscribe(lambda old, new: doubts.update({old.name: informer.in_doubt}) if new is None else None)
    async with running(informer):
        states = [_state(name, number, f"u{number}") for number, name in enumerate("abc")]
        await script.say(*map(Upsert, states), Synced(), Delete(states[0].ref))
        await script.say(Reset(), Upsert(states[2]), Synced())
        await asyncio.sleep(30.0)
        await script.say(Delete(states[2].ref))
        assert doubts == {"a": False, "b": True, "c": False}


async def test_a_lost_stream_is_opened_again_after_a_wait_that_grows_and_is_capped():
    script = Script()
    informer = _informer(script)
    async with running(informer):
        await script.say(Upsert(_state("a", 1)), Synced())
        for _ in range(12):
            script.queue.put_nowait(Unavailable("away"))
        script.queue.put_nowait(StopAsyncIteration)
        await asyncio.sleep(1)
        assert informer.get("a") is not None
        early = script.opened
        assert 2 <= early <= 4
        await asyncio.sleep(600)
        assert script.opened == 14
        assert script.closed == 13
        assert informer.figures.errors == 12
        assert informer.stalled_s() > 500
        await script.say(Upsert(_state("a", 2)), Synced())
        assert informer.stalled_s() == 0.0


async def test_the_stream_is_closed_when_the_informer_is_cancelled():
    script = Script()
    informer = _informer(script)
    async with running(informer):
        await script.say(Synced())
    assert script.closed == 1


async def test_a_subscriber_that_fails_does_not_keep_the_change_from_others():
    store = _store()
    await store.create(_host("h0"))
    informer = _informer(store)
    seen: list[str] = []

    def fails(old, new):
        raise RuntimeError("mine")

    informer.subscribe(fails)
    informer.subscribe(lambda old, new: seen.append(new.name))
    async with running(informer):
        await informer.wait_synced()
    assert seen == ["h0"]
    assert informer.figures.callback_errors == 1


async def test_who_subscribes_late_is_told_what_is_there_and_may_end_it():
    store = _store()
    await store.create(_host("h0"))
    informer = _informer(store)
    async with running(informer):
        await informer.wait_synced()
        history, none = History(), History()
        end = informer.subscribe(history)
        informer.subscribe(none, replay=False)
        assert sorted(history.now) == ["h0"]
        assert none.now == {}
        end()
        await store.create(_host("h1"))
        await asyncio.sleep(1)
        assert sorted(history.now) == ["h0"]
        assert sorted(none.now) == ["h1"]


# Notes


async def _noted(script, informer, first, *changes):
    await script.say(Upsert(first), Synced(), *changes)


async def test_a_noted_write_shows_at_once_and_older_states_do_not_come_back():
    script = Script()
    informer = _informer(script)
    async with running(informer):
        await _noted(script, informer, _state("a", 5))
        informer.note(_state("a", 6), replaced="5")
        informer.note(_state("a", 7), replaced="6")
        assert informer.get("a").metadata.resource_version == "7"
        for version in (5, 6):
            await script.say(Upsert(_state("a", version)))
            assert informer.get("a").metadata.resource_version == "7"
        await asyncio.sleep(1000)
        assert informer.get("a").metadata.resource_version == "7"
        await script.say(Upsert(_state("a", 7)), Upsert(_state("a", 8)))
        assert informer.get("a").metadata.resource_version == "8"


async def test_a_state_that_is_provably_newer_shows_at_once():
    script = Script()
    informer = _informer(script)
    async with running(informer):
        await _noted(script, informer, _state("a", 5))
        informer.note(_state("a", 6), replaced="5")
        await script.say(Upsert(_state("a", 9)))
        assert informer.get("a").metadata.resource_version == "9"
        informer.note(_state("b", 10, "u2"), replaced="")
        await script.say(Upsert(_state("b", 11, "u2")))
        assert informer.get("b").metadata.resource_version == "11"


async def test_a_late_note_of_a_write_that_the_stream_has_passed_changes_nothing():
    script = Script()
    informer = _informer(script)
    async with running(informer):
        await _noted(script, informer, _state("a", 5), Upsert(_state("a", 6)), Upsert(_state("a", 7)))
        informer.note(_state("a", 6), replaced="5")
        assert informer.get("a").metadata.resource_version == "7"
        await script.say(Delete(_state("a", 7).ref))
        informer.note(_state("a", 8), replaced="7")
        assert informer.get("a") is None


async def test_a_state_of_unknown_age_waits_and_then_shows():
    script = Script()
    informer = _informer(script, hold_s=10.0)
    async with running(informer):
        await _noted(script, informer, _state("a", 5))
        # Replaced 6, which the stream has not shown: 5 and what comes may be older or newer.
        informer.note(_state("a", 7), replaced="6")
        await script.say(Upsert(_state("a", 8)))
        assert informer.get("a").metadata.resource_version == "7"
        await asyncio.sleep(11)
        assert informer.get("a").metadata.resource_version == "8"


def _put_back(*objects):
    """The store was restored: everybody lists it anew."""
    return (Reset(), *map(Upsert, objects), Synced())


@pytest.mark.parametrize("shown", [True, False])
async def test_a_write_whose_answer_comes_after_the_store_was_put_back_hides_only_for_a_while_what_that_says(shown):
    script = Script()
    informer = _informer(script, hold_s=10.0)
    async with running(informer):
        await _noted(script, informer, _state("a", 5), *([Upsert(_state("a", 6))] if shown else []))
        await asyncio.sleep(100)
        await script.say(*_put_back(_state("a", 5)))
        informer.note(_state("a", 6), replaced="5")
        await asyncio.sleep(11)
        assert informer.get("a").metadata.resource_version == "5"
        informer.note(_state("a", 7), replaced="5")
        await script.say(Upsert(_state("a", 5)))
        await asyncio.sleep(11)
        assert informer.get("a").metadata.resource_version == "7", "a write to the store as it is now"


@pytest.mark.parametrize("lost", [True, False])
async def test_a_noted_write_that_a_store_which_was_put_back_does_not_have_is_shown_only_for_a_while(lost):
    script = Script()
    informer = _informer(script, hold_s=10.0)
    async with running(informer):
        await _noted(script, informer, _state("a", 5), Upsert(_state("b", 3, "u2")))
        await asyncio.sleep(100)
        informer.note(_state("a", 6), replaced="5")
        informer.note(_state("a", 7), replaced="6")
        informer.note_deleted(_state("b", 3, "u2").ref)
        if lost:
            await script.say(Unavailable("gone"))
            await asyncio.sleep(1)
        await script.say(*_put_back(_state("a", 5), _state("b", 3, "u2"))[lost:])
        assert informer.get("a").metadata.resource_version == "7", "the listing may only be old"
        assert informer.get("b") is None
        await asyncio.sleep(11)
        assert informer.get("a").metadata.resource_version == "5"
        assert informer.get("b").metadata.resource_version == "3"


async def test_an_old_listing_after_a_noted_write_does_not_show_while_the_stream_goes_on():
    script = Script()
    informer = _informer(script, hold_s=10.0)
    history = History()
    async with running(informer):
        informer.subscribe(history)
        await _noted(script, informer, _state("a", 5))
        await asyncio.sleep(100)
        informer.note(_state("a", 6), replaced="5")
        await script.say(*_put_back(_state("a", 5)), Upsert(_state("a", 6)))
        await asyncio.sleep(100)
        assert [new.metadata.resource_version for _, new in history.changes] == ["5", "6"]


async def test_an_earlier_object_that_an_old_listing_showed_and_that_is_gone_by_now_does_not_come_back():
    script = Script()
    informer = _informer(script, hold_s=10.0)
    async with running(informer):
        await _noted(script, informer, _state("a", 5))
        informer.note_deleted(_state("a", 5).ref)
        informer.note(_state("a", 8, "u2"), replaced="")
        await script.say(*_put_back(_state("a", 5)), Delete(_state("a", 5).ref))
        assert informer.get("a").metadata.uid == "u2"
        await asyncio.sleep(11)
        assert informer.get("a") is None


async def test_a_created_object_that_no_stream_ever_shows_is_hidden_again():
    script = Script()
    informer = _informer(script, hold_s=10.0)
    async with running(informer):
        await script.say(Synced())
        informer.note(_state("ghost", 5), replaced="")
        assert informer.get("ghost") is not None
        await asyncio.sleep(11)
        assert informer.get("ghost") is None


async def test_a_noted_deletion_hides_older_states_until_it_is_seen():
    script = Script()
    informer = _informer(script)
    async with running(informer):
        await _noted(script, informer, _state("a", 5))
        informer.note_deleted(_state("a", 5).ref)
        assert informer.get("a") is None
        await script.say(Upsert(_state("a", 6)))
        assert informer.get("a") is None
        informer.note(_state("a", 8, "u2"), replaced="")
        assert informer.get("a").metadata.uid == "u2"
        await script.say(Upsert(_state("a", 7)), Delete(_state("a", 7).ref))
        assert informer.get("a").metadata.uid == "u2"
        await script.say(Upsert(_state("a", 9, "u2")))
        assert informer.get("a").metadata.resource_version == "9"


async def test_a_deletion_of_something_else_is_not_noted():
    script = Script()
    informer = _informer(script)
    async with running(informer):
        await _noted(script, informer, _state("a", 5))
        informer.note_deleted(_state("a", 5, "other").ref)
        informer.note_deleted(_state("never", 5).ref)
        assert informer.get("a") is not None


async def test_a_noted_object_that_its_selector_does_not_match_is_hidden():
    script = Script()
    informer = _informer(script, selector=Selector.from_labels({"zone": "z1"}))
    async with running(informer):
        await _noted(script, informer, _state("a", 5))
        other = _state("a", 6)
        other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, labels={"zone": "z2"}))
        informer.note(other, replaced="5")
        assert informer.get("a") is None
        await script.say(Delete(other.ref))
        await asyncio.sleep(20)
        assert informer.get("a") is None


# Properties

RATES = FaultRates(
    delay=0.3,
    delay_max_s=0.5,
    observer_delay=0.2,
    observer_delay_max_s=2.0,
    drop=0.05,
    stale_relist=0.5,
    coalesce=0.3,
    lose_applied=0.05,
    lose_dropped=0.05,
    refuse=0.05,
)


async def _writer(store, informer, random, names, steps, *, named):
    """Read from the cache, write, note what was acknowledged."""
    for _ in range(steps):
        name = random.choice(names)
        before = informer.get(name)
        with suppress(OutliveError):
            if before is None:
                made = await store.create(_host(name))
                informer.note(made, replaced="" if named else None)
            elif random.random() < 0.25:
                await store.delete(before.ref, uid=before.metadata.uid)
                informer.note_deleted(before.ref)
            else:
                written = await store.replace(_with_groups(before, str(random.random())))
                informer.note(written, replaced=before.metadata.resource_version if named else None)
        await asyncio.sleep(random.choice([0.0, 0.1, 1.0, 3.0]))


async def _stranger(store, random, names, steps):
    for _ in range(steps):
        name = random.choice(names)
        with suppress(OutliveError):
            if random.random() < 0.2:
                await store.delete((await store.get(Hypervisor, name)).ref)
            else:
                await store.replace(_with_groups(await store.get(Hypervisor, name), "stranger"))
        await asyncio.sleep(random.choice([0.0, 0.5, 2.0]))


async def _life(seed: int, *, named: bool, hold_s: float, stranger: bool, one_writer_a_name: bool = False):
    random = Random(seed)
    inner = _store(seed)
    faulty = FaultStore(inner, clock=LoopClock(), random=random, rates=RATES)
    informer = Informer(faulty, Hypervisor, clock=LoopClock(), random=random.fork("i"), hold_s=hold_s)
    history = History()
    informer.subscribe(history)
    names = ["a", "b", "c"]
    shares = [["a", "b"], ["c"]] if one_writer_a_name else [names, names]
    async with running(informer):
        await informer.wait_synced()
        async with OrderedTaskGroup() as writers:
            for share in shares:
                writer = _writer(faulty, informer, random.fork(str(share)), share, 25, named=named)
                writers.create_task(writer)
            if stranger:
                writers.create_task(_stranger(inner, random.fork("s"), names, 25))
        faulty.network.rates = FaultRates()
        # A change that nothing else follows may be held up for observer_delay_max_s, and held back for hold_s.
        await asyncio.sleep(60)
        cached = informer.items()
        kept = list((await inner.list(Hypervisor)).items)
    return cached, kept, history


@pytest.mark.slow
@given(st.integers(0, 2**40), st.booleans(), st.booleans())
@settings(max_examples=80)
def test_the_cache_becomes_what_the_store_holds(seed, named, stranger):
    cached, kept, history = run(_life(seed, named=named, hold_s=10.0, stranger=stranger))
    assert cached == kept
    assert [history.now[name] for name in sorted(history.now)] == kept


@pytest.mark.slow
@given(st.integers(0, 2**40))
@settings(max_examples=80)
def test_writers_who_say_what_they_replaced_never_see_the_cache_go_back(seed):
    _, _, history = run(_life(seed, named=True, hold_s=20.0, stranger=True, one_writer_a_name=True))
    newest: dict[str, int] = {}
    for _, new in history.changes:
        if new is not None:
            # The memory store counts its versions up; nobody but this test may know.
            version = int(new.metadata.resource_version)
            assert version >= newest.get(new.name, 0)
            newest[new.name] = version
