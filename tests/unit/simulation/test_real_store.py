"""A cluster on a store of its own: what its judges hear, when, and of whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.live_store import NOBODY, Connection, LiveStore, LiveStory

from outlive.base import Forbidden, LoopClock, Random, SeededIds, Unknown
from outlive.resources import Hypervisor, ObjectMeta, Resource
from outlive.simulation import Author, WriteRefusal, read_scenario, set_author
from outlive.store import MemoryStore, Upsert, Write

SCENARIOS = Path(__file__).parents[2] / "scenarios"
KVM = Hypervisor(metadata=ObjectMeta(name="kvm-1"))
SOMEBODY = Author("ctl-1", "", ("import",))


class Slow(MemoryStore):
    """Writes count at once and are answered a second later, or never."""

    loses = False

    async def _submit(self, judge: Any) -> Resource:
        answer = await super()._submit(judge)
        await asyncio.sleep(1.0)
        if self.loses:
            raise Unknown("the connection was lost")
        return answer


class Heard:
    """A live store, the real one below it, and what its judges heard."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.writes: list[tuple[str, Resource | None, Resource | None]] = []
        self.refused: list[tuple[str, str]] = []
        ids = SeededIds(Random(1))
        self.store = LiveStore(LoopClock(), ids, self._wrote, self._refused, connect=lambda: inner)

    def _wrote(self, write: Write, author: Author) -> None:
        self.writes.append((author.process, write.before, write.after))

    def _refused(self, write: Write, author: Author, refusal: WriteRefusal) -> None:
        self.refused.append((author.process, refusal.why))

    @property
    def authors(self) -> list[str]:
        return [author for author, _, _ in self.writes]

    def reached(self) -> Connection:
        return self.store.way_end("ctl-1")


def heard(make: Callable[[LoopClock, SeededIds], MemoryStore] = MemoryStore) -> Heard:
    return Heard(make(LoopClock(), SeededIds(Random(2))))


def labelled(obj: Hypervisor, value: str) -> Hypervisor:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, labels={"a": value}))


async def test_judges_hear_of_a_write_and_its_author_before_its_writer_is_answered() -> None:
    world = heard()
    with set_author(SOMEBODY):
        made = await world.reached().create(KVM)
    assert world.authors == ["ctl-1"]
    assert world.store.find(Hypervisor, "kvm-1") == made
    changed = await world.store.replace(labelled(made, "b"))
    assert world.writes[1] == ("operator", made, changed)


async def test_a_write_that_the_server_refuses_is_not_sent_and_judges_hear_of_it() -> None:
    world = heard()
    made = await world.store.create(KVM)
    with (
        set_author(Author("ctl-1", "", ("failover",))),
        pytest.raises(Forbidden, match=r"token of controller ctl-1 may"),
    ):
        await world.reached().replace(labelled(made, "b"))
    assert [process for process, _ in world.refused] == ["ctl-1"]
    assert await world.inner.get(Hypervisor, "kvm-1") == made


async def test_observers_are_shown_nothing_that_judges_have_not_heard_of() -> None:
    world = heard(Slow)
    stream = world.reached().observe(Hypervisor)
    await anext(stream)
    writing = asyncio.ensure_future(world.store.create(KVM))
    change = await anext(stream)
    assert isinstance(change, Upsert)
    assert world.authors == ["operator"]
    await writing
    assert world.authors == ["operator"]
    await stream.aclose()


async def test_readers_are_shown_nothing_that_judges_have_not_heard_of() -> None:
    world = heard(Slow)
    writing = asyncio.ensure_future(world.store.create(KVM))
    await asyncio.sleep(0.5)
    found = await world.reached().get(Hypervisor, "kvm-1")
    assert world.store.find(Hypervisor, "kvm-1") == found
    await writing


async def test_a_write_goes_on_although_its_writer_is_gone() -> None:
    world = heard(Slow)
    writing = asyncio.ensure_future(world.store.create(KVM))
    await asyncio.sleep(0.5)
    writing.cancel()
    await asyncio.sleep(1.0)
    assert world.authors == ["operator"]


async def test_a_write_whose_answer_is_lost_is_put_down_to_its_author_once_it_is_seen() -> None:
    world = heard(Slow)
    assert isinstance(world.inner, Slow)
    world.inner.loses = True
    with set_author(SOMEBODY), pytest.raises(Unknown):
        await world.reached().create(KVM)
    assert world.authors == []
    await world.store.get(Hypervisor, "kvm-1")
    assert world.authors == ["ctl-1"]


async def test_what_no_process_has_written_is_put_down_to_nobody() -> None:
    world = heard()
    await world.inner.create(KVM)
    await world.store.get(Hypervisor, "kvm-1")
    assert world.authors == [NOBODY.process]


async def test_a_write_that_is_answered_late_is_judged_by_what_it_changed() -> None:
    world = heard()
    made = await world.store.create(KVM)
    second = await world.inner.replace(labelled(made, "b"))
    third = await world.store.replace(labelled(second, "c"))
    world.store.heard(made, second)
    assert world.writes[-1] == ("operator", made, second)
    assert world.store.find(Hypervisor, "kvm-1") == third


async def test_a_write_that_changes_nothing_is_none() -> None:
    world = heard()
    made = await world.store.create(KVM)
    await world.store.replace(made)
    assert len(world.writes) == 1


async def test_what_is_deleted_is_gone_for_the_judges_too() -> None:
    world = heard()
    made = await world.store.create(KVM)
    await world.store.delete(made.ref)
    assert world.store.find(Hypervisor, "kvm-1") is None
    assert world.writes[-1] == ("operator", made, None)
    again = await world.store.create(KVM)
    assert world.store.find(Hypervisor, "kvm-1") == again


async def test_an_object_with_finalizers_is_only_marked() -> None:
    world = heard()
    metadata = msgspec.structs.replace(KVM.metadata, finalizers=("outlive.dev/wait",))
    made = await world.store.create(msgspec.structs.replace(KVM, metadata=metadata))
    await world.store.delete(made.ref)
    marked = world.store.find(Hypervisor, "kvm-1")
    assert marked is not None
    assert marked.metadata.deletion_timestamp is not None
    await world.store.replace(msgspec.structs.replace(marked, metadata=_free(marked)))
    assert world.store.find(Hypervisor, "kvm-1") is None


def _free(obj: Resource) -> ObjectMeta:
    return msgspec.structs.replace(obj.metadata, finalizers=())


async def test_a_store_that_forgets_what_it_has_answered_is_told_of() -> None:
    world = heard()
    kept = await world.store.create(KVM)
    await world.store.create(msgspec.structs.replace(KVM, metadata=ObjectMeta(name="kvm-2")))
    older = await world.store.create(msgspec.structs.replace(KVM, metadata=ObjectMeta(name="kvm-3")))
    newer = await world.store.replace(labelled(older, "b"))
    assert await world.store.astray() == []
    world.inner.load([labelled(kept, "c"), older])
    assert await world.store.astray() == [
        f"version {kept.metadata.resource_version} of Hypervisor/kvm-1 is another one than was answered",
        "Hypervisor/kvm-2 was written, and the store does not have it",
        f"Hypervisor/kvm-3 was acknowledged as {newer.metadata.resource_version}, "
        f"and the store has {older.metadata.resource_version}",
    ]


@pytest.mark.slow
async def test_a_story_ends_as_told_on_a_store_below_the_copy() -> None:
    scenario = read_scenario(SCENARIOS / "host-loses-power")
    inner = MemoryStore(LoopClock(), SeededIds(Random(3)))
    assert (await LiveStory(scenario, replay="", connect=lambda: inner).play()).failed == ()
