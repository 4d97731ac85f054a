"""The command behind ``scripts/mutate``: applies each mutation to a copy of the source, and looks who notices."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from tests.model import mutation_proof
from tests.mutations.catalogue import MUTATIONS, Mutation
from tests.mutations.record import Caught, record, recorded, table

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = (
    "pyproject.toml",
    "src",
    "tests/__init__.py",
    "tests/conformance",
    "tests/conftest.py",
    "tests/integration",
    "tests/model",
    "tests/mutations",
    "tests/scenarios",
    "tests/support",
    "tests/swarm",
    "tests/torture",
    "tests/unit/node",
)
KINDS: Final = ("history", "world", "scenario", "test", "seed")
LIMIT_S: Final = 900.0
"""For all checks of one mutation."""


class Rotten(Exception):
    """An old text does not stand exactly once in its file."""


def mutated(one: Mutation, root: Path) -> dict[Path, str]:
    """File → its text with the mutation. ``Rotten``."""
    texts: dict[Path, str] = {}
    for edit in one.edits:
        path = root / edit.file
        text = texts.get(path) or path.read_text(encoding="utf-8")
        if (count := text.count(edit.old)) != 1:
            raise Rotten(f"{one.name}: its old text stands {count} times in {edit.file}")
        texts[path] = text.replace(edit.old, edit.new)
    return texts


def _checked(tree: Path, checks: list[str], limit_s: float) -> Caught:
    """The first check that fails in that tree."""
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.mutations.check", *checks]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Caught(check="")
    last = [line for line in done.stdout.splitlines() if line.startswith("{")][-1:]
    return msgspec.convert(json.loads(last[0]), Caught) if last else Caught(check="")


def copy_tree(tree: Path) -> Path:
    """Copy what checks need of the source, as it is now, and return where it is."""
    for name in COPIED:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return tree


def tried(one: Mutation, whole: Path, checks: list[str], limit_s: float) -> Caught:
    """Who notices this mutation; a check that fails in the ``whole`` tree as well notices nothing."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as place:
        tree = Path(shutil.copytree(whole, Path(place) / "tree"))
        for path, text in mutated(one, whole).items():
            (tree / path.relative_to(whole)).write_text(text, encoding="utf-8")
        caught = _checked(tree, checks, limit_s)
    if caught.check and _checked(whole, [caught.check], limit_s).check:
        return Caught(check="", found=f"{caught.check} fails without it as well")
    return caught


def main() -> int:
    """Exit 0 if all are caught, 1 if one is not; ``Rotten`` if the list does not follow the source."""
    names = [one.name for one in MUTATIONS]
    parser = argparse.ArgumentParser(prog="scripts/mutate", description="Looks which check notices which mistake.")
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(names)}; all if none is named")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--checks", default=",".join(KINDS), help="or kinds of them, in order; all if not said")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one mutation at most")
    parser.add_argument("--anew", action="store_true", help="do not begin with the check that noticed it last")
    parser.add_argument("--missing", action="store_true", help="only those that nothing has noticed so far")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in names]:
        parser.error(f"no mutation is called {unknown[0]}")
    before = recorded()
    chosen = [one for one in MUTATIONS if one.name in (given.names or names)]
    if given.missing:
        chosen = [one for one in chosen if not before.get(one.name, Caught(check="")).check]
    kinds, missed = given.checks.split(","), 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as place, ThreadPoolExecutor(given.jobs) as pool:
        whole = copy_tree(Path(place))

        def look(one: Mutation) -> Caught:
            known = before.get(one.name, Caught(check="")).check
            return tried(one, whole, kinds if given.anew or not known else [known, *kinds], given.limit)

        for one, caught in zip(chosen, pool.map(look, chosen), strict=True):
            missed += not caught.check
            said = f"{caught.check}, {caught.took_s:.1f} s: " if caught.check else "NOT CAUGHT "
            print(f"{one.name}: {said}{caught.found}", flush=True)
            before[one.name] = caught
            record(before)
    mutation_proof.DOCUMENT.write_text(mutation_proof.page(), encoding="utf-8")
    if not given.names and not given.missing:
        print("\n".join(table(before, mutation_proof.SHOWN_IN)))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
