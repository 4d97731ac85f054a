"""One open fence, carried on by this fencer until its epoch is proven dead or somebody else decides.

All kinds of proof are tried at once, each by a task of its own, and the first that the policy lets count ends it:
the power controller, the wait for the guard, a cut, an operator's word. Whoever reads the Membership knows as much as
this task does, so that another fencer can go on at any step. Where nothing proves anything the fence says so
(``unconfirmed``, a fault, the reasons) and tries again, for ever (docs/concepts/safety.md#proofs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.fencing.condemning import ATTEMPT, AttemptView, FenceOutcome
from outlive.node.fencing.desk import Desk
from outlive.node.fencing.isolation import CUT_OFF, FenceCut
from outlive.node.fencing.proving import (
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
from outlive.node.fencing.rules import HostSettings
from outlive.node.fencing.watching import HAIR_S, is_open
from outlive.node.fencing.writing import Written
from outlive.node.orders import assertion
from outlive.resources import MemberRecord, ObjectRef, ProofKind
from outlive.resources.maintenance import power_maintenance
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.steps import ProtocolStep
from outlive.runtime.tasks import OrderedTaskGroup

BACKOFF_S: Final = (30.0, 60.0, 120.0, 300.0)
"""Pauses between attempts that proved nothing; the last one for ever."""
RETRY_S: Final = 1.0
"""Pause after the store failed."""
LOOK_S: Final = 5.0
"""How often a fence that waits (for the end of maintenance, an operator, a setting) looks again."""
POWER_AT_ONCE: Final = 64
"""Power sequences of one fencer at the same time."""

V = TypeVar("V", bound=FencedView)

_replace = msgspec.structs.replace
_log = get_logger("fencing")


class OpenFence:
    """See the module. ``quiet_since``: since when no renewal can have happened, on my monotonic clock."""

    def __init__(self, desk: Desk, host: str, record: MemberRecord, quiet_since: float) -> None:
        self.host = host
        self.epoch = record.fence.epoch
        self.id = record.fence.id
        self.dead = False
        """Whether it ended in a proof."""
        self._desk = desk
        self._clock = desk.clock
        self.record = record
        """As it was last seen."""
        self._quiet_since = quiet_since
        self._over = asyncio.Event()
        self._stir = asyncio.Event()
        self._why_not: dict[ProofKind, str] = {}
        """Kinds that have proven nothing so far, and why."""
        self._kinds: tuple[ProofKind, ...] = ("power", "watchdog", "cut")
        """Kinds that are waited for before the fence counts as unconfirmed."""
        self._said = ""

    @property
    def ref(self) -> ObjectRef:
        """Its host."""
        return ObjectRef(kind="Hypervisor", name=self.host)

    def seen(self, record: MemberRecord | None) -> None:
        """The document changed."""
        if record is None or not self._is_mine(record):
            self.dead = self.dead or (record is not None and record.dead_through >= self.epoch)
            self._over.set()
            return
        if record.distrusted != self.record.distrusted:
            self._stir.set()
        self.record = record

    def stir(self) -> None:
        """What operators want has changed."""
        self._stir.set()

    async def run(self) -> None:
        """Return when the epoch is proven dead, the host came back, or another fencer carries it on."""
        async with OrderedTaskGroup() as group:
            proofs = (self._by_power, self._by_watchdog, self._by_cut, self._by_operator)
            tasks = [group.create_task(self._persist(one), name=f"fence {self.host} {one.__name__}") for one in proofs]
            await self._over.wait()
            for task in tasks:
                task.cancel()

    def _is_mine(self, record: MemberRecord) -> bool:
        return is_open(record) and record.fence.id == self.id and record.fence.by == self._desk.me

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

    # The kinds

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
            await self.pause(LOOK_S if self._power_rests(settings) else pause)

    async def _attempt(self, settings: HostSettings) -> str:
        """One attempt with the power controller; why it proved nothing, where it did not.

        It is written down even where there is nothing to command: others see that somebody minds this fence.
        """
        desk, host = self._desk, settings.hypervisor
        tried = self.record.fence.attempt
        written = await desk.writer.take(
            self.host,
            ATTEMPT,
            lambda record: AttemptView(host=self.host, record=record, observer=desk.me),
            lambda record: self._is_mine(record) and record.fence.attempt > tried,
        )
        if self._learn(written) or written.refused is not None:
            return "another fencer carries it on"
        if "power" in self.record.distrusted:
            return "a power proof of it was contradicted before"
        if host is None:
            return "nothing is known of its power controller"
        if self._power_rests(settings):
            return "somebody works on its power controller (spec.fencing.powerMaintenance)"
        async with desk.power_slots:
            look = await desk.power.look(host)
            renew_s = desk.rules.profile(self.host, self.record).renew_s
            vouched = desk.rehearsals.vouch(host, self._quiet_since, self.record, renew_s)
            unrehearsed = "" if look.why_not else vouched
            why = look.why_not or unrehearsed
            if why:
                await self._tell_power(why)
                return why
            now = await desk.writer.settings(self.host)
            if now.maintenance(self._clock.now()) or self._power_rests(now):
                return "maintenance began before it was switched off"
            attempt = await desk.power.switch_off(host)
        if not attempt.fenced:
            await self._tell_power(attempt.why)
            return attempt.why
        return await self.prove(
            "power",
            PROVE_POWER,
            lambda record, demanded: PowerView(
                host=self.host,
                record=record,
                observer=desk.me,
                epoch=self.epoch,
                demanded=demanded,
                system_uuid=attempt.system_uuid,
                expected_uuid=host.spec.fencing.system_uuid,
                rehearsed=not unrehearsed,
                off_after_command=attempt.off_after_s,
            ),
        )

    def _power_rests(self, settings: HostSettings) -> bool:
        return power_maintenance(settings.fencing, self._clock.now())

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
            observer=self._desk.me,
            epoch=self.epoch,
            demanded=demanded,
            unchanged_s=self._clock.monotonic() - self._quiet_since,
            slack_s=self._slack_s(),
        )

    def _slack_s(self) -> float:
        """What operators allow for resets on top of the guard's own times; a slip in a document makes it no shorter."""
        return max(GUARD_SLACK_S, float(self._desk.rules.profile(self.host, self.record).grace_s))

    async def _by_cut(self) -> None:
        if self._desk.cutting is None:
            await self.nothing_by("cut", "nobody here can shut it out")
            return
        await FenceCut(self._desk, self._desk.cutting, self).run()

    async def _by_operator(self) -> None:
        """An operator's word counts in maintenance too: somebody stands before the machine."""
        while True:
            said = assertion(self._desk.rules.settings(self.host).fencing.operator_proof)
            if said is not None and said[0] == self.id and "operator" not in self._found():
                await self._prove_word(*said)
            await self.pause(LOOK_S)

    async def _prove_word(self, fence: str, name: str, reason: str) -> None:
        why = await self.prove(
            "operator",
            PROVE_OPERATOR,
            lambda record, demanded: OperatorView(
                host=self.host,
                record=record,
                observer=self._desk.me,
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
        settings = await self._desk.writer.settings(self.host)
        written = await self._desk.writer.take(
            self.host,
            step,
            lambda record: _replace(view(record, settings.demanded), incarnation=settings.incarnation),
            lambda record: (
                record.dead_through >= self.epoch
                or any(one.kind == kind and one.fence == self.id for one in record.fence.findings)
            ),
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
        """Take what was written or read; whether the fence is over."""
        if written.membership is not None and written.record is not None:
            self.seen(written.record)
        else:
            self._over.set()
        return self._over.is_set()

    async def nothing_by(self, kind: ProofKind, why: str) -> None:
        """This kind proves nothing for now. If that holds for all, the fence is unconfirmed, and people are told."""
        if self._over.is_set():
            return
        self._why_not[kind] = why
        if any(one not in self._why_not for one in self._kinds):
            return
        reason = "; ".join(f"{one}: {self._why_not[one]}" for one in self._kinds)
        fence = self.record.fence
        if fence.phase != "unconfirmed" or reason != fence.reason:
            written = await self._desk.writer.take(
                self.host,
                ATTEMPT,
                lambda record: AttemptView(
                    host=self.host, record=record, observer=self._desk.me, phase="unconfirmed", reason=reason
                ),
                lambda record: record.fence.phase == "unconfirmed",
            )
            if self._learn(written):
                return
        if reason != self._said:
            self._said = reason
            _log.warning("fence.unconfirmed", host=self.host, fence=self.id, epoch=self.epoch, reason=reason)
        await self._desk.faults.raise_(
            FaultCode.FENCE_UNCONFIRMED,
            self.ref,
            self._how_it_stands(reason),
            remedy=f"see to it that it is off, then: outlive fence {self.host} --confirm-off --reason ...",
            delta=FaultCode.FENCE_UNCONFIRMED.delta,
        )

    def _how_it_stands(self, reason: str) -> str:
        if self.record.cut.through >= self.epoch:
            return f"{self.host} is condemned, cut off, and not proven dead; VMs that it can still reach wait: {reason}"
        return f"{self.host} is condemned and cannot be proven dead, so its VMs wait: {reason}"

    async def _tell_power(self, why: str) -> None:
        code = FaultCode.POWER_UNREACHABLE
        await self._desk.faults.raise_(
            code,
            self.ref,
            f"{self.host} cannot be switched off: {why}",
            remedy="check its power controller, address, credentials and system uuid (spec.fencing)",
            delta=code.delta,
        )

    async def unless_maintenance(self) -> HostSettings:
        """Wait until neither the cluster nor the host is in maintenance, by a fresh look; what operators want."""
        while True:
            settings = await self._desk.writer.settings(self.host)
            why = settings.maintenance(self._clock.now())
            if not why:
                return settings
            _log.info("fence.waits", host=self.host, fence=self.id, why=why)
            await self.pause(LOOK_S)

    async def pause(self, seconds: float) -> None:
        """Rest, or until operators change something."""
        self._stir.clear()
        async with OrderedTaskGroup() as group:
            rest = group.create_task(self._clock.sleep(seconds))
            stirred = group.create_task(self._stir.wait())
            await asyncio.wait((rest, stirred), return_when=asyncio.FIRST_COMPLETED)
            rest.cancel()
            stirred.cancel()
