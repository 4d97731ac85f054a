"""When everybody has all slots again: a forecast from what is missing, what keeps it missing, and the measured pace.

After a failure many VMs miss slots at once, and an operator wants to know until when the next failure would hurt. What
is missing falls into four parts: what is given as soon as it is its turn; what a cycle has to give; VMs that first have
to be restarted elsewhere; and what nothing gives as things are. The last makes the answer *never*, with what would
help. For the others the last passes give the pace (docs/design/failover.md#full-protection).

It is a forecast and promises nothing: another failure, slower writes or a change of the hosts make it wrong.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from outlive.base import Clock, as_datetime, count_of, format_duration, join_parts
from outlive.resources import CoverageStatus
from outlive.resources.reasons import AllocationFault, CoverageReason

RESTART_S = 10.0
"""How long restarting a VM is taken to last after the proof, before one was seen."""
OVERDUE_S = 60.0
"""A VM that is restarted for longer than this waits for something that no pace predicts."""
REASONS_SHOWN = 3
"""Reasons that a sentence names."""

BY_ITSELF = frozenset(
    {
        *(CoverageReason.WAITING, CoverageReason.ONE_PER_HOST, CoverageReason.MEMBERSHIPS_CLASH),
        *(AllocationFault.ELSEWHERE, AllocationFault.NOT_READY, AllocationFault.NOT_ALLOWED, AllocationFault.TOO_SMALL),
    }
)
"""Reasons that end with the next cycles; every other one stays until somebody does something."""
UNANSWERED = frozenset({CoverageReason.PLACEMENT_UNAVAILABLE})
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
        rest = f"; the others in about {format_duration(_round_duration(self.rest_s))}" if self.rest_s else ""
        match self.outlook:
            case Outlook.UNDER_WAY:
                return f"in about {format_duration(_round_duration(self.eta_s))}: {missing}"
            case Outlook.NEVER:
                return f"never as things are, because of {_render_reasons(self.because)}{rest}: {missing}"
            case _:
                return f"nobody knows when, because of {_render_reasons(self.because)}{rest}: {missing}"


def full_protection(given: ProtectionInput) -> FullProtection:
    """The forecast; see the module."""
    everybody = [*given.lacks, *([given.turn] if given.turn is not None else [])]
    blocked = [one for one in given.lacks if one.reason not in BY_ITSELF and one.reason not in UNANSWERED]
    waiting = [one for one in given.lacks if one.reason in UNANSWERED]
    own = [one for one in given.lacks if one.reason in BY_ITSELF]
    if given.away and given.away_s > OVERDUE_S:
        remedy = "`outlive status` tells which VMs wait for what"
        waiting.append(Lack(reason="not-restarted", vms=given.away, slots=0, exposed=given.away, remedy=remedy))
    parts = [_estimate_turn(given), _estimate_cycles(given, own), _estimate_landing(given)]
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


def _estimate_turn(given: ProtectionInput) -> float | None:
    if given.turn is None:
        return 0.0
    like = given.passes or (given.usual_pass,)
    lasting = _estimate_duration(given.turn.slots, like)
    return None if lasting is None else lasting - min(given.turn_s, sum(one.took_s for one in like) / len(like))


def _estimate_cycles(given: ProtectionInput, lacks: Sequence[Lack]) -> float | None:
    """Until cycles have given all these; ``None`` where the last ones gave nothing."""
    slots = sum(one.slots for one in lacks)
    if not slots:
        return 0.0
    lasting = _estimate_duration(slots, given.cycles or (given.usual_cycle,))
    return None if lasting is None else given.next_cycle_s + lasting


def _estimate_landing(given: ProtectionInput) -> float | None:
    """Until those that are away are restarted, which may be late already, and have their slots."""
    if not given.away:
        return 0.0
    if given.away_s > OVERDUE_S:
        return 0.0
    landed = max(0.0, given.restart_s - given.away_s)
    then = _estimate_duration(given.away, given.passes or (given.usual_pass,))
    return landed + (then if then is not None else given.next_cycle_s)


def _estimate_duration(slots: int, like: Sequence[Pass]) -> float | None:
    """How long passes like these take to give so many slots, without the pause after the last; ``None``: for ever."""
    gave, count = sum(one.gave for one in like), len(like)
    if not gave:
        return None
    took_s = sum(one.took_s for one in like) / count
    pause_s = sum(one.pause_s for one in like) / count
    passes = math.ceil(slots * count / gave)
    return passes * took_s + (passes - 1) * pause_s


def _round_duration(seconds: float | None) -> float:
    """Two digits at most, whole seconds: more would pretend to be known."""
    whole = max(1, math.ceil(seconds or 0.0))
    return float(whole if whole < 100 else round(whole, 1 - len(str(whole)) + 1))


def _render_reasons(because: Sequence[Lack]) -> str:
    if not because:
        return "passes that gave nothing"
    shown = [
        f"{one.reason} ({count_of(one.vms, 'VM')}{f'; {one.remedy}' if one.remedy else ''})"
        for one in because[:REASONS_SHOWN]
    ]
    more = len(because) - REASONS_SHOWN
    return join_parts([*shown, *([f"{more} more reasons"] if more > 0 else [])])


PASSES_KEPT = 5
"""The last passes, cycles and restarts that give the pace."""
REPORTED_AFTER_S = 10.0
"""An event reports a forecast anew when the time it names is off by this, and by half of what is left."""


class _Missing(NamedTuple):
    """One VM that misses slots."""

    slots: int
    exposed: bool
    """It has none at all."""
    reason: str
    in_turn: bool = False
    """Upkeep looks at it in one of its next passes."""


class _Sums:
    """What is missing, counted by kind as VMs come and go: no question looks at every VM."""

    def __init__(self) -> None:
        self._of: dict[str, _Missing] = {}
        self._counts = Counter[_Missing]()
        self._remedies: dict[str, str] = {}

    def put(self, vm: str, missing: _Missing | None, remedy: str = "") -> None:
        before = self._of.pop(vm, None)
        if before is not None:
            self._counts[before] -= 1
        if missing is not None:
            self._of[vm] = missing
            self._counts[missing] += 1
            if remedy:
                self._remedies[missing.reason] = remedy

    def list_lacks(self, *, in_turn: bool, but: Iterable[str] = ()) -> tuple[Lack, ...]:
        """By reason, without the VMs ``but``."""
        left = self._counts - Counter(self._of[vm] for vm in but if vm in self._of)
        sums: dict[str, Counter[str]] = {}
        for one, vms in left.items():
            if one.in_turn == in_turn:
                found = sums.setdefault(one.reason, Counter())
                found.update(vms=vms, slots=vms * one.slots, exposed=vms * one.exposed)
        return tuple(
            Lack(reason=reason, remedy=self._remedies.get(reason, ""), **found)
            for reason, found in sorted(sums.items())
        )

    def is_in_turn(self, vm: str) -> bool:
        """Whether upkeep has not come to this VM."""
        one = self._of.get(vm)
        return one is not None and one.in_turn

    def end_turns(self) -> None:
        """Upkeep has come to everybody: what is still missing is up to cycles."""
        for vm in [vm for vm, one in self._of.items() if one.in_turn]:
            self.put(vm, self._of[vm]._replace(in_turn=False))


class _Pace:
    """The last passes of one kind, and what one is taken to be before any was seen."""

    def __init__(self, usual: Pass) -> None:
        self.usual = usual
        self.last: deque[Pass] = deque(maxlen=PASSES_KEPT)
        self.over = False
        """Nothing was left to give: the next pass is of another occasion, whose pace may be another."""

    def add(self, gave: int, took_s: float, pause_s: float) -> None:
        """One more that left something missing."""
        if self.over:
            self.last.clear()
        self.over = False
        self.last.append(Pass(gave=gave, took_s=took_s, pause_s=pause_s))


class Forecast:
    """See the module."""

    def __init__(
        self, clock: Clock, report: Callable[[FullProtection, str], None], *, usual_pass: Pass, usual_cycle: Pass
    ) -> None:
        """``report`` gets each forecast that says something else than the one before.

        ``usual_…``: what a pass is taken to give, and how fast, before one was seen.
        """
        self._clock = clock
        self._report = report
        self._passes, self._cycles = _Pace(usual_pass), _Pace(usual_cycle)
        self._sums = _Sums()
        self._asked: set[str] = set()
        self._away: dict[str, float] = {}
        self._restarts_s: deque[float] = deque(maxlen=PASSES_KEPT)
        self._pass_began = self._next_cycle = 0.0
        self._looked = False
        self._reported: FullProtection | None = None
        self._reported_end = 0.0

    def forget(self) -> None:
        """This process has not led: what it knows may be out of date."""
        self._sums = _Sums()
        self._asked.clear()
        self._away.clear()
        self._looked = False
        self._reported = None

    # What passes find

    def record_statuses(self, statuses: Mapping[str, CoverageStatus], gone: Collection[str] = ()) -> None:
        """This is true of these VMs now; ``gone`` are not there any more."""
        for vm in gone:
            self._sums.put(vm, None)
        for vm, status in statuses.items():
            if status.covered or status.required <= 0:
                self._sums.put(vm, None)
                continue
            slots = max(1, status.required - len(status.slots))
            missing = _Missing(slots=slots, exposed=not status.slots, reason=status.reason)
            if status.reason in BY_ITSELF and self._sums.is_in_turn(vm):
                missing = missing._replace(reason=CoverageReason.WAITING, in_turn=True)
            self._sums.put(vm, missing, status.remedy)

    def set_waiting(
        self, waiting: Sequence[str], missing: Callable[[Iterable[str]], list[tuple[str, int, bool]]]
    ) -> None:
        """Upkeep has not come to these yet; ``missing`` says which of them miss slots, how many, and who has none."""
        if not waiting:
            if self._asked:
                self._asked.clear()
                self._passes.over = True
                self._sums.end_turns()
            return
        self._pass_began = self._clock.monotonic()
        new = [vm for vm in waiting if vm not in self._asked]
        self._asked.update(new)
        for vm, slots, exposed in missing(new):
            self._sums.put(vm, _Missing(slots=slots, exposed=exposed, reason=CoverageReason.WAITING, in_turn=True))

    def set_restarting(self, vms: Iterable[str]) -> None:
        """Exactly these have to be restarted elsewhere; those that no longer have to show how long it takes."""
        now = self._clock.monotonic()
        there = dict.fromkeys(vms, now)
        self._restarts_s.extend(now - since for vm, since in self._away.items() if vm not in there)
        self._away = {vm: self._away.get(vm, now) for vm in there}

    def record_pass(self, gave: int, took_s: float, pause_s: float) -> None:
        """A pass of upkeep ended; the next one begins when the pause is over."""
        self._pass_began = self._clock.monotonic() + pause_s
        if self._sums.list_lacks(in_turn=True):
            self._passes.add(gave, took_s, pause_s)
        self._report_changes()

    def expect_cycle(self, in_s: float) -> None:
        """The next cycle begins earlier than was said, because it has to give most VMs their slots."""
        self._next_cycle = min(self._next_cycle, self._clock.monotonic() + in_s)

    def record_cycle(self, gave: int, took_s: float, pause_s: float) -> None:
        """A cycle ended; everybody has been looked at."""
        self._looked = True
        self._next_cycle = self._clock.monotonic() + pause_s
        if any(one.reason in BY_ITSELF for one in self._sums.list_lacks(in_turn=False, but=self._away)):
            self._cycles.add(gave, took_s, pause_s)
        else:
            self._cycles.over = True
        self._report_changes()

    # What is to be expected

    def current_forecast(self) -> FullProtection | None:
        """The forecast as of now; ``None`` before the first cycle of a process that leads."""
        if not self._looked:
            return None
        now, restarts = self._clock.monotonic(), self._restarts_s
        turn = self._sums.list_lacks(in_turn=True, but=self._away)
        given = ProtectionInput(
            turn=turn[0] if turn else None,
            turn_s=max(0.0, now - self._pass_began),
            lacks=self._sums.list_lacks(in_turn=False, but=self._away),
            away=len(self._away),
            away_s=now - min(self._away.values(), default=now),
            restart_s=sum(restarts) / len(restarts) if restarts else RESTART_S,
            passes=tuple(self._passes.last),
            usual_pass=self._passes.usual,
            cycles=tuple(self._cycles.last),
            usual_cycle=self._cycles.usual,
            next_cycle_s=max(0.0, self._next_cycle - now),
        )
        return full_protection(given)

    def _report_changes(self) -> None:
        found = self.current_forecast()
        if found is None:
            return
        before, end = self._reported, self._clock.now() + (found.eta_s or 0.0)
        shift_s = abs(end - self._reported_end) if found.outlook is Outlook.UNDER_WAY else 0.0
        same = before is not None and _comparison_key(before) == _comparison_key(found)
        if same and shift_s <= max(REPORTED_AFTER_S, (found.eta_s or 0.0) / 2):
            return
        self._reported, self._reported_end = found, end
        if before is None and found.outlook is Outlook.FULL:
            return  # nothing was missing before, as far as this process knows
        at = f"; expected at {as_datetime(end):%H:%M:%S} UTC" if found.outlook is Outlook.UNDER_WAY else ""
        self._report(found, f"{found.sentence}{at}")


def _comparison_key(found: FullProtection) -> tuple[Outlook, tuple[str, ...]]:
    return found.outlook, tuple(one.reason for one in found.because)
