"""Answers that are sent in parts: lists, watches, events and metrics."""

from __future__ import annotations

import asyncio

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class StreamedResponse(StreamingResponse):
    """An answer in parts, which ends when its client leaves.

    The framework's own answer runs in a task group that keeps the error of a cancelled task in a reference cycle. The
    part that a client did not take, up to a page of large objects, would stay in memory until a late pass of the
    garbage collector.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all parts, or those until the client leaves."""
        sending = asyncio.create_task(self.stream_response(send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await _end_with_first(sending, leaving)
            if not sending.cancelled():
                sending.result()
            if not leaving.cancelled():
                leaving.result()
        finally:
            del sending, leaving  # a task leads to its error, and the error to this frame


async def _end_with_first(*tasks: asyncio.Task[None]) -> None:
    """Wait until one of the tasks ends, and cancel the others."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
