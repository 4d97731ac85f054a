"""When everybody has all slots again: a forecast from what is missing, what keeps it missing, and the measured pace.

After a failure many VMs miss slots at once, and an operator wants to know until when the next failure would hurt. What
is missing falls into four parts: what is given as soon as it is its turn; what a cycle has to give; VMs that first have
to be restarted elsewhere; and what nothing gives as things are. The last makes the answer *never*, with what would
help. For the others the last passes tell the pace (docs/reference/failover.md#full-protection).

It is a forecast and promises nothing: another failure, slower writes or a change of the hosts make it wrong.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import msgspec

from outlive.base.duration import format_duration
from outlive.base.wording import count_of, listing
from outlive.failover.assurance.worth import Worthless
from outlive.failover.planning.reasons import Reason

RESTART_S = 10.0
"""How long restarting a VM is taken to last after the proof, before one was seen."""
OVERDUE_S = 60.0
"""A VM that is restarted for longer than this waits for something that no pace tells."""
REASONS_SHOWN = 3
"""Reasons that a sentence names."""

BY_ITSELF = frozenset(
    {
        *(Reason.WAITING, Reason.ONE_PER_HOST, Reason.MEMBERSHIPS_CLASH),
        *(Worthless.ELSEWHERE, Worthless.NOT_READY, Worthless.NOT_ALLOWED, Worthless.TOO_SMALL),
    }
)
"""Reasons that end with the next cycles; every other one stays until somebody does something."""
UNANSWERED = frozenset({Reason.PLACEMENT_UNAVAILABLE})
"""Reasons that end when something answers again, nobody knows when."""


class Outlook(enum.StrEnum):
    """What is to be expected."""

    FULL = "full"
    UNDER_WAY = "under-way"
    UNKNOWN = "unknown"
    NEVER = "never"


class Lack(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """VMs that miss slots for one reason."""

    reason: str
    vms: int
    slots: int
    """Slots that they miss together."""
    exposed: int = 0
    """Those of them that have no slot at all."""
    remedy: str = ""
    """What would help the first of them."""


class Pass(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One cycle, or one pass of upkeep, that left something missing that passes give."""

    gave: int
    """Slots."""
    took_s: float
    pause_s: float
    """Until the next one begins."""


class ProtectionInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is missing now, and how fast it went lately."""

    turn: Lack | None = None
    """Those whose turn in upkeep has not come."""
    turn_s: float = 0.0
    """How much of the running pass is over."""
    lacks: tuple[Lack, ...] = ()
    """Everybody else, by reason."""
    away: int = 0
    """VMs on hosts that are proven dead: they get slots where they land."""
    away_s: float = 0.0
    """For how long the first of them has been away."""
    restart_s: float = RESTART_S
    """How long restarting took lately."""
    passes: tuple[Pass, ...] = ()
    """The last ones of upkeep; none: ``usual_pass``."""
    usual_pass: Pass
    cycles: tuple[Pass, ...] = ()
    """The last ones; none: ``usual_cycle``."""
    usual_cycle: Pass
    next_cycle_s: float = 0.0
    """Until the next cycle begins."""


class FullProtection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The forecast."""

    outlook: Outlook
    eta_s: float | None
    """Seconds until everybody has all slots; ``None`` where that is never, or not known."""
    rest_s: float | None
    """The same for those who need nothing but time; ``None`` where not even that is known."""
    vms: int
    """VMs that miss slots, or are away."""
    slots: int
    exposed: int
    because: tuple[Lack, ...] = ()
    """What keeps it from ending by itself, the most VMs first."""

    @property
    def sentence(self) -> str:
        """For people."""
        if self.outlook is Outlook.FULL:
            return "every VM has the slots that it needs"
        missing = f"{count_of(self.vms, 'VM')} without full protection, {self.exposed} of them without any"
        rest = f"; the others in about {format_duration(_rounded(self.rest_s))}" if self.rest_s else ""
        match self.outlook:
            case Outlook.UNDER_WAY:
                return f"in about {format_duration(_rounded(self.eta_s))}: {missing}"
            case Outlook.NEVER:
                return f"never as things are, because of {_reasons(self.because)}{rest}: {missing}"
            case _:
                return f"nobody knows when, because of {_reasons(self.because)}{rest}: {missing}"


