"""docs/design/node-decisions.md lists every decision of the node daemon."""

from __future__ import annotations

from tests.support.decision_pages import actual_modules, listed_modules

from outlive import drivers, recovery
from outlive.node import DECISIONS


def test_the_page_lists_every_decision_with_its_module() -> None:
    others = (recovery.FENCE_RECOVER, drivers.COMMAND_RESULT)
    assert listed_modules("node-decisions.md") == actual_modules([*DECISIONS, *others], "node")
