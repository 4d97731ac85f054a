"""A thread for each database: in it the replica lives, outside is asyncio.

Work is a generator that runs in the thread. It reads the replica; ``yield None`` waits until something has changed,
``results = yield operations`` sends a transaction and waits for its results. What it returns is the answer. So a plan
that somebody else overtook is made anew without a detour over the event loop.

Work starts while the replica is complete and waits for that meanwhile, until its limit is over: ``Unavailable`` if
nothing was sent, ``Unknown`` if a transaction was and its answer did not come.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Generic, TypeVar

import ovs.jsonrpc
import ovs.poller
import ovs.timeval

from outlive.base import OutliveError, Refused, Unavailable, Unknown, deadline, get_logger
from outlive.drivers.ovn.replica import NO_TRANSACTION, NeededColumns, Replica, Reply
from outlive.network import PREFIX

T = TypeVar("T")

Work = Generator[list[Any] | None, Any, T]
"""See the module. What is sent back are the results of the transaction, as RFC 7047 has them."""

CALL_S: Final = 5.0
"""How long a call may take, if its caller does not say."""
PROBE_MS: Final = 5000
"""A server that is silent for so long is probed, and left after as long again."""
AFTER_FAILURE_MS: Final = 1000
"""How long the thread pauses after an error of its own."""
RECHECK_MS: Final = 10_000
"""How often a database that lacks a column is looked at again."""
_log = get_logger("ovn")


class _Job(Generic[T]):
    """One work, from the call to its answer."""

    def __init__(self, make: Callable[[Replica], Work[T]]) -> None:
        self.make = make
        self.work: Work[T] | None = None
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[T] = self.loop.create_future()
        self.sent = False
        """Whether a transaction is on its way; for the thread."""
        self.may_have_written = False
        """Whether a transaction that writes was sent and is not known to have failed."""
        self.dropped = False
        """Nobody waits for the answer any more."""

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Give the answer to the event loop, which may have ended."""
        self.dropped = True

        def deliver() -> None:
            if self.answer.done():
                return
            if error is None:
                self.answer.set_result(value)
            else:
                self.answer.set_exception(error)

        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(deliver)


