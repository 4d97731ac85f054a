"""Plays a story: builds the world, does what the timeline says, looks, and tells what happened.

The world runs the product; here is only what stands around it. Losses are taken from the simulated machines
themselves, sentences from the writes to the store (``narration``) and from what the timeline did. The same story and
seed give the same telling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from outlive.base.errors import BadInput, OutliveError
from outlive.base.wording import count_of, listing
from outlive.recovery.why import Why, why
from outlive.resources import Election, Membership, Resource, VirtualMachine
from outlive.simulation.expectations import Moment, judge_events, judge_summary
from outlive.simulation.history import HistoryEvent
from outlive.simulation.inventory import laid_over
from outlive.simulation.losses import Losses, back_within_s
from outlive.simulation.narration import NAMES_SHOWN, Told, grouped, narrate, narrate_guard, narrate_machine
from outlive.simulation.scenario import Scenario
from outlive.simulation.spec import WorldSpec
from outlive.simulation.states import differences, standing_out
from outlive.simulation.stores import Author, WorldStore
from outlive.simulation.summary import Summary
from outlive.simulation.timeline import FENCER_OF, HOST_OF, LEADER, Act
from outlive.simulation.world import MakeStore, World
from outlive.store.tables import Write

LOOK_S: Final = 0.05
"""How often an act that waits for something looks for it."""
TICK_S: Final = 1.0
"""How often somebody who waits is told how far it is."""
_MACHINE_KINDS: Final = ("machine", "process")
"""Kinds of history that are told as they are."""


class ToldWorld(World):
    """A world whose every write is heard by the story."""

    def __init__(
        self,
        spec: WorldSpec,
        *,
        seed: int,
        replay: str,
        heard: Callable[[Resource | None, Resource | None], None],
        store: MakeStore = WorldStore,
    ) -> None:
        super().__init__(spec, seed=seed, replay=replay, store=store)
        self._heard = heard

    def _wrote(self, write: Write, author: Author) -> None:
        super()._wrote(write, author)
        self._heard(write.before, write.after)


class Ended(NamedTuple):
    """A story that was played."""

    summary: Summary
    failed: tuple[str, ...]
    """What was not as expected."""
    told: tuple[Told, ...]
    trace_hash: str
    states: dict[str, Any]
    """What stands out at the end, as expectations say it."""
    why: Why | None = None
    """The chain of the VM or host that was asked about."""


class Story:
    """One run of one scenario."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int,
        replay: str,
        inventory: Sequence[Resource] = (),
        tick: Callable[[int], None] | None = None,
        why: str = "",
        store: MakeStore = WorldStore,
    ) -> None:
        """``why``: a VM or host whose chain is wanted at the end."""
        self.scenario = scenario
        self._asked = why
        self.world = ToldWorld(scenario.spec, seed=seed, replay=replay, heard=self._wrote, store=store)
        self._expect = scenario.expect
        self.told: list[Told] = []
        self.failed: list[str] = []
        self._seed = seed
        self._replay = replay
        self._inventory = inventory
        self._tick = tick
        self._begun_s = 0.0
        self._losses = Losses(self.world, back_within_s(scenario.spec))

    @property
    def now_s(self) -> float:
        """Virtual seconds since the story began."""
        return self.world.clock.monotonic() - self._begun_s

    async def play(self) -> Ended:
        """From the first start to the last look."""
        world = self.world
        await world.build()
        if self._inventory:
            world.store.load(laid_over(world, self._inventory))
        world.history.listen(self._happened)
        self._begun_s = world.clock.monotonic()
        await world.start(running=bool(self._inventory))
        try:
            await self._run()
            return await self._end()
        finally:
            await world.stop()

    async def _end(self) -> Ended:
        """How it stands now, before the machines are switched off."""
        self.world.judge.rest(self._losses.recent())
        expect, summary = self._expect, self._summary()
        self.failed += judge_events(expect, tuple(self.world.history.events))
        self.failed += judge_summary(expect, summary)
        trace = self.world.history.trace_hash()
        told = await why(self.world.store, self._asked) if self._asked else None
        return Ended(summary, tuple(self.failed), tuple(self.told), trace, standing_out(self.world), told)

    async def _run(self) -> None:
        """Acts with a time and moments in the order of time; between them, acts that wait."""
        timed: list[tuple[float, int, Any]] = [(act.at_s, 0, act) for act in self.scenario.acts if act.when is None]
        timed += [(moment.at_s, 1, moment) for moment in self.scenario.expect.moments]
        timed.append((self.scenario.until_s, 2, None))
        waiting = [_Waiting(act) for act in self.scenario.acts if act.when is not None]
        for at_s, what, entry in sorted(timed, key=lambda one: one[:2]):
            await self._until(at_s, waiting)
            if what == 0:
                await self._do(entry)
            elif what == 1:
                self._look_at(entry)
        self.failed += [
            f"{one.act.place}: {one.act.verb} waited in vain: {'; '.join(one.lacks)}" for one in waiting if not one.done
        ]

    async def _until(self, at_s: float, waiting: Sequence[_Waiting]) -> None:
        while self.now_s < at_s:
            pending = [one for one in waiting if not one.done]
            if self._tick is not None:
                self._tick(int(self.now_s))
            if not pending:
                await self.world.clock.sleep(min(TICK_S, at_s - self.now_s))
                continue
            for one in pending:
                await self._look(one)
            await self.world.clock.sleep(min(LOOK_S, max(0.0, at_s - self.now_s)))

    def _look_at(self, moment: Moment) -> None:
        """The time of a moment has come."""
        self.failed += [f"at {moment.at_s:g} s: {text}" for text in differences(self.world, moment.states)]

    async def _look(self, one: _Waiting) -> None:
        """An act is done once what it waits for was seen, and its time after that has passed."""
        assert one.act.when is not None
        if one.seen_s is None:
            one.lacks = differences(self.world, one.act.when)
            if one.lacks or not self._in_turn(one):
                return
            one.seen_s = self.now_s
        if self.now_s >= one.seen_s + one.act.at_s:
            one.done = True
            await self._do(one.act)

    def _in_turn(self, one: _Waiting) -> bool:
        """Acts that wait do not overtake acts with a time that stand before them."""
        before = self.scenario.acts[: self.scenario.acts.index(one.act)]
        return all(act.at_s <= self.now_s for act in before if act.when is None)

    async def _do(self, act: Act) -> None:
        try:
            act = msgspec.structs.replace(act, arguments=self._resolved(act.arguments))
            self._tell(Told(subject="", text=sentence_of(act, self.world)))
            await self.world.do(act.verb, act.arguments)
        except OutliveError as error:
            error.place = error.place or act.place
            raise

    def _resolved(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with those named by what they do at this moment replaced by their names."""
        return {
            key: tuple(map(self._name, value)) if key in ("hosts", "names") else self._name(value)
            for key, value in arguments.items()
        }

    def _name(self, value: Any) -> Any:
        store = self.world.store
        if not isinstance(value, str):
            return value
        if value.startswith(FENCER_OF):
            host = value.removeprefix(FENCER_OF)
            member = store.look(Membership, host)
            if member is None or not member.record.fence.by:
                raise BadInput(
                    f"{at(self.now_s)} nobody fences {host}", remedy="write when: to wait until somebody does"
                )
            return member.record.fence.by
        if value.startswith(HOST_OF):
            name = value.removeprefix(HOST_OF)
            vm = store.look(VirtualMachine, name)
            if vm is None or vm.status.assigned is None:
                raise BadInput(f"{at(self.now_s)} {name} is on no host", remedy="write when: to wait until it is")
            return vm.status.assigned.hypervisor
        if value == LEADER:
            holders = [one.record.holder for one in store.all_of(Election)]
            return next((name for name in self.world.controllers for one in holders if one.startswith(name)), value)
        return value

    def _wrote(self, before: Resource | None, after: Resource | None) -> None:
        for told in narrate(before, after):
            self._tell(told)

    def _happened(self, event: HistoryEvent) -> None:
        self._losses.happened(event)
        if event.kind == "guard":
            self._tell(narrate_guard(event))
        elif event.kind == "store":
            self._tell(Told(subject="", text=event.text))
        elif event.kind in _MACHINE_KINDS:
            self._tell(narrate_machine(event))

    def _tell(self, told: Told) -> None:
        self.told.append(msgspec.structs.replace(told, at_s=self.now_s))

    def _summary(self) -> Summary:
        vms = self.world.store.all_of(VirtualMachine)
        records = [vm.status.recovery for vm in vms if vm.status.recovery is not None]
        recovered = [one for one in records if one.phase == "recovered" and one.host and one.host != one.origin]
        return Summary(
            seed=self._seed,
            virtual_s=self.now_s,
            vms=len(vms),
            lost=self._losses.lost,
            recovered=len(recovered),
            in_promised_slot=sum(one.promised for one in recovered),
            in_contested_slot=sum(one.contested for one in recovered),
            moved_there=sum(one.moved_there for one in recovered),
            took_s=self._losses.took_s(),
            held_vms=self._losses.still_missing(),
            violations=tuple(self.world.violations),
            replay=self._replay,
        )


def at(seconds: float) -> str:
    """A moment, as complaints name it."""
    return f"at {seconds:.1f} s"


class _Waiting:
    """An act that waits for something."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.seen_s: float | None = None
        self.done = False
        self.lacks: list[str] = ["its turn did not come"]


def sentence_of(act: Act, world: World) -> str:
    """What the timeline does, as a sentence."""
    what = act.arguments
    hosts = what.get("hosts") or ((what["host"],) if "host" in what else ())
    if not hosts and "domain" in what:
        hosts = world.domains_of(what["domain"])
    who = names(hosts, "host")
    template = _SENTENCES.get(act.verb, "{verb}: {details}")
    words = {
        "verb": act.verb,
        "who": what["domain"].replace("=", " ") if "domain" in what else who,
        "s": "" if len(hosts) > 1 and "domain" not in what else "s",
        "vms": names(what.get("vms", (what["vm"],) if "vm" in what else ()), "VM"),
        "for": f" for {what['for']:g} s" if "for" in what else "",
        "details": ", ".join(f"{key} {_said(value)}" for key, value in what.items()),
        **{key: what.get(key, "") for key in ("to", "mode", "network", "reason", "name", "verb_", "rate", "jump")},
    }
    text = template.format(**words)
    return f"{text}: {who}" if "domain" in what else text.removesuffix(": ")


def _said(value: Any) -> str:
    return listing(value) if isinstance(value, tuple) else str(value)


def names(of: Iterable[str], noun: str) -> str:
    """A few names, or their number."""
    some = list(of)
    if not some:
        return f"no {noun}"
    return listing(some) if len(some) <= NAMES_SHOWN else f"{count_of(len(some), noun)} ({some[0]}, {some[1]}, …)"


_SENTENCES: Final = {
    "power-off": "{who} lose{s} power",
    "power-on": "{who} get{s} power again",
    "pause-host": "{who} stand{s} still{for}",
    "resume-host": "{who} go{s} on",
    "kill-daemon": "the daemon of {who} dies",
    "stop-daemon": "the daemon of {who} is stopped",
    "start-daemon": "the daemon of {who} is started",
    "pause-daemon": "the daemon of {who} stands still{for}",
    "hog-daemon": "the daemon of {who} computes{for} and answers nobody",
    "resume-daemon": "the daemon of {who} goes on",
    "migration-fails": "the next live move from {who} will fail: {details}",
    "lost-answers": "the hypervisor of {who} does not always answer: {details}",
    "unkillable": "the process of {vms} hangs in the kernel",
    "kill-guard": "the guard of {who} dies",
    "cut": "{who} cannot reach the {network} network any more",
    "heal": "{who} can reach the {network} network again",
    "bmc": "the power controller of {who} is {mode} {to}",
    "store-outage": "nobody reaches the store{for}",
    "store-heal": "everybody reaches the store again",
    "store-faults": "the store loses some answers: {details}",
    "store-snapshot": "somebody makes a backup of the store",
    "store-restore": "somebody restores the backup of the store",
    "clock": "the clock of {who} goes wrong: {details}",
    "start-fails": "VMs cannot start: {details}",
    "slow-starts": "VMs take long to start on {who}",
    "guest-ignores-shutdown": "the guest of {vms} will not react when asked to end",
    "guest-crash": "the guest of {vms} crashes",
    "lock-disks": "somebody has the disks of {vms} open",
    "unlock-disks": "the disks of {vms} are closed again",
    "watchdog-broken": "the watchdog of {who} is broken",
    "kill-controller": "a controller dies: {details}",
    "start-controller": "a controller is started: {details}",
    "pause-controller": "a controller stands still{for}: {details}",
    "resume-controller": "a controller goes on: {details}",
    "move": "somebody moves {vms} to {to}",
    "request": "a user asks: {details}",
    "drain": "somebody empties {who}",
    "ready": "{who} may take VMs again",
    "maintenance": "somebody announces work, or its end: {details}",
    "arm": "the guard of {who} is to be armed",
    "disarm": "the guard of {who} is to be disarmed",
    "confirm-off": "{name} says that {who} is off: {reason}",
    "fence": "an operator condemns {who}",
    "call-off-fence": "an operator calls off that {who} is fenced",
    "create-vm": "somebody creates {vms}",
    "delete-vm": "somebody deletes {vms}",
    "delete-membership": "somebody deletes the membership of {who}",
    "delete-host": "somebody deletes {who} from the store",
    "apply-host": "somebody applies the document of {who} again",
    "replace-machine": "another machine is put up under the name of {who}",
    "forget-membership": "somebody deletes what {who} remembers of its membership",
    "accept-machine": "somebody accepts the machine that is now {who}",
    "second-daemon": "somebody starts a second daemon on {who}",
    "set-policy": "the policy of fencing changes: {details}",
    "confirm-incarnation": "somebody vouches for the restored store",
    "release": "somebody lets fencing go on",
}
"""What is told of each verb."""


def lines_of(told: Sequence[Told], *, everything: bool = False) -> list[str]:
    """The story as a log: time and sentence.

    Without ``everything``, equal sentences are one line, and asides are left out.
    """
    shown = list(told) if everything else grouped([one for one in told if one.loud])
    return [f"{one.at_s:7.1f} s  {one.text}" for one in shown]
