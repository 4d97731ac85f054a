"""The command line of the guard: what it refuses before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.guard import make_parser
from outlive.guard.main import main

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "guard.md"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--stop-service", "no-such-program now"),
        ("--stop-service", "'systemctl"),
        ("--sock", "x"),
        ("extra",),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "outlive guard --help" in said.err


def test_a_missing_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--socket", str(tmp_path / "none" / "s")]) == 4
    assert "no such folder" in capsys.readouterr().err


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s").write_text("mine")
    assert main(["--socket", str(tmp_path / "s")]) == 3
    assert (tmp_path / "s").read_text() == "mine"


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    assert main(["--socket", str(tmp_path / ("s" * 120))]) == 3


def test_status_without_a_guard_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--status", "--socket", str(tmp_path / "s")]) == 6
    assert "does a guard run" in capsys.readouterr().err


def test_no_option_arms_a_guard_whose_host_may_publish_other_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--timeout", "25", "--watchdog-timeout", "15"]) == 2
    assert "unrecognized arguments: --timeout" in capsys.readouterr().err


def test_every_option_is_in_the_page_for_operators() -> None:
    page = PAGE.read_text()
    for action in make_parser()._actions:
        assert all(f"`{option}" in page for option in action.option_strings if option.startswith("--"))
