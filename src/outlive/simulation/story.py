"""Plays a story: builds the world, does what the timeline says, looks, and gathers what happened.

The world runs the product; here is only what stands around it. Losses are taken from the simulated machines
themselves, sentences from the history of the world. The same story and seed give the same events.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
import yaml  # type: ignore[import-untyped]

from outlive.base import BadInput, OutliveError
from outlive.recovery.why import WhyAnswer, explain
from outlive.resources import Election, Fault, Membership, MigrationPhase, Resource, VirtualMachine, to_builtins
from outlive.simulation.expectations import Moment
from outlive.simulation.history import HistoryEvent
from outlive.simulation.hypervisors import ACCIDENTS
from outlive.simulation.inventory import complete_objects
from outlive.simulation.judges.rest import is_wanted
from outlive.simulation.scenario import Scenario
from outlive.simulation.spec import WorldSpec, hosts_of
from outlive.simulation.states import find_differences, find_unusual
from outlive.simulation.stores import WorldStore
from outlive.simulation.summary import HeldVm, RunSummary
from outlive.simulation.timeline import FENCER_OF, HOST_OF, LEADER, Act
from outlive.simulation.world import MakeStore, World

LOOK_S: Final = 0.05
"""How often an act that waits for something looks for it."""
TICK_S: Final = 1.0
"""How often somebody who waits is shown how far it is."""
_ASKED_PHASES: Final = ("stop", "shutdown", "restart", "disable", "migrate", "migrate-live")
"""Phases in which an end was asked for."""
FAST_S: Final = 30.0
STEADY_S: Final = 90.0
"""A VM that was lost so shortly before the end may be down without anybody saying why: by the profile of its hosts."""


class PlayedStory(NamedTuple):
    """A story that was played."""

    summary: RunSummary
    failed: tuple[str, ...]
    """What was not as expected."""
    events: tuple[HistoryEvent, ...]
    """What the story prints."""
    trace_hash: str
    states: dict[str, Any]
    """What stands out at the end, as expectations say it."""
    why: WhyAnswer | None = None
    """The chain of the VM or host that was asked about."""


class Story:
    """One run of one scenario."""

    tolerance_s = 0.0
    """So much later than it says everything may come."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int,
        replay: str,
        inventory: Sequence[Resource] = (),
        tick: Callable[[int], None] | None = None,
        why: str = "",
        everything: bool = False,
        store: MakeStore = WorldStore,
    ) -> None:
        """``why``: a VM or host whose chain is wanted at the end; ``everything``: asides are to be printed as well."""
        self.scenario = scenario
        self._asked = why
        self.world = World(scenario.spec, seed=seed, replay=replay, store=store)
        self.failed: list[str] = []
        self._events: list[HistoryEvent] = []
        self._everything = everything
        self._seed = seed
        self._replay = replay
        self._inventory = inventory
        self._tick = tick
        self._begun_s = 0.0
        self._losses = VmOutages(self.world, recovery_limit_s(scenario.spec))

    @property
    def now_s(self) -> float:
        """Virtual seconds since the story began."""
        return self.world.clock.monotonic() - self._begun_s

    async def play(self) -> PlayedStory:
        """From the first start to the last look."""
        world = self.world
        await world.build()
        if self._inventory:
            world.store.load(complete_objects(world, self._inventory))
        world.history.listen(self._note_event)
        self._begun_s = world.clock.monotonic()
        await world.start(running=bool(self._inventory))
        try:
            await self._run()
            return await self._end()
        finally:
            await world.stop()

    async def _end(self) -> PlayedStory:
        """How it stands now, before the machines are switched off."""
        self.world.judge.judge_rest(self._losses.recent_losses())
        vms = self.world.store.list_all(VirtualMachine)
        records = [vm.status.recovery for vm in vms if vm.status.recovery is not None]
        recovered = [one for one in records if one.phase == "recovered" and one.host and one.host != one.origin]
        summary = RunSummary(
            seed=self._seed,
            virtual_s=self.now_s,
            vms=len(vms),
            lost=self._losses.lost,
            recovered=len(recovered),
            in_promised_slot=sum(one.promised for one in recovered),
            in_contested_slot=sum(one.contested for one in recovered),
            moved_there=sum(one.moved_there for one in recovered),
            took_s=self._losses.took_s(),
            held_vms=self._losses.find_missing(),
            violations=tuple(self.world.violations),
            replay=self._replay,
        )
        self.failed += self.scenario.expect.find_unmet(summary, tuple(self.world.history.events), self.tolerance_s)
        trace = self.world.history.trace_hash()
        chain = await explain(self.world.store, self._asked, await self.world.read_sight()) if self._asked else None
        return PlayedStory(summary, tuple(self.failed), tuple(self._events), trace, find_unusual(self.world), chain)

    async def _run(self) -> None:
        """Acts with a time and moments in the order of time; between them, acts that wait."""
        timed: list[tuple[float, int, Any]] = [(act.at_s, 0, act) for act in self.scenario.acts if act.when is None]
        timed += [(moment.at, 1, moment) for moment in self.scenario.expect.at]
        timed.append((self.scenario.until_s, 2, None))
        waiting = [_Waiting(act) for act in self.scenario.acts if act.when is not None]
        for at_s, what, entry in sorted(timed, key=lambda one: one[:2]):
            await self._run_until(at_s, waiting)
            if what == 0:
                await self._do(entry)
            elif what == 1:
                self._check_moment(entry)
        self.failed += [
            f"{one.act.place}: {one.act.verb} waited in vain: {'; '.join(one.lacks)}" for one in waiting if not one.done
        ]

    async def _run_until(self, at_s: float, waiting: Sequence[_Waiting]) -> None:
        while self.now_s < at_s:
            pending = [one for one in waiting if not one.done]
            if self._tick is not None:
                self._tick(int(self.now_s))
            if not pending:
                await self.world.clock.sleep(min(TICK_S, at_s - self.now_s))
                continue
            for one in pending:
                await self._try_act(one)
            await self.world.clock.sleep(min(LOOK_S, max(0.0, at_s - self.now_s)))

    def _check_moment(self, moment: Moment) -> None:
        """The time of a moment has come."""
        self.failed += [f"at {moment.at:g} s: {text}" for text in find_differences(self.world, moment)]

    async def _try_act(self, one: _Waiting) -> None:
        """An act is done once what it waits for was seen, and its time after that has passed."""
        assert one.act.when is not None
        if one.seen_s is None:
            one.lacks = find_differences(self.world, one.act.when)
            before = self.scenario.acts[: self.scenario.acts.index(one.act)]
            # acts that wait do not overtake acts with a time that are written before them
            if one.lacks or not all(act.at_s <= self.now_s for act in before if act.when is None):
                return
            one.seen_s = self.now_s
        if self.now_s >= one.seen_s + one.act.at_s:
            one.done = True
            await self._do(one.act)

    async def _do(self, act: Act) -> None:
        try:
            # things that are named by what they do at this moment get their names
            arguments = {
                key: tuple(map(self._name, value)) if key in ("hosts", "names") else self._name(value)
                for key, value in act.arguments.items()
            }
            await self.world.do(act.verb, arguments)
        except OutliveError as error:
            error.place = error.place or act.place
            raise

    def _name(self, value: Any) -> Any:
        store = self.world.store
        if not isinstance(value, str):
            return value
        if value.startswith(FENCER_OF):
            host = value.removeprefix(FENCER_OF)
            member = store.find(Membership, host)
            if member is None or not member.record.fence.by:
                raise BadInput(
                    f"{format_moment(self.now_s)} nobody fences {host}",
                    remedy="write when: to wait until somebody does",
                )
            return member.record.fence.by
        if value.startswith(HOST_OF):
            name = value.removeprefix(HOST_OF)
            vm = store.find(VirtualMachine, name)
            if vm is None or vm.status.assigned is None:
                raise BadInput(
                    f"{format_moment(self.now_s)} {name} is on no host", remedy="write when: to wait until it is"
                )
            return vm.status.assigned.hypervisor
        if value == LEADER:
            holders = [one.record.holder for one in store.list_all(Election)]
            return next((name for name in self.world.controllers for one in holders if one.startswith(name)), value)
        return value

    def _note_event(self, event: HistoryEvent) -> None:
        self._losses.note_event(event)
        if event.loud or self._everything:
            self._events.append(msgspec.structs.replace(event, at_s=event.at_s - self._begun_s))


