"""Leader election among equal processes.

An election is an optimisation and never exclusivity: a process that was paused goes on for a moment as the leader
that it no longer is, so whatever must not happen twice is guarded by its own compare-and-swap. What does hold: at
most one process ever wins a given term, terms rise with each change of holder, and while clocks run at nearly the
same rate a leader stops believing before another may take over.

The object ``Election/<role>`` is one document. The holder writes it anew every ``renew_s``; a candidate that has not
seen it *change* for ``silence_s`` of its own monotonic clock takes over by compare-and-swap; a leader measures its
belief by a clock that goes on while its machine sleeps. No wall clock is compared. A lost answer is settled by a
fresh read that looks for the nonce of this process
(docs/reference/runtime.md#election).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from outlive.base import (
    AlreadyExists,
    BadInput,
    Clock,
    Conflict,
    Ids,
    NotFound,
    OutliveError,
    Unavailable,
    deadline,
    get_logger,
)
from outlive.resources import Election, ElectionRecord, ObjectMeta
from outlive.runtime.periodic import Periodic
from outlive.store import Store

RENEW_S: Final = 2.0
"""How often the holder writes and candidates read, unless asked otherwise."""
SILENCE_S: Final = 12.0
"""How long a candidate sees no change before it takes over, unless asked otherwise."""
BELIEF: Final = 0.75
"""The part of ``silence_s`` for which a leader believes itself one after it began its last acknowledged write."""
ROUNDS_LEAST: Final = 4
"""``silence_s`` is at least so many ``renew_s``, so that one slow write loses nothing."""

UPDATE_TRIES: Final = 4
"""Writes of one change of the record, where others write parts of it at the same time."""

_log = get_logger("election")


class Elector:
    """One candidate for one role. ``identity`` is for people; two candidates of one identity are distinct."""

    def __init__(
        self,
        store: Store,
        role: str,
        identity: str,
        *,
        clock: Clock,
        ids: Ids,
        renew_s: float = RENEW_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        if renew_s <= 0 or silence_s < ROUNDS_LEAST * renew_s:
            raise BadInput(
                f"election {role}: silence of {silence_s:g} s is too short for renewals every {renew_s:g} s",
                remedy=f"at least {ROUNDS_LEAST} times the renewal interval",
            )
        self.role = role
        self.identity = identity
        self._store = store
        self._clock = clock
        self._ids = ids
        self._renew_s = renew_s
        self._silence_s = silence_s
        self._held: Election | None = None
        """The object as this leader last saw it; ``None`` for a candidate."""
        self._nonce = ids.new_uuid()
        """In every record that this process writes as the holder."""
        self._doubt = False
        """The answer to the last write was lost: read before writing again."""
        self._renewed_at = 0.0
        self._term = 0
        self._highest = 0
        self._seen = ""
        self._seen_at = 0.0
        self._leads = asyncio.Event()
        self._writing = asyncio.Lock()
        self._lost = asyncio.Event()
        self._lost.set()

    @property
    def is_leader(self) -> bool:
        """Whether this process believes that it leads, by its clock at this very moment."""
        return self._held is not None and self._belief_left_s() > 0

    @property
    def term(self) -> int:
        """The term that this process leads, or led last; 0 if it never did."""
        return self._term

    async def wait_leader(self) -> int:
        """Return the term once this process leads."""
        await self._leads.wait()
        return self._term

    async def wait_lost(self) -> None:
        """Return once it does not lead."""
        await self._lost.wait()

    async def run(self) -> None:
        """Be a candidate until cancelled; a leader that is cancelled gives the role back, if it can at once."""
        try:
            await self._run_loop()
        finally:
            held, sure = self._held, self.is_leader and not self._doubt
            self._step_down("stopped")
            if held is not None and sure:
                await self._write_release(held)

    async def _run_loop(self) -> None:
        await Periodic(self._run_round, self._pause_s, clock=self._clock).run()

    @property
    def record(self) -> ElectionRecord | None:
        """As this leader wrote it last; ``None`` for a candidate."""
        return self._held.record if self._held is not None else None

    async def mark(self, **changes: object) -> bool:
        """Change the record as its leader; whether that was acknowledged. Errors of the store."""
        return await self.update(lambda _record: changes)

    async def update(self, change: Callable[[ElectionRecord], Mapping[str, object]]) -> bool:
        """The same, where the change depends on the record: others may write parts of it as well."""
        async with self._writing:
            with deadline(self._renew_s):
                for _ in range(UPDATE_TRIES):
                    if self._held is None or not self.is_leader:
                        return False
                    if self._doubt:
                        await self._read_and_decide()
                        if self._held is None or self._doubt:
                            continue
                    await self._write(self._held, self._term, **change(self._held.record))
                    if not self._doubt:
                        return True
            return False

    async def confirm(self, term: int) -> bool:
        """Whether the store says, when it is read now, that this process leads in this term. Errors of the store."""
        with deadline(self._renew_s):
            record = (await self._store.get(Election, self.role, fresh=True)).record
        self._highest = max(self._highest, record.term)
        return record.term == term and record.nonce == self._nonce and self.is_leader

    async def release(self, **changes: object) -> bool:
        """Let others have the role; this one remains a candidate. Whether that was acknowledged."""
        async with self._writing:
            held, sure = self._held, self.is_leader and not self._doubt
            self._step_down("given back")
            if held is None or not sure:
                return False
            return await self._write_release(held, **changes)

    @property
    def belief_left_s(self) -> float:
        """For how long this process believes that it leads unless it writes again; negative: it does not."""
        return self._belief_left_s() if self._held is not None else -1.0

    def _belief_left_s(self) -> float:
        return self._renewed_at + BELIEF * self._silence_s - self._clock.latest()

    def _pause_s(self) -> float:
        if self._held is None:
            return self._renew_s
        return max(0.0, min(self._renew_s, self._belief_left_s()))

    async def _run_round(self) -> None:
        """One look or write. An error of the store ends the round, not the candidacy."""
        if self._held is not None and not self.is_leader:
            self._step_down("renewals failed")
        patience_s = self._renew_s
        if self._held is not None:
            patience_s = min(patience_s, self._belief_left_s())
        try:
            async with self._writing:
                with deadline(patience_s):
                    if self._held is not None and not self._doubt:
                        await self._write(self._held, self._term)
                    else:
                        await self._read_and_decide()
        except TimeoutError:
            _log.warning("election.slow_store", role=self.role, identity=self.identity, patience_s=patience_s)
        except OutliveError as error:
            _log.warning("election.store_failed", role=self.role, identity=self.identity, error=str(error))

    async def _read_and_decide(self) -> None:
        """Read what is there: renew what turns out to be mine, take over what is free or silent."""
        try:
            current = await self._store.get(Election, self.role, fresh=True)
        except NotFound:
            self._step_down("the election was deleted")
            await self._create()
            return
        record = current.record
        self._highest = max(self._highest, record.term)
        self._doubt = False
        if record.nonce == self._nonce:
            await self._write(current, record.term)
            return
        self._step_down(f"{record.holder or 'nobody'} holds it")
        if self._may_take(current):
            await self._write(current, record.term + 1, **self._takeover_fields(record))

    def _may_take(self, current: Election) -> bool:
        """Whether it is free, or silent."""
        return not current.record.holder or self._is_silent(current)

    def _takeover_fields(self, _record: ElectionRecord) -> dict[str, object]:
        """What else is written when it is taken over."""
        return {}

    def _is_silent(self, current: Election) -> bool:
        mark = f"{current.metadata.uid}/{current.metadata.resource_version}"
        now = self._clock.monotonic()
        if mark != self._seen:
            self._seen, self._seen_at = mark, now
        return now - self._seen_at >= self._silence_s

    async def _create(self) -> None:
        first = ElectionRecord(holder=self.identity, term=self._highest + 1, nonce=self._nonce)
        record = msgspec.structs.replace(first, **self._takeover_fields(ElectionRecord()))
        began_at = self._clock.latest()
        with contextlib.suppress(AlreadyExists):
            self._lead(await self._store.create(Election(metadata=ObjectMeta(name=self.role), record=record)), began_at)

    async def _write(self, current: Election, term: int, **changes: object) -> None:
        """Compare-and-swap on what was read. After a conflict or a lost answer the next round reads first."""
        renewals = current.record.renewals + 1
        own: dict[str, object] = {"holder": self.identity, "term": term, "renewals": renewals, "nonce": self._nonce}
        record = msgspec.structs.replace(current.record, **own, **changes)
        began_at = self._clock.latest()
        self._doubt = True
        try:
            written = await self._store.replace(msgspec.structs.replace(current, record=record))
        except Unavailable:
            self._doubt = self._held is None
            raise
        except Conflict:
            _log.info("election.conflict", role=self.role, identity=self.identity, term=term)
            return
        self._lead(written, began_at)

    def _lead(self, written: Election, began_at: float) -> None:
        self._doubt = False
        self._renewed_at = began_at
        first = self._held is None
        self._held = written
        self._term = written.record.term
        self._highest = max(self._highest, self._term)
        if first:
            _log.info("election.won", role=self.role, identity=self.identity, term=self._term)
            self._lost.clear()
            self._leads.set()

    def _step_down(self, why: str) -> None:
        if self._held is None:
            return
        self._held = None
        _log.info("election.lost", role=self.role, identity=self.identity, term=self._term, why=why)
        self._leads.clear()
        self._lost.set()

    async def _write_release(self, held: Election, **changes: object) -> bool:
        renewals, nonce = held.record.renewals + 1, self._ids.new_uuid()
        own: dict[str, object] = {"holder": "", "renewals": renewals, "nonce": nonce, "phase": ""}
        record = msgspec.structs.replace(held.record, previous=self.identity, **own, **changes)
        try:
            with deadline(self._renew_s):
                await self._store.replace(msgspec.structs.replace(held, record=record))
        except (OutliveError, TimeoutError) as error:
            _log.info("election.not_given_back", role=self.role, identity=self.identity, error=str(error))
            return False
        return True
