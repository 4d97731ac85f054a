"""The walk-through through a real inventory prints what its page says.

``python -m tests.integration.test_walkthrough`` writes the page anew with what the commands print now.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

import pytest
from tests.support.command import outlive

pytestmark = [pytest.mark.component("shared"), pytest.mark.slow]
PAGE = Path(__file__).parents[2] / "docs" / "walkthrough" / "openb.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def prepare(folder: Path) -> None:
    data = Path(os.environ["OUTLIVE_SHARED"]) / "data" / "openb"
    for name in ("nodes.csv", "pods.csv"):
        (folder / name).symlink_to(data / name)


def performed(block: str) -> str:
    """The block with every command carried out."""
    lines = []
    for command in re.findall(r"^\$ (.*)$", block, flags=re.MULTILINE):
        words = shlex.split(command)
        assert words[0] == "outlive"
        result = outlive(*words[1:])
        lines.append(f"$ {command}\n{result.out}{result.err}")
    return "".join(lines)


def test_every_command_of_the_walk_through_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 8
    for block in blocks:
        assert performed(block) == block


def rewrite() -> None:
    """Bring the page up to date."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        os.chdir(folder)
        text = PAGE.read_text(encoding="utf-8")
        text = BLOCK.sub(lambda match: f"```console\n{performed(match[1])}```", text)
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
