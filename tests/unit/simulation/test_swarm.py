"""Seeds: the same seed is the same cluster, the same faults and the same run, whatever Python hashes with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outlive.base.random import Random
from outlive.simulation.faulting import UNTIL_S, schedule
from outlive.simulation.spec import HostSpec
from outlive.simulation.swarm import run_seed, world_of
from outlive.simulation.verbs import VERBS

TRACE = "from outlive.simulation.swarm import run_seed; import sys; print(run_seed(int(sys.argv[1])).trace)"


def _trace(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", TRACE, str(seed)], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 7])
def test_trace_is_the_same_under_another_hash_seed(seed: int) -> None:
    assert _trace(seed, "1") == _trace(seed, "2") != ""


def test_seeds_are_within_the_sizes_that_are_promised() -> None:
    for seed in range(200):
        spec = world_of(seed)
        hosts = spec.hosts
        assert isinstance(hosts, tuple)
        assert 3 <= len(hosts) <= 8
        assert 10 <= len(spec.vms) <= 60 if isinstance(spec.vms, tuple) else False
        used: dict[str, int] = {}
        for vm in spec.vms:
            used[vm.host] = used.get(vm.host, 0) + int(vm.cpu)
        assert all(used.get(host.name, 0) <= int(host.cpu) for host in hosts)
        assert any(host.mode == "coordinator" for host in hosts)


def test_faults_are_verbs_within_their_time_and_all_kinds_come_up() -> None:
    seen: set[str] = set()
    for seed in range(300):
        for fault in schedule(Random(seed).fork("faults"), world_of(seed)):
            assert fault.verb in VERBS
            seen.add(fault.verb)
            assert fault.at_s < UNTIL_S + 100.0
    assert len(seen) > 30


def test_lies_are_told_only_where_two_proofs_are_asked_for() -> None:
    for seed in range(300):
        spec = world_of(seed)
        assert isinstance(spec.hosts, tuple)
        proofs = {host.name: host for host in spec.hosts}
        for fault in schedule(Random(seed).fork("faults"), spec):
            if fault.verb == "watchdog-broken" or fault.arguments.get("mode") == "lying":
                host: HostSpec = proofs[fault.arguments["hosts"][0]]
                assert host.proofs >= 2


@pytest.mark.slow
def test_a_seed_runs_three_minutes_and_rests() -> None:
    result = run_seed(4)
    assert result.well, result
    assert result.virtual_s >= 180.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [25, 116])
def test_seeds_that_once_told_untrue_coverage_are_well(seed: int) -> None:
    assert run_seed(seed).violations == ()
