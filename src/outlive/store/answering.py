"""A limit for calls of a store: what is not answered in time counts as a store that is away.

For whoever waits for the answer while others wait for them. A write that was cut short may still take effect, as after
any ``Unavailable``; who has to know reads again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from outlive.base.errors import Unavailable

CALL_S: Final = 5.0
"""For one call."""
LIST_S: Final = 20.0
"""For reading all objects of a kind."""


@asynccontextmanager
async def answered(what: str, limit_s: float = CALL_S) -> AsyncIterator[None]:
    """``Unavailable`` where the block, which asks about ``what``, takes longer."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise Unavailable(f"the store did not answer about {what} within {limit_s:g} s") from None
