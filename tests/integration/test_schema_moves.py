"""The tree of a store on real ZooKeeper servers goes from one storage schema to another while it is used."""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.support.loops import run_real
from tests.support.schemas import MOVED, Cut, CutClient, document, dump, flavor_conversions
from tests.support.zookeeper import shared_ensemble

from outlive.base import Random, Refused, SystemClock, SystemIds, Unavailable
from outlive.resources import HOST_LABEL, Flavor, FlavorSpec, MemberRecord, Membership, ObjectMeta, VirtualMachine
from outlive.store import Delete, Reset, Synced, Upsert
from outlive.store.schema import SchemaMove, SchemaState, encode_state
from outlive.store.zookeeper import (
    KEPT_OF_HOST,
    SCHEMA_PATH,
    TRIM_EVERY,
    SchemaView,
    StoreLock,
    TreeFile,
    TreeMover,
    ZooKeeperAccess,
    ZooKeeperClient,
    ZooKeeperStore,
    dump_tree,
    is_entry,
    replace_data,
    restore_tree,
)

pytestmark = [pytest.mark.component("zookeeper"), pytest.mark.slow]
CLOCK = SystemClock()
LOCK_S = 30.0
"""How long somebody waits for a lock that he is to get."""
LONG_AGO = datetime(2030, 1, 1, tzinfo=UTC)


