"""The health of the storage agent: the first check that fails is the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.runtime import DecisionTable
from outlive.storage import DECISIONS

TABLE = DecisionTable(DECISIONS)
WELL = {
    "options": {"nodeName": "n1"},
    "sinceTickS": 1.0,
    "cachesFilled": True,
    "ownNodeKnown": True,
    "snapshotAgeS": 2.0,
}
AGES = st.one_of(st.none(), st.floats(0, 1000))


def decide(**members: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(TABLE.decide_json("storage.health", json.dumps(members).encode()))
    return answer


@pytest.mark.parametrize(
    ("changes", "status", "code", "body"),
    [
        ({}, 200, "ok", "ok"),
        ({"sinceTickS": 40}, 200, "ok", "ok"),
        ({"sinceTickS": 40.1}, 500, "late", "too long since last update: 40.1s"),
        ({"sinceTickS": None}, 500, "late", "too long since last update: infinite s"),
        ({"cachesFilled": False}, 500, "caches", "informers not synced"),
        ({"ownNodeKnown": False}, 500, "node-missing", "no Kubernetes node is called 'n1': check --node-name"),
        ({"snapshotAgeS": 30}, 200, "ok", "ok"),
        (
            {"snapshotAgeS": 30.1},
            500,
            "stale",
            "no recent state of DRBD: it is 30.1s old; does drbdsetup hang or fail?",
        ),
        (
            {"snapshotAgeS": None},
            500,
            "stale",
            "no recent state of DRBD: there is none yet; does drbdsetup hang or fail?",
        ),
        ({"snapshotAgeS": None, "profile": "compat"}, 200, "ok", "ok"),
        ({"sinceTickS": 20, "options": {"operationsTimeoutS": 5, "reconcileIntervalS": 15}}, 200, "ok", "ok"),
        ({"sinceTickS": 71, "options": {"operationsTimeoutS": 0, "gracePeriodS": 30}}, 500, "late", None),
        ({"sinceTickS": 71, "options": {"operationsTimeoutS": 0, "gracePeriodS": 0}}, 500, "late", None),
        ({"sinceTickS": 70, "options": {"operationsTimeoutS": 0, "gracePeriodS": 0}}, 200, "ok", "ok"),
    ],
)
def test_health_is_the_first_check_that_fails(
    changes: dict[str, Any], status: int, code: str, body: str | None
) -> None:
    answer = decide(**WELL | changes)
    assert (answer["status"], answer["code"]) == (status, code)
    assert body is None or answer["body"] == body


@given(
    st.sampled_from(["hardened", "compat"]),
    AGES,
    st.booleans(),
    st.booleans(),
    AGES,
    st.floats(0, 100),
    st.integers(0, 90),
)
def test_every_state_has_the_answer_of_the_manual(
    profile: str, tick: float | None, caches: bool, node: bool, age: float | None, timeout: float, grace: int
) -> None:
    options = {"nodeName": "n1", "operationsTimeoutS": timeout, "gracePeriodS": grace}
    answer = decide(
        profile=profile, options=options, sinceTickS=tick, cachesFilled=caches, ownNodeKnown=node, snapshotAgeS=age
    )
    deadline = timeout or 2 * grace or 60
    checks = {
        "late": tick is not None and tick <= deadline + 10,
        "caches": caches,
        "node-missing": node,
        "stale": profile == "compat" or (age is not None and age <= 30),
    }
    assert answer["code"] == next((code for code, passes in checks.items() if not passes), "ok")
    assert answer["status"] == (200 if answer["code"] == "ok" else 500)
