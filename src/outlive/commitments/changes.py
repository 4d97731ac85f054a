"""Batches of changes, one after the other: decided, committed by one write, and applied.

A batch counts as a whole from the creation of its ``CommitmentChange`` on; whatever is in the way afterwards, it is
applied, by this process or by the next one that leads (docs/reference/commitments.md#batches). Nothing is undone in the
store, because nothing is written before. What is not promised: while the store does not say whether that one write was
applied, no other batch is decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.base import limits
from outlive.base.clock import Clock, as_datetime
from outlive.base.deadline import deadline
from outlive.base.errors import AlreadyExists, Conflict, LimitExceeded, OutliveError, Unavailable, Unknown
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.commitments.answers import Answered, Answers, RequestKey, answer_of, change_name
from outlive.commitments.application import ChangeApplier
from outlive.commitments.batch import Batch, dry_run_timeout_text, timeout_text
from outlive.commitments.decision import Accepted, Decider, Refusal
from outlive.commitments.names import commitment_name
from outlive.commitments.settings import CommitmentSettings
from outlive.resources import CommitmentChange, CommitmentStep, CommittedResource, ObjectMeta
from outlive.resources.codec import encode
from outlive.store import Store, list_all
from outlive.store.access import CALL_S, read

BATCHES_LIMIT: Final = 64
"""Batches that wait; one more is refused."""
DOCUMENT_BYTES: Final = limits.OBJECT_BYTES * 3 // 4
"""What one document of a change has of it, at most."""
PIECE_SLOTS: Final = 400
"""Slots of one commitment that are never divided between two documents."""
RETRY_S: Final = 0.5
"""The first pause after a write of which nobody knows what became of it; it doubles."""
RETRY_CAP_S: Final = 15.0
KEPT_S: Final = 30 * 86_400.0
"""How long the record of a change is kept."""
KEPT: Final = 10_000
"""Records that are kept at most."""

_log = get_logger("commitments.changes")


class _Asked(msgspec.Struct):
    """A batch that waits for its answer."""

    batch: Batch
    request_id: str
    requested_by: str
    key: RequestKey | None
    """Where the caller named the request."""
    answer: asyncio.Future[Refusal | None]
    deadline_s: float


class Changes:
    """See the module. ``lock`` is held by whoever decides about commitment slots, ``turn`` by whoever places."""

    def __init__(
        self,
        store: Store,
        decider: Decider,
        applier: ChangeApplier,
        settings: CommitmentSettings,
        *,
        lock: asyncio.Lock,
        turn: asyncio.Lock,
        clock: Clock,
        ids: Ids,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._decider = decider
        self._applier = applier
        self._settings = settings
        self._lock = lock
        self._turn = turn
        self._clock = clock
        self._ids = ids
        self._leads = leads
        self._answers = Answers(clock)
        self._waiting: deque[_Asked] = deque()
        self._added = asyncio.Event()
        self._running = False

    async def answered(self, key: RequestKey) -> Answered | None:
        """What the request was answered before, if it was; ``Conflict`` where the same name was given to another one.

        ``Unavailable`` where this process does not decide, or cannot say it in time.
        """
        self._check_leads()
        try:
            with deadline(self._settings.watch_timeout):
                async with self._lock:  # a batch whose caller went away may still be written
                    found = await read(self._store, CommitmentChange, change_name(key))
        except TimeoutError:
            raise Unavailable("other batches are still applied", remedy="ask again in a moment") from None
        # what is written goes first: another process may have accepted what this one refused while it led before
        return answer_of(found, key) if found is not None else self._answers.get(key)

    async def change(
        self, batch: Batch, *, request_id: str, requested_by: str, key: RequestKey | None = None
    ) -> Refusal | None:
        """The answer to a batch: nothing once all of it counts, else why none of it does.

        A caller that is cancelled before the batch is committed takes it back. ``Unavailable`` where this process does
        not decide, or where the store does not take the batch; ``LimitExceeded`` where too many wait; ``Conflict``
        where another batch has the same ``key``; ``Unknown`` where nobody can say whether it counts.
        """
        self._check_leads()
        if len(self._waiting) >= BATCHES_LIMIT:
            raise LimitExceeded(f"{BATCHES_LIMIT} batches wait already", remedy="ask again in a moment")
        asked = _Asked(
            batch=batch,
            request_id=request_id,
            requested_by=requested_by,
            key=key,
            answer=asyncio.get_running_loop().create_future(),
            deadline_s=self._clock.monotonic() + self._settings.watch_timeout,
        )
        self._waiting.append(asked)
        self._added.set()
        return await asked.answer

    def _check_leads(self) -> None:
        if not self._running or not self._leads():
            raise Unavailable("this process does not lead", remedy="ask again in a moment, or the one that leads")

    async def dry_run(self, batch: Batch, *, request_id: str) -> Refusal | None:
        """Whether there is capacity for what the batch adds; nothing is done."""
        asked = batch if batch.dry_run else replace(batch, dry_run=True)
        return await self.change(asked, request_id=request_id, requested_by="")

    async def carry_out(self, step: CommitmentStep) -> None:
        """Write one step that Limes' own list asks for, which needs no confirmation (``StepWriter``).

        ``Conflict`` where the commitment is not what the step rests on any more.
        """
        async with self._lock:
            found = await read(self._store, CommittedResource, commitment_name(step.uuid))
            if (found.spec if found is not None else None) != step.before:
                raise Conflict(f"commitment {step.uuid} has changed meanwhile", remedy="the next run looks at it again")
            await self._applier.apply((step,), request_id="")

    async def run(self) -> None:
        """Finish what was decided before, then answer batches until cancelled."""
        try:
            async with self._lock:
                await self._finish()
            self._running = True
            while True:
                while self._waiting:
                    await self._serve(self._waiting.popleft())
                self._added.clear()
                await self._added.wait()
        finally:
            self._running = False
            while self._waiting:
                _answer(self._waiting.popleft(), Unavailable("this process stops to lead", remedy="ask again"))

    async def sweep(self) -> None:
        """Delete records that are old, and parts of changes that never came to be."""
        now = self._clock.now()
        kept: list[CommitmentChange] = []
        owned: set[str] = set()
        parts: list[CommitmentChange] = []
        async for change in list_all(self._store, CommitmentChange):
            if change.part_of:
                parts.append(change)
                continue
            owned.update(change.parts)
            if change.phase != "decided":
                kept.append(change)
        kept.sort(key=lambda one: one.decided_at or as_datetime(0.0), reverse=True)
        old = [one for place, one in enumerate(kept) if place >= KEPT or _age_s(one, now) > KEPT_S]
        orphans = [one for one in parts if one.name not in owned and _age_s(one, now) > KEPT_S / 30]
        gone = {name for one in old for name in one.parts}
        for one in (*orphans, *(part for part in parts if part.name in gone), *old):
            await self._store.delete(one.ref, uid=one.metadata.uid)

    async def _serve(self, asked: _Asked) -> None:
        if asked.answer.done():
            return  # the caller gave up
        try:
            async with self._lock:
                await self._decide(asked)
        except OutliveError as error:
            _answer(asked, error)
        except BaseException:
            _answer(asked, Unavailable("the batch was not decided", remedy="ask again"))
            raise

    async def _decide(self, asked: _Asked) -> None:
        async with self._turn:
            if self._clock.monotonic() >= asked.deadline_s:
                seconds = self._settings.watch_timeout
                number = sum(len(one.commitments) for p in asked.batch.projects for one in p.resources)
                text = dry_run_timeout_text if asked.batch.dry_run else timeout_text
                _answer(asked, Refusal(text(seconds, number), timed_out=True))
                return
            if asked.batch.dry_run:
                _answer(asked, await self._decider.try_out(asked.batch, asked.deadline_s))
                return
            decided = await self._decider.decide(asked.batch, asked.deadline_s)
        if isinstance(decided, Refusal):
            self._remember(asked, decided)
            _answer(asked, decided)
            return
        if not decided.steps:
            self._remember(asked, None)
            _answer(asked, None)  # nothing is asked for, so nothing is written
            return
        if asked.answer.done():
            self._applier.take_back(decided.steps)
            return
        await self._carry(asked, decided)

    def _remember(self, asked: _Asked, refusal: Refusal | None) -> None:
        """Nothing is written about this answer. What was not decided in time may be asked again."""
        if asked.key is not None and (refusal is None or not refusal.timed_out):
            self._answers.keep(asked.key, Answered(refusal))

    async def _carry(self, asked: _Asked, decided: Accepted) -> None:
        """Commit what was decided, answer, and apply it."""
        documents = self._documents(asked, decided)
        head, written = documents[-1], None
        try:
            written = await self._commit(documents, asked.deadline_s)
        except asyncio.CancelledError:
            _answer(asked, Unknown("it is not known whether the batch was committed", remedy="ask again"))
            raise
        finally:
            if written is None or not _is_same(written, head):
                self._applier.take_back(decided.steps)
        try:
            _answer(asked, answer_of(written, asked.key).refusal)
        except Conflict as error:
            _answer(asked, error)
        if _is_same(written, head):
            await self._apply(written, decided.steps)
        elif written.phase == "decided":
            await self._finish()  # another process committed this request, and may be gone

    def _documents(self, asked: _Asked, accepted: Accepted) -> list[CommitmentChange]:
        """The change, its head last. Other documents have names that no other attempt has."""
        fresh, now = f"change-{self._ids.uuid()}", as_datetime(self._clock.now())
        name = fresh if asked.key is None else change_name(asked.key)
        portions = _split(accepted.steps)
        rest = [
            CommitmentChange(
                metadata=ObjectMeta(name=f"{fresh}-{number}"), part_of=name, decided_at=now, steps=tuple(steps)
            )
            for number, steps in enumerate(portions[1:], 1)
        ]
        head = CommitmentChange(
            metadata=ObjectMeta(name=name),
            parts=tuple(one.name for one in rest),
            availability_zone=asked.batch.zone,
            request_id=asked.request_id,
            request_digest=asked.key.digest if asked.key is not None else "",
            requested_by=asked.requested_by,
            decided_at=now,
            steps=tuple(portions[0]),
        )
        return [*rest, head]

    async def _commit(self, documents: list[CommitmentChange], deadline_s: float) -> CommitmentChange:
        """Create all documents; what the store holds under the name of the last one then. If its time is over, it is
        kept from coming.

        ``Unavailable`` before the last one was sent: nothing of the batch counts.
        """
        try:
            for part in documents[:-1]:
                with deadline(CALL_S):
                    await self._store.create(part)
        except (Unknown, TimeoutError):
            raise Unavailable("the store did not take the batch", remedy="ask again in a moment") from None
        head, pause_s, number = documents[-1], RETRY_S, 0
        reason = timeout_text(self._settings.watch_timeout, sum(len(one.steps) for one in documents))
        while True:
            number += 1
            late = self._clock.monotonic() >= deadline_s and number > 1
            wanted = replace(head, phase="withdrawn", refusal=reason, steps=(), parts=()) if late else head
            try:
                with deadline(CALL_S):
                    return await self._store.create(wanted)
            except AlreadyExists:
                found = await self._settled(head.name)
                if found is not None:
                    return found
            except (Unknown, TimeoutError, Unavailable) as error:
                if number == 1 and isinstance(error, Unavailable):
                    raise  # certainly not applied
                _log.warning("commitment_change.in_doubt", change=head.name, error=str(error))
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_CAP_S)

    async def _settled(self, name: str) -> CommitmentChange | None:
        try:
            return await read(self._store, CommitmentChange, name)
        except OutliveError:
            return None

    async def _finish(self) -> None:
        """Apply every change that was committed and is not applied yet."""
        heads: dict[str, CommitmentChange] = {}
        parts: dict[str, CommitmentChange] = {}
        async for change in list_all(self._store, CommitmentChange):
            if change.part_of:
                parts[change.name] = change
            elif change.phase == "decided":
                heads[change.name] = change
        for head in sorted(heads.values(), key=lambda one: (one.decided_at or as_datetime(0.0), one.name)):
            if missing := [name for name in head.parts if name not in parts]:
                _log.error("commitment_change.incomplete", change=head.name, missing=missing)
                continue
            steps = _joined([*head.steps, *(step for name in head.parts for step in parts[name].steps)])
            _log.info("commitment_change.taken_up", change=head.name, commitments=len(steps))
            self._applier.hold(steps)
            await self._apply(head, steps)

    async def _apply(self, head: CommitmentChange, steps: tuple[CommitmentStep, ...]) -> None:
        """Write all of a committed change, however long the store is away, and mark it."""
        pause_s = RETRY_S
        while True:
            try:
                await self._applier.apply(steps, request_id=head.request_id)
                await self._applier.mark(head)
                return
            except OutliveError as error:
                _log.warning("commitment_change.not_applied", change=head.name, error=str(error))
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_CAP_S)


def _answer(asked: _Asked, answer: Refusal | OutliveError | None) -> None:
    if asked.answer.done():
        return
    if isinstance(answer, OutliveError):
        asked.answer.set_exception(answer)
    else:
        asked.answer.set_result(answer)


def _is_same(found: CommitmentChange, written: CommitmentChange) -> bool:
    """Whether it is the one that was written, and not another one of that name."""
    return found.phase != "withdrawn" and (found.decided_at, found.parts, found.steps) == (
        written.decided_at,
        written.parts,
        written.steps,
    )


def _split(steps: tuple[CommitmentStep, ...]) -> list[list[CommitmentStep]]:
    """The steps in portions that each fit into one document; at least one portion, which may be empty."""
    portions: list[list[CommitmentStep]] = [[]]
    size = 0
    for piece in (piece for step in steps for piece in _pieces(step)):
        bytes_ = len(encode(piece))
        if portions[-1] and size + bytes_ > DOCUMENT_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(piece)
        size += bytes_
    return portions


def _pieces(step: CommitmentStep) -> Iterator[CommitmentStep]:
    """The step, several times with some of its slots each where it has many."""
    for first in range(0, max(1, len(step.slots)), PIECE_SLOTS):
        yield replace(step, slots=step.slots[first : first + PIECE_SLOTS])


def _joined(pieces: Iterable[CommitmentStep]) -> tuple[CommitmentStep, ...]:
    """The steps of which these are the pieces, in their order."""
    steps: list[CommitmentStep] = []
    for piece in pieces:
        if steps and steps[-1].uuid == piece.uuid:
            steps[-1] = replace(piece, slots=steps[-1].slots + piece.slots)
        else:
            steps.append(piece)
    return tuple(steps)


def _age_s(change: CommitmentChange, now: float) -> float:
    return now - change.decided_at.timestamp() if change.decided_at is not None else 0.0
