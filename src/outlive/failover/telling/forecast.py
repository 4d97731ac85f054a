"""Who misses slots right now, and how fast passes give them: what the forecast of full protection is made from.

Fed by whatever tells coverage and by the passes themselves, so that it costs what they touch. It is as current as the
last pass; a process that does not lead knows nothing and says so (docs/reference/failover.md#full-protection).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from outlive.base.clock import Clock, as_datetime
from outlive.failover.assurance.full_protection import (
    BY_ITSELF,
    RESTART_S,
    FullProtection,
    Lack,
    Outlook,
    Pass,
    ProtectionInput,
    full_protection,
)
from outlive.failover.planning.reasons import Reason
from outlive.resources import CoverageStatus

PASSES_KEPT = 5
"""The last passes, cycles and restarts that tell the pace."""
RETOLD_AFTER_S = 10.0
"""An event tells a forecast anew when the time it names is off by this, and by half of what is left."""


class _Missing(NamedTuple):
    """One VM that misses slots."""

    slots: int
    exposed: bool
    """It has none at all."""
    reason: str
    in_turn: bool = False
    """Upkeep looks at it in one of its next passes."""


class _Sums:
    """What is missing, added up by reason, as VMs come and go: no question looks at every VM."""

    def __init__(self) -> None:
        self._of: dict[str, _Missing] = {}
        self._sums: dict[tuple[bool, str], list[int]] = {}
        self._remedies: dict[str, str] = {}

    def put(self, vm: str, missing: _Missing | None, remedy: str = "") -> None:
        """The VM misses this now, or nothing."""
        before = self._of.pop(vm, None)
        if before is not None:
            self._add(before, -1)
        if missing is not None:
            self._of[vm] = missing
            self._add(missing, 1)
            if remedy:
                self._remedies[missing.reason] = remedy

    def lacks(self, *, in_turn: bool, but: Iterable[str] = ()) -> tuple[Lack, ...]:
        """By reason, without the VMs ``but``."""
        sums = {reason: list(sums) for (turn, reason), sums in self._sums.items() if turn == in_turn}
        for vm in but:
            one = self._of.get(vm)
            if one is not None and one.in_turn == in_turn:
                _count(sums[one.reason], one, -1)
        return tuple(
            Lack(reason=reason, vms=vms, slots=slots, exposed=exposed, remedy=self._remedies.get(reason, ""))
            for reason, (vms, slots, exposed) in sorted(sums.items())
            if vms
        )

    def is_in_turn(self, vm: str) -> bool:
        """Whether upkeep has not come to this VM."""
        one = self._of.get(vm)
        return one is not None and one.in_turn

    def end_turns(self) -> None:
        """Upkeep has come to everybody: what is still missing is up to cycles."""
        for vm in [vm for vm, one in self._of.items() if one.in_turn]:
            self.put(vm, self._of[vm]._replace(in_turn=False))

    def _add(self, one: _Missing, sign: int) -> None:
        _count(self._sums.setdefault((one.in_turn, one.reason), [0, 0, 0]), one, sign)


def _count(sums: list[int], one: _Missing, sign: int) -> None:
    for place, number in enumerate((1, one.slots, int(one.exposed))):
        sums[place] += sign * number


class Forecast:
    """See the module. ``tell`` is called with each forecast that says something else than the one before."""

    def __init__(self, clock: Clock, *, usual_pass: Pass, usual_cycle: Pass) -> None:
        """``usual_…``: what a pass is taken to give, and how fast, before one was seen."""
        self._clock = clock
        self._usual_pass, self._usual_cycle = usual_pass, usual_cycle
        self._sums = _Sums()
        self._asked: set[str] = set()
        self._away: dict[str, float] = {}
        self._passes: deque[Pass] = deque(maxlen=PASSES_KEPT)
        self._cycles: deque[Pass] = deque(maxlen=PASSES_KEPT)
        self._restarts_s: deque[float] = deque(maxlen=PASSES_KEPT)
        self._passes_over = self._cycles_over = False
        """Nothing was left to give: the next pass is of another occasion, whose pace may be another."""
        self._pass_began = self._next_cycle = 0.0
        self._looked = False
        self._told: FullProtection | None = None
        self._told_due = 0.0
        self.tell: Callable[[FullProtection, str], None] = lambda found, note: None

    def forget(self) -> None:
        """This process has not led: what it knows may be out of date."""
        self._sums = _Sums()
        self._asked.clear()
        self._away.clear()
        self._looked = False
        self._told = None

    # What passes find

    def told(self, statuses: Mapping[str, CoverageStatus], gone: Collection[str] = ()) -> None:
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
                missing = missing._replace(reason=Reason.WAITING, in_turn=True)  # it is told again after its turn
            self._sums.put(vm, missing, status.remedy)

    def in_turn(self, waiting: Sequence[str], missing: Callable[[Iterable[str]], list[tuple[str, int, bool]]]) -> None:
        """Upkeep has not come to these yet; ``missing`` tells which of them miss slots, how many, and who has none."""
        if not waiting:
            if self._asked:
                self._asked.clear()
                self._passes_over = True
                self._sums.end_turns()
            return
        self._pass_began = self._clock.monotonic()
        new = [vm for vm in waiting if vm not in self._asked]
        self._asked.update(new)
        for vm, slots, exposed in missing(new):
            self._sums.put(vm, _Missing(slots=slots, exposed=exposed, reason=Reason.WAITING, in_turn=True))

    def away(self, vms: Iterable[str]) -> None:
        """Exactly these have to be restarted elsewhere; those that no longer have to tell how long it takes."""
        now = self._clock.monotonic()
        there = dict.fromkeys(vms, now)
        self._restarts_s.extend(now - since for vm, since in self._away.items() if vm not in there)
        self._away = {vm: self._away.get(vm, now) for vm in there}

    def passed(self, gave: int, took_s: float, pause_s: float) -> None:
        """A pass of upkeep ended; the next one begins when the pause is over."""
        self._pass_began = self._clock.monotonic() + pause_s
        if self._sums.lacks(in_turn=True):
            if self._passes_over:
                self._passes.clear()
            self._passes_over = False
            self._passes.append(Pass(gave=gave, took_s=took_s, pause_s=pause_s))
        self._tell()

    def cycled(self, gave: int, took_s: float, pause_s: float) -> None:
        """A cycle ended; everybody has been looked at."""
        self._looked = True
        self._next_cycle = self._clock.monotonic() + pause_s
        if any(one.reason in BY_ITSELF for one in self._sums.lacks(in_turn=False, but=self._away)):
            if self._cycles_over:
                self._cycles.clear()
            self._cycles_over = False
            self._cycles.append(Pass(gave=gave, took_s=took_s, pause_s=pause_s))
        else:
            self._cycles_over = True
        self._tell()

    # What is to be expected

    def now(self) -> FullProtection | None:
        """The forecast as of now; ``None`` before the first cycle of a process that leads."""
        return full_protection(self.given()) if self._looked else None

    def given(self) -> ProtectionInput:
        """What the forecast is made from."""
        now, restarts = self._clock.monotonic(), self._restarts_s
        turn = self._sums.lacks(in_turn=True, but=self._away)
        return ProtectionInput(
            turn=turn[0] if turn else None,
            turn_s=max(0.0, now - self._pass_began),
            lacks=self._sums.lacks(in_turn=False, but=self._away),
            away=len(self._away),
            away_s=now - min(self._away.values(), default=now),
            restart_s=sum(restarts) / len(restarts) if restarts else RESTART_S,
            passes=tuple(self._passes),
            usual_pass=self._usual_pass,
            cycles=tuple(self._cycles),
            usual_cycle=self._usual_cycle,
            next_cycle_s=max(0.0, self._next_cycle - now),
        )

    def _tell(self) -> None:
        found = self.now()
        if found is None:
            return
        before, due = self._told, self._clock.now() + (found.eta_s or 0.0)
        shift_s = abs(due - self._told_due) if found.outlook is Outlook.UNDER_WAY else 0.0
        same = before is not None and _essence(before) == _essence(found)
        if same and shift_s <= max(RETOLD_AFTER_S, (found.eta_s or 0.0) / 2):
            return
        self._told, self._told_due = found, due
        if before is None and found.outlook is Outlook.FULL:
            return  # nothing was missing before, as far as this process knows
        at = f"; expected at {as_datetime(due):%H:%M:%S} UTC" if found.outlook is Outlook.UNDER_WAY else ""
        self.tell(found, f"{found.sentence}{at}")


def _essence(found: FullProtection) -> tuple[Outlook, tuple[str, ...]]:
    return found.outlook, tuple(one.reason for one in found.because)
