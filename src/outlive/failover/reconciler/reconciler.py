"""The reconciler of failover: one set of dirty VMs, bounded passes over the living index, one lock, one budget.

Events mark VMs as dirty, and within a second a pass cleans up what they give reason to leave and gives them what they
miss. The periodic tick looks at everybody: it cleans up under the mass-removal brake, serves those that miss slots in
the order of service, repacks, and reports coverage and metrics. What takes long is computed in a child process and
comes back as a list of changes, which are checked again on the living index and written like any other
(docs/design/failover.md#cycle, #upkeep). A tick or pass that is cut off after any write leaves a state
that the next one completes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import Clock, get_logger, new_global_request_id, request_context, split_batches
from outlive.failover.config import FailoverConfig
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Claim, Fail
from outlive.failover.planner.cleanup import CleanResult, find_departure
from outlive.failover.planner.selection import service_rank
from outlive.failover.reconciler.apply import ApplyOutcome, SlotChangeWriter
from outlive.failover.reconciler.context import ASSIGN, CLEAN, LEAVE, SELECT, Aborted, Context
from outlive.failover.reconciler.coverage import CoverageReport, CoverageWriter
from outlive.failover.reconciler.inputs import CacheComparison, Inputs, Sources, Terms
from outlive.failover.reconciler.plans import Assigner, FleetPlanner
from outlive.failover.report.forecast import Forecast, Pass
from outlive.failover.report.reporter import CycleSummary, Reporter

REQUEST_PREFIX: Final = "failover"
"""Begins the global request ids of ticks and passes."""
GATHER_S: Final = 0.05
"""How long changes are gathered before they are looked at together."""
PASS_VMS: Final = 50
"""VMs that one pass looks at; the others follow in the next."""
REPEAT_S: Final = 1.0
"""Until what could not be reported, or was lost with a store that went back, is reported again."""
REPEATED: Final = 500
"""VMs that are reported again in one pass."""
ROUNDS: Final = 6
"""Times that one pass decides again about VMs for which the fleet turned out to be another."""
BARE_SHARE: Final = 0.5
"""The share of the VMs that miss slots from which on the whole fleet is planned at once …"""
BARE_TICKS: Final = 5
"""… provided that ticks would need so many rounds for them."""
USUAL_S_PER_SLOT: Final = 0.02
"""What giving a slot is taken to last before any was given."""
SCANNED: Final = 20
"""Slots whose members are looked at together."""
QUIET_S: Final = 3.0
"""How long the number of VMs that miss slots must not change before the whole fleet is planned between ticks."""

_log = get_logger("failover.reconciler")


class Reconciler:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._cache = context.cache
        self._comparison = CacheComparison(context.cache, context.clock)
        self._budget = context.budget
        self._lock = context.lock
        self._inputs = Inputs(context)
        self.sources = Sources(context)
        self._changes = SlotChangeWriter(context, self._judge)
        self._assigner = Assigner(self._cache, context.decider)
        self._report = CoverageReport(context)
        self._fleet_plan = FleetPlanner(context, self._inputs, self._changes, self._report)
        self._wake = asyncio.Event()
        self._soon = asyncio.Event()
        """Set where most of the fleet misses slots: a tick plans for everybody together."""
        self._since: float | None = None
        self._tick = 0
        self._closed: set[str] = set()
        """Slots whose write failed since the last tick: nobody joins them."""
        self._cache.changed = self._notify

    # Events

    async def run_events(self) -> None:
        """Follow the caches and react until cancelled. What changed before is left to the tick."""
        coverage = self._context.coverage
        await self._cache.wait_synced()
        self._cache.take_dirty()
        self._rest()
        await self._cache.follow()
        while True:
            # Until something changed, or it is time to report again what is not reported in the store.
            while not self._wake.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPEAT_S):
                        await self._wake.wait()
                if coverage.unreported or coverage.outdated:
                    break
            await self._context.clock.sleep(GATHER_S)
            await self.react()

    def _notify(self) -> None:
        if not self._context.settings.events_react:
            self._cache.take_dirty()
            self._cache.strangers.clear()
        if self._cache.dirty or self._cache.strangers:
            self._wake.set()
            if self._since is None:
                self._since = self._context.clock.monotonic()

    def _rest(self) -> None:
        self._wake.clear()
        self._since = None

    async def react(self) -> None:
        """Put right what the changes since the last time concern, at most ``PASS_VMS`` VMs."""
        context, cache = self._context, self._cache
        since = self._since
        self._rest()
        more = await self.sources.find_strangers()
        dirty = cache.take_dirty()
        if len(dirty) > PASS_VMS:
            lacking = {vm for vm in dirty if vm in cache.vms and cache.index.count_missing(vm)}
            dirty = [*sorted(lacking, key=self._service_order), *(vm for vm in dirty if vm not in lacking)]
        cache.mark(dirty[PASS_VMS:])
        context.forecast.set_waiting(dirty, cache.find_lacking)
        began = context.clock.monotonic()
        with request_context(greq=new_global_request_id(context.ids, REQUEST_PREFIX), req=""):
            gave = await self._run_pass(dirty[:PASS_VMS])
        context.forecast.set_restarting(cache.on_lost_hosts())
        if len(dirty) <= PASS_VMS or gave is None:
            context.forecast.set_waiting((), cache.find_lacking)
        if gave is None:
            context.forecast.expect_cycle(QUIET_S)
        else:
            context.forecast.record_pass(gave, context.clock.monotonic() - began, GATHER_S)
        if since is not None:
            context.reporter.report_reaction(context.clock.monotonic() - since)
        if cache.dirty or more:
            self._notify()

    async def _run_pass(self, vms: Sequence[str]) -> int | None:
        """Clean up, give and report for these VMs; how many slots that gave, ``None`` where a tick is to give them."""
        cache = self._cache
        concerned = dict.fromkeys(vms)
        async with self._lock:
            concerned.update(dict.fromkeys(await self._clean_up(vms)))
            await self._report.retract(concerned)
        before = sum(slots for _, slots, _ in cache.find_lacking(concerned))
        bare = self._is_bare(len(cache.index.missing_slots()))
        if bare:
            self._soon.set()
            outcome = ApplyOutcome()
        else:
            outcome = await self._give([vm for vm in concerned if self._may_be_given(vm)])
        gave = max(0, before - sum(slots for _, slots, _ in cache.find_lacking(concerned)))
        cache.mark(sorted(outcome.left))
        async with self._lock:
            await self._report.report(concerned, again=REPEATED)
        return None if bare else gave

    def _service_order(self, vm_id: str) -> tuple[int, int, int, str]:
        """Sorts located VMs that miss slots in the order of service between ticks: the most exposed first, then by
        priority, memory and id. After a failure a VM without any slot is worth more than a second slot for somebody
        else, whatever their priorities; a tick looks at priority first, because it also looks at who is to be refused.
        """
        vm = self._cache.vms[vm_id]
        present = self._cache.required_slots(vm) - self._cache.index.count_missing(vm_id)
        priority, exposed, memory, last = service_rank(vm, priority=self._cache.priority_of(vm), present=present)
        return (exposed, priority, memory, last)

    def _may_be_given(self, vm: str) -> bool:
        """Whether it misses slots, is where it should be, and is not recovery's: where that lands it, it gets slots."""
        cache = self._cache
        return (
            vm in cache.vms
            and cache.index.count_missing(vm) > 0
            and not cache.is_misplaced(vm)
            and cache.vms[vm].host not in cache.locations.lost
        )

    async def exchange(self, actions: Sequence[Action]) -> ApplyOutcome:
        """Let VMs join or open slots and then leave others, stage by stage, up to the first that is not allowed now."""
        with request_context(greq=new_global_request_id(self._context.ids, REQUEST_PREFIX), req=""):
            return await self._changes.switch(actions, {})

    # Cleaning up

    async def _clean_up(self, vms: Sequence[str]) -> list[str]:
        """Take memberships out that changes broke; the VMs that lost one.

        First those that end by themselves, which mends nearly everything; then, where a rule is broken all the same,
        what a clean-up says about the slots of the VMs at fault. No other slot bears on that.
        """
        cache = self._cache
        departing = sorted(vm for vm in vms if cache.departs(vm))
        lost: list[str] = []
        if departing:
            lost += await self._leave(self._context.decider.decide_now(LEAVE, self._inputs.build_leave(departing)))
        faulty = cache.index.list_faulty()
        if any(vm in cache.vms for vm in faulty):
            lost += await self._leave(await self._judge(cache.slots_of(faulty)))
        return lost

    async def _leave(self, result: CleanResult) -> list[str]:
        """Carry a clean-up out, as far as the budget allows; the VMs that lost a membership."""
        if not result.dropped and not result.deleted:
            return []
        if result.dropped and not self._budget.take(len(result.dropped)):
            _log.error("removals.braked", would_drop=len(result.dropped))
            self._context.reporter.report_held_back("a reaction", len(result.dropped), self._budget.memberships)
            return []
        removed = await self._changes.clean_up(result, locked=True)
        self._budget.give_back(max(0, len(result.dropped) - removed))
        return sorted({drop.vm for drop in result.dropped})

    async def _judge(self, slots: Sequence[SlotView]) -> CleanResult:
        """What leaves these slots, which are all slots of their members at fault; without the brake."""
        return await self._context.decider.decide(CLEAN, self._inputs.build_clean(slots))

    async def _find_suspects(self) -> tuple[list[SlotView], int]:
        """The slots that a clean-up has to look at, and how many memberships there are."""
        cache, found, memberships = self._cache, set[str](), 0
        recorded: dict[str, str] = {}
        torn: set[str] = set()
        for slots in split_batches(list(cache.slots.values()), SCANNED):
            for slot in slots:
                memberships += len(slot.members)
                if not slot.members:
                    found.add(slot.name)
                for vm, host in slot.members.items():
                    view = cache.vms.get(vm)
                    # Of unlisted VMs the last record counts as their location, so that all have to be seen together.
                    if view is None and recorded.setdefault(vm, host) != host:
                        torn.add(vm)
                    if find_departure(vm, slot, view, active=vm in cache.locations) is not None:
                        found.add(slot.name)
            await self._context.clock.sleep(0)
        for vm in (*cache.index.list_faulty(), *torn):
            if cache.index.has_vm(vm):
                found.update(cache.index.slots_of(vm))
        return [cache.slots[name] for name in sorted(found) if name in cache.slots], memberships

    async def _clean_all(self) -> tuple[CleanResult, int]:
        """The clean-up of a tick; what it decided, and how many slots are left."""
        suspects, memberships = await self._find_suspects()
        self._budget.refill(memberships)
        result = await self._context.decider.decide(CLEAN, self._inputs.build_clean(suspects, memberships=memberships))
        self._context.reporter.brake(result.brake)
        if result.brake is not None:
            _log.error("tick.braked", would_drop=result.brake.would_drop, memberships=memberships)
        await self._changes.clean_up(result)
        return result, len(self._cache.slots)

    # Giving slots

    async def _give(self, vms: Sequence[str], *, in_order: bool = False, limit_new: bool = False) -> ApplyOutcome:
        """Give these VMs what they miss, and decide again where the fleet turned out to be another.

        ``in_order``: they are in the order of service of a tick. ``limit_new``: at most one new slot a host.
        """
        total = ApplyOutcome()
        requests = {vm: self._context.ids.new_uuid() for vm in vms}
        waiting = list(vms) if in_order else sorted(vms, key=self._service_order)
        for _ in range(ROUNDS):
            if not waiting:
                break
            outcome = await self._give_once(waiting, requests, total, scarce=in_order, limit_new=limit_new)
            total.add(outcome)
            waiting = [vm for vm in waiting if vm in outcome.left and self._may_be_given(vm)]
        else:
            if waiting and in_order:
                _log.warning("tick.left_over", vms=waiting[:20], rounds=ROUNDS)
                total.failed += len(waiting)
        self._closed |= total.closed
        self._report.note_fails(requests.keys() - total.left.keys(), total.fails)
        return total

    async def _give_once(
        self, vms: Sequence[str], requests: Mapping[str, str], so_far: ApplyOutcome, *, scarce: bool, limit_new: bool
    ) -> ApplyOutcome:
        context = self._context
        missing = self._inputs.build_claims(vms)
        offers = await self._inputs.ask_placement(missing, requests)
        async with self._lock:
            missing = [one for one in missing if self._is_unchanged(one)]
            terms = Terms(
                offers,
                context.free(),
                closed=self._closed | so_far.closed,
                limit_new=limit_new,
                used=so_far.opened if limit_new else (),
            )
            if len(missing) <= PASS_VMS:
                actions = self._assigner.assign(missing, terms)
                if not scarce or not any(isinstance(action, Fail) for action in actions):
                    return await self._changes.assign(actions, requests, locked=True)
        answer = await self._context.decider.decide(ASSIGN, self._inputs.build_assign(missing, terms))
        return await self._changes.assign(answer.actions, requests)

    def _is_unchanged(self, missing: Claim) -> bool:
        """Whether the VM misses the same still, after placement was asked; others come up again by themselves."""
        cache, vm = self._cache, missing.vm.id
        unchanged = cache.vms.get(vm) == missing.vm and cache.index.count_missing(vm) == missing.need.needed
        return unchanged and not cache.is_misplaced(vm)

    # The tick

    async def run_ticks(self) -> None:
        """Tick for ever: the short pause, then ticks with the pause that each asks for."""
        await self._context.clock.sleep(self._config.short_reconcile_interval_s)
        pause_s = await self.tick(first=True)
        while True:
            self._soon.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._soon.wait()
            except TimeoutError:
                pass
            else:  # most of the fleet misses slots: wait until their number is quiet
                missing = -1
                while missing != (missing := len(self._cache.index.missing_slots())):
                    await self._context.clock.sleep(QUIET_S)
            pause_s = await self.tick()

    async def tick(self, *, first: bool = False) -> float:
        """Look at everybody; seconds to wait for the next tick. What others refuse is never raised.

        ``first``: where there is no slot at all the whole fleet is planned at once, however few VMs it has.
        """
        context = self._context
        self._tick += 1
        started = context.clock.monotonic()
        with request_context(greq=new_global_request_id(context.ids, REQUEST_PREFIX), req=""):
            try:
                summary = await self._tick_once(first=first)
            except Aborted as error:
                _log.error("cycle.aborted", step=error.step.value, error=str(error))
                context.reporter.cycle_aborted(error.step)
                return self._config.reconcile_interval_s
            took_s = context.clock.monotonic() - started
            context.reporter.cycle_done(summary, took_s)
            context.forecast.record_cycle(summary.reused + summary.created, took_s, summary.next_pause_s)
            _log.debug("cycle.done", cycle=self._tick, **msgspec.to_builtins(summary))
        return summary.next_pause_s

    async def _tick_once(self, *, first: bool) -> CycleSummary:
        context, cache = self._context, self._cache
        self._closed.clear()
        await self.sources.observe()
        differences = await self._comparison.find_differences()
        context.reporter.report_audit(differences)
        if differences:
            _log.error("cache.diverged", differences=differences[:20], count=len(differences))
            async with self._lock:
                await cache.rebuild()
        await self.sources.report()
        cleaned, slots_kept = await self._clean_all()
        draw = context.random.random()
        chosen = await self._context.decider.decide(SELECT, self._inputs.build_select(cycle=self._tick, draw=draw))
        bare = first and not self._cache.slots and bool(chosen.missing)
        if not chosen.missing:
            self._fleet_plan.attempts.forget()
        if bare or (self._is_bare(len(chosen.missing)) and self._fleet_plan.is_due(self._tick)):
            outcome = await self._fleet_plan.plan(self._tick, {one.vm for one in chosen.missing})
        else:
            limit_new = bool(self._config.limit_one_new_reservation_per_hypervisor)
            vms = [one.vm for one in chosen.selected if self._may_be_given(one.vm)]
            outcome = await self._give(vms, in_order=True, limit_new=limit_new)
            if self._fleet_plan.may_help(self._tick, outcome):
                planned = await self._fleet_plan.plan(self._tick, set(cache.index.missing_slots()) & cache.vms.keys())
                outcome.reused, outcome.created = outcome.reused + planned.reused, outcome.created + planned.created
        summary = CycleSummary(
            total_vms=len(cache.vms) + len(cache.unplaced),
            total_slots=slots_kept + outcome.created,
            missing=len(chosen.missing),
            processed=len(chosen.selected),
            needed=chosen.needed,
            reused=outcome.reused,
            created=outcome.created,
            failed=outcome.failed,
            updated=cleaned.updated,
            deleted=len(cleaned.deleted),
            limit_hit=chosen.limit_hit,
            braked=cleaned.brake is not None,
        )
        if not chosen.missing and not summary.braked:
            await self._fleet_plan.repack(self._tick)
        await self._report.report_all(braked=summary.braked)
        self._budget.hold(summary.braked)
        context.forecast.set_restarting(cache.on_lost_hosts())
        if cache.strangers:
            self._notify()
        return msgspec.structs.replace(summary, next_pause_s=next_pause_s(summary, self._config))

    def _is_bare(self, missing: int) -> bool:
        """Whether most VMs that need slots miss some, and they are too many for a few ticks."""
        if missing <= max(PASS_VMS, BARE_TICKS * max(0, self._config.max_vms_to_process)):
            return False
        needing = sum(self._cache.required_slots(vm) > 0 for vm in self._cache.vms.values())
        return missing > BARE_SHARE * needing


