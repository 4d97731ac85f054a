"""One fence: a host is condemned, or its fence taken over, and proofs are looked for until its epoch is proven dead.

Right before a host is condemned everything is read fresh once more; the compare-and-swap on exactly the version that
was seen decides: had the host renewed, it fails, and the host lives.

Then all kinds of proof are tried at once, each by a task of its own, and the first that the policy lets count ends the
fence: the BMC, the wait for the guard, storage isolation, an operator's assertion. A reader of the
Membership knows as much as this task does, so that another fencer can go on at any step. Where nothing proves anything
the fence is ``unconfirmed`` and tries again, for ever (docs/concepts/safety.md#proofs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from outlive.base import Conflict, OutliveError, Unknown, get_logger
from outlive.node.fencing.context import FencerContext, WriteResult
from outlive.node.fencing.identity import expected_system
from outlive.node.fencing.isolation import CUT_OFF, FenceIsolation
from outlive.node.fencing.policy import HostSettings, departure_of, fence_order, operator_assertion
from outlive.node.fencing.power import longer_s
from outlive.node.fencing.proofs import (
    GUARD_SLACK_S,
    PROVE_OPERATOR,
    PROVE_POWER,
    PROVE_WATCHDOG,
    FencedView,
    OperatorView,
    PowerView,
    WatchdogView,
    safe_after_s,
)
from outlive.node.fencing.rules import explain_refusal
from outlive.node.fencing.states import ATTEMPT, CONDEMN, TAKE_OVER, AttemptView, CondemnView, TakeOverView, is_open
from outlive.node.fencing.suspicion import FENCE_EVALUATE, EvaluateResult
from outlive.node.fencing.watcher import HAIR_S, SeenHost
from outlive.node.membership.steps import RecordOutcome
from outlive.resources import FencePhase, FenceRecord, MemberRecord, Membership, ProofKind, Unproven
from outlive.runtime import OrderedTaskGroup, ProtocolStep

PRESENT_S: Final = 0.25
"""An evaluation is used for all hosts that are judged within so long."""
BACKOFF_S: Final = (30.0, 60.0, 120.0, 300.0)
"""Pauses between attempts that proved nothing; the last one for ever."""
SLOW_PAUSE_S: Final = 1.0
"""Pause before the next attempt where the BMC was only slow: it gets more time, and no back-off."""
RETRY_S: Final = 1.0
"""Pause after the store failed."""
LOOK_S: Final = 5.0
"""How often a fence that waits (for the end of maintenance, an operator, a setting) looks again."""
AWAITED: Final[tuple[ProofKind, ...]] = ("power", "watchdog", "cut")
"""Kinds of proof that are waited for before the fence counts as unconfirmed."""

A = TypeVar("A", CondemnView, TakeOverView)
V = TypeVar("V", bound=FencedView)

_log = get_logger("fencing")


class Opening:
    """Condemns hosts, and takes fences over that nobody carries on. All calls may raise errors of the store."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._present: tuple[float, EvaluateResult] | None = None

    def evaluate(self) -> EvaluateResult:
        """Whom to suspect now, and whose fences to take over."""
        result = self._context.decisions.use(
            FENCE_EVALUATE, self._context.rules.evaluation_input(), subject=self._context.me
        )
        self._present = (self._context.clock.monotonic(), result)
        return result

    async def condemn(
        self, host: str, seen: SeenHost, *, observers: str = "", looks: str = "", ordered: bool = False
    ) -> Fence | None:
        """Condemn a silent host on the version that was seen; ``None``: it lives.

        ``observers`` and ``looks`` explain to an operator who saw the silence and how often it was looked at.
        ``ordered``: somebody asks for it, silent or not; then only maintenance and a change of the storage schema
        forbid it. What counts is the order as it is now, and for the epoch that the host is in now: it may have joined
        again since the order was seen.
        """
        context, on, since = self._context, seen.membership, seen.since
        settings = await context.read_settings(host)
        current = await context.read_membership(host)
        if current is None or current.record.epoch != on.record.epoch:
            return None
        by, reason = "", ""
        if ordered:
            order = fence_order(settings.fencing.requested, current.metadata.uid)
            if order is None or order[0] != current.record.epoch:
                return None
            _, by, reason = order
        if current.metadata.resource_version != on.metadata.resource_version:
            if not by:
                return None
            on, since = current, context.clock.monotonic()
        hold = settings.explain_spared(context.clock.now())
        if not (hold or by):
            awaited = settings.is_awaited(departure_of(settings.hypervisor))
            hold = "its shutdown policy is freeze" if awaited else explain_refusal(self._evaluate_now(), host)
        view = CondemnView(
            host=host,
            record=on.record,
            unchanged_s=context.clock.monotonic() - since,
            silence_s=context.rules.profile_of(host, on.record).silence_s,
            observer=context.me,
            hold=hold,
            asked_by=by,
            reason=f"{by}: {reason}" if by else "",
            observers=observers,
            looks=looks,
        )
        context.watcher.note_condemnation(host, on, since)
        record = await self._take_step(CONDEMN, view, on)
        if record is None:
            return None
        fence = record.fence
        _log.warning("fence.condemned", host=host, fence=fence.id, epoch=fence.epoch, why=fence.reason)
        return Fence(context, host, record, since)

    async def take_over(self, host: str, seen: SeenHost) -> Fence | None:
        """Carry on a fence that nobody moves; ``None``: somebody does."""
        now = self._context.clock.monotonic()
        view = TakeOverView(
            host=host,
            record=seen.record,
            observer=self._context.me,
            unchanged_s=now - seen.since,
            limit_s=self._context.rules.take_over_s(host, seen, now),
        )
        quiet_since, before = seen.quiet_since, seen.record.fence.by
        record = await self._take_step(TAKE_OVER, view, seen.membership)
        if record is None:
            return None
        _log.warning("fence.taken_over", host=host, fence=record.fence.id, before=before)
        return Fence(self._context, host, record, quiet_since)

    async def _take_step(self, step: ProtocolStep[A, RecordOutcome], view: A, on: Membership) -> MemberRecord | None:
        """The record after the step on exactly this version; ``None``: refused, or the version was another by then."""
        outcome = self._context.decisions.use(step.decision, view, subject=on.name)
        try:
            if outcome.record is not None:
                return await self._context.swap(on, outcome.record)
            why = outcome.refused.why if outcome.refused is not None else ""
        except Conflict:
            why = "its membership changed before that"
        except Unknown:
            why = "the answer was lost"  # if it is written after all, the open fence is found and carried on
        _log.info("fence.not_opened", host=on.name, step=step.name, why=why)
        return None

    def _evaluate_now(self) -> EvaluateResult:
        """The evaluation of this very moment, shared by hosts that are condemned together."""
        if self._present is None or self._context.clock.monotonic() - self._present[0] > PRESENT_S:
            return self.evaluate()
        return self._present[1]


