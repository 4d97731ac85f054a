"""A task group that keeps its order.

The standard group keeps its children in a set and cancels them in the order of their addresses, which is another one in
every run; ``OrderedTaskGroup`` cancels in the order of creation, so that the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
from typing import Any


class _InOrder(dict[asyncio.Task[Any], None]):
    """What the standard group does with its set of children."""

    def add(self, task: asyncio.Task[Any]) -> None:
        """Take a child in."""
        self[task] = None

    def discard(self, task: asyncio.Task[Any]) -> None:
        """Let a child go that has ended."""
        self.pop(task, None)


class OrderedTaskGroup(asyncio.TaskGroup):  # noqa: TID251 - the one place that makes it ordered
    """``asyncio.TaskGroup``, whose children are cancelled in the order of their creation."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: Any = _InOrder()
