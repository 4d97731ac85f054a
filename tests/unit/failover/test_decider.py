from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cycles import check_rules
from tests.support.failover import GIB, Cloud
from tests.support.loops import run

from outlive.base import LoopClock, Unavailable
from outlive.failover import Demands, HostView, Inline, ResolvedSize, SlotView
from outlive.failover.planner import AssignInput, CleanInput, Need, PlacementOffer, SelectInput
from outlive.failover.reconciler import ENCODED, PASS_VMS, context, encode_large
from outlive.placement import VmView
from outlive.resources import encode_canonical
from outlive.runtime import Decision


class Counting(Inline):
    """Computes on the spot and remembers what."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.error: Unavailable | None = None

    async def compute(self, decision: Decision[Any, Any], *raw: bytes) -> bytes:
        self.names.append(decision.name)
        if self.error is not None:
            raise self.error
        return await super().compute(decision, *raw)


async def cloud_with(computer: Counting, vms: int = 1) -> Cloud:
    cloud = Cloud(computer=computer)
    await cloud.hosts("h1", "h2", "h3", "h4")
    for number in range(vms):
        await cloud.vm(f"v{number:02}", "h1", cpu=100, memory=GIB)
    return cloud


@pytest.mark.slow
def test_large_decisions_are_computed_elsewhere_with_the_same_answer(monkeypatch: pytest.MonkeyPatch):
    async def story(vms: int) -> tuple[list[str], set[bool], set[str]]:
        computer = Counting()
        cloud = await cloud_with(computer, vms)
        await cloud.cycle()
        covered = await cloud.covered()
        assert len(covered) == vms
        return computer.names, set(covered.values()), {use.name for use in cloud.decisions.uses()}

    monkeypatch.setattr(context, "INLINE_OBJECTS", -1)
    names, covered, used = run(story(1))
    assert names == ["failover.clean", "failover.select"], "few VMs are decided about on the living index"
    assert (covered, used) == ({True}, {*names, "failover.assign"})
    names, covered, used = run(story(PASS_VMS + 1))
    assert names == ["failover.clean", "failover.select", "failover.plan"]
    assert (covered, used) == ({True}, set(names))


def test_a_computer_that_fails_ends_the_cycle_and_is_counted(monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        computer = Counting()
        cloud = await cloud_with(computer)
        computer.error = Unavailable("the child died")
        assert await cloud.cycle() == 30.0
        assert cloud.metric("failover_reconciliation_aborted_total", step="decide") == 1
        assert await cloud.members() == {}
        computer.error = None
        await cloud.cycle()
        assert await cloud.covered() == {"v00": True}

    monkeypatch.setattr(context, "INLINE_OBJECTS", -1)
    run(story())


async def test_what_fails_besides_deciding_is_not_counted_as_deciding(monkeypatch: pytest.MonkeyPatch):
    cloud = await cloud_with(Counting())

    async def away() -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(cloud.failover_run.cache, "find_disagreements", away)
    with pytest.raises(Unavailable, match="the store is away"):
        await cloud.cycle()
    assert cloud.metric("failover_reconciliation_aborted_total", step="decide") == 0


@pytest.mark.slow
async def test_slots_are_planned_anew_when_more_are_needed_than_can_be_added():
    """Slots made for one slot a VM leave hardly any second one; a plan for two covers everybody on these hosts."""
    cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
    for number in range(10):
        await cloud.host(f"h{number}", cpu=32_000, memory=128 * GIB)
    for number in range(60):
        await cloud.vm(f"v{number:02}", f"h{number % 10}", cpu=2_000, memory=8 * GIB)
    await cloud.cycle()
    assert set((await cloud.covered()).values()) == {True}
    cache = cloud.failover_run.cache
    cache._demands = Demands({"*": 2})
    await cache.rebuild()
    for _ in range(3):
        await cloud.cycle()
    covered = await cloud.covered()
    assert (len(covered), sum(covered.values())) == (60, 60)
    await check_rules(cloud)


MANY = 2 * ENCODED + 1
vms = st.builds(
    VmView,
    id=st.text(max_size=3),
    host=st.text(max_size=3),
    also_needs=st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)
slots = st.builds(SlotView, name=st.text(max_size=3), members=st.dictionaries(st.text(max_size=2), st.text(max_size=2)))
inputs = st.one_of(
    st.builds(
        CleanInput,
        vms=st.lists(vms, max_size=4).map(tuple),
        slots=st.lists(slots, max_size=4).map(tuple),
        hosts=st.lists(st.builds(HostView, name=st.text(max_size=2)), max_size=2).map(tuple),
        now=st.sampled_from([0.0, 1.5]),
    ),
    st.builds(
        SelectInput,
        vms=st.lists(vms, max_size=3).map(tuple),
        slots=st.just(()),
        required=st.dictionaries(st.text(max_size=2), st.integers(0, 3)),
        cycle=st.sampled_from([1, 2]),
    ),
)


@pytest.mark.slow
@given(inputs)
def test_what_is_encoded_in_batches_is_what_is_encoded_at_once(value: CleanInput | SelectInput) -> None:
    assert run(encode_large(value, LoopClock())) == encode_canonical(value)


def test_large_tuples_and_maps_are_encoded_in_batches_in_the_same_order() -> None:
    names = [f"h{number}" for number in range(MANY)]
    value = AssignInput(
        slots=tuple(SlotView(name=name, members={name: name}) for name in names),
        vms=(VmView(id="v", host="h"),),
        needs=(Need(vm="v", needed=1, size=ResolvedSize(), offer_class="c"),),
        new={"c": PlacementOffer(hosts=tuple(names))},
        free=dict.fromkeys(reversed(names), (1, 2)),
    )
    assert run(encode_large(value, LoopClock())) == encode_canonical(value)
