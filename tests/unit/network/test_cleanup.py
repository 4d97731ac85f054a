"""Rows of VMs that are gone: told first, deleted a period later, and never most of them at once."""

from __future__ import annotations

from outlive.base import Clock, LoopClock, Random
from outlive.network import (
    NAMESPACE_KEY,
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    PORTS,
    SWITCHES,
    VM_KEY,
    ClusterPause,
    Columns,
    RowCleanup,
    Rows,
    find_orphans,
    upsert,
)
from outlive.runtime import Metrics
from outlive.simulation.network import SimulatedNorthbound, SimulatedOvn


def port(vm: str, **more: str) -> Columns:
    ids = {NAMESPACE_KEY: OWN_NAMESPACE, VM_KEY: vm, OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: "green", **more}
    return {"name": f"port-{vm}", "switch": "s", "external_ids": ids}


def switch(network: str) -> Columns:
    return {"name": f"switch-{network}", "external_ids": {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: network}}


def test_only_rows_of_our_own_are_orphans() -> None:
    rows: Rows = {
        PORTS: [port("here"), port("gone"), port("theirs", **{OWNER_KEY: "default-network-controller"}), {"name": "x"}],
        SWITCHES: [switch("green"), switch("blue"), {"name": "neutron"}],
    }
    assert find_orphans(rows, {"here"}, {"green"}) == ({"gone"}, {"blue"}, 2)
    assert find_orphans(rows, {"here"}, ()) == ({"gone"}, {"blue"}, 2), "VMs have ports on the other one"


class Cleaned:
    """A cleanup over these VMs in OVN, of which only some are known."""

    def __init__(self, clock: Clock, vms: list[str], known: list[str]) -> None:
        self.ovn = SimulatedOvn()
        self.metrics = Metrics()
        self.known = known
        self.is_paused = False
        ops = [upsert(SWITCHES, {"name": "s"}, {"name": "s"})]
        ops += [upsert(PORTS, {"name": f"port-{vm}"}, port(vm)) for vm in vms]
        self.ovn.commit(ops, None)
        self.looked: list[tuple[str, str]] = []
        self.gauge = self.metrics.add_gauge("orphans", "Orphans")
        self.cleanup = RowCleanup(
            SimulatedNorthbound(self.ovn, clock, Random(1)),
            clock,
            period_s=600.0,
            known=lambda: (self.known, ["green"]),
            look=lambda kind, name: self.looked.append((kind, name)),
            pause=self.read_pause,
            runs=lambda vm: vm == "running",
            runs_unknown=self.runs_unknown,
            orphans=self.gauge,
        )

    async def read_pause(self) -> ClusterPause:
        return ClusterPause(self.is_paused, "")

    async def runs_unknown(self, vm: str) -> bool:
        return vm == "unknown"


async def test_a_pause_of_the_cluster_begins_the_wait_anew() -> None:
    cleaned = Cleaned(LoopClock(), ["a", "b"], ["a"])
    await cleaned.cleanup.run_once()
    cleaned.is_paused = True
    await cleaned.cleanup.run_once()
    cleaned.is_paused = False
    await cleaned.cleanup.run_once()
    assert cleaned.looked == []
    await cleaned.cleanup.run_once()
    assert cleaned.looked == [("vm", "b")]


async def test_an_orphan_is_told_first_and_deleted_one_period_later() -> None:
    cleaned = Cleaned(LoopClock(), ["a", "b"], ["a"])
    await cleaned.cleanup.run_once()
    assert cleaned.looked == []
    assert b"orphans 1.0" in cleaned.metrics.render()
    await cleaned.cleanup.run_once()
    assert cleaned.looked == [("vm", "b")]


async def test_a_vm_that_a_host_runs_and_the_store_does_not_know_is_no_orphan() -> None:
    cleaned = Cleaned(LoopClock(), ["a", "unknown"], ["a"])
    for _ in range(3):
        await cleaned.cleanup.run_once()
    assert cleaned.looked == []


async def test_a_vm_that_runs_without_ports_is_no_orphan_and_is_looked_at_each_time() -> None:
    cleaned = Cleaned(LoopClock(), ["a", "running"], ["a"])
    await cleaned.cleanup.run_once()
    await cleaned.cleanup.run_once()
    assert cleaned.looked == [("vm", "running")] * 2
    assert b"orphans 0.0" in cleaned.metrics.render()


async def test_a_vm_that_is_back_by_then_keeps_its_rows() -> None:
    cleaned = Cleaned(LoopClock(), ["a", "b"], ["a"])
    await cleaned.cleanup.run_once()
    cleaned.known = ["a", "b"]
    await cleaned.cleanup.run_once()
    assert cleaned.looked == []


async def test_nothing_is_deleted_where_suddenly_most_vms_seem_to_be_gone() -> None:
    vms = [f"vm-{number}" for number in range(30)]
    cleaned = Cleaned(LoopClock(), vms, vms[:10])
    for _ in range(3):
        await cleaned.cleanup.run_once()
    assert cleaned.looked == []
