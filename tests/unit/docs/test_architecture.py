"""The page on the architecture names what the code has, and the code has the shape that the page promises."""

from __future__ import annotations

import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "outlive"
PAGE = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("outlive", cache_dir=None, exclude_type_checking_imports=True)


def test_modules_to_begin_with_exist() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]+ \| ([^|]+) \|$", PAGE, re.M)
    assert len(rows) >= 10
    for packages, modules in rows:
        package = packages.strip("`") if "," not in packages else ""
        for module in re.findall(r"`([\w/.]+)`", modules):
            assert (SOURCE / package / module).exists(), f"{package}/{module}"


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    indirect: dict[str, set[str]] = {
        module: graph.find_modules_directly_imported_by(module) for module in graph.modules
    }
    assert _circles(indirect) == []


def _circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other, by removing what imports nothing that is left, again and again."""
    left = {module: set(found) for module, found in imports.items()}
    while True:
        leaves = [module for module, found in left.items() if not found & left.keys()]
        tops = [module for module in left if not any(module in found for found in left.values())]
        if not leaves and not tops:
            return [sorted(left)] if left else []
        for module in {*leaves, *tops}:
            del left[module]
