"""Rehearsals: whether every power controller answers, is its own host's, and knows its state, before it is needed.

Each fencer rehearses for itself and remembers on its own clock; the first of the coordinators also writes the
result to ``Hypervisor.status.rehearsed``. A power proof needs a rehearsal that was in date when its host fell silent,
so a controller that was re-wired while its host lay dead proves nothing. A fencer that was started since then follows
the result that others wrote. How old that was when the host fell silent is counted in the host's own renewals: no two
machines' clocks are compared, and it does not age while the host lies dead (docs/concepts/safety.md#proofs).

Controllers of hosts whose VMs have strict recovery time objectives are read twice as often, so that there always is a
result of the last minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.resources import Hypervisor, MemberRecord
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import compare_and_swap

if TYPE_CHECKING:
    from outlive.node.fencing.context import FencerContext

EVERY_S: Final = 60.0
"""Between two rehearsals of one controller."""
STRICT_EVERY_S: Final = 30.0
"""The same for hosts whose VMs have strict objectives."""
IN_DATE_S: Final = 600.0
"""For how long a rehearsal counts."""
WRITTEN_AGAIN_S: Final = 300.0
"""When a good result is written once more, so that it stays in date for others."""
TRIES: Final = 3
"""Readings of one rehearsal before it failed."""
TRY_LIMIT_S: Final = 2.0
"""How long one of them may take."""
PAUSES_S: Final = (1.0, 2.0)
"""Between them."""
REST_S: Final = 0.5
"""Between two rounds of readings at least, however long they take."""
AT_ONCE: Final = 64
"""Rehearsals at the same time."""
LOOKS_FOR_LIFE: Final = 2
"""Looks, a renewal apart, for whether a host has lived on after its first good rehearsal."""
OK: Final = "ok"
"""The result of a good one."""

_log = get_logger("fencing.rehearsal")


@dataclass(slots=True)
class _Result:
    result: str
    good: tuple[float, float] | None
    """First and last of the latest good ones in a row."""
    seq: int = 0
    """The host's renewal at the last one, if that was good; what it does after that shows that it lived on."""


