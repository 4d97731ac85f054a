"""Seeds: the same seed is the same cluster, the same faults and the same run, whatever Python hashes with."""

from __future__ import annotations

import pytest

from outlive.base import Random
from outlive.simulation import HostSpec, hosts_of, vms_of
from outlive.simulation.verbs import VERBS
from tests.swarm.faults.draw import UNTIL_S
from tests.swarm.faults.links import COORDINATORS
from tests.swarm.faults.schedule import KINDS, kinds, schedule, staying_off
from tests.swarm.seeds import ANSWERS_S, GROUPS, run_seed, world_of

MEASURED = {"use-host", "use-vm", "resize-vm"}
"""What is measured of hosts, and sizes of VMs: of what people simulate, and no fault."""
DISKS = {"remove-disks", "restore-disks"}
"""A VM that lost its disks for good is no story that ends well."""
ONLY_STORIES = {"hog-daemon"} | MEASURED | DISKS
"""A seed's faults do the same under another name."""
HEALING = {"confirm-incarnation", "accept-machine", "forget-membership"}
"""What the operator does who puts right at the end what nobody else can."""


def test_seeds_are_within_the_sizes_that_are_promised() -> None:
    for seed in range(200):
        spec = world_of(seed)
        hosts, vms = spec.hosts, spec.vms
        assert isinstance(hosts, tuple)
        assert isinstance(vms, tuple)
        assert 3 <= len(hosts) <= 8
        assert 10 <= len(vms) <= 60
        used: dict[str, int] = {}
        for vm in vms:
            used[vm.host] = used.get(vm.host, 0) + int(vm.cpu)
        assert all(used.get(host.name, 0) <= int(host.cpu) for host in hosts)
        assert any(host.mode == "coordinator" for host in hosts)


@pytest.mark.slow
def test_faults_are_verbs_within_their_time_and_every_verb_comes_up() -> None:
    seen: set[str] = set()
    for seed in range(300):
        for fault in schedule(Random(seed).fork("faults"), world_of(seed)):
            assert fault.verb in VERBS
            seen.add(fault.verb)
            assert fault.at_s < UNTIL_S
    ours = {word for word, verb in VERBS.items() if verb.act.__module__.startswith("outlive.")}
    assert ours - seen <= ONLY_STORIES | HEALING


def test_many_seeds_have_one_kind_of_fault_only_and_some_have_all() -> None:
    drawn = [kinds(Random(seed).fork("faults")) for seed in range(3_000)]
    assert 300 <= sum(len(names) == 1 for names in drawn) <= 600
    assert sum(set(names) == set(KINDS) for names in drawn) >= 300
    assert {names[0] for names in drawn if len(names) == 1} == set(KINDS)


@pytest.mark.slow
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
def test_errors_that_programs_did_not_foresee_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> float:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("outlive.node.vm.reconciler.reconcile", broken)
    monkeypatch.setattr("tests.swarm.seeds.UNTIL_S", 2.0)
    monkeypatch.setattr("tests.swarm.seeds.QUIET_UNTIL_S", 2.0)
    monkeypatch.setattr("tests.swarm.seeds.BUDGET_S", 2.0)
    found = [one for one in run_seed(3).violations if one.invariant == "defect"]
    assert found
    assert (found[0].subject, "nobody foresaw this" in found[0].text) == ("part.crashed", True)


@pytest.mark.slow
def test_seeds_have_tight_times_slow_controllers_and_hosts_that_stay_off() -> None:
    worlds = [world_of(seed) for seed in range(300)]
    hosts = [host for spec in worlds for host in hosts_of(spec)]
    assert {host.bmc_answer_s for host in hosts} == {None, *ANSWERS_S}
    tight = [timing for spec in worlds for timing in spec.policy.timings.values()]
    assert any((one.silence_s or 0) < (one.guard_timeout_s or 0) for one in tight)
    away = [staying_off(Random(seed).fork("staying-off"), hosts_of(spec)) for seed, spec in enumerate(worlds)]
    assert 30 < sum(map(bool, away)) < 150
    for spec, gone in zip(worlds, away, strict=True):
        assert any(host.mode == "coordinator" and host.name not in gone for host in hosts_of(spec))


def test_seeds_have_every_policy() -> None:
    worlds = [world_of(seed) for seed in range(200)]
    vms = [vm for spec in worlds for vm in vms_of(spec)]
    assert {vm.recovery.mode for vm in vms} == {"", "restart", "hold", "ignore"}
    assert {rule.policy for vm in vms for rule in vm.affinity} == set(GROUPS)
    assert {vm.failback for vm in vms} == {"", "never", "planned", "auto"}
    assert {spec.shutdown_policy for spec in worlds} == {"", "freeze", "failover", "migrate"}
    assert {spec.rebalance.mode for spec in worlds} == {"off", "auto"}


def test_seeds_have_networks_that_hosts_make_and_functions_of_cards() -> None:
    worlds = [world_of(seed) for seed in range(200)]
    own = [spec for spec in worlds if spec.system_networks]
    assert 25 <= len(own) <= 75
    assert all(sum(host.mode == "coordinator" for host in hosts_of(spec)) >= COORDINATORS for spec in own)
    managed = [spec for spec in own if any(one.type == "managed" for one in spec.networks)]
    assert 10 <= len(managed) < len(own)
    needing = [spec for spec in worlds if any(vm.functions for vm in vms_of(spec))]
    assert 10 <= len(needing) <= 60
