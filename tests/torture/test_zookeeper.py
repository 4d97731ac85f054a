"""The store on three real ZooKeeper servers, while they are killed, stopped, cut off and put back: nothing acknowledged
is lost, and nothing goes back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec.structs import replace
from tests.conformance.claims import PATIENCE_S, until
from tests.conformance.objects import flavor, vm, with_meta, with_phase, with_project
from tests.conformance.observers import Follower
from tests.support.loops import run_real
from tests.support.tcp_proxy import TcpProxy, proxied
from tests.support.zookeeper import TestEnsemble, zookeeper_store
from tests.torture.clients import Histories, torment
from tests.torture.linearizability import linearizable

from outlive.base import Conflict, OutliveError, Random, SystemClock, Unavailable, Unknown
from outlive.resources import HOST_LABEL, ObjectRef, VirtualMachine
from outlive.runtime import Informer
from outlive.store import Reset, Selector, Upsert, list_all
from outlive.store.zookeeper import KEPT, LogReader, ZooKeeperAccess, ZooKeeperStore, replace_data, trim

pytestmark = pytest.mark.component("zookeeper")
NAMES = ("a", "b", "c", "d")
LIMIT_S = 120.0
SESSION_S = 1.5
"""Where clients are to leave a server that is gone; else a machine that stands still would end their sessions."""
LEAST = 40
"""So many writes are acknowledged at least, or the history says little."""
PASSES = int(os.environ.get("OUTLIVE_TORTURE_PASSES", "1"))
"""How often each thing is broken; more make the long form."""


@pytest.fixture(scope="module")
def ensemble() -> Iterator[TestEnsemble]:
    one = TestEnsemble()
    if os.geteuid() == 0:
        one.give_users()
    try:
        one.start()
        yield one
    finally:
        one.remove()


def place(ensemble: TestEnsemble) -> ZooKeeperAccess:
    return replace(ensemble.new_chroot(), session_s=SESSION_S)


def through(access: ZooKeeperAccess, proxy: TcpProxy) -> ZooKeeperAccess:
    """The same by one server alone, past the proxy."""
    return replace(access, servers=(f"127.0.0.1:{proxy.port}",))


@asynccontextmanager
async def opened(access: ZooKeeperAccess, seed: int = 1) -> AsyncIterator[ZooKeeperStore]:
    store = zookeeper_store(access, seed)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def made(access: ZooKeeperAccess) -> AsyncIterator[ZooKeeperStore]:
    async with opened(access) as store:
        await store.prepare()
        yield store


async def certain(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until it has an answer."""
    while True:
        try:
            await call()
        except OutliveError:
            await asyncio.sleep(0.05)
        else:
            return


async def patient(follower: Follower[VirtualMachine], wanted: dict[str, VirtualMachine]) -> None:
    async with asyncio.timeout(40.0):
        while not (follower.synced and follower.objects == wanted):
            follower.take(await anext(follower.changes))


def in_order(follower: Follower[VirtualMachine]) -> None:
    """Versions are opaque to the product; here they are the ensemble's transactions."""
    newest: dict[str, int] = {}
    for seen in follower.seen:
        if isinstance(seen, Upsert):
            version = int(seen.object.metadata.resource_version)
            assert version >= newest.get(seen.object.name, 0), f"{seen.object.name} went back to {version}"
            newest[seen.object.name] = version


async def reads_at_rest(store: ZooKeeperStore) -> int:
    """What it has read by a moment after which it reads nothing."""
    before = -1
    while before != (now := store.client.reads):
        before = now
        await asyncio.sleep(0.2)
    return before


# Breaking


async def kill_leader(ensemble: TestEnsemble, random: Random) -> None:
    leader = await asyncio.to_thread(ensemble.leader)
    await asyncio.to_thread(leader.kill)
    await asyncio.sleep(random.uniform(0.3, 1.0))


async def kill_follower(ensemble: TestEnsemble, random: Random) -> None:
    follower = await asyncio.to_thread(ensemble.follower)
    await asyncio.to_thread(follower.kill)
    await asyncio.sleep(random.uniform(0.1, 0.5))


async def stop_leader(ensemble: TestEnsemble, random: Random) -> None:
    leader = await asyncio.to_thread(ensemble.leader)
    leader.pause()
    await asyncio.sleep(random.uniform(0.5, 2.5))
    leader.resume()


async def cut_off_leader(ensemble: TestEnsemble, random: Random) -> None:
    if os.geteuid() != 0:
        return
    leader = await asyncio.to_thread(ensemble.leader)
    await asyncio.to_thread(ensemble.cut_off, leader)
    await asyncio.sleep(random.uniform(1.0, 2.0))
    await asyncio.to_thread(ensemble.join_all)


