"""Pages that are made from the code are what the code makes."""

from __future__ import annotations

from pathlib import Path

from outlive.base.errors import ExitCode
from outlive.cli.reference import cli_page, configuration_page

PAGES = Path(__file__).parents[3] / "docs" / "reference"
HOW = "run: python -m outlive.cli.reference docs/reference"


def test_the_page_of_commands_is_current() -> None:
    page = (PAGES / "cli.md").read_text(encoding="utf-8")
    assert page == cli_page(page), HOW


def test_the_page_of_settings_is_current() -> None:
    assert (PAGES / "configuration.md").read_text(encoding="utf-8") == configuration_page(), HOW


def test_every_exit_code_is_described() -> None:
    page = (PAGES / "exit-codes.md").read_text(encoding="utf-8")
    assert all(f"| {code.value} |" in page for code in ExitCode)
