"""When the guard feeds, kills and lets start: the machine alone, without a clock, a socket or a process."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.guard import (
    CLOSURES,
    CREATE_LIMIT_S,
    CREATES,
    LEGAL,
    Arm,
    Beat,
    CreateBegin,
    CreateEnd,
    Disarm,
    Event,
    GuardAction,
    GuardState,
    Instants,
    Looked,
    Phase,
    ServiceState,
    ServiceStopped,
    Tick,
    Transition,
    core,
    max_elapsed,
    min_elapsed,
)

T = 5.0
W = 10.0


def at(seconds: float) -> Instants:
    """A moment on clocks that agree."""
    return Instants(seconds, seconds)


def beat(sent_at_s: float, epoch: int) -> Beat:
    return Beat(at(sent_at_s), epoch)


def stepped(state: GuardState, event: Event, now: float) -> Transition:
    return core.step(state, event, at(now))


def wake_s(state: GuardState, now: float) -> float | None:
    return core.wake_s(state, at(now))


def may_feed(state: GuardState, now: float) -> bool:
    return core.may_feed(state, at(now))


def after(state: GuardState, *events: tuple[float, Event]) -> GuardState:
    """The state after events at their times."""
    for now, event in events:
        state = stepped(state, event, now).state
    return state


ARMED = after(GuardState(), (100.0, beat(100.0, 7)), (100.0, Arm(T, W)))
SHUT = after(ARMED, (105.0, Tick()))
STOPPED = after(SHUT, (105.0, ServiceStopped(True)))
EMPTY = after(STOPPED, (105.2, Looked(0)))
LOST = after(SHUT, (105.0 + W, Tick()))


def actions(state: GuardState, event: Event, now: float) -> tuple[GuardAction, ...]:
    return stepped(state, event, now).actions


def code(step: Transition) -> str:
    return step.refusal.code if step.refusal else ""


# --- unarmed


def test_arming_needs_a_renewal_younger_than_t() -> None:
    assert code(stepped(GuardState(), Arm(T, W), 100.0)) == "no-beat"
    old = after(GuardState(), (100.0, beat(95.0, 7)))
    assert code(stepped(old, Arm(T, W), 100.0)) == "no-beat"
    assert stepped(old, Arm(T, W), 99.9).state.armed


@pytest.mark.parametrize("times", [(0, 1), (1, 0), (-1, 1), (math.inf, 1), (1, math.nan), (1, 1e9)])
def test_times_that_are_none_are_refused(times: tuple[float, float]) -> None:
    beaten = after(GuardState(), (100.0, beat(100.0, 7)))
    assert code(stepped(beaten, Arm(*times), 100.0)) == "bad-time"


def test_times_only_shrink_while_armed_because_fencers_count_on_them() -> None:
    assert code(stepped(ARMED, Arm(T + 1, W), 101.0)) == "longer-while-armed"
    assert code(stepped(ARMED, Arm(T, W + 1), 101.0)) == "longer-while-armed"
    assert stepped(ARMED, Arm(T - 1, W), 101.0).state.timeout_s == T - 1


def test_disarming_stops_the_watchdog_in_good_order() -> None:
    step = stepped(ARMED, Disarm(), 101.0)
    assert step.actions == (GuardAction.RELEASE,)
    assert not step.state.armed


@pytest.mark.parametrize("state", [SHUT, EMPTY, LOST])
def test_a_guard_that_shut_the_gate_is_not_disarmed(state: GuardState) -> None:
    assert code(stepped(state, Disarm(), 105.3)) == "gate-shut"


# --- feeding while renewals are acknowledged


def test_feeds_every_interval_while_the_newest_beat_is_younger_than_t() -> None:
    assert actions(ARMED, Tick(), 100.5) == ()
    assert actions(ARMED, Tick(), 101.0) == (GuardAction.FEED,)
    assert wake_s(ARMED, 100.25) == 0.75


def test_wakes_at_the_very_end_of_t() -> None:
    late = after(ARMED, (104.7, Tick()))
    assert wake_s(late, 104.75) == pytest.approx(0.25)


def test_a_clock_that_went_back_is_no_proof() -> None:
    assert not may_feed(ARMED, 99.0)
    assert actions(ARMED, Tick(), 99.0)[0] is GuardAction.CLOSE_GATE


def test_says_once_that_renewals_are_late() -> None:
    step = stepped(ARMED, Tick(), 102.6)
    assert GuardAction.WARN_LATE in step.actions
    assert GuardAction.WARN_LATE not in actions(step.state, Tick(), 104.0)
    again = after(step.state, (103.0, beat(103.0, 7)))
    assert GuardAction.WARN_LATE in actions(again, Tick(), 105.6)


def test_a_beat_from_the_future_is_refused() -> None:
    step = stepped(ARMED, beat(101.1, 7), 101.0)
    assert code(step) == "future-beat"
    assert step.state == ARMED


def test_a_refused_beat_does_not_put_the_deadline_off() -> None:
    step = stepped(ARMED, beat(106.0, 7), 105.0)
    assert code(step) == "future-beat"
    assert step.actions[0] is GuardAction.CLOSE_GATE


@pytest.mark.parametrize("epoch", [-1, 2**63])
def test_an_epoch_that_is_none_is_refused(epoch: int) -> None:
    assert code(stepped(ARMED, beat(101.0, epoch), 101.0)) == "bad-epoch"


def test_a_beat_that_waited_for_the_guard_to_be_scheduled_still_counts() -> None:
    step = stepped(ARMED, beat(104.0, 7), 106.0)
    assert step.state.phase is Phase.WATCHING
    assert may_feed(step.state, 106.0)


def test_a_beat_that_is_itself_too_old_shuts_the_gate() -> None:
    assert actions(ARMED, beat(100.5, 7), 106.0)[0] is GuardAction.CLOSE_GATE


# --- the deadline


@pytest.mark.parametrize("event", [Tick(), CreateBegin("r"), CreateEnd("r"), Looked(0), Arm(T, W), Disarm()])
def test_at_b_plus_t_whatever_happens_shuts_the_gate_first_then_stops_and_kills(event: Event) -> None:
    step = stepped(ARMED, event, 105.0)
    assert step.actions[:3] == (GuardAction.CLOSE_GATE, GuardAction.STOP_SERVICE, GuardAction.KILL)
    assert GuardAction.FEED not in step.actions
    assert not step.state.gate_open


def test_a_fresh_beat_does_not_end_a_killing_under_way() -> None:
    beaten = after(STOPPED, (105.1, beat(105.1, 7)))
    assert not beaten.gate_open
    assert not may_feed(beaten, 105.1)


def test_killing_is_repeated_until_nothing_is_left() -> None:
    assert actions(STOPPED, Tick(), 105.05) == ()
    assert actions(STOPPED, Tick(), 105.11) == (GuardAction.KILL,)


def test_verified_empty_lets_the_host_live_on_with_the_gate_shut() -> None:
    step = stepped(STOPPED, Looked(0), 105.2)
    assert step.actions == (GuardAction.VERIFIED, GuardAction.FEED)
    assert step.state.closures[-1].verified
    assert not step.state.gate_open


def test_not_empty_before_the_service_is_stopped() -> None:
    assert after(SHUT, (105.1, Looked(0))).phase is Phase.KILLING
    failed = after(SHUT, (105.1, ServiceStopped(False)), (105.1, Looked(0)))
    assert failed.phase is Phase.KILLING
    assert GuardAction.STOP_SERVICE in actions(failed, Tick(), 105.2)


def test_not_empty_before_every_create_that_was_begun_has_ended() -> None:
    begun = after(ARMED, (104.9, CreateBegin("r")), (105.0, Tick()), (105.1, ServiceStopped(True)))
    waiting = after(begun, (105.1, Looked(0)))
    assert waiting.phase is Phase.KILLING
    assert after(waiting, (105.2, CreateEnd("r")), (105.3, Looked(0))).phase is Phase.EMPTY


def test_a_create_that_never_ends_costs_the_host() -> None:
    begun = after(ARMED, (104.9, CreateBegin("r")), (105.0, Tick()), (105.0, ServiceStopped(True)))
    lost = after(begun, *((105.0 + n / 10, event) for n in range(101) for event in (Tick(), Looked(0))))
    assert lost.phase is Phase.LOST


def test_not_emptied_within_w_is_given_up_for_good() -> None:
    assert LOST.phase is Phase.LOST
    state = after(LOST, (116.0, beat(116.0, 8)), (116.0, Looked(0)), (117.0, Tick()), (117.0, ServiceStopped(True)))
    assert state.phase is Phase.LOST
    assert not state.gate_open
    assert actions(LOST, Tick(), 116.0) == (GuardAction.KILL,)
    assert not LEGAL[Phase.LOST]


def test_what_is_verified_too_late_does_not_count() -> None:
    assert after(STOPPED, (105.0 + W, Looked(0))).phase is Phase.KILLING


# --- empty


def test_an_empty_host_is_looked_at_before_every_feed() -> None:
    assert actions(EMPTY, Tick(), 106.3) == (GuardAction.LOOK,)
    assert actions(EMPTY, Looked(0), 106.3) == (GuardAction.FEED,)


def test_a_vm_that_appears_late_is_killed_and_nothing_is_fed_until_it_is_gone() -> None:
    step = stepped(EMPTY, Looked(1), 106.3)
    assert step.actions == (GuardAction.RELAPSED, GuardAction.STOP_SERVICE, GuardAction.KILL)
    assert not may_feed(step.state, 106.3)
    assert not step.state.closures[-1].verified
    assert step.state.service is ServiceState.STOPPING


def test_who_relapses_gets_w_anew_to_be_emptied() -> None:
    relapsed = after(EMPTY, (500.0, Looked(1)), (500.0, ServiceStopped(True)), (501.0, Tick()))
    assert relapsed.phase is Phase.KILLING
    assert after(relapsed, (501.0, Looked(0))).phase is Phase.EMPTY
    assert after(relapsed, (500.0 + W, Tick())).phase is Phase.LOST


def test_a_fresh_beat_opens_the_gate_of_an_empty_host() -> None:
    step = stepped(EMPTY, beat(105.5, 8), 106.0)
    assert step.actions == (GuardAction.OPEN_GATE, GuardAction.START_SERVICE, GuardAction.FEED)
    assert step.state.gate_open
    assert after(step.state, (106.5, ServiceStopped(True))).service is ServiceState.UNTOUCHED, "that was the start"


# --- creates and closures


@pytest.mark.parametrize("state", [SHUT, EMPTY, LOST])
def test_nothing_is_begun_while_the_gate_is_shut(state: GuardState) -> None:
    assert code(stepped(state, CreateBegin("r"), 105.3)) == "gate-shut"


def test_creates_under_way_are_limited_and_forgotten_in_the_end() -> None:
    full = after(ARMED, *((101.0, CreateBegin(f"r{n}")) for n in range(CREATES)))
    assert code(stepped(full, CreateBegin("one-more"), 101.0)) == "too-many-creates"
    assert code(stepped(full, CreateBegin("r0"), 101.0)) == ""
    later = 101.0 + CREATE_LIMIT_S
    assert not after(full, (later, beat(later, 7)), (later, Tick())).creates


def test_no_create_is_forgotten_while_the_gate_is_shut() -> None:
    patient = after(GuardState(), (100.0, beat(100.0, 7)), (100.0, CreateBegin("r")), (100.0, Arm(T, 3600.0)))
    shut = after(patient, (105.0, Tick()), (105.0, ServiceStopped(True)))
    later = 105.0 + 2 * CREATE_LIMIT_S
    assert after(shut, (later, Tick()), (later, Looked(0))).phase is Phase.KILLING


@pytest.mark.parametrize("run_id", ["", "x" * 129])
def test_a_run_id_that_is_none_is_refused(run_id: str) -> None:
    assert code(stepped(ARMED, CreateBegin(run_id), 101.0)) == "bad-run-id"


def test_whether_the_gate_was_ever_shut_in_an_epoch_can_be_asked_later() -> None:
    state = after(EMPTY, (106.0, beat(106.0, 8)), (120.0, Tick()), (120.0, ServiceStopped(True)), (120.1, Looked(0)))
    assert state.closed_epochs == (7, 8)
    assert [closure.epoch for closure in state.closures] == [7, 8]
    assert state.closed == 2


def test_closures_are_counted_on_when_the_list_is_full() -> None:
    state = ARMED
    for turn in range(CLOSURES + 5):
        at = 200.0 + 100 * turn
        state = after(state, (at, Tick()), (at, ServiceStopped(True)), (at, Looked(0)), (at + 1, beat(at + 1, turn)))
    assert state.closed == CLOSURES + 5
    assert len(state.closures) == len(state.closed_epochs) == CLOSURES


# --- two clocks that run apart


def test_what_must_not_come_too_late_counts_by_the_clock_that_went_further() -> None:
    for now in (Instants(105.0, 104.5), Instants(104.5, 105.0)):
        assert not core.may_feed(ARMED, now)
        assert core.step(ARMED, Tick(), now).actions[0] is GuardAction.CLOSE_GATE
        assert core.step(ARMED, CreateBegin("r"), now).refusal is not None
    assert core.may_feed(ARMED, Instants(104.9, 104.5))
    assert core.wake_s(after(ARMED, (104.5, Tick())), Instants(104.9, 104.6)) == pytest.approx(0.1)


def test_host_that_slept_finds_its_time_over() -> None:
    assert core.step(ARMED, Tick(), Instants(700.0, 101.0)).actions[0] is GuardAction.CLOSE_GATE
    assert core.step(STOPPED, Looked(0), Instants(105.0 + W, 105.2)).state.phase is Phase.KILLING


def test_beat_that_was_not_read_from_both_clocks_is_refused() -> None:
    assert code(core.step(ARMED, Beat(Instants(100.5, 101.5), 7), at(101.0))) == "future-beat"
    assert core.step(ARMED, Beat(Instants(100.9, 99.0), 7), at(101.0)).state == ARMED


def test_create_is_not_forgotten_because_the_host_slept() -> None:
    begun = after(ARMED, (101.0, CreateBegin("r")))
    woken = Instants(101.0 + CREATE_LIMIT_S, 102.0)
    assert core.step(begun, Beat(woken, 7), woken).state.creates == begun.creates


# --- what follows


def test_what_follows_from_an_event_is_judged_in_order_and_by_the_clock_of_then() -> None:
    carried: list[tuple[Phase, GuardAction]] = []
    times = iter((105.0, 105.1, 105.2))

    def act(state: GuardState, action: GuardAction) -> Event | None:
        carried.append((state.phase, action))
        if action is GuardAction.STOP_SERVICE:
            return ServiceStopped(True)
        return Looked(0) if action is GuardAction.KILL else None

    state, refusal = core.follow(ARMED, Tick(), lambda: at(next(times)), act)
    assert refusal is None
    assert (state.phase, state.shut, state.service) == (Phase.EMPTY, at(105.0), ServiceState.STOPPED)
    assert carried == [
        (Phase.KILLING, GuardAction.CLOSE_GATE),
        (Phase.KILLING, GuardAction.STOP_SERVICE),
        (Phase.KILLING, GuardAction.KILL),
        (Phase.EMPTY, GuardAction.VERIFIED),
        (Phase.EMPTY, GuardAction.FEED),
    ]


def test_kill_that_took_longer_than_the_watchdog_is_not_followed_by_a_feed() -> None:
    now = [105.0]
    carried: list[GuardAction] = []

    def act(_: GuardState, action: GuardAction) -> Event | None:
        carried.append(action)
        if action is GuardAction.KILL:
            now[0] += W
            return Looked(0)
        return ServiceStopped(True) if action is GuardAction.STOP_SERVICE else None

    state, _ = core.follow(ARMED, Tick(), lambda: at(now[0]), act)
    assert state.phase is Phase.KILLING
    assert GuardAction.FEED not in carried


def test_refusal_is_handed_back_and_nothing_is_carried_out_for_it() -> None:
    def act(_: GuardState, action: GuardAction) -> Event | None:
        raise AssertionError(action)

    state, refusal = core.follow(GuardState(), Arm(T, W), lambda: at(100.0), act)
    assert refusal is not None
    assert refusal.code == "no-beat"
    assert state == GuardState()


EVENTS = st.one_of(
    st.just(Tick()),
    st.builds(lambda back, epoch: ("beat", back, epoch), st.floats(-1.0, 8.0), st.integers(0, 3)),
    st.builds(Arm, st.sampled_from([2.0, T, 6.0]), st.sampled_from([4.0, W, 12.0])),
    st.just(Disarm()),
    st.builds(CreateBegin, st.sampled_from("ab")),
    st.builds(CreateEnd, st.sampled_from("ab")),
    st.builds(Looked, st.integers(0, 2)),
    st.builds(ServiceStopped, st.booleans()),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.9, 9.0), EVENTS), max_size=40), st.booleans())
def test_whatever_happens_the_guard_keeps_its_two_statements(history: list, armed: bool) -> None:
    state, now = (ARMED if armed else GuardState()), at(100.0)
    for passed_s, slew, raw in history:
        now = Instants(now.boot_s + passed_s * slew, now.raw_s + passed_s)
        event = raw
        if isinstance(raw, tuple) and raw[:1] == ("beat",):
            event = Beat(Instants(now.boot_s - raw[1] * slew, now.raw_s - raw[1]), raw[2])
        before, step = state, core.step(state, event, now)
        state = step.state
        fresh = state.beat is not None and max_elapsed(state.beat, now) < state.timeout_s
        if GuardAction.FEED in step.actions:
            seen_empty = event == Looked(0) and state.phase is Phase.EMPTY
            assert (state.phase is Phase.WATCHING and fresh) or seen_empty
        if state.armed and state.gate_open:
            assert fresh
        if before.phase is Phase.LOST:
            assert state.phase is Phase.LOST
        if state.phase is Phase.EMPTY and before.phase is not Phase.EMPTY:
            assert event == Looked(0)
            assert not state.creates
            assert state.service is ServiceState.STOPPED
        if GuardAction.CLOSE_GATE in step.actions:
            assert step.actions[0] is GuardAction.CLOSE_GATE
        if before.beat is not None and state.beat is not None:
            assert min_elapsed(before.beat, state.beat) >= 0
        assert (core.wake_s(state, now) is None) is not state.armed