class Rehearsals:
    """See the module."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._results: dict[str, _Result] = {}

    def good_at(self, host: str) -> float | None:
        """When I last found its power controller good, if that was so at my last look."""
        mine = self._results.get(host)
        return mine.good[1] if mine is not None and mine.good is not None and mine.result == OK else None

    def not_in_date(self, host: Hypervisor, silent_since: float, record: MemberRecord, renew_s: float) -> str:
        """Why the host's controller proves nothing; empty if it was rehearsed when the host fell silent.

        ``silent_since`` is on my monotonic clock; ``record`` is the host's, with its last renewal, which came every
        ``renew_s``.
        """
        mine = self._results.get(host.name)
        if mine is None or mine.good is None or mine.good[0] >= silent_since:
            return _written_in_time(host, record, renew_s)
        past_s = silent_since - mine.good[1]
        if past_s > IN_DATE_S:
            return f"its power controller had failed its rehearsals for {past_s:.0f} s ({mine.result})"
        return ""

    async def run(self) -> None:
        """Rehearse until cancelled."""
        await self._context.hypervisors.wait_synced()
        while True:
            began = self._context.clock.monotonic()
            hosts = self._controlled()
            known = {host.name for host in hosts}
            for name in [name for name in self._results if name not in known]:
                del self._results[name]
            await self._rehearse_all(hosts)
            await self._sleep_until(began + STRICT_EVERY_S)
            await self._rehearse_all([one for one in self._controlled() if self._context.rules.is_strict(one)])
            await self._sleep_until(began + EVERY_S)

    def _controlled(self) -> list[Hypervisor]:
        return [one for one in self._context.hypervisors.items() if one.spec.fencing.driver]

    async def _sleep_until(self, until: float) -> None:
        await self._context.clock.sleep(max(REST_S, until - self._context.clock.monotonic()))

    async def _rehearse_all(self, hosts: Iterable[Hypervisor]) -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        async with OrderedTaskGroup() as group:
            for host in hosts:
                await slots.acquire()
                task = group.create_task(self._rehearse(host), name=f"rehearse {host.name}")
                task.add_done_callback(lambda _: slots.release())

    async def _rehearse(self, host: Hypervisor) -> None:
        began, renewal = self._context.clock.monotonic(), self._context.rules.renewal(host.name)
        result = await self._rehearsal(host)
        before = self._results.get(host.name)
        good = None if before is None else before.good
        if result == OK:
            good = (good[0] if good is not None and before is not None and before.result == OK else began, began)
        self._results[host.name] = _Result(result, good, renewal[0] if result == OK and renewal is not None else 0)
        if before is None or before.result != result:
            log = _log.info if result == OK else _log.warning
            log("fence.rehearsed", host=host.name, result=result)
        if self._context.leads():
            await self._publish(host, result, before, renewal)

    async def _publish(
        self, host: Hypervisor, result: str, before: _Result | None, renewal: tuple[int, float] | None
    ) -> None:
        """Write a result that differs; and that a good one is in date, once the host has lived on after one.

        The renewal at the last good one stays while later ones fail: a controller that nobody reaches for a while after
        its host fell silent was rehearsed in time all the same.
        """
        kept = host.status
        seq = kept.rehearsed_seq
        if result == OK and renewal is not None and before is not None and 0 < before.seq < renewal[0]:
            late_s = (renewal[0] - seq) * renewal[1]
            seq = before.seq if seq == 0 or seq > renewal[0] or late_s >= WRITTEN_AGAIN_S else seq
        elif result == OK and renewal is not None and seq == 0 and await self._lives_on(host.name, *renewal):
            seq = renewal[0]
        if (kept.rehearsed, kept.rehearsed_seq) != (result, seq):
            await self._write(host.name, result, seq)

    async def _lives_on(self, host: str, seq: int, renew_s: float) -> bool:
        """Whether it renews once more, so that what was found before it did is of its own life."""
        for _ in range(LOOKS_FOR_LIFE):
            await self._context.clock.sleep(renew_s)
            now = self._context.rules.renewal(host)
            if now is None or now[0] > seq:
                return now is not None
        return False

    async def _rehearsal(self, host: Hypervisor) -> str:
        why = ""
        for number in range(TRIES):
            if number:
                await self._context.clock.sleep(PAUSES_S[number - 1])
            try:
                async with asyncio.timeout(TRY_LIMIT_S):
                    why = await self._context.power.refusal(host)
            except TimeoutError:
                why = f"no answer in {TRY_LIMIT_S:g} s"
                continue
            if not why:
                return OK
        return why

    async def _write(self, name: str, result: str, seq: int) -> None:
        def change(host: Hypervisor | None) -> Hypervisor | None:
            if host is None:
                return None
            status = msgspec.structs.replace(host.status, rehearsed=result, rehearsed_seq=seq)
            return msgspec.structs.replace(host, status=status)

        try:
            await compare_and_swap(self._context.store, Hypervisor, name, change, clock=self._context.clock)
        except OutliveError as error:
            _log.warning("fence.rehearsal_not_written", host=name, result=result, error=str(error))


def _written_in_time(host: Hypervisor, record: MemberRecord, renew_s: float) -> str:
    """Nothing of my own from before: what was written down by whoever rehearsed then."""
    result, later = host.status.rehearsed, record.seq - host.status.rehearsed_seq
    if host.status.rehearsed_seq == 0:
        return f"its power controller was not rehearsed in time ({result or 'never'})"
    if later < 0:
        return "its power controller was rehearsed under another membership, or before a backup was restored"
    if later * renew_s > IN_DATE_S:
        before_s = later * renew_s
        return f"its power controller was rehearsed {before_s:.0f} s before it fell silent, and not since ({result})"
    return ""
