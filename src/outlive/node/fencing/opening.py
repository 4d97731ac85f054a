"""Opening a fence: condemning a host on exactly the version that was seen, or taking over what another left lying.

Right before the swap everything is read fresh once more: what operators want, the document, and whether this fencer
may judge at all. The swap itself decides: had the host renewed, it fails, and the host lives
(docs/concepts/safety.md#condemning).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outlive.base.clock import Clock
from outlive.base.errors import Conflict, Unknown
from outlive.base.logging import get_logger
from outlive.node.decisions import FENCE_EVALUATE
from outlive.node.fencing.condemning import CONDEMN, TAKE_OVER, CondemnView, TakeOverView
from outlive.node.fencing.evaluate import EvaluateResult
from outlive.node.fencing.rules import Rules, refuses
from outlive.node.fencing.watching import Seen, Watching
from outlive.node.fencing.writing import FenceWriter, decision_of
from outlive.resources import MemberRecord, Membership
from outlive.runtime.decisions import DecisionLog

PRESENT_S: Final = 0.25
"""An evaluation is used for all hosts that are judged within so long."""

_log = get_logger("fencing")


@dataclass(frozen=True, slots=True)
class Opened:
    """A fence that is mine to carry on."""

    record: MemberRecord
    quiet_since: float
    """Since when no renewal can have happened, on my monotonic clock."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What is to be told of how a silent host came to be condemned, besides its silence."""

    observers: str = ""
    """Who else saw it silent, or why one observer sufficed."""
    looks: str = ""
    """Why it was looked at less often than usual, or not."""


_NO_NOTES: Final = Notes()


class Opening:
    """See the module."""

    def __init__(
        self,
        me: str,
        watching: Watching,
        rules: Rules,
        writer: FenceWriter,
        clock: Clock,
        decisions: DecisionLog,
    ) -> None:
        self._me = me
        self._watching = watching
        self._rules = rules
        self._writer = writer
        self._clock = clock
        self._decisions = decisions
        self._present: tuple[float, EvaluateResult] | None = None

    def evaluate(self) -> EvaluateResult:
        """Whom to suspect now, and whose fences to take over."""
        result = self._decisions.use(FENCE_EVALUATE, self._rules.evaluation(), subject=self._me)
        self._present = (self._clock.monotonic(), result)
        return result

    async def condemn(self, host: str, on: Membership, since: float, notes: Notes) -> Opened | None:
        """Condemn a silent host on the version that I first received at ``since``; ``None``: it lives.

        ``notes`` are told to whoever asks why. Errors of the store.
        """
        settings = await self._writer.settings(host)
        current = await self._writer.membership(host)
        if current is None or current.metadata.resource_version != on.metadata.resource_version:
            return None
        hold = settings.maintenance(self._clock.now()) or refuses(self._evaluated(), host)
        return await self._swap(host, on, since, hold, notes=notes)

    async def condemn_asked(self, host: str, on: Membership, since: float, name: str, reason: str) -> Opened | None:
        """Condemn a host because somebody asks for it, silent or not; only maintenance forbids it."""
        settings = await self._writer.settings(host)
        current = await self._writer.membership(host)
        if current is None or current.record.epoch != on.record.epoch:
            return None
        if current.metadata.resource_version != on.metadata.resource_version:
            on, since = current, self._clock.monotonic()
        return await self._swap(host, on, since, settings.maintenance(self._clock.now()), name, reason)

    async def _swap(
        self,
        host: str,
        on: Membership,
        since: float,
        hold: str,
        name: str = "",
        reason: str = "",
        notes: Notes = _NO_NOTES,
    ) -> Opened | None:
        view = CondemnView(
            host=host,
            record=on.record,
            unchanged_s=self._clock.monotonic() - since,
            silence_s=self._rules.profile(host, on.record).silence_s,
            observer=self._me,
            hold=hold,
            asked_by=name,
            reason=f"{name}: {reason}" if name else "",
            observers=notes.observers,
            looks=notes.looks,
        )
        outcome = self._decisions.use(decision_of(CONDEMN), view, subject=host)
        if outcome.refused is not None or outcome.record is None:
            _log.info("fence.not_condemned", host=host, why=outcome.refused.why if outcome.refused else "")
            return None
        self._watching.condemning(host, on, since)
        try:
            written = await self._writer.swap(on, outcome.record)
        except Conflict:
            _log.info("fence.lives", host=host, why="it changed before it was condemned")
            return None
        except Unknown:
            found = await self._writer.membership(host)
            if found is None or found.metadata.uid != on.metadata.uid or found.record != outcome.record:
                return None
            written = found
        fence = written.record.fence
        _log.warning("fence.condemned", host=host, fence=fence.id, epoch=fence.epoch, why=fence.reason)
        return Opened(written.record, since)

    async def take_over(self, host: str, seen: Seen) -> Opened | None:
        """Carry on a fence that nobody moves; ``None``: somebody does. Errors of the store."""
        now = self._clock.monotonic()
        view = TakeOverView(
            host=host,
            record=seen.record,
            observer=self._me,
            unchanged_s=now - seen.since,
            limit_s=self._rules.take_over_s(host, seen, now),
        )
        quiet_since, before = seen.quiet_since, seen.record.fence.by
        outcome = self._decisions.use(decision_of(TAKE_OVER), view, subject=host)
        if outcome.refused is not None or outcome.record is None:
            return None
        try:
            written = await self._writer.swap(seen.membership, outcome.record)
        except (Conflict, Unknown):
            return None
        _log.warning("fence.taken_over", host=host, fence=written.record.fence.id, before=before)
        return Opened(written.record, quiet_since)

    def _evaluated(self) -> EvaluateResult:
        """The evaluation of this very moment, shared by hosts that are condemned together."""
        if self._present is None or self._clock.monotonic() - self._present[0] > PRESENT_S:
            return self.evaluate()
        return self._present[1]
