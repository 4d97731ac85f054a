"""What every store tells its observers."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.backends import claim
from tests.conformance.objects import election, vm, with_meta, with_phase, with_project
from tests.conformance.observers import Follower, following

from outlive.base import Unavailable
from outlive.resources import VirtualMachine
from outlive.store import Delete, Selector, Store, Synced, Upsert


@claim
async def test_an_observer_first_gets_everything_there_is_and_then_synced(store: Store) -> None:
    made = {(await store.create(vm(f"vm-{n}"))).name for n in range(5)}
    follower = await following(store, VirtualMachine)
    assert isinstance(follower.seen[-1], Synced)
    assert {change.object.name for change in follower.seen[:-1] if isinstance(change, Upsert)} == made
    await follower.close()


@claim
async def test_an_observer_of_nothing_is_synced_at_once(store: Store) -> None:
    follower = await following(store, VirtualMachine)
    assert follower.seen == [Synced()]
    await follower.close()


@claim
async def test_an_observer_comes_to_see_every_write(store: Store) -> None:
    follower = await following(store, VirtualMachine)
    made = await store.create(vm())
    made = await store.replace(with_project(made, "q"))
    made = await store.replace_status(with_phase(made, "ACTIVE"))
    made = await store.replace(with_meta(made, labels={"a": "b"}))
    await follower.until(lambda objects: objects.get("vm-1") == made, why="the last state")
    await store.delete(made.ref)
    await follower.until(lambda objects: not objects, why="the deletion")
    await follower.close()


@claim
async def test_an_observer_sees_only_its_kind(store: Store) -> None:
    follower = await following(store, VirtualMachine)
    await store.create(election())
    await store.create(vm())
    await follower.until(lambda objects: bool(objects))
    assert all(not isinstance(c, Upsert) or c.object.kind() == "VirtualMachine" for c in follower.seen)
    await follower.close()


@claim
async def test_states_of_one_object_come_in_order(store: Store) -> None:
    made = await store.create(vm(project="0"))
    follower = await following(store, VirtualMachine)

    async def write() -> None:
        nonlocal made
        for number in range(1, 100):
            made = await store.replace(with_project(made, str(number)))

    writing = asyncio.create_task(write())
    await follower.until(lambda objects: objects["vm-1"].spec.project == "99", why="the last state")
    await writing
    seen = [int(c.object.spec.project) for c in follower.seen if isinstance(c, Upsert)]
    assert seen == sorted(seen)
    await follower.close()


@claim
async def test_a_listing_does_not_mix_with_changes_that_come_meanwhile(store: Store) -> None:
    made = {}
    for number in range(300):
        made[number] = await store.create(vm(f"vm-{number:03}", project="0"))
    follower = Follower(store.observe(VirtualMachine))
    for _ in range(10):
        follower.take(await anext(follower.changes))
    for number in (0, 150, 299):
        changed = await store.replace(with_project(made[number], "1"))
        await store.replace(with_project(changed, "2"))
    await store.delete(made[298].ref)
    await store.create(vm("vm-last", project="0"))
    await follower.until(lambda objects: "vm-last" in objects, why="the last change")
    assert sorted(obj.spec.project for obj in follower.objects.values()) == ["0"] * 297 + ["2"] * 3
    per_object: dict[str, list[int]] = {}
    for c in follower.seen:
        if isinstance(c, Upsert):
            per_object.setdefault(c.object.name, []).append(int(c.object.spec.project))
    assert all(states == sorted(states) for states in per_object.values())
    await follower.close()


@claim
async def test_delete_and_recreate_is_seen_as_such(store: Store) -> None:
    old = await store.create(vm())
    follower = await following(store, VirtualMachine)
    await store.delete(old.ref)
    new = await store.create(vm())
    await follower.until(lambda objects: objects.get("vm-1") == new, why="the successor")
    await follower.close()


@claim
async def test_a_deletion_carries_the_last_state(store: Store) -> None:
    made = await store.create(vm())
    follower = await following(store, VirtualMachine)
    await store.delete(made.ref)
    await follower.until(lambda objects: not objects)
    gone = follower.seen[-1]
    assert isinstance(gone, Delete)
    assert gone.ref == made.ref
    assert gone.last is None or gone.last.metadata.uid == made.metadata.uid
    await follower.close()


@claim
async def test_an_object_with_finalizers_is_seen_marked_and_then_gone(store: Store) -> None:
    made = await store.create(vm(finalizers=("outlive.dev/one",)))
    follower = await following(store, VirtualMachine)
    await store.delete(made.ref)
    await follower.until(lambda objects: objects["vm-1"].metadata.deletion_timestamp is not None, why="the mark")
    await store.replace(with_meta(follower.objects["vm-1"], finalizers=()))
    await follower.until(lambda objects: not objects, why="the deletion")
    await follower.close()


@claim
async def test_an_object_that_stops_matching_is_delivered_as_deleted(store: Store) -> None:
    made = await store.create(vm(labels={"host": "a"}))
    follower = await following(store, VirtualMachine, selector=Selector.from_values(host="a"))
    assert set(follower.objects) == {"vm-1"}
    made = await store.replace(with_meta(made, labels={"host": "b"}))
    await follower.until(lambda objects: not objects, why="that it moved away")
    made = await store.replace(with_meta(made, labels={"host": "a"}))
    await follower.until(lambda objects: objects.get("vm-1") == made, why="that it came back")
    await follower.close()


@claim
async def test_what_never_matched_is_not_delivered(store: Store) -> None:
    follower = await following(store, VirtualMachine, selector=Selector.from_values(host="a"))
    other = await store.create(vm("other", labels={"host": "b"}))
    await store.delete(other.ref)
    await store.create(vm("mine", labels={"host": "a"}))
    await follower.until(lambda objects: "mine" in objects)
    assert all(not isinstance(c, Upsert) or c.object.name == "mine" for c in follower.seen)
    assert not any(isinstance(c, Delete) for c in follower.seen)
    await follower.close()


@claim
async def test_a_write_that_changes_nothing_is_not_told(store: Store) -> None:
    made = await store.create(vm())
    follower = await following(store, VirtualMachine)
    await store.replace(made)
    await store.create(vm("vm-2"))
    await follower.until(lambda objects: "vm-2" in objects)
    assert [c.object.name for c in follower.seen if isinstance(c, Upsert)] == ["vm-1", "vm-2"]
    await follower.close()


@claim
async def test_many_observers_see_the_same(store: Store) -> None:
    followers = [await following(store, VirtualMachine) for _ in range(5)]
    for number in range(20):
        await store.create(vm(f"vm-{number}"))
    for follower in followers:
        await follower.until(lambda objects: len(objects) == 20, why="all twenty")
        await follower.close()


@claim
async def test_waiting_can_be_given_up_without_losing_a_change(store: Store) -> None:
    follower = await following(store, VirtualMachine)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(follower.changes), 0.05)
    made = await store.create(vm())
    await follower.until(lambda objects: objects.get("vm-1") == made, why="the object")
    await follower.close()


@claim
async def test_a_closed_observer_is_at_its_end(store: Store) -> None:
    follower = await following(store, VirtualMachine)
    await follower.close()
    with pytest.raises(StopAsyncIteration):
        await anext(follower.changes)


@claim
async def test_observers_hear_that_the_store_was_closed(store: Store) -> None:
    follower = await following(store, VirtualMachine)
    waiting = asyncio.create_task(_next(follower))
    await asyncio.sleep(0.01)
    await store.close()
    with pytest.raises(Unavailable):
        await waiting


async def _next(follower: Follower[VirtualMachine]) -> None:
    await anext(follower.changes)
