"""Leaders that follow each other: what one of them committed counts, whatever the next one finds, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.support.dying import Dead, Dying, Watched
from tests.support.loops import run_by
from tests.support.sales import SETTINGS, Market, asked, batch, host, in_market, live, project, store_with, vm

from outlive.base import AlreadyExists, LimitExceeded, Unavailable, Unknown, gather_defects
from outlive.commitments import DisagreementKind, change_name, change_number, slot_allocations
from outlive.resources import CommitmentChange, CommittedResource, Fault, ObjectMeta, R, Resource, UsageHistory
from outlive.store import MemoryStore, Page, Selector, list_all


async def first_life(dying: Dying, story: Callable[[Market], Awaitable[None]]) -> None:
    """A leader whose process ends in the middle of its story."""

    async def scene(market: Market) -> None:
        telling = asyncio.ensure_future(story(market))
        await asyncio.wait({telling, asyncio.ensure_future(dying.dead.wait())}, return_when=asyncio.FIRST_COMPLETED)
        telling.cancel()
        raise Dead

    with pytest.raises(Dead):
        await live(dying, scene, ends=False, whole=False)


async def test_a_commit_that_arrives_after_the_next_leader_began_does_not_count() -> None:
    store = store_with(host("h1"))
    dying = Dying(store)

    async def asks(market: Market) -> None:
        dying.dies_at = dying.writes + 1
        await market.change(batch(project("p1", asked("aaaaaa", 8))))

    async def late(market: Market) -> None:
        assert dying.last is not None
        with contextlib.suppress(AlreadyExists):
            await dying.last(store)
        assert await market.change(batch(project("p2", asked("bbbbbb", 8)))) == ""

    async def afterwards(market: Market) -> None:
        await asyncio.sleep(5)
        assert [one.phase for one in await market.changes()] == ["applied"]
        assert list(await market.commitments()) == ["bbbbbb"]
        assert market.free("h1") == 0

    await first_life(dying, asks)
    await live(store, late, whole=False)
    await live(store, afterwards, whole=False)


@run_by(in_market, [host("h1")])
async def test_a_leader_that_another_one_has_followed_commits_nothing(market: Market) -> None:
    assert await market.change(batch(project("p1", asked("aaaaaa", 4)))) == ""
    (mine,) = await market.changes()
    other = replace(mine, metadata=ObjectMeta(name=change_name(change_number(mine.name) + 1)), nonce="other")
    await market.store.create(replace(other, phase="withdrawn"))
    with pytest.raises(Unavailable, match="another process leads"):
        await market.change(batch(project("p1", asked("bbbbbb", 4))))
    assert market.free("h1") == 32
    await asyncio.sleep(5)
    assert await market.change(batch(project("p1", asked("cccccc", 4)))) == ""


def refusing(kind: type[Resource]) -> Callable[[str, object], Awaitable[None]]:
    """The store has no room for another object of the kind."""

    async def refuse(call: str, obj: object) -> None:
        if call == "create" and isinstance(obj, kind):
            raise LimitExceeded("the quota of the store is used up")

    return refuse


@run_by(in_market, [host("h1")], wrap=Watched)
async def test_a_batch_that_the_store_refuses_is_not_decided_and_may_be_asked_again(market: Market) -> None:
    market.before_writes(refusing(CommitmentChange))
    with pytest.raises(Unavailable, match="the quota of the store is used up"):
        await market.change(batch(project("p1", asked("aaaaaa", 4))))
    assert (await market.commitments(), market.free("h1")) == ({}, 64)
    market.before_writes(None)
    assert await market.change(batch(project("p1", asked("aaaaaa", 4)))) == ""


@pytest.mark.slow
@run_by(in_market, [host("h1")], wrap=Watched)
async def test_a_committed_batch_that_cannot_be_applied_is_a_fault_until_it_can(market: Market) -> None:
    async def disagreements() -> list[tuple[str, str]]:
        found = (await market.role.commitments.consistency.find_disagreements()).disagreements
        return [(one.kind, one.detail) for one in found]

    market.before_writes(refusing(CommittedResource))
    await market.sell("aaaaaa", 4, then_s=5)
    ((kind, why),) = await disagreements()
    assert kind == DisagreementKind.CHANGE_NOT_APPLIED
    assert why.endswith("the quota of the store is used up")
    await asyncio.sleep(2000)
    (fault,) = [one async for one in list_all(market.store, Fault) if not one.ended]
    assert (fault.code, "the quota of the store is used up" in fault.message) == ("commitments-disagree", True)
    market.before_writes(None)
    await asyncio.sleep(30)
    assert await disagreements() == []
    assert market.free("h1") == 32


class Stumbling(Dying):
    """A store that does not list changes, and histories, at first."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.refusals: dict[type[Resource], int] = {CommitmentChange: 3, UsageHistory: 3}

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        if self.refusals.get(kind):
            self.refusals[kind] -= 1
            raise Unavailable("the store is away")
        return await super().list(kind, selector=selector, limit=limit, token=token)


