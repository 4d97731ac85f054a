"""The command behind ``scripts/model``: searches deep, or makes the stored counterexamples and the page anew."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from dataclasses import replace

from tests.model import mutation_proof
from tests.model.catalogue import WORLDS
from tests.model.rules import Rules, targets
from tests.model.search import Space


def _deep(task: tuple[str, int, int, int]) -> bool:
    name, depth, faults, states = task
    world = WORLDS[name]
    if faults >= 0:
        world = replace(world, faults=faults)
    began = time.monotonic()

    def tell(level: int, seen: int, new: int) -> None:
        if level % 5 == 0:
            speed = seen / max(0.001, time.monotonic() - began)
            print(f"{name}: depth {level}, {seen} states, {new} new, {speed:.0f}/s", flush=True)

    result = Space(Rules(), world).search(states=states, depth=depth, tell=tell)
    how = "all of them" if result.complete else "not all"
    print(
        f"{name}: {result.states} states ({how}), depth {result.depth}: {result.violation or 'no violation'}",
        flush=True,
    )
    for number, (said, _) in enumerate(result.history[1:], 1):
        print(f"  {number}. {said}")
    return not result.violation


def _prove(task: tuple[str, int]) -> tuple[str, bool]:
    target, states = task
    if target not in mutation_proof.SHOWN_IN:
        return f"{target}: argued", target in mutation_proof.ARGUED
    began = time.monotonic()
    result = mutation_proof.search(target, states)
    took = time.monotonic() - began
    if not result.violation:
        return f"{target}: MISSED in {mutation_proof.SHOWN_IN[target]}, {result.states} states, {took:.0f} s", False
    mutation_proof.write(mutation_proof.stored(target, result))
    return f"{target}: {len(result.history) - 1} steps, {result.states} states, {took:.0f} s: {result.violation}", True


def main() -> int:
    """Exit 0 if all is well, 1 for a violation, or a rule that nobody misses."""
    parser = argparse.ArgumentParser(prog="scripts/model", description="Search the safety protocol for violations.")
    parser.add_argument("worlds", nargs="*", help=f"of: {', '.join(WORLDS)}; all if none is named")
    parser.add_argument("--depth", type=int, default=1000, help="steps at most")
    parser.add_argument("--faults", type=int, default=-1, help="faults in each world, instead of its own number")
    parser.add_argument("--states", type=int, default=20_000_000, help="states of each world at most")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--prove", action="store_true", help="search the counterexamples anew and write the page")
    parser.add_argument("--only", default="", help="with --prove: rules whose names contain this")
    given = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        if given.prove:
            wanted = [(one, given.states) for one in targets() if given.only in one]
            well = True
            for said, fine in pool.imap(_prove, wanted):
                print(said, flush=True)
                well = well and fine
            mutation_proof.DOCUMENT.write_text(mutation_proof.page(), encoding="utf-8")
            return 0 if well else 1
        unknown = [name for name in given.worlds if name not in WORLDS]
        if unknown:
            parser.error(f"no world is called {unknown[0]}")
        tasks = [(name, given.depth, given.faults, given.states) for name in given.worlds or WORLDS]
        return 0 if all(list(pool.imap(_deep, tasks))) else 1


if __name__ == "__main__":
    sys.exit(main())
