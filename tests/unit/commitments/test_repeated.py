"""A request that is sent again under its name is answered as before, and not done again."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dying import Watched
from tests.support.loops import run, run_by
from tests.support.sales import Market, asked, batch, host, in_market, live, project, store_with

from outlive.base import Conflict, LoopClock, Unavailable, Unknown
from outlive.commitments import (
    Answers,
    BatchRefusal,
    answers,
    change_log,
    change_name,
    change_number,
    digest_of,
    documents,
)
from outlive.resources import CommitmentChange, ObjectMeta
from outlive.store import list_all

TWO = batch(project("p1", asked("aaaaaa", 2)))
GONE = batch(project("p1", asked("aaaaaa", 2, old="confirmed", new=None)))
TOO_MUCH = batch(project("p1", asked("bbbbbb", 99)))


@run_by(in_market, [host("h0")])
async def test_an_accepted_batch_is_not_done_again_though_it_was_undone_meanwhile(market: Market) -> None:
    assert await market.ask(TWO, "r1") == ""
    assert await market.ask(GONE, "r2") == ""
    assert await market.ask(TWO, "r1") == ""
    await asyncio.sleep(1)
    assert await market.commitments() == {}
    assert {one.request_id for one in await market.changes()} == {"r1", "r2"}


@run_by(in_market, [host("h0")])
async def test_another_batch_under_the_same_name_is_a_conflict_and_is_not_done(market: Market) -> None:
    assert await market.ask(TWO, "r1") == ""
    with pytest.raises(Conflict, match="X-Request-ID was used for another batch"):
        await market.ask(TOO_MUCH, "r1")
    await market.ask(TOO_MUCH, "r2")
    with pytest.raises(Conflict, match="X-Request-ID"):
        await market.ask(TWO, "r2")
    assert len(await market.changes()) == 1


@pytest.mark.slow
@run_by(in_market, [host("h0")])
async def test_a_refusal_is_repeated_though_there_is_room_meanwhile_and_after_an_hour_decided_anew(
    market: Market,
) -> None:
    eight = batch(project("p2", asked("bbbbbb", 8)))
    assert await market.ask(TWO, "r1") == ""
    refused = await market.ask(eight, "r2")
    assert "insufficient capacity" in refused
    assert await market.ask(GONE, "r3") == ""
    assert await market.ask(eight, "r2") == refused
    assert await market.ask(eight, "r4") == ""
    assert await market.ask(batch(project("p2", asked("bbbbbb", 8, old="confirmed", new=None))), "r5") == ""
    await asyncio.sleep(answers.REMEMBERED_S)
    assert await market.ask(eight, "r2") == ""


async def test_who_starts_next_knows_what_was_accepted_and_decides_anew_what_was_refused() -> None:
    store = store_with(host("h1"))

    async def first(market: Market) -> None:
        assert await market.ask(TWO, "r1") == ""
        assert await market.ask(GONE, "r2") == ""
        assert "insufficient capacity" in await market.ask(TOO_MUCH, "r3")

    async def second(market: Market) -> None:
        assert await market.ask(TWO, "r1") == ""
        assert await market.commitments() == {}
        with pytest.raises(Conflict):
            await market.ask(TOO_MUCH, "r1")
        assert await market.ask(TWO, "r3") == ""

    await live(store, first, ends=False, whole=False)
    await live(store, second, whole=False)


@run_by(in_market, [host("h0")], wrap=Watched)
async def test_a_batch_whose_caller_went_away_while_it_was_written_is_found_by_the_next_try(market: Market) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    async def slow(call: str, obj: object) -> None:
        if call == "create" and isinstance(obj, CommitmentChange):
            began.set()
            await gate.wait()

    market.before_writes(slow)
    first = asyncio.create_task(market.ask(TWO, "r1"))
    await began.wait()
    first.cancel()
    again = asyncio.create_task(market.ask(TWO, "r1"))
    await asyncio.sleep(1)
    gate.set()
    assert await again == ""
    assert len(await market.changes()) == 1
    assert len(await market.slots()) == 1


@run_by(in_market, [host("h0")])
async def test_what_another_leader_accepted_meanwhile_is_not_called_refused(market: Market) -> None:
    """Who does not know yet that another one leads repeats no refusal."""
    assert "insufficient capacity" in await market.ask(TOO_MUCH, "r1")
    (barrier,) = [one async for one in list_all(market.store, CommitmentChange)]
    theirs = CommitmentChange(
        metadata=ObjectMeta(name=change_name(change_number(barrier.name) + 1)),
        nonce="theirs",
        phase="applied",
        request_id="r1",
        request_digest=digest_of(TOO_MUCH),
    )
    await market.store.create(theirs)
    with pytest.raises(Unavailable):
        await market.ask(TOO_MUCH, "r1")
    with pytest.raises(Unavailable):
        await market.ask(TOO_MUCH, "r3")
    with pytest.raises(Unavailable):
        await market.ask(TWO, "r2")
    await asyncio.sleep(5)
    assert await market.ask(TOO_MUCH, "r1") == "", "it leads again, and has read what the other one did"


@run_by(in_market, [host("h0")], wrap=Watched)
async def test_a_batch_that_was_withdrawn_may_be_asked_again_under_its_name(market: Market) -> None:
    async def lost(call: str, obj: object) -> None:
        if call == "create" and isinstance(obj, CommitmentChange) and obj.phase == "decided":
            raise Unknown("the answer was lost")

    market.before_writes(lost)
    refused = await market.ask(TWO, "r1")
    assert refused.startswith("timeout reached while processing commitment changes: timeout after 15s")
    assert market.free("h0") == 64
    market.before_writes(None)
    assert await market.ask(TWO, "r1") == ""
    assert len(await market.changes()) == 1


@run_by(in_market, [host("h0")], wrap=Watched)
async def test_what_nobody_decided_may_be_asked_again_under_its_name(market: Market) -> None:
    async def away(call: str, obj: object) -> None:
        if call == "create" and isinstance(obj, CommitmentChange):
            raise Unavailable("away")

    market.before_writes(away)
    with pytest.raises(Unavailable):
        await market.ask(TWO, "r1")
    market.before_writes(None)
    assert await market.ask(TWO, "r1") == ""


async def test_a_commitment_of_more_slots_than_a_document_has_is_whole_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "DOCUMENT_BYTES", 1)
    monkeypatch.setattr(documents, "PIECE_SLOTS", 2)
    store = Watched(store_with(*(host(f"h{number}", gib=32) for number in range(5))))
    large = batch(project("p1", asked("aaaaaa", 5 * 4)))

    async def first(market: Market) -> None:
        dead = asyncio.Event()

        async def die(call: str, obj: object) -> None:
            if call == "create" and isinstance(obj, CommitmentChange) and not obj.part_of:
                await store.inner.create(obj)
                dead.set()
                await asyncio.Event().wait()

        store.before = die
        asking = asyncio.create_task(market.ask(large, "r1"))
        await dead.wait()
        asking.cancel()
        assert [len(one.steps[0].slots) for one in await market.changes()] == [2, 2, 1]
        assert await market.slots() == {}

    async def second(market: Market) -> None:
        await asyncio.sleep(5)
        assert len(await market.slots()) == 5
        assert await market.ready("aaaaaa") == "Accepted"
        assert await market.ask(large, "r1") == ""

    await live(store, first, ends=False, whole=False)
    store.before = None
    await live(store, second, whole=False)


@pytest.mark.slow
def test_what_is_swept_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "KEPT_S", 3_000.0)

    async def story(market: Market) -> None:
        assert await market.ask(TWO, "r1") == ""
        assert await market.ask(GONE, "r2") == ""
        await asyncio.sleep(4_000)
        await market.role.commitments.change_log.sweep()
        assert await market.ask(TWO, "r1") == ""
        await asyncio.sleep(1)
        assert set(await market.commitments()) == {"aaaaaa"}

    in_market([host("h0")], story)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3 * answers.REMEMBERED_CHARACTERS)), max_size=12))
def test_what_is_remembered_is_bounded_and_the_latest(kept: list[tuple[str, int]]) -> None:
    async def scene() -> None:
        found = Answers(LoopClock())
        for name, size in kept:
            found.keep(name, "d", BatchRefusal("x" * min(size, answers.REMEMBERED_CHARACTERS)))
            known = [found.get(one, "d") for one in "abcd"]
            reasons = [one.refusal.reason for one in known if one is not None and one.refusal is not None]
            assert sum(map(len, reasons)) <= answers.REMEMBERED_CHARACTERS
            assert found.get(name, "d") is not None

    run(scene())


async def test_only_so_many_answers_are_remembered() -> None:
    found, every = Answers(LoopClock()), range(answers.REMEMBERED + 5)
    for number in every:
        found.keep(f"r{number}", "d", None)
    assert [n for n in every if found.get(f"r{n}", "d") is None] == [0, 1, 2, 3, 4]


def test_the_same_request_has_the_same_digest() -> None:
    assert digest_of(TWO) == digest_of(batch(project("p1", asked("aaaaaa", 2))))
    assert digest_of(TWO) != digest_of(TOO_MUCH)


async def test_that_a_withdrawn_change_is_swept_does_not_forget_that_its_request_was_accepted_later() -> None:
    found = Answers(LoopClock())
    accepted = CommitmentChange(metadata=ObjectMeta(name="c2"), request_id="r", request_digest="d", phase="applied")
    found.note(accepted)
    found.forget(CommitmentChange(metadata=ObjectMeta(name="c1"), request_id="r", phase="withdrawn"))
    assert found.get("r", "d") is not None
