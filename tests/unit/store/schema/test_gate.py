"""``schema.gate`` and ``lock.acquire``: each row of their rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import Invalid, natural_key
from outlive.resources import convert
from outlive.store.schema import GateInput, LockInput, LockOutcome, count_tries, open_gate


def node(latest: int, active: int = 1, state: str = "run") -> dict[str, Any]:
    return {"active": active, "latest": latest, "daemon_state": state}


GATES: dict[str, tuple[int, dict[str, Any], list[str], int | None, list[str]]] = {
    "all know the newer one": (1, {"a": node(2), "b": node(2)}, [], 2, []),
    "one does not": (1, {"a": node(2), "b": node(1)}, [], None, ["b"]),
    "several do not, in natural order": (
        1,
        {"hv10": node(1), "hv2": node(1), "hv1": node(3), "hv3": node(2)},
        [],
        None,
        ["hv2", "hv3", "hv10"],
    ),
    "nobody knows a newer one": (2, {"a": node(2), "b": node(1)}, [], None, []),
    "all are older": (3, {"a": node(1), "b": node(2)}, [], None, []),
    "one that is excluded is not waited for": (1, {"a": node(2), "b": node(1)}, ["b"], 2, []),
    "nor does its newest one count": (1, {"a": node(2), "b": node(9)}, ["b"], 2, []),
    "an excluded one that nobody knows changes nothing": (1, {"a": node(2)}, ["z"], 2, []),
    "there is no host": (1, {}, [], None, []),
    "all hosts are excluded": (1, {"a": node(2)}, ["a"], None, []),
    "the state of a daemon has no effect": (1, {"a": node(2, state="stop"), "b": node(2, state="dead")}, [], 2, []),
    "nor has what it works by": (1, {"a": node(2, active=2), "b": node(2, active=1)}, [], 2, []),
}


@pytest.mark.parametrize(("cluster", "nodes", "exclude", "to", "waiting"), GATES.values(), ids=GATES)
def test_the_gate(cluster: int, nodes: dict[str, Any], exclude: list[str], to: int | None, waiting: list[str]) -> None:
    result = open_gate(convert(GateInput, {"cluster": cluster, "nodes": nodes, "exclude": exclude}))
    assert (result.advance_to, list(result.waiting_for)) == (to, waiting)


@given(
    st.integers(0, 4),
    st.dictionaries(st.from_regex(r"hv[0-9]{1,2}", fullmatch=True), st.integers(0, 5), max_size=6),
    st.frozensets(st.from_regex(r"hv[0-9]{1,2}", fullmatch=True), max_size=3),
)
def test_the_gate_opens_exactly_when_nobody_is_behind(
    cluster: int, latest: dict[str, int], exclude: frozenset[str]
) -> None:
    nodes = {name: node(value) for name, value in latest.items()}
    result = open_gate(convert(GateInput, {"cluster": cluster, "nodes": nodes, "exclude": list(exclude)}))
    counted = {name: value for name, value in latest.items() if name not in exclude}
    newest = max(counted.values(), default=cluster)
    behind = sorted((name for name, value in counted.items() if value < newest), key=natural_key)
    assert (result.advance_to is not None) == (newest > cluster and not behind)
    assert list(result.waiting_for) == (behind if newest > cluster else [])


LOCKS = {
    "acquired at once": (["ok"], "acquired", 1, 0.0),
    "acquired after two errors": (["conn_error", "conn_error", "ok"], "acquired", 3, 1.0),
    "acquired at the last try": (["conn_error"] * 4 + ["ok"], "acquired", 5, 2.0),
    "one error stands for all that follow": (["conn_error"], "failed", 5, 2.0),
    "five errors": (["conn_error"] * 5, "failed", 5, 2.0),
    "what follows the fifth does not count": (["conn_error"] * 5 + ["ok"], "failed", 5, 2.0),
    "nothing to lock": (["no_node", "ok"], "none", 1, 0.0),
    "nothing to lock after an error": (["conn_error", "no_node"], "none", 2, 0.5),
    "a timeout is an answer": (["timeout", "ok"], "timeout", 1, 0.0),
    "a timeout after errors": (["conn_error", "conn_error", "timeout", "ok"], "timeout", 3, 1.0),
}


@pytest.mark.parametrize(("outcomes", "result", "attempts", "waited"), LOCKS.values(), ids=LOCKS)
def test_the_tries_of_a_lock(outcomes: list[str], result: str, attempts: int, waited: float) -> None:
    found = count_tries(convert(LockInput, {"outcomes": outcomes}))
    assert (found.result, found.attempts, found.waited) == (result, attempts, waited)


@pytest.mark.parametrize("raw", [{}, {"outcomes": []}, {"outcomes": ["lost"]}, {"outcomes": "ok"}])
def test_tries_that_mean_nothing_are_invalid(raw: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        convert(LockInput, raw)


@given(st.lists(st.sampled_from(LockOutcome), min_size=1, max_size=8))
def test_a_lock_is_tried_five_times_at_most_and_pauses_between_tries_alone(outcomes: list[LockOutcome]) -> None:
    found = count_tries(LockInput(outcomes=tuple(outcomes)))
    assert 1 <= found.attempts <= 5
    assert found.waited == 0.5 * (found.attempts - 1)
