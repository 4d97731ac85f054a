"""The list of mistakes follows the source, and each of them was noticed when it was tried last (``scripts/mutate``)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model.mutation_proof import DOCUMENT
from tests.mutations.catalogue import MUTATIONS, Mutation
from tests.mutations.check import checks
from tests.mutations.command import KINDS, ROOT, copy_tree, mutated
from tests.mutations.record import recorded


def test_names_are_unique_and_there_are_enough_of_them() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS) >= 25


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_a_mistake_can_still_be_made(one: Mutation) -> None:
    for path, text in mutated(one, ROOT).items():
        ast.parse(text)
        assert text != path.read_text(encoding="utf-8")


def test_every_mistake_was_noticed_by_a_check_that_there_is() -> None:
    known, caught = set(checks(KINDS)), recorded()
    assert [one.name for one in MUTATIONS if one.name not in caught or caught[one.name].check not in known] == []
    assert set(caught) == {one.name for one in MUTATIONS}, "run scripts/mutate"


def test_the_page_names_every_mistake() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    assert [one.name for one in MUTATIONS if f"| `{one.name}` |" not in page] == []
    assert "| nothing |" not in page


def test_a_copied_tree_has_all_that_checks_import(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-c", "import tests.mutations.check as check; print(check.__file__)"]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(tree / "tests" / "mutations" / "check.py"), done.stderr
