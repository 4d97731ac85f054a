"""Ties: the vector and the scalar give the same key, and the fast sort gives the same order as the obvious one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plain_placement import tie_key

from outlive.placement import best_first, host_hashes, tie_keys

SCORES = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-15, 1.0 + 3e-16, -1.0, 5e-324, 1e300, -1e300, 0.3, 0.1 + 0.2])


@given(st.text(max_size=20), st.lists(st.text(max_size=10), max_size=8))
def test_the_vector_and_the_scalar_agree(resource: str, names: list[str]) -> None:
    assert tie_keys(resource, host_hashes(names)).tolist() == [tie_key(resource, name) for name in names]


@given(st.lists(st.tuples(SCORES | st.floats(-5, 5), st.integers(0, 2)), max_size=40))
def test_order_is_by_score_then_key_then_name(hosts: list[tuple[float, int]]) -> None:
    scores = np.array([score for score, _ in hosts], dtype=np.float64)
    keys = np.array([key << 20 | (key * 7) for _, key in hosts], dtype=np.uint64)
    names = [f"h{number:02}" for number in reversed(range(len(hosts)))]
    found = best_first(scores, keys.__getitem__, names.__getitem__)
    wanted = sorted(range(len(hosts)), key=lambda at: (-hosts[at][0], int(keys[at]), names[at]))
    assert found.tolist() == wanted


def test_keys_are_not_computed_where_nothing_is_equal() -> None:
    def nobody(_: object) -> np.ndarray:  # type: ignore[type-arg]
        raise AssertionError("asked for keys")

    assert best_first(np.array([1.0, 3.0, 2.0]), nobody, str).tolist() == [1, 2, 0]


@pytest.mark.slow
def test_many_equal_hosts_are_in_the_order_of_their_keys() -> None:
    hashes = host_hashes([f"h{number}" for number in range(70_000)])
    keys = tie_keys("vm", hashes)
    order = best_first(np.zeros(70_000), keys.__getitem__, str)
    assert (np.diff(keys[order].astype(np.int64)) >= 0).all()


def test_each_vm_sees_equal_hosts_in_another_order() -> None:
    hashes = host_hashes([f"h{number}" for number in range(20)])
    firsts = {int(np.argmin(tie_keys(f"vm-{number}", hashes))) for number in range(200)}
    assert len(firsts) == 20
