"""Arming and disarming the guard in the order that fencers rely upon.

The guard enforces before the membership says so, and the membership says so no more, acknowledged, before the guard
stops or gets other times. What is published is always what the guard says of itself at that moment, or less.
"""

from __future__ import annotations

import asyncio
from typing import Final

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.ports.guard import GuardPort, GuardReport
from outlive.node.wishes import Wishes
from outlive.resources import GuardRecord

UNARMED: Final = GuardRecord()
REHEARSAL: Final = "the guard rehearses: its watchdog resets nothing, so its host does not count as armed"

_log = get_logger("node.arming")


class Arming:
    """See the module; asked before each renewal."""

    def __init__(self, guard: GuardPort, wishes: Wishes, *, limit_s: float) -> None:
        self._guard = guard
        self._wishes = wishes
        self._limit_s = limit_s
        self.trouble = ""
        """Why the guard is not as it should be; empty when it is."""

    async def publish(self, acknowledged: GuardRecord, *, beaten: bool) -> GuardRecord:
        """What the next renewal is to say, after moving the guard towards what is wanted.

        ``acknowledged`` is what the store last acknowledged; ``beaten``: whether the guard was told of a renewal yet.
        """
        report = await self._guard.report()
        wanted = self._wanted()
        has = (report.timeout_s, report.watchdog_s) if report.armed else None
        if has == wanted:
            self._say("" if wanted is None or report.hardware else REHEARSAL)
            return record_of(report)
        if has is not None and acknowledged.armed:
            return UNARMED
        if wanted is not None and not beaten:
            return UNARMED
        await self._change(wanted)
        report = await self._guard.report()
        agrees = report.armed and (report.timeout_s, report.watchdog_s) == wanted
        return record_of(report) if agrees else UNARMED

    def _wanted(self) -> tuple[float, float] | None:
        if not self._wishes.spec.fencing.armed:
            return None
        profile = self._wishes.profile
        return (float(profile.guard_timeout_s), float(profile.watchdog_s))

    async def _change(self, wanted: tuple[float, float] | None) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                if wanted is None:
                    await self._guard.disarm()
                else:
                    await self._guard.arm(*wanted)
            self.trouble = ""
        except (OutliveError, TimeoutError) as error:
            self.trouble = str(error) or "the guard did not answer in time"
            _log.warning("guard.not_changed", armed=wanted is not None, error=self.trouble)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.warning("guard.not_published", why=trouble)
        self.trouble = trouble


def record_of(report: GuardReport) -> GuardRecord:
    """What a membership says of a guard that reports this."""
    if not report.armed or not report.hardware:
        return UNARMED
    return GuardRecord(armed=True, timeout_s=report.timeout_s, watchdog_s=report.watchdog_s)
