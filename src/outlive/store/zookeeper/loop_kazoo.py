"""kazoo for one event loop: answers come in batches, and its thread is woken once for what is sent together."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from outlive.base import get_logger
from outlive.store.zookeeper.requests import Operation

_SENDING: Final = (KeeperState.CONNECTED, KeeperState.CONNECTING)
"""States in which kazoo takes requests."""

READ_AHEAD: Final = 65536
"""Bytes that are read from a socket at once at most."""

_log = get_logger("store.zookeeper")


class AnswerBatch:
    """Answers that the loop waits for together. Filled by kazoo's threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.answers: list[Any] = [None] * count
        self.future: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._begun = 0
        self._missing = count
        self._lock = threading.Lock()

    def next_slot(self) -> _Slot:
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
        post(self._loop, self._wake)

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Slot:
    """The place of one answer, as kazoo fills it."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: AnswerBatch, index: int) -> None:
        self._batch: AnswerBatch | None = batch
        self._index = index

    def set(self, value: Any = None) -> None:
        """Take the answer; a second one is not for anybody."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.fill(self._index, value)

    set_exception = set


class BufferedSocket:
    """A socket that reads as much as is there: kazoo reads an answer in two parts, waits before each of them, and each
    of these four system calls hands the interpreter over to the other thread and back."""

    def __init__(self, below: socket.socket) -> None:
        self._below = below
        self._ahead = memoryview(b"")
        """What was read and is not asked for yet."""

    def __getattr__(self, name: str) -> Any:
        """Everything else is of the socket itself."""
        return getattr(self._below, name)

    def recv(self, most: int) -> bytes:
        """The next bytes, as of any socket."""
        if not self._ahead:
            self._ahead = memoryview(self._below.recv(READ_AHEAD))
        part, self._ahead = self._ahead[:most], self._ahead[most:]
        return bytes(part)

    def pending(self) -> int:
        """Bytes that can be read without waiting; kazoo asks for it by this name."""
        below = self._below.pending() if isinstance(self._below, ssl.SSLSocket) else 0
        return len(self._ahead) + below

    def close(self) -> None:
        """Close it, and forget what was read."""
        self._ahead = memoryview(b"")
        self._below.close()


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Has answers go to the batch that is being sent, without the detour over a thread for callbacks, and waits for
    sockets by ``poll``: kazoo makes an epoll for each wait."""

    batch: AnswerBatch | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> BufferedSocket:
        """The connection to a server."""
        return BufferedSocket(super().create_connection(*args, **kwargs))

    def create_socket_pair(self) -> tuple[BufferedSocket, socket.socket]:
        """By the second one kazoo's thread is woken, with one byte for each request."""
        reading, writing = super().create_socket_pair()
        return BufferedSocket(reading), writing

    def async_result(self) -> Any:
        """Where the answer to the next request goes."""
        return self.batch.next_slot() if self.batch is not None else super().async_result()

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As ``select.select``, for sockets with any number; those first that have something read ahead."""
        if ahead := [one for one in readable if one.pending()]:
            return ahead, [], []
        poll, sockets = select.poll(), {}
        for one in readable:
            sockets[one.fileno()] = one
            poll.register(one, select.POLLIN | select.POLLPRI)
        for one in writable:
            sockets[one.fileno()] = one
            poll.register(one, select.POLLOUT)
        ready = [sockets[number] for number, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)]
        return [one for one in ready if one in readable], [one for one in ready if one in writable], []


class OpenTransaction:
    """Operations that are sent together, by the names that kazoo has for them. kazoo normalizes every path once more,
    which costs as much as all else that it does for a write; these paths come from ``TreeLayout``."""

    def __init__(self, chroot: str) -> None:
        self.operations: list[Any] = []
        self._chroot = chroot

    def create(
        self, path: str, data: bytes, acl: list[ACL] | None = None, *, ephemeral: bool = False, sequence: bool = False
    ) -> None:
        """Make a znode."""
        flags = (1 if ephemeral else 0) | (2 if sequence else 0)
        self.operations.append(Create(self._full_path(path), data, acl or OPEN_ACL_UNSAFE, flags))

    def set_data(self, path: str, data: bytes, version: int = -1) -> None:
        """Replace the data of a znode."""
        self.operations.append(SetData(self._full_path(path), data, version))

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a znode."""
        self.operations.append(Delete(self._full_path(path), version))

    def check(self, path: str, version: int) -> None:
        """Refuse all unless the znode has this version."""
        self.operations.append(CheckVersion(self._full_path(path), version))

    def _full_path(self, path: str) -> str:
        return (self._chroot or "/") if path == "/" else self._chroot + path


class LoopKazoo(KazooClient):  # type: ignore[misc]
    """Wakes its thread once for all requests that are sent in one turn of the loop: each byte of kazoo's is a system
    call, at which the two threads hand the interpreter over to each other."""

    loop: asyncio.AbstractEventLoop | None = None
    _waiting = 0

    def _call(self, request: Any, async_object: Any) -> Any:
        if self.loop is None or self._state not in _SENDING or threading.get_ident() != self._loop_thread:
            return super()._call(request, async_object)
        self._queue.append((request, async_object))
        self._waiting += 1
        if self._waiting == 1:
            self.loop.call_soon(self._wake_thread)
        return None

    def send(self, operations: Sequence[Operation]) -> None:
        """Send one transaction; its answer goes where ``LoopHandler.batch`` says."""
        opened = OpenTransaction(self.chroot)
        for operation in operations:
            operation(opened)
        self._call(Transaction(opened.operations), self.handler.async_result())

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Requests come from this loop, in this thread."""
        self.loop, self._loop_thread = loop, threading.get_ident()

    def _wake_thread(self) -> None:
        """One byte for each request, since kazoo reads one for each."""
        waiting, self._waiting = self._waiting, 0
        write_socket = self._connection._write_sock
        with contextlib.suppress(OSError, AttributeError):  # it is being closed, which settles what waits
            write_socket.send(b"\0" * waiting)


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Have the loop call it; a loop that was closed needs no answers."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def stop_apart(kazoo: KazooClient, then: Callable[[], None] = lambda: None) -> None:
    """Stop it in a thread that nobody has to wait for: it may wait for a server that does not answer."""

    def stop() -> None:
        try:
            kazoo.stop()
            kazoo.close()
        except Exception as error:  # noqa: BLE001 - nobody needs it any more
            _log.debug("store.zookeeper.stop_failed", why=str(error))
        then()

    threading.Thread(target=stop, name="zookeeper stop", daemon=True).start()
