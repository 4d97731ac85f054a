"""The logs of changes: every write adds an entry to that of its kind, in its own transaction.

An entry names what changed. The server numbers entries without gaps, and the state of a log says which number comes
next, so that a reader who knows how far it has come reads exactly what it has missed, and can tell whether that is
still there. Writers remove old entries apart from their transactions; a reader that comes too late lists again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from kazoo import exceptions as zk
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL

from outlive.base import OutliveError, Unavailable, get_logger
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import entry_number, entry_path
from outlive.store.zookeeper.requests import Operation, TransactionRefused, create, remove

KEPT: Final = 1024
"""Entries of all changes of a kind that stay for readers."""
KEPT_OF_HOST: Final = 64
"""Entries of the changes of one host's objects that stay."""
TRIM_EVERY: Final = 64
"""Entries that are removed together, by the writer of the last one of so many."""
SWEEP_EVERY: Final = 1024
"""After so many entries it is looked which older ones somebody failed to remove."""
RENEW_AT: Final = 2**28
"""After so many entries a log begins anew: the server's counter has 31 bits, of which a state shows 30."""

_log = get_logger("store.zookeeper")


class Lagging(Exception):
    """What a reader has missed is not there any more, or the log is another one: it has to list again."""


class LogEntry(msgspec.Struct, frozen=True):
    """What a write changed."""

    name: str
    uid: str
    gone: bool
    """Whether it was removed."""

    def encode(self) -> bytes:
        """As it is stored."""
        return f"{'d' if self.gone else 'u'},{self.name},{self.uid}".encode()


class LogPlace(msgspec.Struct, frozen=True):
    """How far a reader has come: the entry of this number is next."""

    log: int
    """The transaction that made the log."""
    number: int
    before: tuple[int, int] = (0, 0)
    """Transaction and time of the last entry that was read: an ensemble whose data was put back has others."""


def next_number(stat: ZnodeStat) -> int:
    """The number of the entry that comes next. The state counts creations and removals of children."""
    return (int(stat.cversion) + int(stat.children_count)) // 2


class LogReader:
    """Reads one log."""

    def __init__(
        self,
        client: ZooKeeperClient,
        path: str,
        wake: Callable[[Any], None] | None = None,
        make: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``wake``: called by another thread when there is more after ``is_behind``, or the log is made anew.
        ``make``: makes the log where nobody has made it yet."""
        self._client = client
        self._path = path
        self._wake = wake
        self._make = make

    async def find_end(self) -> LogPlace:
        """Where a reader begins that lists afterwards; the log is made where nobody has made it yet."""
        stat = await self._client.find_stat(self._path, fresh=True)
        if stat is None and self._make is not None:
            await self._make()
            stat = await self._client.find_stat(self._path, fresh=True)
        if stat is None:
            raise Unavailable(f"{self._path} does not stay", remedy="try again")
        return LogPlace(stat.czxid, next_number(stat))

    async def read_after(self, place: LogPlace, *, fresh: bool) -> tuple[list[LogEntry], LogPlace]:
        """What was written since; ``Lagging`` where that cannot be said. ``fresh``: in a new session."""
        stat = await self._client.find_stat(self._path, self._wake, fresh=fresh)
        if stat is None or stat.czxid != place.log:
            raise Lagging(f"{self._path} is another log")
        end = next_number(stat)
        if end < place.number or end - place.number > KEPT:
            raise Lagging(f"{self._path} is at {end}, and {place.number} comes next")
        if fresh and place.before != (0, 0):
            last = await self._client.get(entry_path(self._path, place.number - 1))
            if last is None or (last[1].czxid, last[1].ctime) != place.before:
                raise Lagging(f"{self._path} has another past")
        paths = [entry_path(self._path, number) for number in range(place.number, end)]
        found = await self._client.get_many(paths)
        entries: list[LogEntry] = []
        before = place.before
        for path, one in zip(paths, found, strict=True):
            if one is None:
                raise Lagging(f"{path} was removed")
            raw, state = one
            entries.append(_decode(path, raw))
            before = (state.czxid, state.ctime)
        return entries, LogPlace(place.log, end, before)

    async def is_behind(self, place: LogPlace) -> bool:
        """Whether there is more by now; else ``wake`` is called when there is."""
        return await self._client.find_stat(entry_path(self._path, place.number), self._wake) is not None


def _decode(path: str, raw: bytes) -> LogEntry:
    kind, _, rest = raw.decode("utf-8", "replace").partition(",")
    name, _, uid = rest.partition(",")
    if kind not in ("u", "d") or not name or not uid:
        raise Lagging(f"{path} is no entry")
    return LogEntry(name, uid, kind == "d")


async def trim(
    client: ZooKeeperClient,
    log: str,
    number: int,
    kept: int,
    *,
    acl: Sequence[ACL] = (),
    condition: Operation | None = None,
    renew_at: int = RENEW_AT,
) -> None:
    """Remove what is older than ``kept`` entries before ``number``, which was just written. Failures do no harm.
    ``condition``: under which the log is begun anew."""
    try:
        oldest = number - kept
        if number % SWEEP_EVERY == 0 or number >= renew_at:
            children = (await client.list_children((log,)))[0] or []
            numbers = sorted(entry_number(child) for child in children)
            if number >= renew_at:
                await _replace_log(client, log, numbers, acl, condition)
                return
            paths = [entry_path(log, one) for one in numbers if one < oldest]
        else:
            paths = [entry_path(log, one) for one in range(max(0, oldest - TRIM_EVERY), oldest)]
        await client.delete_many(paths)
    except (OutliveError, ValueError) as error:
        _log.info("store.zookeeper.not_trimmed", log=log, why=str(error))


async def _replace_log(
    client: ZooKeeperClient, log: str, numbers: list[int], acl: Sequence[ACL], condition: Operation | None
) -> None:
    """Replace the log by an empty one: its readers list again. A write that comes meanwhile has it refused."""
    try:
        removals = [remove(entry_path(log, one)) for one in numbers]
        conditions = [] if condition is None else [condition]
        await client.commit([*conditions, *removals, remove(log), create(log, b"", acl)])
    except TransactionRefused as refused:
        if not isinstance(refused.error, zk.NotEmptyError | zk.NoNodeError | zk.BadVersionError):
            raise Unavailable(f"{log} is not begun anew: {type(refused.error).__name__}") from None
