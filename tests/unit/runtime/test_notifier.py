"""The leader tells each target of faults within seconds, records it, and tells it again only after a crash."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
from tests.support.loops import run

from outlive.base import LoopClock, NotFound, Random, SeededIds, Unavailable
from outlive.resources import Fault, Notification, ObjectRef, Resource
from outlive.resources.reasons import FaultCode
from outlive.runtime import (
    ActiveFault,
    CommandSettings,
    Elector,
    FaultRecorder,
    HeartbeatSettings,
    Informer,
    Metrics,
    NotificationMessage,
    Notifier,
    NotifierPorts,
    NotifySettings,
    OrderedTaskGroup,
    build_unrecorded,
)
from outlive.store import MemoryStore, list_all

BAR_S = 5.0
"""So soon a target is told."""


class Receiver:
    """A target that remembers; ``fails`` and ``hangs`` say how it does not take a message."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.messages: list[tuple[float, NotificationMessage]] = []
        self.tries: list[float] = []
        self.fails = False
        self.hangs = False

    async def send(self, message: NotificationMessage) -> str:
        self.tries.append(self._clock.monotonic())
        if self.hangs:
            await asyncio.sleep(3600.0)
        if self.fails:
            raise Unavailable("answered 500 no", remedy="")
        self.messages.append((self._clock.monotonic(), message))
        return "200 OK"

    @property
    def events(self) -> list[str]:
        return [f"{one.event} {one.fault}" for _, message in self.messages for one in message.notices]

    @property
    def ids(self) -> list[str]:
        return [one.id for _, message in self.messages for one in message.notices]


class DeafStore(MemoryStore):
    """A store that takes no record of what was told while ``deaf``."""

    deaf = False
    slow_s = 0.0
    """How long the first record of what was told takes."""

    async def create(self, obj: Resource) -> Resource:  # type: ignore[override]
        if isinstance(obj, Notification):
            slow_s, self.slow_s = self.slow_s, 0.0
            await asyncio.sleep(slow_s)
        if self.deaf and isinstance(obj, Notification):
            raise Unavailable("the disk is full", remedy="")
        return await super().create(obj)


def dead(host: str = "kvm-1") -> ActiveFault:
    return ActiveFault(FaultCode.HOST_DEAD, ObjectRef(kind="Hypervisor", name=host), {"proof": "power: off"})


