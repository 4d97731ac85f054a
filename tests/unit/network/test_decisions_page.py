"""docs/reference/network-decisions.md has every decision of the network, and every member of it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from msgspec import inspect as types

import outlive
from outlive.network import decisions
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


SOURCES = {path: path.read_text() for path in Path(outlive.__file__).parent.rglob("*.py")}
THROUGH = {
    "network.annotation_encode": "write_entry",
    "network.catch_all": "ensure_catch_all",
    "network.dhcp_compose": "compose_dhcp",
    "network.prefix_option": "encode_prefix",
    "network.sweep": "is_orphan",
    "network.zone_contains": "find_zone",
}
"""Decisions whose function only reads and writes JSON around another one, which the product calls too."""


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: one.name)
def test_the_product_itself_calls_the_function_of_a_decision(decision: Decision[object, object]) -> None:
    """By the constant of the decision or by its function; where that has no name, by one that it calls."""
    function, module = decision.function, inspect.getmodule(decision.function)
    assert module is not None
    if decision.name in THROUGH:
        call = re.compile(rf"(?<!def )\b{THROUGH[decision.name]}\(")
        calls = [where for path, text in SOURCES.items() for where in call.findall(text)]
        assert len(calls) > len(call.findall(inspect.getsource(function)))
        return
    called = function.__code__.co_names if function.__name__ == "<lambda>" else (function.__name__,)
    names = {name for name in called if inspect.isfunction(vars(module).get(name))}
    names |= {name for name, value in vars(decisions).items() if value is decision}
    words = re.compile(rf"\b({'|'.join(names)})\b")
    own = {Path(inspect.getfile(module)), Path(decisions.__file__)}
    assert [path.name for path, text in SOURCES.items() if path not in own and words.search(text)], names
