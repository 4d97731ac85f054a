"""Threads for calls that may never return: each keeps its thread, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from outlive.base import Unavailable, deadline

T = TypeVar("T")

DISK_S: Final = 10.0
"""How long a disk may take for one call."""


class Threads:
    """At most so many threads, each started when it is needed and kept; none keeps the process from ending."""

    def __init__(self, limit: int, asked: str) -> None:
        self.busy = 0
        self._asked = asked
        self._limit = limit
        self._started = 0
        self._work: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]]]
        self._work = queue.SimpleQueue()

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Its answer; ``Unavailable`` where all threads wait."""
        if self.busy >= self._limit:
            raise Unavailable(f"{self.busy} calls wait for {self._asked}", remedy=f"see whether {self._asked} hangs")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        answer.add_done_callback(consume_error)
        self.busy += 1
        if self.busy > self._started:
            self._started += 1
            threading.Thread(target=self._serve, name=f"libvirt-{self._started}", daemon=True).start()
        self._work.put((loop, answer, work))
        return answer

    def _serve(self) -> None:
        while True:
            loop, answer, work = self._work.get()
            value, error = None, None
            try:
                value = work()
            except BaseException as raised:  # noqa: BLE001 - handed on to the caller that waits
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(self._answer, answer, value, error)

    def _answer(self, answer: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
        self.busy -= 1
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)


class DiskThread:
    """Calls of one file's disk, one after the other, in a thread: no loop that renews a membership waits for a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = Threads(1, f"the disk with {path}")
        self._turn = asyncio.Lock()

    async def call(self, work: Callable[[], T]) -> T:
        """Its answer; ``Unavailable`` where the disk takes longer than ``DISK_S``, and while it hangs."""
        async with self._turn:
            answer = self._threads.submit(work)
            try:
                with deadline(DISK_S):
                    return await answer
            except TimeoutError:
                why = f"was not read or written within {DISK_S:g} s"
                raise Unavailable(why, place=str(self._path), remedy="see whether its disk hangs") from None


def consume_error(answer: asyncio.Future[Any]) -> None:
    """Ignore the error of an answer whose caller has given up."""
    if not answer.cancelled():
        answer.exception()
