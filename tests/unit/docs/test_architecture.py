"""The page on the architecture names what the code has, and the code has the shape that the page promises."""

from __future__ import annotations

import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "outlive"
PAGE = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
PATH_LIMIT = 15
"""Modules between a cause and its effect; whoever is called at night follows them one by one."""
PATHS = {
    match.group(1): re.findall(r"^\d+\. `([\w/.]+)`$", match.group(2), re.M)
    for match in re.finditer(r"<!-- path: (\w+) -->\n((?:\d+\. `[\w/.]+`\n)+)", PAGE)
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("outlive", cache_dir=None, exclude_type_checking_imports=True)


def name_of(module: str) -> str:
    return "outlive." + module.removesuffix(".py").replace("/", ".")


def test_the_four_paths_are_described() -> None:
    assert sorted(PATHS) == ["event", "inventory", "ranking", "recovery"]


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_path_has_few_modules_each_of_which_exists(path: str) -> None:
    modules = PATHS[path]
    assert 3 <= len(set(modules)) == len(modules) <= PATH_LIMIT
    assert [module for module in modules if not (SOURCE / module).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(PATHS))
def test_modules_of_a_path_know_each_other(path: str, graph: grimp.ImportGraph) -> None:
    names = [name_of(module) for module in PATHS[path]]
    uses = {name: _uses(graph, name) for name in names}
    strangers = [
        one for one in names if not any(other in uses[one] or one in uses[other] for other in names if other != one)
    ]
    assert strangers == []


def _uses(graph: grimp.ImportGraph, name: str) -> set[str]:
    """What the module imports, by itself or as something that the list of a package offers."""
    direct = graph.find_modules_directly_imported_by(name)
    packages = {module for module in direct if (SOURCE.parent / module.replace(".", "/") / "__init__.py").is_file()}
    return direct.union(*(graph.find_modules_directly_imported_by(package) for package in packages))


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
