"""Parts of a loop's tasks that can be halted and ended as a whole, as an operating system does with a process.

A part is known by the context that its tasks run in; ``outlive.runtime.virtual`` asks for it before it runs anything.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from typing import Any, Final

TIDY_TASKS: Final = 64
"""Tasks of a part that may be kept beyond twice those that have not ended."""


class Part:
    """Some of a loop's tasks that can be halted as a whole, the way ``SIGSTOP`` halts a process.

    A task belongs to the part in whose ``context`` it was started, and so do all tasks, timers and callbacks that it
    starts. While a part is halted none of them runs, also when what they wait for comes about; ``go_on`` lets them run
    in the order in which they would have. Time goes on meanwhile. Halts count: as many ``go_on`` are needed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        """In the order of their creation, some that have ended among them."""
        self._tidy_at = TIDY_TASKS
        self.halted = False
        """Whether nothing of it runs."""
        self._halts = 0
        self._waiting: list[asyncio.Handle] = []

    @property
    def tasks(self) -> tuple[asyncio.Task[Any], ...]:
        """Its tasks that have not ended, in the order of their creation."""
        return tuple(task for each in self._tasks if (task := each()) is not None and not task.done())

    def context(self) -> contextvars.Context:
        """A new context that belongs to this part."""
        context = contextvars.copy_context()
        context.run(PART.set, self)
        return context

    def halt(self) -> None:
        """Let nothing of it run."""
        self._halts += 1
        self.halted = True

    def go_on(self) -> None:
        """Take one halt back."""
        self._halts = max(0, self._halts - 1)
        self.halted = self._halts > 0
        if not self.halted:
            waiting, self._waiting = self._waiting, []
            for handle in waiting:
                loop: Any = handle._loop  # type: ignore[attr-defined]
                loop._ready.append(handle)

    def cancel(self, *, besides: asyncio.Task[Any] | None = None) -> None:
        """Cancel all its tasks but one, in the order of their creation."""
        for task in self.tasks:
            if task is not besides:
                task.cancel()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Take in a task that begins; called by the loop."""
        if len(self._tasks) >= self._tidy_at:
            self._tasks = [weakref.ref(each) for each in self.tasks]
            self._tidy_at = TIDY_TASKS + 2 * len(self._tasks)
        self._tasks.append(weakref.ref(task))

    def keep(self, handle: asyncio.Handle) -> None:
        """Take in what would run now."""
        self._waiting.append(handle)


def outside_parts() -> contextvars.Context:
    """A copy of the present context that belongs to no part: for what goes on when the one who began it is halted."""
    context = contextvars.copy_context()
    context.run(PART.set, None)
    return context


PART: Final[contextvars.ContextVar[Part | None]] = contextvars.ContextVar("outlive_part", default=None)
"""The part that what runs now belongs to."""
