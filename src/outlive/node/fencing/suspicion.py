"""Decisions about silent hosts: whom to suspect (``fence.evaluate``), and how often to look again
(``fence.looks``).

Ages are measured by the observer, on its own monotonic clock, since it last saw a host's membership change. Most of
the rules guard against the observer being the one that is broken. A suspicion proves nothing and harms nobody: it
only starts the search for a proof (docs/design/node-decisions.md#fenceevaluate).

Looks after the silence limit are there so that a host which is only slow is not fenced. Where a VM has to run again
soon there are fewer, if both the host's guard and its BMC were found good within the last minute: then a
host that was condemned wrongly is quickly proven dead, and never stays half-way (docs/concepts/safety.md#deadlines).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from outlive.base import natural_key
from outlive.runtime import Amount, Count, Decision, Number, Positive

STORM_FRACTION: Final = 0.5
"""More than this part of all working hosts silent at once is a storm."""
TRANSITION_GRACE_S: Final = 300.0
"""How long a host with virtual machines may start or stop in silence."""
STALE_INTERVALS: Final = 2
"""An observer whose own last stamp is as old as this many intervals does not judge others."""


class SuspicionHold(enum.StrEnum):
    """Why nobody is suspected."""

    MAINTENANCE = "maintenance"
    NOT_COORDINATOR = "not_coordinator"
    DISABLED = "disabled"
    OBSERVER_STALE = "observer_stale"
    OBSERVER_GRACE = "observer_grace"
    STORM = "storm"


class EvaluateConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When silence counts. Times in seconds."""

    keepalive_interval: Positive
    fence_intervals: Amount
    """Intervals of silence; 0 turns fencing off."""
    storm_fraction: Amount = STORM_FRACTION
    transition_grace: Amount = TRANSITION_GRACE_S


