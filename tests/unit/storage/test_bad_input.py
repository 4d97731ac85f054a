"""Whatever an agent is told that makes no sense is counted and explained, and nothing is done by it.

One agent on node ``k2``, with a virtual API server and a ``drbdsetup`` that prints what the test says. Node ``k1`` is
lost, so that each scene would end in an eviction if its input were good.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.support.loops import run, run_by
from tests.unit.storage.builders import attachment, node, pod, volume
from tests.unit.storage.test_metrics import samples

from outlive.base import Forbidden, Instant, LoopClock, NotFound, Random, SeededIds, Unavailable
from outlive.resources import ObjectRef, Resource
from outlive.resources.foreign import KubernetesNode, KubernetesPod, PersistentVolume, VolumeAttachment
from outlive.simulation import Process
from outlive.simulation.kubernetes import ApiConnection, ApiServer, ClientStore
from outlive.storage import DOCUMENT_BYTES, AgentMetrics, CommandOutput, StorageAgent, StorageExplanation, parse_options
from outlive.store import Change, Malformed, Upsert

LONG_S = 70.0
"""Longer than any timer of the agent."""
TROUBLE_S = 12.0
SHOWN = [{"resource": "pvc-1", "options": {"quorum": "majority"}}]


def entry(**changes: Any) -> dict[str, Any]:
    """What ``drbdsetup status`` prints of the volume on a survivor of ``k1``."""
    peer = {"peer-node-id": 3, "name": "k3", "connection-state": "Connected", "peer-role": "Secondary"}
    return {
        "name": "pvc-1",
        "node-id": 2,
        "role": "Secondary",
        "devices": [{"disk-state": "UpToDate", "quorum": True}],
        "connections": [
            {"peer-node-id": 1, "name": "k1", "connection-state": "Connecting", "peer-role": "Unknown"},
            {**peer, "peer_devices": [{"peer-disk-state": "UpToDate"}]},
        ],
        **changes,
    }


class ScriptedDrbd:
    """``DrbdTool`` that prints what it is told to."""

    def __init__(self) -> None:
        self.status: str = json.dumps([entry()])
        self.show: str = json.dumps(SHOWN)
        self.exit = 0
        self.lines: list[str] = []
        self.commands: list[Sequence[str]] = []

    async def is_loaded(self) -> bool:
        return True

    async def run(self, argv: Sequence[str], *, limit_s: float | None) -> CommandOutput:
        if argv[1] not in ("status", "show"):
            self.commands.append(argv)
        return CommandOutput(argv=tuple(argv), exit=self.exit, stdout=self.show if argv[1] == "show" else self.status)

    async def follow_events(self) -> AsyncGenerator[str, None]:
        for line in self.lines:
            yield line
        await asyncio.get_running_loop().create_future()


class JumpingClock(LoopClock):
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_s = 0.0

    def now(self) -> Instant:
        return Instant(super().now() + self.set_by_s)


class TroubledStore(ClientStore):
    """As a program reaches the API server; it refuses to list a kind, prints nonsense of another, or is away."""

    refused: type[Resource] | None = None
    nonsense: type[Resource] | None = None
    away = False

    def observe(self, kind: Any, *, selector: Any = None) -> Any:
        return self._observe(kind, super().observe(kind, selector=selector))

    async def _observe(self, kind: type[Resource], changes: Any) -> AsyncGenerator[Change[Any], None]:
        if kind is self.refused:
            raise Forbidden(f'{kind.info.plural} is forbidden: User "agent" cannot list resource "{kind.info.plural}"')
        async for change in changes:
            if self.away:
                raise Unavailable("the API server cannot be reached")
            if kind is self.nonsense and isinstance(change, Upsert):
                meta = change.object.metadata
                change = Malformed(ObjectRef(kind=kind.kind(), name=meta.name, uid=meta.uid), "Expected `str`")
            yield change


class Scene:
    """The agent and its world; ``changed`` has every write to the API server since the agent began."""

    def __init__(self, words: Sequence[str], objects: Mapping[type[Any], Sequence[dict[str, Any]]]) -> None:
        self.clock = JumpingClock()
        self.drbd = ScriptedDrbd()
        self.server = ApiServer(self.clock, SeededIds(Random(1)))
        for kind, documents in objects.items():
            for one in documents:
                document = json.loads(json.dumps(one))
                for name in ("uid", "resourceVersion"):
                    document["metadata"].pop(name, None)
                self.server.add(kind, document)
        self.changed: list[str] = []
        self.server.changed.append(lambda kind, key, _: self.changed.append(f"{kind.kind()}/{key}"))
        self.process = Process("agent")
        self.connection = ApiConnection(self.server, "agent", self.process, clock=self.clock, random=Random(2))
        self.metrics = AgentMetrics(lambda: self.agent.observer.age_s())
        self.store = TroubledStore(self.connection)
        self._words = words
        self.agent: StorageAgent

    def begin(self) -> None:
        self.agent = StorageAgent(
            parse_options(self._words, {"NODE_NAME": "k2"}),
            store=self.store,
            verbs=self.connection.verbs,
            events=self.connection.events,
            drbd=self.drbd,
            clock=self.clock,
            random=Random(3),
            metrics=self.metrics,
        )
        self.process.start(self.agent.run, lambda _: None)

    def explain(self, name: str = "shop/db-0", kind: Any = "pod") -> StorageExplanation:
        return self.agent.explain(kind, name)

    def failing(self) -> set[str]:
        """Checks that do not hold."""
        return {one.check for each in self.explain().resources for one in each.checks if not one.holds}

    def notices(self) -> str:
        return "\n".join(self.explain().notices)

    def counted(self, name: str) -> float:
        return samples(self.metrics)[f"storage_ha_{name}"]


def play(
    story: Callable[[Scene], Awaitable[None]],
    *words: str,
    pods: Sequence[dict[str, Any]] = (pod(),),
    volumes: Sequence[dict[str, Any]] = (volume(),),
) -> None:
    """Run a story; it begins the agent when all is as it should be."""

    async def body() -> None:
        nodes = [node(name) for name in ("k1", "k2", "k3")]
        attached = attachment()
        attached["spec"]["attacher"] = "linstor.csi.linbit.com"
        scene = Scene(
            words,
            {
                KubernetesNode: nodes,
                PersistentVolume: volumes,
                VolumeAttachment: [attached],
                KubernetesPod: pods,
            },
        )
        await story(scene)
        if scene.process.error is not None:
            raise scene.process.error
        scene.process.kill()

    run(body())


async def nothing_happens(scene: Scene) -> None:
    scene.begin()
    await scene.clock.sleep(LONG_S)
    assert scene.changed == []
    assert scene.drbd.commands == []


@run_by(play, pods=[{**pod(), "x-unknown": {"a": [1]}}])
async def test_good_input_has_the_pod_evicted_whatever_else_is_in_it(scene: Scene) -> None:
    scene.drbd.status = json.dumps([entry(**{"new-member": [{"x": 1e3}], "node-id": "two"})])
    scene.begin()
    await scene.clock.sleep(LONG_S)
    assert "Pod/shop/db-0" in scene.changed
    assert scene.counted('actions_total{action="evict",result="ok"}') == 1
    assert "VolumeAttachment/va-1" in scene.changed
    assert scene.counted("failover_seconds_count") == 1
    assert 5 <= scene.counted("failover_seconds_sum") <= 20
    assert scene.agent.list_troubles() == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps([entry()])[:-20], "not understood"),
        ("drbdsetup: kernel says no\n", "not understood"),
        (json.dumps([entry(role=7)]), "Expected `str"),
        (json.dumps([entry(devices=[{"quorum": "yes", "disk-state": "UpToDate"}])]), "Expected `bool"),
        (f"[{' ' * DOCUMENT_BYTES}]", "bytes"),
        (json.dumps([entry(), entry(role="Primary")]), "two different things of 'pvc-1'"),
        ("", "not understood"),
    ],
    ids=["truncated", "no JSON", "wrong type", "wrong type below", "enormous", "contradictory", "empty"],
)
@run_by(play)
async def test_a_status_that_is_not_understood_or_contradicts_itself(scene: Scene, *, text: str, why: str) -> None:
    scene.drbd.status = text
    await nothing_happens(scene)
    assert scene.counted('drbd_polls_total{result="bad-document"}') > 5
    assert why in scene.notices()
    assert "nothing is done" in scene.notices()
    assert scene.agent.check_health().code == "stale"


@run_by(play)
async def test_a_configuration_that_contradicts_itself(scene: Scene) -> None:
    scene.drbd.show = json.dumps([*SHOWN, {"resource": "pvc-1", "options": {"quorum": "off"}}])
    await nothing_happens(scene)
    assert "drbdsetup show says two different things of 'pvc-1'" in scene.notices()


@run_by(play)
async def test_garbage_after_good_states_stops_everything_before_the_timer_ends(scene: Scene) -> None:
    """The last good state goes on to age; the loss that it showed is acted on only while it is fresh."""
    scene.drbd.status = json.dumps([entry(connections=[])])
    scene.begin()
    await scene.clock.sleep(8.0)
    scene.drbd.status = "[{"
    await scene.clock.sleep(LONG_S)
    assert scene.changed == []
    assert "the last poll of DRBD failed" in scene.notices()


@run_by(play)
async def test_a_command_that_fails(scene: Scene) -> None:
    scene.drbd.exit = 20
    await nothing_happens(scene)
    assert scene.counted('drbd_polls_total{result="command-failed"}') > 5
    assert "drbdsetup status --json ended with 20" in scene.notices()


@run_by(play)
async def test_a_peer_that_is_primary_beside_this_one_is_a_writer(scene: Scene) -> None:
    both = entry(role="Primary")
    both["connections"][1]["peer-role"] = "Primary"
    scene.drbd.status = json.dumps([both])
    await nothing_happens(scene)
    assert "no-primary-peer" in scene.failing()


@run_by(play, "--promotion-source=events2")
async def test_a_stream_that_promises_what_quorum_denies(scene: Scene) -> None:
    scene.drbd.lines = ["exists resource name:pvc-1 role:Secondary may_promote:yes", "exists -"]
    scene.drbd.status = json.dumps([entry(devices=[{"disk-state": "UpToDate", "quorum": False}])])
    scene.begin()
    await scene.clock.sleep(LONG_S)
    assert set(scene.changed) <= {"Node/k2"}, "its own node is tainted, since it has no quorum"
    assert "has-quorum" in scene.failing()


@run_by(play, "--promotion-source=events2")
async def test_a_stream_of_nonsense_is_lost_and_its_word_with_it(scene: Scene) -> None:
    scene.drbd.lines = ["exists resource name:pvc-1 role:Secondary may_promote:yes", "exists -", "\x00 what?"]
    scene.drbd.status = json.dumps([entry(devices=[{"disk-state": "Diskless", "quorum": True}])])
    await nothing_happens(scene)
    assert "data-current" in scene.failing()
    assert scene.counted("drbd_streams_lost_total") > 2
    assert "drbdsetup events2 is lost" in scene.notices()


@pytest.mark.parametrize("handle", ["", "/0", "pvc-1/x", "pvc-1/70000"])
def test_a_volume_without_a_handle_that_names_a_resource(handle: str) -> None:
    async def story(scene: Scene) -> None:
        scene.begin()
        await scene.clock.sleep(LONG_S)
        assert not [one for one in scene.changed if one.startswith("Pod/")]
        (found,) = scene.explain("pvc-1", "volume").resources
        assert [one.check for one in found.checks if not one.holds] == ["has-claim"]

    play(story, volumes=[volume(volumeHandle=handle)])


@run_by(play)
async def test_a_volume_that_is_not_understood_is_named(scene: Scene) -> None:
    scene.store.nonsense = PersistentVolume
    await nothing_happens(scene)
    assert scene.counted('malformed_objects{kind="persistentvolumes"}') == 1
    notices = "\n".join(scene.explain("pvc-1", "volume").notices)
    assert "PersistentVolume/pvc-1 is not understood" in notices


@run_by(play, pods=[pod(ownerReferences=[])])
async def test_a_pod_without_an_owner_is_left_alone(scene: Scene) -> None:
    scene.begin()
    await scene.clock.sleep(LONG_S)
    assert not [one for one in scene.changed if one.startswith(("Pod/", "VolumeAttachment/"))]
    assert scene.counted('skipped_pods_total{reason="unowned"}') >= 1
    assert "has-owner" in scene.failing()


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
@run_by(play, "--reconcile-interval=5s", "--fail-over-timeout=20s")
async def test_a_clock_that_jumps_begins_every_timer_anew(scene: Scene, *, jump_s: float) -> None:
    scene.begin()
    await scene.clock.sleep(6.0)
    assert scene.agent.tick_input().memory is not None
    scene.clock.set_by_s = jump_s
    await scene.clock.sleep(11.0)
    assert not [one for one in scene.changed if one.startswith("Pod/")], "an hour has not passed"
    assert scene.counted("clock_jumps_total") == 1
    assert "the clock of this node jumped" in scene.notices()
    await scene.clock.sleep(21.0)
    assert "Pod/shop/db-0" in scene.changed


@pytest.mark.parametrize("kind", [KubernetesPod, PersistentVolume, VolumeAttachment, KubernetesNode])
@run_by(play)
async def test_a_kind_that_may_not_be_listed_is_named_with_verb_and_resource(
    scene: Scene, *, kind: type[Resource]
) -> None:
    scene.store.refused = kind
    await nothing_happens(scene)
    assert f"{kind.info.plural} cannot be listed and watched" in scene.notices()
    assert f'cannot list resource "{kind.info.plural}"' in scene.notices()
    assert "account.yaml" in scene.notices()
    assert scene.agent.check_health().status == 500
    assert scene.counted(f'cache_stalled_seconds{{kind="{kind.info.plural}"}}') >= LONG_S - 1


@run_by(play)
async def test_a_call_that_is_refused_is_shown_until_it_succeeds(scene: Scene) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Forbidden('pods "db-0" is forbidden: User "agent" cannot create resource "pods/eviction"')

    scene.connection.verbs.evict = refuse  # type: ignore[method-assign]
    scene.begin()
    await scene.clock.sleep(LONG_S)
    assert not [one for one in scene.changed if one.startswith(("Pod/", "VolumeAttachment/"))]
    assert scene.counted('actions_total{action="evict",result="failed"}') >= 1
    assert "failover of pvc-1 on k1 failed" in scene.notices()
    assert "evict: 403" in scene.notices()


@run_by(play)
async def test_an_api_server_that_is_away_is_shown_and_what_is_known_is_old(scene: Scene) -> None:
    scene.drbd.status = json.dumps([entry(connections=[])])
    scene.begin()
    await scene.clock.sleep(8.0)
    scene.store.away = True
    for kind, key in ((KubernetesPod, "shop/db-0"), (KubernetesNode, "k1")):
        scene.server.edit(kind, key, lambda one: one["metadata"].setdefault("labels", {}).update(new="yes"))
    await scene.clock.sleep(TROUBLE_S)
    assert "pods are not followed, what is known of them is old" in "\n".join(scene.agent.list_troubles())
    with_notices = scene.explain("nobody", "pod")
    assert with_notices.resources == ()
    scene.store.away = False
    await scene.clock.sleep(LONG_S)
    assert scene.agent.list_troubles() == ()
    with pytest.raises(NotFound):
        scene.explain("nobody", "pod")
