from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.planner.actions import Need, Offer
from outlive.failover.planner.assign import AssignInput
from outlive.failover.planner.cleanup import CleanInput
from outlive.failover.planner.selection import SelectInput
from outlive.failover.portions import ENCODED, Portions, encoded, in_portions, portioned, whole
from outlive.failover.sizing import ResolvedSize
from outlive.resources.codec import encode_canonical

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
def test_what_is_encoded_in_portions_is_what_is_encoded_at_once(value: CleanInput | SelectInput) -> None:
    assert whole(encoded(value)) == encode_canonical(value)


def test_large_tuples_and_maps_are_encoded_in_portions_in_the_same_order() -> None:
    names = [f"h{number}" for number in range(MANY)]
    value = AssignInput(
        slots=tuple(SlotView(name=name, members={name: name}) for name in names),
        vms=(VmView(id="v", host="h"),),
        needs=(Need(vm="v", needed=1, size=ResolvedSize(), offer_class="c"),),
        new={"c": Offer(hosts=tuple(names))},
        free=dict.fromkeys(reversed(names), (1, 2)),
    )
    work = encoded(value)
    assert len([None for _ in work]) > 6
    assert whole(encoded(value)) == encode_canonical(value)


def counting(total: int) -> Portions[int]:
    done = 0
    for portion in portioned(range(total), 3):
        done += len(portion)
        yield
    return done


def test_others_get_a_turn_after_every_portion() -> None:
    async def story() -> None:
        clock, turns = LoopClock(), 0

        class Counting:
            def __getattr__(self, name: str) -> object:
                return getattr(clock, name)

            async def sleep(self, seconds: float) -> None:
                nonlocal turns
                turns += 1
                await clock.sleep(seconds)

        assert await in_portions(counting(10), Counting()) == 10  # type: ignore[arg-type]
        assert turns == 4

    run(story())
    assert whole(counting(10)) == 10
