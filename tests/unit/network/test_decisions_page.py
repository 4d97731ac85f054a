"""docs/design/network-decisions.md lists every decision of the network, and the product calls each of them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.support.decision_pages import actual_modules, listed_modules

import outlive
from outlive.network import DECISIONS, decisions
from outlive.runtime import Decision


def test_the_page_lists_every_decision_with_its_module() -> None:
    assert listed_modules("network-decisions.md") == actual_modules(DECISIONS, "network")


SOURCES = {path: path.read_text() for path in Path(outlive.__file__).parent.rglob("*.py")}
THROUGH = {
    "network.annotation_encode": "write_entry",
    "network.catch_all": "ensure_catch_all",
    "network.dhcp_compose": "compose_dhcp",
    "firewall.order": "order_rules",
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
