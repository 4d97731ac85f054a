"""Random clusters under random faults: nothing is ever violated, and a seed means the same run everywhere.

The first block of seeds is played twice, by two processes that hash differently; both must find everything well and
write the same history. These are a sample; ``scripts/swarm`` and ``scripts/storage-swarm`` play as many as are asked
for (docs/testing.md).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST = 1
BLOCK = 5
BLOCKS = 4
STORAGE_BLOCKS = 2
LIMIT_S = 600.0


def played(script: str, first: int, last: int, hash_seed: int) -> tuple[int, dict[str, str], str]:
    """Exit code, the hash of each seed's history, and what was told, of one process."""
    done = subprocess.run(
        [f"scripts/{script}", str(first), str(last), "--jobs", "1", "--traces"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    words = [line.split() for line in done.stdout.splitlines()]
    traces = {line[0]: line[1] for line in words if len(line) == 2 and line[0].isdecimal()}
    return done.returncode, traces, done.stdout + done.stderr


@pytest.mark.parametrize("first", range(FIRST + BLOCK, FIRST + BLOCK * BLOCKS, BLOCK))
def test_seeds_are_well(first: int) -> None:
    check_block("swarm", first)


@pytest.mark.parametrize("first", range(FIRST + BLOCK, FIRST + BLOCK * STORAGE_BLOCKS, BLOCK))
def test_seeds_of_storage_are_well(first: int) -> None:
    check_block("storage-swarm", first)


@pytest.mark.parametrize("script", ["swarm", "storage-swarm"])
def test_seeds_are_well_and_run_the_same_under_another_hash_seed(script: str) -> None:
    assert check_block(script, FIRST, hash_seed=1) == check_block(script, FIRST, hash_seed=2)


def check_block(script: str, first: int, hash_seed: int = 1) -> dict[str, str]:
    """The hash of each seed's history, of a block in which all is well."""
    code, traces, told = played(script, first, first + BLOCK - 1, hash_seed)
    assert code == 0, told
    assert len(traces) == BLOCK, told
    return traces
