"""OVN under a virtual cluster: who answers at a VM's addresses, and what the judges find."""

from __future__ import annotations

import pytest
from tests.support.loops import run_by
from tests.support.network_worlds import KINDS, answers, broken, change_port, fabric_of, network_world, play, port_row

from outlive.network import NAMESPACE_KEY, OWN_CONTROLLER, OWN_NAMESPACE, OWNER_KEY, PORTS, VM_KEY, upsert
from outlive.node.ports import DomainState
from outlive.resources import PortMode, VirtualMachinePort, find_condition, interface_id
from outlive.simulation import Segment, World, domain_of

pytestmark = pytest.mark.slow

TYPES = ("routed", "layer2", "localnet")


def second_domain(world: World, host: str) -> None:
    """A domain of vm-1 runs there as well, which nobody has ordered."""
    vm = world.truth.find_vm("vm-1")
    assert vm is not None
    world.hosts[host].hypervisor.add_domain(domain_of(vm, "other", 1, DomainState.RUNNING))


@pytest.mark.parametrize("kind", TYPES)
def test_a_vm_answers_where_it_runs_at_all_its_addresses(kind: str) -> None:
    async def story(world: World) -> None:
        assert answers(world) == ["h1"]
        port = world.store.find(VirtualMachinePort, "vm-1.0")
        assert port is not None
        (own,) = fabric_of(world).ports_of("vm-1")
        wanted = {one.partition("/")[0] for one in port.status.addresses} or {own.mac}
        assert set(fabric_of(world).answered_addresses("h1", own)) == wanted
        world.judge.judge_rest()
        assert broken(world) == []

    play(story, lambda: network_world(kind))


@run_by(play, network_world, starts_s=4.0)
async def test_a_chassis_that_registers_late_is_found_at_once(world: World) -> None:
    port = world.store.find(VirtualMachinePort, "vm-1.0")
    assert port is not None
    bound = find_condition(port.status.conditions, "Bound")
    assert bound is not None
    assert bound.status == "True"
    assert port_row(world, "vm-1-net")["options"]["requested-chassis"] == "ch-h1"


@run_by(play, network_world)
async def test_a_host_that_is_off_the_network_of_vms_answers_nobody(world: World) -> None:
    world.networks.cut(Segment.VM, "h1")
    assert answers(world) == []
    world.networks.heal(Segment.VM, "h1")
    assert answers(world) == ["h1"]


@run_by(play, network_world)
async def test_a_disabled_port_answers_nobody(world: World) -> None:
    change_port(world, "vm-1-net", {"enabled": False})
    assert answers(world) == []


@pytest.mark.parametrize(("kind", "who"), [("layer2", []), ("localnet", ["h1"])])
def test_a_host_with_old_flows_answers_on_the_physical_network_only(kind: str, who: list[str]) -> None:
    async def story(world: World) -> None:
        for name in ("ctl-1",):
            world.controllers[name].kill(again=False)
        await world.do("stop-ovn-controller", {"hosts": ("h1",)})
        change_port(world, "vm-1-net", {"options": {"requested-chassis": "ch-h2"}})
        fabric_of(world).ovn.plug("vm-1-net", "ch-h2")
        assert fabric_of(world).ovn.bindings["vm-1-net"].chassis == "ch-h2"
        assert answers(world) == who

    play(story, lambda: network_world(kind))


@run_by(play, network_world)
async def test_the_one_that_waits_answers_once_its_guest_has_spoken(world: World) -> None:
    world.controllers["ctl-1"].kill(again=False)
    options = {"requested-chassis": "ch-h1,ch-h2", "activation-strategy": "rarp"}
    change_port(world, "vm-1-net", {"options": options})
    second_domain(world, "h2")
    assert answers(world) == ["h1"]
    fabric_of(world).ovn.announce("vm-1-net", "ch-h2")
    assert answers(world) == ["h1", "h2"]
    assert "S1b" in broken(world)


@pytest.mark.parametrize("kind", TYPES)
def test_a_second_domain_that_nobody_reaches_is_no_second_presence(kind: str) -> None:
    async def story(world: World) -> None:
        second_domain(world, "h2")
        assert "S1a" in broken(world)
        assert "S1b" not in broken(world)

    play(story, lambda: network_world(kind))


@run_by(play, lambda: network_world("localnet"))
async def test_a_host_that_comes_back_with_old_flows_is_found(world: World) -> None:
    world.controllers["ctl-1"].kill(again=False)
    world.networks.cut(Segment.VM, "h1")
    await world.do("stop-ovn-controller", {"hosts": ("h1",)})
    change_port(world, "vm-1-net", {"options": {"requested-chassis": "ch-h2"}})
    second_domain(world, "h2")
    assert "S1b" not in broken(world)
    world.networks.heal(Segment.VM, "h1")
    assert "S1b" in broken(world)


@run_by(play, network_world)
async def test_two_rows_of_one_mac_are_found_when_they_are_written(world: World) -> None:
    row = port_row(world, "vm-1-net")
    copy = {"name": "copy", "switch": row["switch"], "addresses": row["addresses"]}
    fabric_of(world).ovn.commit([upsert(PORTS, {"name": "copy"}, copy)], "somebody")
    assert broken(world) == ["rows"]


@run_by(play, network_world)
async def test_rows_of_a_vm_that_is_gone_are_found_at_rest(world: World) -> None:
    ids = {OWNER_KEY: OWN_CONTROLLER, NAMESPACE_KEY: OWN_NAMESPACE, VM_KEY: "gone"}
    switch = port_row(world, "vm-1-net")["switch"]
    row = {"name": "gone-net", "switch": switch, "external_ids": ids}
    fabric_of(world).ovn.commit([upsert(PORTS, {"name": "gone-net"}, row)], "somebody")
    world.judge.judge_rest()
    assert [one.subject for one in world.violations] == ["gone"]


@run_by(play, network_world)
async def test_a_vm_that_does_not_answer_where_it_runs_is_found_at_rest(world: World) -> None:
    world.controllers["ctl-1"].kill(again=False)
    change_port(world, "vm-1-net", {"addresses": []})
    world.judge.judge_rest()
    assert [one.text for one in world.violations if one.invariant == "network"] == [
        "it runs on h1 and does not answer at 192.168.40.2"
    ]


@run_by(play, lambda: network_world("routed"))
async def test_a_domain_of_another_host_has_the_interface_of_that_host(world: World) -> None:
    (own,) = fabric_of(world).ports_of("vm-1")
    domain = world.hosts["h1"].hypervisor.domains["vm-1"]
    assert domain.ports == (interface_id(own.interface, "twin", "h1"),)


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_vms_keep_their_network_where_they_run_while_a_restored_store_says_otherwise(
    kind: str, mode: PortMode | None
) -> None:
    async def story(world: World) -> None:
        await world.do("store-snapshot", {})
        await world.do("move", {"vm": "vm-1", "to": "h2", "live": True})
        await world.clock.sleep(30.0)
        assert answers(world) == ["h2"]
        world.networks.cut(Segment.STORE, "h3")
        await world.do("store-restore", {})
        for _ in range(20):
            await world.clock.sleep(1.0)
            assert (answers(world), world.running_hosts("vm-1")) == (["h2"], ("h2",))
        world.networks.heal(Segment.STORE, "h3")
        await world.clock.sleep(120.0)
        assert (answers(world), world.running_hosts("vm-1")) == (["h2"], ("h2",))
        world.judge.judge_rest()
        assert broken(world) == []

    play(story, lambda: network_world(kind, mode))
