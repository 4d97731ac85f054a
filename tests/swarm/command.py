"""The command behind ``scripts/swarm`` and ``scripts/storage-swarm``: runs seeds, prints those that went wrong."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver

from tests.swarm.seeds import Result, run_seed
from tests.swarm.storage_seeds import run_storage_seed

SEEDS_A_PROCESS = 8
"""Then a new one is forked, which is cheaper than to collect what seeds leave behind."""


def main() -> int:
    """Run the seeds from the command line; returns 1 if one was not well."""
    parser = argparse.ArgumentParser(prog="scripts/swarm", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--story", action="store_true", help="print everything that happens (one seed)")
    parser.add_argument("--traces", action="store_true", help="print the hash of each seed's trace")
    parser.add_argument("--storage", action="store_true", help="seeds of storage, on a virtual Kubernetes")
    given = parser.parse_args()
    run = run_storage_seed if given.storage else run_seed
    seeds = range(given.first, given.last + 1)
    begun = time.perf_counter()
    bad = 0
    for result in run_seeds(run, seeds, given.jobs, given.story):
        if given.traces:
            print(f"{result.seed} {result.trace}")
        if not result.well:
            bad += 1
            print(describe_result(result), flush=True)
    took = time.perf_counter() - begun
    print(f"{len(seeds)} seeds, {bad} not well, {took:.1f} s, {len(seeds) / took:.2f} seeds/s", file=sys.stderr)
    return 1 if bad else 0


def run_seeds(run: Callable[..., Result], seeds: range, jobs: int, story: bool) -> Iterator[Result]:
    """Run each seed, in this process or in ``jobs`` others."""
    if story or jobs == 1 or len(seeds) == 1:
        for seed in seeds:
            yield run(seed, on_event=print if story else None)
        return
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([run_seed.__module__, run_storage_seed.__module__])
    forkserver.ensure_running()
    with forks.Pool(jobs, initializer=gc.disable, maxtasksperchild=SEEDS_A_PROCESS) as pool:
        yield from pool.imap(run, seeds)


def describe_result(result: Result) -> str:
    """Return the error and the first violations of a seed, a line each."""
    lines = [f"seed {result.seed}: {result.error}"] if result.error else []
    return "\n".join([*lines, *map(str, result.violations[:3])])


if __name__ == "__main__":
    sys.exit(main())
