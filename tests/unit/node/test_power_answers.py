"""How long BMCs are waited for, which of their readings count, and what a slow one costs."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fencing import Site, site

from outlive.node.fencing import (
    AT_ONCE,
    PROFILES,
    READINGS_APART_S,
    HostSettings,
    PowerView,
    ProfileName,
    TimedReading,
    answer_limit_s,
    find_last_off_times,
    longer_s,
    power_forecast,
)
from outlive.node.ports import PowerReading, PowerState
from outlive.resources import (
    Cluster,
    ClusterSpec,
    FencingPolicy,
    FencingSpec,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
)

BEFORE_S = 130.0
"""Long enough for rehearsals of slow controllers."""


def settings(host_s: float | None = None, cluster_s: float | None = None) -> HostSettings:
    fencing = FencingSpec(driver="redfish", answer_limit_s=host_s)
    return HostSettings(
        Cluster(
            metadata=ObjectMeta(name="default"),
            spec=ClusterSpec(fencing=FencingPolicy(answer_limit_s=cluster_s)),
        ),
        Hypervisor(metadata=ObjectMeta(name="h"), spec=HypervisorSpec(fencing=fencing)),
    )


@pytest.mark.parametrize(
    ("host_s", "cluster_s", "measured_s", "limit_s"),
    [
        (None, None, None, 10),
        (None, None, 0.3, 10),
        (None, None, 5, 15),
        (None, None, 20, 60),
        (None, None, 30, 60),
        (None, 25, 1, 25),
        (90, 25, 1, 90),
        (-1, None, 5, 15),
    ],
)
def test_an_answer_may_take_what_somebody_says_and_else_three_times_what_was_measured(
    host_s: float | None, cluster_s: float | None, measured_s: float | None, limit_s: float
) -> None:
    assert answer_limit_s(settings(host_s, cluster_s), measured_s) == limit_s


def test_a_limit_that_was_too_short_becomes_the_longest() -> None:
    assert [longer_s(one) for one in (10, 40, 60, 90)] == [60, 60, 60, 90]


def reading(at_s: float, off: bool, took_s: float = 0.5) -> TimedReading:
    return TimedReading(sent_s=at_s, received_s=at_s + took_s, off=off)


def test_a_reading_that_says_on_begins_the_row_anew() -> None:
    assert find_last_off_times([reading(0, True), reading(3, False), reading(4, True)]) == (4.5,)
    assert find_last_off_times([reading(0, True), reading(3, False), reading(4, True), reading(7, True)]) == (4.5, 7)
    assert find_last_off_times([reading(0, True), reading(3, True), reading(6, False)]) == ()


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 30), st.floats(0, 5)), max_size=8))
def test_the_row_never_spans_another_reading_and_counts_the_least_time_between(
    drawn: list[tuple[bool, float, float]],
) -> None:
    made, now = [], 0.0
    for off, took_s, pause_s in drawn:
        made.append(reading(now, off, took_s))
        now += took_s + pause_s
    row = find_last_off_times(made)
    last = made[len(made) - len(row) :]
    assert all(one.off for one in last)
    assert len(row) == len(made) or not made[len(made) - len(row) - 1].off
    if len(row) > 1:
        assert (row[0], row[-1]) == (last[0].received_s, last[-1].sent_s)


@pytest.mark.parametrize(("answer_s", "total_s"), [(1, 12), (5, 27), (10, 47), (20, 87)])
def test_the_cost_of_a_proof_is_told_as_a_sum(answer_s: float, total_s: float) -> None:
    forecast = power_forecast(PROFILES[ProfileName.FAST], answer_s)
    assert forecast.total_s == total_s
    assert forecast.text.startswith(f"{total_s:g} s = silence 5 s + checks 2 s + ")
    assert forecast.text.endswith(f"command {answer_s:g} s + reading {answer_s:g} s + 2 s + reading {answer_s:g} s")


async def _four(s: Site, delay_s: float = 0.05) -> None:
    await s.hosts("a", "b", "c", "d")
    s.power.controllers["d"].delay_s = delay_s
    s.watch("a")
    await asyncio.sleep(BEFORE_S)


@pytest.mark.parametrize("delay_s", [1.0, 20.0])
async def test_a_slow_controller_is_learned_and_proves_at_the_first_attempt_in_the_time_that_the_forecast_says(
    delay_s: float,
) -> None:
    async with site() as s:
        await _four(s, delay_s)
        assert (await s.store.get(Hypervisor, "d")).status.power_answer_s == delay_s
        s.silence("d")
        began = s.now()
        dead_s = await s.until_dead("d") - began
        forecast = power_forecast(PROFILES[ProfileName.FAST], delay_s)
        assert forecast.total_s - 1.5 <= dead_s <= forecast.total_s + 1.0
        record = await s.record("d")
        assert record.fence.attempt == len(s.power.controllers["d"].offs) == 1
        assert f"= command {delay_s:.1f} s + reading {delay_s:.1f} s + 2.0 s + reading" in record.proof.evidence


async def test_readings_that_are_slow_lie_two_seconds_apart_from_the_first_answer_to_the_second_question() -> None:
    async with site() as s:
        await _four(s, 6.0)
        s.silence("d")
        await s.until_dead("d")
        (use,) = s.fencers["a"].decisions.uses("safety.prove.power")
        view = msgspec.json.decode(use.input, type=PowerView)
        first, second = view.off_after_command
        assert READINGS_APART_S <= second - first <= READINGS_APART_S + 0.1
        assert view.answers_s == pytest.approx((6.0, 6.0, 6.0), abs=0.01)


@pytest.mark.slow
async def test_a_slow_attempt_is_not_taken_over_by_another_fencer_that_sees_the_first_one_live() -> None:
    async with site() as s:
        await _four(s, 20.0)
        s.watch("b")
        s.watch("c")
        await asyncio.sleep(BEFORE_S)
        s.silence("d")
        await s.until_dead("d")
        assert (await s.record("d")).fence.attempt == len(s.power.controllers["d"].offs) == 1


@pytest.mark.slow
async def test_one_slow_controller_keeps_nobody_from_rehearsing_another() -> None:
    async with site() as s:
        await _four(s, 55.0)
        before = s.power.reads["c"]
        await asyncio.sleep(600)
        assert s.power.reads["c"] - before == 10


async def test_a_reading_that_says_neither_on_nor_off_is_no_reading_that_says_off() -> None:
    async with site() as s:
        await _four(s)

        async def unknown(host: Hypervisor) -> PowerReading:
            return PowerReading(state=PowerState.UNKNOWN, system_uuid=f"uuid-{host.name}")

        s.power.read = unknown
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        assert (await s.record("d")).dead_through == 0


@pytest.mark.parametrize(("delay_s", "condemned_s"), [(0.05, 6.0), (1.0, 6.0), (1.8, 6.8), (4.0, 7.0)])
async def test_a_host_that_is_off_is_condemned_once_its_controller_has_said_so_after_one_look_at_least(
    delay_s: float, condemned_s: float
) -> None:
    async with site() as s:
        await _four(s, delay_s)
        s.silence("d")
        s.power.controllers["d"].on = False
        began = s.now()
        took_s = await s.until("d", lambda record: record.state == "Revoked") - began
        assert condemned_s - 1.0 <= took_s <= condemned_s + 0.5
        assert ("checked once" in (await s.record("d")).fence.reason) is (condemned_s < 7.0)


async def test_what_another_system_says_makes_nobody_condemned_sooner() -> None:
    async with site() as s:
        await _four(s)
        s.power.controllers["d"].system = "uuid-x"
        s.silence("d")
        s.power.controllers["d"].on = False
        await s.until("d", lambda record: record.state == "Revoked")
        assert "checked once" not in (await s.record("d")).fence.reason


@pytest.mark.slow
async def test_many_controllers_that_do_not_answer_keep_nobody_from_rehearsing_the_others() -> None:
    async with site() as s:
        names = [f"h{number:02}" for number in range(AT_ONCE + 12)]
        for name in names:
            await s.host(name)
        s.watch(names[0])
        await asyncio.sleep(20)
        for name in names[1 : AT_ONCE + 6]:
            s.power.controllers[name].delay_s = 3600.0
        before = s.power.reads[names[-1]]
        await asyncio.sleep(300)
        assert s.power.reads[names[-1]] - before >= 4
