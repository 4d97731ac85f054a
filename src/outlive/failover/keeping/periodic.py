"""The cycle: look at everything, clean up, give VMs the slots they miss, report, say when to look again.

*Observe, decide, act*, twice: first for what must go, then for what is missing (docs/reference/failover.md#cycle). A
cycle that cannot see everything does nothing. A cycle that is cut off after any write leaves a state that the next one
completes. One instance at a time is an optimisation, not a condition: two that run side by side waste work and meet
``Conflict``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.base.random import Random
from outlive.failover.assurance.coverage import assess, counting_slots, rules_broken
from outlive.failover.compat import Compat
from outlive.failover.config import FailoverConfig, FailoverUpkeepSettings
from outlive.failover.keeping.act import Assignment, CleanUp, Hand
from outlive.failover.keeping.calls import Caller, pins_projects
from outlive.failover.keeping.covering import CoverageWriter
from outlive.failover.keeping.decide import Decider
from outlive.failover.keeping.moving import Moving
from outlive.failover.keeping.observe import Aborted, Observation, Step, World, observe
from outlive.failover.keeping.placing import Wanted, gather_offers, wanted
from outlive.failover.keeping.writes import SlotWriter
from outlive.failover.model import VmView
from outlive.failover.planning.actions import Fail
from outlive.failover.planning.assign import AssignInput
from outlive.failover.planning.cleanup import CleanInput, CleanResult
from outlive.failover.planning.repack import RepackInput, smallest_slots
from outlive.failover.planning.select import Missing, PauseInput, SelectInput, next_pause_s
from outlive.failover.ports import PlacementPort, VMSource
from outlive.failover.requirements import Requirements
from outlive.failover.sizing import ResolvedSize, enough_for, groups_by_flavor, resolve_size
from outlive.failover.telling.reporting import Reporter, Summary
from outlive.resources import FlavorGroupSpec

ROUNDS = 6
"""Times that one cycle decides again about VMs whose slots turned out to be others than was seen."""
KEY_PREFIX = "+new-"
"""Begins the keys of slots that have no name yet; no name can begin so."""
REQUEST_PREFIX = "failover"

_log = get_logger("failover.cycle")


T = TypeVar("T")


@dataclass(slots=True)
class Parts:
    """What a cycle works with."""

    world: World
    source: VMSource
    placement: PlacementPort
    free: Callable[[], Mapping[str, tuple[int, int]]]
    """Host → free milli-cores and bytes, as of now."""
    writer: SlotWriter
    decider: Decider
    coverage: CoverageWriter
    reporter: Reporter
    clock: Clock
    random: Random
    ids: Ids
    config: FailoverConfig
    settings: FailoverUpkeepSettings = field(default_factory=FailoverUpkeepSettings)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whoever places or removes members holds it: a cycle, or upkeep."""
    fails: dict[str, Fail] = field(default_factory=dict)
    """VM → why it has not got what it misses, as last decided."""

    def note_fail(self, vm: str, fail: Fail | None) -> None:
        """Remember why, for the VM's coverage; an event only when the reason is another than before."""
        before = self.fails.pop(vm, None)
        if fail is not None:
            self.fails[vm] = fail
            if before is None or before.reason != fail.reason:
                self.reporter.vm_without_slot(fail)


class Watcher:
    """Told how cycles went; upkeep listens."""

    def cycle_seen(self, seen: Observation, required: Mapping[str, int]) -> None:
        """A cycle has seen the world; nothing is written yet."""

    def cycle_ended(self, *, braked: bool, fails: Mapping[str, Fail]) -> None:
        """A cycle ran to its end."""


