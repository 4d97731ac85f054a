"""docs/reference/network-decisions.md has every decision of the network, and every member of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import inspect as types

from outlive.network.copies import Copy, PortAddresses, PortRoute
from outlive.network.decisions import DECISIONS
from outlive.network.operations import Op
from outlive.runtime.decisions import Decision

PAGE = (Path(__file__).parents[3] / "docs/reference/network-decisions.md").read_text()
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))


def members(kind: object) -> set[str]:
    """Names on the wire of a struct's fields."""
    info = types.type_info(kind)  # type: ignore[arg-type]
    return {field.encode_name for field in info.fields} if isinstance(info, types.StructType) else set()


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_every_decision_has_a_section_with_all_its_members(decision: Decision[object, object]) -> None:
    section = SECTIONS[decision.name]
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    assert (members(decision.input) | members(decision.output)) - words == set()
    assert f"(#{decision.name.replace('.', '')})" in PAGE


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [("Copy", (Copy,)), ("Addresses", (PortAddresses, PortRoute)), ("Op", (Op,))],
    ids=["copy", "addresses", "op"],
)
def test_every_member_of_a_shape_is_in_the_table_of_shapes(shape: str, kinds: tuple[object, ...]) -> None:
    (row,) = re.findall(rf"^\| \*\*{shape}\*\* \|.*$", PAGE, re.M)
    wanted = set().union(*(members(kind) for kind in kinds))
    assert wanted - set(re.findall(r"\w+", row)) == set()