def next_pause_s(summary: CycleSummary, config: FailoverConfig) -> float:
    """Seconds until the next tick: the short pause while catching up goes well, else the normal one."""
    enough = summary.reused + summary.created >= (config.min_success_for_short_interval or 0)
    went_well = enough and summary.failed <= (config.max_failures_for_short_interval or 0)
    short_s = config.short_reconcile_interval_s
    return short_s if summary.limit_hit and short_s > 0 and went_well else config.reconcile_interval_s


def usual_forecast(clock: Clock, config: FailoverConfig, reporter: Reporter, coverage: CoverageWriter) -> Forecast:
    """The forecast of full protection, fed by what coverage says."""
    slots = config.max_vms_to_process if config.max_vms_to_process > 0 else 1_000
    forecast = Forecast(
        clock,
        reporter.forecast_changed,
        usual_pass=Pass(gave=PASS_VMS, took_s=PASS_VMS * USUAL_S_PER_SLOT, pause_s=GATHER_S),
        usual_cycle=Pass(
            gave=slots,
            took_s=slots * USUAL_S_PER_SLOT,
            pause_s=config.short_reconcile_interval_s or config.reconcile_interval_s,
        ),
    )
    reporter.watch_forecast(forecast.current_forecast)
    coverage.listener = forecast
    return forecast
