"""The primary coordinator: one takes the role, hands it over, dies, stalls; and duties end with the role."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.coordinators import Coordinators, SilentStore
from tests.support.loops import run, run_by

from outlive.base import Unavailable
from outlive.node import Next, answer_request, may_take
from outlive.resources import ElectionRecord, Membership, PrimaryRequest
from outlive.resources.reasons import FaultCode

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


class Story(Coordinators):
    """Coordinators with duties that are counted."""

    def __init__(self, *hosts: str) -> None:
        super().__init__()
        self.said: list[tuple[str, str, int]] = []
        self.having: list[tuple[str, str]] = []
        self.duties = {host: [Counted("stats", self, host), Counted("api", self, host)] for host in hosts}
        for host in hosts:
            self.add(host, self.duties[host])

    async def renew(self, host: str, seconds: float, **changes: Any) -> None:
        """Its membership, for so long; then changed."""
        for _ in range(int(seconds)):
            await self.clock.sleep(1)
            member = await self.store.get(Membership, host, fresh=True)
            await self.store.replace(_replace(member, record=_replace(member.record, seq=member.record.seq + 1)))
        member = await self.store.get(Membership, host, fresh=True)
        await self.store.replace(_replace(member, record=_replace(member.record, **changes)))

    def stalled(self, host: str) -> bool:
        return FaultCode.PRIMARY_STALLED in [one.code for one in self.faults[host].active]


def told(story: Callable[[Story], Awaitable[None]]) -> None:
    async def whole() -> None:
        played = Story("a", "b", "c")
        await played.start()
        await story(played)
        await played.end()

    run(whole())


@run_by(told)
async def test_the_first_takes_the_role_and_starts_its_duties_in_order(it: Story) -> None:
    record = await it.record()
    assert (record.holder, record.term, record.phase) == ("a", 1, "")
    assert it.said == [("a", "+stats", 1), ("a", "+api", 1)]


@run_by(told)
async def test_the_fault_of_a_leaver_that_stalls_ends_once_it_has_had_the_time_to_stop_its_duties(it: Story) -> None:
    await it.join("a")
    for duty in it.duties["a"]:
        duty.stops_for_s = 9.0
    await it.ask("b")
    await it.renew("a", 22)
    assert it.stalled("b")
    await it.renew("a", 25)
    assert (it.stalled("b"), (await it.record()).holder) == (False, "b")


@pytest.mark.parametrize("gone", ["started again", "proven dead", "released", "deleted"])
@run_by(told)
async def test_the_fault_of_a_leaver_whose_duties_do_not_stop_ends_with_its_process(it: Story, *, gone: str) -> None:
    await it.join("a")
    it.tasks["faults"] = asyncio.create_task(it.faults["a"].run())
    it.duties["a"][1].hangs = it.duties["a"][0].hangs = True
    await it.ask("b")
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


@run_by(told)
async def test_the_fault_of_a_leaver_that_is_silent_stays_also_where_the_role_goes_on(it: Story) -> None:
    await it.join("a")
    for duty in it.duties["a"]:
        duty.stops_for_s = 9.0
    await it.ask("b")
    await it.clock.sleep(60)
    assert it.stalled("b")
    it.primaries["a"].withdraw()
    await it.ask("c", "2")
    await it.clock.sleep(20)
    assert ((await it.record()).holder, it.stalled("b")) == ("c", True)
    await it.renew("a", 2)
    await it.clock.sleep(3)
    assert not it.stalled("b")


@run_by(told)
async def test_a_hand_over_to_a_host_that_does_not_stand_ends_with_another(it: Story) -> None:
    await it.ask("nobody")
    await it.clock.sleep(30)
    record = await it.record()
    assert (record.holder != "", record.phase, record.answered) == (True, "", "1")
    assert len(it.having) == 2


@run_by(told)
async def test_a_primary_that_loses_the_store_stops_its_duties_before_another_starts_them(it: Story) -> None:
    it.primaries["a"].elector._store = SilentStore()  # type: ignore[assignment]
    await it.clock.sleep(30)
    hosts = [host for host, what, _ in it.said if what in ("+stats", "-stats")]
    assert hosts[:2] == ["a", "a"]
    assert it.having[0][0] in ("b", "c")


@run_by(told)
async def test_a_duty_that_fails_is_a_fault_and_the_others_are_done(it: Story) -> None:
    it.duties["b"][0].fails = True
    await it.ask("b")
    await it.clock.sleep(12)
    assert it.having == [("b", "api")]
    assert (await it.record()).phase == ""


@run_by(told)
async def test_a_host_that_resigns_ends_its_duties_before_another_begins_them_and_is_no_candidate_any_more(
    it: Story,
) -> None:
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


@run_by(told)
async def test_a_host_that_resigns_while_it_takes_over_begins_no_more_duties(it: Story) -> None:
    await it.ask("b")
    while ("b", "+stats", 2) not in it.said:
        await it.clock.sleep(0.05)
    await it.primaries["b"].resign()
    await it.clock.sleep(8)
    assert [host for host, _ in it.having] == [(await it.record()).holder] * 2 != ["b"] * 2


@run_by(told)
async def test_a_host_without_the_store_resigns_as_well(it: Story) -> None:
    it.primaries["a"].elector._store = SilentStore()  # type: ignore[assignment]
    began = it.clock.monotonic()
    await it.primaries["a"].resign()
    assert it.clock.monotonic() - began < 12
    assert not [host for host, _ in it.having if host == "a"]


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
