"""The history of placement: what is kept of answers, and that keeping it neither delays nor fails a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.field_writers import WriterStore
from tests.support.loops import run, run_by
from tests.support.placement import host, request

from outlive.base import LoopClock, NotFound, Random, SeededIds
from outlive.placement import (
    SILENT,
    Fleet,
    HistoryCleanup,
    HistoryWriter,
    PipelineTable,
    PlacementService,
    RecordedRun,
    UnknownPipeline,
    encode_request,
    is_stale,
    with_answer,
)
from outlive.resources import Event, PlacementHistory
from outlive.runtime import EventRecorder
from outlive.store import FaultRates, FaultStore, MemoryStore, list_all


class World:
    """Placement over two hosts that keeps a history in a memory store."""

    def __init__(self, rates: FaultRates | None = None) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        way = FaultStore(WriterStore(self.store, writer="placement"), clock=self.clock, random=Random(2), rates=rates)
        self.service = PlacementService(Fleet(), PipelineTable.with_shipped(), clock=self.clock, random=Random(3))
        self.service.history = self.writer = HistoryWriter(way, clock=self.clock)
        for name in ("a", "b"):
            self.service.fleet.upsert_host(host(name))

    async def history(self, vm: str = "vm-1") -> PlacementHistory:
        await self.writer.flush()
        return await self.store.get(PlacementHistory, f"nova-{vm}")


def told(story: Callable[[World], Awaitable[None]], rates: FaultRates | None = None) -> None:
    async def telling() -> None:
        await story(World(rates))

    run(telling())


@run_by(told)
async def test_an_answer_is_kept_with_its_explanation(world: World) -> None:
    ranking = await world.service.rank(request(zone="z1"))
    kept = await world.history()
    current = kept.status.current
    assert current is not None
    assert (kept.spec.resource_id, kept.spec.availability_zone) == ("vm-1", "z1")
    assert (current.target_host, current.ordered_hosts, current.successful) == (ranking.target, ranking.hosts, True)
    assert current.pipeline_ref.name == "kvm-general-purpose-load-balancing"
    assert "2 hosts at the start." in current.explanation
    assert [(one.status, one.reason) for one in kept.status.conditions] == [("True", "SchedulingSucceeded")]


@run_by(told)
async def test_a_search_without_a_host_and_a_refused_call_are_kept(world: World) -> None:
    await world.service.rank(request(zone="z9"))
    none = (await world.history()).status
    assert none.current is not None
    assert not none.current.successful
    assert none.conditions[0].reason == "NoHostFound"
    assert "filter_correct_az removed 2 hosts (a and b)" in none.current.explanation
    with pytest.raises(UnknownPipeline):
        await world.service.rank(request(pipeline="nowhere"))
    refused = (await world.history()).status
    assert (refused.conditions[0].status, refused.conditions[0].reason) == ("False", "PipelineRunFailed")
    assert "'nowhere' is not known" in refused.conditions[0].message
    assert refused.conditions[0].last_transition_time == none.conditions[0].last_transition_time
    assert len(refused.history) == 1


@run_by(told)
async def test_the_order_that_was_answered_is_kept(world: World) -> None:
    for _ in range(4):
        answer = await world.service.answer_external(encode_request(request(intent="evacuate", hosts=["a", "b"])))
        current = (await world.history()).status.current
        assert current is not None
        assert answer.body == b'{"hosts":["%s","%s"]}' % tuple(one.encode() for one in current.ordered_hosts)


@run_by(told)
async def test_an_event_of_the_vm_says_which_host_was_chosen_or_that_there_was_none(world: World) -> None:
    recorder = EventRecorder(world.store, clock=world.clock, ids=SeededIds(Random(4)), source="placement")
    world.service.history = HistoryWriter(world.store, clock=world.clock, events=recorder)
    await world.service.rank(request())
    await world.service.rank(request(zone="z9"))
    await recorder.flush()
    events = {one.reason: one async for one in list_all(world.store, Event)}
    chosen, none = events["SchedulingSucceeded"], events["NoHostFound"]
    assert (chosen.regarding.name, chosen.type, chosen.note) == ("vm-1", "Normal", "b is chosen")
    assert (none.regarding.name, none.type) == ("vm-1", "Warning")
    assert "filter_correct_az removed 2 hosts (a and b)" in none.note


@run_by(told)
async def test_calls_that_leave_no_trace_are_not_kept(world: World) -> None:
    await world.service.rank(replace(request(), options=SILENT))
    await world.service.rank(replace(request(), options=replace(SILENT, read_only=True)))
    await world.service.rank(request(resourceId=""))
    with pytest.raises(NotFound):
        await world.history()


@given(st.integers(0, 30))
def test_the_last_ten_before_the_current_are_kept_in_order(number: int) -> None:
    kept: PlacementHistory | None = None
    for at in range(number):
        kept = with_answer(
            kept, RecordedRun(resource_id="v", zone="", at=float(at), pipeline="p", intent="create", target=f"h{at}",
                         hosts=(f"h{at}",))
        )  # fmt: skip
        assert kept is not None
    if kept is None:
        return
    current, earlier = kept.status.current, kept.status.history
    assert current is not None
    assert current.target_host == f"h{number - 1}"
    assert [one.ordered_hosts for one in earlier] == [(f"h{at}",) for at in range(max(0, number - 11), number - 1)]
    assert not any(one.explanation or one.target_host for one in earlier)


@run_by(told, FaultRates(lose_applied=0.3, lose_dropped=0.2))
async def test_an_answer_whose_write_was_lost_is_kept_once(world: World) -> None:
    for _ in range(8):
        await world.service.rank(request())
    status = (await world.history()).status
    moments = [one.timestamp for one in (*status.history, status.current) if one is not None]
    assert moments == sorted(set(moments))
    assert len(moments) + world.writer.dropped == 8


@run_by(told, FaultRates(refuse=1.0))
async def test_a_store_that_is_away_fails_no_call(world: World) -> None:
    assert (await world.service.rank(request())).target
    await world.writer.flush()
    assert world.writer.dropped == 1


def test_a_full_queue_loses_what_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.placement.history.QUEUE_LIMIT", 2)

    async def story(world: World) -> None:
        for _ in range(3):
            await world.service.rank(request())
        assert world.writer.dropped == 1

    told(story)


@run_by(told)
async def test_histories_of_what_is_gone_are_deleted_after_a_day(world: World) -> None:
    for vm in ("vm-1", "vm-2", "slot-3"):
        await world.service.rank(request(resourceId=vm))
    await world.writer.flush()

    async def known() -> frozenset[str]:
        return frozenset({"vm-1", "slot-3"})

    cleanup = HistoryCleanup(world.store, known, clock=world.clock)
    await cleanup.clean()
    assert cleanup.deleted == 0
    await world.clock.sleep(86_401)
    await cleanup.clean()
    left = [one.spec.resource_id async for one in list_all(world.store, PlacementHistory)]
    assert left == ["slot-3", "vm-1"]


def test_a_history_without_an_answer_is_stale() -> None:
    run = RecordedRun(resource_id="v", zone="", at=0.0, pipeline="p", intent="", error="no")
    empty = replace(with_answer(None, run),
                    status=PlacementHistory(spec=_spec()).status)  # fmt: skip
    assert is_stale(empty, frozenset(), 90_000.0)
    assert not is_stale(empty, frozenset({"v"}), 90_000.0)


def _spec() -> object:
    kept = with_answer(None, RecordedRun(resource_id="v", zone="", at=0.0, pipeline="p", intent="", error="no"))
    assert kept is not None
    return kept.spec
