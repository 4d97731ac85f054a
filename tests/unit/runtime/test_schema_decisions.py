"""docs/reference/schema-decisions.md has every decision of the storage schema, and the product calls each of them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

import outlive
from outlive.cli.decide import decision_table
from outlive.runtime.decisions import Decision
from outlive.runtime.schema_decisions import DECISIONS

PAGE = (Path(__file__).parents[3] / "docs/reference/schema-decisions.md").read_text()
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))
SOURCES = {path: path.read_text() for path in Path(outlive.__file__).parent.rglob("*.py")}
THROUGH = {
    "lock.acquire": "pause_before_next",
    "schema.plan": "plan_schema",
    "schema.gate": "open_gate",
    "schema.step": "next_schema_step",
}


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_every_decision_has_a_section_with_all_its_members(decision: Decision[object, object]) -> None:
    section = SECTIONS[decision.name]
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    members = {one.encode_name for kind in (decision.input, decision.output) for one in msgspec.structs.fields(kind)}
    assert members - words == set()
    assert f"(#{decision.name.replace('.', '')})" in PAGE


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_a_decision_can_be_repeated_by_name(decision: Decision[object, object]) -> None:
    assert decision.name in decision_table().names()
    assert decision_table().decide_json(decision.name, b"{}") == b'{"error":"invalid"}'


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_the_product_itself_calls_the_function_of_a_decision(decision: Decision[object, object]) -> None:
    own = Path(inspect.getfile(decision.function))
    call = re.compile(rf"\b{THROUGH[decision.name]}\(")
    assert [path.name for path, text in SOURCES.items() if path != own and call.search(text)]