def _is_older(before: FenceRecord, now: FenceRecord) -> bool:
    """Whether less is written than was, as in a store that was restored; a proof that is found is no step back."""
    if len(now.findings) != len(before.findings):
        return len(now.findings) < len(before.findings)
    return len(now.unproven) < len(before.unproven)


class Fence:
    """An open fence that this fencer carries on.

    ``quiet_since``: since when no renewal can have happened, on my monotonic clock.
    """

    def __init__(self, context: FencerContext, host: str, record: MemberRecord, quiet_since: float) -> None:
        self.host = host
        self.record = record
        """As it was last seen."""
        self.epoch = record.fence.epoch
        self.id = record.fence.id
        self.quiet_since = quiet_since
        self.dead = False
        """Whether it ended in a proof."""
        self._context = context
        self._clock = context.clock
        self._over = asyncio.Event()
        self._wake = asyncio.Event()
        self._unproven: dict[ProofKind, Unproven] = {}
        """Kinds that have proven nothing so far, and why."""
        self._logged = ""

    def update_record(self, record: MemberRecord | None) -> None:
        """The document changed."""
        if record is None or not self._is_mine(record):
            self.dead = self.dead or (record is not None and record.dead_through >= self.epoch)
            self._over.set()
            return
        if record.distrusted != self.record.distrusted or _is_older(self.record.fence, record.fence):
            self._wake.set()
        self.record = record

    def wake(self) -> None:
        """What operators want has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Return when the epoch is proven dead, the host came back, or another fencer carries it on."""
        isolation = FenceIsolation(self._context, self)
        parts = (
            self._prove_by_power,
            self._prove_by_watchdog,
            isolation.maintain,
            isolation.report,
            self._prove_by_operator,
        )
        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(self._persist(one), name=f"fence {self.host} {one.__name__}") for one in parts]
            await self._over.wait()
            for task in tasks:
                task.cancel()

    def _is_mine(self, record: MemberRecord) -> bool:
        return is_open(record) and record.fence.id == self.id and record.fence.by == self._context.me

    async def _persist(self, part: Callable[[], Awaitable[None]]) -> None:
        """Try again while it is the store that fails."""
        while not self._over.is_set():
            try:
                await part()
            except OutliveError as error:
                _log.warning("fence.store_failed", host=self.host, fence=self.id, error=str(error))
                await self._clock.sleep(RETRY_S)
            else:
                return

    # The kinds of proof

    async def _prove_by_power(self) -> None:
        tries, longer = 0, 0.0
        while True:
            settings = await self.await_end_of_maintenance()
            if "power" not in self._found_kinds():
                limit_s = max(longer, self._context.answer_limit_s(settings))
                why, slow = await self._attempt(settings, limit_s)
                if self._over.is_set():
                    return
                await self.note_unproven("power", why)
                if slow and (longer := longer_s(limit_s)) > limit_s:
                    await self.pause(SLOW_PAUSE_S)
                    continue
            else:
                kept = self._unproven.get("power")
                why = kept.why if kept is not None else "it is off, and another kind of proof is demanded"
                await self.note_unproven("power", why)
            pause = BACKOFF_S[min(tries, len(BACKOFF_S) - 1)]
            tries += 1
            await self.pause(LOOK_S if settings.fencing.power_in_maintenance(self._clock.now()) else pause)

    async def _attempt(self, settings: HostSettings, limit_s: float) -> tuple[str, bool]:
        """One attempt with the BMC; why it proved nothing, where it did not, and whether it was only slow.

        It is written down even where there is nothing to command: others see that somebody carries this fence on.
        """
        context, host = self._context, settings.hypervisor
        tried = self.record.fence.attempt
        written = await context.take(
            self.host,
            ATTEMPT,
            lambda record: AttemptView(host=self.host, record=record, observer=context.me),
            lambda record: self._is_mine(record) and record.fence.attempt > tried,
        )
        if self._learn(written) or written.refused is not None:
            return "another fencer carries it on", False
        if "power" in self.record.distrusted:
            return "a power proof of it was contradicted before", False
        if host is None:
            return "nothing is known of its BMC", False
        if settings.fencing.power_in_maintenance(self._clock.now()):
            return "somebody works on its BMC (spec.fencing.powerMaintenance)", False
        async with context.power_slots:
            identity = await context.identities.take(settings, limit_s)
            renew_s = context.rules.profile_of(self.host, self.record).renew_s
            unrehearsed = context.rehearsals.explain_outdated(host, self.quiet_since, self.record, renew_s)
            if identity.refusal or unrehearsed:
                return identity.refusal or unrehearsed, identity.slow and not unrehearsed
            now = await context.read_settings(self.host)
            if now.keeps_power(self._clock.now()):
                return "maintenance began before it was switched off", False
            attempt = await context.power.switch_off(host, limit_s)
        if not attempt.fenced:
            return attempt.why, attempt.slow
        why = await self.prove(
            "power",
            PROVE_POWER,
            lambda common: PowerView(
                **common,
                system_uuid=attempt.system_uuid,
                expected_uuid=expected_system(host, common["record"]),
                shared_by=context.systems.shared_by(host),
                rehearsed=not unrehearsed,
                off_after_command=attempt.off_after_s,
                answers_s=attempt.answers_s,
            ),
        )
        return why, False

    async def _prove_by_watchdog(self) -> None:
        if not self.record.guard.armed:
            await self.note_unproven("watchdog", "its guard was not armed")
            return
        while True:
            why = "a watchdog proof of it was contradicted before"
            if "watchdog" not in self.record.distrusted:
                need = safe_after_s(self.record, self._slack_s())  # the host's guard has all its time, by my clock
                while (quiet := self._clock.monotonic() - self.quiet_since) < need:
                    await self._clock.sleep(need - quiet + HAIR_S)
                await self.await_end_of_maintenance()
                why = await self.prove(
                    "watchdog",
                    PROVE_WATCHDOG,
                    lambda common: WatchdogView(
                        **common, unchanged_s=self._clock.monotonic() - self.quiet_since, slack_s=self._slack_s()
                    ),
                )
            await self.note_unproven("watchdog", why)
            if "watchdog" in self._found_kinds():
                return
            await self.pause(BACKOFF_S[0])

    def _slack_s(self) -> float:
        """What operators allow for resets on top of the guard's own times; a slip in a document makes it no shorter."""
        return max(GUARD_SLACK_S, float(self._context.rules.profile_of(self.host, self.record).grace_s))

    async def _prove_by_operator(self) -> None:
        """An operator's assertion counts in maintenance too: somebody stands before the machine."""
        while True:
            asserted = operator_assertion(self._context.rules.settings_of(self.host).fencing.operator_proof)
            if asserted is not None and asserted[0] == self.id and "operator" not in self._found_kinds():
                await self._prove_assertion(*asserted)
            await self.pause(LOOK_S)

    async def _prove_assertion(self, fence: str, name: str, reason: str) -> None:
        why = await self.prove(
            "operator",
            PROVE_OPERATOR,
            lambda common: OperatorView(**common, fence=fence, name=name, reason=reason),
        )
        _log.info("fence.operator", host=self.host, fence=self.id, name=name, outcome=why or "proven")

    # What they share

    def _found_kinds(self) -> set[str]:
        return {one.kind for one in self.record.fence.findings}

    async def prove(
        self, kind: ProofKind, step: ProtocolStep[V, RecordOutcome], view: Callable[[dict[str, Any]], V]
    ) -> str:
        """Write the proof; why the fence is still open, where it is. ``view`` is called with what all views share."""
        settings = await self._context.read_settings(self.host)
        written = await self._context.take(
            self.host,
            step,
            lambda record: view(self.common_fields(record, settings)),
            lambda record: record.dead_through >= self.epoch,
        )
        over = self._learn(written)
        if written.refused is not None:
            _log.info("fence.refused", host=self.host, fence=self.id, kind=kind, why=written.refused.why)
            return written.refused.why
        if over:
            return ""
        if kind == "cut":
            return CUT_OFF
        return f"it says so, but {settings.demanded} kinds of proof are demanded"

    def common_fields(self, record: MemberRecord, settings: HostSettings) -> dict[str, Any]:
        """What all views of proofs share (``FencedView``)."""
        return {
            "host": self.host,
            "record": record,
            "observer": self._context.me,
            "epoch": self.epoch,
            "demanded": settings.demanded,
            "incarnation": settings.incarnation,
            "paused": settings.paused,
        }

    def _learn(self, written: WriteResult) -> bool:
        """Keep what was written or read; whether the fence is over."""
        self.update_record(written.record)
        return self._over.is_set()

    async def note_unproven(self, kind: ProofKind, why: str, *, failing: bool = False) -> None:
        """This kind proves nothing for now. Where that holds for all kinds, the fence is unconfirmed.

        It is written down when it is complete, and at once where the BMC failed or what is isolated could
        not be renewed (``failing``), or could again: faults say so, also those of other reporters.
        """
        if self._over.is_set():
            return
        self._unproven[kind] = Unproven(kind=kind, why=why, failing=failing)
        complete = all(one in self._unproven for one in AWAITED)
        if not complete and kind != "power" and failing == any(one.failing for one in self.record.fence.unproven):
            return
        unproven = tuple(self._unproven[one] for one in AWAITED if one in self._unproven)

        def is_applied(record: MemberRecord) -> bool:
            return record.fence.unproven == unproven and (not complete or record.fence.phase is FencePhase.UNCONFIRMED)

        if not is_applied(self.record):
            phase = "unconfirmed" if complete else "condemned"
            written = await self._context.take(
                self.host,
                ATTEMPT,
                lambda record: AttemptView(
                    host=self.host, record=record, observer=self._context.me, phase=phase, unproven=unproven
                ),
                is_applied,
            )
            if self._learn(written):
                return
        why = self.record.fence.unproven_why
        if complete and why != self._logged:
            self._logged = why
            _log.warning("fence.unconfirmed", host=self.host, fence=self.id, epoch=self.epoch, reason=why)

    async def await_end_of_maintenance(self) -> HostSettings:
        """Wait until neither the cluster nor the host is in maintenance, read fresh; what operators want."""
        while True:
            settings = await self._context.read_settings(self.host)
            why = settings.active_maintenance(self._clock.now())
            if not why:
                return settings
            _log.info("fence.waits", host=self.host, fence=self.id, why=why)
            await self.pause(LOOK_S)

    async def pause(self, seconds: float) -> None:
        """Rest, or until operators change something."""
        self._wake.clear()
        async with OrderedTaskGroup() as group:
            rest = group.create_task(self._clock.sleep(seconds))
            woken = group.create_task(self._wake.wait())
            await asyncio.wait((rest, woken), return_when=asyncio.FIRST_COMPLETED)
            rest.cancel()
            woken.cancel()
