"""Keeps the write-ahead log short without holding writers up.

Moving the log into the file takes two syncs and many scattered writes: some 15 microseconds a page. All but the
last of it is done by a second connection in a second thread, while writers go on: first the bulk, then what they
added meanwhile, each time less, until moving the rest costs the writers' own thread a millisecond or two, after
which the log begins anew. A failure is no harm: the log is tried again after the next writes, and is safe as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from outlive.store.sqlite.database import PAGE_BYTES, Database

TIDY_PAGES = 2_000
"""Pages written to the log before it is moved into the file."""
REST_PAGES = 64
"""What the writers' own thread may be left with."""
APART_ROUNDS = 6
"""How often the second connection goes over the log; more, and the writers are faster than it."""


class Tidier:
    """Moves the log when enough was written."""

    def __init__(self, writer: ThreadPoolExecutor, database: Database) -> None:
        self._writer = writer
        self._database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outlive-store-tidier")
        self._written = 0
        self._running: asyncio.Task[None] | None = None

    def written(self, documents: Iterable[bytes | None]) -> None:
        """These documents (``None``: removals) were added to the log, each in pages of its own."""
        self._written += sum(len(document or b"") // PAGE_BYTES + 1 for document in documents)
        if self._written >= TIDY_PAGES and self._running is None:
            self._written = 0
            self._running = asyncio.create_task(self._tidy(), name="store.sqlite.tidier")

    async def idle(self) -> None:
        """Wait until nothing is under way and the second connection is closed."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def close(self) -> None:
        """Wait for what is under way, then let go of the thread."""
        await self.idle()
        self._thread.shutdown(wait=False)

    async def _tidy(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, _tidy_apart, self._database)
            await loop.run_in_executor(self._writer, self._database.tidy)
        finally:
            self._running = None


def _tidy_apart(database: Database) -> None:
    """All but the rest, by a connection of its own."""
    apart = Database(database.path, max_bytes=database.max_bytes)
    try:
        before = 0
        for _ in range(APART_ROUNDS):
            pages = apart.tidy()
            if pages is None or pages - before <= REST_PAGES:
                return
            before = pages
    finally:
        apart.close()
