"""What would have been condemned but for maintenance: written down with time and reason, and never acted on.

The rules that suspect hosts go on in maintenance, on the same peers and the same silence, as if nobody were in it; only
a second observer is not asked, which takes no more than a moment where there is one. Who
would have been condemned gets an entry in ``Hypervisor.status.spared``, so that whoever ends the work reads what it
hid. A forecast: it does not know which of these hosts would have been proven dead, and while the store is away nothing
is written (docs/operating/fencing.md#maintenance).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import Conflict, NotFound, OutliveError, Unknown
from outlive.base.logging import get_logger
from outlive.node.fencing.evaluate import evaluate
from outlive.node.fencing.rate import RateRule
from outlive.node.fencing.rules import Rules
from outlive.node.fencing.suspecting import Suspicions
from outlive.node.fencing.watching import Seen, Watching
from outlive.resources import Hypervisor, Spared
from outlive.store import Store

LOOK_S: Final = 1.0
"""How often is looked, while anything is in maintenance."""
KEPT: Final = 8
"""Entries of one host; the oldest goes first."""
WRITE_TRIES: Final = 4
"""Writes of one entry."""
WRITE_S: Final = 5.0
"""How long all of them may take; then the entry is tried again at the next look."""

_log = get_logger("fencing.forecast")


class Forecast:
    """See the module. ``suspicions``: its own; ``leads``: whether this fencer writes what all know."""

    def __init__(
        self,
        watching: Watching,
        rules: Rules,
        suspicions: Suspicions,
        store: Store,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._watching = watching
        self._rules = rules
        self._store = store
        self._clock = clock
        self._leads = leads
        self._suspicions = suspicions
        self._rate = RateRule()
        self._told: dict[str, tuple[int, int]] = {}
        """Host → epoch and renewal of the silence that was written down."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            for host, one in list(self._look()):
                await self._write(host, one)
            await self._clock.sleep(LOOK_S)

    def _look(self) -> Iterator[tuple[str, Spared]]:
        now, wall = self._clock.monotonic(), self._clock.now()
        under = {host: why for host, _ in self._watching if (why := self._rules.settings(host).maintenance(wall))}
        self._told = {host: told for host, told in self._told.items() if host in under}
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
            if host not in under or self._told.get(host) == silence:
                continue
            why = self._why(host, seen, now)
            self._told[host] = silence
            if self._leads():
                yield host, Spared(at=as_datetime(wall), epoch=silence[0], seq=silence[1], why=why, under=under[host])

    def _why(self, host: str, seen: Seen, now: float) -> str:
        policy, unit = self._rules.cluster().fencing, self._rules.unit(host)
        why = f"not renewed for {now - seen.since:.1f} s (limit {self._rules.silence_s(host, seen):g} s)"
        if not self._rate.reserve(unit, now, limit=policy.fences_limit, window_s=policy.fences_window_s):
            return f"{why}, and then only after a release: {policy.fences_limit} failure domains came before it"
        self._rate.count(unit, now)
        self._rate.release(unit)
        return why

    async def _write(self, name: str, one: Spared) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                for _ in range(WRITE_TRIES):
                    if await self._written(name, one):
                        return
        except NotFound:
            return
        except (OutliveError, TimeoutError) as error:
            self._told.pop(name, None)
            _log.warning("fence.forecast_not_written", host=name, why=one.why, error=str(error))

    async def _written(self, name: str, one: Spared) -> bool:
        """One try; ``False`` for one that lost against another writer, or whose answer was lost."""
        host = await self._store.get(Hypervisor, name, fresh=True)
        kept = host.status.spared
        if any((old.epoch, old.seq) == (one.epoch, one.seq) for old in kept):
            return True
        status = msgspec.structs.replace(host.status, spared=(*kept, one)[-KEPT:])
        try:
            await self._store.replace_status(msgspec.structs.replace(host, status=status))
        except (Conflict, Unknown):
            return False
        _log.warning("fence.spared", host=name, why=one.why, under=one.under)
        return True
