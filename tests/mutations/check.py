"""Looks for a check that fails, in the source tree that it is started in; prints what failed as one line of JSON.

Checks come in the order in which they are cheap: histories that went wrong once, worlds of the model checker,
scenarios, some files of tests about what only stores and servers do, seeds. A check is named by its kind and by what it
runs, such as ``world takeover`` or ``seed 12``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from outlive.base import gather_defects, silence_logging
from outlive.simulation import PlayedStory, Story, read_scenario
from tests.model.catalogue import WORLDS
from tests.model.mutation_proof import SHOWN_IN, read, replay
from tests.model.rules import Rules
from tests.model.search import Space
from tests.support.loops import run
from tests.swarm.seeds import run_seed

SCENARIOS: Final = Path(__file__).parents[1] / "scenarios"
TESTS: Final = (
    "tests/torture/test_linearizable.py",
    "tests/integration/test_api_deletion.py",
    "tests/unit/node/test_deletion.py",
    "tests/unit/node/test_permissions.py",
    "tests/unit/node/test_restored_stores.py",
)
"""Files of them."""
SEEDS: Final = range(1, 101)
STATES: Final = 40_000
"""Of one world at most."""


def checks(kinds: tuple[str, ...]) -> Iterator[str]:
    """All of these kinds, by name."""
    names: dict[str, Iterator[str] | list[str]] = {
        "history": sorted(SHOWN_IN),
        "world": list(WORLDS),
        "scenario": sorted(path.parent.name for path in SCENARIOS.glob("*/README")),
        "test": list(TESTS),
        "seed": [str(seed) for seed in SEEDS],
    }
    for kind in kinds:
        yield from (f"{kind} {name}" for name in names[kind])


def failure(check: str) -> str:
    """What a check finds wrong; empty: nothing."""
    kind, _, name = check.partition(" ")
    match kind:
        case "history":
            return _history(name)
        case "world":
            return Space(Rules(), WORLDS[name]).search(states=STATES).violation
        case "scenario":
            return _scenario(name)
        case "test":
            return _test(name)
        case "seed":
            result = run_seed(int(name))
            violation = result.violations[0] if result.violations else None
            found = f"{violation.invariant}: {violation.subject}: {violation.text}" if violation else result.error
            return found.strip().splitlines()[-1 if violation is None else 0] if found else ""
    raise ValueError(f"there is no kind of check {kind!r}")


def _history(target: str) -> str:
    one = read(target)
    assert one is not None
    _, violation = replay(one, Rules())
    return violation


def _scenario(name: str) -> str:
    scenario = read_scenario(SCENARIOS / name)

    async def play() -> PlayedStory:
        return await Story(scenario, seed=scenario.spec.seed, replay=name).play()

    with silence_logging(), gather_defects():
        ended = run(play())
    if not ended.failed:
        return ""
    violation = next(iter(ended.summary.violations), None)
    return ended.failed[0] if violation is None else f"{violation.invariant}: {violation.subject}: {violation.text}"


def _test(path: str) -> str:
    """The first test of the file that fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].partition("::")[2] or failed[0] if failed else ""


def main(names: list[str]) -> None:
    """``names``: checks, or kinds of them, each followed by all that it means."""
    for given in names:
        for check in [given] if " " in given else checks((given,)):
            begun = time.perf_counter()
            try:
                found = failure(check)
            except Exception as error:  # a mutation that breaks a check is caught by another
                print(f"{check}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            if found:
                took_s = round(time.perf_counter() - begun, 2)
                print(json.dumps({"check": check, "found": found.splitlines()[0], "tookS": took_s}), flush=True)
                return


if __name__ == "__main__":
    main(sys.argv[1:])
