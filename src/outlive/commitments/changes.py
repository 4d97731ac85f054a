"""Batches of changes, one after the other: decided, committed by one write, and applied.

A batch counts as a whole from the creation of its ``CommitmentChange`` on; whatever is in the way afterwards, it is
applied, by this process or by the next one that leads (docs/reference/commitments.md#batches). Nothing is undone in the
store, because nothing is written before. Changes are numbered without a gap, and a leader takes a number before it
decides anything: what a former leader still sends finds its number taken. What is not promised: while the store does
not say whether that one write was applied, no other batch is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.base.clock import Clock, as_datetime
from outlive.base.deadline import deadline, set_within
from outlive.base.errors import AlreadyExists, LimitExceeded, NotFound, OutliveError, Unavailable, Unknown
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.commitments.answers import Answered, Answers
from outlive.commitments.application import ChangeApplier
from outlive.commitments.batch import Batch, dry_run_timeout_text, timeout_text
from outlive.commitments.decision import Accepted, Decider, Refusal
from outlive.commitments.documents import documents_of, joined
from outlive.commitments.names import change_name, change_number, commitment_name
from outlive.commitments.settings import CommitmentSettings
from outlive.resources import Cluster, CommitmentChange, CommitmentStep, ObjectMeta
from outlive.resources.cluster import CLUSTER
from outlive.store import Store, list_all
from outlive.store.access import CALL_S, LIST_S, answered, read

BATCHES_LIMIT: Final = 64
"""Batches that wait; one more is refused."""
RETRY_S: Final = 0.5
"""The first pause after a write of which nobody knows what became of it; it doubles."""
RETRY_CAP_S: Final = 15.0
KEPT_S: Final = 30 * 86_400.0
"""How long the record of a change is kept."""
KEPT: Final = 10_000
"""Records that are kept at most."""
RESTORED_S: Final = 10.0
"""How often it is seen whether the store went back to a backup."""
SWEEP_S: Final = 3600.0
"""How often old records are looked for."""
WITHDRAWN_KEPT_S: Final = 86_400.0
"""How long it is kept that nothing was done: a change that is withdrawn, and parts of one that never came to be."""

_log = get_logger("commitments.changes")


class Displaced(Unavailable):
    """Another process leads, or the store went back: what this one decides rests on a state that is no more."""


class _Asked(msgspec.Struct):
    """A batch that waits for its answer."""

    batch: Batch
    request_id: str
    requested_by: str
    digest: str
    """Where the caller named the request: of what it asks for."""
    answer: asyncio.Future[Refusal | None]
    deadline_s: float
    begun: bool = False
    """Whether it is being decided."""


class Changes:
    """See the module. ``turn`` is held by whoever places."""

    def __init__(
        self,
        store: Store,
        decider: Decider,
        applier: ChangeApplier,
        settings: CommitmentSettings,
        *,
        turn: asyncio.Lock,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._store = store
        self._decider = decider
        self._applier = applier
        self._settings = settings
        self._lock = asyncio.Lock()
        self._turn = turn
        self._clock = clock
        self._ids = ids
        self._answers = Answers(clock)
        self._last = 0
        """The number of the last change."""
        self._waiting: deque[_Asked] = deque()
        self._added = asyncio.Event()
        self._finished = asyncio.Event()
        """Set while this process decides: it leads, and all that was committed before is applied."""

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[None]:
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
                    known = self._answers.get(request_id, digest)
                    if known is not None and known.refusal is not None:
                        await self._check_alone()
                    return known
        except TimeoutError:
            raise Unavailable("other batches are still applied", remedy="ask again in a moment") from None

    async def change(self, batch: Batch, *, request_id: str, requested_by: str, digest: str = "") -> Refusal | None:
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
                _answer(asked, self._late(batch))
            return await asked.answer
        except asyncio.CancelledError:
            asked.answer.cancel()
            raise

    def _check_leads(self) -> None:
        if not self._finished.is_set():
            raise Unavailable("this process does not lead", remedy="ask again in a moment, or the one that leads")

    async def _check_alone(self) -> None:
        """``Unavailable`` where another process leads, which may have accepted what this one refused."""
        if await read(self._store, CommitmentChange, change_name(self._last + 1)) is not None:
            raise Unavailable("another process leads", remedy="ask again in a moment")

    async def dry_run(self, batch: Batch, *, request_id: str) -> Refusal | None:
        """Whether there is capacity for what the batch adds; nothing is done."""
        asked = batch if batch.dry_run else replace(batch, dry_run=True)
        return await self.change(asked, request_id=request_id, requested_by="")

    async def carry_out(self, step: CommitmentStep) -> None:
        """Write one step that Limes' own list asks for, which needs no confirmation (``StepWriter``).

        ``Conflict`` where the commitment is not what the step rests on any more.
        """
        async with self.deciding():
            await self._applier.check(commitment_name(step.uuid), step.before)
            await self._applier.apply((step,), request_id="")

    async def run(self) -> None:
        """Finish what was decided before, then answer batches until cancelled."""
        while True:
            try:
                async with self._lock:
                    await self._until_done(self._begin, "commitment_change.not_begun")
                    await self._until_done(self._finish, "commitment_change.not_taken_up")
                    self._finished.set()
                await self._answer_batches()
            except Displaced as error:
                _log.warning("commitment_change.displaced", error=str(error))
            finally:
                self._finished.clear()
                while self._waiting:
                    _answer(self._waiting.popleft(), Unavailable("this process stops to lead", remedy="ask again"))
            await self._clock.sleep(RETRY_S)

    async def _answer_batches(self) -> None:
        """In a store that went back to a backup, changes may be to be applied again: then all begins anew."""
        incarnation = ""
        while True:
            says = await self._incarnation()
            if incarnation and says not in ("", incarnation):
                raise Displaced("the store went back to an earlier state", remedy="ask again in a moment")
            incarnation = says or incarnation
            if self._waiting:
                await self._serve(self._waiting.popleft())
                continue
            self._added.clear()
            await set_within(self._added, RESTORED_S)

    async def _incarnation(self) -> str:
        """Of the store; empty where it does not say."""
        try:
            cluster = await read(self._store, Cluster, CLUSTER)
        except OutliveError:
            return ""
        return cluster.status.store_incarnation if cluster is not None else ""

    async def clean(self) -> None:
        """Delete records that nobody asks for any more, every hour, until cancelled. What fails waits for the next."""
        while True:
            try:
                await self.sweep()
            except OutliveError as error:
                _log.warning("commitment_change.not_swept", error=str(error))
            await self._clock.sleep(SWEEP_S)

    async def sweep(self) -> None:
        """Delete records that are old, and parts of changes that never came to be."""
        now = self._clock.now()
        heads: list[CommitmentChange] = []
        parts: list[CommitmentChange] = []
        async for change in list_all(self._store, CommitmentChange):
            (parts if change.part_of else heads).append(change)
        heads.sort(key=lambda one: change_number(one.name), reverse=True)
        earlier = heads[1:]  # the last one stays, because its number must not be used again
        applied = [one for one in earlier if one.phase == "applied"]
        old = [one for place, one in enumerate(applied) if place >= KEPT or _age_s(one, now) > KEPT_S]
        old += [one for one in earlier if one.phase == "withdrawn" and _age_s(one, now) > WITHDRAWN_KEPT_S]
        known, gone = {one.nonce for one in heads}, {one.nonce for one in old}
        orphans = [one for one in parts if one.part_of not in known and _age_s(one, now) > WITHDRAWN_KEPT_S]
        for one in (*orphans, *(part for part in parts if part.part_of in gone), *old):
            with contextlib.suppress(NotFound), answered("an old change"):
                await self._store.delete(one.ref, uid=one.metadata.uid)
            self._answers.forget(one)

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
        async with self._turn:
            if self._clock.monotonic() >= asked.deadline_s:
                _answer(asked, self._late(asked.batch))
                return
            asked.begun = True
            if asked.batch.dry_run:
                _answer(asked, await self._decider.try_out(asked.batch, asked.deadline_s))
                return
            decided = await self._decider.decide(asked.batch, asked.deadline_s)
        if isinstance(decided, Refusal):
            if asked.digest:
                await self._check_alone()
            self._answer_unwritten(asked, decided)
            return
        if not decided.steps:
            self._answer_unwritten(asked, None)  # nothing is asked for
            return
        documents = documents_of(self._change(asked, decided))
        committed = False
        try:
            committed = not asked.answer.done() and await self._commit(documents, asked.deadline_s)
        except asyncio.CancelledError:
            _answer(asked, Unknown("nobody knows whether the batch counts", remedy="see what the commitments say"))
            raise
        finally:
            if not committed:
                self._applier.take_back(decided.steps)
        if not committed:
            reason = timeout_text(self._settings.watch_timeout, len(decided.steps))
            _answer(asked, Refusal(reason, timed_out=True))
            return
        self._answers.note(documents[-1])
        _answer(asked, None)
        await self._apply(documents[-1], decided.steps)

    def _late(self, batch: Batch) -> Refusal:
        """The answer to a batch whose turn did not come in time."""
        number = sum(len(one.commitments) for p in batch.projects for one in p.resources)
        text = dry_run_timeout_text if batch.dry_run else timeout_text
        return Refusal(text(self._settings.watch_timeout, number), timed_out=True)

    def _answer_unwritten(self, asked: _Asked, refusal: Refusal | None) -> None:
        """The store knows nothing of this answer. What was not decided in time may be asked again."""
        if asked.digest and (refusal is None or not refusal.timed_out):
            self._answers.keep(asked.request_id, asked.digest, refusal)
        _answer(asked, refusal)

    def _change(self, asked: _Asked, accepted: Accepted) -> CommitmentChange:
        return CommitmentChange(
            metadata=ObjectMeta(name=change_name(self._last + 1)),
            nonce=self._ids.uuid(),
            availability_zone=asked.batch.zone,
            request_id=asked.request_id,
            request_digest=asked.digest,
            requested_by=asked.requested_by,
            decided_at=as_datetime(self._clock.now()),
            steps=accepted.steps,
        )

    async def _commit(self, documents: list[CommitmentChange], deadline_s: float) -> bool:
        """Create all documents; whether the last one is there. If its time is over, it is kept from coming.

        An error says that nothing of the batch counts; ``Displaced``: another process committed a change meanwhile.
        """
        try:
            for part in documents[:-1]:
                with deadline(CALL_S):
                    await self._store.create(part)
        except (Unknown, TimeoutError):
            raise Unavailable("the store did not take the batch", remedy="ask again in a moment") from None
        head, pause_s, number = documents[-1], RETRY_S, 0
        while True:
            number += 1
            late = self._clock.monotonic() >= deadline_s and number > 1
            wanted = replace(head, phase="withdrawn", steps=(), parts=0) if late else head
            try:
                with deadline(CALL_S):
                    await self._store.create(wanted)
                self._last += 1
                return not late
            except AlreadyExists:
                found = await self._settled(head.name)
                if found is not None and found.nonce != head.nonce:
                    raise Displaced("another process leads", remedy="ask again in a moment") from None
                if found is not None:
                    self._last += 1
                    return found.phase != "withdrawn"
            except (OutliveError, TimeoutError) as error:
                if number == 1 and not isinstance(error, Unknown | TimeoutError):  # certainly not applied
                    raise Unavailable(f"the store does not take the batch: {error}", remedy="ask again") from error
                _log.warning("commitment_change.in_doubt", change=head.name, error=str(error))
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_CAP_S)

    async def _settled(self, name: str) -> CommitmentChange | None:
        try:
            return await read(self._store, CommitmentChange, name)
        except OutliveError:
            return None

    async def _begin(self) -> None:
        """Take the next number, so that no former leader can commit anything any more."""
        while True:
            with answered("changes", LIST_S):
                numbers = [change_number(one.name) async for one in list_all(self._store, CommitmentChange)]
            self._last = max(numbers, default=0) + 1
            barrier = CommitmentChange(
                metadata=ObjectMeta(name=change_name(self._last)),
                nonce=self._ids.uuid(),
                phase="withdrawn",
                decided_at=as_datetime(self._clock.now()),
            )
            try:
                with answered("changes"):
                    await self._store.create(barrier)
                return
            except AlreadyExists:
                _log.info("commitment_change.came_late", change=barrier.name)

    async def _finish(self) -> None:
        """Apply every change that was committed and is not applied yet. Errors of the store end it."""
        heads: dict[str, CommitmentChange] = {}
        parts: dict[str, CommitmentChange] = {}
        with answered("changes", LIST_S):
            async for change in list_all(self._store, CommitmentChange):
                (parts if change.part_of else heads)[change.name] = change
        self._answers.begin(heads.values())
        for _, head in sorted(heads.items()):
            if head.phase != "decided":
                continue
            steps = joined(head, parts)
            if steps is None:
                _log.error("commitment_change.incomplete", change=head.name)
                continue
            _log.info("commitment_change.taken_up", change=head.name, commitments=len(steps))
            self._applier.hold(steps)
            await self._apply(head, steps)

    async def _apply(self, head: CommitmentChange, steps: tuple[CommitmentStep, ...]) -> None:
        """Write all of a committed change, however long the store is away, and mark it."""

        async def applied() -> None:
            found = await read(self._store, CommitmentChange, head.name)
            if found is None or found.nonce != head.nonce or found.phase != "decided":
                return  # the next leader has applied it, or the store went back to before it
            await self._applier.apply(steps, request_id=head.request_id)
            await self._applier.mark(head)

        await self._until_done(applied, "commitment_change.not_applied", change=head.name)

    async def _until_done(self, act: Callable[[], Awaitable[None]], trouble: str, **what: str) -> None:
        """Do it, again after a pause while the store is away."""
        pause_s = RETRY_S
        while True:
            try:
                await act()
                return
            except OutliveError as error:
                _log.warning(trouble, **what, error=str(error))
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_CAP_S)


def _answer(asked: _Asked, answer: Refusal | OutliveError | None) -> None:
    if asked.answer.done():
        return
    if isinstance(answer, OutliveError):
        asked.answer.set_exception(answer)
    else:
        asked.answer.set_result(answer)


def _age_s(change: CommitmentChange, now: float) -> float:
    return now - change.decided_at.timestamp() if change.decided_at is not None else 0.0
