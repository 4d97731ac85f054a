"""Long computations in one child process, so that the event loop stays free.

Inputs and answers travel as the JSON that the decision log keeps anyway. The child is started with the first
computation and again after it died; it imports the function by name and never sees a store, a socket or a secret. A
computation that takes too long is given up, and its child with it.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, get_type_hints

from outlive.base.errors import Unavailable
from outlive.resources.codec import decode_as, encode_canonical
from outlive.runtime.decisions import Decision

COMPUTE_LIMIT_S = 600.0
"""The longest computation."""


class ChildProcess:
    """One child, one computation at a time; further ones wait."""

    def __init__(self, *, limit_s: float = COMPUTE_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Lock()

    async def compute(self, decision: Decision[Any, Any], raw: bytes) -> bytes:
        """The answer to a JSON input; ``Unavailable`` when the child died or took too long. Its own errors come out."""
        function = decision.function
        async with self._turn:
            pool = self._pool = self._pool or _pool()
            work = asyncio.get_running_loop().run_in_executor(
                pool, _in_child, function.__module__, function.__qualname__, raw
            )
            try:
                return await asyncio.wait_for(work, self._limit_s)
            except TimeoutError:
                self._discard()
                raise Unavailable(
                    f"{function.__qualname__} took more than {self._limit_s:g} s", remedy="serve fewer VMs a cycle"
                ) from None
            except BrokenProcessPool as error:
                self._discard()
                raise Unavailable(f"the child process died in {function.__qualname__}", remedy="try again") from error
            except asyncio.CancelledError:
                self._discard()
                raise

    async def close(self) -> None:
        """End the child."""
        self._discard()

    def _discard(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for child in list((pool._processes or {}).values()):
            child.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))


def _in_child(module: str, name: str, raw: bytes) -> bytes:
    function = getattr(importlib.import_module(module), name)
    (given,) = [hint for key, hint in get_type_hints(function).items() if key != "return"]
    return encode_canonical(function(decode_as(given, raw)))
