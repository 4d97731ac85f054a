"""``scripts/lab`` without a lab says so in one line, and takes no word that it does not understand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def lab(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lab.command", "--dir", str(folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("words", [("status",), ("kill", "host-2"), ("outlive", "status"), ("heal",), ("faults", "3")])
def test_without_a_lab_one_line_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = lab(tmp_path, *words)
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == f"scripts/lab: no lab runs in {tmp_path}: scripts/lab start starts one\n"


def test_further_words_are_refused(tmp_path: Path) -> None:
    assert lab(tmp_path, "partition", "host-1", "host-2", "host-3").returncode == 2
    assert lab(tmp_path, "stop", "now").returncode == 2
