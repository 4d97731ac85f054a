"""Tokens of hosts over HTTP: what joins, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outlive.api import digest_of
from outlive.base import Forbidden, Random, SystemClock
from outlive.resources import MemberRecord, Membership, ObjectMeta, Resource, Token
from outlive.store import HttpStore
from tests.support.api import Api, api


def member(name: str, **record: Any) -> Membership:
    """A host as its daemon writes it."""
    return Membership(metadata=ObjectMeta(name=name), record=MemberRecord(machine_id="m", boot_id="b", **record))


async def refused(work: Coroutine[Any, Any, Any]) -> str:
    """What the server says to work that the token does not cover, in one line."""
    with pytest.raises(Forbidden) as caught:
        await work
    assert "\n" not in str(caught.value)
    return caught.value.message


@asynccontextmanager
async def joining(**token: Any) -> AsyncIterator[tuple[Api, Callable[..., Coroutine[Any, Any, tuple[int, Any]]]]]:
    """A server with one join token, and what asks it to let a host join."""
    async with api(joins=True) as served:
        admin = served.client()
        await admin.create(
            Token(metadata=ObjectMeta(name="join-1"), role="join", digest=digest_of(b"one-time-token"), **token)
        )
        await admin.close()

        async def ask(host: str, machine: str = "a" * 32, secret: str = "one-time-token") -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {secret}"}
            wish = {"host": host, "machineId": machine}
            status, body, _ = await served.call("POST", "/join", role=None, headers=headers, json=wish)
            return status, body

        yield served, ask


async def of(served: Api, token: str, kind: type[Resource], name: str) -> Resource:
    """The object as the holder of the token reads it."""
    store = HttpStore(served.url, token, clock=SystemClock(), random=Random(1))
    try:
        return await store.get(kind, name, fresh=True)
    finally:
        await store.close()
