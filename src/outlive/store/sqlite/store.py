"""The store behind the file: everything encoded in memory for reading, every write on disk first.

Writes that wait are judged together, each on top of those before it, and written in one transaction with
one sync; a refused write is answered without harming its neighbours. Nothing is shown to readers or
observers before the disk has it. What this store does not do: serve a second process, which comes through
the HTTP server instead (docs/reference/store.md#sqlite).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from outlive.base import Clock, Ids, OutliveError, Unavailable, Unknown, get_logger, limits
from outlive.resources import KINDS, Resource
from outlive.store.local import Judge, LocalStore
from outlive.store.memory import MemoryStore
from outlive.store.sqlite.database import PAGE_BYTES, Database, DirectoryLock, Fate
from outlive.store.tables import WriteBatch

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

    def note_written(self, documents: Iterable[bytes | None]) -> None:
        """These documents (``None``: removals) were added to the log, each in pages of its own."""
        self._written += sum(len(document or b"") // PAGE_BYTES + 1 for document in documents)
        if self._written >= TIDY_PAGES and self._running is None:
            self._written = 0
            self._running = asyncio.create_task(self._tidy(), name="store.sqlite.tidier")

    async def wait_idle(self) -> None:
        """Wait until nothing is under way and the second connection is closed."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def close(self) -> None:
        """Wait for what is under way, then let go of the thread."""
        await self.wait_idle()
        self._thread.shutdown(wait=False)

    async def _tidy(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, _tidy_separately, self._database)
            await loop.run_in_executor(self._writer, self._database.tidy)
        finally:
            self._running = None


def _tidy_separately(database: Database) -> None:
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


DATABASE_FILE = "store.db"
LOCK_FILE = "store.lock"
REVISION_BLOCK = 2**20
"""Versions are reserved on disk in blocks of this many, so that none is given twice after a crash."""

_log = get_logger("store.sqlite")
_Waiting = tuple[Judge, "asyncio.Future[Resource]"]