class ObserverView(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks. Times in seconds."""

    name: str
    mode: str
    connected: bool
    own_age: Number
    """Since its own last acknowledged stamp."""
    uptime: Number
    """Since it began to observe."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A host as the observer sees it."""

    name: str
    daemon_state: str
    age: Number
    """Seconds since the observer last saw it change."""
    assigned_vms: Count = 0
    fence_owner: str | None = None
    fence_owner_live: bool = False
    domain: str | None = None
    """What fails together with it; none: it fails alone."""
    silence: Amount | None = None
    """Seconds of silence that count for this host; none: as the intervals say."""


class EvaluateInput(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to suspect?"""

    config: EvaluateConfig
    observer: ObserverView
    nodes: tuple[Peer, ...]
    maintenance: bool = False
    primary: str | None = None
    """Who has the role of the primary: suspected before all others, so that a limit of fences is spent on it first."""


class EvaluateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts to suspect and fences to take up, in this order; or why nobody is suspected."""

    suspects: tuple[str, ...]
    adopt: tuple[str, ...]
    reason: SuspicionHold | None


def evaluate(given: EvaluateInput) -> EvaluateResult:
    """Suspect what is silent or stuck, the primary first, unless the observer had better not judge."""
    unfit = _explain_unfit(given)
    if unfit is not None:
        return EvaluateResult(suspects=(), adopt=(), reason=unfit)
    config, me = given.config, given.observer.name
    others = sorted((peer for peer in given.nodes if peer.name != me), key=lambda peer: natural_key(peer.name))
    dead = [peer for peer in others if peer.daemon_state == "dead"]
    adopt = tuple(peer.name for peer in dead if peer.fence_owner is None or not peer.fence_owner_live)
    limit = config.keepalive_interval * config.fence_intervals
    running = [peer for peer in others if peer.daemon_state == "run"]
    silent = [peer for peer in running if peer.age > (limit if peer.silence is None else peer.silence)]
    if _is_storm(given, silent):
        return EvaluateResult(suspects=(), adopt=adopt, reason=SuspicionHold.STORM)
    stuck = [peer for peer in others if _is_stuck(peer, config.transition_grace)]
    names = sorted((peer.name for peer in (*silent, *stuck)), key=natural_key)
    first = sorted(names, key=lambda name: name != given.primary)
    return EvaluateResult(suspects=tuple(first), adopt=adopt, reason=None)


def _explain_unfit(given: EvaluateInput) -> SuspicionHold | None:
    observer, interval = given.observer, given.config.keepalive_interval
    if given.maintenance:
        return SuspicionHold.MAINTENANCE
    if observer.mode != "coordinator":
        return SuspicionHold.NOT_COORDINATOR
    if given.config.fence_intervals == 0:
        return SuspicionHold.DISABLED
    if not observer.connected or observer.own_age >= STALE_INTERVALS * interval:
        return SuspicionHold.OBSERVER_STALE
    if observer.uptime < interval * given.config.fence_intervals:
        return SuspicionHold.OBSERVER_GRACE
    return None


def _is_stuck(peer: Peer, grace: Amount) -> bool:
    return peer.daemon_state in ("init", "shutdown") and peer.assigned_vms > 0 and peer.age > grace


def _is_storm(given: EvaluateInput, silent: Sequence[Peer]) -> bool:
    """Whether too much is silent, by hosts and by failure domains: one rack that dies is one failure, not a storm."""
    me = given.observer.name
    working = [peer for peer in given.nodes if peer.daemon_state == "run" and peer.name != me]
    domain = next((peer.domain for peer in given.nodes if peer.name == me), None)
    counted = {*_list_units(working), _unit_of(me, domain)}
    fraction = given.config.storm_fraction
    too_many_hosts = len(silent) > fraction * (len(working) + 1)
    return too_many_hosts and len(_list_units(silent)) > fraction * len(counted)


def _list_units(peers: Iterable[Peer]) -> set[tuple[bool, str]]:
    return {_unit_of(peer.name, peer.domain) for peer in peers}


def _unit_of(name: str, domain: str | None) -> tuple[bool, str]:
    return (domain is not None, name if domain is None else domain)


FENCE_EVALUATE: Final = Decision(
    "fence.evaluate",
    evaluate,
    EvaluateInput,
    EvaluateResult,
    "Which hosts to suspect",
    lambda output: not output.suspects and not output.adopt,
)


PROVEN_S: Final = 60.0
"""For so long a guard or a BMC counts as proven good after it was found so."""
AFTER_S: Final = 5.0
"""What a proof by power and a restart take after the host is condemned: docs/concepts/safety.md#the-times."""
LEAST_LOOK_S: Final = 1.0
"""Between two looks at least, unless the profile has them closer: a fencer that stood still has to look once more."""


class Looks(enum.StrEnum):
    """Why there are as many looks as there are."""

    NO_OBJECTIVE = "no_objective"
    AS_USUAL = "as_usual"
    """The objective can be met with all looks."""
    GUARD_NOT_PROVEN = "guard_not_proven"
    POWER_NOT_PROVEN = "power_not_proven"
    SHORTENED = "shortened"
    SAID_OFF = "said_off"


class LooksInput(msgspec.Struct, frozen=True, kw_only=True):
    """How often is this host looked at? Times in seconds."""

    silence_s: Amount
    throws: Count
    """Looks of its profile."""
    throw_s: Amount
    objective_s: Amount | None = None
    """The shortest recovery time objective of its VMs."""
    guard_s: Amount | None = None
    """Since its guard was last found good; none: it was not, or is not trusted."""
    power_s: Amount | None = None
    """Since its BMC was last found good; none: it was not, or is not trusted."""
    said_off: bool = False
    """Its BMC said, since it is silent, that it is off."""


class LooksResult(msgspec.Struct, frozen=True, kw_only=True):
    """Looks, the time between two, and why."""

    throws: Count
    throw_s: Amount
    reason: Looks
    why: str = ""
    """In words, where there are fewer looks, or an objective needs fewer."""


def decide_looks(given: LooksInput) -> LooksResult:
    """All looks of the profile; one of a host that is said to be off, and fewer where an objective needs it.

    What a controller says before any command proves nothing, but a host that is silent and off is not only slow. That
    look is as late as any first one, so that hosts that fail together are all silent by then.
    """
    usual = _decide_usual(given)
    if not given.said_off or usual.throws <= 1:
        return usual
    why = f"checked once instead of {usual.throws} times: its BMC says that it is off"
    return LooksResult(throws=1, throw_s=usual.throw_s, reason=Looks.SAID_OFF, why=why)


def _decide_usual(given: LooksInput) -> LooksResult:
    """All looks of the profile, unless an objective needs fewer and guard and power are both proven."""
    if given.objective_s is None:
        return _take_all(given, Looks.NO_OBJECTIVE)
    if not is_too_slow(given.silence_s, given.throws, given.throw_s, given.objective_s):
        return _take_all(given, Looks.AS_USUAL)
    asked = f"a VM on it is to run again within {given.objective_s:g} s"
    if given.guard_s is None:
        return _take_all(given, Looks.GUARD_NOT_PROVEN, f"{asked}, but {_unproven_text('its guard', None)}")
    if given.power_s is None or given.power_s > PROVEN_S:
        return _take_all(given, Looks.POWER_NOT_PROVEN, f"{asked}, but {_unproven_text('its BMC', given.power_s)}")
    if given.guard_s > PROVEN_S:  # as it becomes while the host is looked at
        return _take_all(given, Looks.GUARD_NOT_PROVEN, f"{asked}, but {_unproven_text('its guard', given.guard_s)}")
    left_s = given.objective_s - given.silence_s - AFTER_S
    count, pause_s = 1, min(given.throw_s, LEAST_LOOK_S)
    if left_s >= given.throw_s:
        count, pause_s = int(left_s // given.throw_s), given.throw_s
    elif left_s > pause_s:
        pause_s = left_s
    why = (
        f"checked {count} times every {pause_s:g} s instead of {given.throws} times every {given.throw_s:g} s: {asked}"
        f"; its guard was found good {given.guard_s:.0f} s ago and its BMC {given.power_s:.0f} s ago"
    )
    return LooksResult(throws=count, throw_s=pause_s, reason=Looks.SHORTENED, why=why)


def is_too_slow(silence_s: Amount, throws: Count, throw_s: Amount, objective_s: Amount) -> bool:
    """Whether the looks of a profile take longer than an objective leaves time for."""
    return throws * throw_s > 0 and silence_s + throws * throw_s + AFTER_S > objective_s


def _take_all(given: LooksInput, reason: Looks, why: str = "") -> LooksResult:
    said = f"not checked less often: {why}" if why else ""
    return LooksResult(throws=given.throws, throw_s=given.throw_s, reason=reason, why=said)


def _unproven_text(what: str, age_s: Amount | None) -> str:
    return f"{what} was not found good" if age_s is None else f"{what} was last found good {age_s:.0f} s ago"


FENCE_LOOKS: Final = Decision(
    "fence.looks",
    decide_looks,
    LooksInput,
    LooksResult,
    "How often a silent host is looked at again",
    lambda output: output.reason not in (Looks.SHORTENED, Looks.SAID_OFF),
)
