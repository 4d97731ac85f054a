"""What VMs get that miss slots, one by one and in plans of the whole fleet, and repacking.

A whole plan is made for all VMs that miss slots at once, or anew if single steps found nothing. Such plans are long
searches, so planning anew is tried seldom while it changes nothing: after each try in vain the next waits twice as
many ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from outlive.base import get_logger
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Claim, Fail, Join, Leave, Need, Open, PlacementOffer
from outlive.failover.planner.assign import AssignInput, result_of
from outlive.failover.planner.greedy import Greedy
from outlive.failover.reconciler.apply import ApplyOutcome, SlotChangeWriter
from outlive.failover.reconciler.cache import FleetCache
from outlive.failover.reconciler.context import PLAN, REPACK, REPLAN, Context, Decider
from outlive.failover.reconciler.coverage import CoverageReport
from outlive.failover.reconciler.inputs import KEY_PREFIX, Inputs, Terms
from outlive.failover.reconciler.writes import actions_of
from outlive.resources.reasons import CoverageReason

# What VMs that miss slots are given, decided on the living index: tried there, recorded, and rolled back.
#
# The same rules as in a plan, on an index that follows along, so that an event costs what it touches. Each decision
# is recorded with what it rests on: the VM, its slots, those that it joins, and the offers that it takes; on that
# input ``failover.assign`` gives the same answer. Of VMs that got nothing the first of each class is recorded, with
# the whole offer.


class Assigner:
    """Decides about VMs that miss slots."""

    def __init__(self, cache: FleetCache, decider: Decider) -> None:
        self._cache = cache
        self._decider = decider
        self._greedy: Greedy | None = None

    def assign(self, missing: Sequence[Claim], terms: Terms) -> list[Action]:
        """What each of these gets, in this order, each beside those before it; the index stays as it is."""
        index, offers = self._cache.index, terms.offers
        if terms.limit_new or terms.closed:
            greedy = Greedy(index, reuse={}, new={}, free={}, one_new_per_host=terms.limit_new)
            greedy.close(terms.closed)
        else:  # the usual one is used again, because it remembers much about hosts
            if self._greedy is None or self._greedy.fleet is not index:
                self._greedy = Greedy(index, reuse={}, new={}, free={})
            greedy = self._greedy
        greedy.renew(reuse=offers.reuse, new=offers.new, free=terms.free, hosts=self._cache.locations.names)
        greedy.mark_new(terms.used)
        greedy.expect(one.need for one in missing)
        record = _Record(self._cache, self._decider, terms)
        actions: list[Action] = []
        with index.begin_trial():
            for number, one in enumerate(missing):
                if not index.has_vm(one.vm.id):
                    continue
                prefix = f"{KEY_PREFIX}{number}-"
                greedy.name_new_slots(prefix)
                own, later = index.slots_of(one.vm.id), greedy.expected_with(one.vm.id)
                served = greedy.serve(one.vm, one.need)
                record.add(one, own, later, served, greedy, prefix)
                actions += served
        return actions


class _Record:
    """Records what was decided in one pass."""

    def __init__(self, cache: FleetCache, decider: Decider, terms: Terms) -> None:
        self._cache = cache
        self._decider = decider
        self._terms = terms
        self._used = list(terms.used)
        self._pending: dict[str, SlotView] = {}
        """Slots as the actions so far leave them."""
        self._explained: set[str] = set()

    def add(
        self,
        one: Claim,
        own: Sequence[str],
        later: tuple[Need, ...],
        actions: Sequence[Action],
        greedy: Greedy,
        prefix: str,
    ) -> None:
        """One VM's decision; ``own``: the slots that it had, ``later``: what is served after it beside it."""
        failed = any(isinstance(action, Fail) for action in actions)
        joins = {action.slot: action.host for action in actions if isinstance(action, Join)}
        opened = {action.slot_key: greedy.opened[action.slot_key] for action in actions if isinstance(action, Open)}
        index = self._cache.index
        groups = index.separation.related_groups(one.vm.id)
        # The slots of the members of its groups, those that were opened in this pass included.
        members = {member for group in groups for member in group.members}
        theirs = {name for vm in members if index.has_vm(vm) for name in index.slots_of(vm)} - {*own, *joins, *opened}
        names = sorted({*own, *joins, *theirs})
        slots = {name: self._pending.get(name) or self._cache.slots[name] for name in names}
        result = result_of([slots[name] for name in sorted(joins)], actions, opened)
        self._pending.update({slot.name: slot for slot in result.slots})
        hosts = [slot.host for slot in opened.values()]
        if not failed or one.need.offer_class not in self._explained:
            given = AssignInput(
                slots=tuple(slots.values()),
                vms=(one.vm,),
                needs=(one.need,),
                reuse={one.need.offer_class: PlacementOffer(hosts=tuple(dict.fromkeys(joins.values())))},
                new={one.need.offer_class: self._offer_of(one.need.offer_class, hosts, whole=failed)},
                free=self._terms.free.to_table() if failed else {},
                hosts=tuple(sorted(self._cache.locations.names)) if failed else (),
                one_new_per_host=self._terms.limit_new,
                used_hosts=tuple(self._used),
                excluded_slots=tuple(sorted(theirs)),
                key_prefix=prefix,
                groups=groups,
                later=later,
            )
            given = msgspec.structs.replace(given, topology=self._cache.build_topology(_hosts_in(given)))
            self._decider.record_assignment(given, result, subject=one.vm.id)
        if failed:
            self._explained.add(one.need.offer_class)
        self._used += hosts if self._terms.limit_new else ()

    def _offer_of(self, offer_class: str, hosts: Sequence[str], *, whole: bool) -> PlacementOffer:
        """The offer of new slots, or what was taken of it."""
        offer = self._terms.offers.new.get(offer_class, PlacementOffer())
        if whole:
            return offer
        places = sorted(offer.hosts.index(host) for host in hosts)
        scores = tuple(offer.scores[place] for place in places) if offer.scores else ()
        return msgspec.structs.replace(offer, hosts=tuple(offer.hosts[place] for place in places), scores=scores)


