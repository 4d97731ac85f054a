"""Claims that every implementation of a protocol has to keep: each is a coroutine function of one open subject."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from tests.support.loops import run_real

T = TypeVar("T")
PATIENCE_S = 60.0
"""For what must happen in the end, on a machine that is busy with others."""
LOOK_S = 0.05


@dataclass(frozen=True)
class Subject(Generic[T]):
    """How to open one implementation, and on what kind of loop it runs."""

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[T]]
    """Opens it new and empty; the path is an empty directory for it to use."""
    run: Callable[[Coroutine[Any, Any, None]], None] = run_real
    component: str = ""
    """What it needs besides the project (``tests/conftest.py``)."""

    @property
    def parameter(self) -> Any:
        """For pytest."""
        marks = (pytest.mark.component(self.component),) if self.component else ()
        return pytest.param(self, id=self.name, marks=marks)


async def until(holds: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """Wait for a condition, which may be a coroutine function's, by the time of the loop; returns its value."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while True:
        value = holds()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert loop.time() < end_s, f"within {limit_s:g} s it never happened that {what}"
        await asyncio.sleep(LOOK_S)


Claim = Callable[[T], Coroutine[Any, Any, None]]


def claims_of(subjects: Sequence[Subject[T]]) -> Callable[[Claim[T]], Callable[[Subject[T], Path], None]]:
    """What turns such a coroutine function into a test of all of these."""

    def claim(function: Claim[T]) -> Callable[[Subject[T], Path], None]:
        def test(subject: Subject[T], tmp_path: Path) -> None:
            async def opened() -> None:
                async with subject.open(tmp_path) as one:
                    await function(one)

            subject.run(opened())

        test.__name__ = test.__qualname__ = getattr(function, "__name__", "claim")
        test.__doc__ = function.__doc__
        return pytest.mark.parametrize("subject", [one.parameter for one in subjects])(test)

    return claim
