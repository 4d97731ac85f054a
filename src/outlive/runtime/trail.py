"""Writes down the decisions of the safety protocol that were acted on, so that anybody can ask why, later and offline.

It listens to the ``DecisionLog`` of a process.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from outlive.base import Clock
from outlive.resources import DecisionRecord, ObjectMeta
from outlive.runtime.decisions import DecisionLog, Use
from outlive.runtime.retention import BackgroundWriter, Sweeper, Waiting
from outlive.store import Store

QUEUE_LIMIT: Final = 5_000
"""Records that wait to be written."""
RECORD_BYTES: Final = 64 * 1024
"""The largest input, and the largest output, that a record keeps."""
KEPT: Final = 20_000
"""Records that are kept."""
KEPT_S: Final = 7 * 86400.0
"""How long records are kept."""
TICK_S: Final = 1e-6
"""By so much later at least each record of a process is than the one before."""
RECORDED: Final = ("safety.", "recovery.", "fence.", "host.leave", "failover.rebalance")
"""Beginnings of the names of decisions that are recorded."""
NOT_RECORDED: Final = frozenset({"safety.renew"})
"""What happens all the time."""


class Trail(BackgroundWriter[Use]):
    """The trail of one process, ``by`` name."""

    what = "trail"

    def __init__(self, store: Store, *, by: str, clock: Clock) -> None:
        super().__init__(clock, limit=QUEUE_LIMIT)
        self._store = store
        self._by = by
        self._last = 0.0
        self._numbers = itertools.count()

    def follow(self, log: DecisionLog) -> None:
        """Record the uses of this log from now on."""
        log.listen(self._record)

    def _record(self, use: Use) -> None:
        if use.empty or use.name in NOT_RECORDED or not use.name.startswith(RECORDED):
            return
        self.put(next(self._numbers), lambda _now: use)

    def prepare_write(self, waiting: Waiting[Use]) -> Callable[[], Awaitable[object]]:
        """Create the record. After a lost answer it may be there twice; a reader does not mind."""
        use = waiting.item
        # later than what this process decided before, so that a reader sees the order
        self._last = max(use.at, self._last + TICK_S)
        record = DecisionRecord(
            metadata=ObjectMeta(generate_name=f"{use.name.replace('.', '-').replace('_', '-')}-"),
            decision=use.name,
            subject=use.subject,
            by=self._by,
            at=datetime.fromtimestamp(self._last, UTC),
            request_id=use.request,
            input=_limit_text(use.input),
            output=_limit_text(use.output),
            input_digest=use.input_digest,
        )
        return lambda: self._store.create(record)


def trail_sweeper(store: Store, clock: Clock) -> Sweeper[DecisionRecord]:
    """Deletes records that nobody will ask for any more."""
    return Sweeper(store, DecisionRecord, seen=lambda record: record.at, keep_s=KEPT_S, keep=KEPT, clock=clock)


def _limit_text(raw: bytes) -> str:
    return raw.decode() if len(raw) <= RECORD_BYTES else ""