class PeriodicCycle:
    """Runs cycles one after the other."""

    def __init__(self, parts: Parts, *, watcher: Watcher | None = None) -> None:
        self._parts = parts
        self._config = parts.config.apply_defaults()
        self._compat = self._config.deviations
        self._requirements = Requirements(self._config.requirements)
        self._watcher = watcher or Watcher()
        self._caller = Caller(profile=parts.settings.profile, compat=self._compat)
        self._cycle = 0
        for pattern, why in self._requirements.malformed.items():
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
                async with parts.turn:
                    summary = await self._cycle_once(greq)
            except Aborted as error:
                _log.error("cycle.aborted", step=error.step.value, error=str(error))
                if not self._compat.reverted("D14"):
                    parts.reporter.cycle_aborted(error.step)
                return self._config.reconcile_interval_s
            parts.reporter.cycle_done(summary, parts.clock.monotonic() - started)
            _log.info("cycle.done", cycle=self._cycle, **msgspec.to_builtins(summary))
        return summary.next_pause_s

    async def _cycle_once(self, greq: str) -> Summary:
        seen = await observe(self._parts.world, self._parts.source, trust_hosts=self._config.trust_hypervisor_location)
        self._parts.reporter.observed(seen)
        required = {vm.id: count for vm in seen.vms if (count := self._requirements.required(vm.flavor)) > 0}
        self._watcher.cycle_seen(seen, required)
        hand = Hand(seen.slots, seen.objects)
        cleaned = await self._clean_up(seen, hand)
        slots_kept = len(hand)
        groups = await self._groups()
        chosen = await self._decided(
            self._parts.decider.select(
                SelectInput(
                    vms=seen.vms,
                    slots=hand.views,
                    required=required,
                    limit=self._config.max_vms_to_process,
                    rotation=self._config.vm_selection_rotation_interval or 0,
                    cycle=self._cycle,
                    draw=self._parts.random.random(),
                    compat=self._compat,
                )
            )
        )
        summary = await self._serve(seen, hand, chosen.selected, groups, greq)
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
        await self._tell(seen, hand, required, braked=summary.braked)
        self._watcher.cycle_ended(braked=summary.braked, fails=self._parts.fails)
        return msgspec.structs.replace(summary, next_pause_s=self._pause(summary))

    async def _clean_up(self, seen: Observation, hand: Hand) -> CleanResult:
        parts = self._parts
        given = CleanInput(
            vms=seen.vms,
            hosts=seen.hosts,
            slots=seen.slots,
            now=parts.clock.now(),
            grace_s=parts.settings.grace_pauses * self._config.reconcile_interval_s,
            brake_share=parts.settings.brake_share,
            brake_number=parts.settings.brake_number,
            compat=self._compat,
        )
        result = await self._decided(parts.decider.clean(given))
        parts.reporter.brake(result.brake)
        if result.brake is not None:
            _log.error(
                "cycle.braked",
                would_drop=result.brake.would_drop,
                memberships=result.brake.memberships,
                causes=result.brake.causes,
            )
        await CleanUp(parts.writer, parts.decider, parts.reporter).carry_out(given, result, hand)
        return result

    async def _groups(self) -> Mapping[str, FlavorGroupSpec] | None:
        """Flavor → group; ``None`` where sizes are the VMs' own."""
        if not self._config.use_flavor_group_resources:
            return None
        try:
            return groups_by_flavor(await self._parts.world.groups())
        except OutliveError as error:
            _log.info("groups.unavailable", error=str(error))
            return None

    async def _serve(
        self,
        seen: Observation,
        hand: Hand,
        selected: Sequence[Missing],
        groups: Mapping[str, FlavorGroupSpec] | None,
        greq: str,
    ) -> Summary:
        """Give the selected VMs what they miss; decide again where slots turned out to be others."""
        parts = self._parts
        vms = {vm.id: vm for vm in seen.vms}
        with_project = pins_projects(seen.hypervisors)
        wishes = [
            wanted(vms[one.vm], one.needed, slot_size(vms[one.vm], groups, self._compat), with_project=with_project)
            for one in selected
        ]
        if not wishes:
            return Summary()
        requests = {wish.vm.id: parts.ids.uuid() for wish in wishes}
        offers = await gather_offers(parts.placement, self._caller, wishes, requests=requests, request_id=greq)
        given = AssignInput(
            slots=hand.views,
            vms=tuple(wish.vm for wish in wishes),
            needs=tuple(wish.need for wish in wishes),
            reuse=offers.reuse,
            new=offers.new,
            free=dict(parts.free()),
            hosts=tuple(host.name for host in seen.hosts),
            one_new_per_host=bool(self._config.limit_one_new_reservation_per_hypervisor),
            key_prefix=KEY_PREFIX,
            compat=self._compat,
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
        fails: dict[str, Fail] = {}
        for _ in range(ROUNDS):
            answer = await self._decided(parts.decider.assign(given))
            carrier = Assignment(parts.writer, parts.reporter, request_id=greq)
            outcome = await carrier.carry_out(answer.actions, hand, vms, requests=requests)
            excluded |= outcome.excluded
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
                free=dict(parts.free()),
                used_hosts=(*given.used_hosts, *(slot.host for slot in outcome.opened)),
                excluded_slots=tuple(sorted(excluded)),
            )
        else:
            _log.warning("cycle.left_over", vms=sorted(outcome.left)[:20], rounds=ROUNDS)
            summary = msgspec.structs.replace(summary, failed=summary.failed + len(outcome.left))
        for vm in sorted(vms):
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
        """Empty small slots into others, as far as the settings allow; only while nobody misses anything."""
        parts, limit = self._parts, self._config.repack.max_changes_per_cycle
        if limit <= 0:
            return
        vms = {vm.id: vm for vm in seen.vms}
        members = sorted({vm for slot in smallest_slots(hand.views) for vm in slot.members if vm in vms})
        with_project = pins_projects(seen.hypervisors)
        wishes = [
            wanted(vms[vm], 1, slot_size(vms[vm], groups, self._compat), with_project=with_project) for vm in members
        ]
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
        )
        result = await self._decided(parts.decider.repack(given))
        await Moving(parts.writer, parts.reporter).carry_out(result.actions, hand)

    async def _tell(self, seen: Observation, hand: Hand, required: Mapping[str, int], *, braked: bool) -> None:
        """Report each VM's coverage. No VM is forgotten that a host still reports, or while the brake holds."""
        parts = self._parts
        slots = hand.confirmed
        counting = counting_slots(seen.vms, slots, compat=self._compat)
        await parts.clock.sleep(0)
        broken = rules_broken(seen.vms, slots)
        await parts.clock.sleep(0)
        here = {vm.id for vm in seen.vms}
        for vm in [vm for vm in parts.fails if vm not in here]:
            del parts.fails[vm]
        told = assess(seen.vms, required, counting, broken=broken, fails=parts.fails)
        by_reason: dict[str, int] = {}
        for status in told.values():
            if not status.covered:
                by_reason[status.reason] = by_reason.get(status.reason, 0) + 1
        parts.reporter.uncovered(by_reason)
        try:
            gone = frozenset() if braked else await parts.coverage.told() - here - seen.active
            await parts.coverage.tell(told, gone=gone)
        except OutliveError as error:
            _log.warning("coverage.not_told", error=str(error))

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

    async def _decided(self, deciding: Awaitable[T]) -> T:
        """What the decision answered; a computer that cannot be used ends the cycle."""
        try:
            return await deciding
        except OutliveError as error:
            raise Aborted(Step.DECIDE, error) from error


def slot_size(vm: VmView, groups: Mapping[str, FlavorGroupSpec] | None, compat: Compat) -> ResolvedSize:
    """The size of the VM's slots; never below the VM's own, except as the reference has it (deviation D13)."""
    if compat.reverted("D13"):
        return resolve_size(vm, groups, whole_mib=True)
    size = resolve_size(vm, groups)
    return enough_for(vm, size) if vm.cpu_milli > 0 and vm.memory_bytes > 0 else size
