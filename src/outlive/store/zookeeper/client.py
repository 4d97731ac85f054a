"""A connection to an ensemble: kazoo in threads of its own, for one event loop.

Answers come in batches: what is asked together is sent together, and wakes the loop once. Every call has a deadline.
What was certainly not sent, and a read whose answer was lost, is ``Unavailable``; a write whose answer was lost is
``Unknown``. Nothing is ever sent twice.

A session that cannot be continued is replaced by a new one. ``session`` counts them: a new one may be served by a
server that lags behind what the last one had seen, so that a reader begins with ``barrier`` again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from outlive.base.deadline import deadline
from outlive.base.errors import Forbidden, Invalid, OutliveError, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.store.zookeeper.access import ZooKeeperAccess

ANSWER_S: Final = 10.0
"""How long an answer may take, and a connection before it."""
RENEW_SESSIONS: Final = 2.0
"""After so many times its length without a connection a session is given up: an ensemble whose data was put back to an
earlier time refuses all sessions that have seen more."""
CLOSE_S: Final = 2.0
"""How long closing waits for the threads; they end by themselves."""
WINDOW: Final = 256
"""Reads that are sent together."""
RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0, "max_jitter": 0.3}
"""How kazoo looks for a server again: at once, then up to once a second."""

Begin = Callable[[KazooClient], Any]
"""Sends one request."""
Operation = Callable[[Any], None]
"""Adds one operation to a transaction."""
Found = tuple[bytes, ZnodeStat]
"""Data and state of a znode."""

_log = get_logger("store.zookeeper")
_kazoo_log = logging.getLogger("outlive.store.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)
_LOST: Final = (zk.ConnectionLoss, zk.SessionExpiredError, zk.ConnectionClosedError, zk.OperationTimeoutError)


class TransactionRefused(Exception):
    """One operation of a transaction was refused, and so nothing was written."""

    def __init__(self, index: int, error: zk.KazooException) -> None:
        super().__init__(f"operation {index}: {type(error).__name__}")
        self.index = index
        self.error = error


class _Batch:
    """Answers that the loop waits for together. Filled by kazoo's threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.answers: list[Any] = [None] * count
        self.future: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._begun = 0
        self._missing = count
        self._lock = threading.Lock()

    def slot(self) -> _Slot:
        """Where the next answer goes."""
        self._begun += 1
        return _Slot(self, self._begun - 1)

    def fill(self, index: int, answer: Any) -> None:
        """Take one answer; with the last one the loop goes on."""
        with self._lock:
            self.answers[index] = answer
            self._missing -= 1
            if self._missing:
                return
        _post(self._loop, self._wake)

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Slot:
    """The place of one answer, as kazoo fills it."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: _Batch, index: int) -> None:
        self._batch: _Batch | None = batch
        self._index = index

    def set(self, value: Any = None) -> None:
        """Take the answer; a second one is not for anybody."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.fill(self._index, value)

    set_exception = set


