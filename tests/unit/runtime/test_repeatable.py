"""The same seed gives the same run, in another process and under another hash seed; and real loops work as well."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.loops import run_real

from outlive.base import Random, SeededIds, SystemClock
from outlive.resources import Hypervisor, ObjectMeta
from outlive.runtime import Informer, Manager, Metrics, Watch
from outlive.store import MemoryStore

STORY = """
import hashlib, structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
from tests.unit.runtime import test_election, test_informer
trace = [repr(test_election.run(test_election._tumult(11)))]
trace.append(repr(test_informer.run(test_informer._life(5, named=True, hold_s=10.0, stranger=True))[2].changes))
print(hashlib.sha256("".join(trace).encode()).hexdigest())
"""
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_seed_gives_the_same_run_under_any_hash_seed():
    traces = {
        subprocess.run(
            [sys.executable, "-c", STORY],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONASYNCIODEBUG": debug},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for seed, debug in (("1", ""), ("77", ""), ("1", "1"))
    }
    assert len(traces) == 1
    assert len(traces.pop()) == 65


def test_a_manager_works_on_a_real_loop():
    async def main():
        clock, ids = SystemClock(), SeededIds(Random(1))
        store = MemoryStore(clock, ids)
        await store.create(Hypervisor(metadata=ObjectMeta(name="h1")))
        looked = asyncio.Event()

        class Looks:
            name = "looks"

            async def reconcile(self, key: str) -> None:
                assert key == "h1"
                looked.set()

        manager = Manager(clock, Random(1), Metrics(), ids)
        informer = Informer(store, Hypervisor, clock=clock, random=Random(2))
        manager.add_controller(Looks(), [Watch(informer)])
        running = asyncio.create_task(manager.run())
        await looked.wait()
        assert manager.ready
        manager.stop()
        await running

    run_real(main(), limit_s=10)
