"""Gathers what ``fence.looks`` looks at: objectives of a host's VMs, and since when its guard and power are known good.

The host's daemon reports the shortest objective of its VMs. A guard is found good by every renewal that says it is
armed, because the daemon asks it before each; a power controller by every reading of this very fencer. What turned out
wrong for the host before, or is being worked on, is not good (docs/concepts/safety.md#deadlines).
"""

from __future__ import annotations

from outlive.base.clock import Clock
from outlive.node.decisions import FENCE_LOOKS
from outlive.node.fencing.deadlines import Looks, LooksInput, LooksResult, too_slow
from outlive.node.fencing.rehearsing import Rehearsals
from outlive.node.fencing.rules import Rules
from outlive.node.fencing.watching import Seen, Watching
from outlive.resources import Hypervisor
from outlive.resources.maintenance import power_maintenance
from outlive.runtime.decisions import DecisionLog


class Hastening:
    """See the module."""

    def __init__(self, rules: Rules, rehearsals: Rehearsals, clock: Clock, decisions: DecisionLog) -> None:
        self._rules = rules
        self._rehearsals = rehearsals
        self._clock = clock
        self._decisions = decisions

    def looks(self, host: str, seen: Seen) -> LooksResult:
        """How often the host is looked at before it is condemned, as of now."""
        profile, hypervisor = self._rules.profile(host, seen.record), self._rules.settings(host).hypervisor
        objective_s = None if hypervisor is None else hypervisor.status.recovery_time_objective_s
        if hypervisor is None or objective_s is None:
            return LooksResult(throws=profile.throws, throw_s=profile.throw_s, reason=Looks.NO_OBJECTIVE)
        given = LooksInput(
            silence_s=self._rules.silence_s(host, seen),
            throws=profile.throws,
            throw_s=profile.throw_s,
            objective_s=max(0.0, objective_s),
            guard_s=self._guard_s(seen),
            power_s=self._power_s(hypervisor, seen),
        )
        return self._decisions.use(FENCE_LOOKS, given, subject=host)

    def _guard_s(self, seen: Seen) -> float | None:
        if not seen.record.guard.armed or "watchdog" in seen.record.distrusted:
            return None
        return self._clock.monotonic() - seen.since

    def _power_s(self, hypervisor: Hypervisor, seen: Seen) -> float | None:
        fencing = hypervisor.spec.fencing
        if not fencing.driver or "power" in seen.record.distrusted or power_maintenance(fencing, self._clock.now()):
            return None
        return self._rehearsals.good_s(hypervisor.name)


def is_strict(rules: Rules, watching: Watching, hypervisor: Hypervisor) -> bool:
    """Whether the host's VMs have an objective for which its usual looks take too long."""
    objective_s, seen = hypervisor.status.recovery_time_objective_s, watching.get(hypervisor.name)
    if objective_s is None or seen is None:
        return False
    profile = rules.profile(hypervisor.name, seen.record)
    return too_slow(profile.silence_s, profile.throws, profile.throw_s, objective_s)
