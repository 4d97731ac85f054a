"""An armed host counts as empty only after the whole wait, on whichever clock, and not one tick earlier."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fencing import Site, site
from tests.support.loops import run

from outlive.base import LoopClock
from outlive.node.fencing import CLOCK_ERROR, GUARD_SLACK_S, safe_after_s
from outlive.resources import GuardRecord, MemberRecord, Membership, Timing


class _OffRate(LoopClock):
    """A clock that runs too fast or too slow."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = rate

    def monotonic(self) -> float:
        return super().monotonic() * self._rate

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self._rate)


async def _site(s: Site, guard: GuardRecord, *, clock=None, renews: float = 1.0) -> float:
    """``d`` is armed and has no controller; the fencer of ``a`` watches. Answers when ``d`` renewed last."""
    await s.hosts("a", "b", "c")
    await s.host("d", bmc="", guard=guard, renews=renews, profile="fast")
    s.watch("a", clock=clock)
    await asyncio.sleep(20)
    current = await s.store.get(Membership, "d", fresh=True)
    s.silence("d")
    sent = s.now()
    await s.write(current, seq=current.record.seq + 1)
    return sent


rates = st.floats(1 - CLOCK_ERROR, 1 + CLOCK_ERROR)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.floats(3, 40), st.floats(1, 60), rates, rates)
def test_watchdog_never_proves_before_the_host_is_empty_by_its_own_clock(
    timeout_s: float, watchdog_s: float, fencers_rate: float, hosts_rate: float
):
    async def story():
        async with site() as s:
            guard = GuardRecord(armed=True, timeout_s=timeout_s, watchdog_s=watchdog_s)
            sent = await _site(s, guard, clock=_OffRate(fencers_rate))
            proven = await s.until_dead("d", limit_s=300) - sent
            # The guard counts T on the host's clock, dies when W is over, and W and g later the host is reset.
            empty = (timeout_s + 2 * watchdog_s + GUARD_SLACK_S) / hosts_rate
            assert proven >= empty - 1e-6
            need = max(7.0, safe_after_s(await s.record("d")))
            assert proven <= need / fencers_rate + 1.5

    run(story())


async def test_fencer_that_took_over_begins_the_wait_anew():
    async with site() as s:
        guard = GuardRecord(armed=True, timeout_s=5, watchdog_s=10)
        sent = await _site(s, guard)
        await s.until("d", lambda record: record.state == "Revoked")
        s.silence("a")
        s.kill("a")
        await asyncio.sleep(3)
        s.watch("b")
        started = s.now()
        dead = await s.until_dead("d", limit_s=60)
        record = MemberRecord(machine_id="", boot_id="", guard=guard)
        assert dead - started >= safe_after_s(record)
        assert dead - sent > safe_after_s(record) + 9
        await s.until_dead("a", limit_s=60)


async def test_other_fencer_that_saw_it_revoked_waits_from_then_only():
    async with site() as s:
        guard = GuardRecord(armed=True, timeout_s=20, watchdog_s=30)
        sent = await _site(s, guard)
        s.watch("b")
        await asyncio.sleep(0)
        condemned = await s.until("d", lambda record: record.state == "Revoked")
        s.silence("a")
        s.kill("a")
        dead = await s.until_dead("d", limit_s=100)
        need = safe_after_s(MemberRecord(machine_id="", boot_id="", guard=guard))
        assert need + condemned - 0.2 <= dead <= need + condemned + 2
        assert dead - sent > need


@pytest.mark.parametrize(("grace_s", "counts_s"), [(30.0, 30.0), (0.5, GUARD_SLACK_S)])
async def test_fencer_waits_for_the_slack_that_operators_ask_for_and_never_for_less_than_two_seconds(
    grace_s: float, counts_s: float
):
    async with site() as s:
        await s.policy(timings={"steady": Timing(grace_s=grace_s), "fast": Timing(grace_s=grace_s)})
        sent = await _site(s, GuardRecord(armed=True, timeout_s=5, watchdog_s=10))
        dead = await s.until_dead("d", limit_s=120) - sent
        need = safe_after_s(await s.record("d"), counts_s)
        assert need <= dead <= need + 3
