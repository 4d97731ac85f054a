"""The role of ``outlive up`` on a simulated OVN: what it measures, reports and finds wrong, and where VMs may run."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.network_clouds import INTERFACE, MAC, Cloud, guest, in_cloud
from tests.support.northbound import OLD

from outlive.base import LoopClock, NotFound, Random
from outlive.network import PORTS, Scope, delete, upsert
from outlive.resources import (
    Assigned,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Migration,
    ObjectMeta,
    VirtualMachine,
    VirtualNetwork,
    VirtualNetworkSpec,
)
from outlive.simulation.network import SimulatedNorthbound

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("network", ["green", "red"])
def test_the_stages_of_a_switch_over_are_measured_after_it(network: str) -> None:
    async def story(cloud: Cloud) -> None:
        await cloud.plug("ch-1")
        await cloud.set_vm(migration=Migration(id="m1", source="ch-1", target="ch-2"))
        await asyncio.sleep(1)
        await cloud.plug("ch-2")
        await asyncio.sleep(5)
        move = (await cloud.port()).status.migration
        assert move is not None
        assert (move.prepared, list(move.times_ms)) == (True, ["prepare"])
        await cloud.set_vm(migration=None, assigned=Assigned(hypervisor="ch-2"))
        await asyncio.sleep(5)
        status = (await cloud.port()).status
        assert status.active_on == "ch-2"
        assert status.migration is not None
        assert {"prepare", "decide", "commit"} <= status.migration.times_ms.keys()
        assert status.gap_ms is not None
        assert "activation" not in status.migration.times_ms, "the guest has not announced itself"
        text = cloud.role.metrics.render().decode()
        for stage in ("prepare", "decide", "commit"):
            assert f'outlive_network_stage_seconds_count{{stage="{stage}"}} 1.0' in text

    in_cloud(network, story)


@run_by(in_cloud, "green")
async def test_a_guest_that_had_announced_itself_before_the_event_was_not_silent_for_the_network(cloud: Cloud) -> None:
    await cloud.move(announces=True)
    status = (await cloud.port()).status
    assert status.migration is not None
    assert (status.gap_ms, status.migration.times_ms["activation"]) == (0, 0)
    assert 'outlive_network_stage_seconds_count{stage="activation"} 1.0' in cloud.role.metrics.render().decode()


@pytest.mark.parametrize("network", ["green", "red"])
def test_a_gap_above_the_limit_of_the_port_is_told_and_another_place_without_a_move_has_none(network: str) -> None:
    async def story(cloud: Cloud) -> None:
        port = await cloud.port()
        await cloud.store.replace(msgspec.structs.replace(port, spec=msgspec.structs.replace(port.spec, max_gap_ms=1)))
        await cloud.move()
        measured = (await cloud.port()).status
        assert measured.gap_ms is not None
        assert measured.gap_ms > 1
        assert "GapExceeded" in await cloud.events()
        assert 'outlive_network_problems_total{reason="GapExceeded"} 1.0' in cloud.role.metrics.render().decode()
        await cloud.set_vm(assigned=Assigned(hypervisor="ch-1"))
        await asyncio.sleep(5)
        status = (await cloud.port()).status
        assert status.active_on == "ch-1"
        assert (status.gap_ms, status.migration) == (measured.gap_ms, measured.migration)

    in_cloud(network, story)


@run_by(in_cloud, "red", version=OLD)
async def test_the_proxy_of_an_old_ovn_answers_for_the_home_of_a_traveller_but_not_for_who_is_there(
    cloud: Cloud,
) -> None:
    await cloud.plug("ch-1")
    address = (await cloud.port()).status.addresses[0].partition("/")[0]
    seen: list[tuple[str, bool]] = []

    def look(_before: Any, after: Any, _writer: object) -> None:
        rows = after.get(PORTS, [])
        proxy = next(row["options"]["arp_proxy"] for row in rows if row["name"] == "stor-red_ch-2")
        twins = [row for row in rows if address in str(row.get("addresses")) and "ch-2" in row["switch"]]
        seen.append((proxy, bool(twins)))

    cloud.ovn.listeners.append(look)
    await cloud.set_vm(migration=Migration(id="m1", source="ch-1", target="ch-2"))
    await asyncio.sleep(1)
    assert [twin for _, twin in seen][-1], "the target has a port"
    home = address.rpartition(".")[0]
    assert {proxy for proxy, twin in seen if twin} == {f"169.254.1.1 {home}.1"}
    await cloud.plug("ch-2")
    await asyncio.sleep(5)
    await cloud.set_vm(migration=None, assigned=Assigned(hypervisor="ch-2"))
    await asyncio.sleep(5)
    assert {proxy for proxy, twin in seen if twin} == {f"169.254.1.1 {home}.1"}
    await cloud.set_vm(assigned=Assigned(hypervisor="ch-1"))
    await asyncio.sleep(5)
    assert seen[-1] == ("169.254.1.1", False)


@run_by(in_cloud, "green")
async def test_what_is_as_it_should_be_has_no_findings_and_what_is_not_is_found(cloud: Cloud) -> None:
    assert await cloud.check() == [("not-bound", "VirtualMachinePort/web.0")]
    await cloud.plug("ch-1")
    assert await cloud.check() == await cloud.check("web") == await cloud.check("green") == []
    with pytest.raises(NotFound):
        await cloud.check("nobody")
    cloud.ovn.kill("ch-1")
    await cloud.databases.northbound.renumber(comment="a test")
    assert ("chassis-silent", "Hypervisor/ch-1") in await cloud.check()


@run_by(in_cloud, "green")
async def test_rows_of_a_vm_that_is_gone_are_surplus(cloud: Cloud) -> None:
    await cloud.plug("ch-1")
    (row,) = [one for one in cloud.ovn.rows[PORTS] if one["name"] == INTERFACE]
    ids = {**row["external_ids"], "k8s.ovn.org/vm": "ghost"}
    stray = upsert(PORTS, {"name": "ghost"}, {**row, "name": "ghost", "addresses": [], "external_ids": ids})
    await cloud.databases.northbound.transact(Scope(), lambda _rows, _features: [stray], comment="a test")
    assert ("row-surplus", "VirtualMachine/ghost") in await cloud.check()
    assert ("row-surplus", "VirtualMachine/ghost") in await cloud.check("ghost")


@run_by(in_cloud, "green")
async def test_rows_of_a_vm_that_runs_without_a_port_are_told_and_stay(cloud: Cloud) -> None:
    (row,) = [one for one in cloud.ovn.rows[PORTS] if one["name"] == INTERFACE]
    vm = await cloud.vm()
    interface = INTERFACE[:-1] + "9"
    spec = msgspec.structs.replace(vm.spec, ports=(interface,))
    bare = await cloud.store.create(msgspec.structs.replace(vm, metadata=ObjectMeta(name="bare"), spec=spec))
    await cloud.store.replace_status(msgspec.structs.replace(bare, status=vm.status))
    ids = {**row["external_ids"], "k8s.ovn.org/vm": "bare", "outlive.dev/interface": interface}
    stray = upsert(PORTS, {"name": interface}, {**row, "name": interface, "addresses": [], "external_ids": ids})
    other = SimulatedNorthbound(cloud.ovn, LoopClock(), Random(1))
    await other.transact(Scope(), lambda _rows, _features: [stray], comment="a test")
    await asyncio.sleep(1500)
    assert cloud.row(interface) is not None
    assert [one for one in await cloud.check() if "bare" in one[1]] == [("no-port", "VirtualMachine/bare")]
    assert "PortMissing" in await cloud.events()


@run_by(in_cloud, "green")
async def test_rows_that_somebody_else_deletes_come_again_and_are_told_of(cloud: Cloud) -> None:
    await cloud.plug("ch-1")
    other = SimulatedNorthbound(cloud.ovn, LoopClock(), Random(2))
    gone = delete(PORTS, {"name": INTERFACE})
    await other.transact(Scope(), lambda _rows, _features: [gone], comment="a test")
    await asyncio.sleep(5)
    assert await cloud.check() == []
    assert "ProgrammedAgain" in await cloud.events()


@run_by(in_cloud, "green")
async def test_a_database_that_is_away_for_long_is_a_fault_until_it_is_back(cloud: Cloud) -> None:
    cloud.ovn.faults.northbound_down = True
    await asyncio.sleep(20)
    assert await cloud.faults() & {"network-away.default"} == set()
    await asyncio.sleep(30)
    assert "network-away.default" in await cloud.faults()
    cloud.ovn.faults.northbound_down = False
    await asyncio.sleep(15)
    assert "network-away.default" not in await cloud.faults()
    await asyncio.sleep(10)
    assert {"OvnAway", "OvnBack"} <= await cloud.events()


@run_by(in_cloud, "missing")
async def test_a_port_that_cannot_be_programmed_is_told_of_at_once_and_a_fault_after_a_minute(cloud: Cloud) -> None:
    await asyncio.sleep(5)
    assert "NotProgrammed" in await cloud.events()
    assert "network-port-refused.web.0" not in await cloud.faults()
    await asyncio.sleep(75)
    assert "network-port-refused.web.0" in await cloud.faults()


@run_by(in_cloud, "green")
async def test_a_chassis_that_does_not_follow_is_a_fault(cloud: Cloud) -> None:
    await cloud.plug("ch-1")
    cloud.ovn.kill("ch-1")
    await cloud.databases.northbound.renumber(comment="a test")
    await asyncio.sleep(45)
    assert "chassis-silent.ch-1" in await cloud.faults()


@run_by(in_cloud, "green")
async def test_two_ports_with_one_mac_are_a_fault(cloud: Cloud) -> None:
    evil = {"name": "evil", "switch": "green_ovn_layer2_switch", "addresses": [MAC]}
    row = upsert(PORTS, {"name": "evil"}, evil)
    await cloud.databases.northbound.transact(Scope(), lambda _rows, _features: [row], comment="a test")
    await asyncio.sleep(70)
    assert "network-conflict.web" in await cloud.faults()


@pytest.mark.parametrize("on_ovn", [True, False])
def test_a_vm_stays_on_hosts_that_its_network_reaches_also_without_ovn(on_ovn: bool) -> None:
    async def story(cloud: Cloud) -> None:
        assert (await cloud.vm()).allowed_hosts == ("ch-1",)
        host = await cloud.store.get(Hypervisor, "ch-2")
        labels = {**host.metadata.labels, "rack": "a"}
        await cloud.store.replace(
            msgspec.structs.replace(host, metadata=msgspec.structs.replace(host.metadata, labels=labels))
        )
        await asyncio.sleep(2)
        assert (await cloud.vm()).allowed_hosts == ("ch-1", "ch-2")
        await cloud.store.delete((await cloud.port()).ref)
        await asyncio.sleep(2)
        assert (await cloud.vm()).allowed_hosts == ()

    in_cloud("rack", story, on_ovn=on_ovn)


def looked_at(cloud: Cloud) -> int:
    """How often the limits of a VM, or all hosts, were looked at."""
    start = 'outlive_controller_reconciles_total{controller="network-hosts"'
    lines = cloud.role.metrics.render().decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(start))


def test_a_host_without_ovn_concerns_only_vms_on_networks_that_reach_others_than_before() -> None:
    hosts = [
        Hypervisor(
            metadata=ObjectMeta(name=f"h-{number}"),
            spec=HypervisorSpec(management="node"),
            status=HypervisorStatus(chassis=""),
        )
        for number in range(20)
    ]
    plain = VirtualNetwork(metadata=ObjectMeta(name="plain"), spec=VirtualNetworkSpec(type="bridged"))
    guests = [one for number in range(40) for one in guest(f"g{number}", "plain", number)]

    async def story(cloud: Cloud) -> None:
        started = looked_at(cloud)
        assert started <= 2 * (len(guests) // 2 + 1) + 1, "each VM, and all hosts at once"
        assert (await cloud.vm()).allowed_hosts == ("ch-1", "ch-2")
        for host in hosts:
            await cloud.store.delete(host.ref)
            await asyncio.sleep(1)
        assert looked_at(cloud) <= started + 2 * len(hosts), "the hosts, and in the end the VM on a network in OVN"
        assert (await cloud.vm()).allowed_hosts == ()
        assert (await cloud.store.get(VirtualMachine, "g0")).status.network_hosts == {}

    in_cloud("green", story, on_ovn=False, beside=[*hosts, plain, *guests])


def test_a_network_that_is_moved_into_ovn_keeps_its_vms_on_hosts_that_run_ovn() -> None:
    async def story(cloud: Cloud) -> None:
        assert (await cloud.vm()).allowed_hosts == ()
        found = await cloud.store.get(VirtualNetwork, "plain")
        await cloud.store.replace(
            msgspec.structs.replace(found, spec=VirtualNetworkSpec(type="localnet", physical_network="physnet"))
        )
        await asyncio.sleep(2)
        assert (await cloud.vm()).allowed_hosts == ("ch-1",)

    plain = VirtualNetwork(metadata=ObjectMeta(name="plain"), spec=VirtualNetworkSpec(type="bridged"))
    without = Hypervisor(
        metadata=ObjectMeta(name="ch-2"),
        spec=HypervisorSpec(management="node"),
        status=HypervisorStatus(chassis=""),
    )
    in_cloud("plain", story, on_ovn=False, beside=[plain, without])


@run_by(in_cloud, "green", on_ovn=False)
async def test_a_server_without_ovn_has_no_networks_to_check(cloud: Cloud) -> None:
    with pytest.raises(NotFound):
        await cloud.check()
