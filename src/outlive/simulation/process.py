"""A process of the virtual cluster: started, killed, halted and let go on, as an operating system does it.

A halted process is a halted ``LoopPart`` of the loop: nothing of it runs, no call goes out and no answer comes in, and
what it had sent takes effect all the same. A killed one runs none of its clean-up in the world: its tasks are
cancelled, and every port of it answers by cancelling the caller (``check``), so that a ``finally`` that would write
something cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from outlive.runtime import LoopPart, outside_parts

T = TypeVar("T")


class Process:
    """One run of a program; a restart is another ``Process``."""

    def __init__(self, name: str, run: int = 1) -> None:
        self.name = name
        self.part = LoopPart(f"{name}#{run}")
        self.alive = False
        self.halts = 0
        """How often it was halted."""
        self.error: BaseException | None = None
        """Why it ended by itself, where it did so badly."""
        self.at_end: Callable[[], None] = lambda: None
        """What the kernel does when it ends, however it does: closes its files."""
        self._main: asyncio.Task[None] | None = None

    def start(self, main: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[Process], None]) -> None:
        """Run ``main``; ``ended`` is called once it ends by itself, not when it is killed."""
        assert self._main is None
        self.alive = True
        loop = asyncio.get_running_loop()
        self._main = loop.create_task(self._run(main, ended), name=self.part.name, context=self.part.make_context())

    def kill(self) -> None:
        """End it where it stands; nothing of it has an effect from now on."""
        ended, self.alive = self.alive, False
        while self.part.halted:
            self.part.go_on()
        self.part.cancel()
        if ended:
            self.at_end()

    def halt(self) -> None:
        """As ``SIGSTOP``."""
        self.halts += 1
        self.part.halt()

    def go_on(self) -> None:
        """As ``SIGCONT``."""
        self.part.go_on()

    def check(self) -> None:
        """Called by every port before and after each call: a dead process gets no further."""
        if not self.alive:
            raise asyncio.CancelledError(f"{self.name} was killed")

    async def call(self, outside: Awaitable[T]) -> T:
        """Wait for something that goes on without this process, and get its answer if there still is one."""
        try:
            answer = await asyncio.shield(outside)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.check()
            raise
        self.check()
        return answer

    async def _run(self, main: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[Process], None]) -> None:
        try:
            await main()
        except asyncio.CancelledError:
            if self.alive:
                raise
            return
        except Exception as error:  # noqa: BLE001 - kept: a process that failed is started again by its service manager
            self.error = error
        if self.alive:
            self.alive = False
            self.part.cancel(besides=self._main)
            self.at_end()
            ended(self)


def go(work: Coroutine[Any, Any, T], *, name: str, part: LoopPart | None = None) -> asyncio.Task[T]:
    """Start work that belongs to ``part``, or to nobody; an error that nobody asks for is not lost but dropped.

    It is dropped because the process that asked may have been killed; a caller that lives gets it from the task.
    """
    context = outside_parts() if part is None else part.make_context()
    task = asyncio.get_running_loop().create_task(work, name=name, context=context)
    task.add_done_callback(_consume_error)
    return task


def _consume_error(task: asyncio.Task[Any]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()
