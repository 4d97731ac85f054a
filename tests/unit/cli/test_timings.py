"""``outlive config timings`` shows every constant that paces a loop, and every duration among the settings."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.command import outlive

from outlive.cli.timings import FIXED, read_constant

SOURCES: Final = Path(__file__).parents[3] / "src"
LISTED: Final = {place for places in FIXED.values() for place in places}
PACED: Final = {"Periodic", "sleep", "set_within", "backoff_seconds"}
"""Calls that are given a pause."""
NO_PARTS: Final = ("outlive.simulation", "outlive.drivers", "outlive.base")
"""Packages whose waits are no pace of Outlive: of a model, of one call of a program, of a clock."""
NO_PACE: Final = {"outlive.node.fencing.watcher.HAIR_S"}
"""Constants that are added to a limit because it must be exceeded."""
ONE_COMMAND: Final = ("outlive.cli.",)
"""Modules in which only loops count: a command that waits for its end paces nobody else."""


def loaded_constants(tree: ast.Module, module: str) -> dict[str, str]:
    """Name of a constant in the module → where it is defined."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        found |= {one.id: f"{module}.{one.id}" for one in targets if isinstance(one, ast.Name)}
    return found


def pacing_constants(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Each call that paces, and a constant of seconds in what it is given."""
    known = loaded_constants(tree, module)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for argument in (*call.args, *(one.value for one in call.keywords)) if name in PACED else ():
            for one in ast.walk(argument):
                if isinstance(one, ast.Name) and re.fullmatch(r"[A-Z_]*(_S|SECONDS)[A-Z_]*", one.id):
                    yield name, known[one.id]


def all_pacing_constants() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for path in sorted(SOURCES.glob("outlive/**/*.py")):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        if not module.startswith(NO_PARTS):
            paced = pacing_constants(ast.parse(path.read_text(encoding="utf-8")), module)
            found += [(name, place) for name, place in paced if name == "Periodic" or not place.startswith(ONE_COMMAND)]
    return found


def test_a_constant_that_paces_a_loop_is_listed() -> None:
    found = all_pacing_constants()
    assert len([place for name, place in found if name == "Periodic"]) > 20
    assert sorted({place for _, place in found} - LISTED - NO_PACE) == []


def test_a_constant_that_is_missing_is_found() -> None:
    source = "from outlive.a import B_S\nC_S = D_S = 1.0\nPeriodic(f, lambda: B_S)\nclock.sleep(2 * C_S)\nprint(D_S)"
    assert set(pacing_constants(ast.parse(source), "m")) == {("Periodic", "outlive.a.B_S"), ("sleep", "m.C_S")}


def test_a_listed_constant_has_a_value_and_one_meaning() -> None:
    places = [place for group in FIXED.values() for place in group]
    assert len(places) == len(LISTED)
    assert [place for place in places if not all(0.0 <= one < 10 * 365 * 86400.0 for one in read_constant(place))] == []
    meanings = [meaning for group in FIXED.values() for meaning in group.values()]
    assert [meaning for meaning in meanings if not re.fullmatch(r"[A-Z].*\.", meaning)] == []


def test_the_command_shows_fixed_times_profiles_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "outlive.yaml"
    file.write_text("election:\n  renew: 3s\nfailover:\n  reconcileInterval: 1m\n")
    shown = json.loads(outlive("config", "timings", "--config", str(file), "-o", "json").out)
    by_name = {(one["topic"], one["name"]): (one["kind"], one["seconds"]) for one in shown}
    assert len(by_name) == len(shown)
    assert all(one["meaning"] for one in shown)
    assert by_name["fencing", "node.fencing.rehearsals.PAUSES_S"] == ("fixed", [1.0, 2.0])
    assert by_name["profiles", "steady.renew_s"] == ("profile", [5.0])
    assert by_name["outlive.yaml", "election.renew"] == ("setting", [3.0])
    assert by_name["outlive.yaml", "failover.reconcileInterval"] == ("setting", [60.0])
    assert by_name["node.yaml", "node.writeLimit"] == ("setting", [2.0])
