"""What a store knows of the storage schema that counts, and what it does while that changes.

Each write carries the condition that this is still so, and each read looks at it once more after it has read: so nobody
writes to a path that was moved, and nobody takes what was removed there for a deletion (docs/how-to/upgrades.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from kazoo.security import ACL

from outlive.base import Clock, OutliveError, Unavailable, get_logger, set_within
from outlive.store.schema.documents import SchemaDocument, load_document
from outlive.store.schema.state import SchemaState, decode_state, encode_state
from outlive.store.zookeeper.client import Found, ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH, TreeLayout
from outlive.store.zookeeper.requests import Operation, TransactionRefused, check, replace_data

WAIT_S: Final = 90.0
"""How long one write waits for the end of copying."""
LOOK_S: Final = 20.0
"""How often it is looked without being woken."""
AGAIN_S: Final = 0.5
"""The pause before it is looked again after an error."""

TRIES: Final = 8
"""Times that work is begun anew because another schema counts meanwhile."""

T = TypeVar("T")

_log = get_logger("store.zookeeper")


class LayoutChanged(Exception):
    """Another schema counts by now: what was read or written went by the one before."""


class SchemaView:
    """See the module. It reads the schema when it is first needed, and follows it until ``close``."""

    def __init__(
        self, client: ZooKeeperClient, *, clock: Clock, document: Callable[[int], SchemaDocument] = load_document
    ) -> None:
        self._client = client
        self._clock = clock
        self.document = document
        """The documents that this process knows, by their versions."""
        self.path = SCHEMA_PATH
        """What a reader reads after everything else, for ``confirm``."""
        self._state: SchemaState | None = None
        self._znode = -1
        """The version of the znode."""
        self._since = 0.0
        """When that was first seen (monotonic)."""
        self._layout: TreeLayout | None = None
        self.first = 0
        """The schema that counted when it was first read; 0: not read yet."""
        self._following: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.moved = asyncio.Event()
        """Set when another schema counts for good than the one with which this began: its process restarts."""

    @property
    def version(self) -> int:
        """The schema that counts; 0: not read yet."""
        return 0 if self._state is None else self._state.version

    @property
    def is_moving(self) -> bool:
        """Whether a change of the tree was under way when it was last read."""
        return self._state is not None and self._state.moving is not None

    @property
    def condition(self) -> Operation:
        """For a transaction: that nothing has changed since it was read."""
        return check(SCHEMA_PATH, self._znode)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it whenever another schema counts; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def get_layout(self) -> TreeLayout:
        """Where everything lies by the schema that counts."""
        if self._layout is None:
            await self.read()
            if self._following is None:
                self._following = asyncio.create_task(self._follow(), name="schema of the store")
        assert self._layout is not None
        return self._layout

    async def read(self) -> None:
        """Read it fresh."""
        self.take(await self._client.get(SCHEMA_PATH, fresh=True))

    def take(self, found: Found | None) -> None:
        """Take over what was read; an older state than the last one changes nothing."""
        if found is None:
            remedy = "correct chroot in the access file, or make the store: outlive zookeeper init"
            raise Unavailable(f"{self._client.access.place} holds no store of Outlive", remedy=remedy)
        raw, stat = found
        if stat.version <= self._znode and self._state is not None:
            return
        state = decode_state(raw, SCHEMA_PATH)
        before = self.version
        if state.version != before:
            self._layout = TreeLayout(self.document(state.version))
            self.first = self.first or state.version
        self._state, self._znode, self._since = state, stat.version, self._clock.monotonic()
        if before not in (0, state.version):
            _log.info("store.zookeeper.schema", version=state.version, before=before)
        if state.moving is None and state.version != self.first:
            self.moved.set()
        if before != state.version:
            for listener in list(self._listeners):
                listener()

    def confirm(self, layout: TreeLayout, found: Found | None) -> None:
        """``LayoutChanged`` unless the schema counts by which something was read before ``found`` was."""
        self.take(found)
        self.check_layout(layout)

    def check_layout(self, layout: TreeLayout) -> None:
        """``LayoutChanged`` unless that is what counts, as far as is known."""
        if self._layout is not layout:
            raise LayoutChanged

    async def retry_on_change(self, work: Callable[[], Awaitable[T]]) -> T:
        """What it returns; it begins anew where another schema counts meanwhile."""
        for _ in range(TRIES):
            with suppress(LayoutChanged):
                return await work()
        raise Unavailable("the storage schema changes all the time", remedy="see outlive schema status")

    async def send(self, operations: Sequence[Operation], paths: Sequence[str], layout: TreeLayout) -> list[Any]:
        """The answers of a transaction that is refused where anything has changed of the schema since it was read.

        ``LayoutChanged`` where another one counts, so that nothing was written; it waits while these paths are copied.
        """
        while True:
            await self.wait_writable(paths, layout)
            try:
                return (await self._client.commit([self.condition, *operations]))[1:]
            except TransactionRefused as refused:
                if refused.index:
                    raise TransactionRefused(refused.index - 1, refused.error) from None
            await self.read()

    async def ensure(self, paths: Sequence[str], layout: TreeLayout, acl: Sequence[ACL]) -> None:
        """Make these znodes where they are missing, unless the schema has changed: then the next try says so."""
        with suppress(TransactionRefused):
            for path in paths:
                self.check_layout(layout)
                await self._client.ensure(path, acl, condition=self.condition)

    async def wait_writable(self, paths: Sequence[str], layout: TreeLayout) -> None:
        """Return when these paths of that layout may be written; ``Unavailable``: still not. ``LayoutChanged`` where
        another one counts: after it returns nothing changes before the caller waits for something.

        Where the process that copies is overdue, this one gives the work up in its place, as hosts have to renew their
        memberships.
        """
        until = 0.0
        while self._state is not None and any(map(self._state.is_frozen, paths)):
            until = until or self._clock.monotonic() + WAIT_S
            if self._clock.monotonic() > until:
                raise Unavailable("the storage schema is being changed", remedy="see outlive schema status")
            await self._give_up_if_overdue(self._state)
            changed = asyncio.Event()
            stat = await self._client.find_stat(SCHEMA_PATH, self._client.make_waker(changed))
            if stat is not None and stat.version == self._znode:
                await set_within(changed, AGAIN_S)
            await self.read()
        self.check_layout(layout)

    async def _give_up_if_overdue(self, state: SchemaState) -> None:
        move = state.moving
        if move is None or self._clock.monotonic() - self._since < move.patience_s:
            return
        given_up = msgspec.structs.replace(state, moving=move.undo())
        try:
            await self._client.commit([replace_data(SCHEMA_PATH, encode_state(given_up), self._znode)])
            _log.warning("store.zookeeper.schema_given_up", to=move.to, by=move.by)
        except TransactionRefused as refused:
            _log.info("store.zookeeper.schema_not_given_up", to=move.to, why=str(refused))

    async def _follow(self) -> None:
        last = ""
        while True:
            woken = asyncio.Event()
            stop = self._client.listen(woken.set)
            try:
                stat = await self._client.find_stat(SCHEMA_PATH, self._client.make_waker(woken))
                if stat is None or stat.version != self._znode:
                    await self.read()
                    continue
                last = ""
                await set_within(woken, LOOK_S)
            except OutliveError as error:
                if str(error) != last:
                    last = str(error)
                    _log.warning("store.zookeeper.schema_not_read", why=last)
                await self._clock.sleep(AGAIN_S)
            finally:
                stop()

    async def close(self) -> None:
        """Follow it no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
