"""The primary coordinator: one takes the role, hands it over, dies, stalls; and duties end with the role."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.errors import Unavailable
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.node.primary import Primary
from outlive.node.primary_elector import ROLE, Next, PrimaryElector, answer_request, may_take
from outlive.resources import Cluster, Election, ElectionRecord, MemberRecord, Membership, ObjectMeta, PrimaryRequest
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.faults import FaultRecorder, FaultSet
from outlive.store.memory import MemoryStore

_replace = msgspec.structs.replace


class Counted:
    """A duty that says who has it."""

    def __init__(self, name: str, story: Story, host: str) -> None:
        self.name, self.story, self.host = name, story, host
        self.hangs = self.fails = False
        self.stops_for_s = 0.0

    async def start(self, term: int) -> None:
        if self.fails:
            raise Unavailable("it is broken")
        self.story.said.append((self.host, f"+{self.name}", term))
        self.story.having.append((self.host, self.name))

    async def stop(self) -> None:
        if self.hangs:
            await asyncio.sleep(1e9)
        await asyncio.sleep(self.stops_for_s)
        if (self.host, self.name) in self.story.having:
            self.story.having.remove((self.host, self.name))
            self.story.said.append((self.host, f"-{self.name}", 0))


class Story:
    """Coordinators over one store."""

    def __init__(self, *hosts: str) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.said: list[tuple[str, str, int]] = []
        self.having: list[tuple[str, str]] = []
        self.duties: dict[str, list[Counted]] = {}
        self.faults: dict[str, FaultSet] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.primaries: dict[str, Primary] = {}
        for number, host in enumerate(hosts):
            self.make(host, number)

    def make(self, host: str, number: int) -> None:
        ids = SeededIds(Random(number + 7))
        self.faults[host] = FaultSet(FaultRecorder(self.store, self.clock, "daemon", host), self.clock)
        self.duties[host] = [Counted("stats", self, host), Counted("api", self, host)]
        elector = PrimaryElector(self.store, host, clock=self.clock, ids=ids)
        self.primaries[host] = Primary(
            self.store, host, self.duties[host], elector=elector, faults=self.faults[host], clock=self.clock
        )

    async def start(self, *hosts: str) -> None:
        await self.store.create(Cluster(metadata=ObjectMeta(name="default")))
        for host in hosts or self.primaries:
            self.tasks[host] = asyncio.create_task(self.primaries[host].run())
            await asyncio.sleep(0.1)

    async def record(self) -> ElectionRecord:
        return (await self.store.get(Election, ROLE, fresh=True)).record

    async def ask(self, verb: Any, host: str, number: str = "1") -> None:
        cluster = await self.store.get(Cluster, "default", fresh=True)
        request = PrimaryRequest(id=number, verb=verb, host=host)
        await self.store.replace(_replace(cluster, spec=_replace(cluster.spec, primary=request)))

    async def renew(self, host: str, seconds: float, **changes: Any) -> None:
        """Its membership, for so long; then changed."""
        for _ in range(int(seconds)):
            await self.clock.sleep(1)
            member = await self.store.get(Membership, host, fresh=True)
            await self.store.replace(_replace(member, record=_replace(member.record, seq=member.record.seq + 1)))
        member = await self.store.get(Membership, host, fresh=True)
        await self.store.replace(_replace(member, record=_replace(member.record, **changes)))

    async def joined(self, host: str) -> None:
        record = MemberRecord(machine_id=host, boot_id="1", nonce="first")
        await self.store.create(Membership(metadata=ObjectMeta(name=host), record=record))

    def stalled(self, host: str) -> bool:
        return FaultCode.PRIMARY_STALLED in [one.code for one in self.faults[host].active]

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def told(story: Callable[[Story], Awaitable[None]], *hosts: str) -> None:
    async def whole() -> None:
        played = Story(*(hosts or ("a", "b", "c")))
        await played.start()
        await played.clock.sleep(5)
        await story(played)
        await played.end()

    run(whole())


def test_the_first_takes_the_role_and_starts_its_duties_in_order() -> None:
    async def story(it: Story) -> None:
        record = await it.record()
        assert (record.holder, record.term, record.phase) == ("a", 1, "")
        assert it.said == [("a", "+stats", 1), ("a", "+api", 1)]

    told(story)


@pytest.mark.parametrize(("verb", "host", "then"), [("primary", "c", "c"), ("secondary", "a", "b")])
def test_it_is_handed_over_and_no_duty_is_done_twice(verb: str, host: str, then: str) -> None:
    async def story(it: Story) -> None:
        await it.ask(verb, host)
        await it.clock.sleep(12)
        record = await it.record()
        assert record.holder in ((then,) if verb == "primary" else ("b", "c"))
        assert (record.phase, record.previous, record.to, record.answered) == ("", "a", "", "1")
        new = record.holder
        assert it.said[2:4] == [("a", "-api", 0), ("a", "-stats", 0)]
        assert it.said[4:] == [(new, "+stats", 2), (new, "+api", 2)]
        await it.ask("primary", "a", "2")  # and back
        await it.clock.sleep(12)
        assert (await it.record()).holder == "a"
        assert it.having == [("a", "stats"), ("a", "api")]

    told(story)


def test_of_a_primary_that_dies_another_takes_the_role() -> None:
    async def story(it: Story) -> None:
        for duty in it.duties["a"]:
            duty.hangs = True  # a dead process stops nothing
        it.primaries["a"].elector._store = Silent()  # type: ignore[assignment]
        await it.clock.sleep(30)
        record = await it.record()
        assert record.holder in ("b", "c")
        assert (record.term, record.previous) == (2, "a")

    told(story)


class Silent:
    """A store that is away."""

    def __getattr__(self, _name: str) -> Callable[..., Awaitable[None]]:
        async def away(*_args: object, **_options: object) -> None:
            raise Unavailable("it is away")

        return away


def test_a_leaver_that_stalls_keeps_nobody_waiting() -> None:
    async def story(it: Story) -> None:
        await it.joined("a")
        it.duties["a"][1].hangs = it.duties["a"][0].hangs = True
        await it.ask("primary", "b")
        await it.clock.sleep(40)
        record = await it.record()
        assert (record.holder, record.phase, record.previous) == ("b", "", "a")
        assert [one.code for one in it.faults["b"].active] == [FaultCode.PRIMARY_STALLED]
        (left,) = it.faults["a"].active
        assert (left.code, left.fields["what"]) == (FaultCode.PRIMARY_DUTY, "stop stats")

    told(story)


def test_the_fault_of_a_leaver_that_stalls_ends_once_it_has_had_the_time_to_stop_its_duties() -> None:
    async def story(it: Story) -> None:
        await it.joined("a")
        for duty in it.duties["a"]:
            duty.stops_for_s = 9.0
        await it.ask("primary", "b")
        await it.renew("a", 22)
        assert it.stalled("b")
        await it.renew("a", 25)
        assert (it.stalled("b"), (await it.record()).holder) == (False, "b")

    told(story)


@pytest.mark.parametrize("gone", ["started again", "proven dead", "released", "deleted"])
def test_the_fault_of_a_leaver_whose_duties_do_not_stop_ends_with_its_process(gone: str) -> None:
    async def story(it: Story) -> None:
        await it.joined("a")
        it.tasks["faults"] = asyncio.create_task(it.faults["a"].run())
        it.duties["a"][1].hangs = it.duties["a"][0].hangs = True
        await it.ask("primary", "b")
        await it.renew("a", 90)
        assert it.stalled("b"), "it says itself that it could not stop them"
        match gone:
            case "started again":
                await it.renew("a", 0, nonce="second")
            case "proven dead":
                await it.renew("a", 0, state="Revoked")
                await it.clock.sleep(60)
                assert it.stalled("b")
                await it.renew("a", 0, dead_through=1)
            case "released":
                await it.renew("a", 0, state="Released")
            case _:
                await it.store.delete((await it.store.get(Membership, "a")).ref)
        await it.clock.sleep(3)
        assert not it.stalled("b")

    told(story)


def test_the_fault_of_a_leaver_that_is_silent_stays_also_where_the_role_goes_on() -> None:
    async def story(it: Story) -> None:
        await it.joined("a")
        for duty in it.duties["a"]:
            duty.stops_for_s = 9.0
        await it.ask("primary", "b")
        await it.clock.sleep(60)
        assert it.stalled("b")
        it.primaries["a"].withdraw()
        await it.ask("primary", "c", "2")
        await it.clock.sleep(20)
        assert ((await it.record()).holder, it.stalled("b")) == ("c", True)
        await it.renew("a", 2)
        await it.clock.sleep(3)
        assert not it.stalled("b")

    told(story)


def test_a_hand_over_to_a_host_that_does_not_stand_ends_with_another() -> None:
    async def story(it: Story) -> None:
        await it.ask("primary", "nobody")
        await it.clock.sleep(30)
        record = await it.record()
        assert (record.holder != "", record.phase, record.answered) == (True, "", "1")
        assert len(it.having) == 2

    told(story)


def test_a_primary_that_loses_the_store_stops_its_duties_before_another_starts_them() -> None:
    async def story(it: Story) -> None:
        it.primaries["a"].elector._store = Silent()  # type: ignore[assignment]
        await it.clock.sleep(30)
        hosts = [host for host, what, _ in it.said if what in ("+stats", "-stats")]
        assert hosts[:2] == ["a", "a"]
        assert it.having[0][0] in ("b", "c")

    told(story)


def test_a_duty_that_fails_is_a_fault_and_the_others_are_done() -> None:
    async def story(it: Story) -> None:
        it.duties["b"][0].fails = True
        await it.ask("primary", "b")
        await it.clock.sleep(12)
        assert it.having == [("b", "api")]
        assert (await it.record()).phase == ""

    told(story)


def test_a_daemon_that_ends_gives_the_role_back_and_stops_its_duties() -> None:
    async def story(it: Story) -> None:
        it.tasks["a"].cancel()
        await it.clock.sleep(8)
        assert (await it.record()).holder in ("b", "c")
        assert {host for host, _ in it.having} == {(await it.record()).holder}

    told(story)


def test_a_host_that_resigns_ends_its_duties_before_another_begins_them_and_is_no_candidate_any_more() -> None:
    async def story(it: Story) -> None:
        await it.primaries["a"].resign()
        assert it.said[2:] == [("a", "-api", 0), ("a", "-stats", 0)]
        assert (await it.record()).holder != "a"
        it.primaries["c"].withdraw()
        await it.clock.sleep(8)
        assert it.said[4:] == [("b", "+stats", 2), ("b", "+api", 2)]
        await it.primaries["b"].resign()
        await it.clock.sleep(30)
        assert (await it.record()).holder == "", "nobody who stops takes it"
        assert it.having == []

    told(story)


def test_a_host_that_resigns_while_it_takes_over_begins_no_more_duties() -> None:
    async def story(it: Story) -> None:
        await it.ask("primary", "b")
        while ("b", "+stats", 2) not in it.said:
            await it.clock.sleep(0.05)
        await it.primaries["b"].resign()
        await it.clock.sleep(8)
        assert [host for host, _ in it.having] == [(await it.record()).holder] * 2 != ["b"] * 2

    told(story)


def test_a_host_without_the_store_resigns_as_well() -> None:
    async def story(it: Story) -> None:
        it.primaries["a"].elector._store = Silent()  # type: ignore[assignment]
        began = it.clock.monotonic()
        await it.primaries["a"].resign()
        assert it.clock.monotonic() - began < 12
        assert not [host for host, _ in it.having if host == "a"]

    told(story)


def test_a_candidate_knows_who_has_the_role() -> None:
    async def story(it: Story) -> None:
        assert {it.primaries[host].elector.holder for host in ("b", "c")} == {"a"}

    told(story)


names = st.sampled_from(("a", "b", "c"))
records = st.builds(
    ElectionRecord,
    holder=st.sampled_from(("", "a", "b")),
    phase=st.sampled_from(("", "takeover", "relinquish")),
    previous=st.sampled_from(("", "a", "b")),
    to=st.sampled_from(("", "a", "b", "c")),
    answered=st.sampled_from(("", "1")),
)


@given(names, records, st.booleans())
def test_a_role_that_is_held_is_taken_only_from_the_silent_and_the_stalled(
    host: str, record: ElectionRecord, stalled: bool
) -> None:
    assert may_take(host, record, silent=True, stalled=stalled)
    if may_take(host, record, silent=False, stalled=stalled):
        assert not record.holder or (stalled and record.phase == "relinquish")
        assert record.to in ("", host)


@pytest.mark.slow
@given(records)
def test_a_free_role_is_meant_for_somebody_at_once(record: ElectionRecord) -> None:
    free = _replace(record, holder="")
    assert any(may_take(host, free, silent=False, stalled=False) for host in ("a", "b", "c"))


@given(names, records, names, st.sampled_from(("primary", "secondary")))
def test_a_request_is_answered_once_and_moves_only_what_it_names(
    host: str, record: ElectionRecord, other: str, verb: Any
) -> None:
    step = answer_request(host, record, PrimaryRequest(id="1", verb=verb, host=other))
    assert (step is None) == (record.answered == "1")
    if step is not None:
        assert step.relinquish == ((verb == "primary") != (other == host))
        assert step.to == (other if step.relinquish and verb == "primary" else "")
    assert answer_request(host, record, None) is None
    assert Next() == Next(relinquish=False, to="")
