"""A client that names several equal servers goes on with the next one, and sends no write twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.conformance.objects import vm, with_project
from tests.conformance.observers import following
from tests.support.api import TOKENS, Api, api
from tests.support.tcp_proxy import TcpProxy, proxied

from outlive.api import Role
from outlive.base import BadInput, Random, SystemClock, Unavailable, Unknown
from outlive.resources import VirtualMachine
from outlive.store import HttpStore, Reset


@asynccontextmanager
async def two() -> AsyncIterator[tuple[TcpProxy, AsyncExitStack, Api, HttpStore]]:
    """A proxy before the first server, what ends that server, the second one, and a client of both."""
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(api())
        ending = await stack.enter_async_context(AsyncExitStack())
        first = await ending.enter_async_context(api(second.store))
        proxy = await stack.enter_async_context(proxied(int(first.url.rpartition(":")[2])))
        url = f"http://127.0.0.1:{proxy.port},{second.url}"
        store = HttpStore(url, TOKENS[Role.ADMIN], clock=SystemClock(), random=Random(1))
        stack.push_async_callback(store.close)
        yield proxy, ending, second, store


async def test_a_killed_server_is_replaced_by_the_next_for_calls_and_for_watches() -> None:
    async with two() as (proxy, ending, second, store):
        made = await store.create(vm())
        seen = await following(store, VirtualMachine)
        assert proxy.connections > 0
        proxy.target = 1
        proxy.break_all()
        await ending.aclose()
        written = await store.replace(with_project(made, "while-one-is-away"))
        await seen.until(lambda vms: vms[made.name] == written, why="what was written by the other one")
        assert any(isinstance(change, Reset) for change in seen.seen)
        await seen.close()
        assert await second.store.get(VirtualMachine, made.name) == written


async def test_a_write_whose_answer_was_lost_is_sent_to_nobody_else() -> None:
    async with two() as (proxy, _, _second, store):
        made = await store.create(vm())
        proxy.comes_through.clear()
        writing = asyncio.create_task(store.replace(with_project(made, "a")))
        await asyncio.sleep(0.1)  # in which it has reached the proxy, or the test claims less
        proxy.break_all()
        with pytest.raises(Unknown):
            await writing
        found = await store.get(VirtualMachine, made.name, fresh=True)
        assert found == made, "it never arrived, and was not sent to the other one"


async def test_a_call_that_is_given_up_because_its_server_hangs_leaves_that_server() -> None:
    async with two() as (proxy, _, _second, store):
        made = await store.create(vm())
        proxy.comes_through.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.2):
                await store.replace(with_project(made, "a"))
        await store.replace(with_project(made, "b"))


async def test_a_server_that_cannot_be_reached_is_left_and_when_none_can_the_last_error_is_told() -> None:
    async with api() as served:
        url = f"http://127.0.0.1:1,{served.url}"
        store = HttpStore(url, TOKENS[Role.ADMIN], clock=SystemClock(), random=Random(1))
        await store.create(vm())
        await store.close()
    lost = HttpStore("http://127.0.0.1:1,http://127.0.0.1:2", "t" * 20, clock=SystemClock(), random=Random(1))
    with pytest.raises(Unavailable):
        await lost.get(VirtualMachine, "a")
    await lost.close()


def test_addresses_that_are_none_or_mixed_are_refused() -> None:
    many = ",".join(f"http://127.0.0.1:{port}" for port in range(1, 10))
    for wrong in ("http://127.0.0.1:1,", "http://127.0.0.1:1,https://127.0.0.1:2", many):
        with pytest.raises(BadInput):
            HttpStore(wrong, "t" * 20, clock=SystemClock(), random=Random(1))
