"""Locks in the ensemble: many readers or one writer, first come, first served.

A lock is an ephemeral numbered znode: it goes with the session of its holder. So it keeps two processes from doing the
same work, and nothing that must be safe rests on it: its holder checks its own writes (``tree_move``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from kazoo import exceptions as zk

from outlive.base import Clock, OutliveError, Unavailable, Unknown, get_logger, set_within
from outlive.store.schema.lock_tries import (
    LockAnswer,
    LockInput,
    LockOutcome,
    LockResult,
    count_tries,
    retry_pause_s,
)
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH, TreeLayout
from outlive.store.zookeeper.requests import TransactionRefused

if TYPE_CHECKING:
    from outlive.store.zookeeper.schema_view import SchemaView

READER: Final = "-r-"
WRITER: Final = "-w-"
REST_S: Final = 30.0
"""How long to wait for the end of a change of the storage schema."""
_DIGITS: Final = 10
_log = get_logger("store.zookeeper")


class StoreLock:
    """One lock that one task wants. ``owner`` is unique among all that want one. Not to be used twice at once."""

    def __init__(self, client: ZooKeeperClient, path: str, *, owner: str, shared: bool, clock: Clock) -> None:
        self._client = client
        self._path = path
        self._prefix = owner.replace("/", "_") + (READER if shared else WRITER)
        self._shared = shared
        self._clock = clock

    async def acquire(self, limit_s: float) -> LockResult:
        """Wait for the lock, up to ``limit_s`` at each try; a lost connection is tried again (``lock.acquire``)."""
        outcomes: list[LockOutcome] = []
        while True:
            outcomes.append(await self._try_once(limit_s))
            pause_s = retry_pause_s(outcomes)
            if pause_s is None:
                result = count_tries(LockInput(outcomes=tuple(outcomes)))
                if result.result is not LockAnswer.ACQUIRED:
                    await self.release()
                return result
            await self._clock.sleep(pause_s)

    async def release(self) -> None:
        """Give the lock back; nothing happens where it was not acquired. The end of the session does it as well."""
        try:
            mine = [name for name in await self._list_contenders() if name.startswith(self._prefix)]
            if mine:
                await self._client.delete_many([f"{self._path}/{one}" for one in mine])
        except OutliveError as error:
            _log.info("store.zookeeper.lock_not_released", path=self._path, why=str(error))

    async def _try_once(self, limit_s: float) -> LockOutcome:
        until = self._clock.monotonic() + limit_s
        try:
            while True:
                before = await self._find_predecessor()
                if before is None:
                    return LockOutcome.OK
                left_s = until - self._clock.monotonic()
                if left_s <= 0.0:
                    return LockOutcome.TIMEOUT
                gone = asyncio.Event()
                watched = f"{self._path}/{before}"
                if await self._client.find_stat(watched, self._client.make_waker(gone)) is not None:
                    await set_within(gone, left_s)
        except (Unavailable, Unknown):
            return LockOutcome.CONNECTION_ERROR
        except TransactionRefused as refused:
            if isinstance(refused.error, zk.NoNodeError):
                return LockOutcome.NO_NODE
            raise self._client.error_of(refused.error, writing=True) from None

    async def _find_predecessor(self) -> str | None:
        """The last one that has to go before this is its turn; ``None``: it is."""
        names = await self._list_contenders()
        mine = [name for name in names if name.startswith(self._prefix)]
        if not mine:
            path = f"{self._path}/{self._prefix}"
            await self._client.commit(
                [lambda transaction: transaction.create(path, b"", ephemeral=True, sequence=True)]
            )
            names = await self._list_contenders()
            mine = [name for name in names if name.startswith(self._prefix)]
            if not mine:
                raise Unavailable("the session was lost while it waited for a lock", remedy="try again")
        ahead = names[: names.index(mine[0])]
        counted = [name for name in ahead if not self._shared or WRITER in name]
        return counted[-1] if counted else None

    async def _list_contenders(self) -> list[str]:
        """Of all that want the lock, in the order in which they came."""
        found = (await self._client.list_children((self._path,), fresh=True))[0] or []
        return sorted(found, key=lambda name: name[-_DIGITS:])


@asynccontextmanager
async def hold_schema(client: ZooKeeperClient, schema: SchemaView, *, clock: Clock) -> AsyncIterator[TreeLayout]:
    """Keep everybody from changing the storage schema meanwhile; where everything lies. ``Unavailable``: it is being
    changed."""
    changing = Unavailable(
        "the storage schema is being changed", remedy="try again when outlive schema status says that it is over"
    )
    path = (await schema.get_layout()).base_path("schema.locks")
    await client.ensure(path, await client.get_acl(SCHEMA_PATH))
    lock = StoreLock(client, path, owner=f"rest-{id(client)}-{clock.now()}", shared=True, clock=clock)
    if (await lock.acquire(REST_S)).result is not LockAnswer.ACQUIRED:
        raise changing
    try:
        await schema.read()
        if schema.is_moving:
            raise changing
        yield await schema.get_layout()
    finally:
        await lock.release()


async def is_locked(client: ZooKeeperClient, path: str) -> bool:
    """Whether anybody holds the lock as a writer, or waits for it."""
    found = (await client.list_children((path,), fresh=True))[0] or []
    return any(WRITER in name for name in found)
