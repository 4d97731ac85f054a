"""Rehearsals: whether every BMC answers, is its own host's, and knows its state, before it is needed.

Each fencer rehearses for itself and remembers on its own clock; the first of the coordinators also writes the
result to ``Hypervisor.status.rehearsed``. A power proof needs a rehearsal that was in date when its host fell silent,
so a controller that was re-wired while its host lay dead proves nothing. A fencer that was started since then follows
the result that others wrote. How old that was when the host fell silent is counted in the host's own renewals: no two
machines' clocks are compared, and it does not age while the host lies dead (docs/concepts/safety.md#proofs).

A controller that says off of a host that renews before and after knows nothing of its power: that ends at once whatever
earlier rehearsals have shown, because it would say the same of a host that it failed to switch off.

A rehearsal also measures how long the controller takes to answer; by that it is waited for later
(``power.answer_limit_s``, ``Hypervisor.status.powerAnswerS``). No controller waits for a slow one of another host. A
host that is being fenced is not rehearsed, so that its controller has one question to answer at a time.

Controllers of hosts whose VMs have strict recovery time objectives are read twice as often, so that there always is a
result of the last minute.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from outlive.base import OutliveError, get_logger, set_within
from outlive.node.fencing.power import ANSWER_LEAST_S, BmcIdentity, longer_s
from outlive.node.fencing.states import is_open
from outlive.node.ports import PowerState
from outlive.resources import Hypervisor, HypervisorStatus, MemberRecord, Membership
from outlive.runtime import OrderedTaskGroup
from outlive.store import change_status

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
"""Readings of one rehearsal before it failed; after one that came too late the next may take longest."""
PAUSES_S: Final = (1.0, 2.0)
"""Between them."""
AT_ONCE: Final = 64
"""Controllers that are asked at the same time and are to answer soon."""
SLOW_AT_ONCE: Final = 128
"""The same for those that may take longer: many that do not answer at all keep nobody from rehearsing the others."""
ANSWERS: Final = 10
"""Of so many good rehearsals the slowest answer counts."""
LOOKS_FOR_LIFE: Final = 2
"""Looks, a renewal apart, for whether a host has lived on after its first good rehearsal."""
CHECKED_EVERY_S: Final = 600.0
"""Between two checks of one controller for what would refuse an order: reset types of its system, role of its user."""
CHECK_S: Final = 60.0
"""How long a check may take: some controllers answer a dozen questions for it."""
OK: Final = "ok"
"""The result of a good one."""
CONTRADICTED: Final = "its BMC says off although it renews"
UNSAID: Final = "its BMC does not say whether it is on"

_log = get_logger("fencing.rehearsal")


@dataclass(slots=True)
class _Result:
    result: str
    good: tuple[float, float] | None
    """First and last of the latest good ones in a row: the first on my monotonic clock, as silence is; the last on the
    one that never falls behind, since a rehearsal ages while I sleep."""
    seq: int = 0
    """The host's renewal at the last one, if that was good; what it does after that shows that it lived on."""
    answers_s: tuple[float, ...] = ()
    """How long the last good ones took, the newest last."""
    checked_at: float | None = None
    """When it was last checked, on the clock that never falls behind."""
    obstacle: str = ""
    """Why it would refuse to switch off. It is published, and no more: where an order is taken all the same, the
    readings after it count."""

    def needs_check(self, now: float) -> bool:
        """Whether it was not checked lately, or somebody may have mended what was found."""
        return self.checked_at is None or bool(self.obstacle) or now - self.checked_at >= CHECKED_EVERY_S

    @property
    def published(self) -> str:
        """What is written down of it."""
        return self.obstacle if self.result == OK and self.obstacle else self.result


