"""Names say what things do: functions are verbs, a class name stands for one class, and a sentence names who acts."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "outlive"
VERBS = frozenset(
    line for line in (Path(__file__).parent / "verbs.txt").read_text(encoding="utf-8").split("\n") if line[:1] != "#"
)
"""Words that may name a function alone. ``verbs.txt`` has what functions do, and what they find true of something."""
BEGINNINGS = (
    *("and_", "as_it_", "asked_", "at_", "away_", "beside_", "closed_by_", "enough_", "for_", "gave_", "given_"),
    *("gone_", "held_", "instead_", "known_", "left_", "look_", "looks_", "lost_by", "or_", "ran_", "said_", "told_"),
    *("unless_", "what_", "who_", "why_", "within_", "would_"),
)
"""No function of several words begins so: pronouns, participles, prepositions and figures of speech say no deed."""
FOREIGN = frozenset(
    {
        "aclose",  # asyncio: streams
        "doctype",  # xml.etree: a builder of trees
        "fullmatch",  # re: a pattern
        "inc",  # prometheus_client: a counter
        "items",  # a mapping
        "keys",  # a mapping
        "kind",  # Kubernetes: the kind of an object
        "labels",  # prometheus_client: a series
        "latest",  # with now and monotonic
        "missing",  # kazoo: a handler
        "monotonic",  # time
        "now",  # datetime
        "pending",  # ssl: a socket
        "recv",  # socket
        "shutdown",  # uvicorn and socket
        "startup",  # uvicorn
        "time",  # asyncio: a loop
    }
)
"""Names that an interface of others has, or whose word everybody knows from there."""
OPTIONS = ("Access", "WriteAccess", "SharedStore")
"""Types of parameters that only a command has."""
DECLARED = ("property", "setter", "fixture", "command(", "callback(", "override")
"""A function with such a decorator is a value, or is called by others by this name."""
WORDS = {
    "who" + "ever": "a sentence has a subject that acts",
    "power " + "controller": "it is a BMC, and a controller is a process of Outlive",
    "in good " + "order": "a host or a program ends cleanly",
}
"""No text has such words, and why."""
TEXTS = ("src", "docs", "tests", "scripts", "deploy", "bench", "lab", "README.md", "CHANGELOG.md")
SUFFIXES = frozenset({"", ".c", ".css", ".html", ".j2", ".js", ".md", ".py", ".service", ".sh", ".svg", ".toml"}) | {
    ".txt",
    ".yaml",
    ".yml",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, ast.Module]:
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_bytes()) for path in sorted(SOURCE.rglob("*.py"))}


def is_command(node: Function) -> bool:
    """Whether a function takes options, so that its name is a word of the command line."""
    given = [ast.unparse(one.annotation) for one in node.args.args if one.annotation is not None]
    return any(one in OPTIONS or "typer." in one for one in given)


def misnamed(module: str, tree: ast.AST) -> Iterator[str]:
    """Functions that are not named by a verb, with their places."""
    top = set(ast.iter_child_nodes(tree))
    for node in ast.walk(tree):
        if not isinstance(node, Function) or node.name.startswith("__"):
            continue
        name = node.name.strip("_")
        alone = "_" not in name
        if (name in VERBS or name in FOREIGN) if alone else not name.startswith(BEGINNINGS):
            continue
        declared = any(word in ast.unparse(one) for one in node.decorator_list for word in DECLARED)
        if not declared and not (module.startswith("cli/") and node in top and is_command(node)):
            yield f"{node.name} in {module}:{node.lineno}"


def test_functions_are_named_by_verbs() -> None:
    found = [text for module, tree in modules().items() for text in misnamed(module, tree)]
    assert found == [], f"name functions by verbs ({Path(__file__).parent / 'verbs.txt'}): {'; '.join(found)}"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def asked(): ...", ["asked"]),
        ("class A:\n    async def _held(self): ...", ["_held"]),
        ("def f():\n    def room(): ...", ["f", "room"]),
        ("def told_to_stop(): ...", ["told_to_stop"]),
        ("def as_it_stands(): ...", ["as_it_stands"]),
        ("def find(): ...\ndef free_amounts(): ...\ndef matches(): ...", []),
        ("class A:\n    @property\n    def room(self): ...\n    def __len__(self): ...", []),
        ("@command(app)\ndef room(): ...", []),
    ],
)
def test_pronouns_participles_and_bare_nouns_are_refused(source: str, names: list[str]) -> None:
    assert [text.partition(" in ")[0] for text in misnamed("made.py", ast.parse(source))] == names


def test_a_class_name_stands_for_one_class() -> None:
    found = defaultdict(list)
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{module}:{node.lineno}")
    assert len(found) > 1000
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_texts_use_the_words_that_operators_know() -> None:
    found, read = [], 0
    for path in sorted(file for name in TEXTS for file in [ROOT / name, *(ROOT / name).rglob("*")]):
        if not path.is_file() or path.suffix not in SUFFIXES or "__pycache__" in path.parts:
            continue
        read += 1
        lines = path.read_text(encoding="utf-8").lower().splitlines()
        place = path.relative_to(ROOT)
        found += [
            f"{place}:{n}: {why}" for n, line in enumerate(lines, 1) for word, why in WORDS.items() if word in line
        ]
    assert read > 1000
    assert found == []


def test_a_printed_order_to_fence_can_be_typed_as_it_stands() -> None:
    seams, order = re.compile(r'"\n\s*f?"'), re.compile(r"(?<!`)outlive fence (?:release|\{[^}]*\}|HOST)[^;,)]*")
    printed = [
        (path.relative_to(SOURCE).as_posix(), one)
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "cli"
        for one in order.findall(seams.sub("", path.read_text(encoding="utf-8")))
    ]
    assert len(printed) > 10
    assert [one for one in printed if "--reason ..." not in one[1] and "--call-off" not in one[1]] == []
