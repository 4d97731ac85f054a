"""The guard does what the model of self-fencing says.

Compared are, with T = interval x intervals, W = one interval, no maintenance and no addresses:

* below T: both feed, and neither kills;
* from T to T + interval, with VMs that cannot be killed: neither feeds, both kill;
* above T + interval, with such VMs: neither feeds ever again (the model says ``reset``, the watchdog does it);
* from T on without VMs, or once all of them are verified dead in time: both feed.

The guard is stricter at three places, the first and the last stated below: at exactly T it does not feed any more, at
exactly T + interval it has given up, and a host that became empty only after that is not fed again.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.self_fencing import SelfFenceAction, SelfFenceInput, SelfFenceResult, evaluate_self_fencing

from outlive.guard import Arm, Beat, Event, GuardAction, GuardState, Instants, Looked, Phase, ServiceStopped, Tick, core

SENT_S = 1000.0


class Host:
    """A host whose VMs die ``stubborn_s`` after the first kill, with the core in the place of its guard."""

    def __init__(self, interval_s: float, intervals: int, vms: int, stubborn_s: float) -> None:
        self.vms = vms
        self.stubborn_s = stubborn_s
        self.first_kill_s: float | None = None
        self.state = GuardState()
        self.fed: list[float] = []
        self.happen(Beat(Instants(SENT_S, SENT_S), 1), SENT_S)
        self.happen(Arm(interval_s * intervals, interval_s), SENT_S)

    def happen(self, event: Event, now: float) -> None:
        """An event, and what follows from it at the same moment."""
        self.state, _ = core.follow(
            self.state, event, lambda: Instants(now, now), lambda state, action: self._act(state, action, now)
        )

    def _act(self, state: GuardState, action: GuardAction, now: float) -> Event | None:
        match action:
            case GuardAction.FEED if core.may_feed(state, Instants(now, now)):
                self.fed.append(now)
            case GuardAction.STOP_SERVICE:
                return ServiceStopped(True)
            case GuardAction.KILL:
                self.first_kill_s = now if self.first_kill_s is None else self.first_kill_s
                if now - self.first_kill_s >= self.stubborn_s:
                    self.vms = 0
                return Looked(self.vms)
            case GuardAction.LOOK:
                return Looked(self.vms)
        return None

    def may_feed(self, now: float) -> bool:
        return core.may_feed(self.state, Instants(now, now))

    def run_until(self, end_s: float) -> None:
        """Tick whenever the guard would wake."""
        now = SENT_S
        for _ in range(100_000):
            wait_s = core.wake_s(self.state, Instants(now, now))
            assert wait_s is not None
            now += max(wait_s, 1e-6)
            if now > end_s:
                return
            self.happen(Tick(), now)
        raise AssertionError("the guard wakes too often")


def model(interval_s: float, intervals: int, age_s: float, vms: int) -> SelfFenceResult:
    return evaluate_self_fencing(
        SelfFenceInput(keepalive_interval=interval_s, self_fence_intervals=intervals, ack_age=age_s, running_vms=vms)
    )


INTERVALS = st.floats(0.5, 10.0)
COUNTS = st.integers(2, 8)
FOREVER = 1e9


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(INTERVALS, COUNTS, st.integers(0, 3), st.floats(0.0, 0.999))
def test_below_t_both_feed_and_neither_kills(interval_s: float, intervals: int, vms: int, part: float) -> None:
    age_s = part * interval_s * intervals
    host = Host(interval_s, intervals, vms, FOREVER)
    host.run_until(SENT_S + age_s)
    said = model(interval_s, intervals, age_s, vms)
    assert said.pet
    assert SelfFenceAction.KILL_VMS not in said.actions
    assert host.state.phase is Phase.WATCHING
    assert host.may_feed(SENT_S + age_s)
    assert host.first_kill_s is None
    assert SENT_S + age_s - host.fed[-1] <= interval_s / 4 + 1e-5


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(INTERVALS, COUNTS, st.integers(1, 3), st.floats(0.001, 3.0))
def test_from_t_on_vms_that_cannot_be_killed_stop_the_feeding(
    interval_s: float, intervals: int, vms: int, beyond: float
) -> None:
    assume(abs(beyond - 1.0) > 1e-6)
    limit_s = interval_s * intervals
    host = Host(interval_s, intervals, vms, FOREVER)
    host.run_until(SENT_S + limit_s + beyond * interval_s)
    said = model(interval_s, intervals, limit_s + beyond * interval_s, vms)
    assert not said.pet
    assert max(host.fed) - SENT_S < limit_s
    assert host.first_kill_s is not None
    assert (host.state.phase is Phase.LOST) == (said.actions == (SelfFenceAction.RESET,))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(INTERVALS, COUNTS, st.integers(0, 3), st.floats(0.0, 0.7), st.floats(1.2, 5.0))
def test_without_vms_or_once_they_are_dead_in_time_both_feed_on(
    interval_s: float, intervals: int, vms: int, stubborn: float, beyond: float
) -> None:
    limit_s = interval_s * intervals
    host = Host(interval_s, intervals, vms, stubborn * interval_s)
    host.run_until(SENT_S + limit_s + beyond * interval_s)
    if host.state.phase is Phase.LOST:
        assert stubborn * interval_s + 0.2 > interval_s
        return
    assert host.vms == 0
    assert model(interval_s, intervals, limit_s + beyond * interval_s, host.vms).pet
    assert host.state.phase is Phase.EMPTY
    assert SENT_S + limit_s + beyond * interval_s - host.fed[-1] <= interval_s / 4 + 1e-5


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(INTERVALS, COUNTS, st.integers(0, 3), st.floats(0.0, 4.0), st.floats(0.0, 12.0))
def test_the_guard_never_feeds_where_the_model_would_not(
    interval_s: float, intervals: int, vms: int, stubborn: float, age: float
) -> None:
    host = Host(interval_s, intervals, vms, stubborn * interval_s)
    host.run_until(SENT_S + age * interval_s)
    for fed_s in host.fed:
        running = vms if host.first_kill_s is None or fed_s < host.first_kill_s + host.stubborn_s else 0
        assert model(interval_s, intervals, fed_s - SENT_S, running).pet


def test_stricter_at_exactly_t_the_guard_does_not_feed_any_more() -> None:
    host = Host(1.0, 5, 1, FOREVER)
    assert model(1.0, 5, 5.0, 1).pet
    assert not host.may_feed(SENT_S + 5.0)


def test_stricter_a_host_that_became_empty_too_late_is_not_fed_again() -> None:
    host = Host(1.0, 5, 1, 1.5)
    host.run_until(SENT_S + 20.0)
    assert host.vms == 0
    assert model(1.0, 5, 20.0, 0).pet
    assert host.state.phase is Phase.LOST
    assert max(host.fed) < SENT_S + 5.0