class Rehearsals:
    """See the module."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._results: dict[str, _Result] = {}
        self._under_way: dict[str, None] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._slow_slots = asyncio.Semaphore(SLOW_AT_ONCE)
        self._new: dict[str, None] = {}
        """Hosts whose controllers are new, or are reached in another way, since the last look."""
        self._woken = asyncio.Event()
        context.hypervisors.subscribe(self._on_hypervisor)
        context.memberships.subscribe(self._on_membership)

    def answer_s(self, host: str) -> float | None:
        """The slowest answer of its BMC that I measured lately; ``None``: I measured none."""
        mine = self._results.get(host)
        return max(mine.answers_s) if mine is not None and mine.answers_s else None

    def good_age_s(self, host: str) -> float | None:
        """How long ago I last found its BMC good, if that was so at my last look; no less than that."""
        mine = self._results.get(host)
        if mine is None or mine.good is None or mine.result != OK:
            return None
        return self._context.clock.latest() - mine.good[1]

    def explain_outdated(self, host: Hypervisor, silent_since: float, record: MemberRecord, renew_s: float) -> str:
        """Why the host's controller proves nothing; empty if it was rehearsed when the host fell silent.

        ``silent_since`` is on my monotonic clock; ``record`` is the host's, with its last renewal, which came every
        ``renew_s``.
        """
        mine = self._results.get(host.name)
        if mine is not None and mine.result == CONTRADICTED:
            return mine.result
        if mine is None or mine.good is None or mine.good[0] >= silent_since:
            return _written_in_time(host, record, renew_s)
        clock = self._context.clock
        past_s = (clock.latest() - mine.good[1]) - (clock.monotonic() - silent_since)
        if past_s > IN_DATE_S and _written_in_time(host, record, renew_s):
            return f"its BMC had failed its rehearsals for {past_s:.0f} s ({mine.result})"
        return ""

    async def run(self) -> None:
        """Rehearse until cancelled."""
        await self._context.hypervisors.wait_synced()
        async with OrderedTaskGroup() as group:
            while True:
                began = self._context.clock.monotonic()
                hosts = self._controlled_hosts()
                known = {host.name for host in hosts}
                for name in [name for name in self._results if name not in known]:
                    del self._results[name]
                self._begin(hosts, group)
                self._new.clear()
                await self._wait(began + STRICT_EVERY_S, group)
                strict = [one for one in self._controlled_hosts() if self._context.rules.is_strict(one)]
                self._begin(strict, group)
                await self._wait(began + EVERY_S, group)

    async def _wait(self, until: float, group: OrderedTaskGroup) -> None:
        """An operator who sets up a controller sees at once whether it works."""
        while await set_within(self._woken, until - self._context.clock.monotonic()):
            self._woken.clear()
            self._begin([one for one in self._controlled_hosts() if one.name in self._new], group)
            self._new.clear()

    def _on_hypervisor(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        if new is not None and (old is None or _controller_key(old) != _controller_key(new)):
            if new.name in self._results:
                self._results[new.name].checked_at = None
            self._new[new.name] = None
            self._woken.set()

    def _on_membership(self, old: Membership | None, new: Membership | None) -> None:
        if new is not None and (old is None or old.record.machine_id != new.record.machine_id):
            self._new[new.name] = None
            self._woken.set()

    def _controlled_hosts(self) -> list[Hypervisor]:
        return [one for one in self._context.hypervisors.items() if one.spec.fencing.driver]

    def _begin(self, hosts: Iterable[Hypervisor], group: OrderedTaskGroup) -> None:
        for host in hosts:
            seen = self._context.watcher.get(host.name)
            if host.name in self._under_way or (seen is not None and is_open(seen.record)):
                continue
            self._under_way[host.name] = None
            group.create_task(self._run_rehearsal(host), name=f"rehearse {host.name}")

    async def _run_rehearsal(self, host: Hypervisor) -> None:
        try:
            await self._rehearse(host)
        finally:
            del self._under_way[host.name]

    async def _rehearse(self, host: Hypervisor) -> None:
        clock, renewal = self._context.clock, self._context.rules.last_renewal(host.name)
        began, at = clock.monotonic(), clock.latest()
        identity = await self._ask_controller(host)
        result = identity.refusal or await self._judge_state(host, identity.state)
        before = self._results.get(host.name)
        answers_s = () if before is None else before.answers_s
        if result == OK:
            answers_s = (*answers_s, identity.took_s)[-ANSWERS:]
        good = None if before is None or result == CONTRADICTED else before.good
        if result == OK:
            good = (good[0] if good is not None and before is not None and before.result == OK else began, at)
        seq = renewal[0] if result == OK and renewal is not None else 0
        checked_at, obstacle = (None, "") if before is None else (before.checked_at, before.obstacle)
        mine = _Result(result, good, seq, answers_s, checked_at, obstacle)
        self._results[host.name] = mine
        if result == OK and mine.needs_check(at):
            async with self._slow_slots:
                mine.obstacle = await self._context.power.check(host, CHECK_S)
            mine.checked_at = at
        if before is None or before.published != mine.published:
            log = _log.info if mine.published == OK else _log.warning
            log("fence.rehearsed", host=host.name, result=mine.published)
        if self._context.is_leader():
            await self._publish(host, mine, before, renewal)

    async def _publish(
        self, host: Hypervisor, mine: _Result, before: _Result | None, renewal: tuple[int, float] | None
    ) -> None:
        """Write a result that differs; and that a good one is in date, once the host has lived on after one.

        The renewal at the last good one stays while later ones fail: a controller that nobody reaches for a while after
        its host fell silent was rehearsed in time all the same.
        """
        kept, result = host.status, mine.result
        seq = kept.rehearsed_seq if result != CONTRADICTED else 0
        if result == OK and renewal is not None and before is not None and 0 < before.seq < renewal[0]:
            late_s = (renewal[0] - seq) * renewal[1]
            seq = before.seq if seq == 0 or seq > renewal[0] or late_s >= WRITTEN_AGAIN_S else seq
        elif result == OK and renewal is not None and seq == 0 and await self._lives_on(host.name, *renewal):
            seq = renewal[0]
        measured_s = self.answer_s(host.name)
        answer_s = kept.power_answer_s if measured_s is None else float(math.ceil(measured_s))
        if (kept.rehearsed, kept.rehearsed_seq, kept.power_answer_s) != (mine.published, seq, answer_s):
            await self._write(host.name, mine.published, seq, answer_s)

    async def _judge_state(self, host: Hypervisor, state: PowerState) -> str:
        """What the state is worth that it said: ``OK``, or why it is none."""
        if state is PowerState.ON:
            return OK
        if state is PowerState.UNKNOWN:
            return UNSAID
        renewal = self._context.rules.last_renewal(host.name)
        if renewal is None or not await self._lives_on(host.name, *renewal):
            return OK
        again = await self._ask_controller(host)
        return CONTRADICTED if not again.refusal and again.state is PowerState.OFF else again.refusal or OK

    async def _lives_on(self, host: str, seq: int, renew_s: float) -> bool:
        """Whether it renews once more, so that what was found before it did is of its own life."""
        for _ in range(LOOKS_FOR_LIFE):
            await self._context.clock.sleep(renew_s)
            now = self._context.rules.last_renewal(host)
            if now is None or now[0] > seq:
                return now is not None
        return False

    async def _ask_controller(self, host: Hypervisor) -> BmcIdentity:
        limit_s = self._context.answer_limit_s(self._context.rules.settings_of(host.name))
        if host.status.power_answer_s is None and self.answer_s(host.name) is None:
            limit_s = longer_s(limit_s)
        identity = BmcIdentity("it was not asked")
        for number in range(TRIES):
            if number:
                await self._context.clock.sleep(PAUSES_S[number - 1])
            async with self._slow_slots if limit_s > ANSWER_LEAST_S else self._slots:
                identity = await self._context.power.identify(host, limit_s)
            if not identity.refusal:
                break
            if identity.slow:
                if longer_s(limit_s) == limit_s:
                    break
                limit_s = longer_s(limit_s)
        return identity

    async def _write(self, name: str, result: str, seq: int, answer_s: float | None) -> None:
        def set_result(host: Hypervisor) -> HypervisorStatus:
            return msgspec.structs.replace(host.status, rehearsed=result, rehearsed_seq=seq, power_answer_s=answer_s)

        try:
            await change_status(self._context.store, Hypervisor, name, set_result, clock=self._context.clock)
        except OutliveError as error:
            _log.warning("fence.rehearsal_not_written", host=name, result=result, error=str(error))


def _controller_key(host: Hypervisor) -> tuple[object, ...]:
    """How its controller is reached, and what it must say."""
    fencing = host.spec.fencing
    return fencing.driver, fencing.address, fencing.secret, fencing.system_uuid, fencing.options


def _written_in_time(host: Hypervisor, record: MemberRecord, renew_s: float) -> str:
    """Nothing of my own from before: what the fencer wrote down that rehearsed then."""
    result, later = host.status.rehearsed, record.seq - host.status.rehearsed_seq
    if host.status.rehearsed_seq == 0:
        return f"its BMC was not rehearsed in time ({result or 'never'})"
    if later < 0:
        return "its BMC was rehearsed under another membership, or before a backup was restored"
    if later * renew_s > IN_DATE_S:
        before_s = later * renew_s
        return f"its BMC was rehearsed {before_s:.0f} s before it fell silent, and not since ({result})"
    return ""