BREAKS = (kill_leader, stop_leader, cut_off_leader, kill_follower)


async def storm(ensemble: TestEnsemble, random: Random) -> None:
    """Break one thing after the other, and mend it, ``PASSES`` times."""
    for _ in range(PASSES):
        for one in BREAKS:
            await one(ensemble, random)
            await asyncio.to_thread(ensemble.start)
            await asyncio.sleep(random.uniform(0.1, 0.5))


def test_writes_are_linearizable_while_servers_are_killed_stopped_and_cut_off(ensemble: TestEnsemble) -> None:
    async def scene() -> Histories:
        histories, access, number = Histories(time.monotonic), place(ensemble), 0
        async with made(access) as store, opened(access, 2) as other:
            breaking = asyncio.create_task(storm(ensemble, Random(7)))
            while not breaking.done() or histories.acknowledged <= LEAST:
                async with asyncio.TaskGroup() as group:
                    for one in (store, other):
                        random = Random(number)
                        group.create_task(
                            torment(one, histories, random, names=NAMES, clients=3, calls=40, first=3 * number)
                        )
                        number += 1
                await asyncio.sleep(0.3)
            await breaking
        return histories

    histories = run_real(scene(), limit_s=LIMIT_S * PASSES)
    lives, uids = zip(*histories.lives, strict=True)
    assert len(set(lives)) == len(set(uids)) == len(histories.lives), "a uid outlived its object, or changed"
    for name, calls in histories.calls.items():
        assert linearizable(calls), f"no order explains the {len(calls)} calls on {name}"


def test_an_observer_sees_no_older_state_and_comes_to_see_the_last_through_every_outage(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access, number = place(ensemble), 0
        async with made(access) as store, opened(access, 2) as watching:
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda _: True)
            breaking = asyncio.create_task(storm(ensemble, Random(11)))
            while not breaking.done():

                async def write(name: str = f"vm-{number % 5}", number: int = number) -> None:
                    found = [one for one in (await store.list(VirtualMachine)).items if one.name == name]
                    if not found:
                        await store.create(vm(name, project=f"p{number}"))
                    elif number % 7 == 6:
                        await store.delete(found[0].ref)
                    else:
                        await store.replace(with_project(found[0], f"p{number}"))

                await certain(write)
                await asyncio.sleep(0.05)
                number += 1
            await breaking
            last: dict[str, VirtualMachine] = {}

            async def look() -> None:
                last.update((one.name, one) for one in (await store.list(VirtualMachine)).items)

            await certain(look)
            await patient(follower, last)
            await follower.close()
            in_order(follower)

    run_real(scene(), limit_s=LIMIT_S * PASSES)


# Clients


def test_a_client_that_stood_still_beyond_its_session_writes_over_nobody(ensemble: TestEnsemble) -> None:
    access = replace(place(ensemble), session_s=1.0)

    async def scene() -> None:
        async with made(access) as store:
            ours = await store.create(vm("vm-0", project="0"))
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.torture.zookeeper_victim", msgspec.json.encode(access).decode()),
                stdout=asyncio.subprocess.PIPE,
            )
            assert program.stdout is not None
            try:
                for _ in range(20):
                    await program.stdout.readline()
                os.kill(program.pid, signal.SIGSTOP)
                await asyncio.sleep(2.0)
                ours = await store.get(VirtualMachine, "vm-0", fresh=True)
                written = int(ours.spec.project) + 1000
                ours = await store.replace(with_project(ours, str(written)))
                os.kill(program.pid, signal.SIGCONT)
                acknowledged = 0
                while acknowledged <= written:
                    acknowledged = int(await program.stdout.readline())
                    assert acknowledged <= written - 1000 or acknowledged > written
                now = await store.get(VirtualMachine, "vm-0", fresh=True)
                assert int(now.spec.project) >= acknowledged
            finally:
                program.kill()
                await program.wait()

    run_real(scene(), limit_s=LIMIT_S)


