"""Computes long decisions in a child process, so that the event loop stays free.

A decision is a pure function that is importable by its module and name; its input and answer travel as JSON. One child
computes one decision at a time and is kept for the next. A child that dies, or takes longer than the deadline, is
``Unavailable``: the cycle that asked ends, and the next one gets a new child. A child ends with its parent, also with
one that is killed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from outlive.base.errors import OutliveError, Unavailable
from outlive.resources.codec import decode_as, encode_canonical
from outlive.runtime.decisions import Decision

DEADLINE_S: Final = 120.0
"""How long one decision may take."""


class ChildComputer:
    """A ``Computer`` in a process of its own; started at its first use."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._pool: ProcessPoolExecutor | None = None

    async def compute(self, decision: Decision[Any, Any], raw: bytes) -> bytes:
        """The answer to a JSON input, as canonical JSON."""
        pool = self._started()
        work = asyncio.get_running_loop().run_in_executor(pool, _compute, decision, raw)
        try:
            return await asyncio.wait_for(work, self._deadline_s)
        except (BrokenProcessPool, TimeoutError) as error:
            self.abandon()
            why = f"no answer within {self._deadline_s:g} s" if isinstance(error, TimeoutError) else "its process died"
            raise Unavailable(
                f"{decision.name} could not be computed: {why}", remedy="the next cycle tries again"
            ) from error
        except RuntimeError as error:
            raise Unavailable(f"{decision.name} was refused: {error}", remedy="see the log of the child") from error

    async def close(self) -> None:
        """Let the child go."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, lambda: pool.shutdown(cancel_futures=True))

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_prepare)
        return self._pool

    def abandon(self) -> None:
        """End the child, whatever it is doing."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)  # the child is dead, so that this does not wait


def _prepare() -> None:
    """In the child: Ctrl-C in the terminal is the parent's business, and nothing goes on once the parent is dead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def _compute(decision: Decision[Any, Any], raw: bytes) -> bytes:
    """In the child: errors of ours travel as their text, because they do not pickle with their fields."""
    try:
        return encode_canonical(decision.function(decode_as(decision.input, raw)))
    except OutliveError as error:
        raise RuntimeError(str(error)) from None
