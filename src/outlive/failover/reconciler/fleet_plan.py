"""Plans of the whole fleet: for everybody who misses slots at once, anew where single steps got nowhere, and repacking.

They are long searches, so planning anew is tried seldom while it changes nothing: after each try in vain the next waits
twice as many ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from outlive.base.logging import get_logger
from outlive.failover.planner.actions import Leave
from outlive.failover.reconciler.apply import Changes, Outcome
from outlive.failover.reconciler.context import Context
from outlive.failover.reconciler.decider import PLAN, REPACK, REPLAN
from outlive.failover.reconciler.inputs import Inputs
from outlive.failover.reconciler.plan_writes import actions_of
from outlive.failover.reconciler.report import CoverageReport
from outlive.resources.reasons.coverage import CoverageReason

PLANNED_ANEW: Final = frozenset({CoverageReason.RULES, CoverageReason.NO_CAPACITY, CoverageReason.REFUSED})
"""Reasons that planning anew may do away with."""
SEARCHED_VMS: Final = 20_000
"""Larger fleets are neither repacked nor planned anew for the sake of a few VMs."""
MOST_TICKS: Final = 32
"""From one try in vain to the next."""


_log = get_logger("failover.fleet_plan")


class Ground(NamedTuple):
    """What a plan rests on, as far as another may succeed on other ground."""

    revision: int
    """Of the cache."""
    missing: int
    """Slots that VMs miss, together."""
    hosts: frozenset[str]
    """Those where slots can be used."""
    free: tuple[int, ...]
    """What hosts have free together, by resource."""

    def offers_more_than(self, other: Ground) -> bool:
        """Whether more is missing, a host is there that was not, or more is free."""
        freer = any(now > then for now, then in zip(self.free, other.free, strict=True))
        return self.missing > other.missing or not self.hosts <= other.hosts or freer

    def beside(self, other: Ground) -> Ground:
        """With the higher of each figure."""
        free = tuple(map(max, self.free, other.free))
        return self._replace(missing=max(self.missing, other.missing), free=free)


class Attempts:
    """Remembers what was tried in vain since the last success."""

    def __init__(self) -> None:
        self._last: Ground | None = None
        self._most: Ground | None = None
        """The highest figures with which it was in vain."""
        self._wait = 0
        self._next = 0

    def is_due(self, tick: int, now: Ground) -> bool:
        """Whether this tick is to try. On the very same ground it never is."""
        if self._most is None or now.offers_more_than(self._most):
            return True
        return tick >= self._next and now != self._last

    def in_vain(self, tick: int, ground: Ground) -> None:
        """It was tried on this ground, and nothing changed."""
        begins = self._most is None or ground.offers_more_than(self._most)
        self._wait = 2 if begins else min(2 * self._wait, MOST_TICKS)
        self._next = tick + self._wait
        self._last, self._most = ground, ground if self._most is None else ground.beside(self._most)

    def forget(self) -> None:
        """It succeeded, or nobody misses anything."""
        self._last = self._most = None


class FleetPlanner:
    """Plans for everybody together."""

    def __init__(self, context: Context, inputs: Inputs, changes: Changes, report: CoverageReport) -> None:
        self._context = context
        self._cache = context.cache
        self._inputs = inputs
        self._changes = changes
        self._report = report
        self.attempts = Attempts()
        """At planning anew."""
        self._packed: int | None = None
        """The revision of the cache at which repacking found nothing to do."""

    def is_due(self, tick: int) -> bool:
        """Whether this tick is to try."""
        return self.attempts.is_due(tick, self._ground())

    async def plan(self, tick: int, missing: Collection[str]) -> Outcome:
        """Plan for everybody together, as a first plan does; slots that are there are planned anew where that helps."""
        context, cache = self._context, self._cache
        anew = bool(cache.slots)
        requests = {vm: context.ids.uuid() for vm in sorted(missing)}
        given = await self._inputs.plan(missing, requests)
        ground = self._ground()
        answer = await context.decider.decide(REPLAN if anew else PLAN, given)
        if any(isinstance(action, Leave) for action in answer.actions):
            outcome = await self._changes.switch(answer.actions, requests)
        else:
            outcome = await self._changes.assign(answer.actions, requests)
        if outcome.reused or outcome.created:
            self.attempts.forget()
        else:
            self.attempts.in_vain(tick, ground)
        _log.info("plan.done", missing=answer.missing, created=outcome.created, reused=outcome.reused)
        self._report.note_fails(requests.keys() - outcome.left.keys(), outcome.fails)
        return outcome

    def may_help(self, tick: int, outcome: Outcome) -> bool:
        """Whether somebody got nothing beside the slots that are there, and planning these anew might help."""
        cache = self._cache
        stuck = [vm for vm, fail in outcome.fails.items() if fail.reason in PLANNED_ANEW and vm in cache.vms]
        allowed = self._context.config.repack.max_changes_per_cycle > 0 and len(cache.vms) <= SEARCHED_VMS
        if not stuck or not allowed or not cache.slots:
            return False
        ground = self._ground()
        return self.attempts.is_due(tick, ground) and self._has_units(stuck, ground.hosts)

    def _has_units(self, vms: Iterable[str], hosts: Iterable[str]) -> bool:
        """Whether these hosts have units of failure for one more slot of any of the VMs, each in one of its own."""
        cache, topology = self._cache, self._cache.topology()
        units = set(map(topology.unit, hosts))
        return any(
            len(units - {topology.unit(cache.vms[vm].host)}) > cache.required(cache.vms[vm]) - cache.index.misses(vm)
            for vm in vms
        )

    def _ground(self) -> Ground:
        """What a plan of the whole fleet rests on."""
        cache = self._cache
        return Ground(
            revision=cache.revision,
            missing=sum(cache.index.missing().values()),
            hosts=frozenset(cache.locations.names - cache.locations.closed.keys()),
            free=tuple(self._context.free().amounts.sum(axis=0).tolist()),
        )

    async def repack(self, tick: int) -> None:
        """Empty slots into others, as far as the settings allow; only while nobody misses anything."""
        cache, limit = self._cache, self._context.config.repack.max_changes_per_cycle
        if limit <= 0 or not 0 < len(cache.vms) <= SEARCHED_VMS or not cache.slots or self._packed == cache.revision:
            return
        revision = cache.revision
        given = await self._inputs.repack(limit=limit, seed=tick)
        result = await self._context.decider.decide(REPACK, given)
        outcome = await self._changes.switch(actions_of(result.actions, cache.slots), {})
        self._packed = revision if not result.actions else None
        _log.info("repack.done", cycle=tick, moves=outcome.reused)
