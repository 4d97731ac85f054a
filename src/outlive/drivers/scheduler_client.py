"""Placement over HTTP: the same calls as in process, sent to a scheduler that speaks Nova's external protocol.

One POST a call, at most 30 s, never repeated: a search is asked again by the next cycle, a validation by the next
validation (docs/reference/failover-operation.md#placement-calls). What comes back is believed only as far as it can be
read; an answer without scores means that its order is strict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import aiohttp

from outlive.base import Unavailable, limits
from outlive.failover import Call, write_candidates
from outlive.failover.planner import PlacementOffer
from outlive.placement import decode_answer, encode_request

CALL_LIMIT_S = 30.0
"""How long one call may take, connecting included."""
ANSWER_LIMIT_BYTES = 16 * 1024 * 1024
"""The largest answer that is read."""


class SchedulerClient:
    """A ``PlacementPort`` over HTTP."""

    needs_candidates = True

    def __init__(self, url: str, *, token: str = "", limit_s: float = CALL_LIMIT_S) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._limit_s = limit_s
        self._session: aiohttp.ClientSession | None = None

    async def offer(self, call: Call) -> PlacementOffer:
        """The scheduler's hosts, best first.

        ``BadInput`` for options that contradict each other and ``Refused`` for a call without candidates, both before
        anything is sent; ``Unavailable`` for everything that goes wrong afterwards.
        """
        call.request.options.check()
        body = encode_request(write_candidates(call, ()).request)
        try:
            status, answer = await self._post(body)
        except TimeoutError:
            raise self._unavailable_error(f"no answer within {self._limit_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unavailable_error(str(error) or type(error).__name__) from error
        return PlacementOffer(hosts=decode_answer(status, answer))

    def equivalence_key(self, call: Call) -> Hashable | None:
        """What somebody else's scheduler goes by is not known."""
        return None

    async def close(self) -> None:
        """Let go of connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        async with asyncio.timeout(self._limit_s):
            self._session = self._session or aiohttp.ClientSession()
            async with self._session.post(self._url, data=body, headers=self._headers) as answer:
                if answer.status != 200:
                    return answer.status, await answer.content.read(limits.ERROR_BODY_BYTES)
                return answer.status, await self._read(answer.content)

    async def _read(self, content: aiohttp.StreamReader) -> bytes:
        parts = bytearray()
        async for chunk in content.iter_any():
            parts += chunk
            if len(parts) > ANSWER_LIMIT_BYTES:
                raise ValueError(f"the answer is larger than {ANSWER_LIMIT_BYTES} bytes")
        return bytes(parts)

    def _unavailable_error(self, why: str) -> Unavailable:
        return Unavailable(
            f"the scheduler did not answer: {why}",
            place=self._url,
            remedy="check failover.schedulerURL and the scheduler",
        )
