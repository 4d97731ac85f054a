"""How pods are evicted is asked once, and a discovery that failed teaches nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.runtime import DecisionTable
from outlive.storage import DECISIONS

TABLE = DecisionTable(DECISIONS)


def decide(**members: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(TABLE.decide_json("storage.evict_method", json.dumps(members).encode()))
    return answer


def resource(name: str, version: str) -> dict[str, str]:
    return {"name": name, "kind": "Eviction", "group": "policy", "version": version}


PODS = {"name": "pods", "kind": "Pod"}


@pytest.mark.parametrize(
    ("resources", "method"),
    [
        ([PODS, resource("pods/eviction", "v1")], "policy/v1"),
        ([resource("pods/eviction", "v1beta1"), PODS], "policy/v1beta1"),
        ([resource("pods/eviction", "v2")], "delete"),
        ([{"name": "pods/eviction"}], "delete"),
        ([PODS, resource("evictions", "v1")], "delete"),
        ([None, {"name": None}, resource("pods/eviction", "v1")], "policy/v1"),
        ([], "delete"),
        (None, "delete"),
    ],
)
def test_the_method_is_that_of_the_version_which_the_server_has(resources: Any, method: str) -> None:
    assert decide(discovery={"resources": resources}) == {"ask": False, "method": method, "known": method}


def test_the_server_is_asked_before_the_first_eviction_only() -> None:
    assert decide() == {"ask": True, "method": None, "known": None}
    assert decide(known=None, discovery=None) == {"ask": True, "method": None, "known": None}
    assert decide(known="policy/v1") == {"ask": False, "method": "policy/v1", "known": "policy/v1"}


@pytest.mark.parametrize("error", ["connection refused", {"code": 503}, 503, ""])
def test_an_error_of_discovery_evicts_nothing_and_is_not_remembered(error: object) -> None:
    assert decide(discovery={"error": error}) == {"ask": False, "method": None, "known": None}


def test_what_is_known_is_one_of_the_methods() -> None:
    assert decide(known="policy/v2") == {"error": "invalid"}
    assert decide(discovery=[]) == {"error": "invalid"}


DISCOVERIES = st.one_of(
    st.none(),
    st.just({"error": "timeout"}),
    st.sampled_from(["v1", "v1beta1", "v9"]).map(lambda version: {"resources": [resource("pods/eviction", version)]}),
)


@given(st.lists(DISCOVERIES, max_size=8))
def test_over_a_process_the_first_clear_answer_is_kept(discoveries: list[Any]) -> None:
    known, methods = None, []
    for discovery in discoveries:
        answer = decide(known=known, discovery=discovery)
        if answer["ask"]:
            assert known is None
            continue
        if known is not None:
            assert answer["method"] == known
        if answer["method"] is not None:
            methods.append(answer["method"])
        assert answer["known"] == answer["method"]
        known = answer["known"]
    assert len(set(methods)) <= 1
