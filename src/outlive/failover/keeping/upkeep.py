"""Reacting at once: when a VM starts, stops, moves or goes, or a slot or host changes, what it concerns is put right.

The same decisions as in a cycle, on the neighbourhood of the change instead of on everything
(docs/reference/failover.md#upkeep). Within a second of the change its VMs are cleaned up and given what they miss;
what cannot be given waits for the next cycle, which sees everything. Removals draw from the budget that stands in for
the mass-removal brake. The kept state is held against the caches in every cycle, and rebuilt if it differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger, global_request_id, new_global_request_id, request_context
from outlive.failover.analysis.coverage import left_of, status_of
from outlive.failover.keeping.assigning import Assignment
from outlive.failover.keeping.auditing import Audit
from outlive.failover.keeping.budget import RemovalBudget
from outlive.failover.keeping.calls import Caller, pins_projects
from outlive.failover.keeping.cleaning import CleanUp
from outlive.failover.keeping.following import Following
from outlive.failover.keeping.hand import Hand
from outlive.failover.keeping.kept import KeptState
from outlive.failover.keeping.observe import Observation
from outlive.failover.keeping.parts import GATHER_S, PASS_VMS, REQUEST_PREFIX, Parts, Watcher, slot_size
from outlive.failover.keeping.placing import Wanted, gather_offers, wanted
from outlive.failover.keeping.reacting import Reactions
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.planner.actions import Join
from outlive.failover.planner.cleanup import CleanInput, CleanResult
from outlive.failover.portions import in_portions
from outlive.resources import CoverageStatus

RETELL_S = 1.0
"""Until what could not be told is told again."""
RETOLD = 500
"""VMs that are told again in one pass."""
LOOKUPS = 50
"""VMs that one pass looks up in the VM source."""
NO_BRAKE = 2**62

_log = get_logger("failover.upkeep")


class Upkeep(Watcher):
    """Reacts to what the kept state notices."""

    def __init__(self, parts: Parts, following: Following, budget: RemovalBudget) -> None:
        self._parts = parts
        self._following = following
        self._state = following.state
        self._audit = Audit(self._state)
        self._budget = budget
        self._config = parts.config.apply_defaults()
        self._caller = Caller(profile=parts.settings.profile)
        self._reacts = parts.settings.events_react
        self._reactions = Reactions(self._state, parts.decider)
        self._wake = asyncio.Event()
        self._since: float | None = None
        self._faulty: list[str] = []
        """VMs for which a rule did not hold after the last pass, as where another of their slots' members moved and the
        brake holds: what was told of them is told anew, also once it holds again."""
        self._looked_up: set[str] = set()
        self._listed = False
        """Whether a cycle has brought the listing of a database; before that everybody would be a stranger."""
        following.noticed = self._noticed

    @property
    def state(self) -> KeptState:
        """The kept state; not to be changed."""
        return self._state

    async def follow(self) -> None:
        """Return once the state is current; ``Unavailable`` before hosts and slots have been listed."""
        await self._following.follow()

    async def run(self) -> None:
        """Follow and react until cancelled. What changed before is left to the cycle, which sees everything."""
        await self._following.wait_synced()
        self._state.take_touched()
        self._rest()
        await self._following.follow()
        while True:
            await self._woken()
            await self._parts.clock.sleep(GATHER_S)
            await self.react()

    async def _woken(self) -> None:
        """Return when something changed, or when it is time to tell again what could not be told."""
        try:
            async with asyncio.timeout(RETELL_S if self._parts.coverage.untold else None):
                await self._wake.wait()
        except TimeoutError:
            return

    def _noticed(self) -> None:
        if not self._reacts:
            self._state.take_touched()
            self._state.strangers.clear()
        if self._state.touched or self._state.strangers:
            self._wake.set()
            if self._since is None:
                self._since = self._parts.clock.monotonic()

    def _rest(self) -> None:
        self._wake.clear()
        self._since = None

    # Cycles

    def cycle_begins(self) -> None:
        """From now on it is remembered which VMs changed: the cycle leaves them alone."""
        self._state.forget_newer()
        self._looked_up.clear()

    async def cycle_seen(self, seen: Observation) -> None:
        """Take over the VM source's listing, and hold the kept state against the caches."""
        self._budget.refill(sum(len(slot.members) for slot in seen.slots))
        following, clock, state = self._following, self._parts.clock, self._state
        if not following.active:
            return
        if following.vms is None:
            await in_portions(state.see_all_vms(seen.listing.vms, but=self._looked_up), clock)
            self._listed = True
        differences = await in_portions(self._audit.differences(following.hypervisors, following.reservations), clock)
        self._parts.reporter.audited(differences)
        if differences:
            _log.error("upkeep.diverged", differences=differences[:20], count=len(differences))
            async with self._parts.turn:
                await following.rebuild()

    @property
    def newer(self) -> Collection[str]:
        """The VMs that changed since the cycle began, or whose slots upkeep has changed."""
        return self._state.newer if self._following.active and self._reacts else ()

    def take_over(self, vms: Iterable[str]) -> None:
        """Look at these, which the cycle leaves alone."""
        self._state.put_back(vms)
        self._noticed()

    def cycle_ended(self, *, braked: bool) -> None:
        """The cycle has looked at everybody else; strangers that could not be asked about are asked about again."""
        self._budget.hold(braked)
        if self._following.active:
            self._parts.forecast.away(self._state.away())
        if self._state.strangers:
            self._noticed()

    # Reacting

    async def react(self) -> None:
        """Put right what the changes since the last time concern, in passes of at most ``PASS_VMS``."""
        parts = self._parts
        since = self._since
        self._rest()
        async with parts.turn:
            touched = self._state.take_touched()
            if len(touched) > PASS_VMS:
                touched = self._state.exposed_first(touched)
            self._state.put_back(touched[PASS_VMS:])
            self._following.reacting = True
            began = parts.clock.monotonic()
            parts.forecast.in_turn(touched, self._state.lacking)
            try:
                with request_context(greq=new_global_request_id(parts.ids, REQUEST_PREFIX), req=""):
                    more = await self._look_up_strangers()
                    gave = await self._pass(touched[:PASS_VMS])
            finally:
                self._following.reacting = False
            parts.forecast.away(self._state.away())
            if len(touched) <= PASS_VMS:
                parts.forecast.in_turn((), self._state.lacking)
            parts.forecast.passed(gave, parts.clock.monotonic() - began, GATHER_S)
        if since is not None:
            parts.reporter.reacted(parts.clock.monotonic() - since)
        if self._state.touched or more:
            self._noticed()

    async def locate(self, vm_id: str) -> VmView | None:
        """Where the VM is, by the word that cycles trust, or by the source's."""
        await self._following.follow()
        known = self._state.located.get(vm_id)
        return known if known is not None and self._following.vms is not None else await self._located_now(vm_id)

    async def _located_now(self, vm_id: str) -> VmView | None:
        view = await self._parts.source.get_vm(vm_id)
        return self._state.sightings.located(view, trust_hosts=self._config.trust_hypervisor_location)

    async def _look_up_strangers(self) -> bool:
        """Ask a database about VMs that hosts report and that it did not list, or listed elsewhere.

        Whether more of them can be asked about at once. After an error they wait for the next change or cycle.
        """
        strangers = self._state.strangers
        if self._following.vms is not None:
            strangers.clear()
            return False
        if not self._listed:
            return False
        for vm_id in sorted(strangers)[:LOOKUPS]:
            try:
                view = await self._parts.source.get_vm(vm_id)
            except OutliveError as error:
                _log.warning("upkeep.not_looked_up", vm=vm_id, error=str(error), waiting=len(strangers))
                return False
            strangers.discard(vm_id)
            self._looked_up.add(vm_id)
            if view is not None and view != self._state.known(vm_id):
                self._state.see_vm(vm_id, view)
        return bool(strangers)

    async def _pass(self, touched: Sequence[str]) -> int:
        """Put these right and tell of them; how many slots that gave."""
        concerned = dict.fromkeys(touched)
        concerned.update(dict.fromkeys(await self._clean_up(touched)))
        await self._take_back(concerned)
        before = sum(slots for _, slots, _ in self._state.lacking(concerned))
        served = await self._assign(list(concerned))
        gave = max(0, before - sum(slots for _, slots, _ in self._state.lacking(concerned)))
        concerned.update(dict.fromkeys(served))
        faulty = [vm for vm in self._state.counters.faulty() if vm in self._state.located]
        concerned.update(dict.fromkeys((*self._faulty, *faulty, *self._parts.coverage.untold[:RETOLD])))
        self._faulty = faulty
        await self._tell(concerned)
        return gave

    async def _clean_up(self, touched: Sequence[str]) -> list[str]:
        """Take memberships out that the changes broke; the VMs that lost one.

        First those that end by themselves, which mends nearly everything; then, where a rule is broken all the same,
        what a clean-up says about the slots of whoever is at fault. No other slot bears on that.
        """
        lost = await self._leave(self._reactions.leaving(touched, now=self._parts.clock.now()))
        faulty = self._state.counters.faulty()
        if any(vm in self._state.located for vm in faulty):
            slots = self._state.slots_of(faulty)
            lost += await self._leave(await self._parts.decider.clean(self._clean_input(slots)))
        return lost

    async def _leave(self, result: CleanResult) -> list[str]:
        """Carry a clean-up out, as far as the budget allows; the VMs that lost a membership."""
        if not result.dropped and not result.deleted:
            return []
        if result.dropped and not self._budget.take(len(result.dropped)):
            _log.error("upkeep.braked", would_drop=len(result.dropped))
            self._parts.reporter.held_back("a reaction", len(result.dropped), self._budget.memberships)
            return []
        names = [*result.changed, *(deletion.slot for deletion in result.deleted)]
        await CleanUp(self._parts.writer, self, self._parts.reporter).carry_out(result, self._hand(names))
        slots = self._state.slots
        still = [drop for drop in result.dropped if drop.slot in slots and drop.vm in slots[drop.slot].members]
        self._budget.give_back(len(still))
        return sorted({drop.vm for drop in result.dropped})

    async def judge(self, slot: SlotView, others: Sequence[SlotView]) -> CleanResult:
        """A slot turned out to be another than was seen."""
        return await self._parts.decider.clean(self._clean_input([slot, *others]))

    def _clean_input(self, slots: Sequence[SlotView]) -> CleanInput:
        state = self._state
        members = sorted({vm for slot in slots for vm in slot.members})
        return CleanInput(
            vms=tuple(state.located[vm] for vm in members if vm in state.located),
            hosts=self._reports(members),
            slots=tuple(slots),
            now=self._parts.clock.now(),
            grace_s=self._parts.settings.grace_pauses * self._config.reconcile_interval_s,
            brake_share=1.0,
            brake_number=NO_BRAKE,
            topology=state.topology(
                {host for slot in slots for host in (slot.host, *slot.members.values())}
                | {state.located[vm].host for vm in members if vm in state.located}
            ),
        )

    def _reports(self, members: Iterable[str]) -> tuple[HostView, ...]:
        """The hosts that report any of these VMs, as far as these VMs go."""
        active: dict[str, list[str]] = {}
        for vm in members:
            host = self._state.sightings.first(vm)
            if host is not None:
                active.setdefault(host, []).append(vm)
        return tuple(HostView(name=host, active=tuple(vms)) for host, vms in sorted(active.items()))

    async def _assign(self, concerned: Sequence[str]) -> list[str]:
        """Give those of these VMs what they miss that are where they should be; the VMs that were served."""
        parts, state = self._parts, self._state
        missing = [
            vm
            for vm in concerned
            if vm in state.located
            and state.counters.misses(vm)
            and not state.misplaced(vm)
            and state.located[vm].host not in state.sightings.lost  # recovery has them; where they land they get slots
        ]
        if not missing:
            return []
        missing.sort(key=state.rank)
        groups = await parts.groups()
        with_project = pins_projects(self._following.hypervisors.items())
        wishes = [
            wanted(vm, state.counters.misses(vm.id), slot_size(vm, groups), with_project=with_project)
            for vm in (state.located[name] for name in missing)
        ]
        requests = {wish.vm.id: parts.ids.uuid() for wish in wishes}
        greq = global_request_id()
        offers = await gather_offers(parts.placement, self._caller, wishes, requests=requests, request_id=greq)
        wishes = self._still(wishes)
        actions = self._reactions.serving(wishes, offers, parts.free())
        bound = [group for wish in wishes if (group := state.separating.group(wish.vm.id)) is not None]
        carrier = Assignment(parts.writer, parts.reporter, request_id=greq, topology=state.topology, groups=bound)
        vms = {wish.vm.id: wish.vm for wish in wishes}
        hand = self._hand(action.slot for action in actions if isinstance(action, Join))
        outcome = await carrier.carry_out(actions, hand, vms, requests=requests)
        for wish in wishes:
            parts.note_fail(wish.vm.id, outcome.fails.get(wish.vm.id))
        self._state.put_back(sorted(outcome.left))
        return missing

    def _still(self, wishes: Iterable[Wanted]) -> list[Wanted]:
        """The wishes that nothing changed while placement was asked; the others come up again by themselves."""
        state = self._state
        return [
            wish
            for wish in wishes
            if state.located.get(wish.vm.id) == wish.vm
            and state.counters.misses(wish.vm.id) == wish.needed
            and not state.misplaced(wish.vm.id)
        ]

    def _hand(self, names: Iterable[str]) -> Hand:
        """These slots, with the objects that the informer holds; those that are gone meanwhile are missing."""
        objects = {name: slot for name in names if (slot := self._following.reservations.get(name)) is not None}
        views = [self._state.slots[name] for name in objects if name in self._state.slots]
        return Hand(views, objects, around=self._state.slots_of, closed=self._state.sightings.closed)

    async def _take_back(self, concerned: Iterable[str]) -> None:
        """Tell those that are not covered any more, before they are given anything: giving takes time, and this process
        may lose its lead meanwhile.
        """
        state = self._state
        concerned = tuple(concerned)
        exposed = [vm for vm in concerned if vm in state.located and (state.counters.misses(vm) or state.at_fault(vm))]
        away = {vm: self._status(vm) for vm in exposed} | self._left_of_promises(concerned)
        try:
            await self._parts.coverage.take_back(away)
        except OutliveError as error:
            _log.warning("coverage.not_told", error=str(error))

    async def _tell(self, concerned: Iterable[str]) -> None:
        concerned = tuple(concerned)
        state, told = self._state, self._left_of_promises(concerned)
        gone: list[str] = []
        for vm_id in concerned:
            if vm_id in state.located:
                told[vm_id] = self._status(vm_id)
            elif state.sightings.first(vm_id) is None:
                gone.append(vm_id)
        try:
            await self._parts.coverage.tell(told, gone=gone)
        except OutliveError as error:
            _log.warning("coverage.not_told", error=str(error))

    def _left_of_promises(self, vms: Iterable[str]) -> dict[str, CoverageStatus]:
        """Of those that some host has, nobody knows which, and that were told of slots which list them no more."""
        state = self._state
        found: dict[str, CoverageStatus] = {}
        for vm in vms:
            said = self._parts.coverage.said(vm)
            if vm in state.located or said is None or not said.covered or state.sightings.first(vm) is None:
                continue
            left = [name for name in said.slots if name in state.slots and vm in state.slots[name].members]
            if len(left) < len(said.slots):
                found[vm] = left_of(said, left)
        return found

    def _status(self, vm: str) -> CoverageStatus:
        """What is true of a located VM."""
        state = self._state
        view = state.located[vm]
        return status_of(
            view,
            state.required(view),
            state.counting(vm),
            broken=state.at_fault(vm),
            fail=self._parts.fails.get(vm),
            idle=state.idle(vm),
        )