class Site:
    """One store, and processes that tell ``oncall`` and ``other``."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = DeafStore(clock=self.clock, ids=SeededIds(Random(1)))
        self.oncall, self.other = Receiver(self.clock), Receiver(self.clock)
        self.recorder = FaultRecorder(self.store, self.clock, "fencer", "kvm-9")
        self.pings = 0
        self.unready = ""

    async def ping(self) -> None:
        self.pings += 1

    @asynccontextmanager
    async def process(
        self, name: str = "a", *, local: Callable[[], Iterable[Fault]] = tuple, leads: bool = True
    ) -> AsyncIterator[Notifier]:
        random, ids = Random(name), SeededIds(Random(name))
        faults = Informer(self.store, Fault, clock=self.clock, random=random)
        elector = Elector(self.store, "failover", name, clock=self.clock, ids=ids, renew_s=2.0, silence_s=12.0)
        settings = NotifySettings(
            commands={"oncall": CommandSettings(argv=("x",)), "other": CommandSettings(argv=("x",))},
            heartbeat=HeartbeatSettings(url="https://h.example"),
        )
        notifier = Notifier(
            self.store,
            faults,
            settings,
            NotifierPorts({"oncall": self.oncall, "other": self.other}, self),
            cluster="prod",
            elector=elector,
            clock=self.clock,
            random=random,
            ids=ids,
            metrics=Metrics(),
            local=local,
            unready=lambda: self.unready,
        )
        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(faults.run()), group.create_task(notifier.run())]
            if leads:
                tasks.append(group.create_task(elector.run()))
            try:
                await asyncio.sleep(15.0)  # until the role of a process that crashed is free
                yield notifier
            finally:
                for task in tasks:
                    task.cancel()

    async def recorded(self) -> dict[str, list[str]]:
        return {one.name: [each.target for each in one.deliveries] async for one in list_all(self.store, Notification)}


async def test_every_target_is_told_within_five_seconds_once_and_of_the_end() -> None:
    site = Site()
    async with site.process():
        began = site.clock.monotonic()
        await site.recorder.record([dead()])
        await asyncio.sleep(BAR_S)
        assert site.oncall.events == site.other.events == ["opened host-dead.kvm-1"]
        assert max(at for at, _ in site.oncall.messages + site.other.messages) - began < BAR_S
        assert await site.recorded() == {"host-dead.kvm-1": ["oncall", "other"]}
        await asyncio.sleep(600)
        assert len(site.oncall.messages) == 1
        await site.recorder.record([])
        await asyncio.sleep(BAR_S)
        assert site.oncall.events[1:] == ["resolved host-dead.kvm-1"]
        assert await site.recorded() == {}


async def test_what_was_told_is_not_told_again_by_the_next_process() -> None:
    site = Site()
    async with site.process("a"):
        await site.recorder.record([dead()])
        await asyncio.sleep(BAR_S)
    async with site.process("b"):
        await asyncio.sleep(60)
    assert site.oncall.events == ["opened host-dead.kvm-1"]


async def test_after_a_crash_between_message_and_record_it_is_told_again_with_the_same_id() -> None:
    site = Site()
    site.store.deaf = True
    async with site.process("a"):
        await site.recorder.record([dead()])
        await asyncio.sleep(60)
        assert site.oncall.events == ["opened host-dead.kvm-1"]
        assert await site.recorded() == {}
    site.store.deaf = False
    async with site.process("b"):
        await asyncio.sleep(60)
    first, second = site.oncall.ids
    assert first == second
    assert await site.recorded() == {"host-dead.kvm-1": ["oncall", "other"]}


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_target_that_fails_is_a_fault_of_which_others_are_told_and_is_tried_again_later_and_later(
    how: str,
) -> None:
    site = Site()
    setattr(site.oncall, how, True)
    async with site.process():
        await site.recorder.record([dead()])
        await asyncio.sleep(BAR_S)
        assert site.other.events == ["opened host-dead.kvm-1"]
        await asyncio.sleep(3600)
        assert site.other.events[1:] == ["opened notify-failing.oncall"]
        pauses = [later - before for before, later in zip(site.oncall.tries, site.oncall.tries[1:], strict=False)]
        assert len(site.oncall.tries) < 3600 / 300 + 12
        assert pauses[-1] > 200
        assert (await site.store.get(Fault, "notify-failing.oncall")).message.startswith("oncall took no message")
        setattr(site.oncall, how, False)
        await asyncio.sleep(320)
        assert site.oncall.events == ["opened host-dead.kvm-1"]
        assert site.other.events[2:] == ["resolved notify-failing.oncall"]


async def test_a_process_that_does_not_lead_tells_only_what_is_wrong_with_itself() -> None:
    site = Site()
    full = ActiveFault(FaultCode.STORE_NOT_WRITABLE, ObjectRef(kind="Cluster", name="default"), {"why": "disk full"})
    active = [build_unrecorded(full, site.clock.now())]
    async with site.process(local=lambda: active, leads=False):
        await site.recorder.record([dead()])
        await asyncio.sleep(60)
        assert site.oncall.events == ["opened store-not-writable.default"]
        active.clear()
        await asyncio.sleep(BAR_S)
        assert site.oncall.events[1:] == ["resolved store-not-writable.default"]
        assert await site.recorded() == {}
        assert site.pings == 0


async def test_a_record_that_is_written_slowly_does_not_undo_a_later_one() -> None:
    site = Site()
    site.other.fails = True
    site.store.slow_s = 8.0
    async with site.process():
        await site.recorder.record([dead()])
        await asyncio.sleep(1.0)
        site.other.fails = False
        await asyncio.sleep(30.0)
        assert site.oncall.events == site.other.events == ["opened host-dead.kvm-1"]
        assert await site.recorded() == {"host-dead.kvm-1": ["oncall", "other"]}


async def test_a_storm_of_faults_is_a_few_messages() -> None:
    site = Site()
    async with site.process():
        await site.recorder.record([dead(f"kvm-{number}") for number in range(250)])
        await asyncio.sleep(BAR_S)
    assert len(site.oncall.events) == 250
    assert len(site.oncall.messages) <= 4


async def test_the_heartbeat_stops_when_the_server_is_not_well() -> None:
    site = Site()
    async with site.process():
        await asyncio.sleep(600)
        assert site.pings >= 10
        before, site.unready = site.pings, "the store cannot write"
        await asyncio.sleep(600)
        assert site.pings == before


def test_a_test_message_says_what_the_target_answered() -> None:
    async def story() -> None:
        site = Site()
        site.other.fails = True
        async with site.process() as notifier:
            assert await notifier.test() == [
                {"target": "oncall", "result": "sent", "answer": "200 OK"},
                {"target": "other", "result": "failed", "answer": "answered 500 no"},
            ]
            with pytest.raises(NotFound, match="no target 'nobody'"):
                await notifier.test("nobody")
        assert await site.recorded() == {}

    with contextlib.suppress(asyncio.CancelledError):
        run(story())
