"""Steps are handed what was observed: a constant could never make a precondition fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlive

ROOT = Path(outlive.__file__).parent


def _constants(path: Path) -> Iterator[str]:
    """``where: member`` of each yes or no that is handed to a view as a constant."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if not called.endswith("View") and called != "view":
            continue
        for keyword in node.keywords:
            if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {called}({keyword.arg}={keyword.value.value})"


@pytest.mark.slow
def test_no_step_is_handed_a_constant_for_what_should_have_been_observed() -> None:
    found = [
        one for part in ("node", "recovery") for path in sorted((ROOT / part).rglob("*.py")) for one in _constants(path)
    ]
    assert found == []
