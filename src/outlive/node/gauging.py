"""Measures how well this host does, in passing: renewals, writes of the store, its disks, its hypervisor.

Nothing is asked for the sake of measuring but the kernel's own figure of the disks. Samples are kept for a few windows
and no longer; what is published changes only when the level, its causes or what becomes of the virtual machines change,
and the figures go with those that are published every interval anyway. A daemon that is started again goes on from
what was published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from outlive.base.clock import Clock, as_datetime
from outlive.node.decisions import SCORE_HOST
from outlive.node.degrading import becomes, remedy, slow
from outlive.node.leaving import WAITS, Answer
from outlive.node.membership.lease import Renewed
from outlive.node.ports.machine import MachinePort
from outlive.node.scoring import (
    BOUNDS,
    FULL,
    SINKING_BELOW,
    Gauged,
    PartScore,
    Sample,
    ScoreInput,
    Standing,
    middle,
    score_host,
    score_of,
)
from outlive.node.wishes import Wishes
from outlive.resources import Degrading, DegradingPolicy, ObjectRef
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.faults import FaultSet

SAMPLES_KEPT: Final = 512
"""Of each part."""
WINDOW_LEAST_S: Final = 5.0
WINDOW_MOST_S: Final = 600.0
REWRITE_S: Final = 30.0
"""Between two writes of which nothing but the causes differ."""
_LOW: Final = {
    part: bounds.good + (bounds.bad - bounds.good) * (FULL - SINKING_BELOW) / FULL for part, bounds in BOUNDS.items()
}
"""From such a value on a part may degrade, if many are like it."""


class Gauge:
    """See the module."""

    def __init__(
        self,
        machine: MachinePort,
        wishes: Wishes,
        *,
        host: str,
        clock: Clock,
        decisions: DecisionLog,
        faults: FaultSet,
    ) -> None:
        self.standing = Standing()
        self.together = 1
        """How many hosts have its trouble, as was last looked at."""
        self._machine = machine
        self._wishes = wishes
        self._host = host
        self._clock = clock
        self._decisions = decisions
        self._faults = faults
        self._samples: dict[Gauged, deque[tuple[float, float]]] = {part: deque(maxlen=SAMPLES_KEPT) for part in Gauged}
        """When, and how much."""
        self._low_s: float | None = None
        """When something was measured last that was not good."""
        self._parts: dict[Gauged, PartScore] = {}
        self._leaving: tuple[bool, str] = (False, Answer.UNSETTLED)
        self._told: Degrading | None = None
        self._told_s = 0.0
        self._adopted = False

    # Measuring

    def renewed(self, how: Renewed) -> None:
        """A renewal has ended: as good a moment as any to read what the kernel says of the disks."""
        self._add(Gauged.KEEPALIVE, how.took_s / max(how.pace_s, 1e-3))
        if how.swap_s is not None:
            self._add(Gauged.STORE, how.swap_s)
        stall = self._machine.disk_stall()
        if stall is not None:
            self._add(Gauged.DISK, stall)

    def looked(self, took_s: float) -> None:
        """The hypervisor has listed its domains."""
        self._add(Gauged.HYPERVISOR, took_s)

    def _add(self, part: Gauged, value: float) -> None:
        now = self._clock.monotonic()
        self._samples[part].append((now, value))
        if value > _LOW[part]:
            self._low_s = now

    # What others ask

    @property
    def policy(self) -> DegradingPolicy:
        """Of the cluster."""
        return self._wishes.cluster_spec.degrading

    @property
    def degrading_for_s(self) -> float | None:
        """Since when it degrades; ``None``: it does well."""
        if self.standing.level == "well":
            return None
        return max(0.0, self._clock.monotonic() - float(self.standing.since))

    @property
    def told(self) -> Degrading | None:
        """What is to be published of it."""
        return self._told

    def figures(self) -> tuple[dict[str, int], dict[str, float]]:
        """Score and slope of each part that was measured within the window."""
        if self.policy.action == "off":
            return {}, {}
        now, window_s = self._clock.monotonic(), self._window_s
        if self._calm(now, window_s):
            present = {
                part: [value for at, value in kept if at > now - window_s] for part, kept in self._samples.items()
            }
            return {part.value: _middle(part, some) for part, some in present.items() if some}, {}
        parts = score_host(self._input(now)).parts
        return (
            {part.value: one.score for part, one in parts.items()},
            {part.value: one.slope for part, one in parts.items() if one.slope},
        )

    # Looking

    async def look(self) -> bool:
        """Score the host, and tell people; whether what is published changes."""
        if self.policy.action == "off":
            self.standing, self._parts = Standing(), {}
        else:
            self._adopt()
            self._score()
        changed = self._tell()
        self._report()
        return changed

    def leave(self, *, go: bool, why: str = "") -> bool:
        """What becomes of the virtual machines; whether that changes what is published."""
        self._leaving = (go, why)
        return self._tell()

    def _adopt(self) -> None:
        """Go on from what the daemon before this one has published."""
        found = self._wishes.hypervisor
        if self._adopted or found is None:
            return
        self._adopted = True
        published = found.status.degrading
        if published is not None and self.standing.level == "well":
            now = self._clock.monotonic()
            causes = tuple(Gauged(one) for one in published.causes if one in set(Gauged))
            self.standing = Standing(level="degrading", since=now, bad_at=now, causes=causes)
            self._told = published

    def _score(self) -> None:
        now = self._clock.monotonic()
        if self.standing.level == "well" and self._calm(now, self._window_s):
            return
        result = self._decisions.use(SCORE_HOST, self._input(now), subject=self._host)
        if result.standing.level != self.standing.level:
            self._leaving = (False, Answer.UNSETTLED)
        self.standing, self._parts = result.standing, result.parts

    def _calm(self, now: float, window_s: float) -> bool:
        """Whether nothing was measured over the window of which a host could degrade."""
        return self._low_s is None or now - self._low_s >= window_s

    def _input(self, now: float) -> ScoreInput:
        window_s = self._window_s
        return ScoreInput(
            now=now,
            window=window_s,
            quiet=max(self.policy.quiet_s, window_s),
            samples={
                part: tuple(Sample(at, max(0.0, value)) for at, value in kept if at > now - window_s)
                for part, kept in self._samples.items()
                if kept
            },
            before=self.standing,
        )

    @property
    def _window_s(self) -> float:
        return min(max(self.policy.window_s, WINDOW_LEAST_S), WINDOW_MOST_S)

    # Telling

    def _tell(self) -> bool:
        before = self._told
        if self.standing.level == "well":
            self._told = None
            return before is not None
        now = self._clock.monotonic()
        go, why = self._leaving
        leaving = ("leaves" if go else "waits" if why in WAITS else "stays", "" if go else str(why))
        causes = tuple(part.value for part in self.standing.causes)
        same = before is not None and (before.leaving, before.why) == leaving
        if same and before is not None and (before.causes == causes or now - self._told_s < REWRITE_S):
            return False
        scores = [self._parts[part].score for part in self.standing.causes if part in self._parts]
        self._told_s = now
        self._told = Degrading(
            since=before.since if before is not None else as_datetime(self._clock.now()),
            causes=causes,
            score=min(scores, default=0),
            leaving=leaving[0],  # type: ignore[arg-type]
            why=leaving[1],
        )
        return True

    def _report(self) -> None:
        subject, now = ObjectRef(kind="Hypervisor", name=self._host), self._told
        if now is None:
            self._faults.clear(FaultCode.HOST_DEGRADING, subject)
            return
        self._faults.activate(
            FaultCode.HOST_DEGRADING,
            subject,
            causes=slow(now.causes),
            vms=becomes(now),
            remedy=remedy(self._host, now, together=self.together),
        )


def _middle(part: Gauged, values: Sequence[float]) -> int:
    return round(middle([score_of(part, value) for value in values]))
