"""A connection to an ensemble: kazoo in threads of its own, for one event loop.

Answers come in batches: what is asked together is sent together, and wakes the loop once. Every call has a deadline.
What was certainly not sent, and a read whose answer was lost, is ``Unavailable``; a write whose answer was lost is
``Unknown``. Nothing is ever sent twice.

A session that cannot be continued is replaced by a new one. ``session`` counts them: a new one may be served by a
server that lags behind what the last one had seen, so that a reader begins with ``sync_reads`` again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from kazoo import exceptions as zk
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from outlive.base import Forbidden, Invalid, OutliveError, Unavailable, Unknown, deadline, get_logger
from outlive.store.zookeeper.access import ZooKeeperAccess, certificate_trouble
from outlive.store.zookeeper.loop_kazoo import AnswerBatch, LoopHandler, LoopKazoo, post, stop_apart
from outlive.store.zookeeper.permissions import is_hidden
from outlive.store.zookeeper.requests import (
    Begin,
    Operation,
    TransactionRefused,
    create,
    raise_if_refused,
    remove,
    request_acl,
    request_check,
    request_children,
    request_delete,
    request_exists,
    request_get,
    request_get_acl,
    request_transaction,
)

ANSWER_S: Final = 10.0
"""How long an answer may take, and a connection before it."""
RENEW_SESSIONS: Final = 2.0
"""After so many times its length without a connection a session is given up: an ensemble whose data was put back to an
earlier time refuses all sessions that have seen more."""
CLOSE_S: Final = 2.0
"""How long closing waits for the threads; they end by themselves."""
WINDOW: Final = 256
"""Reads that are sent together."""
RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "max_delay": 0.25, "max_jitter": 0.3}
"""How kazoo looks for a server again: at once, then some four times a second, since an election takes less than one."""

Found = tuple[bytes, ZnodeStat]
"""Data and state of a znode."""

_log = get_logger("store.zookeeper")
_kazoo_log = logging.getLogger("outlive.store.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)
_NOT_APPLIED: Final = (
    *(zk.NoNodeError, zk.NodeExistsError, zk.BadVersionError, zk.NotEmptyError, zk.InvalidACLError),
    *(zk.NotReadOnlyCallError, zk.NoChildrenForEphemeralsError, zk.UnimplementedError),
)
"""Answers by which the server says that it has written nothing."""
_LOST: Final = (zk.ConnectionLoss, zk.SessionExpiredError, zk.ConnectionClosedError, zk.OperationTimeoutError)


class ZooKeeperClient:
    """See the module. It connects with the first call."""

    def __init__(self, access: ZooKeeperAccess, *, answer_s: float = ANSWER_S) -> None:
        self.access = access
        self.session = 0
        """How many sessions there were."""
        self.reads = 0
        """Znodes that were read, with those that were not there."""
        self._answer_s = answer_s
        self._kazoo: LoopKazoo | None = None
        self._handler = LoopHandler()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected = asyncio.Event()
        self._down: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a server answers now."""
        return self._connected.is_set()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it whenever the connection is lost or back; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Reads

    async def get_many(self, paths: Sequence[str], *, fresh: bool = False) -> list[Found | None]:
        """Data and state of each; ``None`` where it is not there. ``fresh``: not older than this call."""
        found: list[Found | None] = []
        for start in range(0, len(paths), WINDOW):
            found += await self._read(
                [request_get(path) for path in paths[start : start + WINDOW]], fresh=fresh and not start
            )
        return found

    async def get(self, path: str, *, fresh: bool = False) -> Found | None:
        """Data and state; ``None`` where it is not there."""
        return (await self.get_many((path,), fresh=fresh))[0]

    async def list_children(self, paths: Sequence[str], *, fresh: bool = False) -> list[list[str] | None]:
        """The names of the children of each; ``None`` where it is not there."""
        return await self._read([request_children(path) for path in paths], fresh=fresh)

    async def find_stat(
        self, path: str, watch: Callable[[Any], None] | None = None, *, fresh: bool = False
    ) -> ZnodeStat | None:
        """The state of a znode; ``None`` where it is not there. ``watch`` is called by another thread, once, when that
        changes or the connection is lost."""
        found: ZnodeStat | None = (await self._read([request_exists(path, watch)], fresh=fresh))[0]
        return found

    async def read_acls(self, paths: Sequence[str]) -> list[list[ACL]]:
        """Who may do what with each znode, to be given to others; empty where it is not there. ``Forbidden`` where
        servers do not show that to this user."""
        found: list[Any] = []
        for start in range(0, len(paths), WINDOW):
            found += await self._read([request_get_acl(path) for path in paths[start : start + WINDOW]], fresh=False)
        acls = [list(one[0]) if one is not None else [] for one in found]
        for path, acl in zip(paths, acls, strict=True):
            if is_hidden(acl):
                remedy = "use the access file of the controllers: docs/how-to/zookeeper.md#acls"
                raise Forbidden(f"user {self.access.user!r} is not shown the ACL of {path}", remedy=remedy)
        return acls

    async def get_acl(self, path: str) -> list[ACL]:
        """The same of one znode."""
        return (await self.read_acls((path,)))[0]

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop call it; from any thread."""
        if self._loop is not None:
            post(self._loop, call)

    def make_waker(self, event: asyncio.Event) -> Callable[[Any], None]:
        """A watch that sets the event."""
        return lambda _: self.post(event.set)

    async def sync_reads(self) -> None:
        """Have the server know everything that was acknowledged to anybody before."""
        await self._read([], fresh=True)

    async def _read(self, begins: Sequence[Begin], *, fresh: bool) -> list[Any]:
        """A transaction that only checks goes through the quorum, which ``sync`` does not: a leader that was replaced
        and does not know it answers a ``sync``. Requests of one session are answered in their order, so what is sent
        after it is read after it."""
        self.reads += len(begins)
        session = self.session
        answers = await self._ask([request_check, *begins] if fresh else begins, writing=False)
        if fresh:
            self._check_barrier(answers.pop(0))
            if session and session != self.session:
                raise Unavailable("the session was lost while it read", remedy="try again")
        for number, answer in enumerate(answers):
            if isinstance(answer, zk.NoNodeError):
                answers[number] = None
            elif isinstance(answer, Exception):
                raise self.error_of(answer, writing=False)
        return answers

    def _check_barrier(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise self.error_of(answer, writing=False)
        try:
            raise_if_refused(answer)
        except TransactionRefused as refused:
            if isinstance(refused.error, zk.NoNodeError):
                remedy = "correct chroot in the access file, or make the store: outlive zookeeper init"
                raise Unavailable(f"{self.access.place} is not there", remedy=remedy) from None
            raise self.error_of(refused.error, writing=False) from None

    # Writes

    async def commit(self, operations: Sequence[Operation]) -> list[Any]:
        """The answers of all operations of one transaction; ``TransactionRefused`` if one of them is refused."""
        answer = (await self._ask([request_transaction(operations)], writing=True))[0]
        if isinstance(answer, Exception):
            raise self.error_of(answer, writing=True)
        raise_if_refused(answer)
        return list(answer)

    async def make(self, path: str, data: bytes, acl: Sequence[ACL] | None = None) -> None:
        """Make the znode unless it is there."""
        try:
            await self.commit([create(path, data, acl)])
        except TransactionRefused as refused:
            if not isinstance(refused.error, zk.NodeExistsError):
                raise self.error_of(refused.error, writing=True) from None

    async def ensure(self, path: str, acl: Sequence[ACL] | None = None, *, condition: Operation | None = None) -> None:
        """Make the znode and those above it where they are missing. ``TransactionRefused`` of index 0 where a condition
        does not hold."""
        missing = list[str]()
        while path and await self.find_stat(path) is None:
            missing.append(path)
            path = path.rpartition("/")[0]
        for one in reversed(missing):
            if condition is None:
                await self.make(one, b"", acl)
                continue
            try:
                await self.commit([condition, create(one, b"", acl)])
            except TransactionRefused as refused:
                if refused.index == 0:
                    raise
                if not isinstance(refused.error, zk.NodeExistsError):
                    raise self.error_of(refused.error, writing=True) from None

    async def set_acl(self, paths: Sequence[str], acl: Sequence[ACL]) -> None:
        """Say who may do what with each of these znodes that is there."""
        begins: list[Begin] = [request_acl(path, acl) for path in paths]
        for start in range(0, len(begins), WINDOW):
            for answer in await self._ask(begins[start : start + WINDOW], writing=True):
                if isinstance(answer, Exception) and not isinstance(answer, zk.NoNodeError):
                    raise self.error_of(answer, writing=True)

    async def ensure_chroot(self) -> None:
        """Make the znode below which everything lies, through a connection without it."""
        above = ZooKeeperClient(msgspec.structs.replace(self.access, chroot=""), answer_s=self._answer_s)
        try:
            if self.access.chroot.strip("/"):
                await above.ensure(self.access.chroot.rstrip("/"))
        finally:
            await above.close()

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete each that is there; together, where all of them are."""
        for start in range(0, len(paths), WINDOW):
            part = paths[start : start + WINDOW]
            try:
                await self.commit([remove(path) for path in part])
                continue
            except TransactionRefused as refused:
                if not isinstance(refused.error, zk.NoNodeError):
                    raise self.error_of(refused.error, writing=True) from None
            for answer in await self._ask([request_delete(path) for path in part], writing=True):
                if isinstance(answer, Exception) and not isinstance(answer, zk.NoNodeError):
                    raise self.error_of(answer, writing=True)

    # The connection

    async def _ask(self, begins: Sequence[Begin], *, writing: bool) -> list[Any]:
        """Send all, and return all answers, errors among them."""
        batch: AnswerBatch | None = None
        try:
            with deadline(self._answer_s):
                kazoo = await self._wait_ready()
                batch = AnswerBatch(asyncio.get_running_loop(), len(begins))
                if begins:
                    self._handler.batch = batch
                    try:
                        for begin in begins:
                            begin(kazoo)
                    finally:
                        self._handler.batch = None
                    await batch.future
        except TimeoutError:
            if writing and batch is not None:
                raise _unknown_error(f"no answer within {self._answer_s:g} s") from None
            text = f"{self.access.place} did not answer within {self._answer_s:g} s"
            if why := "" if self.connected else await asyncio.to_thread(certificate_trouble, self.access):
                raise Unavailable(f"{text}: {why}", remedy="correct tls in the access file") from None
            raise Unavailable(text, remedy="do a majority of its servers run?") from None
        return batch.answers

    async def _wait_ready(self) -> LoopKazoo:
        if self._closed:
            raise _closed_error()
        if self._kazoo is None:
            self._begin()
        while not self._connected.is_set():
            await self._connected.wait()
            if self._closed:
                raise _closed_error()
        assert self._kazoo is not None
        return self._kazoo

    def _begin(self) -> None:
        """A new session."""
        access, tls = self.access, self.access.tls
        self._loop = asyncio.get_running_loop()
        self._handler = LoopHandler()
        self.session += 1
        retry = KazooRetry(**RECONNECT, sleep_func=self._handler.sleep_func)
        kazoo = self._kazoo = LoopKazoo(
            ",".join(access.servers) + access.chroot.rstrip("/"),
            timeout=access.session_s,
            handler=self._handler,
            connection_retry=retry,
            auth_data=[("digest", f"{access.user}:{access.password}")] if access.user else None,
            use_ssl=tls is not None,
            check_hostname=tls is not None,
            ca=tls.authority if tls else None,
            certfile=tls.certificate or None if tls else None,
            keyfile=tls.key or None if tls else None,
            logger=_kazoo_log,
        )
        loop = self._loop
        kazoo.follow(loop)
        kazoo.add_listener(lambda state: post(loop, self._handle_state, kazoo, state))
        kazoo.start_async()

    def _handle_state(self, kazoo: LoopKazoo, state: str) -> None:
        """Take over a change of the connection's state."""
        if kazoo is not self._kazoo or self._closed:
            return
        if state == KazooState.CONNECTED:
            self._connected.set()
            if self._down is not None:
                self._down.cancel()
        else:
            self._connected.clear()
            if state == KazooState.LOST:
                self.session += 1
            if self._down is not None:
                self._down.cancel()
            assert self._loop is not None
            self._down = self._loop.call_later(RENEW_SESSIONS * self.access.session_s, self._renew, kazoo)
        _log.info("store.zookeeper.connection", state=state.lower(), place=self.access.place, session=self.session)
        for listener in list(self._listeners):
            listener()

    def _renew(self, kazoo: LoopKazoo) -> None:
        """Begin a session that has seen nothing."""
        if kazoo is self._kazoo and not self._closed:
            _log.warning("store.zookeeper.session_given_up", place=self.access.place)
            stop_apart(kazoo)
            self._begin()

    def error_of(self, error: Exception, *, writing: bool) -> OutliveError:
        """What an answer of kazoo means."""
        text = str(error) or type(error).__name__
        if isinstance(error, _LOST):
            if self._closed and not writing:
                return _closed_error()
            return (
                _unknown_error("the connection was lost")
                if writing
                else Unavailable("the connection to ZooKeeper broke")
            )
        if isinstance(error, zk.NoAuthError | zk.AuthFailedError):
            who = f"user {self.access.user!r}" if self.access.user else "a client without a user"
            remedy = "see user and password of the access file, and the ACLs: docs/how-to/zookeeper.md#acls"
            return Forbidden(f"{self.access.place} does not let {who} do this", remedy=remedy)
        if isinstance(error, zk.BadArgumentsError):
            return Invalid(f"ZooKeeper does not take this: {text}", remedy="see docs/reference/store.md#zookeeper")
        if writing and not isinstance(error, _NOT_APPLIED):
            return _unknown_error(text)
        return Unavailable(f"ZooKeeper refused: {type(error).__name__} {text}", remedy="see the log of its servers")

    async def close(self) -> None:
        """End the session; calls under way raise ``Unavailable``, or ``Unknown`` for writes."""
        self._closed = True
        self._connected.set()  # those who wait for a connection go on, and fail
        kazoo, self._kazoo = self._kazoo, None
        if self._down is not None:
            self._down.cancel()
        if kazoo is None:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        stop_apart(kazoo, lambda: post(loop, ended.set))
        try:
            async with asyncio.timeout(CLOSE_S):
                await ended.wait()
        except TimeoutError:
            _log.info("store.zookeeper.close_goes_on", place=self.access.place)


def _unknown_error(why: str) -> Unknown:
    return Unknown(f"the answer to a write was lost: {why}", remedy="read the object to see what became of it")


def _closed_error() -> Unavailable:
    return Unavailable("the store was closed", remedy="open it again")
