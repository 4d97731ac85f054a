"""Random clusters under random faults: nothing is ever violated, and a seed means the same run everywhere.

Each block of seeds is played twice, by two processes that hash differently; both must find everything well and write
the same history. These are a sample; ``scripts/swarm`` and ``scripts/storage-swarm`` play as many as are asked for
(docs/testing.md).
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


@pytest.mark.parametrize("first", range(FIRST, FIRST + BLOCK * BLOCKS, BLOCK))
def test_seeds_are_well_and_run_the_same_under_another_hash_seed(first: int) -> None:
    _check_block("swarm", first)


@pytest.mark.parametrize("first", range(FIRST, FIRST + BLOCK * STORAGE_BLOCKS, BLOCK))
def test_seeds_of_storage_are_well_and_run_the_same_under_another_hash_seed(first: int) -> None:
    _check_block("storage-swarm", first)


def _check_block(script: str, first: int) -> None:
    last = first + BLOCK - 1
    code, traces, told = played(script, first, last, 1)
    assert code == 0, told
    assert len(traces) == BLOCK, told
    again, others, told = played(script, first, last, 2)
    assert (again, others) == (0, traces), told
