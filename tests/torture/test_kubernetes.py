"""The store on a real API server, while server and etcd are killed and stopped: nothing is lost or goes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from msgspec.structs import replace
from tests.conformance.claims import until
from tests.conformance.objects import flavor, vm, with_phase, with_project
from tests.conformance.observers import Follower
from tests.support.api_server import ApiRefusal, ApiServer
from tests.support.loops import run_real
from tests.support.tcp_proxy import TcpProxy, proxied
from tests.torture.clients import Histories, torment
from tests.torture.linearizability import linearizable

from outlive.base import OutliveError, Random, SystemClock, Unknown
from outlive.resources import ObjectRef, VirtualMachine
from outlive.runtime import Informer
from outlive.store import Reset, Store, Upsert, list_all
from outlive.store.kubernetes import ClusterAccess, KubernetesStore

pytestmark = pytest.mark.component("kubernetes")
NAMES = ("a", "b", "c", "d")
LIMIT_S = 150.0
ROUNDS = 6
LEAST = 40
"""So many writes are acknowledged at least, or the history says little."""
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    one = ApiServer(Path(mkdtemp(prefix="outlive-torture-", dir=MEMORY if MEMORY.is_dir() else None)))
    try:
        one.start()
        one.make_kinds()
        yield one
    finally:
        one.stop()


@asynccontextmanager
async def opened(server: ApiServer, seed: int = 1) -> AsyncIterator[Store]:
    store = KubernetesStore(server.access(), clock=SystemClock(), random=Random(seed))
    try:
        yield store
    finally:
        await store.close()


async def storm(server: ApiServer, random: Random, over: asyncio.Event) -> None:
    """Kill or stop the API server or etcd, again and again, and have them back."""
    while not over.is_set():
        await asyncio.sleep(random.uniform(0.2, 1.5))
        process = random.choice((server.server, server.etcd))
        assert process is not None
        if random.random() < 0.5:
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(random.uniform(0.1, 2.0))
            os.kill(process.pid, signal.SIGCONT)
        else:
            process.kill()
            process.wait()
            await asyncio.to_thread(server.start)


async def certain(call: object) -> None:
    """Repeat a call until it has an answer."""
    while True:
        try:
            await call()  # type: ignore[operator]
        except OutliveError:
            await asyncio.sleep(0.2)
        else:
            return


def test_writes_are_linearizable_while_server_and_etcd_are_killed_and_stopped(server: ApiServer) -> None:
    server.empty()

    async def scene() -> Histories:
        histories, over = Histories(time.monotonic), asyncio.Event()
        async with opened(server) as store:
            breaking = asyncio.create_task(storm(server, Random(7), over))
            number = 0
            while number < ROUNDS or histories.acknowledged <= LEAST:  # the server may be away for most of the time
                # what goes with its last finalizer is no compare-and-swap there: docs/reference/store.md#kubernetes
                how = {"clients": 4, "calls": 40, "first": 4 * number}
                await torment(store, histories, Random(number), names=NAMES, finalizers=False, **how)
                await asyncio.sleep(0.5)
                number += 1
            over.set()
            await breaking
        return histories

    histories = run_real(scene(), limit_s=LIMIT_S)
    lives, uids = zip(*histories.lives, strict=True)
    assert len(set(lives)) == len(set(uids)) == len(histories.lives), "a uid outlived its object, or changed"
    for name, calls in histories.calls.items():
        assert linearizable(calls), f"no order explains the {len(calls)} calls on {name}"


def test_an_observer_sees_no_older_state_and_comes_to_see_the_last_through_every_outage(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        over = asyncio.Event()
        async with opened(server) as store, opened(server, 2) as watching:
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda _: True)
            breaking = asyncio.create_task(storm(server, Random(11), over))
            for number in range(30):
                name = f"vm-{number % 5}"

                async def write(name: str = name, number: int = number) -> None:
                    found = [one for one in (await store.list(VirtualMachine)).items if one.name == name]
                    if not found:
                        await store.create(vm(name, project=f"p{number}"))
                    elif number % 7 == 6:
                        await store.delete(found[0].ref)
                    else:
                        await store.replace(with_project(found[0], f"p{number}"))

                await certain(write)
                await asyncio.sleep(0.1)
            over.set()
            await breaking
            last: dict[str, VirtualMachine] = {}

            async def look() -> None:
                last.update((one.name, one) for one in (await store.list(VirtualMachine)).items)

            await certain(look)
            await patient(follower, last)
            await follower.close()
            in_order(follower)

    run_real(scene(), limit_s=LIMIT_S)


async def patient(follower: Follower[VirtualMachine], wanted: dict[str, VirtualMachine]) -> None:
    """Follow until it believes exactly this; the longest pause between two connections is 30 s."""
    async with asyncio.timeout(75.0):
        while not (follower.synced and follower.objects == wanted):
            follower.take(await anext(follower.changes))


def in_order(follower: Follower[VirtualMachine]) -> None:
    """Versions are opaque to the product; here they are etcd's revisions."""
    newest: dict[str, int] = {}
    for seen in follower.seen:
        if isinstance(seen, Upsert):
            version = int(seen.object.metadata.resource_version)
            assert version >= newest.get(seen.object.name, 0), f"{seen.object.name} went back to {version}"
            newest[seen.object.name] = version


