"""docs/design/storage-decisions.md lists every decision of the storage agent."""

from __future__ import annotations

from tests.support.decision_pages import actual_modules, listed_modules

from outlive.storage import DECISIONS


def test_the_page_lists_every_decision_with_its_module() -> None:
    assert listed_modules("storage-decisions.md") == actual_modules(DECISIONS, "storage")
