"""What watches are served from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from outlive.api import Expired, WatchCache, WatchCaches, WatchEvent, WatchRequest, coalesce, render_events
from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.resources import ObjectMeta, VirtualMachine
from outlive.store import Delete, MemoryStore, Reset, Selector, Synced, Upsert


def vm(name: str, version: int = 1, *, uid: str = "u", **labels: str) -> VirtualMachine:
    return VirtualMachine(
        metadata=ObjectMeta(name=name, uid=f"{uid}-{name}", resource_version=str(version), labels=labels)
    )


def cache(*listed: VirtualMachine, ring: int = 100) -> WatchCache:
    """A cache that has listed these; must be called on a loop."""
    made = WatchCache(MemoryStore(LoopClock(), SeededIds(Random(1))), VirtualMachine, clock=LoopClock(), ring=ring)
    for obj in listed:
        made.apply(Upsert(obj))
    made.apply(Synced())
    return made


def shown(happenings: Iterable[WatchEvent]) -> list[tuple[str, str, str]]:
    return [(one.type, one.entry.name, one.entry.version) for one in happenings]


async def test_the_first_listing_is_no_change() -> None:
    made = cache(vm("a"), vm("b"))
    states, number = made.list_entries()
    assert [entry.name for entry in states] == ["a", "b"]
    assert list(made.events_since(number)) == []
    with pytest.raises(Expired):
        made.events_since(number - 1)


async def test_changes_are_told_in_order_from_any_place_in_the_ring() -> None:
    made = cache(vm("a"))
    _, start = made.list_entries()
    made.apply(Upsert(vm("a", 2)))
    made.apply(Upsert(vm("b", 3)))
    made.apply(Delete(vm("a").ref, vm("a", 2)))
    assert shown(made.events_since(start)) == [("MODIFIED", "a", "2"), ("ADDED", "b", "3"), ("DELETED", "a", "2")]
    assert shown(made.events_since(start + 2)) == [("DELETED", "a", "2")]
    assert made.find_number(str(start + 1)) == start + 1


async def test_a_client_may_resume_from_the_version_of_an_object_it_saw_and_misses_nothing() -> None:
    made = cache()
    made.apply(Upsert(vm("a", 7)))
    made.apply(Upsert(vm("b", 8)))
    made.apply(Delete(vm("a").ref, vm("a", 7)))
    assert shown(made.events_since(made.find_number("7"))) == [("ADDED", "b", "8"), ("DELETED", "a", "7")]
    assert shown(made.events_since(made.find_number("8"))) == [("DELETED", "a", "7")]
    with pytest.raises(Expired):
        made.find_number("9")


async def test_a_version_that_two_objects_share_is_no_place() -> None:
    made = cache()
    made.apply(Upsert(vm("a", 5)))
    made.apply(Upsert(vm("b", 5)))
    with pytest.raises(Expired):
        made.find_number("5")


async def test_what_has_left_the_ring_is_too_old() -> None:
    made = cache(ring=3)
    _, start = made.list_entries()
    for version in range(1, 6):
        made.apply(Upsert(vm("a", version)))
    with pytest.raises(Expired):
        made.events_since(start + 1)
    assert shown(made.events_since(start + 2)) == [
        ("MODIFIED", "a", "3"),
        ("MODIFIED", "a", "4"),
        ("MODIFIED", "a", "5"),
    ]
    with pytest.raises(Expired):
        made.find_number("1")


async def test_places_of_an_earlier_run_are_too_old() -> None:
    earlier = cache()
    earlier.apply(Upsert(vm("a", 1)))
    await asyncio.sleep(1)
    with pytest.raises(Expired):
        cache(vm("a")).find_number(str(earlier.number))


async def test_a_new_listing_after_a_doubt_tells_only_what_differs() -> None:
    made = cache(vm("a"), vm("b"), vm("c"))
    _, start = made.list_entries()
    made.apply(Reset())
    assert not made.trusted
    for obj in (vm("a"), vm("b", 2), vm("d", 3)):
        made.apply(Upsert(obj))
    made.apply(Synced())
    assert made.trusted
    assert shown(made.events_since(start)) == [("MODIFIED", "b", "2"), ("ADDED", "d", "3"), ("DELETED", "c", "1")]


async def test_delete_and_recreate_between_two_looks_is_both() -> None:
    made = cache(vm("a"))
    _, start = made.list_entries()
    made.apply(Upsert(vm("a", 9, uid="v")))
    assert shown(made.events_since(start)) == [("DELETED", "a", "1"), ("ADDED", "a", "9")]


async def test_a_resumed_watch_gets_each_object_once_in_its_last_state() -> None:
    made = cache(vm("x"))
    _, start = made.list_entries()
    made.apply(Upsert(vm("a", 1)))
    made.apply(Upsert(vm("x", 2)))
    made.apply(Upsert(vm("a", 3)))
    made.apply(Delete(vm("x").ref, vm("x", 2)))
    made.apply(Upsert(vm("x", 5, uid="v")))
    assert shown(coalesce(made.events_since(start))) == [
        ("ADDED", "a", "3"),
        ("DELETED", "x", "2"),
        ("ADDED", "x", "5"),
    ]


async def test_leaving_a_selection_is_a_deletion_and_entering_it_an_addition() -> None:
    made = cache(vm("a", 1, rack="r1"), vm("b", 1, rack="r2"))
    _, start = made.list_entries()
    made.apply(Upsert(vm("a", 2, rack="r2")))
    made.apply(Upsert(vm("b", 3, rack="r1")))
    made.apply(Upsert(vm("b", 4, rack="r1")))
    made.apply(Upsert(vm("c", 5, rack="r3")))
    wanted = WatchRequest(selector=Selector.parse("rack=r1"))
    found = filter(None, render_events(made.events_since(start), wanted, lambda entry: f'"{entry.name}"'.encode()))
    assert [line.split(b'"')[3] + line.split(b'"')[7] for line in found] == [b"DELETEDa", b"ADDEDb", b"MODIFIEDb"]


async def test_a_watch_cache_follows_its_store_and_outlives_its_trouble() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    await store.create(VirtualMachine(metadata=ObjectMeta(name="a")))
    caches = WatchCaches(store, clock=LoopClock())
    made = await caches.get_cache(VirtualMachine)
    number = made.number
    await store.create(VirtualMachine(metadata=ObjectMeta(name="b")))
    await made.next_change(number)
    assert [one[:2] for one in shown(made.events_since(number))] == [("ADDED", "b")]
    await store.close()
    await asyncio.sleep(1)
    assert not made.trusted
    await caches.close()
    with pytest.raises(Unavailable):
        await caches.get_cache(VirtualMachine)
