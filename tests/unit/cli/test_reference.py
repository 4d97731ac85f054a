"""Pages that are made from the code are what the code makes."""

from __future__ import annotations

import pytest
from tests.support.pages import FOLDER, PAGES, current

from outlive.base import ExitCode


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_current(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == current(page), "run: python -m tests.support.pages"


def test_every_exit_code_is_described() -> None:
    page = (FOLDER / "exit-codes.md").read_text(encoding="utf-8")
    assert all(f"| {code.value} |" in page for code in ExitCode)


def test_every_setting_and_every_field_has_a_meaning() -> None:
    for page in ("configuration.md", "resources.md"):
        lines = [line for line in current(page).splitlines() if line.lstrip().startswith("- `")]
        assert lines
        assert [line for line in lines if line.rstrip().endswith(":")] == []
