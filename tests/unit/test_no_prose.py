"""Nothing compares or parses prose: reasons are codes, states are enums, and sentences are only ever shown.

Every module of the product is scanned for comparisons of a reason, message, detail, evidence, remedy or the like with
text, and for methods that take such a sentence apart. What is left is listed with why it is no prose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlive

ROOT = Path(outlive.__file__).parent
PROSE = frozenset(
    {"reason", "message", "detail", "evidence", "why", "remedy", "refusal", "answered", "blocked", "note"}
)
"""Names of attributes and variables that hold a sentence, or the code of one."""
TAKES_APART = frozenset(
    {"startswith", "endswith", "split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix", "find"}
)
ALLOWED: dict[str, str] = {
    "node/stop.py: given.reason == 'signal'": "a literal of the decision lifecycle.shutdown, a code by itself",
}
"""``module: source`` → why it is no prose."""


def _named(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in PROSE


def _text(node: ast.expr) -> bool:
    """A text that is not empty, or a list of such; codes are members of enums and never written out."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_text(one) for one in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


def _reads_prose(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        return any(map(_named, sides)) and any(map(_text, sides))
    if isinstance(node, ast.Match) and _named(node.subject):
        return any(isinstance(one, ast.MatchValue) and _text(one.value) for one in ast.walk(node))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and any(map(_named, node.args))
        return of_re or (node.func.attr in TAKES_APART and _named(node.func.value))
    return False


def findings(source: str) -> Iterator[str]:
    """The source of everything that reads prose in a module."""
    for node in ast.walk(ast.parse(source)):
        if _reads_prose(node):
            shown = node.subject if isinstance(node, ast.Match) else node
            yield ast.unparse(shown)


@pytest.mark.slow
def test_nothing_compares_or_parses_prose() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {source}"
        for path in sorted(ROOT.rglob("*.py"))
        for source in findings(path.read_text())
    ]
    assert [one for one in found if one not in ALLOWED] == []
    assert [one for one in ALLOWED if one not in found] == [], "take it off the list"


def test_the_check_finds_what_it_is_for() -> None:
    for bad in (
        "x = vm.status.reason == 'no-room'",
        "x = 'full' in refusal.why",
        "x = record.reason.startswith('refused')",
        "x = step.detail.partition(':')[0]",
        "x = re.match('a', found.message)",
        "x = reason in ('a', 'b')",
        "match given.reason:\n    case 'a':\n        pass",
    ):
        assert list(findings(bad)), bad
    for good in ("x = vm.status.reason == VmReason.CRASHED", "x = vm.status.reason == ''", "x = not error.message"):
        assert not list(findings(good)), good
