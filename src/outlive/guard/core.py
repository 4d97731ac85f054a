"""When the guard feeds, kills and lets start: the whole judgement, as a pure function of state, event and time.

Two statements carry the proof by watchdog, and hold after every step:

* fed is only within T after the sending of an acknowledged renewal (``WATCHING``), or right after a look that found
  nothing left in the VM cgroups while the gate is shut (``EMPTY``);
* the gate is open only where the first of the two holds, or where nothing is promised (``UNARMED``).

What must not come too late (the end of T and W, the next feed) counts by the faster of two clocks; what must not come
too early (a create that nobody ends any more) by the slower.

What it does not give: time between a judgement and the feed that follows is the process's to keep short, and a
process outside the VM cgroups is none that it knows of. See docs/how-to/guard.md#what-it-does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from outlive.guard.clocks import Instants, max_elapsed, min_elapsed
from outlive.guard.states import (
    CLOSURES,
    CREATE_LIMIT_S,
    CREATES,
    EPOCH_LIMIT,
    FEED_INTERVAL_S,
    KILL_INTERVAL_S,
    LEGAL,
    LOST_KILL_INTERVAL_S,
    RUN_ID_LENGTH,
    TIME_LIMIT_S,
    Arm,
    Beat,
    Closure,
    Create,
    CreateBegin,
    CreateEnd,
    Disarm,
    Event,
    GuardAction,
    GuardRefusal,
    GuardState,
    Looked,
    Phase,
    ServiceState,
    ServiceStopped,
    Tick,
    Transition,
)

EVENTS_A_STEP: Final = 16
"""Events that may follow from one: a kill, a look, a stopped service, and what they lead to."""

Act = Callable[[GuardState, GuardAction], Event | None]
"""Carries one action out, in the state that asked for it; what it leads to, where that is known at once."""


def follow(
    state: GuardState, event: Event, now: Callable[[], Instants], act: Act
) -> tuple[GuardState, GuardRefusal | None]:
    """Judge an event, act, and judge what follows from that, until nothing does; the state then, and a refusal.

    The clock is read anew for every judgement: what was carried out before it took time.
    """
    waiting: deque[Event] = deque([event])
    refused: GuardRefusal | None = None
    for _ in range(EVENTS_A_STEP):
        if not waiting:
            break
        after = step(state, waiting.popleft(), now())
        state = after.state
        refused = refused or after.refusal
        for action in after.actions:
            follows = act(state, action)
            if follows is not None:
                waiting.append(follows)
    return state, refused


def step(state: GuardState, event: Event, now: Instants) -> Transition:
    """The next state and what to do, in order. A refused event changes nothing; time may.

    A beat counts before the deadline is judged: one that waited while the guard was not scheduled still proves that
    the renewal was acknowledged, and nothing was fed meanwhile. Every other event finds an overdue gate shut.
    """
    if isinstance(event, Beat):
        return _beat(state, event, now)
    shut = _close_if_late(state, now)
    after = _handle_event(shut.state, event, now)
    return after._replace(actions=shut.actions + after.actions)


def wake_s(state: GuardState, now: Instants) -> float | None:
    """After how many seconds a tick is due; ``None``: never, as long as nothing happens."""
    if state.phase is Phase.UNARMED:
        return None
    left_s = interval_s(state) - max_elapsed(state.acted, now)
    if state.phase is Phase.WATCHING:
        late_s = state.timeout_s if state.warned else state.timeout_s / 2
        left_s = min(left_s, late_s - _beat_age_s(state, now))
    elif state.phase is Phase.KILLING:
        left_s = min(left_s, state.watchdog_s - max_elapsed(state.shut, now))
    return max(0.0, left_s)


def interval_s(state: GuardState) -> float:
    """Between two regular actions of this phase."""
    match state.phase:
        case Phase.KILLING:
            return KILL_INTERVAL_S
        case Phase.LOST:
            return LOST_KILL_INTERVAL_S
        case _:
            return min(FEED_INTERVAL_S, state.watchdog_s / 4, state.timeout_s / 4)


def may_feed(state: GuardState, now: Instants) -> bool:
    """Whether a feed at this moment would be true; the process asks again right before it writes."""
    if state.phase is Phase.WATCHING:
        return _is_fresh(state, now)
    return state.phase is Phase.EMPTY


def arm_refusal(state: GuardState, event: Arm, now: Instants) -> GuardRefusal | None:
    """Why the guard cannot be armed like this now, or ``None``. The process asks before it starts the watchdog."""
    times = (event.timeout_s, event.watchdog_s)
    if not all(math.isfinite(time_s) and 0 < time_s <= TIME_LIMIT_S for time_s in times):
        return GuardRefusal(
            "bad-time", f"T {times[0]} s and W {times[1]} s: say seconds above 0, at most {TIME_LIMIT_S:g}"
        )
    if state.phase not in (Phase.UNARMED, Phase.WATCHING):
        return GuardRefusal("gate-shut", f"the guard is {state.phase}: renew the membership first, or reboot the host")
    if state.armed and (event.timeout_s > state.timeout_s or event.watchdog_s > state.watchdog_s):
        return GuardRefusal(
            "longer-while-armed",
            f"armed with T {state.timeout_s} s and W {state.watchdog_s} s, which fencers may rely on: disarm before "
            f"arming with T {times[0]} s and W {times[1]} s",
        )
    if not _is_younger(state.beat, now, event.timeout_s):
        return GuardRefusal("no-beat", f"no renewal was acknowledged within {times[0]} s: is the daemon renewing?")
    return None


# --- the deadline


def _close_if_late(state: GuardState, now: Instants) -> Transition:
    """The gate shut, if it is armed and the newest beat is T old: first the gate, then all the rest."""
    if state.phase is not Phase.WATCHING or _is_fresh(state, now):
        return Transition(state)
    closure = Closure(at=now, epoch=state.epoch, verified=False)
    epochs = tuple(epoch for epoch in state.closed_epochs if epoch != state.epoch)
    shut = _enter_phase(state, Phase.KILLING)._replace(
        shut=now,
        acted=now,
        service=ServiceState.STOPPING,
        closures=(*state.closures, closure)[-CLOSURES:],
        closed=state.closed + 1,
        closed_epochs=(*epochs, state.epoch)[-CLOSURES:],
    )
    return Transition(shut, (GuardAction.CLOSE_GATE, GuardAction.STOP_SERVICE, GuardAction.KILL))


def _is_fresh(state: GuardState, now: Instants) -> bool:
    """Whether the newest beat is younger than T."""
    return _is_younger(state.beat, now, state.timeout_s)


def _is_younger(moment: Instants | None, now: Instants, limit_s: float) -> bool:
    """Whether less than that passed, by both clocks. A clock that went back is no proof of anything."""
    return moment is not None and min_elapsed(moment, now) >= 0 and max_elapsed(moment, now) < limit_s


def _beat_age_s(state: GuardState, now: Instants) -> float:
    return math.inf if state.beat is None else max_elapsed(state.beat, now)


# --- the events


def _handle_event(state: GuardState, event: Event, now: Instants) -> Transition:
    match event:
        case Tick():
            return _tick(state, now)
        case Looked():
            return _handle_look(state, event, now)
        case ServiceStopped():
            return _service_stopped(state, event)
        case Arm():
            return _arm(state, event, now)
        case Disarm():
            return _disarm(state)
        case CreateBegin():
            return _create_begin(state, event, now)
        case CreateEnd():
            left = tuple(create for create in state.creates if create.run_id != event.run_id)
            return Transition(state._replace(creates=left))
        case Beat():
            raise AssertionError("a beat is judged before the deadline")


def _tick(state: GuardState, now: Instants) -> Transition:
    if state.phase is Phase.KILLING and max_elapsed(state.shut, now) >= state.watchdog_s:
        return Transition(_enter_phase(state, Phase.LOST)._replace(acted=now), (GuardAction.GIVE_UP, GuardAction.KILL))
    forgotten = _without_old_creates(state, now)
    notes = (GuardAction.FORGET_CREATE,) if forgotten is not state else ()
    state = forgotten
    if state.phase is Phase.WATCHING and not state.warned and _beat_age_s(state, now) >= state.timeout_s / 2:
        state = state._replace(warned=True)
        notes = (*notes, GuardAction.WARN_LATE)
    if state.phase is Phase.UNARMED or _is_younger(state.acted, now, interval_s(state)):
        return Transition(state, notes)
    return _regular_step(state._replace(acted=now), notes)


def _regular_step(state: GuardState, notes: tuple[GuardAction, ...]) -> Transition:
    """What is done every interval."""
    match state.phase:
        case Phase.WATCHING:
            return Transition(state, (*notes, GuardAction.FEED))
        case Phase.EMPTY:
            return Transition(state, (*notes, GuardAction.LOOK))
        case _ if state.service is ServiceState.FAILED:
            return Transition(
                state._replace(service=ServiceState.STOPPING), (*notes, GuardAction.STOP_SERVICE, GuardAction.KILL)
            )
        case _:
            return Transition(state, (*notes, GuardAction.KILL))


def _handle_look(state: GuardState, event: Looked, now: Instants) -> Transition:
    if state.phase is Phase.KILLING:
        if (
            event.left
            or state.creates
            or state.service is not ServiceState.STOPPED
            or max_elapsed(state.shut, now) >= state.watchdog_s
        ):
            return Transition(state)
        return Transition(
            _mark_closure(_enter_phase(state, Phase.EMPTY), True), (GuardAction.VERIFIED, GuardAction.FEED)
        )
    if state.phase is Phase.EMPTY:
        if not event.left:
            return Transition(state, (GuardAction.FEED,))
        again = _mark_closure(_enter_phase(state, Phase.KILLING), False)._replace(
            shut=now, service=ServiceState.STOPPING
        )
        return Transition(again, (GuardAction.RELAPSED, GuardAction.STOP_SERVICE, GuardAction.KILL))
    return Transition(state)


def _mark_closure(state: GuardState, verified: bool) -> GuardState:
    """The newest closure marked."""
    return state._replace(closures=(*state.closures[:-1], state.closures[-1]._replace(verified=verified)))


def _service_stopped(state: GuardState, event: ServiceStopped) -> Transition:
    if state.service is not ServiceState.STOPPING:
        return Transition(state)
    return Transition(state._replace(service=ServiceState.STOPPED if event.well else ServiceState.FAILED))


def _beat(state: GuardState, event: Beat, now: Instants) -> Transition:
    refusal = _beat_refusal(event, now)
    if refusal is None and (state.beat is None or min_elapsed(state.beat, event.sent) > 0):
        state = state._replace(beat=event.sent, epoch=event.epoch, warned=False)
        if state.phase is Phase.EMPTY and _is_fresh(state, now):
            reopened = _enter_phase(state, Phase.WATCHING)._replace(acted=now, service=ServiceState.UNTOUCHED)
            return Transition(reopened, (GuardAction.OPEN_GATE, GuardAction.START_SERVICE, GuardAction.FEED))
    return _close_if_late(state, now)._replace(refusal=refusal)


def _beat_refusal(event: Beat, now: Instants) -> GuardRefusal | None:
    if not 0 <= event.epoch < EPOCH_LIMIT:
        return GuardRefusal("bad-epoch", f"epoch {event.epoch}: say a whole number from 0 on")
    if not all(map(math.isfinite, event.sent)) or min_elapsed(event.sent, now) < 0:
        sent = "a renewal sent at {:.3f} s, {:.3f} s lies in the future".format(*event.sent)
        clocks = "take the times from CLOCK_BOOTTIME and CLOCK_MONOTONIC_RAW of this host"
        return GuardRefusal("future-beat", f"{sent}, now is {now.boot_s:.3f} s, {now.raw_s:.3f} s: {clocks}")
    return None


def _arm(state: GuardState, event: Arm, now: Instants) -> Transition:
    refusal = arm_refusal(state, event, now)
    if refusal is not None:
        return Transition(state, (), refusal)
    armed = state if state.armed else _enter_phase(state, Phase.WATCHING)
    armed = armed._replace(timeout_s=event.timeout_s, watchdog_s=event.watchdog_s, acted=now, warned=False)
    return Transition(armed, (GuardAction.FEED,))


def _disarm(state: GuardState) -> Transition:
    if not state.armed:
        return Transition(state)
    if state.phase is not Phase.WATCHING:
        return Transition(
            state, (), GuardRefusal("gate-shut", f"the guard is {state.phase}: renew the membership first")
        )
    return Transition(_enter_phase(state, Phase.UNARMED), (GuardAction.RELEASE,))


# --- creates


def _create_begin(state: GuardState, event: CreateBegin, now: Instants) -> Transition:
    if not 0 < len(event.run_id) <= RUN_ID_LENGTH:
        return Transition(state, (), GuardRefusal("bad-run-id", f"a run id has 1 to {RUN_ID_LENGTH} characters"))
    if not state.gate_open:
        return Transition(
            state, (), GuardRefusal("gate-shut", f"the guard is {state.phase}: no domain may start on this host")
        )
    others = tuple(create for create in state.creates if create.run_id != event.run_id)
    if len(others) >= CREATES:
        return Transition(
            state, (), GuardRefusal("too-many-creates", f"{CREATES} creates are under way: end some of them")
        )
    return Transition(state._replace(creates=(*others, Create(event.run_id, now))))


def _without_old_creates(state: GuardState, now: Instants) -> GuardState:
    """Without creates that nobody will end any more. None is forgotten while the gate is shut: it may still appear."""
    if not state.gate_open:
        return state
    left = tuple(create for create in state.creates if min_elapsed(create.begun, now) < CREATE_LIMIT_S)
    return state if left == state.creates else state._replace(creates=left)


def _enter_phase(state: GuardState, phase: Phase) -> GuardState:
    """In that phase, or an error where that must not follow."""
    if phase not in LEGAL[state.phase]:
        raise AssertionError(f"the guard cannot go from {state.phase} to {phase}")
    return state._replace(phase=phase)