def test_a_watch_that_breaks_goes_on_where_it_was_without_a_listing(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, opened(server, 2) as watching:
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda _: True)
            first = await store.create(vm("vm-0"))
            await follower.until(lambda objects: objects == {"vm-0": first})
            session = watching._session  # type: ignore[attr-defined]
            for connection in list(session._session.connector._acquired):
                connection.transport.abort()
            made = await store.create(vm("vm-1"))
            await follower.until(lambda objects: objects == {"vm-0": first, "vm-1": made})
            assert not any(isinstance(one, Reset) for one in follower.seen)
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_a_watch_whose_version_has_expired_lists_again(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, opened(server, 2) as watching:
            made = await store.create(vm("vm-1"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-1": made})
            assert server.server is not None
            server.server.kill()
            server.server.wait()
            await asyncio.to_thread(server.start)
            await certain(lambda: store.create(flavor("later")))
            changed = with_project(made, "q")
            await certain(lambda: store.replace(changed))
            now = await store.get(VirtualMachine, "vm-1", fresh=True)
            await patient(follower, {"vm-1": now})
            await follower.close()
            assert any(isinstance(one, Reset) for one in follower.seen), "the version had expired"
            in_order(follower)

    run_real(scene(), limit_s=LIMIT_S)


def test_a_server_that_stands_still_for_a_while_costs_no_change(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, opened(server, 2) as watching:
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda _: True)
            assert server.server is not None
            os.kill(server.server.pid, signal.SIGSTOP)
            writing = asyncio.create_task(store.create(vm("vm-1")))
            await asyncio.sleep(3.0)
            os.kill(server.server.pid, signal.SIGCONT)
            made = await writing
            await follower.until(lambda objects: objects == {"vm-1": made})
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


# Faults of other clients' watches, each by name


@asynccontextmanager
async def behind(proxy: TcpProxy, server: ApiServer, silence_s: float = 100.0) -> AsyncIterator[Store]:
    access = ClusterAccess(proxy.url, authority=server.authority, token=server.token)
    store = KubernetesStore(access, clock=SystemClock(), random=Random(3), silence_s=silence_s)
    try:
        yield store
    finally:
        await store.close()


def test_a_watch_that_the_server_ends_without_a_word_goes_on(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, proxied(server.port) as proxy, behind(proxy, server) as watching:
            made = await store.create(vm("vm-0"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": made})
            wanted = {"vm-0": made}
            for number in range(1, 6):
                proxy.break_all()
                wanted[f"vm-{number}"] = await store.create(vm(f"vm-{number}"))
                await patient(follower, wanted)
            in_order(follower)
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_no_event_is_lost_or_comes_twice_where_a_watch_goes_on(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, proxied(server.port) as proxy, behind(proxy, server) as watching:
            made = await store.create(vm("vm-0"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": made})
            wanted = [made.metadata.resource_version]
            made = await store.replace(with_project(made, "first"))  # the first that the watch shows: it has begun
            wanted.append(made.metadata.resource_version)
            await follower.until(lambda objects, made=made: objects == {"vm-0": made})
            for number in range(40):
                made = await store.replace(with_project(made, f"p{number}"))
                wanted.append(made.metadata.resource_version)
                if number % 9 == 8:  # in the middle of whatever comes just then
                    proxy.break_all()
                    await follower.until(lambda objects, made=made: objects == {"vm-0": made})
            await follower.until(lambda objects: objects == {"vm-0": made})
            await follower.close()
            assert not any(isinstance(one, Reset) for one in follower.seen)
            shown = [one.object.metadata.resource_version for one in follower.seen if isinstance(one, Upsert)]
            assert shown == wanted

    run_real(scene(), limit_s=LIMIT_S)


def test_a_consumer_that_is_slow_comes_to_see_the_last_state_of_everything(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, opened(server, 2) as watching:
            large = "x" * 20_000
            made = [await store.create(vm(f"vm-{number}")) for number in range(8)]
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: len(objects) == len(made))

            async def rewrite(place: int) -> None:
                for turn in range(180):
                    one = made[place]
                    meta = replace(one.metadata, annotations={"outlive.dev/text": f"{turn} {large}"})
                    made[place] = await store.replace(replace(one, metadata=meta))

            await asyncio.wait([asyncio.create_task(rewrite(place)) for place in range(len(made))])
            await store.delete(made[0].ref)
            await patient(follower, {one.name: one for one in made[1:]})
            await follower.close()
            in_order(follower)

    run_real(scene(), limit_s=LIMIT_S)


def test_a_write_whose_answer_is_lost_is_unknown_and_was_applied_once(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, proxied(server.port) as proxy, behind(proxy, server) as writing:
            ref = ObjectRef(kind="VirtualMachine", name="vm-0")
            writes: dict[str, Callable[[VirtualMachine], Awaitable[object]]] = {
                "replace": lambda now: writing.replace(with_project(now, "lost")),
                "replace_status": lambda now: writing.replace_status(with_phase(now, "lost")),
                "patch_metadata": lambda _: writing.patch_metadata(ref, labels={"lost": "yes"}),
                "delete": lambda now: writing.delete(ref, uid=now.metadata.uid),
                "create": lambda _: writing.create(vm("vm-0", project="lost")),
            }
            before = await store.create(vm("vm-0"))
            for name, write in writes.items():
                await writing.list(VirtualMachine)  # a connection is open: its own answers are not what is lost
                proxy.loses_answers = True
                with pytest.raises(Unknown):
                    await write(before)
                proxy.loses_answers = False
                page = await store.list(VirtualMachine)
                assert (page.items == ()) == (name == "delete"), name
                if page.items:
                    assert page.items[0].metadata.resource_version != before.metadata.resource_version, name
                    assert page.items[0].metadata.generation <= before.metadata.generation + 1, name
                    before = page.items[0]

    run_real(scene(), limit_s=LIMIT_S)


def test_a_connection_that_hangs_is_given_up_and_everything_is_listed_again(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, proxied(server.port) as proxy, behind(proxy, server, 3.0) as watching:
            made = await store.create(vm("vm-0"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": made})
            proxy.comes_through.clear()
            later = await store.create(vm("vm-1"))
            await store.delete(made.ref)
            await asyncio.sleep(4.0)
            proxy.comes_through.set()
            await patient(follower, {"vm-1": later})
            assert any(isinstance(one, Reset) for one in follower.seen), "the silence was a doubt"
            await follower.close()

    run_real(scene(), limit_s=LIMIT_S)


def test_a_listing_from_a_server_that_lags_behind_goes_not_back_in_time(server: ApiServer) -> None:
    server.empty()
    other = server.twin()
    other.start()

    async def scene() -> None:
        async with opened(server) as store, proxied(server.port) as proxy, behind(proxy, server) as watching:
            made = await store.create(vm("vm-0"))
            follower = Follower(watching.observe(VirtualMachine))
            await follower.until(lambda objects: objects == {"vm-0": made})
            assert other.server is not None
            os.kill(other.server.pid, signal.SIGSTOP)  # its cache falls behind
            for number in range(20):
                made = await store.replace(with_project(made, f"p{number}"))
            await follower.until(lambda objects: objects == {"vm-0": made})
            proxy.target = other.port
            proxy.break_all()
            os.kill(other.server.pid, signal.SIGCONT)
            changed = await store.replace(with_project(made, "last"))
            await patient(follower, {"vm-0": changed})
            in_order(follower)
            await follower.close()

    try:
        run_real(scene(), limit_s=LIMIT_S)
    finally:
        other.stop_server()


def test_an_object_that_somebody_edited_into_nonsense_holds_up_nobody(server: ApiServer) -> None:
    server.empty()

    async def scene() -> None:
        async with opened(server) as store, opened(server, 2) as watching:
            made = {name: await store.create(vm(name)) for name in ("a", "b")}
            informer = Informer(watching, VirtualMachine, clock=SystemClock(), random=Random(1))
            running = asyncio.create_task(informer.run())
            await informer.wait_synced()
            path = "/apis/outlive.dev/v1alpha1/virtualmachines/a"
            nonsense = {"spec": {"resources": {"cpu": "9e99"}}}
            await asyncio.to_thread(server.call, "PATCH", path, nonsense, "application/merge-patch+json")
            changed = await store.replace(with_project(made["b"], "q"))
            await until(lambda: informer.get("b") == changed, "the other object is seen")
            assert informer.get("a") == made["a"], "its last good state"
            assert "cpu" in informer.malformed["a"]
            assert [one.name async for one in list_all(store, VirtualMachine)] == ["b"]
            out_of_range = {"spec": {"migrationMultifd": 999}}
            with pytest.raises(ApiRefusal) as refused:
                await asyncio.to_thread(server.call, "PATCH", path, out_of_range, "application/merge-patch+json")
            assert refused.value.code == 422, "the schema has every limit that decoding has"
            running.cancel()

    run_real(scene(), limit_s=LIMIT_S)