def format_moment(seconds: float) -> str:
    """A moment, as complaints name it."""
    return f"at {seconds:.1f} s"


class _Waiting:
    """An act that waits for something."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.seen_s: float | None = None
        self.done = False
        self.lacks: list[str] = ["its turn did not come"]


def format_proposal(ended: PlayedStory) -> str:
    """The text of the file."""
    summary = ended.summary
    wanted: dict[str, Any] = {"at": [{"at": f"{summary.virtual_s:g}s", **ended.states}]}
    if summary.took_s:
        wanted["recoveredWithin"] = {f"{math.ceil(summary.took_s[-1])}s": len(summary.took_s)}
    wanted["lost"] = summary.lost
    wanted["recovered"] = summary.recovered
    if summary.recovered:
        share = 100 * summary.in_promised_slot // summary.recovered
        wanted["inPromisedSlot"] = f"{share}%"
    held = {one.vm: one.reason for one in summary.held_vms}
    wanted["held"] = held or "none"
    names = sorted({one.invariant for one in summary.violations})
    wanted["violations"] = names or "none"
    wanted["until"] = f"{summary.virtual_s:g}s"
    text: str = yaml.safe_dump(to_builtins(wanted), sort_keys=False, allow_unicode=True, width=120)
    return f"# Proposed from seed {summary.seed}: say whether this is what should happen.\n{text}"


COLLECT_S: Final = 120
"""Virtual seconds between two collections."""


@contextmanager
def collect_rarely() -> Iterator[Callable[[int], None]]:
    """Collect only when what this yields is called with a second that it is time in."""
    was = gc.isenabled()
    gc.disable()

    def collect_at(second: int) -> None:
        if second % COLLECT_S == COLLECT_S - 1:
            gc.collect()

    try:
        yield collect_at
    finally:
        if was:
            gc.enable()


def recovery_limit_s(spec: WorldSpec) -> float:
    """How soon a lost VM runs again, or something says why it does not."""
    steady = spec.policy.profile == "steady" or any(one.armed or one.profile == "steady" for one in hosts_of(spec))
    return STEADY_S if steady else FAST_S


class VmOutages:
    """Which VMs ran nowhere although somebody wants them to, from when to when, by the machines and not by the store.

    A VM is lost at the moment its last running domain ends without anybody having asked for that, and is back at the
    moment one runs again. Ends that were asked for (a stop, a cold move, a restart) are no losses; what dies in the
    middle of one, with its host or by itself, is lost all the same.
    """

    def __init__(self, world: World, back_within_s: float) -> None:
        self._world = world
        self._back_within_s = back_within_s
        self._running: dict[str, bool] = {}
        self._lost_at: dict[str, float] = {}
        self._longest: dict[str, float] = {}
        self._ever: dict[str, None] = {}

    @property
    def lost(self) -> int:
        """VMs that were lost at least once."""
        return len(self._ever)

    def note_event(self, event: HistoryEvent) -> None:
        """Called with every event; those of domains are looked at."""
        if event.kind != "domain":
            return
        vm = event.subject
        runs = bool(self._world.running_hosts(vm))
        before = self._running.get(vm, False)
        self._running[vm] = runs
        accident = event.text.endswith(ACCIDENTS)
        if not runs and (before or accident) and vm not in self._lost_at and self._is_missed(vm, accident):
            self._lost_at[vm] = event.at_s
            self._ever[vm] = None
        elif runs and vm in self._lost_at:
            took_s = event.at_s - self._lost_at.pop(vm)
            self._longest[vm] = max(took_s, self._longest.get(vm, 0.0))

    def _is_missed(self, name: str, accident: bool) -> bool:
        """Whether it should run, and nobody asked for its end."""
        vm = self._world.store.find(VirtualMachine, name)
        if vm is None or not is_wanted(vm, daemons=self._world.spec.daemons):
            return False
        if accident:
            return True
        if vm.status.phase in _ASKED_PHASES:
            return False
        moved = vm.status.migration
        return moved is None or moved.phase is MigrationPhase.ABORTED

    def took_s(self) -> tuple[float, ...]:
        """The longest loss of each VM that is back, shortest first."""
        return tuple(sorted(took for vm, took in self._longest.items() if vm not in self._lost_at))

    def recent_losses(self) -> Collection[str]:
        """VMs that were lost too short a time ago for anything to be said of them."""
        now = asyncio.get_running_loop().time()
        return {vm: None for vm, at_s in self._lost_at.items() if now - at_s < self._back_within_s}

    def find_missing(self) -> tuple[HeldVm, ...]:
        """VMs that should run and run nowhere, with what is said of them."""
        faults = {one.subject.name: one for one in reversed(self._world.store.list_all(Fault)) if not one.ended}
        recent = self.recent_losses()
        vms = self._world.store.list_all(VirtualMachine)
        return tuple(
            _describe_held(vm, faults.get(vm.name), recent=vm.name in recent)
            for vm in vms
            if is_wanted(vm, daemons=self._world.spec.daemons) and not self._world.running_hosts(vm.name)
        )


def _describe_held(vm: VirtualMachine, fault: Fault | None, *, recent: bool) -> HeldVm:
    recovery = vm.status.recovery
    if recovery is not None and recovery.reason:
        return HeldVm(vm=vm.name, reason=f"{recovery.reason}: {recovery.message}", remedy=recovery.remedy)
    if fault is not None:
        return HeldVm(vm=vm.name, reason=fault.message, remedy=fault.remedy)
    if recent:
        return HeldVm(vm=vm.name, reason="the end came too soon after its loss", remedy="simulate longer")
    return HeldVm(vm=vm.name, reason=vm.status.message or "nothing says why it does not run")
