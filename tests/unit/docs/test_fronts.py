"""A package's ``__init__`` is its front: it lists what the package offers, and others import from there.

What it lists is read in two ways, by the parser and by the loader of the product, which reads lines. How many imports
go past a front is counted; the numbers only fall.
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from outlive.base.exports import read_exports

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
PAST_FRONTS = {"tests": 143, "bench": 14, "scripts": 0, "lab": 0, "src": 133}
"""By folder: imports of inner modules of a package from outside of it. Write a lower number down; never a higher one.
In the source an import counts that leads from one package of ``outlive`` into another."""
LOADER = "outlive.base.exports"
"""Each front needs it before it can offer anything; it does not count."""


@cache
def packages() -> dict[str, ast.Module]:
    """Each package, with its front."""
    found = sorted((SOURCE / "outlive").rglob("__init__.py"))
    return {".".join(path.parent.relative_to(SOURCE).parts): ast.parse(path.read_bytes()) for path in found}


def listed(tree: ast.Module) -> list[tuple[str, str]]:
    """Names that a front lists under ``if TYPE_CHECKING:``, each with its module; one that it renames is a mistake."""
    blocks = [one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
    found = []
    for line in (line for block in blocks for line in block.body):
        assert isinstance(line, ast.ImportFrom), ast.unparse(line)
        assert not line.level, ast.unparse(line)
        assert line.lineno == line.end_lineno, f"{ast.unparse(line)} is not one line"
        assert all(one.asname is None for one in line.names), ast.unparse(line)
        found += [(one.name, str(line.module)) for one in line.names]
    return found


FRONTS = [name for name, tree in packages().items() if listed(tree)]


def test_packages_have_fronts() -> None:
    assert len(FRONTS) > 40


@pytest.mark.parametrize("package", FRONTS)
def test_the_loader_reads_what_a_front_lists(package: str) -> None:
    names = listed(packages()[package])
    module = importlib.import_module(package)
    assert sorted(read_exports(package).items()) == sorted(names)
    for name, place in names:
        assert getattr(module, name) is getattr(importlib.import_module(place), name)


@pytest.mark.parametrize("package", FRONTS)
def test_a_front_names_the_module_that_defines(package: str) -> None:
    passed_on = [f"{name} of {place}" for name, place in listed(packages()[package]) if name not in defined(place)]
    assert passed_on == []


@cache
def defined(module: str) -> frozenset[str]:
    """Names that a module binds at its top, and does not import."""
    path = SOURCE / Path(*module.split("."))
    source = path.with_suffix(".py") if is_inner(module) else path / "__init__.py"
    return frozenset(bound(ast.parse(source.read_bytes()).body))


def bound(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from (one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try() | ast.With():
                yield from bound(node.body)
                yield from bound(getattr(node, "orelse", []))


@pytest.mark.parametrize("folder", sorted(PAST_FRONTS))
def test_fewer_imports_go_past_a_front(folder: str) -> None:
    found = Counter(past_fronts(folder))
    number, worst = found.total(), ", ".join(f"{name} ({count})" for name, count in found.most_common(10))
    assert number <= PAST_FRONTS[folder], f"{folder}: {number} imports of inner modules: {worst}"


def past_fronts(folder: str) -> Iterator[str]:
    """Inner modules of packages that a folder's files import from outside."""
    base = SOURCE / "outlive" if folder == "src" else ROOT / folder
    for path in sorted(base.rglob("*.py")):
        inside = f"outlive.{path.relative_to(base).parts[0]}." if folder == "src" else "outlive.outlive."
        for name in imported(ast.parse(path.read_bytes())):
            outside = name.startswith("outlive.") and name.count(".") > 1 and not name.startswith(inside)
            if outside and is_inner(name) and name != LOADER:
                yield name


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported: itself, by a name of it, or as a name of its package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [name for one in node.names if is_inner(name := f"{node.module}.{one.name}")]
            yield from inner or [node.module]


@cache
def is_inner(name: str) -> bool:
    """Whether it is a module and no package."""
    return SOURCE.joinpath(*name.split(".")).with_suffix(".py").is_file()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from outlive.base import LoopClock", ["outlive.base"]),
        ("from outlive.base import clock", ["outlive.base.clock"]),
        ("from outlive.base.clock import LoopClock", ["outlive.base.clock"]),
        ("import outlive.base.clock", ["outlive.base.clock"]),
    ],
)
def test_an_import_of_an_inner_module_is_seen_in_each_form(source: str, names: list[str]) -> None:
    assert list(imported(ast.parse(source))) == names
