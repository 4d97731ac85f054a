"""Deletes objects that are only kept for a while: the old ones, and the oldest beyond a number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Generic

from outlive.base.clock import Clock, as_instant
from outlive.base.errors import Conflict, NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.resources import ObjectRef, R
from outlive.store import Store, list_all

SWEEP_S: Final = 60.0
"""How often old objects are looked for."""
SWEEP_STEP: Final = 500
"""Objects deleted before the sweeper rests."""
SWEEP_REST_S: Final = 1.0
"""How long it rests when there is more to delete."""

_log = get_logger("sweeper")


class Sweeper(Generic[R]):
    """Keeps objects of one kind for ``keep_s`` seconds, and at most ``keep`` of them."""

    def __init__(
        self, store: Store, kind: type[R], *, seen: Callable[[R], datetime], keep_s: float, keep: int, clock: Clock
    ) -> None:
        self.deleted = 0
        """Objects deleted so far."""
        self._store = store
        self._kind = kind
        self._seen = seen
        self._keep_s = keep_s
        self._keep = keep
        self._clock = clock

    async def run(self) -> None:
        """Sweep until cancelled. Errors of the store only end a step."""
        while True:
            more = False
            try:
                more = await self.sweep() == SWEEP_STEP
            except OutliveError as error:
                _log.warning("sweeper.failed", kind=self._kind.kind(), error=str(error))
            await self._clock.sleep(SWEEP_REST_S if more else SWEEP_S)

    async def sweep(self) -> int:
        """One step: delete up to ``SWEEP_STEP`` objects, the oldest first; returns how many were due in it."""
        kept: list[tuple[float, str, ObjectRef, str]] = []
        async for each in list_all(self._store, self._kind):
            kept.append((as_instant(self._seen(each)), each.name, each.ref, each.metadata.resource_version))
        kept.sort(key=_by_age)
        oldest = self._clock.now() - self._keep_s
        surplus = len(kept) - self._keep
        due = [each for number, each in enumerate(kept) if each[0] < oldest or number < surplus][:SWEEP_STEP]
        for _, _, ref, version in due:
            try:
                await self._store.delete(ref, uid=ref.uid, version=version)
                self.deleted += 1
            except (Conflict, NotFound):
                _log.debug("sweeper.changed", kind=ref.kind, name=ref.name)
        return len(due)


def _by_age(each: tuple[Any, ...]) -> tuple[Any, ...]:
    return each[:2]
