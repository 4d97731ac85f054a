"""Finding what hosts are shut out of that no record says.

A store that was restored knows nothing of cuts that were made after its backup, and a fence may end between the order
to shut a host out and the writing of it. VMs may have been recovered on the strength of such a cut; what is left of
them on the host reaches nothing, and must not be let in again. So each host that lives is looked at once in each of its
epochs and each incarnation of the store, and what is found is ordered anew, read back and written down: then it is kept
up like every other cut, its VMs count as fenced there, and whoever really runs them owns them
(docs/concepts/safety.md#proofs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.fencing.context import FencerContext
from outlive.node.fencing.isolation import CutResult, Isolation, recorded
from outlive.node.fencing.proofs import FIND_CUT, CutView
from outlive.node.fencing.watcher import Seen
from outlive.resources import Cut, MemberRecord
from outlive.runtime.tasks import OrderedTaskGroup

LOOK_S: Final = 2.0
"""How often is looked for hosts that were not looked at."""
AGAIN_S: Final = 60.0
"""When a host is looked at again of which nothing was said."""
AT_ONCE: Final = 16
"""Hosts that are looked at at the same time."""

_Key = tuple[str, int, str]

_log = get_logger("fencing.cut")


class FoundCuts:
    """See the module. ``leads``: whether this fencer does what everybody could; ``incarnation``: the store's."""

    def __init__(self, context: FencerContext, leads: Callable[[], bool], incarnation: Callable[[], str]) -> None:
        self._context = context
        self._leads = leads
        self._incarnation = incarnation
        self._looked: dict[str, _Key] = {}
        """Host → as what it was looked at last."""
        self._again: dict[str, float] = {}
        """Hosts of which nothing was said, and when they are asked about again."""

    async def run(self) -> None:
        """Until cancelled."""
        slots = asyncio.Semaphore(AT_ONCE)
        while True:
            cutting = self._context.cutting
            if cutting is not None and self._leads():
                async with OrderedTaskGroup() as group:
                    for host, seen in self._due():
                        group.create_task(self._look(cutting, host, seen, slots), name=f"look for a cut of {host}")
            await self._context.clock.sleep(LOOK_S)

    def _due(self) -> list[tuple[str, Seen]]:
        present = dict(self._context.watcher)
        for known in (self._looked, self._again):
            for host in [one for one in known if one not in present]:
                del known[host]
        now = self._context.clock.monotonic()
        return [
            (host, seen)
            for host, seen in present.items()
            if seen.record.state == "Held"
            and not _is_lifted(seen.record)
            and self._looked.get(host) != self._key(seen)
            and self._again.get(host, 0.0) <= now
        ]

    def _key(self, seen: Seen) -> _Key:
        return (seen.membership.metadata.uid, seen.record.epoch, self._incarnation())

    async def _look(self, cutting: Isolation, host: str, seen: Seen, slots: asyncio.Semaphore) -> None:
        key = self._key(seen)
        async with slots:
            try:
                settled = await self._settle(cutting, host, seen)
            except OutliveError as error:
                _log.info("fence.cuts_not_looked_for", host=host, error=str(error))
                settled = False
        if settled:
            self._looked[host] = key
            self._again.pop(host, None)
        else:
            self._again[host] = self._context.clock.monotonic() + AGAIN_S

    async def _settle(self, cutting: Isolation, host: str, seen: Seen) -> bool:
        """Whether nothing is left to be found there. Errors of the store, and of who could shut it out."""
        record = seen.record
        kept = set(recorded(record))
        new = [one for one in await cutting.found(host, record.epoch) if one not in kept]
        if not new:
            return True
        later = self._context.watcher.get(host)
        if later is None or _fenced(later.record) != _fenced(record):
            return False  # a fence has begun or ended meanwhile, and this may be its cut
        result = await cutting.renew(host, record.epoch, tuple(sorted({*new, *kept})))
        if not await self._record(host, record.epoch, result, new):
            return False
        _log.warning("fence.cut_found", host=host, epoch=record.epoch, scope=new)
        return True

    async def _record(self, host: str, epoch: int, result: CutResult, new: list[str]) -> bool:
        """Whether the Membership says so now."""
        written = await self._context.writer.take(
            host,
            FIND_CUT,
            lambda now: CutView(
                host=host,
                record=now,
                observer=self._context.me,
                epoch=epoch,
                scope=result.scope,
                written=result.written,
                read_back=result.read_back,
                evidence=result.evidence,
            ),
            lambda now: now.cut.through >= epoch and set(new) <= set(now.cut.scope),
        )
        if written.refused is not None or written.record is None or not set(new) <= set(written.record.cut.scope):
            _log.warning("fence.found_cut_not_recorded", host=host, why=result.why_not or str(written.refused))
            return False
        return True


def _is_lifted(record: MemberRecord) -> bool:
    """Whether what it was shut out of is being let in again: the epoch is dead, and the record still names the cut."""
    return 0 < record.cut.through <= record.dead_through


def _fenced(record: MemberRecord) -> tuple[int, str, Cut]:
    return record.epoch, record.state, record.cut
