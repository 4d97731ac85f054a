"""Stories about storage: folders as all scenarios are, whose cluster file names nodes instead of hosts.

Acts have a time (``at``); what must hold at a moment are facts of pods and nodes, as they really are:
a pod's ``writes`` is the node on which its writes complete (docs/reference/scenarios-storage.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import yaml  # type: ignore[import-untyped]

from outlive.base import OutliveError, count_of, parse_duration
from outlive.resources import Problems
from outlive.resources.foreign import KubernetesNode, KubernetesPod, VolumeAttachment
from outlive.runtime import Duration
from outlive.simulation.expectations import AFTER_S, Share, WantedEvents, judge_violations, missing_share
from outlive.simulation.history import HistoryEvent
from outlive.simulation.judges.truth import InvariantViolation
from outlive.simulation.kubernetes.documents import node_of, resources_used, taints_of
from outlive.simulation.kubernetes.judges import OWN_TAINTS, WantedPod
from outlive.simulation.kubernetes.server import is_ready
from outlive.simulation.kubernetes.spec import REMEDY, StorageSpec, nodes_of, read_storage_spec
from outlive.simulation.kubernetes.verbs import STORAGE_VERBS
from outlive.simulation.kubernetes.world import MakeAgent, MakeVolumes, StorageWorld
from outlive.simulation.scenario import CLUSTER, EXPECT, README, TIMELINE, read_line, read_value
from outlive.simulation.spec import FromFile, read_as
from outlive.simulation.states import is_match, show_value
from outlive.simulation.story import format_moment
from outlive.simulation.summary import VIOLATIONS_SHOWN, percentile_of, round_ms
from outlive.simulation.timeline import Act, read_timeline

TICK_S: Final = 1.0
"""How often somebody who waits is shown how far it is."""
POD_FACTS: Final = ("writes", "nodes", "attached")
NODE_FACTS: Final = ("ready", "taints", "power")


class StorageMoment(FromFile, frozen=True, kw_only=True):
    """Facts that must hold at one time."""

    at: Duration
    pod: dict[str, dict[str, Any]] = {}
    """Of a pod of a StatefulSet, or by its name of a Deployment: ``writes`` (a node, null: none), ``nodes`` that its
    pods are bound to, ``attached`` (nodes)."""
    node: dict[str, dict[str, Any]] = {}
    """``ready``, ``taints`` (of the agent, without their prefix), ``power``."""


class StorageExpectations(FromFile, frozen=True, kw_only=True):
    """The ``expect.yaml`` of a storage story."""

    at: tuple[StorageMoment, ...] = ()
    events: WantedEvents = WantedEvents()
    back_within: dict[str, Share] = {}
    """Duration after a pod went down → how many of the outages were over by then."""
    down: tuple[str, ...] = ()
    """Pods that do not write at the end; exactly these."""
    recovered: bool = False
    """At the end every node is ready and without the agent's taints, and nothing is attached without a pod."""
    violations: Literal["none"] | tuple[str, ...] = ()
    until: Duration | None = None


class StorageScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One story."""

    name: str
    line: str
    spec: StorageSpec
    acts: tuple[Act, ...] = ()
    expect: StorageExpectations = StorageExpectations()

    @property
    def until_s(self) -> float:
        """How long it runs: as long as it says, or until nothing is left to do or to judge."""
        if self.expect.until is not None:
            return self.expect.until
        last = max((act.at_s for act in self.acts), default=0.0)
        return max([last + AFTER_S, *(moment.at for moment in self.expect.at)])


class StorageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    seed: int
    virtual_s: float
    pods: int
    outages_s: tuple[float, ...] = ()
    """Of those that are over, shortest first."""
    down: tuple[str, ...] = ()
    """Pods that do not write now."""
    calls: Mapping[str, int] = {}
    """Of all agents, by verb and kind."""
    violations: tuple[InvariantViolation, ...] = ()
    replay: str = ""

    def to_document(self, failed: Sequence[str] = ()) -> dict[str, Any]:
        """What programs read (docs/reference/scenarios-storage.md)."""
        return {
            "seed": self.seed,
            "virtualSeconds": round(self.virtual_s, 3),
            "violations": [
                {"invariant": one.invariant, "at": round(one.at_s, 3), "subject": one.subject, "text": one.text}
                for one in self.violations
            ],
            "failed": list(failed),
            "pods": self.pods,
            "outages": len(self.outages_s),
            "down": list(self.down),
            "times": {
                name: round_ms(percentile_of(self.outages_s, share))
                for name, share in (("p50", 50), ("p99", 99), ("max", 100))
            },
            "calls": dict(self.calls),
            "replay": self.replay,
        }

    def format_lines(self) -> list[str]:
        """The same for people."""
        lines = [f"{self.virtual_s:.0f} virtual seconds, seed {self.seed}, {count_of(self.pods, 'pod')} with a volume"]
        if self.outages_s:
            p50, most = percentile_of(self.outages_s, 50) or 0.0, self.outages_s[-1]
            lines.append(
                f"back       {count_of(len(self.outages_s), 'outage')}: {p50:.0f} s (half), {most:.0f} s (all)"
            )
        if self.down:
            lines.append(f"down       {', '.join(self.down)}")
        if self.calls:
            lines.append(f"calls      {', '.join(f'{count} {what}' for what, count in self.calls.items())}")
        if not self.violations:
            lines.append("safety     no volume had two writers, and no healthy pod was removed")
        for one in self.violations[:VIOLATIONS_SHOWN]:
            lines.append(f"VIOLATED   {one.invariant} at {one.at_s:.1f} s, {one.subject}: {one.text}")
        if self.violations and self.replay:
            lines.append(f"  again with: {self.replay}")
        return lines


class StorageEnded(NamedTuple):
    """A story that was played."""

    summary: StorageSummary
    failed: tuple[str, ...]
    """What was not as expected."""
    events: tuple[HistoryEvent, ...]
    """What the story prints."""
    trace_hash: str
    states: dict[str, Any]
    """How it stands at the end, as expectations say it."""


def read_storage_scenario(folder: Path, *, expected: bool = True) -> StorageScenario:
    """The scenario of a folder; ``NotFound``, ``BadInput`` with all mistakes."""
    problems = Problems()
    line = read_line(folder / README, problems)
    spec = read_storage_spec(read_value(folder / CLUSTER), str(folder / CLUSTER), problems)
    acts = read_timeline(read_value(folder / TIMELINE), str(folder / TIMELINE), problems, STORAGE_VERBS)
    expect: StorageExpectations | None = StorageExpectations()
    if expected or (folder / EXPECT).exists():
        place = str(folder / EXPECT)
        expect = read_as(read_value(folder / EXPECT) or {}, StorageExpectations, place, problems, REMEDY)
    if spec is not None and expect is not None and not problems.shown:
        _check_names(spec, acts, expect, folder, problems)
    problems.check()
    assert spec is not None
    assert expect is not None
    return StorageScenario(name=folder.name, line=line, spec=spec, acts=acts, expect=expect)


def _check_names(
    spec: StorageSpec, acts: Sequence[Act], expect: StorageExpectations, folder: Path, problems: Problems
) -> None:
    nodes = {node.name: None for node in nodes_of(spec)}
    domains = {node.domain: None for node in nodes_of(spec) if node.domain}
    pods = {one.pod: None for one in WantedPod.from_spec(spec)}
    for act in acts:
        if act.when is not None:
            problems.add(act.place, "when is not for stories about storage", "write at: with a time")
        if act.at_s > (expect.until or act.at_s):
            problems.add(act.place, f"it is after the end ({expect.until:g} s)", "let the story end later")
        linked = [name for pair in act.arguments.get("between", ()) for name in pair]
        _check_exist([*(act.arguments.get("nodes") or ()), *linked], nodes, "node", act.place, problems)
        if act.arguments.get("domain"):
            _check_exist((act.arguments["domain"],), domains, "failure domain", act.place, problems)
    for moment in expect.at:
        place = f"{folder / EXPECT}: at {moment.at:g} s"
        _check_exist(moment.pod, pods, "pod", place, problems)
        _check_exist(moment.node, nodes, "node", place, problems)
        for facts, known in (
            *((one, POD_FACTS) for one in moment.pod.values()),
            *((one, NODE_FACTS) for one in moment.node.values()),
        ):
            _check_exist(facts, dict.fromkeys(known), "fact", place, problems)
        if moment.at > (expect.until or moment.at):
            problems.add(place, f"it is after the end ({expect.until:g} s)", "let the story end later")
    for limit in expect.back_within:
        read_as(limit, Duration, f"{folder / EXPECT}: backWithin", problems, REMEDY)
    _check_exist(expect.down, pods, "pod", f"{folder / EXPECT}: down", problems)


def _check_exist(names: Iterable[str], known: Mapping[str, None], noun: str, place: str, problems: Problems) -> None:
    for name in names:
        if name not in known:
            problems.add(place, f"there is no {noun} {name!r}", f"there are {', '.join(list(known)[:12]) or 'none'}")


class StorageStory:
    """One run of one scenario."""

    def __init__(
        self,
        scenario: StorageScenario,
        *,
        seed: int,
        replay: str,
        make_agent: MakeAgent,
        make_volumes: MakeVolumes,
        tick: Callable[[int], None] | None = None,
        everything: bool = False,
    ) -> None:
        self.scenario = scenario
        self.world = StorageWorld(
            scenario.spec, seed=seed, make_agent=make_agent, make_volumes=make_volumes, replay=replay
        )
        self.failed: list[str] = []
        self._events: list[HistoryEvent] = []
        self._tick = tick
        self._everything = everything
        self._begun_s = 0.0

    @property
    def now_s(self) -> float:
        """Virtual seconds since the story began."""
        return self.world.clock.monotonic() - self._begun_s

    async def play(self) -> StorageEnded:
        """From the first start to the last look."""
        world = self.world
        await world.build()
        world.history.listen(self._take)
        self._begun_s = world.clock.monotonic()
        await world.start()
        try:
            await self._run()
            return self._end()
        finally:
            await world.stop()

    async def _run(self) -> None:
        timed: list[tuple[float, int, Any]] = [(act.at_s, 0, act) for act in self.scenario.acts]
        timed += [(moment.at, 1, moment) for moment in self.scenario.expect.at]
        timed.append((self.scenario.until_s, 2, None))
        for at_s, what, entry in sorted(timed, key=lambda one: one[:2]):
            while self.now_s < at_s:
                if self._tick is not None:
                    self._tick(int(self.now_s))
                await self.world.clock.sleep(min(TICK_S, at_s - self.now_s))
            if what == 0:
                await self._do(entry)
            elif what == 1:
                self.failed += [f"{format_moment(entry.at)}: {text}" for text in find_differences(self.world, entry)]

    async def _do(self, act: Act) -> None:
        try:
            await self.world.do(act.verb, act.arguments)
        except OutliveError as error:
            error.place = error.place or act.place
            raise

    def _end(self) -> StorageEnded:
        judge, expect = self.world.judge, self.scenario.expect
        judge.judge_lost_writes()
        down = tuple(one.pod for one in judge.wanted if one.resource not in judge.find_writing())
        summary = StorageSummary(
            seed=self.world.seed,
            virtual_s=self.now_s,
            pods=len(judge.wanted),
            outages_s=tuple(sorted(took_s for _, took_s in judge.outages)),
            down=down,
            calls=dict(sorted(self.world.count_calls().items())),
            violations=tuple(judge.violations),
            replay=judge.replay,
        )
        self.failed += expect.events.find_unmet(tuple(self.world.history.events))
        total = len(summary.outages_s) + len(down)
        for limit, share in expect.back_within.items():
            limit_s = parse_duration(limit)
            if missed := missing_share(share, sum(took_s <= limit_s for took_s in summary.outages_s), total):
                self.failed.append(f"back within {limit}: {missed}")
        if sorted(down) != sorted(expect.down):
            self.failed.append(f"down at the end: {show_value(down)}, not {show_value(expect.down)}")
        if expect.recovered:
            self.failed += [f"at the end: {text}" for text in judge.find_unrecovered()]
        self.failed += judge_violations(expect.violations, summary.violations)
        states = {
            "pod": {one.pod: _facts_document(pod_facts(self.world, one)) for one in judge.wanted},
            "node": {name: _facts_document(node_facts(self.world, name)) for name in self.world.nodes},
        }
        return StorageEnded(summary, tuple(self.failed), tuple(self._events), self.world.history.trace_hash(), states)

    def _take(self, event: HistoryEvent) -> None:
        if event.loud or self._everything:
            self._events.append(msgspec.structs.replace(event, at_s=event.at_s - self._begun_s))


def find_differences(world: StorageWorld, moment: StorageMoment) -> list[str]:
    """What is not as wanted now, one line each."""
    wanted = {one.pod: one for one in world.judge.wanted}
    looked = [("pod", name, facts, pod_facts(world, wanted[name])) for name, facts in moment.pod.items()]
    looked += [("node", name, facts, node_facts(world, name)) for name, facts in moment.node.items()]
    return [
        f"{subject} {name}: {fact} is {show_value(found[fact])}, not {show_value(value)}"
        for subject, name, facts, found in looked
        for fact, value in facts.items()
        if not is_match(value, found[fact])
    ]


def pod_facts(world: StorageWorld, wanted: WantedPod) -> dict[str, Any]:
    """Facts of the pod of a volume."""
    pods = [one for one in world.server.list_all(KubernetesPod) if wanted.resource in resources_used(one)]
    attached = [one["spec"] for one in world.server.list_all(VolumeAttachment)]
    return {
        "writes": world.judge.find_writing().get(wanted.resource),
        "nodes": tuple(sorted({node_of(one) for one in pods if node_of(one)})),
        "attached": tuple(
            sorted(one["nodeName"] for one in attached if one["source"]["persistentVolumeName"] == wanted.resource)
        ),
    }


def node_facts(world: StorageWorld, name: str) -> dict[str, Any]:
    """Facts of a node."""
    node = world.server.find(KubernetesNode, name)
    assert node is not None
    keys = sorted({one["key"] for one in taints_of(node) if one["key"].startswith(OWN_TAINTS)})
    return {
        "ready": is_ready(node),
        "taints": tuple(key.removeprefix(OWN_TAINTS) for key in keys),
        "power": world.nodes[name].on,
    }


def storage_proposal(ended: StorageEnded) -> str:
    """The text of an ``expect.yaml`` that would have been met."""
    summary = ended.summary
    wanted: dict[str, Any] = {"at": [{"at": f"{summary.virtual_s:g}s", **ended.states}]}
    if summary.outages_s:
        wanted["backWithin"] = {f"{summary.outages_s[-1]:.0f}s": len(summary.outages_s)}
    wanted["down"] = list(summary.down)
    wanted["violations"] = sorted({one.invariant for one in summary.violations}) or "none"
    wanted["until"] = f"{summary.virtual_s:g}s"
    text: str = yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True, width=120)
    return f"# Proposed from seed {summary.seed}: say whether this is what should happen.\n{text}"


def _facts_document(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