@pytest.mark.parametrize("at", range(2, 8))
async def test_nobody_touches_slots_of_a_change_before_it_is_applied(at: int) -> None:
    mine = vm("v1", "h1")
    store = store_with(host("h1", vms=[mine]), mine)
    dying = Dying(store)
    uids: set[str] = set()

    async def converts(market: Market) -> None:
        await market.sell("aaaaaa", 1)
        uids.update(one.metadata.uid for one in (await market.slots("aaaaaa")).values())
        dying.dies_at = dying.writes + at
        both = (asked("aaaaaa", 1, old="confirmed", new="superseded"), asked("bbbbbb", 1))
        await market.change(batch(project("p1", *both)))
        await asyncio.sleep(5)

    async def next_life(market: Market) -> None:
        await asyncio.sleep(10)
        (slot,) = (await market.slots()).values()
        assert {slot.metadata.uid} == uids
        assert list(slot_allocations(slot)) == ["v1"]
        assert await market.ready("bbbbbb") == "Accepted"

    await first_life(dying, converts)
    await live(Stumbling(store), next_life, whole=False)


async def test_a_batch_whose_commit_is_in_doubt_when_its_leader_stops_is_not_called_undone() -> None:
    dying = Dying(store_with(host("h1")))
    answers: list[object] = []

    async def asks(market: Market) -> None:
        dying.dies_at = dying.writes + 1
        dying.arrives = True
        asking = asyncio.ensure_future(market.change(batch(project("p1", asked("aaaaaa", 8)))))
        await dying.dead.wait()
        (task,) = (one for one in asyncio.all_tasks() if one.get_name() == "task commitment-changes")
        task.cancel()
        answers.extend(await asyncio.gather(asking, return_exceptions=True))

    await live(dying, asks, ends=False, whole=False)
    assert isinstance(answers[0], Unknown)


def test_who_begins_to_lead_while_the_store_is_away_waits_for_it() -> None:
    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 1)))) == ""

    with gather_defects() as defects:
        in_market([host("h1")], story, wrap=Stumbling)
    assert defects == []


def test_old_records_go_with_their_parts_and_the_last_number_stays() -> None:
    old = datetime(2025, 11, 1, tzinfo=UTC)
    record = CommitmentChange(
        metadata=ObjectMeta(name=change_name(7)), nonce="n7", parts=1, phase="applied", decided_at=old
    )
    part = CommitmentChange(metadata=ObjectMeta(name="change-n7-1"), part_of="n7", decided_at=old)
    lost = CommitmentChange(metadata=ObjectMeta(name="change-n9-1"), part_of="n9", decided_at=old)

    async def story(market: Market) -> None:
        barrier = await market.store.get(CommitmentChange, change_name(8))
        await market.store.replace(replace(barrier, decided_at=old))
        await market.role.commitments.change_log.sweep()
        assert [one.name async for one in list_all(market.store, CommitmentChange)] == [change_name(8)]
        assert await market.change(batch(project("p1", asked("aaaaaa", 1)))) == ""
        assert [one.name for one in await market.changes()] == [change_name(9)]

    in_market([host("h1"), record, part, lost], story)


@run_by(in_market, [host("h1")])
async def test_who_waits_for_his_turn_too_long_is_refused_in_time(market: Market) -> None:
    loop, changes = asyncio.get_running_loop(), market.role.commitments.changes
    began_s = loop.time()
    async with changes.lock_decisions():
        asking = asyncio.ensure_future(market.change(batch(project("p1", asked("aaaaaa", 1)))))
        trying = asyncio.ensure_future(market.change(batch(project("p1", asked("aaaaaa", 1)), dry_run=True)))
        await asyncio.wait({asking, trying, asyncio.ensure_future(asyncio.sleep(60))}, return_when="FIRST_COMPLETED")
        assert loop.time() - began_s == SETTINGS.commitments.watch_timeout
        assert (await asking).startswith("timeout reached while processing commitment changes: timeout after 15s")
        assert (await trying).startswith("dry run: timeout: timeout after 15s")
    await asyncio.sleep(1)
    assert await market.commitments() == {}
    assert await market.change(batch(project("p1", asked("aaaaaa", 1)))) == ""


@run_by(in_market, [host("h1")])
async def test_leadership_is_looked_at_before_each_try_of_a_write(market: Market) -> None:
    await market.sell("aaaaaa", 1)
    applier, tries = market.role.commitments.changes._applier, list[str]()
    name = (await market.commitments())["aaaaaa"].name
    held = await market.store.get(CommittedResource, name)
    stale = replace(held, status=replace(held.status, status_summary="stale"))
    await market.store.replace_status(replace(held, status=replace(held.status, status_summary="newer")))
    applier._leads = lambda: len(tries) < 1

    def change(found: CommittedResource | None) -> CommittedResource | None:
        tries.append("")
        return stale  # meets a Conflict, and would be tried again

    with pytest.raises(Unavailable, match="does not lead any more"):
        await applier.write_status(name, change)
    assert len(tries) == 1
