"""How often a silent host is looked at again before it is condemned, where its VMs have a recovery time objective.

Looks after the silence limit are there so that a host which is only slow is not fenced. A VM that is to run again soon
may not have the time for all of them. So there are fewer where being wrong would cost little: where both the host's
guard and its power controller were found good within the last minute, a host that is condemned is quickly proven dead,
and never stays half-way. The silence limit itself, the wait for the guard, and the rules about storms and rates are as
always (docs/concepts/safety.md#deadlines).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from outlive.node.numbers import Amount, Count

PROVEN_S: Final = 60.0
"""For so long a guard or a power controller counts as proven good after it was found so."""
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
    """Since its power controller was last found good; none: it was not, or is not trusted."""


class LooksResult(msgspec.Struct, frozen=True, kw_only=True):
    """Looks, the time between two, and why."""

    throws: Count
    throw_s: Amount
    reason: Looks
    why: str = ""
    """In words, where there is an objective that needs fewer looks."""


def looks(given: LooksInput) -> LooksResult:
    """All looks of the profile, unless an objective needs fewer and guard and power are both proven."""
    if given.objective_s is None:
        return _all(given, Looks.NO_OBJECTIVE)
    if not too_slow(given.silence_s, given.throws, given.throw_s, given.objective_s):
        return _all(given, Looks.AS_USUAL)
    asked = f"a VM on it is to run again within {given.objective_s:g} s"
    if given.guard_s is None:
        return _all(given, Looks.GUARD_NOT_PROVEN, f"{asked}, but {_unproven('its guard', None)}")
    if given.power_s is None or given.power_s > PROVEN_S:
        return _all(given, Looks.POWER_NOT_PROVEN, f"{asked}, but {_unproven('its power controller', given.power_s)}")
    if given.guard_s > PROVEN_S:  # as it becomes while the host is looked at
        return _all(given, Looks.GUARD_NOT_PROVEN, f"{asked}, but {_unproven('its guard', given.guard_s)}")
    left_s = given.objective_s - given.silence_s - AFTER_S
    count, pause_s = 1, min(given.throw_s, LEAST_LOOK_S)
    if left_s >= given.throw_s:
        count, pause_s = int(left_s // given.throw_s), given.throw_s
    elif left_s > pause_s:
        pause_s = left_s
    why = (
        f"looked at {count} x {pause_s:g} s instead of {given.throws} x {given.throw_s:g} s, because {asked}; "
        f"its guard was found good {given.guard_s:.0f} s ago and its power controller {given.power_s:.0f} s ago"
    )
    return LooksResult(throws=count, throw_s=pause_s, reason=Looks.SHORTENED, why=why)


def too_slow(silence_s: Amount, throws: Count, throw_s: Amount, objective_s: Amount) -> bool:
    """Whether the looks of a profile take longer than an objective leaves time for."""
    return throws * throw_s > 0 and silence_s + throws * throw_s + AFTER_S > objective_s


def _all(given: LooksInput, reason: Looks, why: str = "") -> LooksResult:
    said = f"not looked at less often: {why}" if why else ""
    return LooksResult(throws=given.throws, throw_s=given.throw_s, reason=reason, why=said)


def _unproven(what: str, age_s: Amount | None) -> str:
    return f"{what} was not found good" if age_s is None else f"{what} was last found good {age_s:.0f} s ago"
