"""Arming and disarming the guard in the order that fencers rely upon.

The guard enforces before the membership says so, and the membership says so no more, acknowledged, before the guard
stops or gets other times. What is published is always what the guard says of itself at that moment, or less: nothing
while a guest has a process that the guard would not end, and nothing of a guard that ends another cgroup than that of
the guests. What this does not give: between the look that shows such a process and the acknowledged renewal, the
membership still says that the host is armed. A guard that is to wait longer is disarmed in between; until then the host
renews as often as the shorter time asks for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from outlive.base import OutliveError, get_logger
from outlive.node.fencing.policy import RENEWALS_BEFORE_STOP
from outlive.node.ports import GuardReport
from outlive.resources import GuardRecord, ObjectRef
from outlive.resources.reasons import FaultCode

if TYPE_CHECKING:
    from outlive.node.vm.context import VmContext

SHORTEST_PACE: Final = 0.1
"""Of the guard's time: no renewal follows another sooner on its account, however long a write may take."""
TROUBLE_S: Final = 10.0
"""Of trouble with the guard, after which a fault says so: a guard that is started again is armed before."""
UNARMED: Final = GuardRecord()
REHEARSAL: Final = "the guard rehearses: its watchdog resets nothing, so its host does not count as armed"
GAVE_UP: Final = (
    "its guard could not empty it in time, and the watchdog, which is to reset it, has not: "
    "nothing starts there before it has booted"
)
OUTSIDE: Final = "a guest has a process outside the slice that the guard empties, so its host does not count as armed"

_log = get_logger("node.arming")


class GuardArming:
    """See the module; asked before each renewal."""

    def __init__(self, node: VmContext) -> None:
        self._node = node
        self._limit_s = float(node.settings.write_limit)
        self.trouble = ""
        """Why the guard is not as it should be; empty when it is."""
        self._troubled_s: float | None = None
        """Since when there is some trouble (monotonic)."""
        self.enforced_s = 0.0
        """After how long without a renewal the guard acts, as it said last; 0: never."""

    async def publish(self, counted_on: GuardRecord, *, beaten: bool) -> GuardRecord:
        """What the next renewal is to say, after moving the guard towards what is wanted.

        ``counted_on`` is what fencers may count on; ``beaten``: whether the guard has heard of a renewal yet.
        """
        record = await self._move(counted_on, beaten=beaten)
        if not record.armed or not self._node.domains.outside_slice():
            return record
        self._report_trouble(OUTSIDE)
        return UNARMED

    async def _move(self, counted_on: GuardRecord, *, beaten: bool) -> GuardRecord:
        """Move the guard towards what is wanted; what it says of itself afterwards, or less."""
        report = await self._report()
        if report.gave_up:
            self._report_trouble(GAVE_UP)
            return UNARMED
        desired = self._node.desired
        wanted: tuple[float, float] | None = None
        if desired.spec.fencing.armed and not desired.cluster_spec.disarmed_mode(self._node.clock.now()):
            wanted = (float(desired.profile.guard_timeout_s), float(desired.profile.watchdog_s))
        has = (report.timeout_s, report.watchdog_s) if report.armed else None
        if has == wanted:
            self._report_trouble("" if wanted is None else proves_nothing(report))
            return record_of(report)
        if wanted is not None and report.misses:
            self._report_trouble(report.misses)
            return UNARMED
        later = wanted is not None and _is_later(wanted, (counted_on.timeout_s, counted_on.watchdog_s))
        if counted_on.armed and (has is not None or later):
            return UNARMED
        if wanted is not None and not beaten:
            return UNARMED
        await self._change(has, wanted)
        report = await self._report()
        agrees = report.armed and (report.timeout_s, report.watchdog_s) == wanted
        return record_of(report) if agrees else UNARMED

    def pace_s(self) -> float:
        """Between two renewals: as is wanted, and often enough for the guard while it still has a shorter time."""
        wanted_s = float(self._node.desired.profile.renew_s)
        if not self.enforced_s:
            return wanted_s
        bearable_s = (self.enforced_s - self._limit_s) / RENEWALS_BEFORE_STOP
        return min(wanted_s, max(bearable_s, self.enforced_s * SHORTEST_PACE))

    async def _report(self) -> GuardReport:
        report = await self._node.guard.report()
        self.enforced_s = report.timeout_s if report.armed else 0.0
        return report

    async def _change(self, has: tuple[float, float] | None, wanted: tuple[float, float] | None) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                if wanted is None or (has is not None and _is_later(wanted, has)):
                    await self._node.guard.disarm()
                if wanted is not None:
                    await self._node.guard.arm(*wanted)
            self._note_trouble("")
        except (OutliveError, TimeoutError) as error:
            self._note_trouble(error.message if isinstance(error, OutliveError) else "the guard did not answer in time")
            _log.warning("guard.not_changed", armed=wanted is not None, error=self.trouble)

    def _report_trouble(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.warning("guard.not_published", why=trouble)
        self._note_trouble(trouble)

    def _note_trouble(self, trouble: str) -> None:
        """A fault reports trouble that lasts: the operator who armed the host counts on the guard."""
        now, self.trouble = self._node.clock.monotonic(), trouble
        subject = ObjectRef(kind="Hypervisor", name=self._node.host)
        if not trouble:
            if self._troubled_s is not None:
                self._node.faults.clear(FaultCode.GUARD_NOT_ARMED, subject)
            self._troubled_s = None
            return
        self._troubled_s = now if self._troubled_s is None else self._troubled_s
        if now - self._troubled_s >= TROUBLE_S:
            self._node.faults.activate(FaultCode.GUARD_NOT_ARMED, subject, why=trouble)


def _is_later(wanted: tuple[float, float], has: tuple[float, float]) -> bool:
    """Whether the guard is to act later than now: it refuses that while it is armed."""
    return wanted[0] > has[0] or wanted[1] > has[1]


def least_of(one: GuardRecord, other: GuardRecord) -> GuardRecord:
    """What a caller must assume of the store if it cannot know which of the two is there."""
    if not (one.armed and other.armed):
        return one if one.armed else other
    return GuardRecord(
        armed=True,
        timeout_s=min(one.timeout_s, other.timeout_s),
        watchdog_s=min(one.watchdog_s, other.watchdog_s),
        laboratory=one.laboratory or other.laboratory,
    )


def proves_nothing(report: GuardReport) -> str:
    """Why a guard that is armed must not be published as armed; empty where it may."""
    if report.gave_up:
        return GAVE_UP
    return report.misses if report.hardware else REHEARSAL


def record_of(report: GuardReport) -> GuardRecord:
    """What a membership says of a guard that reports this."""
    if not report.armed or proves_nothing(report):
        return UNARMED
    return GuardRecord(
        armed=True, timeout_s=report.timeout_s, watchdog_s=report.watchdog_s, laboratory=report.laboratory
    )
