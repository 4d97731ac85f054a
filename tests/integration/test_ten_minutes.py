"""The first ten minutes (docs/start/first-ten-minutes.md) show what commands print, except for numbers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command import outlive, up
from tests.support.guards import until

pytestmark = [pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs/start/first-ten-minutes.md"
BLOCK = re.compile(r"```text\n(.*?)```", re.DOTALL)
SHOWN = [one for one in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if one.startswith("$ outlive ")]
COVERED_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the commands of the page find the example, with all VMs covered."""
    folder = tmp_path_factory.mktemp("example")
    with up(folder / "state", "--example"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLIVE_STATE_DIR", str(folder / "state"))
        patch.chdir(folder)
        until(lambda: "600 covered" in outlive("status").out, "every VM is covered", COVERED_LIMIT_S)
        yield folder


def without_numbers(line: str) -> str:
    return " ".join(re.sub(r"\d[\d,.]*", "N", line).split())


def is_printed(shown: str, printed: list[str]) -> bool:
    """Whether a line of the page, up to its ellipsis, begins a line that was printed."""
    start = without_numbers(shown.partition("…")[0])
    return any(without_numbers(line).startswith(start) for line in printed)


def lines_not_printed(block: str) -> list[str]:
    """Lines of a block that none of its commands prints."""
    printed: list[str] = []
    for command in re.findall(r"^\$ outlive (.*)$", block, re.MULTILINE):
        result = outlive(*shlex.split(command))
        printed += [*result.out.splitlines(), *result.err.splitlines()]
    shown = [line for line in block.splitlines() if line and not line.startswith("$ ")]
    return [line for line in shown if not is_printed(line, printed)]


def test_a_line_that_no_command_prints_is_noticed() -> None:
    assert is_printed("kvm-r1-08 loses power, …", ["   12.5 s  x", "kvm-r2-09  loses power, and more"])
    assert not is_printed("kvm-r1-08 gains power", ["kvm-r1-08 loses power"])


def test_the_page_shows_most_of_the_minutes() -> None:
    assert len(SHOWN) == len(["status", "coverage", "explain", "survive", "whatif", "simulate", "certify"])


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.partition("\n")[0].removeprefix("$ outlive "))
def test_commands_print_what_the_page_shows(block: str, example: Path) -> None:
    assert lines_not_printed(block) == []