def _hosts_in(given: AssignInput) -> set[str]:
    """Every host that the decision may look at."""
    found = {vm.host for vm in given.vms}.union(given.hosts, given.free)
    for slot in given.slots:
        found.update((slot.host, *slot.members.values()))
    for offer in given.new.values():
        found.update(offer.hosts)
    for group in given.groups:
        found.update(group.members.values())
    return found


PLANNED_ANEW: Final = frozenset({CoverageReason.RULES, CoverageReason.NO_CAPACITY, CoverageReason.REFUSED})
"""Reasons that planning anew may do away with."""
SEARCHED_VMS: Final = 20_000
"""Larger fleets are neither repacked nor planned anew for the sake of a few VMs."""
MOST_TICKS: Final = 32
"""From one try in vain to the next."""


_log = get_logger("failover.fleet_plan")


class PlanBasis(NamedTuple):
    """What a plan rests on, as far as another may succeed on other ground."""

    revision: int
    """Of the cache."""
    missing: int
    """Slots that VMs miss, together."""
    hosts: frozenset[str]
    """Those where slots can be used."""
    free: tuple[int, ...]
    """What hosts have free together, by resource."""

    def offers_more_than(self, other: PlanBasis) -> bool:
        """Whether more is missing, a host is there that was not, or more is free."""
        freer = any(now > then for now, then in zip(self.free, other.free, strict=True))
        return self.missing > other.missing or not self.hosts <= other.hosts or freer