class OvsdbClient:
    """One database; see the module. ``start`` and ``aclose`` once."""

    def __init__(
        self,
        remote: str,
        database: str,
        tables: Mapping[str, NeededColumns],
        *,
        leader_only: bool = False,
        probe_ms: int = PROBE_MS,
        key_prefix: str = PREFIX,
        after_batch: Callable[[], bool] = lambda: True,
    ) -> None:
        self.remote = remote
        self.database = database
        self.trouble = "it has not connected yet"
        """Why it cannot be used now; empty: it can."""
        self.replica = Replica(
            remote, database, tables, leader_only=leader_only, probe_ms=probe_ms, key_prefix=key_prefix
        )
        """For the thread."""
        self._after_batch = after_batch
        """Called in the thread when changes were taken in and no transaction of this client is on its way.

        ``False``: it is called again, because not all is there yet.
        """
        self._new: deque[_Job[Any]] = deque()
        self._jobs: list[_Job[Any]] = []
        self._ended = False
        self._sending = threading.Lock()
        """Around the decision to send a transaction, so that no job sends one after its caller has left."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._woken = False
        """Whether the thread will look again: set after what it is to see, unset before it looks."""
        self._thread = threading.Thread(target=self._serve, name=f"ovsdb-{database}", daemon=True)
        self._connection = -1
        self._checked_ms = 0.0
        self._batch = False

    async def start(self) -> None:
        """Start to connect; returns at once."""
        self._thread.start()

    async def aclose(self) -> None:
        """End the thread and the connection."""
        self._ended = True
        self._wake()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        if self._wake_writer >= 0:
            os.close(self._wake_writer)
            self._wake_writer = -1

    async def run(self, make: Callable[[Replica], Work[T]], limit_s: float = CALL_S) -> T:
        """The answer of a work."""
        if self._ended:
            raise Unavailable(f"the connection to {self.database} was closed")
        job = _Job(make)
        self._new.append(job)
        self._wake()
        try:
            with deadline(limit_s):
                return await job.answer
        except TimeoutError:
            self._drop(job)
            raise self._job_error(job, f"there was no answer within {limit_s:g} s") from None
        finally:
            self._drop(job)

    async def read(self, function: Callable[[Replica], T], limit_s: float = CALL_S) -> T:
        """What a function of the replica returns."""

        def work(replica: Replica) -> Work[T]:
            yield from ()
            return function(replica)

        return await self.run(work, limit_s)

    async def wait(self, function: Callable[[Replica], T | None], limit_s: float) -> T | None:
        """What a function of the replica returns once it is not ``None``; ``None`` when the limit is over."""

        def work(replica: Replica) -> Work[T]:
            while (value := function(replica)) is None:
                yield None
            return value

        try:
            return await self.run(work, limit_s)
        except Unavailable:
            return None

    def _drop(self, job: _Job[Any]) -> None:
        """From now on the job sends nothing."""
        with self._sending:
            job.dropped = True

    def _job_error(self, job: _Job[Any], what: str) -> OutliveError:
        """The error of a job that got no answer."""
        text = f"{self.database} at {self.remote}: {what}{f' ({self.trouble})' if self.trouble else ''}"
        if job.may_have_written:
            return Unknown(text, remedy="read the rows before you go on")
        return Unavailable(text, remedy="see whether the database's server runs and can be reached from here")

    # --- in the thread

    def _wake(self) -> None:
        if self._woken:  # what was given to it before this call, it takes when it looks next
            return
        self._woken = True
        with contextlib.suppress(OSError):  # full: it will wake
            os.write(self._wake_writer, b"x")

    def _serve(self) -> None:
        while not self._ended:
            try:
                self._process_once()
            except Exception:  # noqa: BLE001 - whatever the server sent, the thread goes on with a new connection
                _log.exception("ovsdb.failed", database=self.database)
                self.replica.last_id = NO_TRANSACTION  # all rows anew
                self.replica.force_reconnect()
                poller = ovs.poller.Poller()
                poller.timer_wait(AFTER_FAILURE_MS)
                poller.block()
        self.replica.close()
        for job in (*self._jobs, *self._new):
            job.finish(None, self._job_error(job, "the connection was closed"))
        os.close(self._wake_reader)

    def _process_once(self) -> None:
        """Take in what came, go on with all work that can, and wait for more."""
        replica = self.replica
        changed = replica.run()
        if replica.connection != self._connection or not replica.connected:
            self._connection = replica.connection
            for job in self._jobs:
                if job.sent and not job.dropped:
                    job.finish(None, self._job_error(job, "the connection was lost during a transaction"))
        self._batch = self._batch or changed
        self.trouble = self._find_trouble()
        if replica.complete:
            for job in self._waiting_jobs(started=True) if changed else ():
                self._step(job, None)
            if self._batch and not any(job.sent for job in self._jobs):
                self._batch = not self._after_batch()  # before the next transaction, so that every batch is told
        while self._new:
            self._jobs.append(self._new.popleft())
        if replica.complete:
            for job in self._waiting_jobs(started=False):
                self._step(job, None)
        self._jobs = [job for job in self._jobs if not job.dropped]
        poller = ovs.poller.Poller()
        replica.wait(poller)
        poller.fd_wait(self._wake_reader, ovs.poller.POLLIN)
        if replica.refusal:
            poller.timer_wait(RECHECK_MS)
        poller.block()
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        self._woken = False

    def _waiting_jobs(self, started: bool) -> list[_Job[Any]]:
        """Work that can go on: that waits for a change, or has not started."""
        return [job for job in self._jobs if (job.work is not None) == started and not job.sent and not job.dropped]

    def _find_trouble(self) -> str:
        replica = self.replica
        if replica.refusal:
            now = ovs.timeval.msec()
            if now - self._checked_ms > RECHECK_MS:
                if self._checked_ms:
                    replica.force_reconnect()
                self._checked_ms = now
            return f"{replica.refusal}; a newer OVN has it"
        self._checked_ms = 0.0
        if not replica.connected:
            return "there is no connection"
        return "" if replica.complete else "its rows have not come yet"

    def _step(self, job: _Job[Any], results: Any) -> None:
        """Let a work go on to its next wait."""
        job.sent = False
        try:
            if job.work is None:
                job.work = job.make(self.replica)
                wanted = next(job.work)
            else:
                wanted = job.work.send(results)
        except StopIteration as end:
            job.finish(end.value, None)
            return
        except Exception as error:  # noqa: BLE001 - it is the caller's
            job.finish(None, error)
            return
        if wanted is None:
            return
        with self._sending:
            if job.dropped:
                return
            job.may_have_written = job.may_have_written or any(one["op"] != "select" for one in wanted)
        job.sent = True
        self.replica.transact(wanted, Reply(lambda message: self._take_reply(job, message)))

    def _take_reply(self, job: _Job[Any], message: Any) -> None:
        if job.dropped:
            return
        if message.type == ovs.jsonrpc.Message.T_REPLY:
            if any(one and "error" in one for one in message.result):
                job.may_have_written = False
            self._step(job, message.result)
        else:
            job.finish(None, Refused(f"{self.database} does not take a transaction: {message.error}"))
