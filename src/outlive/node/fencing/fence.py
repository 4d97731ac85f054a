"""One fence: a host is condemned, or its fence taken over, and proofs are looked for until its epoch is proven dead.

Right before a host is condemned everything is read fresh once more; the compare-and-swap on exactly the version that
was seen decides: had the host renewed, it fails, and the host lives.

Then all kinds of proof are tried at once, each by a task of its own, and the first that the policy lets count ends the
fence: the power controller, the wait for the guard, storage isolation, an operator's assertion. Whoever reads the
Membership knows as much as this task does, so that another fencer can go on at any step. Where nothing proves anything
the fence is ``unconfirmed`` and tries again, for ever (docs/concepts/safety.md#proofs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from outlive.base.errors import Conflict, OutliveError, Unknown
from outlive.base.logging import get_logger
from outlive.node.fencing.context import FencerContext, Written
from outlive.node.fencing.isolation import CUT_OFF, FenceIsolation
from outlive.node.fencing.policy import HostSettings, operator_assertion
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
from outlive.node.fencing.rules import refuses
from outlive.node.fencing.states import (
    ATTEMPT,
    CONDEMN,
    TAKE_OVER,
    AttemptView,
    CondemnView,
    FenceOutcome,
    TakeOverView,
    decision_of,
    is_open,
)
from outlive.node.fencing.suspicion import FENCE_EVALUATE, EvaluateResult
from outlive.node.fencing.watcher import HAIR_S, Seen
from outlive.resources import FencePhase, MemberRecord, Membership, ProofKind, Unproven
from outlive.resources.maintenance import power_maintenance
from outlive.runtime.steps import ProtocolStep
from outlive.runtime.tasks import OrderedTaskGroup

PRESENT_S: Final = 0.25
"""An evaluation is used for all hosts that are judged within so long."""
BACKOFF_S: Final = (30.0, 60.0, 120.0, 300.0)
"""Pauses between attempts that proved nothing; the last one for ever."""
RETRY_S: Final = 1.0
"""Pause after the store failed."""
LOOK_S: Final = 5.0
"""How often a fence that waits (for the end of maintenance, an operator, a setting) looks again."""
AWAITED: Final[tuple[ProofKind, ...]] = ("power", "watchdog", "cut")
"""Kinds of proof that are waited for before the fence counts as unconfirmed."""

V = TypeVar("V", bound=FencedView)

_replace = msgspec.structs.replace
_log = get_logger("fencing")


@dataclass(frozen=True, slots=True)
class Opened:
    """A fence that is mine to carry on."""

    record: MemberRecord
    quiet_since: float
    """Since when no renewal can have happened, on my monotonic clock."""


class Opening:
    """Condemns hosts, and takes fences over that nobody carries on. All calls may raise errors of the store."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._present: tuple[float, EvaluateResult] | None = None

    def evaluate(self) -> EvaluateResult:
        """Whom to suspect now, and whose fences to take over."""
        result = self._context.decisions.use(FENCE_EVALUATE, self._context.rules.evaluation(), subject=self._context.me)
        self._present = (self._context.clock.monotonic(), result)
        return result

    async def condemn(self, host: str, seen: Seen, *, observers: str, looks: str) -> Opened | None:
        """Condemn a silent host on the version that was seen; ``None``: it lives.

        ``observers`` and ``looks`` explain, for whoever asks why, who saw the silence and how often it was looked at.
        """
        on, since = seen.membership, seen.since
        settings = await self._context.writer.settings(host)
        current = await self._context.writer.membership(host)
        if current is None or current.metadata.resource_version != on.metadata.resource_version:
            return None
        hold = settings.maintenance(self._context.clock.now()) or refuses(self._evaluated(), host)
        return await self._swap(on, since, self._view(on, since, hold=hold, observers=observers, looks=looks))

    async def condemn_asked(self, host: str, seen: Seen, name: str, reason: str) -> Opened | None:
        """Condemn a host because somebody asks for it, silent or not; only maintenance forbids it."""
        on, since = seen.membership, seen.since
        settings = await self._context.writer.settings(host)
        current = await self._context.writer.membership(host)
        if current is None or current.record.epoch != on.record.epoch:
            return None
        if current.metadata.resource_version != on.metadata.resource_version:
            on, since = current, self._context.clock.monotonic()
        hold = settings.maintenance(self._context.clock.now())
        return await self._swap(
            on, since, self._view(on, since, hold=hold, asked_by=name, reason=f"{name}: {reason}" if name else "")
        )

    def _view(self, on: Membership, since: float, **reasons: str) -> CondemnView:
        return CondemnView(
            host=on.name,
            record=on.record,
            unchanged_s=self._context.clock.monotonic() - since,
            silence_s=self._context.rules.policies.profile(on.name, on.record).silence_s,
            observer=self._context.me,
            **reasons,
        )

    async def _swap(self, on: Membership, since: float, view: CondemnView) -> Opened | None:
        host = on.name
        outcome = self._context.decisions.use(decision_of(CONDEMN), view, subject=host)
        if outcome.refused is not None or outcome.record is None:
            _log.info("fence.not_condemned", host=host, why=outcome.refused.why if outcome.refused else "")
            return None
        self._context.watcher.condemning(host, on, since)
        try:
            written = await self._context.writer.swap(on, outcome.record)
        except Conflict:
            _log.info("fence.lives", host=host, why="it changed before it was condemned")
            return None
        except Unknown:
            return None  # if it is written after all, the open fence is found and carried on
        fence = written.record.fence
        _log.warning("fence.condemned", host=host, fence=fence.id, epoch=fence.epoch, why=fence.reason)
        return Opened(written.record, since)

    async def take_over(self, host: str, seen: Seen) -> Opened | None:
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
        outcome = self._context.decisions.use(decision_of(TAKE_OVER), view, subject=host)
        if outcome.refused is not None or outcome.record is None:
            return None
        try:
            written = await self._context.writer.swap(seen.membership, outcome.record)
        except (Conflict, Unknown):
            return None
        _log.warning("fence.taken_over", host=host, fence=written.record.fence.id, before=before)
        return Opened(written.record, quiet_since)

    def _evaluated(self) -> EvaluateResult:
        """The evaluation of this very moment, shared by hosts that are condemned together."""
        if self._present is None or self._context.clock.monotonic() - self._present[0] > PRESENT_S:
            return self.evaluate()
        return self._present[1]


