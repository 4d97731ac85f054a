"""Failover's decisions by name: JSON in, JSON out."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from outlive.failover import DECISIONS
from outlive.runtime import Decision, DecisionTable

TABLE = DecisionTable(DECISIONS)
RECORDED = Path(__file__).with_name("decisions")
"""An input and its answer for every decision, to be replayed with ``outlive decide``."""


def decide(name: str, given: object) -> dict[str, object]:
    answer: dict[str, object] = json.loads(TABLE.decide_json(name, json.dumps(given).encode()))
    return answer


VM = {"id": "t", "host": "h3", "flavor": "m1", "cpuMilli": 1000, "memoryBytes": 1024}
SLOT = {"name": "ra", "host": "h5", "cpuMilli": 2000, "memoryBytes": 4096, "members": {"p": "h1"}}


@pytest.mark.slow
def test_every_name_is_there_and_has_a_schema() -> None:
    for name in ("eligible", "find", "check", "required", "resolve_size", "plan", "tolerance", "bound", "coverage"):
        assert TABLE.build_schema(f"failover.{name}")["input"]
    assert {"failover.clean", "failover.select", "failover.assign"} <= set(TABLE.list_names())


@pytest.mark.parametrize("name", TABLE.list_names())
def test_every_decision_gives_the_answer_that_was_recorded(name: str) -> None:
    recorded = json.loads((RECORDED / f"{name.removeprefix('failover.')}.json").read_text())
    assert decide(name, recorded["input"]) == recorded["output"]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_every_decision_can_be_sent_to_a_child(decision: Decision[Any, Any]) -> None:
    assert pickle.loads(pickle.dumps(decision)) == decision


def test_questions_of_eligibility() -> None:
    assert decide("failover.eligible", {"vm": VM, "slot": SLOT, "slots": [SLOT]}) == {"eligible": True}
    assert decide("failover.find", {"vm": VM, "slots": [SLOT]}) == {"slots": ["ra"]}
    assert decide("failover.find", {"vm": {**VM, "host": "h1"}, "slots": [SLOT]}) == {"slots": []}


def test_required_and_size() -> None:
    assert decide("failover.required", {"flavor": "db_x", "patterns": {"*": 1, "db_*": 3}}) == {"required": 3}
    size = decide("failover.resolve_size", {"vm": VM})
    assert (size["cpuMilli"], size["memoryBytes"], size["flavorName"]) == (1000, 1024, "m1")


def test_plan_check_coverage_tolerance_and_bound_agree() -> None:
    vms = [VM, {**VM, "id": "u", "host": "h4"}]
    offers = {"": {"hosts": ["h1", "h2"]}}
    planned = decide("failover.plan", {"vms": vms, "required": {"t": 1, "u": 1}, "new": offers, "reuse": offers})
    slots = planned["slots"]
    assert (planned["created"], planned["reused"]) == (1, 1)
    assert decide("failover.check", {"vms": vms, "slots": slots})["holds"] is True
    state = {"vms": vms, "required": {"t": 1, "u": 1}, "slots": slots}
    assert decide("failover.coverage", state)["covered"] == 2
    assert decide("failover.tolerance", state)["fleet"] == 1
    hosts = [{"name": f"h{number}"} for number in range(1, 5)]
    assert decide("failover.bound", {"vms": vms, "required": {"t": 1, "u": 1}, "hosts": hosts})["slots"] == 1


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("failover.plan", {"vms": [VM], "required": {"t": "two"}}),
        ("failover.plan", {"vms": [VM], "required": {}, "slots": [SLOT, SLOT]}),
        ("failover.plan", {"vms": [VM], "required": {"t": 1}, "new": {"": {"hosts": ["h1"], "scores": [1, 2]}}}),
        (
            "failover.assign",
            {"vms": [], "slots": [], "needs": [{"vm": "x", "needed": 1, "size": {}, "offerClass": ""}]},
        ),
        ("failover.check", {}),
    ],
)
def test_bad_input_gives_an_error_code(name: str, given: object) -> None:
    assert set(decide(name, given)) == {"error"}


def test_absurd_amounts_are_survived() -> None:
    huge = {**VM, "cpuMilli": 2**63 - 1, "memoryBytes": 2**63 - 1}
    state = {"vms": [huge], "required": {"t": 1}}
    answer = decide("failover.plan", {**state, "new": {"": {"hosts": ["h1"]}}, "free": {"h1": [2**63 - 1, -5]}})
    assert answer["failed"] == 1
    assert decide("failover.bound", {**state, "hosts": [{"name": "h1"}, {"name": "h2"}]})["slots"] == 1
    assert decide("failover.coverage", state)["covered"] == 0
