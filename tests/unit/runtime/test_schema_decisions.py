"""docs/design/schema-decisions.md lists every decision of the storage schema, and the product calls each of them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.support.decision_pages import actual_modules, listed_modules

import outlive
from outlive.cli import decision_table
from outlive.runtime import DECISIONS, Decision

SOURCES = {path: path.read_text() for path in Path(outlive.__file__).parent.rglob("*.py")}
THROUGH = {
    "lock.acquire": "retry_pause_s",
    "schema.plan": "plan_schema",
    "schema.gate": "open_gate",
    "schema.step": "next_schema_step",
}


def test_the_page_lists_every_decision_with_its_module() -> None:
    assert listed_modules("schema-decisions.md") == actual_modules(DECISIONS)


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_a_decision_can_be_repeated_by_name(decision: Decision[object, object]) -> None:
    assert decision.name in decision_table().list_names()
    assert decision_table().decide_json(decision.name, b"{}") == b'{"error":"invalid"}'


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_the_product_itself_calls_the_function_of_a_decision(decision: Decision[object, object]) -> None:
    own = Path(inspect.getfile(decision.function))
    call = re.compile(rf"\b{THROUGH[decision.name]}\(")
    assert [path.name for path, text in SOURCES.items() if path != own and call.search(text)]