class Attempts:
    """Remembers what was tried in vain since the last success."""

    def __init__(self) -> None:
        self._last: PlanBasis | None = None
        self._most: PlanBasis | None = None
        """The highest figures with which it was in vain."""
        self._wait = 0
        self._next = 0

    def is_due(self, tick: int, now: PlanBasis) -> bool:
        """Whether this tick is to try. On the very same ground it never is."""
        if self._most is None or now.offers_more_than(self._most):
            return True
        return tick >= self._next and now != self._last

    def record_failure(self, tick: int, ground: PlanBasis) -> None:
        """It was tried on this ground, and nothing changed."""
        most = self._most
        begins = most is None or ground.offers_more_than(most)
        self._wait = 2 if begins else min(2 * self._wait, MOST_TICKS)
        self._next = tick + self._wait
        self._last = self._most = ground
        if most is not None:  # the higher of each figure
            free = tuple(map(max, ground.free, most.free))
            self._most = ground._replace(missing=max(ground.missing, most.missing), free=free)

    def forget(self) -> None:
        """It succeeded, or nobody misses anything."""
        self._last = self._most = None


class FleetPlanner:
    """Plans for everybody together."""

    def __init__(self, context: Context, inputs: Inputs, changes: SlotChangeWriter, report: CoverageReport) -> None:
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
        return self.attempts.is_due(tick, self._current_ground())

    async def plan(self, tick: int, missing: Collection[str]) -> ApplyOutcome:
        """Plan for everybody together, as a first plan does; slots that are there are planned anew where that helps."""
        context, cache = self._context, self._cache
        anew = bool(cache.slots)
        requests = {vm: context.ids.new_uuid() for vm in sorted(missing)}
        given = await self._inputs.build_plan(missing, requests)
        ground = self._current_ground()
        answer = await context.decider.decide(REPLAN if anew else PLAN, given)
        if any(isinstance(action, Leave) for action in answer.actions):
            outcome = await self._changes.switch(answer.actions, requests)
        else:
            outcome = await self._changes.assign(answer.actions, requests)
        if outcome.reused or outcome.created:
            self.attempts.forget()
        else:
            self.attempts.record_failure(tick, ground)
        _log.info("plan.done", missing=answer.missing, created=outcome.created, reused=outcome.reused)
        self._report.note_fails(requests.keys() - outcome.left.keys(), outcome.fails)
        return outcome

    def may_help(self, tick: int, outcome: ApplyOutcome) -> bool:
        """Whether somebody got nothing beside the slots that are there, and planning these anew might help."""
        cache = self._cache
        stuck = [vm for vm, fail in outcome.fails.items() if fail.reason in PLANNED_ANEW and vm in cache.vms]
        allowed = self._context.config.repack.max_changes_per_cycle > 0 and len(cache.vms) <= SEARCHED_VMS
        if not stuck or not allowed or not cache.slots:
            return False
        ground = self._current_ground()
        if not self.attempts.is_due(tick, ground):
            return False
        # Units of failure for one more slot of any of the VMs, each in one of its own.
        topology = cache.build_topology()
        units = set(map(topology.unit_of_host, ground.hosts))
        return any(
            len(units - {topology.unit_of_host(cache.vms[vm].host)})
            > cache.required_slots(cache.vms[vm]) - cache.index.count_missing(vm)
            for vm in stuck
        )

    def _current_ground(self) -> PlanBasis:
        """What a plan of the whole fleet rests on."""
        cache = self._cache
        return PlanBasis(
            revision=cache.revision,
            missing=sum(cache.index.missing_slots().values()),
            hosts=frozenset(cache.locations.names - cache.locations.closed.keys()),
            free=tuple(self._context.free().amounts.sum(axis=0).tolist()),
        )

    async def repack(self, tick: int) -> None:
        """Empty slots into others, as far as the settings allow; only while nobody misses anything."""
        cache, limit = self._cache, self._context.config.repack.max_changes_per_cycle
        if limit <= 0 or not 0 < len(cache.vms) <= SEARCHED_VMS or not cache.slots or self._packed == cache.revision:
            return
        revision = cache.revision
        given = await self._inputs.build_repack(limit=limit, seed=tick)
        result = await self._context.decider.decide(REPACK, given)
        outcome = await self._changes.switch(actions_of(result.actions, cache.slots), {})
        self._packed = revision if not result.actions else None
        _log.info("repack.done", cycle=tick, moves=outcome.reused)
