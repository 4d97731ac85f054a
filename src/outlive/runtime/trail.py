"""Writes down the decisions of the safety protocol that were acted on, so that anybody can ask why, later and offline.

It listens to the ``DecisionLog`` of a process and writes from one task; nobody waits for it and nothing depends on it:
where its queue is full or the store away, records are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import Final

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.resources import DecisionRecord, ObjectMeta
from outlive.runtime.decisions import DecisionLog, Use
from outlive.runtime.retention import Sweeper
from outlive.store import Store

QUEUE_LIMIT: Final = 5_000
"""Records that wait to be written."""
RECORD_BYTES: Final = 64 * 1024
"""The largest input, and the largest output, that a record keeps."""
KEPT: Final = 20_000
"""Records that are kept."""
KEPT_S: Final = 7 * 86400.0
"""How long records are kept."""
ATTEMPTS: Final = 5
"""Writes of one record before it is dropped."""
RETRY_S: Final = 0.5
"""The wait before another attempt; it doubles."""
FLUSH_S: Final = 10.0
"""How long the end of a process waits for its last records."""
TICK_S: Final = 1e-6
"""By so much later at least each record of a process is than the one before."""
RECORDED: Final = ("safety.", "recovery.", "fence.", "host.leave")
"""Beginnings of the names of decisions that are recorded."""
NOT_RECORDED: Final = frozenset({"safety.renew"})
"""What happens all the time."""

_log = get_logger("trail")


class Trail:
    """The trail of one process, ``by`` name."""

    def __init__(self, store: Store, *, by: str, clock: Clock) -> None:
        self.dropped = 0
        """Records lost, because the queue was full or the store away."""
        self._store = store
        self._by = by
        self._clock = clock
        self._last = 0.0
        self._waiting: deque[Use] = deque()
        self._some = asyncio.Event()

    def follow(self, log: DecisionLog) -> None:
        """Record what this log is told from now on."""
        log.listen(self._heard)

    async def run(self) -> None:
        """Write what was decided, until cancelled."""
        while True:
            await self._some.wait()
            if not self._waiting:
                self._some.clear()
                continue
            await self._write(self._waiting.popleft())

    async def flush(self) -> None:
        """Write what waits now, for ``FLUSH_S`` at most; for the end of a process."""
        writing = 0
        try:
            async with asyncio.timeout(FLUSH_S):
                while self._waiting:
                    use, writing = self._waiting.popleft(), 1
                    await self._write(use)
                    writing = 0
        except TimeoutError:
            self.dropped += len(self._waiting) + writing
            self._waiting.clear()

    def _heard(self, use: Use) -> None:
        if use.empty or use.name in NOT_RECORDED or not use.name.startswith(RECORDED):
            return
        if len(self._waiting) >= QUEUE_LIMIT:
            self.dropped += 1
            return
        self._waiting.append(use)
        self._some.set()

    def _moment(self, at: float) -> datetime:
        """When it was decided; later than what this process decided before, so that whoever reads sees the order."""
        self._last = max(at, self._last + TICK_S)
        return datetime.fromtimestamp(self._last, UTC)

    async def _write(self, use: Use) -> None:
        record = DecisionRecord(
            metadata=ObjectMeta(generate_name=f"{use.name.replace('.', '-').replace('_', '-')}-"),
            decision=use.name,
            subject=use.subject,
            by=self._by,
            at=self._moment(use.at),
            request_id=use.request,
            input=_kept(use.input),
            output=_kept(use.output),
            input_digest=use.input_digest,
        )
        for attempt in range(ATTEMPTS):
            try:
                await self._store.create(record)
            except OutliveError as error:
                # After a lost answer the record may be there twice; a reader does not mind.
                _log.info("trail.not_written", decision=use.name, error=str(error))
                await self._clock.sleep(RETRY_S * 2.0**attempt)
            else:
                return
        self.dropped += 1


def trail_sweeper(store: Store, clock: Clock) -> Sweeper[DecisionRecord]:
    """Deletes records that nobody will ask for any more."""
    return Sweeper(store, DecisionRecord, seen=lambda record: record.at, keep_s=KEPT_S, keep=KEPT, clock=clock)


def _kept(raw: bytes | None) -> str:
    return raw.decode() if raw is not None and len(raw) <= RECORD_BYTES else ""