def on_servers(story: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Run it on a real loop."""

    @functools.wraps(story)
    def run_it() -> None:
        run_real(story())

    del run_it.__wrapped__  # type: ignore[attr-defined]  # pytest would call the story
    return run_it


def store_on(access: ZooKeeperAccess, seed: int = 1) -> ZooKeeperStore:
    client = ZooKeeperClient(access)
    view = SchemaView(client, clock=CLOCK, document=document)
    return ZooKeeperStore(client, clock=CLOCK, ids=SystemIds(), random=Random(seed), schema=view)


def mover(client: ZooKeeperClient, by: str = "a", **limits: float) -> TreeMover:
    return TreeMover(client, by=by, clock=CLOCK, document=document, **limits)


@asynccontextmanager
async def filled(vms: int = 12) -> AsyncIterator[ZooKeeperStore]:
    """A store with a membership, some VMs and a flavor."""
    store = store_on(shared_ensemble().new_chroot())
    await store.prepare()
    await store.create(membership("kvm-1"))
    for number in range(vms):
        await store.create(VirtualMachine(metadata=ObjectMeta(name=f"vm-{number}")))
    await store.create(Flavor(metadata=ObjectMeta(name="m1"), spec=FlavorSpec(flavor_name="m1")))
    with flavor_conversions():
        yield store
    await store.close()


def membership(name: str) -> Membership:
    return Membership(metadata=ObjectMeta(name=name), record=MemberRecord(machine_id="m", boot_id="b"))


def renewed(found: Membership) -> Membership:
    return replace(found, record=replace(found.record, seq=found.record.seq + 1))


@on_servers
async def test_objects_keep_their_versions_when_they_are_moved_and_back() -> None:
    async with filled() as store:
        before = {vm.name: vm for vm in (await store.list(VirtualMachine)).items}
        member = await store.get(Membership, "kvm-1")
        for target in (2, 1):
            state = await mover(store.client).run(target)
            assert state == SchemaState(version=target)
            assert {vm.name: vm for vm in (await store.list(VirtualMachine)).items} == before
            assert store.schema.version == target
        member = await store.replace(renewed(member))  # on the version from before both moves
        assert (await store.get(Membership, "kvm-1", fresh=True)).record.seq == 1


@on_servers
async def test_the_old_paths_are_gone_and_the_new_ones_are_there() -> None:
    async with filled() as store:
        old = await dump(store.client)
        await mover(store.client).run(2)
        new = await dump(store.client)
        assert "/extra" in new
        assert not [path for path in new for kind in (*MOVED, "knowledges") if path.startswith(f"/objects/{kind}")]
        assert len([path for path in new if path.startswith("/moved/objects/virtualmachines/") and "," in path]) == 12
        assert b"v1alpha2" in next(
            data for path, data in new.items() if path.startswith("/objects/flavors/") and "," in path
        )
        await mover(store.client).run(1)
        back = await dump(store.client)
        kept = {path for path in old if "/bumps/" not in path} - {"/schema"}
        assert kept <= set(back)
        assert not [path for path in back if path.startswith(("/moved", "/extra"))]


@on_servers
async def test_a_schema_from_the_future_is_refused_by_its_number() -> None:
    async with filled() as store:
        await store.client.commit([replace_data(SCHEMA_PATH, b"7")])
        other = ZooKeeperStore(ZooKeeperClient(store.client.access), clock=CLOCK, ids=SystemIds(), random=Random(1))
        with pytest.raises(Refused, match="storage schema 7") as error:
            await other.get(Membership, "kvm-1")
        assert "install" in error.value.remedy
        await other.close()


async def cut_move(access: ZooKeeperAccess, target: int, cut_at: int) -> bool:
    """Move the tree in a process that ends before that write; whether it came to it."""
    client = CutClient(access)
    client.cut_at = cut_at
    try:
        await mover(client, f"dead-{cut_at}").run(target)
    except Cut:
        return True
    finally:
        await client.close()
    return False


@on_servers
async def test_who_moves_the_tree_may_end_before_any_write_on_the_way_there_and_back() -> None:
    """Another one goes on where it was; meanwhile everything is found, and nobody is given anything older."""
    async with filled(3) as store:
        old = {vm.name: vm for vm in (await store.list(VirtualMachine)).items}
        other = store_on(store.client.access)
        cut_at, renewals, target = 1, 0, 2
        while await cut_move(store.client.access, target, cut_at):
            assert {vm.name: vm for vm in (await other.list(VirtualMachine)).items} == old
            assert (await other.get(Membership, "kvm-1", fresh=True)).record.seq == renewals
            assert await mover(store.client, f"next-{cut_at}").run(target) == SchemaState(version=target)
            assert {vm.name: vm for vm in (await store.list(VirtualMachine)).items} == old
            await other.replace(renewed(await other.get(Membership, "kvm-1")))
            renewals += 1
            assert (await store.get(Membership, "kvm-1", fresh=True)).record.seq == renewals
            cut_at, target = cut_at + 1, 3 - target
        assert cut_at > 40
        await other.close()


@on_servers
async def test_writers_and_observers_go_on_while_the_tree_moves() -> None:
    """No renewal fails, none is late by more than what a guard bears, and nothing is seen to be deleted."""
    async with filled(200) as store:
        others = [store_on(store.client.access, seed) for seed in range(2, 5)]
        for number, other in enumerate(others):
            await other.create(membership(f"host-{number}"))
        stopped = asyncio.Event()
        seen: list[object] = []

        async def renew(other: ZooKeeperStore, name: str) -> float:
            longest, found = 0.0, await other.get(Membership, name)
            while not stopped.is_set():
                began = CLOCK.monotonic()
                found = await other.replace(renewed(found))
                longest = max(longest, CLOCK.monotonic() - began)
                await asyncio.sleep(0.01)
            return longest

        async def watch(other: ZooKeeperStore) -> None:
            async for change in other.observe(VirtualMachine):
                seen.append(change)

        renewals = [asyncio.create_task(renew(one, f"host-{number}")) for number, one in enumerate(others)]
        watching = asyncio.create_task(watch(others[0]))
        await mover(store.client).run(2)
        await mover(store.client).run(1)
        await mover(store.client).run(2)
        stopped.set()
        longest = [await one for one in renewals]
        assert max(longest) < 2.0, longest
        await until(lambda: any(isinstance(one, Reset) for one in seen) and isinstance(seen[-1], Synced))
        watching.cancel()
        assert not [change for change in seen if isinstance(change, Delete)]
        assert len({change.object.name for change in seen if isinstance(change, Upsert)}) == 200
        for other in others:
            await other.close()


async def until(done: Callable[[], bool], limit_s: float = 30.0) -> None:
    end = CLOCK.monotonic() + limit_s
    while not done():
        assert CLOCK.monotonic() < end
        await asyncio.sleep(0.02)


@on_servers
async def test_two_that_move_the_tree_do_it_once() -> None:
    async with filled() as store:
        first, second = mover(store.client, "a"), mover(store.client, "b")
        states = await asyncio.gather(first.run(2), second.run(2))
        assert set(states) == {SchemaState(version=2)}
        assert [(one.start, one.to, one.undone) for one in await first.read_journal()] == [(1, 2, False)]


@on_servers
async def test_one_that_was_paused_writes_nothing_once_another_went_on() -> None:
    async with filled() as store:
        client = CutClient(store.client.access)
        client.cut_at, client.resumed = 8, asyncio.Event()
        slow = asyncio.create_task(mover(client, "slow").run(2))
        await until(lambda: client.writes == client.cut_at)
        locks = (await store.client.list_children(("/schema/locks",)))[0] or []
        await store.client.delete_many([f"/schema/locks/{one}" for one in locks])  # its session ended meanwhile
        await mover(store.client, "next").run(2)
        before = await dump(store.client)
        client.resumed.set()
        with pytest.raises(Unavailable, match="another"):
            await slow
        assert await dump(store.client) == before
        await client.close()


@on_servers
async def test_copying_that_takes_too_long_is_undone_and_writers_go_on() -> None:
    async with filled() as store:
        with pytest.raises(Unavailable, match="undone"):
            await mover(store.client, copy_s=-1.0).run(2)
        await store.replace(renewed(await store.get(Membership, "kvm-1")))
        tree = await dump(store.client)
        assert tree[SCHEMA_PATH] == b"1"
        assert not [path for path in tree if path.startswith("/moved/objects")]
        assert await mover(store.client).run(2) == SchemaState(version=2)


@on_servers
async def test_a_writer_gives_up_copying_that_is_overdue_in_the_place_of_who_died() -> None:
    async with filled() as store:
        move = SchemaMove(to=2, target=2, by="dead", since=LONG_AGO, frozen=("/objects/memberships",))
        found = await store.get(Membership, "kvm-1")
        await store.client.commit([replace_data(SCHEMA_PATH, encode_state(SchemaState(version=1, moving=move)))])
        began = CLOCK.monotonic()
        await store.replace(renewed(found))
        assert 1.0 < CLOCK.monotonic() - began < 5.0


@on_servers
async def test_a_tree_is_put_back_from_a_file_and_only_into_its_own_schema() -> None:
    async with filled() as store:
        found = await dump_tree(store, clock=CLOCK)
        before = await dump(store.client)
        await store.create(VirtualMachine(metadata=ObjectMeta(name="later")))
        await store.delete((await store.get(VirtualMachine, "vm-1")).ref)
        await restore_tree(store, found)
        after = await dump(store.client)
        assert {path: data for path, data in after.items() if path in found.nodes} == {
            path: data for path, data in before.items() if path in found.nodes
        }
        assert after.keys() - {"/"} == found.nodes.keys()
        other = store_on(store.client.access)
        assert len((await other.list(VirtualMachine)).items) == 12
        await other.close()
        await mover(store.client).run(2)
        with pytest.raises(Refused, match="schema 1, and the tree of 2"):
            await restore_tree(store, found)


@on_servers
async def test_writers_and_observers_go_on_in_another_ensemble_that_has_the_tree_from_a_file() -> None:
    """Its server has counted neither the entries of logs nor the transactions that objects name as their versions."""
    async with filled(0) as store:
        made = await store.create(VirtualMachine(metadata=ObjectMeta(name="vm-1", labels={HOST_LABEL: "kvm-1"})))
        for number in range(2 * KEPT_OF_HOST + TRIM_EVERY):
            made = await store.replace(labelled(made, number))
        await mover(store.client).run(2)
        await mover(store.client).run(1)
        found = await dump_tree(store, clock=CLOCK)
        old = {path: data for path, data in (await dump(store.client)).items() if is_entry(path)}
        old |= {
            path: b"@" + b"9" * 12 + b"\n" + data
            for path, data in (await dump(store.client)).items()
            if "vm-1," in path
        }
        for file in (found, with_nodes(found, old)):
            other = store_on(shared_ensemble().new_chroot())
            await other.prepare()
            await restore_tree(other, file)
            vm = await other.get(VirtualMachine, "vm-1")
            assert int(vm.metadata.resource_version) < 10**11
            assert not [path for path in await dump(other.client) if is_entry(path)]
            for number in range(3 * KEPT_OF_HOST):
                vm = await other.replace(labelled(vm, number))
            await other.close()


def labelled(vm: VirtualMachine, number: int) -> VirtualMachine:
    meta = replace(vm.metadata, annotations={"number": str(number)})
    return replace(vm, metadata=meta)


def with_nodes(file: TreeFile, more: dict[str, bytes]) -> TreeFile:
    """A file as an older version has written it."""
    return replace(file, nodes=file.nodes | {path: base64.b64encode(data).decode() for path, data in more.items()})


@on_servers
async def test_a_store_is_not_prepared_while_its_tree_moves() -> None:
    async with filled(0) as store:
        await store.client.ensure("/schema/locks")
        lock = StoreLock(store.client, "/schema/locks", owner="mover", shared=False, clock=CLOCK)
        assert (await lock.acquire(LOCK_S)).result == "acquired"
        preparing = asyncio.create_task(store_on(store.client.access).prepare())
        await asyncio.sleep(0.3)
        assert not preparing.done(), "who moves the tree has the lock"
        moving = SchemaMove(to=2, target=2, by="mover", since=LONG_AGO)
        await store.client.commit([replace_data(SCHEMA_PATH, encode_state(SchemaState(version=1, moving=moving)))])
        before = await dump(store.client)
        await lock.release()
        with pytest.raises(Unavailable, match="is being changed"):
            await preparing
        assert {**await dump(store.client)}.keys() <= before.keys()


@on_servers
async def test_a_writer_has_the_lock_alone_and_readers_share_it_in_the_order_in_which_they_came() -> None:
    async with filled(0) as store:
        await store.client.ensure("/schema/locks")

        def lock(owner: str, *, shared: bool) -> StoreLock:
            return StoreLock(store.client, "/schema/locks", owner=owner, shared=shared, clock=CLOCK)

        async def wait_for(count: int) -> None:
            """Return once so many have the lock or wait for it."""
            locks = ("/schema/locks",)
            while len((await store.client.list_children(locks, fresh=True))[0] or ()) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        writer, readers = lock("w", shared=False), [lock("r1", shared=True), lock("r2", shared=True)]
        assert (await writer.acquire(LOCK_S)).result == "acquired"
        refused = await readers[0].acquire(0.2)
        assert (refused.result, refused.attempts) == ("timeout", 1), "that somebody has it is an answer"
        await wait_for(1)
        waiting = [asyncio.create_task(one.acquire(LOCK_S)) for one in readers]
        await wait_for(3)
        next_writer = asyncio.create_task(lock("w2", shared=False).acquire(LOCK_S))
        await wait_for(4)
        assert not [one for one in waiting if one.done()]
        await writer.release()
        await writer.release()  # harmless
        assert [(await one).result for one in waiting] == ["acquired", "acquired"]
        await asyncio.sleep(0.2)
        assert not next_writer.done()
        for one in readers:
            await one.release()
        assert (await next_writer).result == "acquired"
        nothing = await StoreLock(store.client, "/none", owner="x", shared=False, clock=CLOCK).acquire(1.0)
        assert (nothing.result, nothing.attempts) == ("none", 1)
