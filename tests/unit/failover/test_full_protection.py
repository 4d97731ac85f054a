"""The forecast of full protection follows from what is missing and the pace, gives reasons for never, comes true."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cycles import cloud_of
from tests.support.failover import GIB, Cloud
from tests.support.live_failover import LiveCloud, live

from outlive.failover.report import (
    BY_ITSELF,
    OVERDUE_S,
    FullProtection,
    Lack,
    Outlook,
    Pass,
    ProtectionInput,
    full_protection,
)
from outlive.resources import Reservation
from outlive.resources.reasons import CoverageReason

USUAL = Pass(gave=50, took_s=1.0, pause_s=0.05)
NOTHING = ProtectionInput(usual_pass=USUAL, usual_cycle=USUAL)
FACTOR = 2.0
SLACK_S = 1.0

passes = st.builds(Pass, gave=st.integers(1, 60), took_s=st.floats(0.001, 60.0), pause_s=st.floats(0.0, 60.0))
slots = st.integers(1, 2_000)


def waiting(number: int, reason: str = CoverageReason.WAITING) -> Lack:
    return Lack(reason=reason, vms=number, slots=number, remedy="do this")


def with_(**changes: object) -> FullProtection:
    return full_protection(msgspec.structs.replace(NOTHING, **changes))


def test_where_nothing_is_missing_everybody_is_protected_now() -> None:
    found = full_protection(NOTHING)
    assert (found.outlook, found.eta_s, found.vms) == (Outlook.FULL, 0.0, 0)


@given(slots, passes, st.floats(0.0, 60.0))
def test_it_is_what_cycles_of_the_same_pace_take(missing: int, pace: Pass, wait_s: float) -> None:
    found = with_(lacks=(waiting(missing),), cycles=(pace, pace), next_cycle_s=wait_s)
    now, left = wait_s, missing
    while True:
        now, left = now + pace.took_s, left - pace.gave
        if left <= 0:
            break
        now += pace.pause_s
    assert found.outlook is Outlook.UNDER_WAY
    assert found.eta_s == pytest.approx(now)


@pytest.mark.slow
@given(slots, slots, st.lists(passes, max_size=5), st.booleans())
def test_more_that_is_missing_never_ends_earlier(one: int, more: int, seen: list[Pass], turn: bool) -> None:
    etas = []
    for missing in (one, one + more):
        lack = waiting(missing)
        found = with_(turn=lack, passes=tuple(seen)) if turn else with_(lacks=(lack,), cycles=tuple(seen))
        etas.append(found.eta_s or 0.0)
    assert 0.0 < etas[0] <= etas[1] + 1e-9


@given(st.sampled_from([reason for reason in CoverageReason if reason not in BY_ITSELF]), slots, slots)
def test_what_only_somebody_can_mend_has_no_time_but_a_reason(
    reason: CoverageReason, blocked: int, others: int
) -> None:
    found = with_(lacks=(waiting(blocked, reason), waiting(others)))
    unanswered = reason is CoverageReason.PLACEMENT_UNAVAILABLE
    assert found.outlook is (Outlook.UNKNOWN if unanswered else Outlook.NEVER)
    assert found.eta_s is None
    assert found.rest_s is not None
    assert found.rest_s > 0
    assert [one.reason for one in found.because] == [reason]
    assert reason in found.sentence
    assert "do this" in found.sentence
    assert "never" in found.sentence or unanswered


def test_nobody_knows_when_while_cycles_give_nothing() -> None:
    stuck = Pass(gave=0, took_s=1.0, pause_s=30.0)
    found = with_(lacks=(waiting(3),), cycles=(stuck,))
    assert (found.outlook, found.eta_s, found.rest_s) == (Outlook.UNKNOWN, None, None)


def test_a_vm_that_is_restarted_counts_until_it_has_landed_and_has_its_slots() -> None:
    soon = with_(away=2, away_s=4.0, restart_s=10.0)
    assert (soon.outlook, soon.vms, soon.exposed) == (Outlook.UNDER_WAY, 2, 2)
    assert soon.eta_s == pytest.approx(6.0 + USUAL.took_s)
    late = with_(away=2, away_s=OVERDUE_S + 1)
    assert (late.outlook, late.eta_s) == (Outlook.UNKNOWN, None)
    assert "not-restarted" in late.sentence


def forecast(cloud: Cloud) -> FullProtection:
    found = cloud.failover_run.forecast.current_forecast()
    assert found is not None
    return found


async def until_full(cloud: LiveCloud) -> list[tuple[float, FullProtection]]:
    """The forecasts until everybody has slots, each with its time."""
    seen: list[tuple[float, FullProtection]] = []
    for _ in range(6_000):
        found = forecast(cloud)
        seen.append((cloud.clock.monotonic(), found))
        if found.outlook is Outlook.FULL and any(one.outlook is not Outlook.FULL for _, one in seen):
            return seen
        await cloud.clock.sleep(0.1)
    raise AssertionError(f"not full after {len(seen)} looks: {forecast(cloud).sentence}")


def judged(seen: list[tuple[float, FullProtection]]) -> None:
    """Each forecast that named a time was true within a factor."""
    end = seen[-1][0]
    named = [(at, found) for at, found in seen[:-1] if found.outlook is Outlook.UNDER_WAY and found.eta_s is not None]
    assert len(named) > 10
    for at, found in named:
        assert found.eta_s is not None
        actual = end - at
        assert actual / FACTOR - SLACK_S <= found.eta_s <= actual * FACTOR + SLACK_S, (at, end, found)


@pytest.mark.slow
async def test_after_slots_were_lost_the_time_that_upkeep_needs_is_foretold_within_a_factor() -> None:
    async with live({"maxVMsToProcess": 100}) as cloud:
        cloud.ranker.takes_s = lambda _: 3.0
        for number in range(240):
            await cloud.vm(f"vm{number}", f"h{number % 3 + 1}", memory=GIB, cpu=100)
        await cloud.settle(60)
        assert forecast(cloud).outlook is Outlook.FULL
        for slot in (await cloud.memory.list(Reservation)).items:
            await cloud.memory.delete(slot.ref)
        judged(await until_full(cloud))
        notes = [event.note for event in cloud.events.of("FullProtection")]
        assert any(note.startswith("in about") for note in notes)
        assert notes[-1] == "every VM has the slots that it needs"


@pytest.mark.slow
async def test_the_time_that_cycles_need_is_foretold_within_a_factor() -> None:
    config = {"maxVMsToProcess": 10, "reconcileInterval": "30s", "shortReconcileInterval": "2s"}
    async with live(config, {"eventsReact": False}) as cloud:
        cloud.ranker.takes_s = lambda _: 0.5
        for number in range(50):
            await cloud.vm(f"vm{number}", f"h{number % 3 + 1}", memory=GIB, cpu=100)
        judged(await until_full(cloud))


async def test_a_vm_that_fits_nowhere_makes_it_never_until_a_host_is_added() -> None:
    cloud = await cloud_of("h1", "h2", need=1)
    await cloud.vm("big", "h1", memory=2**50)
    await cloud.cycle()
    found = forecast(cloud)
    assert (found.outlook, found.eta_s) == (Outlook.NEVER, None)
    assert cloud.metric("failover_full_protection_seconds") == float("inf")
    assert cloud.metric("failover_vms_without_full_protection") == 1
    (event,) = cloud.events.of("FullProtection")
    assert event.type == "Warning"
    assert event.note.startswith("never as things are, because of no-capacity (1 VM; ")
    await cloud.host("h3", memory=2**51)
    await cloud.cycle()
    assert forecast(cloud).outlook is Outlook.FULL
    assert cloud.metric("failover_full_protection_seconds") == 0
    assert cloud.events.of("FullProtection")[-1].type == "Normal"
