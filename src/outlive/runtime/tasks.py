"""A task group that keeps its order.

``OrderedTaskGroup`` behaves as ``asyncio.TaskGroup`` does: it waits for its children, the first failure cancels
the others, and failures leave as an exception group. The standard group keeps its children in a set and cancels
them in the order of their addresses, which is another one in every run; this one cancels in the order of creation,
so that the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class OrderedTaskGroup:
    """Structured concurrency: leaving ``async with`` means that every child has ended.

    Raises ``BaseExceptionGroup`` of the children's errors and the body's own; ``CancelledError`` when the parent
    was cancelled from outside and nothing else failed; ``KeyboardInterrupt`` and ``SystemExit`` as they are.
    """

    def __init__(self) -> None:
        self._parent: asyncio.Task[Any] | None = None
        self._children: dict[asyncio.Task[Any], None] = {}
        self._errors: list[BaseException] = []
        self._base_error: BaseException | None = None
        self._aborting = False
        self._exiting = False
        self._cancelled_parent = False
        self._all_done: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        if self._parent is not None:
            raise RuntimeError("this task group was entered before")
        self._parent = asyncio.current_task()
        if self._parent is None:
            raise RuntimeError("a task group needs a task to belong to")
        return self

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """Start a child. ``RuntimeError`` before the group is entered, while it fails, and after it has ended."""
        refusal = self._refusal()
        if refusal:
            coro.close()
            raise RuntimeError(f"this task group {refusal}")
        task = asyncio.get_running_loop().create_task(coro, name=name, context=context)
        self._children[task] = None
        task.add_done_callback(self._on_done)
        return task

    def _refusal(self) -> str:
        if self._parent is None:
            return "has not been entered"
        if self._exiting and not self._children:
            return "is finished"
        return "is shutting down" if self._aborting else ""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        parent = self._parent
        assert parent is not None
        self._exiting = True
        if isinstance(error, SystemExit | KeyboardInterrupt) and self._base_error is None:
            self._base_error = error
        cancellation = error if isinstance(error, asyncio.CancelledError) else None
        if self._cancelled_parent and parent.uncancel() == 0:
            cancellation = None
        if error is not None and not self._aborting:
            self._abort()
        later = await self._children_done()
        cancellation = cancellation if later is None else later
        if self._base_error is not None:
            raise self._base_error
        if cancellation is not None and not self._errors:
            raise cancellation
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._errors.append(error)
        self._raise_errors()

    async def _children_done(self) -> asyncio.CancelledError | None:
        """Wait for all children; the cancellation from outside that came meanwhile, if one did."""
        cancellation: asyncio.CancelledError | None = None
        while self._children:
            if self._all_done is None:
                self._all_done = asyncio.get_running_loop().create_future()
            try:
                await self._all_done
            except asyncio.CancelledError as error:
                if not self._aborting:
                    cancellation = error
                    self._abort()
            self._all_done = None
        return cancellation

    def _raise_errors(self) -> None:
        if not self._errors:
            return
        errors, self._errors = self._errors, []
        try:
            raise BaseExceptionGroup("unhandled errors in a task group", errors) from None
        finally:
            del errors

    def _abort(self) -> None:
        self._aborting = True
        for task in list(self._children):
            if not task.done():
                task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        del self._children[task]
        if self._all_done is not None and not self._children and not self._all_done.done():
            self._all_done.set_result(None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        self._errors.append(error)
        if isinstance(error, SystemExit | KeyboardInterrupt) and self._base_error is None:
            self._base_error = error
        assert self._parent is not None
        if not self._aborting and not self._cancelled_parent and not self._parent.done():
            # The parent may wait for something else inside the block: wake it. __aexit__ takes the request back.
            self._abort()
            self._cancelled_parent = True
            self._parent.cancel()
