"""The manager: order at the start, nothing lost to a failure, and an orderly end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import msgspec
from tests.support.loops import running

from outlive.base import Conflict, LoopClock, Random, Refused, SeededIds, global_request_id
from outlive.resources import Hypervisor, ObjectMeta
from outlive.runtime import ControllerOptions, Elector, Informer, Manager, Metrics, OrderedTaskGroup, Requeue, Watch
from outlive.store import FaultStore, MemoryStore

CLOCK = LoopClock()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _host(name: str) -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name=name))


class World:
    """A store with a manager on it."""

    def __init__(self) -> None:
        self.ids = SeededIds(Random(1))
        self.store = MemoryStore(CLOCK, self.ids)
        self.network = FaultStore(self.store, clock=CLOCK, random=Random(4))
        self.metrics = Metrics()
        self.manager = Manager(CLOCK, Random(2), self.metrics, self.ids)
        self.informer = Informer(self.network, Hypervisor, clock=CLOCK, random=Random(3))

    def metric(self, start: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"outlive_{start}"))


class Recorder:
    """A controller that writes down what it is asked, and answers as told."""

    def __init__(self, name: str = "recorder", answer: Callable[[str], object] | None = None, takes: float = 0) -> None:
        self.name = name
        self.looks: list[tuple[float, str]] = []
        self.ended: list[str] = []
        self.requests: set[str] = set()
        self._answer = answer
        self._takes = takes

    async def reconcile(self, key: str) -> Requeue | None:
        self.looks.append((_now(), key))
        self.requests.add(global_request_id())
        await asyncio.sleep(self._takes)
        answer = self._answer(key) if self._answer else None
        if isinstance(answer, Exception):
            raise answer
        self.ended.append(key)
        return answer


async def test_controllers_start_once_all_informers_have_synced_and_look_at_everything():
    world = World()
    for name in ("h1", "h2"):
        await world.store.create(_host(name))
    controller = Recorder()
    world.manager.add_controller(
        controller, watches=[Watch(world.informer)], options=ControllerOptions(keys=("start",))
    )
    world.network.network.cut()
    assert world.manager.explain_unready() == ("not started",)
    async with running(world.manager):
        assert not world.manager.ready
        await asyncio.sleep(30)
        assert controller.looks == []
        assert world.manager.explain_unready() == ("informer Hypervisor has not synced",)
        await asyncio.sleep(40)
        assert world.manager.explain_unready() == ("informer Hypervisor has not synced for 70 s",)
        world.network.network.heal()
        await asyncio.sleep(1)
        assert world.manager.ready
        assert [key for _, key in controller.looks] == ["start", "h1", "h2"]
        await world.store.create(_host("h3"))
        await asyncio.sleep(1)
        assert [key for _, key in controller.looks][3:] == ["h3"]
        await world.store.delete(world.informer.get("h3").ref)
        await asyncio.sleep(1)
        assert [key for _, key in controller.looks][4:] == ["h3"]
        assert len(controller.requests) == 5
        assert all(each.startswith("recorder-") for each in controller.requests)


async def test_a_requeue_comes_back_when_it_said():
    world = World()
    controller = Recorder(answer=lambda key: Requeue(30))
    world.manager.add_controller(controller, options=ControllerOptions(keys=("cycle",)))
    async with running(world.manager):
        await asyncio.sleep(100)
    assert [round(at) for at, _ in controller.looks] == [0, 30, 60, 90]


async def test_failures_are_counted_by_kind_and_tried_again_with_back_off():
    world = World()
    errors = {
        "crash": ZeroDivisionError("boom"),
        "refused": Refused("no"),
        "conflict": Conflict("changed"),
        "timeout": TimeoutError("of its own"),
    }
    left = dict.fromkeys(errors, 4)

    def answer(key: str) -> object:
        left[key] -= 1
        return errors[key] if left[key] else None

    controller = Recorder(answer=answer)
    world.manager.add_controller(
        controller, workers=2, options=ControllerOptions(keys=tuple(errors), retry_base_s=1.0, retry_cap_s=3.0)
    )
    async with running(world.manager):
        await asyncio.sleep(60)
        assert world.manager.ready
    looks = [at for at, key in controller.looks if key == "crash"]
    waits = [after - before for before, after in itertools.pairwise(looks)]
    for wait, longest in zip(waits, (1.0, 2.0, 3.0), strict=True):
        assert longest / 2 <= wait <= longest + 0.01
    for result, count in {"ok": 4, "crash": 6, "refused": 3, "conflict": 3}.items():
        assert world.metric(f'controller_reconciles_total{{controller="recorder",result="{result}"') == count
    assert world.metric("controller_retries_total") == 12
    assert world.metric("controller_reconcile_seconds_count") == 16


async def test_a_reconcile_that_hangs_is_cut_off_at_its_deadline():
    world = World()
    controller = Recorder(takes=1000)
    world.manager.add_controller(controller, options=ControllerOptions(keys=("k",), deadline_s=10))
    async with running(world.manager):
        await asyncio.sleep(12)
    assert len(controller.looks) == 2
    assert world.metric('controller_reconciles_total{controller="recorder",result="deadline"') == 1


async def test_a_task_that_fails_is_started_again_and_unready_while_it_keeps_failing():
    world = World()
    starts: list[float] = []

    async def flaky() -> None:
        starts.append(_now())
        if len(starts) < 6:
            raise RuntimeError("boom")
        await asyncio.sleep(1e6)

    world.manager.add_task("flaky", flaky)
    async with running(world.manager):
        await asyncio.sleep(10)
        assert world.manager.explain_unready() == (
            f"task flaky failed {len(starts)} times in a row: RuntimeError: boom",
        )
        await asyncio.sleep(300)
        assert world.manager.ready
        assert world.metric("task_restarts_total") == 5
    assert len(starts) == 6


async def test_an_informer_that_crashes_is_started_again():
    world = World()
    await world.store.create(_host("h1"))
    broken = [True]

    def index(host):
        if broken[0]:
            raise RuntimeError("bad index")
        return ()

    informer = Informer(world.store, Hypervisor, clock=CLOCK, random=Random(3), indexes={"i": index})
    world.manager.add_informer(informer)
    world.manager.add_informer(informer)
    async with running(world.manager):
        await asyncio.sleep(5)
        assert not informer.synced
        broken[0] = False
        await asyncio.sleep(30)
        assert informer.synced
    assert world.metric("informer_synced") == 1.0
    assert world.metric("informer_objects") == 1.0


async def test_a_stop_lets_running_reconciles_end_and_takes_no_new_keys():
    world = World()
    controller = Recorder(takes=10)
    handle = world.manager.add_controller(controller, options=ControllerOptions(keys=("a", "b")))
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    world.manager.add_task("background", background)
    async with OrderedTaskGroup() as group:
        task = group.create_task(world.manager.run())
        await asyncio.sleep(5)
        world.manager.stop()
        assert world.manager.explain_unready() == ("stopping",)
        await task
    assert controller.ended == ["a"]
    assert ended == ["background"]
    assert _now() == 10.0
    assert not handle.active


async def test_a_stop_does_not_wait_for_ever():
    world = World()
    controller = Recorder(takes=1000)
    world.manager.add_controller(controller, options=ControllerOptions(keys=("a",), deadline_s=2000))
    async with OrderedTaskGroup() as group:
        task = group.create_task(world.manager.run())
        await asyncio.sleep(5)
        world.manager.stop()
        await task
    assert controller.ended == []
    assert _now() == 25.0


async def test_a_stop_before_anything_has_synced_ends_at_once():
    world = World()
    world.network.network.cut()
    world.manager.add_controller(Recorder(), watches=[Watch(world.informer)])
    async with OrderedTaskGroup() as group:
        task = group.create_task(world.manager.run())
        await asyncio.sleep(5)
        world.manager.stop()
        await task
    assert _now() == 5.0


async def test_a_gated_controller_runs_only_while_its_elector_leads():
    worlds = [World(), World()]
    store = worlds[0].store
    await store.create(_host("h1"))
    networks = [FaultStore(store, clock=CLOCK, random=Random(n)) for n in range(2)]
    controllers = [Recorder(answer=lambda key: Requeue(1)) for _ in range(2)]
    tasks_ran: list[int] = []
    for number, world in enumerate(worlds):
        elector = Elector(networks[number], "planner", f"p{number}", clock=CLOCK, ids=SeededIds(Random(10 + number)))
        informer = Informer(store, Hypervisor, clock=CLOCK, random=Random(number))
        world.manager.add_controller(controllers[number], watches=[Watch(informer)], elector=elector)

        async def elected(number=number) -> None:
            tasks_ran.append(number)
            await asyncio.sleep(1e6)

        world.manager.add_task("elected", elected, elector=elector)

    async with OrderedTaskGroup() as group:
        runs = [group.create_task(world.manager.run()) for world in worlds]
        await asyncio.sleep(30)
        busy = [bool(controller.looks) for controller in controllers]
        assert sorted(busy) == [False, True]
        first = busy.index(True)
        assert tasks_ran == [first]
        assert worlds[first].manager.ready
        assert worlds[1 - first].manager.ready
        assert worlds[first].metric("election_leader") == 1.0
        networks[first].network.cut()
        await asyncio.sleep(30)
        stopped = controllers[first].looks[-1][0]
        began = controllers[1 - first].looks[0][0]
        assert stopped < began
        assert tasks_ran == [first, 1 - first]
        networks[first].network.heal()
        await asyncio.sleep(30)
        assert controllers[first].looks[-1][0] == stopped
        worlds[1 - first].manager.stop()
        await asyncio.sleep(30)
        # It gave the role back, and the other begins with everything there is.
        assert controllers[first].looks[-1][0] > stopped
        for task in runs:
            task.cancel()


async def test_keys_that_found_the_queue_full_are_looked_at_later():
    world = World()
    for number in range(25):
        await world.store.create(_host(f"h{number:02}"))
    controller = Recorder(takes=0.1)
    handle = world.manager.add_controller(controller, watches=[Watch(world.informer)])
    handle._options = ControllerOptions(keys_limit=10)
    async with running(world.manager):
        await asyncio.sleep(60)
        assert world.metric("controller_keys_dropped_total") == 0
        for number in range(25, 50):
            await world.store.create(_host(f"h{number:02}"))
        await asyncio.sleep(60)
    assert {key for _, key in controller.looks} == {f"h{number:02}" for number in range(50)}
    assert world.metric("controller_keys_dropped_total") > 0


async def test_a_mapper_turns_a_change_into_other_keys():
    world = World()
    controller = Recorder()

    def zones(old, new):
        return [each.metadata.labels.get("zone", "none") for each in (old, new) if each is not None]

    world.manager.add_controller(controller, watches=[Watch(world.informer, zones)])
    async with running(world.manager):
        await asyncio.sleep(1)
        host = await world.store.create(_host("h1"))
        await asyncio.sleep(1)
        labelled = msgspec.structs.replace(host.metadata, labels={"zone": "z1"})
        await world.store.replace(msgspec.structs.replace(host, metadata=labelled))
        await asyncio.sleep(1)
    assert [key for _, key in controller.looks] == ["none", "none", "z1"]


async def test_a_key_may_be_added_by_hand():
    world = World()
    controller = Recorder()
    handle = world.manager.add_controller(controller)
    handle.add("too early")
    async with running(world.manager):
        await asyncio.sleep(1)
        handle.add("now")
        handle.add_after("later", 5)
        await asyncio.sleep(10)
        assert handle.depth == 0
    assert controller.looks == [(1.0, "now"), (6.0, "later")]
