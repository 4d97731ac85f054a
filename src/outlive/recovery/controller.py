"""The controller of recovery: observe everything, plan, act; again whenever something has changed.

Level-triggered: a pass looks at all VMs whose holders may be dead or whose recovery is unfinished, so nothing is lost
with a crash, a change of leader or a missed event. After a proof it waits a moment for others, because hosts of one
failure domain die together and one plan serves them better than one each. What it does not promise: that it is the
only one; every write is a compare-and-swap that a second leader loses or makes needless. Everything of the outside is
handed in, so that the same assembly runs on real drivers, in simulation and in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
from prometheus_client.core import GaugeMetricFamily

from outlive.base import (
    Clock,
    Ids,
    OutliveError,
    get_logger,
    global_request_id,
    new_global_request_id,
    request_context,
    set_within,
)
from outlive.failover import Call, Caller, Demands, PlacementPort, free_amounts, is_large_enough
from outlive.failover.report import Events
from outlive.node.membership import PauseGate
from outlive.node.vm import is_asked
from outlive.placement import AFFINITY, SILENT, Fleet, find_companions, may_run_on, view_of_resource
from outlive.recovery.act import RecoveryActions, StepRefused
from outlive.recovery.faults import THE_CLUSTER, RecoveryFaults
from outlive.recovery.in_flight import InFlightRoom
from outlive.recovery.informers import RecoveryInformers
from outlive.recovery.liveness import LivenessController
from outlive.recovery.model import ActionKind, AffectedVm, Free, RecoveryAction, RecoveryPlan, RecoveryView, with_offers
from outlive.recovery.plan import RECOVERY_PLAN, plan_recovery
from outlive.recovery.report import RecoveryReporter
from outlive.recovery.requests import RequestAnswers
from outlive.recovery.view import RecoveryObserver
from outlive.resources import (
    CLUSTER,
    Cluster,
    Hypervisor,
    MemberRecord,
    Membership,
    ObjectRef,
    Reservation,
    VirtualMachine,
    encode_canonical,
    explain_out_of_service,
    free_functions,
    lost_places,
)
from outlive.resources.reasons import VmReason
from outlive.runtime import Crashes, DecisionLog, Elector, FaultRecorder, Manager, Metrics, OrderedTaskGroup
from outlive.store import Store

SETTLE_S: Final = 0.2
"""After a proof: how long to wait for others."""
SETTLE_MOST_S: Final = 1.0
"""At most so long, however many come."""
GATHER_S: Final = 0.02
"""After any other change."""
TICK_S: Final = 1.0
"""How often to look while anything is under way: silence and limits make no event."""
IDLE_S: Final = 10.0
"""How often to look otherwise."""
ACTS_AT_ONCE: Final = 16
"""VMs that are acted on at the same time."""
SEARCHES: Final = 100
"""VMs that one look asks placement about; the others follow in the next."""
OFFERS_S: Final = 20.0
"""How long placement may take for all VMs of one look: recoveries into slots wait for it, and so does failover."""
LOST_PLACES: Final = 16
"""Places of storage that every host is to ask because one does not reach them."""
REQUEST_PREFIX: Final = "recovery"
LOOK: Final = "recovery"
"""The part that crashes, as its fault names it."""
PLACE: Final = "its place"
"""The same, of the question to placement about one VM."""
_STILL: Final = frozenset({ActionKind.WAIT, ActionKind.HOLD, ActionKind.SEARCH})
"""Actions that say the same again at every look."""
_log = get_logger("recovery")


RECOVERY_TASK: Final = "recovery"
LIVENESS_TASK: Final = "liveness"
FAULTS_TASK: Final = "recovery-faults"


class Work(NamedTuple):
    """One thing that is done in a pass."""

    about: ObjectRef
    what: str
    """As a fault names it, and a log."""
    act: Callable[[], Awaitable[None]]


def _vm_ref(name: str) -> ObjectRef:
    return ObjectRef(kind="VirtualMachine", name=name)


class RecoveryController:
    """All of recovery on one store, see the module. ``run`` until cancelled, which is safe at any moment.

    ``placement`` must name hosts by itself (``needs_candidates`` is false).
    """

    def __init__(
        self,
        store: Store,
        informers: RecoveryInformers,
        *,
        placement: PlacementPort,
        fleet: Fleet,
        demands: Demands,
        caller: Caller,
        metrics: Metrics,
        events: Events,
        decisions: DecisionLog,
        clock: Clock,
        ids: Ids,
        faults: FaultRecorder,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """``turn``: the lock of each task of this process that gives room of ``fleet`` away."""
        pause = PauseGate(store, clock, ids)
        self.informers = self._informers = informers
        self._observer = RecoveryObserver(
            informers,
            clock,
            priority=demands.priority_of,
            incarnation=lambda: str(getattr(store, "incarnation", "")),
        )
        self.liveness = LivenessController(store, informers, self._observer, clock)
        lacks = self._observer.lacks_coordinator
        self._crashes = Crashes(clock, lambda: self._faults.wake())
        self._faults = RecoveryFaults(informers, faults, events, clock, lacks_coordinator=lacks, crashes=self._crashes)
        self._report = RecoveryReporter(events, metrics, clock, self._faults.wake)
        self._actions = RecoveryActions(
            store, informers, self._observer, self._report, pause, decisions=decisions, clock=clock
        )
        self._requests = RequestAnswers(
            store, informers, self._observer, self._actions, pause, decisions=decisions, clock=clock
        )
        metrics.register_collector(self._collect)
        self._placement = placement
        self._fleet = fleet
        self._caller = caller
        self._asked: dict[str, int] = {}
        """VM → number of the last question about it, of those for which a place was searched at the last look."""
        self._questions = 0
        self._room = InFlightRoom(fleet, informers)
        self._decisions = decisions
        self._clock = clock
        self._ids = ids
        self._turn = turn or asyncio.Lock()
        self._wake = asyncio.Event()
        self._proof_at = 0.0
        self._last: dict[str, RecoveryPlan] = {}

    def attach(self, manager: Manager, elector: Elector | None = None) -> None:
        """Run under the manager, while the elector leads."""
        for informer in self._informers.list_all():
            manager.add_informer(informer)
        manager.add_task(RECOVERY_TASK, self.run, elector=elector, after_sync=True)
        manager.add_task(LIVENESS_TASK, self.liveness.run, elector=elector, after_sync=True)
        manager.add_task(FAULTS_TASK, self._faults.run, elector=elector, after_sync=True)

    async def run(self) -> None:
        """Look, plan and act, for ever."""
        self._wake.set()
        ends = [
            self._informers.memberships.subscribe(self._member_changed),
            self._informers.vms.subscribe(self._vm_changed, replay=False),
            self._informers.reservations.subscribe(self._slot_changed, replay=False),
            self._informers.hypervisors.subscribe(self._host_changed, replay=False),
            self._informers.clusters.subscribe(self._cluster_changed, replay=False),
        ]
        try:
            tick_s = TICK_S
            while True:
                await set_within(self._wake, tick_s)
                await self._settle()
                self._wake.clear()
                try:
                    with request_context(greq=new_global_request_id(self._ids, REQUEST_PREFIX), req=""):
                        busy = await self.run_once()
                    self._crashes.record_success(THE_CLUSTER, LOOK)
                    tick_s = TICK_S if busy else IDLE_S
                except Exception as error:  # noqa: BLE001 - a fault says so, and the next look tries all of it again
                    tick_s = TICK_S
                    await self._clock.sleep(self._crashes.record_crash(THE_CLUSTER, LOOK, error))
        finally:
            for end in ends:
                end()

    async def _settle(self) -> None:
        """Let changes gather: briefly, and after a proof until no other has come for ``SETTLE_S``."""
        began = self._clock.monotonic()
        await self._clock.sleep(GATHER_S)
        while True:
            now = self._clock.monotonic()
            left_s = min(self._proof_at + SETTLE_S, began + SETTLE_MOST_S) - now
            if left_s <= 0:
                return
            await self._clock.sleep(left_s)

    # One pass

    async def run_once(self) -> bool:
        """Look at everything once and act; whether anything is under way.

        While the caches are in doubt nothing is done: every host would seem silent, and writes would fail anyway.
        """
        if self._informers.doubtful:
            return True
        due, later = self._requests.due_requests()
        unanswered = await self._do(
            Work(_vm_ref(name), "the answer to its request", partial(self._requests.answer, name)) for name in due
        )
        view = self._observer.observe()
        mismarked = self._observer.find_mismarked()
        work = [
            Work(ObjectRef(kind="Hypervisor", name=name), "its mark", partial(self._actions.mark, name))
            for name in mismarked
        ]
        if self._observer.is_paused():
            work.append(Work(THE_CLUSTER, "its pause", self._actions.name_store))
        # the named places of storage that any host does not reach
        lost = {place for host in self._informers.hypervisors.items() for place in lost_places(host)}
        places = tuple(sorted(place for place in lost if place.partition(":")[2])[:LOST_PLACES])
        cluster = self._informers.clusters.get(CLUSTER)
        if cluster is not None and cluster.status.lost_places != places:
            work.append(Work(THE_CLUSTER, "its lost places", partial(self._actions.name_lost_places, places)))
        work += [
            Work(_vm_ref(name), "its deletion", partial(self._actions.remove, name))
            for name in self._observer.find_removable()
        ]
        plan = self._decide(view, "slots") if view.vms or view.gone else RecoveryPlan()
        searching = [action.vm for action in plan.actions if action.kind is ActionKind.SEARCH]
        if not searching:
            self._report.report_plan(view, plan)
        work += self._build_work(action for action in plan.actions if action.kind is not ActionKind.SEARCH)
        work += [Work(_vm_ref(one.vm), "its claim", partial(self._actions.reclaim, one)) for one in plan.reclaims]
        work += [Work(_vm_ref(one.vm), "its release", partial(self._actions.release, one)) for one in plan.releases]
        failed = await self._do(work)
        if searching:
            failed = await self._place(view, searching) or failed
        return failed or unanswered or later or bool(view.vms)

    async def _place(self, view: RecoveryView, searching: list[str]) -> bool:
        """Find places for VMs without a slot; whether something is to be tried again.

        The planner of slots sees the same room: the lock keeps the two apart until what was given away is
        written.
        """
        async with self._turn:
            known = {vm.id: vm for vm in view.vms}
            states = [known[name] for name in searching]
            vain = find_unplaceable(
                states, self._free_amounts(), lambda name: self._observer.host_state(name).schedulable
            )
            asking = self._next_to_place([vm for vm in states if vm.id not in vain])
            vms = [vm for name in asking if (vm := self._informers.vms.get(name)) is not None]
            offers = {**await self._gather_offers(vms), **dict.fromkeys(vain, ())}
            named = sorted(
                {name for hosts in offers.values() for name in hosts} | {one for vm in states for one in vm.avoid}
            )
            left = self._free_amounts()
            free = {name: left[name] for name in named if name in left}
            plan = self._decide(with_offers(view, offers, free, map(self._observer.host_state, named)), "places")
            self._report.report_plan(view, plan)
            theirs = vain.union(asking)
            return await self._do(self._build_work(action for action in plan.actions if action.vm in theirs))

    def _next_to_place(self, vms: Sequence[AffectedVm]) -> list[str]:
        """Of all VMs that have no place, in the order of restart, those that are asked about at this look, and with
        each of them all that are to be on one host with it."""
        names = [vm.id for vm in vms]
        self._asked = {vm: number for vm, number in self._asked.items() if vm in set(names)}
        chosen = set(select_longest_waiting(names, self._asked, SEARCHES))
        grouped = [vm for vm in vms if any(rule.policy == AFFINITY for rule in vm.rules)]
        for vm in grouped:
            if vm.id in chosen:
                chosen.update(one.id for one in find_companions(vm, grouped))
        return [name for name in select_longest_waiting(names, self._asked, len(names)) if name in chosen]

    def _free_amounts(self) -> dict[str, Free]:
        """Host → what it has left after VMs, all reservations, and VMs that are on their way."""
        return {
            host: Free(cpu_milli=cpu, memory_bytes=memory)
            for host, (cpu, memory) in free_amounts(self._fleet).to_table().items()
        }

    async def _gather_offers(self, vms: Sequence[VirtualMachine]) -> dict[str, tuple[str, ...]]:
        """VM → hosts that may take it, best first; a VM that could not be asked about is left out."""
        found: dict[str, tuple[str, ...]] = {}
        until_s = asyncio.get_running_loop().time() + OFFERS_S
        for vm in vms:
            if not self._crashes.is_due(_vm_ref(vm.name), PLACE):
                continue
            self._questions += 1
            self._asked[vm.name] = self._questions
            try:
                async with asyncio.timeout_at(until_s):
                    found[vm.name] = (await self._placement.offer(self._build_call(vm))).hosts
                self._crashes.record_success(_vm_ref(vm.name), PLACE)
            except TimeoutError:
                _log.warning("recovery.not_placed", vm=vm.name, error=f"placement took longer than {OFFERS_S:g} s")
                break
            except OutliveError as error:
                _log.warning("recovery.not_placed", vm=vm.name, error=str(error))
            except Exception as error:  # noqa: BLE001 - a fault says so; the others are placed
                self._crashes.record_crash(_vm_ref(vm.name), PLACE, error)
        return found

    def _build_call(self, vm: VirtualMachine) -> Call:
        """As for an evacuation by hand."""
        call = self._caller.validate(view_of_resource(vm), "", greq=global_request_id())
        request = msgspec.structs.replace(
            call.request,
            hosts=None,
            options=msgspec.structs.replace(SILENT, read_only=True),
            request_id=self._ids.new_uuid(),
        )
        return Call(kind=call.kind, request=request)

    def _build_work(self, actions: Iterable[RecoveryAction]) -> list[Work]:
        return [
            Work(_vm_ref(action.vm), "its recovery", partial(self._actions.carry_out, action))
            for action in actions
            if not self._actions.is_done(action)
        ]

    def _decide(self, view: RecoveryView, subject: str) -> RecoveryPlan:
        """The plan, recorded when it says something else than the last one, or asks for a write."""
        plan = plan_recovery(view)
        waits = all(action.kind in _STILL for action in plan.actions) and not plan.releases and not plan.reclaims
        if not waits or plan != self._last.get(subject):
            empty = RECOVERY_PLAN.is_empty(plan)
            self._decisions.keep(
                RECOVERY_PLAN, encode_canonical(view), encode_canonical(plan), empty=empty, subject=subject
            )
        self._last[subject] = plan
        return plan

    async def _do(self, work: Iterable[Work]) -> bool:
        """All of it, some at a time, in order; whether something is to be tried again."""
        limit = asyncio.Semaphore(ACTS_AT_ONCE)
        failed = False

        async def do(one: Work) -> None:
            nonlocal failed
            name = f"{one.what} of {one.about.name}"
            async with limit:
                try:
                    await one.act()
                    self._crashes.record_success(one.about, one.what)
                except StepRefused as error:
                    failed = True
                    _log.info("recovery.step_refused", what=name, step=error.refusal.step, why=error.refusal.why)
                except OutliveError as error:
                    failed = True
                    _log.info("recovery.write_failed", what=name, error=str(error), code=error.code)
                except Exception as error:  # noqa: BLE001 - a fault says so; one VM's trouble must not end the others'
                    failed = True
                    self._crashes.record_crash(one.about, one.what, error)

        async with OrderedTaskGroup() as group:
            for one in work:
                if self._crashes.is_due(one.about, one.what):
                    group.create_task(do(one), name=f"recovery {one.what} of {one.about.name}")
                else:
                    failed = True
        return failed

    def _collect(self) -> list[GaugeMetricFamily]:
        """What is wrong with hosts and VMs that nobody recovers for it."""
        hosts, vms = self._informers.hypervisors.items(), self._informers.vms.items()
        found = []
        for name, doc, count in (
            (
                "hosts_without_storage",
                "Hosts that do not reach the storage of VMs on them",
                sum(one.status.storage_lost is not None and one.status.storage_lost.unreached for one in hosts),
            ),
            (
                "vms_without_storage",
                "VMs on their hosts whose disks do not serve them",
                sum(one.status.reason == VmReason.STORAGE_LOST for one in vms),
            ),
            (
                "hosts_quarantined",
                "Hosts that died too often and take no VM",
                sum(one.status.quarantine is not None for one in hosts),
            ),
        ):
            found.append(GaugeMetricFamily(name, doc, value=count))
        return found

    # What wakes

    def _member_changed(self, old: Membership | None, new: Membership | None) -> None:
        if new is None:
            return
        before = old.record if old is not None else None
        if before is None or _watched_facts(before) != _watched_facts(new.record):
            if _proof_epochs(new.record) != (_proof_epochs(before) if before is not None else (0, 0)):
                self._proof_at = self._clock.monotonic()
            self._wake.set()

    def _vm_changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        states = [one.status for one in (old, new) if one is not None]
        came_or_went = len(states) < 2
        in_recovery = any(one.recovery is not None for one in states)
        changed = len({(one.holders, one.assigned, one.rejection) for one in states}) > 1
        asked = new is not None and (is_asked(new) or new.deleting)
        if came_or_went or in_recovery or changed or asked:
            self._wake.set()
        before, now = (one is not None and one.status.reason == VmReason.STORAGE_LOST for one in (old, new))
        if new is not None and old is not None and before != now:
            self._report.report_storage(new, lost=now)
        if old is not None and new is not None and old.host != new.host and new.host and new.spec.affinity_rules:
            self._report.report_soft_rules(new, self._observer.soft_objections(new))

    def _slot_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        if any(one is not None and one.status.consumer is not None for one in (old, new)):
            self._wake.set()

    def _host_changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        if old is None or new is None or _host_facts(old) != _host_facts(new):
            self._wake.set()

    def _cluster_changed(self, _old: Cluster | None, _new: Cluster | None) -> None:
        self._faults.wake()
        self._wake.set()


def _host_facts(host: Hypervisor) -> tuple[object, ...]:
    """What of a host calls for a look."""
    functions = free_functions(host)
    return (host.status.lost, explain_out_of_service(host), host.spec.quarantine_release, functions, *lost_places(host))


def _watched_facts(record: MemberRecord) -> tuple[object, ...]:
    """What of a Membership calls for a look; renewals do not."""
    return (record.state, record.epoch, record.fence.phase, record.incarnation, *_proof_epochs(record))


def _proof_epochs(record: MemberRecord) -> tuple[int, int]:
    return record.dead_through, record.cut.through


def find_unplaceable(
    vms: Iterable[AffectedVm], free: Mapping[str, Free], schedulable: Callable[[str], bool]
) -> frozenset[str]:
    """VMs for which no schedulable host that may run them has room; placement need not be asked. Equal VMs are judged
    once."""
    found: set[str] = set()
    judged: dict[tuple[object, ...], bool] = {}
    for vm in vms:
        kind = (vm.cpu_milli, vm.memory_bytes, vm.host_limit, vm.avoid)
        if kind not in judged:
            judged[kind] = not any(
                is_large_enough(vm, room) and may_run_on(vm, host) and host not in vm.avoid and schedulable(host)
                for host, room in free.items()
            )
        if judged[kind]:
            found.add(vm.id)
    return frozenset(found)


def select_longest_waiting(vms: Iterable[str], asked: Mapping[str, int], most: int) -> list[str]:
    """At most ``most`` of these, whose asking is longest ago or never was; among equals in the order given.

    ``asked``: VM → number of the question. So a VM that placement refuses again and again keeps no other VM from
    it.
    """
    return sorted(vms, key=lambda vm: asked.get(vm, 0))[:most]