class _LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Has answers go to the batch that is being sent, without the detour over a thread for callbacks."""

    batch: _Batch | None = None

    def async_result(self) -> Any:
        return self.batch.slot() if self.batch is not None else super().async_result()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Have the loop call it; a loop that was closed needs no answers."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


class ZooKeeperClient:
    """See the module. It connects with the first call."""

    def __init__(self, access: ZooKeeperAccess, *, answer_s: float = ANSWER_S) -> None:
        self.access = access
        self.session = 0
        """How many sessions there were."""
        self.reads = 0
        """Znodes that were read, with those that were not there."""
        self._answer_s = answer_s
        self._kazoo: KazooClient | None = None
        self._handler = _LoopHandler()
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
            found += await self._read([_get(path) for path in paths[start : start + WINDOW]], fresh=fresh and not start)
        return found

    async def get(self, path: str, *, fresh: bool = False) -> Found | None:
        """Data and state; ``None`` where it is not there."""
        return (await self.get_many((path,), fresh=fresh))[0]

    async def children_many(self, paths: Sequence[str], *, fresh: bool = False) -> list[list[str] | None]:
        """The names of the children of each; ``None`` where it is not there."""
        return await self._read([_children(path) for path in paths], fresh=fresh)

    async def exists(
        self, path: str, watch: Callable[[Any], None] | None = None, *, fresh: bool = False
    ) -> ZnodeStat | None:
        """The state of a znode; ``None`` where it is not there. ``watch`` is called by another thread, once, when that
        changes or the connection is lost."""
        found: ZnodeStat | None = (await self._read([_exists(path, watch)], fresh=fresh))[0]
        return found

    async def get_acl(self, path: str) -> list[ACL]:
        """Who may do what with a znode; empty where it is not there."""
        found = (await self._read([lambda kazoo: kazoo.get_acls_async(path)], fresh=False))[0]
        return list(found[0]) if found is not None else []

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop call it; from any thread."""
        if self._loop is not None:
            _post(self._loop, call)

    async def barrier(self) -> None:
        """Have the server know everything that was acknowledged to anybody before."""
        await self._read([], fresh=True)

    async def _read(self, begins: Sequence[Begin], *, fresh: bool) -> list[Any]:
        """A transaction that only checks goes through the quorum, which ``sync`` does not: a leader that was replaced
        and does not know it answers a ``sync``. Requests of one session are answered in their order, so what is sent
        after it is read after it."""
        self.reads += len(begins)
        session = self.session
        answers = await self._ask([_check, *begins] if fresh else begins, writing=False)
        if fresh:
            self._check_barrier(answers.pop(0))
            if session and session != self.session:
                raise Unavailable("the session was lost while it read", remedy="try again")
        for number, answer in enumerate(answers):
            if isinstance(answer, zk.NoNodeError):
                answers[number] = None
            elif isinstance(answer, Exception):
                raise self.error(answer, writing=False)
        return answers

    def _check_barrier(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise self.error(answer, writing=False)
        try:
            _raise_refused(answer)
        except TransactionRefused as refused:
            if isinstance(refused.error, zk.NoNodeError):
                remedy = "correct chroot in the access file, or make the store: outlive zookeeper init"
                raise Unavailable(f"{self.access.place} is not there", remedy=remedy) from None
            raise self.error(refused.error, writing=False) from None

    # Writes

    async def commit(self, operations: Sequence[Operation]) -> list[Any]:
        """The answers of all operations of one transaction; ``TransactionRefused`` if one of them is refused."""

        def begin(kazoo: KazooClient) -> None:
            transaction = kazoo.transaction()
            for operation in operations:
                operation(transaction)
            transaction.commit_async()

        answer = (await self._ask([begin], writing=True))[0]
        if isinstance(answer, Exception):
            raise self.error(answer, writing=True)
        _raise_refused(answer)
        return list(answer)

    async def ensure(self, path: str, acl: Sequence[ACL] | None = None) -> None:
        """Make the znode and those above it where they are missing."""
        for end in [place for place, letter in enumerate(path) if letter == "/" and place] + [len(path)]:
            try:
                await self.commit([create(path[:end], b"", acl)])
            except TransactionRefused as refused:
                if not isinstance(refused.error, zk.NodeExistsError):
                    raise self.error(refused.error, writing=True) from None

    async def ensure_chroot(self) -> None:
        """Make the znode below which everything lies, through a connection without it."""
        above = ZooKeeperClient(msgspec.structs.replace(self.access, chroot=""), answer_s=self._answer_s)
        try:
            if self.access.chroot.strip("/"):
                await above.ensure(self.access.chroot.rstrip("/"))
        finally:
            await above.close()

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete each that is there."""
        for start in range(0, len(paths), WINDOW):
            begins = [_delete(path) for path in paths[start : start + WINDOW]]
            for answer in await self._ask(begins, writing=True):
                if isinstance(answer, Exception) and not isinstance(answer, zk.NoNodeError):
                    raise self.error(answer, writing=True)

    # The connection

    async def _ask(self, begins: Sequence[Begin], *, writing: bool) -> list[Any]:
        """Send all, and return all answers, errors among them."""
        batch: _Batch | None = None
        try:
            with deadline(self._answer_s):
                kazoo = await self._ready()
                batch = _Batch(asyncio.get_running_loop(), len(begins))
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
                raise _unknown(f"no answer within {self._answer_s:g} s") from None
            text = f"{self.access.place} did not answer within {self._answer_s:g} s"
            raise Unavailable(text, remedy="do a majority of its servers run?") from None
        return batch.answers

    async def _ready(self) -> KazooClient:
        if self._closed:
            raise _closed()
        if self._kazoo is None:
            self._begin()
        while not self._connected.is_set():
            await self._connected.wait()
            if self._closed:
                raise _closed()
        assert self._kazoo is not None
        return self._kazoo

    def _begin(self) -> None:
        """A new session."""
        access, tls = self.access, self.access.tls
        self._loop = asyncio.get_running_loop()
        self._handler = _LoopHandler()
        self.session += 1
        retry = KazooRetry(**RECONNECT, sleep_func=self._handler.sleep_func)
        kazoo = self._kazoo = KazooClient(
            ",".join(access.servers) + access.chroot.rstrip("/"),
            timeout=access.session_s,
            handler=self._handler,
            connection_retry=retry,
            auth_data=[("digest", f"{access.user}:{access.password}")] if access.user else None,
            use_ssl=tls is not None,
            ca=tls.authority if tls else None,
            certfile=tls.certificate or None if tls else None,
            keyfile=tls.key or None if tls else None,
            logger=_kazoo_log,
        )
        loop = self._loop
        kazoo.add_listener(lambda state: _post(loop, self._changed, kazoo, state))
        kazoo.start_async()

    def _changed(self, kazoo: KazooClient, state: str) -> None:
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

    def _renew(self, kazoo: KazooClient) -> None:
        """Begin a session that has seen nothing."""
        if kazoo is self._kazoo and not self._closed:
            _log.warning("store.zookeeper.session_given_up", place=self.access.place)
            _stopping(kazoo)
            self._begin()

    def error(self, error: Exception, *, writing: bool) -> OutliveError:
        """What an answer of kazoo means."""
        text = str(error) or type(error).__name__
        if isinstance(error, _LOST):
            if self._closed and not writing:
                return _closed()
            return _unknown("the connection was lost") if writing else Unavailable("the connection to ZooKeeper broke")
        if isinstance(error, zk.NoAuthError | zk.AuthFailedError):
            who = f"user {self.access.user!r}" if self.access.user else "a client without a user"
            remedy = "see user and password of the access file, and the ACLs: docs/operating/zookeeper.md#acls"
            return Forbidden(f"{self.access.place} does not let {who} do this", remedy=remedy)
        if isinstance(error, zk.BadArgumentsError):
            return Invalid(f"ZooKeeper does not take this: {text}", remedy="see docs/reference/store.md#zookeeper")
        if writing and not isinstance(error, zk.ZookeeperError):
            return _unknown(text)
        return Unavailable(f"ZooKeeper refused: {type(error).__name__} {text}", remedy="see the log of its servers")

    async def close(self) -> None:
        """End the session; calls under way raise ``Unavailable``, or ``Unknown`` for writes."""
        self._closed = True
        self._connected.set()  # who waits for a connection is told
        kazoo, self._kazoo = self._kazoo, None
        if self._down is not None:
            self._down.cancel()
        if kazoo is None:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        _stopping(kazoo, lambda: _post(loop, ended.set))
        try:
            async with asyncio.timeout(CLOSE_S):
                await ended.wait()
        except TimeoutError:
            _log.info("store.zookeeper.close_goes_on", place=self.access.place)


def _stopping(kazoo: KazooClient, then: Callable[[], None] = lambda: None) -> None:
    """Stop it in a thread that nobody has to wait for: it may wait for a server that does not answer."""

    def stop() -> None:
        try:
            kazoo.stop()
            kazoo.close()
        except Exception as error:  # noqa: BLE001 - nobody needs it any more
            _log.debug("store.zookeeper.stop_failed", why=str(error))
        then()

    threading.Thread(target=stop, name="zookeeper stop", daemon=True).start()


# Requests


def _get(path: str) -> Begin:
    return lambda kazoo: kazoo.get_async(path)


def _children(path: str) -> Begin:
    return lambda kazoo: kazoo.get_children_async(path)


def _exists(path: str, watch: Callable[[Any], None] | None) -> Begin:
    return lambda kazoo: kazoo.exists_async(path, watch=watch)


def _delete(path: str) -> Begin:
    return lambda kazoo: kazoo.delete_async(path)


def _check(kazoo: KazooClient) -> None:
    transaction = kazoo.transaction()
    transaction.check("/", -1)
    transaction.commit_async()


def create(path: str, data: bytes, acl: Sequence[ACL] | None = None, *, numbered: bool = False) -> Operation:
    """Make a znode; ``numbered``: the server adds ten digits to its name."""
    return lambda transaction: transaction.create(path, data, acl=list(acl) if acl else None, sequence=numbered)


def put(path: str, data: bytes, version: int = -1) -> Operation:
    """Replace the data of a znode that has this version."""
    return lambda transaction: transaction.set_data(path, data, version=version)


def remove(path: str, version: int = -1) -> Operation:
    """Delete a znode that has this version."""
    return lambda transaction: transaction.delete(path, version=version)


def _raise_refused(answers: Any) -> None:
    for index, answer in enumerate(answers):
        if isinstance(answer, zk.KazooException) and not isinstance(
            answer, zk.RolledBackError | zk.RuntimeInconsistency
        ):
            raise TransactionRefused(index, answer)


def _unknown(why: str) -> Unknown:
    return Unknown(f"the answer to a write was lost: {why}", remedy="read the object to see what became of it")


def _closed() -> Unavailable:
    return Unavailable("the store was closed", remedy="open it again")
