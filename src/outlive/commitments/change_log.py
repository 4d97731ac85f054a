"""The changes that count, as the store has them: numbered without a gap, each in one document or several.

A batch counts as a whole from the creation of its ``CommitmentChange`` on (docs/reference/commitments.md#batches).
A process that begins to lead takes the next number before it decides anything: what a former leader still sends finds
its number taken. What is not promised: that the store says soon whether it took a change; until it does, ``commit``
asks.
"""

from __future__ import annotations

import contextlib
from typing import Final

from msgspec.structs import replace

from outlive.base import (
    AlreadyExists,
    Clock,
    Ids,
    NotFound,
    OutliveError,
    Unavailable,
    Unknown,
    as_datetime,
    deadline,
    get_logger,
)
from outlive.commitments.answers import Answers
from outlive.commitments.documents import documents_of, join_documents, part_name
from outlive.commitments.names import change_name, change_number
from outlive.resources import CLUSTER, OPEN_LABEL, Cluster, CommitmentChange, CommitmentStep, ObjectMeta
from outlive.runtime import Informer, Periodic, log_errors
from outlive.store import CALL_S, LIST_S, Store, compare_and_swap, list_all, read, require_answer

RETRY_S: Final = 0.5
"""The first pause after a write of which nobody knows what became of it; it doubles."""
RETRY_CAP_S: Final = 15.0
KEPT_S: Final = 30 * 86_400.0
"""How long the record of a change is kept."""
KEPT: Final = 10_000
"""Records that are kept at most."""
SWEEP_S: Final = 3600.0
"""How often old records are looked for."""
WITHDRAWN_KEPT_S: Final = 86_400.0
"""How long it is kept that nothing was done: a change that is withdrawn, and parts of one that never came to be."""

_log = get_logger("commitments.changes")


class Displaced(Unavailable):
    """Another process leads, or the store went back: what this one decides rests on a state that is no more."""


