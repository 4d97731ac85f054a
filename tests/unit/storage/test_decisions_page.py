"""docs/reference/storage-decisions.md has every decision of the storage agent, and every member of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import inspect as types

from outlive.runtime.decisions import Decision
from outlive.storage.decisions import DECISIONS
from outlive.storage.options import AgentOptions

PAGE = (Path(__file__).parents[3] / "docs/reference/storage-decisions.md").read_text()
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))
TICK = re.search(r"^## One tick\n(.*?)(?=^###)", PAGE, re.M | re.S)
IN_TICK = ("storage.failover", "storage.suspended", "storage.forced_errors", "storage.own_taints")


def members(kind: object) -> set[str]:
    """Names on the wire of a struct's fields."""
    info = types.type_info(kind)  # type: ignore[arg-type]
    return {field.encode_name for field in info.fields} if isinstance(info, types.StructType) else set()


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_every_decision_has_a_section_with_all_its_members(decision: Decision[object, object]) -> None:
    section = SECTIONS[decision.name]
    if decision.name in IN_TICK:
        assert TICK is not None
        section += TICK[1]
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    assert (members(decision.input) | members(decision.output)) - words == set()
    assert f"(#{decision.name.replace('.', '')})" in PAGE


def test_every_option_of_decisions_is_in_the_table_of_shapes() -> None:
    (row,) = re.findall(r"^\| \*\*Options\*\* \|.*$", PAGE, re.M)
    assert members(AgentOptions) - set(re.findall(r"\w+", row)) == set()