def test_a_write_whose_answer_is_lost_is_unknown_and_was_applied_once(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = ensemble.new_chroot()
        proxy_of_first = proxied(ensemble.servers[0].client)
        async with made(access) as store, proxy_of_first as proxy, opened(through(access, proxy)) as writing:
            ref = ObjectRef(kind="VirtualMachine", name="vm-0")
            writes: dict[str, Callable[[VirtualMachine], Awaitable[object]]] = {
                "replace": lambda now: writing.replace(with_project(now, "lost")),
                "replace_status": lambda now: writing.replace_status(with_phase(now, "lost")),
                "patch_metadata": lambda _: writing.patch_metadata(ref, labels={"lost": "yes"}),
                "delete": lambda now: writing.delete(ref, uid=now.metadata.uid, version=now.metadata.resource_version),
                "create": lambda _: writing.create(vm("vm-0", project="lost")),
            }
            before = await store.create(vm("vm-0"))
            for name, write in writes.items():
                await writing.list(VirtualMachine)
                if name != "create":
                    assert await writing.get(VirtualMachine, "vm-0", fresh=True) == before
                sent = writing.client.commit

                async def commit(operations: object, sent: Callable = sent) -> object:  # type: ignore[type-arg]
                    proxy.loses_answers = True  # of the transaction itself, not of the reading before it
                    return await sent(operations)

                writing.client.commit = commit  # type: ignore[method-assign, assignment]
                with pytest.raises(Unknown):
                    await write(before)
                writing.client.commit = sent  # type: ignore[method-assign]
                proxy.loses_answers = False
                page = await store.list(VirtualMachine)
                assert (page.items == ()) == (name == "delete"), name
                if page.items:
                    assert page.items[0].metadata.resource_version != before.metadata.resource_version, name
                    assert page.items[0].metadata.generation <= before.metadata.generation + 1, name
                    before = page.items[0]

    run_real(scene(), limit_s=LIMIT_S)


def test_a_connection_that_hangs_is_given_up_and_everything_is_listed_again(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = place(ensemble)
        async with (
            made(access) as store,
            proxied(ensemble.servers[1].client) as proxy,
            opened(through(access, proxy)) as watching,
        ):
            first = await store.create(vm("vm-0"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": first})
            proxy.comes_through.clear()
            later = await store.create(vm("vm-1"))
            await store.delete(first.ref)
            await asyncio.sleep(SESSION_S + 2.0)
            proxy.break_all()
            proxy.comes_through.set()
            await patient(follower, {"vm-1": later})
            assert any(isinstance(one, Reset) for one in follower.seen), "so long a silence was a doubt"
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_a_connection_that_breaks_costs_no_listing(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = ensemble.new_chroot()
        async with (
            made(access) as store,
            proxied(ensemble.servers[2].client) as proxy,
            opened(through(access, proxy)) as watching,
        ):
            wanted = {"vm-0": await store.create(vm("vm-0"))}
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == wanted)
            for number in range(1, 6):
                proxy.break_all()
                wanted[f"vm-{number}"] = await store.create(vm(f"vm-{number}"))
                await patient(follower, wanted)
            assert not any(isinstance(one, Reset) for one in follower.seen)
            in_order(follower)
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_closing_ends_calls_that_are_under_way(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = place(ensemble)
        async with (
            made(access),
            proxied(ensemble.servers[0].client) as proxy,
            opened(through(access, proxy)) as hanging,
        ):
            known = await hanging.create(vm("vm-0"))
            proxy.comes_through.clear()
            reading = asyncio.create_task(hanging.get(VirtualMachine, "vm-0", fresh=True))
            writing = asyncio.create_task(hanging.replace(with_project(known, "q")))
            await asyncio.sleep(0.1)
            async with asyncio.timeout(PATIENCE_S):
                await hanging.close()
            with pytest.raises(Unavailable):
                await reading
            with pytest.raises((Unavailable, Unknown)):
                await writing
            with pytest.raises(Unavailable):
                await hanging.get(VirtualMachine, "vm-0")

    run_real(scene(), limit_s=LIMIT_S)


# What an observer has missed


def test_an_observer_for_which_the_log_does_not_reach_back_lists_again(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = ensemble.new_chroot()
        async with (
            made(access) as store,
            proxied(ensemble.servers[0].client) as proxy,
            opened(through(access, proxy)) as watching,
        ):
            one = await store.create(vm("vm-0"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": one})
            proxy.comes_through.clear()
            for number in range(8):
                one = await store.replace(with_project(one, f"p{number}"))
            log = (await store.get_layout()).log_path(VirtualMachine)
            await trim(store.client, log, 9, 2)
            proxy.break_all()
            proxy.comes_through.set()
            await patient(follower, {"vm-0": one})
            assert any(isinstance(each, Reset) for each in follower.seen)
            in_order(follower)
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_a_log_that_begins_anew_is_listed_again(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = ensemble.new_chroot()
        async with made(access) as store, opened(access, 2) as watching:
            one = await store.create(vm("vm-0"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": one})
            log = (await store.get_layout()).log_path(VirtualMachine)
            await trim(store.client, log, 1, KEPT, renew_at=1)
            assert (await LogReader(store.client, log).find_end()).number == 0
            one = await store.replace(with_project(one, "q"))
            await patient(follower, {"vm-0": one})
            assert any(isinstance(each, Reset) for each in follower.seen)
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_who_follows_one_host_reads_nothing_for_writes_of_others_and_sees_what_comes_and_goes(
    ensemble: TestEnsemble,
) -> None:
    async def scene() -> None:
        access = ensemble.new_chroot()
        async with made(access) as store, opened(access, 2) as watching:
            ours = await store.create(vm("ours", labels={HOST_LABEL: "h1"}))
            other = await store.create(vm("other", labels={HOST_LABEL: "h2"}))
            follower = Follower(watching.observe(VirtualMachine, selector=Selector.from_values(**{HOST_LABEL: "h1"})))
            await follower.until(lambda objects: objects == {"ours": ours})
            before = await reads_at_rest(watching)
            for number in range(20):
                other = await store.replace(with_project(other, f"p{number}"))
            ours = await store.replace(with_project(ours, "q"))
            await follower.until(lambda objects: objects == {"ours": ours})
            assert await reads_at_rest(watching) - before <= 5
            other = await store.replace(with_meta(other, labels={HOST_LABEL: "h1"}))
            await follower.until(lambda objects: objects == {"ours": ours, "other": other})
            await store.replace(with_meta(ours, labels={HOST_LABEL: "h2"}))
            await follower.until(lambda objects: objects == {"other": other})
            path = (await store.get_layout()).object_path(VirtualMachine, "other", other.metadata.uid)
            await store.client.commit([replace_data(path, b"nonsense")])
            await store.delete(other.ref)
            await follower.until(lambda objects: objects == {})
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_old_entries_of_the_log_go(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        async with made(ensemble.new_chroot()) as store:
            one = await store.create(vm("vm-0", labels={"outlive.dev/host": "h1"}))
            for number in range(260):
                one = await store.replace(with_project(one, f"p{number}"))
            layout = await store.get_layout()
            log = layout.log_path(VirtualMachine, "h1")

            async def is_short() -> bool:
                return len((await store.client.list_children((log,)))[0] or []) <= 130

            await until(is_short, "the old entries go")
            everything = (await store.client.list_children((layout.log_path(VirtualMachine),)))[0] or []
            assert len(everything) == 261

    run_real(scene(), limit_s=LIMIT_S)


# Data


def test_an_object_that_somebody_edited_into_nonsense_holds_up_nobody(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = ensemble.new_chroot()
        async with made(access) as store, opened(access, 2) as watching:
            objects = {name: await store.create(vm(name)) for name in ("a", "b")}
            informer = Informer(watching, VirtualMachine, clock=SystemClock(), random=Random(1))
            running = asyncio.create_task(informer.run())
            await informer.wait_synced()
            path = (await store.get_layout()).object_path(VirtualMachine, "a", objects["a"].metadata.uid)
            await store.client.commit([replace_data(path, b"\xff nonsense")])
            changed = await store.replace(with_project(objects["b"], "q"))
            await until(lambda: informer.get("b") == changed, "the other object is seen")
            assert informer.get("a") == objects["a"], "its last good state"
            assert [one.name async for one in list_all(store, VirtualMachine)] == ["b"]
            async with opened(access, 3) as another:
                page = await another.list(VirtualMachine)
                assert [one.ref.name for one in page.malformed] == ["a"]
                await another.delete(ObjectRef(kind="VirtualMachine", name="a"))
                assert (await another.list(VirtualMachine)).malformed == ()
            running.cancel()

    run_real(scene(), limit_s=LIMIT_S)


def test_an_ensemble_whose_data_was_put_back_is_used_again_and_listed_again(ensemble: TestEnsemble) -> None:
    async def scene() -> None:
        access = replace(place(ensemble), session_s=1.0)
        async with made(access) as store, opened(access, 2) as watching:
            kept = await store.create(vm("vm-0"))
            copy = await asyncio.to_thread(ensemble.take_snapshot)
            lost = await store.create(vm("vm-1"))
            changed = await store.replace(with_project(kept, "q"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": changed, "vm-1": lost})
            await asyncio.to_thread(ensemble.go_back, copy)
            await patient(follower, {"vm-0": kept})
            assert any(isinstance(one, Reset) for one in follower.seen)
            await follower.close()
            with pytest.raises(Conflict):
                await store.replace(with_project(changed, "r"))
            await store.create(flavor("later"))

    run_real(scene(), limit_s=LIMIT_S)