class Fence:
    """An open fence that this fencer carries on."""

    def __init__(self, context: FencerContext, host: str, opened: Opened) -> None:
        self.host = host
        self.record = opened.record
        """As it was last seen."""
        self.epoch = opened.record.fence.epoch
        self.id = opened.record.fence.id
        self.dead = False
        """Whether it ended in a proof."""
        self._context = context
        self._clock = context.clock
        self._quiet_since = opened.quiet_since
        self._over = asyncio.Event()
        self._wake = asyncio.Event()
        self._unproven: dict[ProofKind, Unproven] = {}
        """Kinds that have proven nothing so far, and why."""
        self._logged = ""

    def seen(self, record: MemberRecord | None) -> None:
        """The document changed."""
        if record is None or not self._is_mine(record):
            self.dead = self.dead or (record is not None and record.dead_through >= self.epoch)
            self._over.set()
            return
        if record.distrusted != self.record.distrusted:
            self._wake.set()
        self.record = record

    def wake(self) -> None:
        """What operators want has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Return when the epoch is proven dead, the host came back, or another fencer carries it on."""
        async with OrderedTaskGroup() as group:
            proofs = (self._by_power, self._by_watchdog, self._by_cut, self._by_operator)
            tasks = [group.create_task(self._persist(one), name=f"fence {self.host} {one.__name__}") for one in proofs]
            await self._over.wait()
            for task in tasks:
                task.cancel()

    def _is_mine(self, record: MemberRecord) -> bool:
        return is_open(record) and record.fence.id == self.id and record.fence.by == self._context.me

    async def _persist(self, prove: Callable[[], Awaitable[None]]) -> None:
        """Try again while it is the store that fails."""
        while not self._over.is_set():
            try:
                await prove()
            except OutliveError as error:
                _log.warning("fence.store_failed", host=self.host, fence=self.id, error=str(error))
                await self._clock.sleep(RETRY_S)
            else:
                return

    # The kinds of proof

    async def _by_power(self) -> None:
        tries = 0
        while True:
            settings = await self.unless_maintenance()
            if "power" not in self._found():
                why = await self._attempt(settings)
                if self._over.is_set():
                    return
                await self.nothing_by("power", why)
            elif tries == 0:
                await self.nothing_by("power", "it is off, and another kind of proof is demanded")
            pause = BACKOFF_S[min(tries, len(BACKOFF_S) - 1)]
            tries += 1
            await self.pause(LOOK_S if power_maintenance(settings.fencing, self._clock.now()) else pause)

    async def _attempt(self, settings: HostSettings) -> str:
        """One attempt with the power controller; why it proved nothing, where it did not.

        It is written down even where there is nothing to command: others see that somebody carries this fence on.
        """
        context, host = self._context, settings.hypervisor
        tried = self.record.fence.attempt
        written = await context.writer.take(
            self.host,
            ATTEMPT,
            lambda record: AttemptView(host=self.host, record=record, observer=context.me),
            lambda record: self._is_mine(record) and record.fence.attempt > tried,
        )
        if self._learn(written) or written.refused is not None:
            return "another fencer carries it on"
        if "power" in self.record.distrusted:
            return "a power proof of it was contradicted before"
        if host is None:
            return "nothing is known of its power controller"
        if power_maintenance(settings.fencing, self._clock.now()):
            return "somebody works on its power controller (spec.fencing.powerMaintenance)"
        async with context.power_slots:
            refusal = await context.power.refusal(host)
            renew_s = context.rules.policies.profile(self.host, self.record).renew_s
            unrehearsed = context.rehearsals.not_in_date(host, self._quiet_since, self.record, renew_s)
            if refusal or unrehearsed:
                return refusal or unrehearsed
            now = await context.writer.settings(self.host)
            if now.maintenance(self._clock.now()) or power_maintenance(now.fencing, self._clock.now()):
                return "maintenance began before it was switched off"
            attempt = await context.power.switch_off(host)
        if not attempt.fenced:
            return attempt.why
        return await self.prove(
            "power",
            PROVE_POWER,
            lambda record, demanded: PowerView(
                host=self.host,
                record=record,
                observer=context.me,
                epoch=self.epoch,
                demanded=demanded,
                system_uuid=attempt.system_uuid,
                expected_uuid=host.spec.fencing.system_uuid,
                rehearsed=not unrehearsed,
                off_after_command=attempt.off_after_s,
            ),
        )

    async def _by_watchdog(self) -> None:
        if not self.record.guard.armed:
            await self.nothing_by("watchdog", "its guard was not armed")
            return
        while True:
            why = "a watchdog proof of it was contradicted before"
            if "watchdog" not in self.record.distrusted:
                await self._wait_for_guard()
                await self.unless_maintenance()
                why = await self.prove("watchdog", PROVE_WATCHDOG, self._watchdog_view)
            await self.nothing_by("watchdog", why)
            if "watchdog" in self._found():
                return
            await self.pause(BACKOFF_S[0])

    async def _wait_for_guard(self) -> None:
        """Return once the host's guard has had all its time, by my clock."""
        need = safe_after_s(self.record, self._slack_s())
        while (quiet := self._clock.monotonic() - self._quiet_since) < need:
            await self._clock.sleep(need - quiet + HAIR_S)

    def _watchdog_view(self, record: MemberRecord, demanded: int) -> WatchdogView:
        return WatchdogView(
            host=self.host,
            record=record,
            observer=self._context.me,
            epoch=self.epoch,
            demanded=demanded,
            unchanged_s=self._clock.monotonic() - self._quiet_since,
            slack_s=self._slack_s(),
        )

    def _slack_s(self) -> float:
        """What operators allow for resets on top of the guard's own times; a slip in a document makes it no shorter."""
        return max(GUARD_SLACK_S, float(self._context.rules.policies.profile(self.host, self.record).grace_s))

    async def _by_cut(self) -> None:
        if self._context.cutting is None:
            await self.nothing_by("cut", "nobody here can shut it out")
            return
        await FenceIsolation(self._context, self._context.cutting, self).run()

    async def _by_operator(self) -> None:
        """An operator's assertion counts in maintenance too: somebody stands before the machine."""
        while True:
            asserted = operator_assertion(self._context.rules.policies.settings(self.host).fencing.operator_proof)
            if asserted is not None and asserted[0] == self.id and "operator" not in self._found():
                await self._prove_assertion(*asserted)
            await self.pause(LOOK_S)

    async def _prove_assertion(self, fence: str, name: str, reason: str) -> None:
        why = await self.prove(
            "operator",
            PROVE_OPERATOR,
            lambda record, demanded: OperatorView(
                host=self.host,
                record=record,
                observer=self._context.me,
                epoch=self.epoch,
                demanded=demanded,
                fence=fence,
                name=name,
                reason=reason,
            ),
        )
        _log.info("fence.operator", host=self.host, fence=self.id, name=name, outcome=why or "proven")

    # What they share

    def _found(self) -> set[str]:
        return {one.kind for one in self.record.fence.findings}

    async def prove(
        self,
        kind: ProofKind,
        step: ProtocolStep[V, FenceOutcome],
        view: Callable[[MemberRecord, int], V],
    ) -> str:
        """Write the proof; why the fence is still open, where it is."""
        settings = await self._context.writer.settings(self.host)
        written = await self._context.writer.take(
            self.host,
            step,
            lambda record: _replace(
                view(record, settings.demanded), incarnation=settings.incarnation, paused=settings.paused
            ),
            lambda record: record.dead_through >= self.epoch,
        )
        if written.refused is not None:
            _log.info("fence.refused", host=self.host, fence=self.id, kind=kind, why=written.refused.why)
            self._learn(written)
            return written.refused.why
        if self._learn(written):
            return ""
        if kind == "cut":
            return CUT_OFF
        return f"it says so, but {settings.demanded} kinds of proof are demanded"

    def _learn(self, written: Written) -> bool:
        """Keep what was written or read; whether the fence is over."""
        if written.membership is not None and written.record is not None:
            self.seen(written.record)
        else:
            self._over.set()
        return self._over.is_set()

    async def nothing_by(self, kind: ProofKind, why: str, *, failing: bool = False) -> None:
        """This kind proves nothing for now. Where that holds for all kinds, the fence is unconfirmed.

        It is written down when it is complete, and at once where the power controller failed or what is isolated could
        not be renewed (``failing``), or could again: faults say so, whoever reports them.
        """
        if self._over.is_set():
            return
        self._unproven[kind] = Unproven(kind=kind, why=why, failing=failing)
        complete = all(one in self._unproven for one in AWAITED)
        if not complete and kind != "power" and failing == any(one.failing for one in self.record.fence.unproven):
            return
        unproven = tuple(self._unproven[one] for one in AWAITED if one in self._unproven)

        def applied(record: MemberRecord) -> bool:
            return record.fence.unproven == unproven and (not complete or record.fence.phase is FencePhase.UNCONFIRMED)

        if not applied(self.record):
            view = AttemptView(
                host=self.host,
                record=self.record,
                observer=self._context.me,
                phase="unconfirmed" if complete else "condemned",
                unproven=unproven,
            )
            written = await self._context.writer.take(
                self.host, ATTEMPT, lambda record: _replace(view, record=record), applied
            )
            if self._learn(written):
                return
        why = self.record.fence.unproven_why
        if complete and why != self._logged:
            self._logged = why
            _log.warning("fence.unconfirmed", host=self.host, fence=self.id, epoch=self.epoch, reason=why)

    async def unless_maintenance(self) -> HostSettings:
        """Wait until neither the cluster nor the host is in maintenance, read fresh; what operators want."""
        while True:
            settings = await self._context.writer.settings(self.host)
            why = settings.maintenance(self._clock.now())
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
