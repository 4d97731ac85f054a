"""The cycle: look at everything, clean up, give VMs the slots they miss, report, say when to look again.

*Observe, decide, act*, twice: first for what must go, then for what is missing (docs/reference/failover.md#cycle). A
cycle that cannot see everything does nothing. A cycle that is cut off after any write leaves a state that the next one
completes. One instance at a time is an optimisation, not a condition: two that run side by side waste work and meet
``Conflict``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.failover.keeping.assigning import Assignment
from outlive.failover.keeping.calls import Caller, pins_projects
from outlive.failover.keeping.cleaning import CleanUp
from outlive.failover.keeping.closing import Closing
from outlive.failover.keeping.hand import Hand
from outlive.failover.keeping.judging import Judging
from outlive.failover.keeping.moving import Moving
from outlive.failover.keeping.observe import Aborted, Looking, Observation, Step
from outlive.failover.keeping.parts import REQUEST_PREFIX, Parts, Watcher, slot_size
from outlive.failover.keeping.placing import Wanted, gather_offers, wanted
from outlive.failover.keeping.reacting import KEY_PREFIX
from outlive.failover.keeping.turns import CycleTurn
from outlive.failover.model import VmView
from outlive.failover.planner.actions import Fail
from outlive.failover.planner.assign import AssignInput
from outlive.failover.planner.cleanup import CleanResult, suspects
from outlive.failover.planner.repack import RepackInput, concerned
from outlive.failover.planner.selection import Missing, PauseInput, SelectInput, SelectResult, next_pause_s, short
from outlive.failover.portions import Portions, in_portions, portioned
from outlive.failover.protection import Demanded, Demands
from outlive.failover.report.reporter import Summary
from outlive.failover.separation import groups_of
from outlive.failover.topology import Topology
from outlive.resources import FlavorGroupSpec

ROUNDS = 6
"""Times that one cycle decides again about VMs whose slots turned out to be others than was seen."""

_log = get_logger("failover.cycle")


T = TypeVar("T")


class PeriodicCycle:
    """Runs cycles one after the other."""

    def __init__(self, parts: Parts, *, watcher: Watcher | None = None) -> None:
        self._parts = parts
        self._config = parts.config.apply_defaults()
        self._demands = Demands(self._config.requirements, parts.protection)
        self._watcher = watcher or Watcher()
        self._caller = Caller(profile=parts.settings.profile)
        self._looking = Looking(
            parts.world, parts.source, trust_hosts=self._config.trust_hypervisor_location, clock=parts.clock
        )
        self._turn = CycleTurn(
            parts.turn,
            newer=lambda: self._watcher.newer,
            leave=self._watcher.take_over,
            free_on=lambda host: parts.free().of_host(host),
        )
        self._choice = parts.settings.topology_choice
        self._topology = Topology()
        """Of the hosts that this cycle has seen."""
        self._cycle = 0
        for pattern, why in self._demands.malformed.items():
            _log.warning("pattern.malformed", pattern=pattern, why=why)

    async def run(self) -> None:
        """Cycle for ever: the short pause, then cycles with the pause that each asks for."""
        await self._parts.clock.sleep(self._config.short_reconcile_interval_s)
        while True:
            await self._parts.clock.sleep(await self.cycle())

    async def cycle(self) -> float:
        """One cycle; seconds to wait for the next. What store, VM source or placement refuse is never raised."""
        parts = self._parts
        self._cycle += 1
        started = parts.clock.monotonic()
        greq = new_global_request_id(parts.ids, REQUEST_PREFIX)
        with request_context(greq=greq, req=""):
            try:
                summary = await self._cycle_once(greq)
            except Aborted as error:
                _log.error("cycle.aborted", step=error.step.value, error=str(error))
                parts.reporter.cycle_aborted(error.step)
                return self._config.reconcile_interval_s
            took_s = parts.clock.monotonic() - started
            parts.reporter.cycle_done(summary, took_s)
            parts.forecast.cycled(summary.reused + summary.created, took_s, summary.next_pause_s)
            _log.info("cycle.done", cycle=self._cycle, **msgspec.to_builtins(summary))
        return summary.next_pause_s

    async def _cycle_once(self, greq: str) -> Summary:
        self._watcher.cycle_begins()
        seen = await self._looking.look()
        self._topology = self._choice.of(seen.hosts)
        self._parts.reporter.observed(seen)
        demanded = await self._share(self._demands.among(seen.vms))
        required = demanded.required
        self._parts.reporter.unknown_levels(demanded.unknown)
        await self._watcher.cycle_seen(seen)
        hand = Hand(seen.slots, seen.objects, closed=seen.closed)
        views = await self._share(_by_id(seen.vms))
        cleaned, broken = await self._clean_up(seen, views, hand)
        slots_kept = len(hand)
        groups = await self._parts.groups()
        chosen = await self._select(seen, hand, demanded)
        summary = await self._serve(seen, views, hand, chosen.selected, demanded, groups, greq)
        summary = msgspec.structs.replace(
            summary,
            total_vms=len(seen.vms),
            total_slots=slots_kept + summary.created,
            missing=len(chosen.missing),
            processed=len(chosen.selected),
            needed=chosen.needed,
            updated=cleaned.updated,
            deleted=len(cleaned.deleted),
            limit_hit=chosen.limit_hit,
            braked=cleaned.brake is not None,
        )
        if not chosen.missing and not summary.braked:
            await self._repack(seen, hand, required, groups, greq)
        closing = Closing(self._parts, self._turn, self._topology, unit=self._choice.unit)
        await closing.tell(seen, views, hand, demanded, None if hand.changed else broken, braked=summary.braked)
        self._watcher.cycle_ended(braked=summary.braked)
        return msgspec.structs.replace(summary, next_pause_s=self._pause(summary))

    async def _clean_up(
        self, seen: Observation, views: Mapping[str, VmView], hand: Hand
    ) -> tuple[CleanResult, frozenset[str]]:
        """What was taken out, and for which VMs a rule did not hold before."""
        parts = self._parts
        judging = Judging(parts, self._config, seen, views, self._topology)
        found = await self._share(suspects(seen.slots, views, seen.active, self._topology))
        result = await self._decided(judging.about(found.slots, memberships=found.memberships))
        parts.reporter.brake(result.brake)
        if result.brake is not None:
            _log.error(
                "cycle.braked",
                would_drop=result.brake.would_drop,
                memberships=result.brake.memberships,
                causes=result.brake.causes,
            )
        await CleanUp(parts.writer, judging, parts.reporter, turn=self._turn).carry_out(result, hand)
        return result, found.broken

    async def _select(self, seen: Observation, hand: Hand, demanded: Demanded) -> SelectResult:
        """Who misses slots, and who of them is served: nobody whose host is lost, those are recovered first."""
        lost = {host.name for host in seen.hosts if host.lost}
        away = {vm.id for vm in seen.vms if vm.host in lost} if lost else ()
        required = (
            {vm: number for vm, number in demanded.required.items() if vm not in away} if away else demanded.required
        )
        priorities = demanded.priorities
        vms, slots = await self._share(short(seen.vms, hand.views, required))
        given = SelectInput(
            vms=vms,
            slots=slots,
            required={vm.id: required[vm.id] for vm in vms},
            priorities={vm.id: priorities[vm.id] for vm in vms if vm.id in priorities},
            limit=self._config.max_vms_to_process,
            rotation=self._config.vm_selection_rotation_interval or 0,
            cycle=self._cycle,
            draw=self._parts.random.random(),
        )
        return await self._decided(self._parts.decider.select(given))

    async def _serve(
        self,
        seen: Observation,
        views: Mapping[str, VmView],
        hand: Hand,
        selected: Sequence[Missing],
        demanded: Demanded,
        groups: Mapping[str, FlavorGroupSpec] | None,
        greq: str,
    ) -> Summary:
        """Give the selected VMs what they miss; decide again where slots turned out to be others."""
        parts = self._parts
        if not selected:
            return Summary()
        with_project = pins_projects(seen.hypervisors)
        wishes = [
            wanted(views[one.vm], one.needed, slot_size(views[one.vm], groups), with_project=with_project)
            for one in selected
        ]
        requests = {wish.vm.id: parts.ids.uuid() for wish in wishes}
        offers = await gather_offers(parts.placement, self._caller, wishes, requests=requests, request_id=greq)
        given = AssignInput(
            slots=hand.views,
            vms=tuple(wish.vm for wish in wishes),
            needs=tuple(wish.need for wish in wishes),
            priorities={vm: demanded.priorities[vm] for vm in requests if vm in demanded.priorities},
            reuse=offers.reuse,
            new=offers.new,
            free=parts.free().table(),
            hosts=tuple(host.name for host in seen.hosts),
            one_new_per_host=bool(self._config.limit_one_new_reservation_per_hypervisor),
            key_prefix=KEY_PREFIX,
            groups=groups_of(seen.vms, demanded.required, requests) if self._topology.server_groups else (),
            topology=self._topology,
        )
        return await self._rounds(given, hand, wishes, requests, greq)

    async def _rounds(
        self, given: AssignInput, hand: Hand, wishes: Sequence[Wanted], requests: Mapping[str, str], greq: str
    ) -> Summary:
        """Decide and act until nothing is left that has to be decided again, or ``ROUNDS`` times."""
        parts = self._parts
        vms = {wish.vm.id: wish.vm for wish in wishes}
        needs = {need.vm: need for need in given.needs}
        summary = Summary()
        excluded: set[str] = set()
        given_over: set[str] = set()
        fails: dict[str, Fail] = {}
        for _ in range(ROUNDS):
            answer = await self._decided(parts.decider.assign(given))
            carrier = Assignment(
                parts.writer,
                parts.reporter,
                request_id=greq,
                turn=self._turn,
                topology=lambda: self._topology,
                groups=given.groups,
            )
            outcome = await carrier.carry_out(answer.actions, hand, vms, requests=requests)
            excluded |= outcome.excluded
            given_over |= outcome.given_over
            summary = msgspec.structs.replace(
                summary,
                reused=summary.reused + outcome.reused,
                created=summary.created + outcome.created,
                failed=summary.failed + outcome.failed,
            )
            fails.update(outcome.fails)
            if not outcome.left:
                break
            given = msgspec.structs.replace(
                given,
                slots=hand.views,
                needs=tuple(
                    msgspec.structs.replace(needs[vm], needed=outcome.left[vm]) for vm in needs if vm in outcome.left
                ),
                free=parts.free().table(),
                used_hosts=(*given.used_hosts, *(slot.host for slot in outcome.opened)),
                excluded_slots=tuple(sorted(excluded)),
            )
        else:
            _log.warning("cycle.left_over", vms=sorted(outcome.left)[:20], rounds=ROUNDS)
            summary = msgspec.structs.replace(summary, failed=summary.failed + len(outcome.left))
        for vm in sorted(vms.keys() - given_over):
            parts.note_fail(vm, fails.get(vm))
        return summary

    async def _repack(
        self,
        seen: Observation,
        hand: Hand,
        required: Mapping[str, int],
        groups: Mapping[str, FlavorGroupSpec] | None,
        greq: str,
    ) -> None:
        """Empty slots into others, as far as the settings allow; only while nobody misses anything."""
        parts, limit = self._parts, self._config.repack.max_changes_per_cycle
        if limit <= 0:
            return
        vms = {vm.id: vm for vm in seen.vms}
        members = [vm for vm in concerned(hand.views) if vm in vms]
        with_project = pins_projects(seen.hypervisors)
        wishes = [wanted(vms[vm], 1, slot_size(vms[vm], groups), with_project=with_project) for vm in members]
        offers = await gather_offers(
            parts.placement, self._caller, wishes, requests={}, request_id=greq, with_new=False
        )
        given = RepackInput(
            slots=hand.views,
            vms=seen.vms,
            required=dict(required),
            classes={wish.vm.id: wish.offer_class for wish in wishes},
            reuse=offers.reuse,
            limit=limit,
            seed=self._cycle,
            topology=self._topology,
        )
        result = await self._decided(parts.decider.repack(given))
        made = await Moving(parts.writer, parts.reporter, turn=self._turn).carry_out(result.actions, hand)
        _log.info("repack.done", cycle=self._cycle, moves=made)

    def _pause(self, summary: Summary) -> float:
        config = self._config
        return next_pause_s(
            PauseInput(
                limit_hit=summary.limit_hit,
                reused=summary.reused,
                created=summary.created,
                failed=summary.failed,
                normal_s=config.reconcile_interval_s,
                short_s=config.short_reconcile_interval_s,
                min_success=config.min_success_for_short_interval or 0,
                max_failures=config.max_failures_for_short_interval or 0,
            )
        )

    async def _share(self, work: Portions[T]) -> T:
        return await in_portions(work, self._parts.clock)

    async def _decided(self, deciding: Awaitable[T]) -> T:
        """What the decision answered; a computer that cannot be used ends the cycle."""
        try:
            return await deciding
        except OutliveError as error:
            raise Aborted(Step.DECIDE, error) from error


def _by_id(vms: Sequence[VmView]) -> Portions[dict[str, VmView]]:
    found: dict[str, VmView] = {}
    for portion in portioned(vms):
        found.update((vm.id, vm) for vm in portion)
        yield
    return found
