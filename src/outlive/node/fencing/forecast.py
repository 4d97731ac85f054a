"""What would have been condemned but for maintenance: written down with time and reason, and never acted on.

The rules that suspect hosts go on in maintenance, on the same peers and the same silence, as if nobody were in it; only
a second observer is not asked, which takes no more than a moment where there is one. Who
would have been condemned gets an entry in ``Hypervisor.status.spared``, so that whoever ends the work reads what it
hid. A forecast: it does not know which of these hosts would have been proven dead, and while the store is away nothing
is written (docs/operating/fencing.md#maintenance).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from outlive.base.clock import as_datetime
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.fencing.context import FencerContext
from outlive.node.fencing.rules import RateRule
from outlive.node.fencing.suspicion import evaluate
from outlive.node.fencing.watcher import Seen, Suspicions
from outlive.resources import Hypervisor, Spared
from outlive.store import compare_and_swap

LOOK_S: Final = 1.0
"""How often is looked, while anything is in maintenance."""
KEPT: Final = 8
"""Entries of one host; the oldest goes first."""

_replace = msgspec.structs.replace
_log = get_logger("fencing.forecast")


class Forecast:
    """See the module."""

    def __init__(self, context: FencerContext) -> None:
        self._watcher = context.watcher
        self._rules = context.rules
        self._store = context.store
        self._clock = context.clock
        self._leads = context.leads
        self._suspicions = Suspicions(context.watcher, context.rules.looks)
        self._rate = RateRule()
        self._written: dict[str, tuple[int, int]] = {}
        """Host → epoch and renewal of the silence that was written down."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            for host, one in list(self._look()):
                await self._write(host, one)
            await self._clock.sleep(LOOK_S)

    def _look(self) -> Iterator[tuple[str, Spared]]:
        now, wall = self._clock.monotonic(), self._clock.now()
        policies = self._rules.policies
        under = {host: why for host, _ in self._watcher if (why := policies.settings(host).maintenance(wall))}
        self._written = {host: found for host, found in self._written.items() if host in under}
        if not under:
            self._suspicions.clear()
            self._rate.clear()
            return
        self._suspicions.drop_the_living()
        result = evaluate(self._rules.evaluation(resting=False))
        if result.reason is not None:
            self._suspicions.put_off(now + LOOK_S)
            return
        for ripe in self._suspicions.ripe(result.suspects, now):
            host, seen = ripe.host, ripe.seen
            silence = (seen.record.epoch, seen.record.seq)
            if host not in under or self._written.get(host) == silence:
                continue
            why = self._why(host, seen, now)
            self._written[host] = silence
            if self._leads():
                yield host, Spared(at=as_datetime(wall), epoch=silence[0], seq=silence[1], why=why, under=under[host])

    def _why(self, host: str, seen: Seen, now: float) -> str:
        policy, unit = self._rules.policies.cluster().fencing, self._rules.policies.unit(host)
        why = f"not renewed for {now - seen.since:.1f} s (limit {self._rules.silence_s(host, seen):g} s)"
        if not self._rate.reserve(unit, now, limit=policy.fences_limit, window_s=policy.fences_window_s):
            return f"{why}, and then only after a release: {policy.fences_limit} failure domains came before it"
        self._rate.count(unit, now)
        self._rate.release(unit)
        return why

    async def _write(self, name: str, one: Spared) -> None:
        def change(host: Hypervisor | None) -> Hypervisor | None:
            kept = () if host is None else host.status.spared
            if host is None or any((old.epoch, old.seq) == (one.epoch, one.seq) for old in kept):
                return None
            return _replace(host, status=_replace(host.status, spared=(*kept, one)[-KEPT:]))

        try:
            await compare_and_swap(self._store, Hypervisor, name, change, clock=self._clock)
        except OutliveError as error:
            self._written.pop(name, None)
            _log.warning("fence.forecast_not_written", host=name, why=one.why, error=str(error))
        else:
            _log.warning("fence.spared", host=name, why=one.why, under=one.under)
