"""Metrics of the order of hosts look up the first few only, and say what sorting all would say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outlive.placement import WeightOrder, select_heaviest

WEIGHTS = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 2.0]), min_size=1, max_size=12)


@given(WEIGHTS, st.data())
def test_the_first_hosts_and_their_ranks_are_those_of_a_full_sort(weights: list[float], data: st.DataObject) -> None:
    positions = data.draw(st.sets(st.integers(0, len(weights) - 1)))
    at, values = np.array(sorted(positions), dtype=np.intp), np.array(weights)
    full = at[np.argsort(-values[at], kind="stable")]
    first = select_heaviest(at, values)
    assert first.tolist() == full[:5].tolist()
    order = WeightOrder(at, values, first)
    assert [order.rank_of(int(one)) for one in full] == list(range(len(full)))