class SqliteStore(LocalStore):
    """A store in a directory. Make it with ``open``."""

    def __init__(
        self,
        clock: Clock,
        ids: Ids,
        *,
        kinds: Mapping[str, type[Resource]],
        database: Database,
        lock: DirectoryLock,
        thread: ThreadPoolExecutor,
    ) -> None:
        super().__init__(clock, ids, kinds=kinds)
        self._database = database
        self._lock = lock
        self._thread = thread
        self._tidier = Tidier(thread, database)
        self._ceiling = 0
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._doubt: WriteBatch | None = None
        """A batch that may be in the file, which cannot be read at the moment."""
        self._writer: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock,
        ids: Ids,
        kinds: Mapping[str, type[Resource]] = KINDS,
        max_bytes: int = limits.STORE_BYTES,
    ) -> SqliteStore:
        """Open the store in the directory ``path``, which is made if it is missing.

        ``InUse`` if another process (or another store of this one) has it, ``BadInput`` if it is of a newer
        Outlive, foreign or damaged, ``Unavailable`` if the disk does not work. The file grows to at most
        ``max_bytes``; beyond them writes are refused as on a full disk.
        """
        directory = Path(path)
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="outlive-store")
        try:
            lock = await loop.run_in_executor(thread, DirectoryLock.take, directory, LOCK_FILE)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        store = cls(
            clock,
            ids,
            kinds=kinds,
            database=Database(directory / DATABASE_FILE, max_bytes=max_bytes),
            lock=lock,
            thread=thread,
        )
        try:
            await loop.run_in_executor(thread, store._load)
        except BaseException:
            await store._release()
            raise
        store._writer = asyncio.create_task(store._write_for_ever(), name="store.sqlite.writer")
        return store

    async def close(self) -> None:
        """Finish the writes that were taken, then let go of the directory. Closing twice is harmless."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        _answer_all(list(self._waiting), Unavailable("the store was closed", remedy="open it again"))
        await super().close()
        await self._release()

    def _load(self) -> None:
        """In the thread: open the file and read everything."""
        self._database.open(self._ids.new_uuid())
        self.incarnation = self._database.read_meta("incarnation")
        self._tables.revision = self._ceiling = int(self._database.read_meta("ceiling", "0"))
        rows: dict[str, dict[str, bytes]] = {kind: {} for kind in self._tables.kinds}
        for kind, key, document in self._database.read_rows():
            if kind in rows:
                rows[kind][key] = document
        for kind, objects in rows.items():
            self._tables.load(kind, objects)

    async def _release(self) -> None:
        await self._tidier.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._lock.release()
        self._thread.shutdown(wait=False)

    async def _submit(self, judge: Judge) -> Resource:
        """Line up for the next transaction and wait until it is on disk."""
        if self._closing:
            raise Unavailable("the store was closed", remedy="open it again")
        if len(self._waiting) >= limits.WRITE_QUEUE:
            raise Unavailable(
                f"{limits.WRITE_QUEUE} writes are waiting for the store", remedy="write less at a time, then try again"
            )
        answer: asyncio.Future[Resource] = asyncio.get_running_loop().create_future()
        self._waiting.append((judge, answer))
        self._wake.set()
        return await answer

    async def _write_for_ever(self) -> None:
        while True:
            if not self._waiting:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(0)  # writers that are about to come join this transaction
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), limits.COMMIT_WRITES))]
            try:
                await self._commit(taken)
            except Exception as error:  # noqa: BLE001 - the writer must outlive a defect; those who wait hear of it
                _log.error("store.writer_failed", error=repr(error), exc_info=True)
                _answer_all(taken, Unknown(f"the store failed: {error!r}", remedy="read again before going on"))

    async def _commit(self, taken: list[_Waiting]) -> None:
        """Judge what was taken, write what is accepted, answer everybody."""
        if self._doubt is not None and not await self._resolve():
            self._note_failure(Fate.HIDDEN)
            _answer_all(taken, self._unavailable_error())
            return
        batch = WriteBatch(self._tables)
        answers: list[Resource | OutliveError] = [_run_judge(batch, judge) for judge, _ in taken]
        fate = await self._write_durably(batch) if batch.final else Fate.DURABLE
        if fate in (Fate.DURABLE, Fate.DOUBTFUL):
            self._count(batch)
        if fate is Fate.DURABLE:
            if batch.final and self.write_failure:
                self.write_failure = ""
                _log.info("store.writes_again", writes=len(batch.writes))
            for (_, future), answer in zip(taken, answers, strict=True):
                _set_answer(future, answer)
            self._tidier.note_written(batch.final.values())
            return
        self._note_failure(fate)
        if fate is Fate.HIDDEN:
            self._doubt = batch
        _answer_all(taken, self._unavailable_error() if fate is Fate.REFUSED else self._unknown_error())

    def _note_failure(self, fate: Fate) -> None:
        """Keep why writes fail; logged once for each reason, however many writes it refuses."""
        failure = self._database.failure
        if failure != self.write_failure:
            _log.error("store.write_failed", fate=fate.value, error=failure)
        self.write_failure = failure

    async def _write_durably(self, batch: WriteBatch) -> Fate:
        ceiling = None
        if self._tables.revision >= self._ceiling:
            ceiling = self._tables.revision + REVISION_BLOCK
        write = partial(self._database.write, dict(batch.final), ceiling=ceiling)
        fate = await asyncio.get_running_loop().run_in_executor(self._thread, write)
        if fate is Fate.HIDDEN:
            fate = await self._reread(batch)
        if ceiling is not None and fate is Fate.DURABLE:
            self._ceiling = ceiling
        return fate

    async def _resolve(self) -> bool:
        """Find out about the batch in doubt; false while the file cannot be read."""
        assert self._doubt is not None
        fate = await self._reread(self._doubt)
        if fate is Fate.HIDDEN:
            return False
        if fate is Fate.DOUBTFUL:
            self._count(self._doubt)
        self._doubt = None
        return True

    async def _reread(self, batch: WriteBatch) -> Fate:
        """Look whether the batch is in the file, as its only user: what the log then shows is what stays."""
        await self._tidier.wait_idle()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._database.reread, dict(batch.final))

    def _unavailable_error(self) -> Unavailable:
        return Unavailable(
            f"the store could not write: {self._database.failure}",
            remedy="free space on the disk of the state directory, or repair it; nothing was written",
        )

    def _unknown_error(self) -> Unknown:
        return Unknown(
            f"the store may have written this or not: {self._database.failure}",
            remedy="read the object again before going on, and look at the disk",
        )


async def read_snapshot(path: Path | str, *, clock: Clock, ids: Ids) -> MemoryStore:
    """What the store in the directory holds at this moment, as a store in memory; a server may start on it meanwhile.

    ``BadInput`` if it is of a newer Outlive, foreign or damaged, ``Unavailable`` if the disk does not work.
    """
    database = Database(Path(path) / DATABASE_FILE, max_bytes=limits.STORE_BYTES)
    try:
        facts, documents = await asyncio.to_thread(database.read_whole)
    finally:
        database.close()
    store = MemoryStore(clock, ids)
    store.embedded = True
    store.incarnation = facts.get("incarnation", "")
    store.load_documents(documents, revision=int(facts.get("ceiling", "0")))
    return store


def _run_judge(batch: WriteBatch, judge: Judge) -> Resource | OutliveError:
    try:
        write = judge(batch)
    except OutliveError as error:
        return error
    batch.add(write)
    return write.answer


def _set_answer(future: asyncio.Future[Resource], answer: Resource | OutliveError) -> None:
    if future.done():
        return
    if isinstance(answer, OutliveError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _answer_all(taken: list[_Waiting], error: OutliveError) -> None:
    for _, future in taken:
        _set_answer(future, type(error)(error.message, place=error.place, remedy=error.remedy))
