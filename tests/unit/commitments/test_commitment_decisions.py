"""Decisions by name: each has a schema, answers JSON, and can be replayed."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from tests.support.commitments import GROUP, NOW, at, batch, change, commitment, ready, resource, slot_of, wanted

from outlive.cli import decision_table
from outlive.commitments import DECISIONS
from outlive.resources import to_builtins
from outlive.runtime import Decision, DecisionTable

TABLE = DecisionTable(DECISIONS)
RAM = "hw_version_g_ram"
SELLING = {"*": {"ram": {"handlesCommitments": True, "handlesDryRun": True}}}


def decide(name: str, given: dict[str, Any]) -> Any:
    raw = json.dumps({key: to_builtins(value) for key, value in given.items()}).encode()
    return json.loads(TABLE.decide_json(f"commitments.{name}", raw))


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_every_decision_has_a_schema_and_can_be_sent_to_a_child(decision: Decision[Any, Any]) -> None:
    assert TABLE.build_schema(decision.name)["output"]
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert decision.name in decision_table().list_names()


def test_schemas_show_defaults_that_are_amounts() -> None:
    parts = decision_table().build_schema("placement.rank")["$defs"]
    assert parts["ReservationSpec"]["properties"]["resources"]["default"] == {}


def test_the_state_of_a_commitment() -> None:
    cr = resource(commitment(end=at(60)), conditions=ready("False", "Reserving", "insufficient"))
    assert decide("state", {"commitment": cr, "now": NOW + 59}) == {
        "active": True,
        "over": False,
        "retryS": 60,
        "summary": "Reserving · insufficient · exp in 1s",
    }
    assert decide("state", {"commitment": cr, "now": NOW + 60})["over"] is True


def test_the_slots_of_a_commitment() -> None:
    owner = commitment(gib=24)
    given = {"commitment": owner, "existing": [slot_of(owner)], "group": GROUP}
    plan = decide("slots", given)
    assert [one["metadata"]["name"] for one in plan["keep"]] == ["commitment-commit-a-0"]
    assert plan["create"] == [
        {"name": "commitment-commit-a-1", "flavor": "g_c2_m8192", "memoryBytes": 8 * 2**30, "cpuMilli": 2000}
    ]
    assert decide("verdict", {"commitment": owner, "slots": [slot_of(owner)], "expected": 2})["outcome"] == "pending"


def test_cores_of_a_commitment() -> None:
    found = decide("headroom", {"commitment": commitment(type="cores", cores=1), "now": NOW})
    assert found == {"outcome": "waiting", "message": "waiting for capacity data"}


def test_a_batch_with_its_slots() -> None:
    old = commitment(gib=16)
    changes = [change("commit-a", "confirmed", "superseded", 2), change("commit-b", None, "confirmed", 2)]
    asked = batch({"p": [wanted(RAM, *changes, confirmed=(2, 2))]})
    given = {
        "batch": asked,
        "groups": [GROUP],
        "resources": SELLING,
        "commitments": [resource(old)],
        "slots": [slot_of(old)],
        "now": NOW,
    }
    found = decide("batch", given)
    assert [step["uuid"] for step in found["plan"]["steps"]] == ["commit-a", "commit-b"]
    assert found["handover"]["moved"] == ["commitment-commit-a-0"]
    assert decide("confirmation", to_builtins(asked)) == {"confirmation": False}
    refused = decide("batch", {**given, "groups": []})
    assert refused["plan"]["refusal"] == "flavor group not found: g"
    assert decide("batch", {**given, "commitments": [resource(old)] * 2}) == {"error": "bad-input"}


def test_what_a_dry_run_asks_for() -> None:
    asked = batch({"p": [wanted(RAM, confirmed=(0, 2))]})
    (need,) = decide("dry_run", {"batch": asked, "groups": [GROUP], "resources": SELLING})["needs"]
    assert need == {"group": "g", "type": "memory", "amount": 2, "total": 16 * 2**30, "project": "p", "domain": "d"}