class ChangeLog:
    """See the module. ``answers``: to requests that the caller named, as far as this process knows them."""

    def __init__(self, store: Store, opened: Informer[CommitmentChange], *, clock: Clock, ids: Ids) -> None:
        """``opened``: the cache of changes that are not applied yet, which shows at once what is written here."""
        self.answers = Answers(clock)
        self.unapplied: dict[str, str] = {}
        """Change that counts, or ``changes`` where they cannot be read → why it is not applied yet."""
        self._store = store
        self._opened = opened
        self._clock = clock
        self._ids = ids
        self._last = 0
        """The number of the last change."""

    async def begin(self) -> None:
        """Take the next number, so that no former leader can commit anything any more."""
        while True:
            with require_answer("changes", LIST_S):
                numbers = [change_number(one.name) async for one in list_all(self._store, CommitmentChange)]
            self._last = max(numbers, default=0) + 1
            barrier = CommitmentChange(
                metadata=ObjectMeta(name=change_name(self._last)),
                nonce=self._ids.new_uuid(),
                phase="withdrawn",
                decided_at=as_datetime(self._clock.now()),
            )
            try:
                with require_answer("changes"):
                    await self._store.create(barrier)
                return
            except AlreadyExists:
                _log.info("commitment_change.came_late", change=barrier.name)

    async def read_unfinished(self) -> list[tuple[CommitmentChange, tuple[CommitmentStep, ...]]]:
        """Every change that was committed and is not applied yet, with all its steps, the oldest first."""
        heads: dict[str, CommitmentChange] = {}
        parts: dict[str, CommitmentChange] = {}
        with require_answer("changes", LIST_S):
            async for change in list_all(self._store, CommitmentChange):
                (parts if change.part_of else heads)[change.name] = change
        self.answers.begin(heads.values())
        self.unapplied.clear()
        found: list[tuple[CommitmentChange, tuple[CommitmentStep, ...]]] = []
        for _, head in sorted(heads.items()):
            if head.phase != "decided":
                continue
            if (steps := join_documents(head, parts)) is None:
                _log.error("commitment_change.incomplete", change=head.name)
                self.unapplied[head.name] = "a part of it is not in the store"
            else:
                found.append((head, steps))
        return found

    def draft_change(
        self, steps: tuple[CommitmentStep, ...], *, zone: str, request_id: str, digest: str, requested_by: str
    ) -> CommitmentChange:
        """The next change, which is not committed yet."""
        return CommitmentChange(
            metadata=ObjectMeta(name=change_name(self._last + 1), labels={OPEN_LABEL: "true"}),
            nonce=self._ids.new_uuid(),
            availability_zone=zone,
            request_id=request_id,
            request_digest=digest,
            requested_by=requested_by,
            decided_at=as_datetime(self._clock.now()),
            steps=steps,
        )

    async def commit(self, draft: CommitmentChange, deadline_s: float) -> CommitmentChange | None:
        """Create all documents of the change; its head, once it counts, and ``None`` where its time was over: then it
        is kept from coming.

        An error says that nothing of it counts; ``Displaced``: another process committed a change meanwhile.
        """
        *parts, head = documents_of(draft)
        try:
            for part in parts:
                with deadline(CALL_S):
                    self._opened.note(await self._store.create(part), replaced="")
        except (Unknown, TimeoutError):
            raise Unavailable("the store did not take the batch", remedy="ask again in a moment") from None
        if not await self._create(head, deadline_s):
            return None
        self.answers.note(head)
        return head

    async def _create(self, head: CommitmentChange, deadline_s: float) -> bool:
        """Whether the head is there, and not withdrawn."""
        pause_s, number = RETRY_S, 0
        while True:
            number += 1
            late = self._clock.monotonic() >= deadline_s and number > 1
            wanted = _without_open_label(replace(head, phase="withdrawn", steps=(), parts=0)) if late else head
            try:
                with deadline(CALL_S):
                    self._opened.note(await self._store.create(wanted), replaced="")
                self._last += 1
                return not late
            except AlreadyExists:
                found: CommitmentChange | None = None
                with contextlib.suppress(OutliveError):
                    found = await read(self._store, CommitmentChange, head.name)
                if found is not None and found.nonce != head.nonce:
                    raise Displaced("another process leads", remedy="ask again in a moment") from None
                if found is not None:
                    self._opened.note(found)
                    self._last += 1
                    return found.phase != "withdrawn"
            except (OutliveError, TimeoutError) as error:
                if number == 1 and not isinstance(error, Unknown | TimeoutError):  # certainly not applied
                    raise Unavailable(f"the store does not take the batch: {error}", remedy="ask again") from error
                _log.warning("commitment_change.in_doubt", change=head.name, error=str(error))
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_CAP_S)

    async def is_unfinished(self, head: CommitmentChange) -> bool:
        """Whether it is to be applied: the next leader may have done that, or the store went back to before it."""
        found = await read(self._store, CommitmentChange, head.name)
        return found is not None and found.nonce == head.nonce and found.phase == "decided"

    async def mark_applied(self, head: CommitmentChange) -> None:
        """Say that all of the change is applied."""

        def set_applied(found: CommitmentChange | None) -> CommitmentChange | None:
            if found is None or found.phase != "decided":
                return None
            return _without_open_label(replace(found, phase="applied", applied_at=as_datetime(self._clock.now())))

        def remove_label(found: CommitmentChange | None) -> CommitmentChange | None:
            return _without_open_label(found) if found is not None else None

        changes = {head.name: set_applied, **{part_name(head, n): remove_label for n in range(1, head.parts + 1)}}
        for name, change in changes.items():
            written = await compare_and_swap(self._store, CommitmentChange, name, change, clock=self._clock)
            if written is not None:
                self._opened.note(written)

    async def check_leads(self) -> None:
        """``Unavailable`` where another process leads, which may have accepted what this one refused."""
        if await read(self._store, CommitmentChange, change_name(self._last + 1)) is not None:
            raise Unavailable("another process leads", remedy="ask again in a moment")

    async def read_incarnation(self) -> str:
        """Of the store; empty where it does not say."""
        try:
            cluster = await read(self._store, Cluster, CLUSTER)
        except OutliveError:
            return ""
        return cluster.status.store_incarnation if cluster is not None else ""

    async def clean(self) -> None:
        """Delete records that nobody asks for any more, every hour, until cancelled. What fails waits for the next."""
        failed = log_errors(_log, "commitment_change.not_swept")
        await Periodic(self.sweep, SWEEP_S, clock=self._clock, failed=failed).run()

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
            with contextlib.suppress(NotFound), require_answer("an old change"):
                await self._store.delete(one.ref, uid=one.metadata.uid)
            self.answers.forget(one)


def _without_open_label(change: CommitmentChange) -> CommitmentChange:
    """The document without the label of documents that are not applied yet."""
    labels = {key: value for key, value in change.metadata.labels.items() if key != OPEN_LABEL}
    return replace(change, metadata=replace(change.metadata, labels=labels))


def _age_s(change: CommitmentChange, now: float) -> float:
    return now - change.decided_at.timestamp() if change.decided_at is not None else 0.0
