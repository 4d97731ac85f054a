"""Batches of changes, one after the other: decided, committed by one write, and applied.

A batch counts as a whole once the log has it (``change_log``); whatever is in the way afterwards, it is applied, by
this process or by the next one that leads (docs/reference/commitments.md#batches). Nothing is undone in the store,
because nothing is written before. What is not promised: while the store does not say whether it took a batch, no other
one is decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.base import Clock, LimitExceeded, OutliveError, Unavailable, Unknown, deadline, get_logger, set_within
from outlive.commitments.answers import Answered
from outlive.commitments.application import ChangeApplier
from outlive.commitments.batch import Batch, dry_run_timeout_text, timeout_text
from outlive.commitments.change_log import RETRY_CAP_S, RETRY_S, ChangeLog, Displaced
from outlive.commitments.decision import BATCH, BatchDecider, BatchRefusal
from outlive.commitments.domains import DomainNames
from outlive.commitments.names import commitment_name
from outlive.commitments.settings import CommitmentSettings
from outlive.resources import CommitmentChange, CommitmentStep

BATCHES_LIMIT: Final = 64
"""Batches that wait; one more is refused."""
RESTORED_S: Final = 10.0
"""How often it is seen whether the store went back to a backup."""

CHANGES: Final = "changes"
"""All of them, where they cannot be read."""

_log = get_logger("commitments.changes")


class _Asked(msgspec.Struct):
    """A batch that waits for its answer."""

    batch: Batch
    request_id: str
    requested_by: str
    digest: str
    """Where the caller named the request: of what it asks for."""
    answer: asyncio.Future[BatchRefusal | None]
    deadline_s: float
    begun: bool = False
    """Whether it is being decided."""


class CommitmentChanges:
    """See the module. ``turn``: held by each placement."""

    def __init__(
        self,
        log: ChangeLog,
        decider: BatchDecider,
        applier: ChangeApplier,
        settings: CommitmentSettings,
        *,
        domains: DomainNames,
        turn: asyncio.Lock,
        clock: Clock,
    ) -> None:
        self._domains = domains
        self._changes = log
        self._decider = decider
        self._applier = applier
        self._settings = settings
        self._lock = asyncio.Lock()
        self._turn = turn
        self._clock = clock
        self._waiting: deque[_Asked] = deque()
        self._added = asyncio.Event()
        self._finished = asyncio.Event()
        """Set while this process decides: it leads, and all that was committed before is applied."""

    @asynccontextmanager
    async def lock_decisions(self) -> AsyncIterator[None]:
        """Be the only one who decides about commitment slots. Before all that was committed is applied nobody is:
        slots that a change hands over would be taken for slots of a commitment that is over."""
        while True:
            await self._finished.wait()
            async with self._lock:
                if self._finished.is_set():
                    yield
                    return

    async def recall(self, request_id: str, digest: str) -> Answered | None:
        """What the request was answered before, if that is known; ``Conflict`` where its name is that of another one.

        ``Unavailable`` where this process does not decide, or cannot say it in time.
        """
        self._check_leads()
        try:
            with deadline(self._settings.watch_timeout):
                async with self._lock:  # a batch whose caller went away may still be written
                    known = self._changes.answers.get(request_id, digest)
                    if known is not None and known.refusal is not None:
                        await self._changes.check_leads()
                    return known
        except TimeoutError:
            raise Unavailable("other batches are still applied", remedy="ask again in a moment") from None

    async def change(
        self, batch: Batch, *, request_id: str, requested_by: str, digest: str = ""
    ) -> BatchRefusal | None:
        """The answer to a batch: nothing once all of it counts, else why none of it does.

        ``digest``: where the caller named the request, of what it asks for; ``recall`` knows the answer then.
        A caller that is cancelled before the batch is committed takes it back. One that has waited for its turn for
        ``watch_timeout`` is refused. ``Unavailable`` where this process does not decide, or where the store does not
        take the batch; ``LimitExceeded`` where too many wait; ``Unknown`` where nobody knows whether it counts.
        """
        self._check_leads()
        if len(self._waiting) >= BATCHES_LIMIT:
            raise LimitExceeded(f"{BATCHES_LIMIT} batches wait already", remedy="ask again in a moment")
        asked = _Asked(
            batch=batch,
            request_id=request_id,
            requested_by=requested_by,
            digest=digest,
            answer=asyncio.get_running_loop().create_future(),
            deadline_s=self._clock.monotonic() + self._settings.watch_timeout,
        )
        self._waiting.append(asked)
        self._added.set()
        try:
            with deadline(self._settings.watch_timeout):
                return await asyncio.shield(asked.answer)
        except TimeoutError:
            if not asked.begun:
                _answer(asked, self._refuse_late(batch))
            return await asked.answer
        except asyncio.CancelledError:
            asked.answer.cancel()
            raise

    def _check_leads(self) -> None:
        if not self._finished.is_set():
            raise Unavailable("this process does not lead", remedy="ask again in a moment, or the one that leads")

    async def dry_run(self, batch: Batch, *, request_id: str) -> BatchRefusal | None:
        """Whether there is capacity for what the batch adds; nothing is done."""
        asked = batch if batch.dry_run else replace(batch, dry_run=True)
        return await self.change(asked, request_id=request_id, requested_by="")

    async def carry_out(self, step: CommitmentStep) -> None:
        """Write one step that Limes' own list asks for, which needs no confirmation (``StepWriter``).

        ``Conflict`` where the commitment is not what the step rests on any more.
        """
        async with self.lock_decisions():
            await self._applier.check(commitment_name(step.uuid), step.before)
            await self._applier.apply((step,), request_id="")

    async def run(self) -> None:
        """Finish what was decided before, then answer batches until cancelled."""
        while True:
            try:
                async with self._lock:
                    await self._retry_until_done(self._changes.begin, "commitment_change.not_begun")
                    await self._retry_until_done(self._finish, "commitment_change.not_taken_up")
                    self._finished.set()
                incarnation = ""
                while True:
                    says = await self._changes.read_incarnation()
                    if incarnation and says not in ("", incarnation):  # changes may have to be applied again
                        raise Displaced("the store went back to an earlier state", remedy="ask again in a moment")
                    incarnation = says or incarnation
                    if self._waiting:
                        await self._serve(self._waiting.popleft())
                        continue
                    self._added.clear()
                    await set_within(self._added, RESTORED_S)
            except Displaced as error:
                _log.warning("commitment_change.displaced", error=str(error))
            finally:
                self._finished.clear()
                while self._waiting:
                    _answer(self._waiting.popleft(), Unavailable("this process stops to lead", remedy="ask again"))
            await self._clock.sleep(RETRY_S)

    async def _serve(self, asked: _Asked) -> None:
        if asked.answer.done():
            return  # the caller gave up
        try:
            async with self._lock:
                await self._decide(asked)
        except OutliveError as error:
            _answer(asked, error)
            if isinstance(error, Displaced):
                raise
        except BaseException:
            _answer(asked, Unavailable("the batch was not decided", remedy="ask again"))
            raise

    async def _decide(self, asked: _Asked) -> None:
        await self._domains.resolve(asked.batch)
        async with self._turn:
            if self._clock.monotonic() >= asked.deadline_s:
                _answer(asked, self._refuse_late(asked.batch))
                return
            asked.begun = True
            if asked.batch.dry_run:
                _answer(asked, await self._decider.try_out(asked.batch, asked.deadline_s))
                return
            decided = await self._decider.decide(asked.batch, asked.deadline_s)
        if isinstance(decided, BatchRefusal):
            if asked.digest:
                await self._changes.check_leads()
            self._answer_unwritten(asked, decided)
            return
        if not decided.steps:
            self._applier.settle(BATCH)
            self._answer_unwritten(asked, None)  # nothing is asked for
            return
        draft = self._changes.draft_change(
            decided.steps,
            zone=asked.batch.zone,
            request_id=asked.request_id,
            digest=asked.digest,
            requested_by=asked.requested_by,
        )
        head: CommitmentChange | None = None
        try:
            head = None if asked.answer.done() else await self._changes.commit(draft, asked.deadline_s)
        except asyncio.CancelledError:
            _answer(asked, Unknown("nobody knows whether the batch counts", remedy="see what the commitments say"))
            raise
        finally:
            self._applier.settle(BATCH)  # what is committed, ``OpenChanges`` holds
        if head is None:
            reason = timeout_text(self._settings.watch_timeout, len(decided.steps))
            _answer(asked, BatchRefusal(reason, timed_out=True))
            return
        _answer(asked, None)
        await self._apply(head, decided.steps)

    def _refuse_late(self, batch: Batch) -> BatchRefusal:
        """The answer to a batch whose turn did not come in time."""
        number = sum(len(one.commitments) for p in batch.projects for one in p.resources)
        text = dry_run_timeout_text if batch.dry_run else timeout_text
        return BatchRefusal(text(self._settings.watch_timeout, number), timed_out=True)

    def _answer_unwritten(self, asked: _Asked, refusal: BatchRefusal | None) -> None:
        """The store knows nothing of this answer. What was not decided in time may be asked again."""
        if asked.digest and (refusal is None or not refusal.timed_out):
            self._changes.answers.keep(asked.request_id, asked.digest, refusal)
        _answer(asked, refusal)

    async def _finish(self) -> None:
        """Apply every change that was committed and is not applied yet. Errors of the store end it."""
        for head, steps in await self._changes.read_unfinished():
            _log.info("commitment_change.taken_up", change=head.name, commitments=len(steps))
            await self._apply(head, steps)

    async def _apply(self, head: CommitmentChange, steps: tuple[CommitmentStep, ...]) -> None:
        """Write all of a committed change, however long the store is away, and mark it."""

        async def apply_steps() -> None:
            if await self._changes.is_unfinished(head):
                await self._applier.apply(steps, request_id=head.request_id)
                await self._changes.mark_applied(head)

        await self._retry_until_done(apply_steps, "commitment_change.not_applied", head.name)

    async def _retry_until_done(self, act: Callable[[], Awaitable[None]], trouble: str, change: str = CHANGES) -> None:
        """Do it, again after a pause while the store is away."""
        pause_s, unapplied = RETRY_S, self._changes.unapplied
        try:
            while True:
                try:
                    await act()
                    return
                except OutliveError as error:
                    _log.warning(trouble, change=change, error=str(error))
                    unapplied[change] = str(error)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_CAP_S)
        finally:
            unapplied.pop(change, None)


def _answer(asked: _Asked, answer: BatchRefusal | OutliveError | None) -> None:
    if asked.answer.done():
        return
    if isinstance(answer, OutliveError):
        asked.answer.set_exception(answer)
    else:
        asked.answer.set_result(answer)