def full_protection(given: ProtectionInput) -> FullProtection:
    """The forecast; see the module."""
    everybody = [*given.lacks, *([given.turn] if given.turn is not None else [])]
    blocked = [one for one in given.lacks if one.reason not in BY_ITSELF and one.reason not in UNANSWERED]
    waiting = [one for one in given.lacks if one.reason in UNANSWERED]
    own = [one for one in given.lacks if one.reason in BY_ITSELF]
    if given.away and given.away_s > OVERDUE_S:
        remedy = "`outlive status` tells which VMs wait for what"
        waiting.append(Lack(reason="not-restarted", vms=given.away, slots=0, exposed=given.away, remedy=remedy))
    parts = [_in_turn(given), _by_cycles(given, own), _after_landing(given)]
    if parts[1] is None:
        waiting += own
    known = [part for part in parts if part is not None]
    rest_s = max(known) if len(known) == len(parts) else None
    because = tuple(sorted([*blocked, *waiting], key=lambda one: (-one.vms, one.reason)))
    vms, slots = sum(one.vms for one in everybody) + given.away, sum(one.slots for one in everybody)
    if blocked:
        outlook = Outlook.NEVER
    elif waiting or rest_s is None:
        outlook = Outlook.UNKNOWN
    else:
        outlook = Outlook.UNDER_WAY if vms else Outlook.FULL
    return FullProtection(
        outlook=outlook,
        eta_s=rest_s if not because else None,
        rest_s=rest_s,
        vms=vms,
        slots=slots,
        exposed=sum(one.exposed for one in everybody) + given.away,
        because=because,
    )


def _in_turn(given: ProtectionInput) -> float | None:
    if given.turn is None:
        return 0.0
    like = given.passes or (given.usual_pass,)
    lasting = _lasting(given.turn.slots, like)
    return None if lasting is None else lasting - min(given.turn_s, sum(one.took_s for one in like) / len(like))


def _by_cycles(given: ProtectionInput, lacks: Sequence[Lack]) -> float | None:
    """Until cycles have given all these; ``None`` where the last ones gave nothing."""
    slots = sum(one.slots for one in lacks)
    if not slots:
        return 0.0
    lasting = _lasting(slots, given.cycles or (given.usual_cycle,))
    return None if lasting is None else given.next_cycle_s + lasting


def _after_landing(given: ProtectionInput) -> float | None:
    """Until those that are away are restarted, which may be late already, and have their slots."""
    if not given.away:
        return 0.0
    if given.away_s > OVERDUE_S:
        return 0.0
    landed = max(0.0, given.restart_s - given.away_s)
    then = _lasting(given.away, given.passes or (given.usual_pass,))
    return landed + (then if then is not None else given.next_cycle_s)


def _lasting(slots: int, like: Sequence[Pass]) -> float | None:
    """How long passes like these take to give so many slots, without the pause after the last; ``None``: for ever."""
    gave, count = sum(one.gave for one in like), len(like)
    if not gave:
        return None
    took_s = sum(one.took_s for one in like) / count
    pause_s = sum(one.pause_s for one in like) / count
    passes = math.ceil(slots * count / gave)
    return passes * took_s + (passes - 1) * pause_s


def _rounded(seconds: float | None) -> float:
    """Two digits at most, whole seconds: more would pretend to be known."""
    whole = max(1, math.ceil(seconds or 0.0))
    return float(whole if whole < 100 else round(whole, 1 - len(str(whole)) + 1))


def _reasons(because: Sequence[Lack]) -> str:
    shown = [
        f"{one.reason} ({count_of(one.vms, 'VM')}{f'; {one.remedy}' if one.remedy else ''})"
        for one in because[:REASONS_SHOWN]
    ]
    more = len(because) - REASONS_SHOWN
    return listing([*shown, *([f"{more} more reasons"] if more > 0 else [])])
