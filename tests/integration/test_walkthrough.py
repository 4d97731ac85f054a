"""The walk-throughs print what their pages say.

``python -m tests.integration.test_walkthrough`` writes the pages anew with what the commands print now; those that need
data which is not here are left as they are.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import outlive

pytestmark = [pytest.mark.slow]
PAGES = Path(__file__).parents[2] / "docs" / "start"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def prepare_openb(folder: Path) -> None:
    data = Path(os.environ["OUTLIVE_SHARED"]) / "data" / "openb"
    for name in ("nodes.csv", "pods.csv"):
        (folder / name).symlink_to(data / name)


def prepare_why(folder: Path) -> None:
    for name in ("hosts.csv", "vms.csv"):
        (folder / name).symlink_to(PAGES / "why" / name)


PREPARE: dict[str, Callable[[Path], None]] = {"openb": prepare_openb, "why": prepare_why}
BLOCKS = {"openb": 4, "why": 4}
ELSEWHERE = {"lab": "test_lab.py", "first-ten-minutes": "test_ten_minutes.py"}
"""Pages that need more than a folder, and which module plays them."""
WITHOUT_COMMANDS = {"what-it-is", "real-and-simulated"}


def performed(block: str) -> str:
    """The block with every command carried out."""
    lines = []
    for command in re.findall(r"^\$ (.*)$", block, flags=re.MULTILINE):
        words = shlex.split(command)
        assert words[0] == "outlive"
        result = outlive(*words[1:])
        lines.append(f"$ {command}\n{result.out}{result.err}")
    return "".join(lines)


@pytest.mark.parametrize("name", [pytest.param("openb", marks=pytest.mark.component("shared")), "why"])
def test_every_command_of_the_walk_through_prints_what_the_page_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PREPARE[name](tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((PAGES / f"{name}.md").read_text(encoding="utf-8"))
    assert len(blocks) == BLOCKS[name]
    for block in blocks:
        assert performed(block) == block


def test_every_walk_through_is_tested() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")}
    assert pages.keys() == PREPARE.keys() | ELSEWHERE.keys() | WITHOUT_COMMANDS
    assert [name for name in WITHOUT_COMMANDS if "```" in pages[name]] == []
    for page, module in ELSEWHERE.items():
        assert f"docs/start/{page}.md" in Path(__file__).with_name(module).read_text(encoding="utf-8")


def rewrite(name: str) -> None:
    """Bring a page up to date."""
    page = PAGES / f"{name}.md"
    with tempfile.TemporaryDirectory() as folder:
        PREPARE[name](Path(folder))
        os.chdir(folder)
        text = page.read_text(encoding="utf-8")
        text = BLOCK.sub(lambda match: f"```console\n{performed(match[1])}```", text)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for known in PREPARE:
        if known != "openb" or "OUTLIVE_SHARED" in os.environ:
            rewrite(known)
